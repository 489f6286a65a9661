//! What a consumer is told.

use core::net::IpAddr;

use super::config::Route;
use super::listener::ListenerId;
use super::lookup::LookupId;
use super::message::{Answered, RejectInfo, SidrStatus};
use super::negotiated::Negotiated;
use super::private_data::PrivateData;
use super::reason::RejectReason;
use super::service::ServiceId;
use super::state::ConnId;
use crate::ids::{PathMtu, Qpn};
use crate::qp::state::Transport;

/// Address and port of a peer, as a socket would name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// Address; it is the one that the request came from.
    pub ip: IpAddr,
    /// Port that the peer's consumer chose.
    pub port: u16,
}

/// Somebody asks for a connection: accept, reject or destroy it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Who listens.
    pub listener: ListenerId,
    /// What was asked for.
    pub service: ServiceId,
    /// Who asks; `None` where the service has no IP addresses.
    pub peer: Option<PeerAddress>,
    /// The way to the peer.
    pub route: Route,
    /// Kind of queue pair.
    pub transport: Transport,
    /// The peer's.
    pub remote_qpn: Qpn,
    /// READs and atomics that the peer wants served at a time.
    pub responder_resources: u8,
    /// READs and atomics that it serves.
    pub initiator_depth: u8,
    /// It heeds credits in acknowledgements.
    pub flow_control: bool,
    /// Retries, of both sides.
    pub retry_count: u8,
    /// RNR retries of this side.
    pub rnr_retry_count: u8,
    /// It takes receives from a shared queue.
    pub srq: bool,
    /// Payload bytes per packet.
    pub path_mtu: PathMtu,
    /// From its consumer: the whole field, zeros behind what was sent.
    pub private_data: PrivateData,
}

/// The peer refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: RejectReason,
    /// What it refused.
    pub message: Answered,
    /// What goes with the reason.
    pub info: RejectInfo,
    /// From its consumer: the whole field.
    pub private_data: PrivateData,
}

/// What did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// An answer to a REQ: the peer cannot be reached, or nobody there speaks this protocol.
    Reply,
    /// An answer to a REP: the peer is gone.
    Rtu,
    /// The consumer of this side: it took longer than any peer waits.
    Consumer,
}

/// How a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disconnection {
    /// The peer asked for it.
    ByPeer(PrivateData),
    /// This side asked for it, and the peer agreed.
    Answered(PrivateData),
    /// This side asked for it, and the peer does not answer any more.
    Unanswered,
}

/// Somebody asks for the queue pair of a datagram service: answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupRequest {
    /// Who listens.
    pub listener: ListenerId,
    /// What was asked for.
    pub service: ServiceId,
    /// Who asks; `None` where the service has no IP addresses.
    pub peer: Option<PeerAddress>,
    /// The way to the peer.
    pub route: Route,
    /// From its consumer: the whole field, zeros behind what was sent.
    pub private_data: PrivateData,
}

/// The queue pair of a datagram service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
    /// From its consumer: the whole field.
    pub private_data: PrivateData,
}

/// An event. After one that ends a connection it is in [`Idle`](super::CmState::Idle) or
/// [`Timewait`](super::CmState::Timewait), and still there until it is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// Passive: somebody asks. The connection is a new one.
    ConnectRequest(ConnId, ConnectRequest),
    /// Active: the peer accepts. Move the queue pair to RTS, then establish the connection.
    Reply(ConnId, Negotiated, PrivateData),
    /// Passive: the peer is ready. The data is `None` where its packets say so before its message.
    Established(ConnId, Option<PrivateData>),
    /// The peer refused; an established connection can be taken back, too.
    Rejected(ConnId, Rejection),
    /// It is over before it began, since something did not come.
    Unreachable(ConnId, Awaited),
    /// It is over. Move the queue pair to Error.
    Disconnected(ConnId, Disconnection),
    /// The queue pair's number may be used for the same peer again.
    TimewaitExit(ConnId, Qpn),
    /// Somebody asks for a datagram service.
    LookupRequest(LookupId, LookupRequest),
    /// The answer to a lookup, which is over.
    LookupReply(LookupId, Result<Found, SidrStatus>),
    /// A lookup had no answer, and is over.
    LookupUnreachable(LookupId),
}

impl CmEvent {
    /// The connection that it is about.
    pub const fn connection(&self) -> Option<ConnId> {
        match self {
            Self::ConnectRequest(id, _)
            | Self::Reply(id, ..)
            | Self::Established(id, _)
            | Self::Rejected(id, _)
            | Self::Unreachable(id, _)
            | Self::Disconnected(id, _)
            | Self::TimewaitExit(id, _) => Some(*id),
            Self::LookupRequest(..) | Self::LookupReply(..) | Self::LookupUnreachable(_) => None,
        }
    }

    /// The lookup that it is about.
    pub const fn lookup(&self) -> Option<LookupId> {
        match self {
            Self::LookupRequest(id, _) | Self::LookupReply(id, _) | Self::LookupUnreachable(id) => {
                Some(*id)
            }
            _ => None,
        }
    }
}
