//! What happens to ids.

use std::fmt;
use std::rc::Rc;

use pmd_roce::cm::{
    Awaited, ConnectRequest, Disconnection, LookupRequest, Negotiated, PrivateData, Rejection,
    SidrStatus,
};
use pmd_roce::ids::{Gid, Qpn};
use pmd_roce::qp::attr::{AddressVector, ModifyQpError};

use super::held::Held;
use super::id::{Id, IdNumber};
use crate::qp::JoinGroupError;

/// `errno` values that `rdma_cm` gives as status.
mod errno {
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const ENETUNREACH: i32 = 101;
    pub(super) const EADDRNOTAVAIL: i32 = 99;
    pub(super) const ETIMEDOUT: i32 = 110;
}

/// Why an address was not resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddrFault {
    /// IPv4 and IPv6 do not meet.
    #[error("{to} is of another family than {from}, the address of the device")]
    Family {
        /// The device's.
        from: Gid,
        /// The destination.
        to: Gid,
    },
    /// It is nobody's.
    #[error("{0} is no address of a peer")]
    NotUnicast(Gid),
    /// The machine has no way there.
    #[error("no route from {from} to {to}: {reason}")]
    NoRoute {
        /// The device's.
        from: Gid,
        /// The destination.
        to: Gid,
        /// What the kernel says.
        reason: String,
    },
}

/// Why a connection that the peer accepts did not come up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectFault {
    /// The queue pair was not moved.
    #[error("the queue pair cannot be moved to RTS: {0}")]
    QueuePair(#[from] ModifyQpError),
    /// The peer was gone by then.
    #[error("the peer cannot be told: {0}")]
    Answer(#[from] pmd_roce::cm::AnswerError),
}

/// What could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// Something did not come in all the time that there was.
    Silence(Awaited),
    /// A datagram service is not to be had, with the peer's status.
    Lookup(SidrStatus),
    /// No answer to a lookup.
    LookupSilence,
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silence(Awaited::Reply) => f.write_str(
                "the peer does not answer: nobody has the address, or speaks this protocol there",
            ),
            Self::Silence(Awaited::Rtu) => f.write_str("the peer has gone since it asked"),
            Self::Silence(Awaited::Consumer) => {
                f.write_str("this side took longer to answer than the peer waits")
            }
            Self::Lookup(status) => write!(f, "the peer has no such datagram service: {status}"),
            Self::LookupSilence => f.write_str("the peer does not answer the lookup"),
        }
    }
}

/// What somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A connection.
    Connection(ConnectRequest),
    /// The queue pair of a datagram service.
    Datagrams(LookupRequest),
}

/// What a connection is like, or where a datagram service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// Connected on these terms.
    Connection(Negotiated),
    /// Datagrams go there.
    Datagrams {
        /// The way; a handle is made of it.
        av: AddressVector,
        /// The queue pair.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: u32,
    },
}

/// A multicast group, as a member addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: Gid,
    /// The way to all members.
    pub av: AddressVector,
    /// The queue pair number that stands for all members.
    pub qpn: Qpn,
    /// The group's Q_Key.
    pub qkey: u32,
}

/// Kinds of events, as `enum rdma_cm_event_type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// This side's address for a peer is known.
    AddrResolved,
    /// It cannot be.
    AddrError(AddrFault),
    /// The way to the peer is known.
    RouteResolved,
    /// The port of this side's address is down.
    RouteError,
    /// Somebody asks; [`Event::take_id`] has the id to answer with.
    ConnectRequest(Request),
    /// CM only: the peer accepts on these terms. Move the queue pair to RTS, then establish.
    ConnectResponse(Negotiated, PrivateData),
    /// The peer accepts, and the connection did not come up.
    ConnectError(ConnectFault),
    /// The peer cannot be reached.
    Unreachable(Unreached),
    /// The peer refuses.
    Rejected(Rejection),
    /// Work can begin. The data is the peer's, `None` where its packets were faster than its word.
    Established(Established, Option<PrivateData>),
    /// It is over; the queue pair is in Error.
    Disconnected(Disconnection),
    /// The device failed: its ids are of no more use.
    DeviceRemoval,
    /// A member of a group.
    MulticastJoin(Membership),
    /// Not a member of it.
    MulticastError(Gid, JoinGroupError),
    /// The interface under the device has another hardware address: peers may have lost their way.
    AddrChange,
    /// The queue pair's number may be used for the same peer again.
    TimewaitExit,
}

impl EventKind {
    /// The name that `rdma_event_str(3)` gives it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AddrResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddrError(_) => "RDMA_CM_EVENT_ADDR_ERROR",
            Self::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            Self::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            Self::ConnectRequest(_) => "RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse(..) => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::ConnectError(_) => "RDMA_CM_EVENT_CONNECT_ERROR",
            Self::Unreachable(_) => "RDMA_CM_EVENT_UNREACHABLE",
            Self::Rejected(_) => "RDMA_CM_EVENT_REJECTED",
            Self::Established(..) => "RDMA_CM_EVENT_ESTABLISHED",
            Self::Disconnected(_) => "RDMA_CM_EVENT_DISCONNECTED",
            Self::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            Self::MulticastJoin(_) => "RDMA_CM_EVENT_MULTICAST_JOIN",
            Self::MulticastError(..) => "RDMA_CM_EVENT_MULTICAST_ERROR",
            Self::AddrChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            Self::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        }
    }

    /// As `rdma_cm` has it: 0, a negative `errno`, or what the peer gave as reason or status.
    pub const fn status(&self) -> i32 {
        match self {
            Self::AddrError(AddrFault::Family { .. }) => -errno::EADDRNOTAVAIL,
            Self::AddrError(AddrFault::NotUnicast(_)) => -errno::EINVAL,
            Self::AddrError(AddrFault::NoRoute { .. }) => -errno::ENETUNREACH,
            Self::RouteError => -errno::ENODEV,
            Self::ConnectError(_) | Self::MulticastError(..) => -errno::EINVAL,
            Self::Unreachable(Unreached::Silence(_) | Unreached::LookupSilence) => {
                -errno::ETIMEDOUT
            }
            Self::Unreachable(Unreached::Lookup(status)) => status.0 as i32,
            Self::Rejected(rejection) => rejection.reason.0 as i32,
            _ => 0,
        }
    }

    /// Whether it says that something has failed.
    pub const fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::AddrError(_)
                | Self::RouteError
                | Self::ConnectError(_)
                | Self::Unreachable(_)
                | Self::Rejected(_)
                | Self::DeviceRemoval
                | Self::MulticastError(..)
        )
    }

    /// The peer's data, the whole field of its message.
    fn field(&self) -> Option<&PrivateData> {
        match self {
            Self::ConnectRequest(Request::Connection(request)) => Some(&request.private_data),
            Self::ConnectRequest(Request::Datagrams(request)) => Some(&request.private_data),
            Self::ConnectResponse(_, data) | Self::Established(_, Some(data)) => Some(data),
            Self::Rejected(rejection) => Some(&rejection.private_data),
            Self::Disconnected(Disconnection::ByPeer(data) | Disconnection::Answered(data)) => {
                Some(data)
            }
            _ => None,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, status) = (self.name(), self.status());
        match self {
            Self::AddrError(fault) => write!(f, "{name}, status {status}: {fault}"),
            Self::RouteError => write!(f, "{name}, status {status}: the port is down"),
            Self::ConnectError(fault) => write!(f, "{name}, status {status}: {fault}"),
            Self::Unreachable(what) => write!(f, "{name}, status {status}: {what}"),
            Self::Rejected(rejection) => write!(f, "{name}, status {status}: {}", rejection.reason),
            Self::MulticastError(group, error) => {
                write!(f, "{name}, status {status}: {}: {error}", group.ip())
            }
            Self::DeviceRemoval => write!(f, "{name}: the device failed, open it anew"),
            _ => f.write_str(name),
        }
    }
}

/// An event of an id. Dropping it acknowledges it; until then the id is not destroyed.
#[must_use = "dropping an event acknowledges it"]
pub struct Event {
    pub(super) kind: EventKind,
    pub(super) id: IdNumber,
    pub(super) request: Option<Id>,
    pub(super) serial: u64,
    pub(super) held: Rc<Held>,
}

impl Event {
    /// What has happened.
    pub const fn kind(&self) -> &EventKind {
        &self.kind
    }

    /// The name that `rdma_event_str(3)` gives it.
    pub const fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// 0, a negative `errno`, or what the peer gave as reason or status.
    pub const fn status(&self) -> i32 {
        self.kind.status()
    }

    /// The id that it happened to; of a request, the listener.
    pub const fn id(&self) -> IdNumber {
        self.id
    }

    /// Of a request, the id to answer with. One that nobody takes is rejected with the event's end.
    pub const fn take_id(&mut self) -> Option<Id> {
        self.request.take()
    }

    /// The peer's private data up to the last byte that is not zero. A message does not say how much of its
    /// field was given: data that may end in zeros carries its own length, and is read from
    /// [`Event::private_field`].
    pub fn private_data(&self) -> &[u8] {
        self.kind.field().map_or(&[], PrivateData::without_padding)
    }

    /// The whole field that carries the peer's private data, with zeros behind what was given.
    pub fn private_field(&self) -> &[u8] {
        self.kind.field().map_or(&[], PrivateData::as_bytes)
    }

    /// Says that it was dealt with, as `rdma_ack_cm_event(3)`; the same as dropping it.
    pub fn acknowledge(self) {}
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.held.acknowledge(self.serial);
    }
}
