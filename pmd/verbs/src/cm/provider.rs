//! The seam between ids and whoever manages their connections: the software NIC here, a kernel's `rdma_cm`
//! behind librdmacm elsewhere. Everything above it is bookkeeping that is the same for all.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use pmd_roce::cm::{Negotiated, PortSpace, Route};
use pmd_roce::ids::{Gid, Qpn};
use pmd_roce::qp::attr::{AddressVector, ModifyQpError};
use pmd_roce::qp::state::QpState;

use super::event::EventKind;
use super::id::ConnectParams;
use super::id_error::IdError;
use super::managed::ManagedQp;

/// The Q_Key of datagram services, and of their multicast groups (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: u32 = 0x0123_4567;

/// An id of a provider; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IdKey(pub(crate) u64);

/// A channel of a provider; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChannelKey(pub(crate) u64);

/// Where an id stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdState {
    /// It was created, and no more.
    Idle,
    /// It has an address and a port.
    Bound,
    /// It knows how its packets leave.
    AddrResolved,
    /// It knows all of the way.
    RouteResolved,
    /// It waits for requests.
    Listening,
    /// Somebody asks, and waits for an answer.
    Requested,
    /// It has asked, or accepted, and waits for the peer.
    Connecting,
    /// The peer accepts, and waits for [`Id::establish`](super::Id::establish).
    Responded,
    /// It is connected; a datagram service was found, or answered for.
    Connected,
    /// It is being disconnected, or packets of the connection may still be under way.
    Disconnected,
    /// It was refused, failed, or is over.
    Over,
}

impl IdState {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Idle => "new",
            Self::Bound => "bound",
            Self::AddrResolved => "at a resolved address",
            Self::RouteResolved => "at a resolved route",
            Self::Listening => "listening",
            Self::Requested => "asked for a connection",
            Self::Connecting => "connecting",
            Self::Responded => "answered by its peer",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::Over => "over",
        }
    }
}

impl fmt::Display for IdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// What is known of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdView {
    /// Name space of its ports.
    pub space: PortSpace,
    /// Where it stands.
    pub state: IdState,
    /// Address and port of this side, once bound. An unspecified address: all of the device's.
    pub local: Option<SocketAddr>,
    /// Of the peer.
    pub peer: Option<SocketAddr>,
    /// The way to the peer, once resolved.
    pub route: Option<Route>,
    /// The same, as address handles are made of it.
    pub path: Option<AddressVector>,
    /// Its queue pair, where it moves one.
    pub qp: Option<Qpn>,
}

/// Something that happened to an id.
#[derive(Debug)]
pub(crate) struct Occurrence {
    pub(crate) id: IdKey,
    pub(crate) kind: EventKind,
    /// Of a request: the id that was made for it.
    pub(crate) request: Option<IdKey>,
}

/// Whoever manages the connections of a device.
pub(crate) trait Provider: fmt::Debug {
    /// With the descriptor that is readable when [`Provider::poll`] may have something.
    fn create_channel(&self) -> io::Result<(ChannelKey, OwnedFd)>;
    /// Drops what is left in it; ids that only an untaken request knows of are destroyed.
    fn destroy_channel(&self, channel: ChannelKey);
    /// The oldest occurrence of a channel, or of one id of it.
    fn poll(&self, channel: ChannelKey, only: Option<IdKey>) -> Option<Occurrence>;
    /// Sleeps until there may be one.
    fn sleep(&self, channel: ChannelKey, limit: Duration) -> io::Result<()>;

    fn create_id(&self, channel: ChannelKey, space: PortSpace) -> IdKey;
    /// The peer, if there is one, is told.
    fn destroy_id(&self, id: IdKey);
    fn view(&self, id: IdKey) -> IdView;
    /// What has not been taken yet moves, too.
    fn migrate(&self, id: IdKey, channel: ChannelKey);
    fn set_type_of_service(&self, id: IdKey, tos: u8);

    fn bind(&self, id: IdKey, local: SocketAddr) -> Result<(), IdError>;
    fn listen(&self, id: IdKey, backlog: usize) -> Result<(), IdError>;
    fn resolve_addr(&self, id: IdKey, to: SocketAddr) -> Result<(), IdError>;
    fn resolve_route(&self, id: IdKey) -> Result<(), IdError>;
    /// Takes a queue pair in RESET over, and brings it to where receives can be posted.
    fn attach(&self, id: IdKey, qp: Rc<dyn ManagedQp>) -> Result<(), IdError>;
    fn detach(&self, id: IdKey);
    fn connect(&self, id: IdKey, params: &ConnectParams<'_>) -> Result<(), IdError>;
    fn negotiate(&self, id: IdKey, params: &ConnectParams<'_>) -> Result<Negotiated, IdError>;
    fn accept(&self, id: IdKey, params: &ConnectParams<'_>) -> Result<(), IdError>;
    fn reject(&self, id: IdKey, private_data: &[u8]) -> Result<(), IdError>;
    fn establish(&self, id: IdKey, private_data: &[u8]) -> Result<(), IdError>;
    fn disconnect(&self, id: IdKey, private_data: &[u8]) -> Result<(), IdError>;
    fn join(&self, id: IdKey, group: Gid) -> Result<(), IdError>;
    fn leave(&self, id: IdKey, group: Gid) -> Result<(), IdError>;
}

/// Moves a queue pair one step on its way to RTS, as both sides have agreed: INIT, RTR or RTS. Between INIT and RTR
/// receives are posted, so that they are there before the peer can send. INIT may be entered anew: what the peer may do
/// is known only once it has asked.
///
/// # Errors
/// [`ModifyQpError`]: nothing changed.
pub fn advance(qp: &dyn ManagedQp, terms: &Negotiated, to: QpState) -> Result<(), ModifyQpError> {
    match terms.step(to) {
        Some((attr, mask)) => qp.advance(&attr, mask),
        None => Err(ModifyQpError::Value {
            field: "qp_state",
            value: to as u64,
            need: "a connection is brought up by INIT, RTR and RTS",
        }),
    }
}
