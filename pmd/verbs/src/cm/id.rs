//! Ids: a listener, a connection, or a lookup of a datagram service.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use pmd_roce::cm::{ConnParam, LocalQp, Negotiated};
use pmd_roce::ids::Gid;
use pmd_roce::qp::state::Transport;

use super::channel::EventChannel;
use super::held::Held;
use super::id_error::{IdError, IdStays};
use super::managed::ManagedQp;
use super::provider::{IdKey, IdState, IdView, Provider};
use crate::pd::Pd;
use crate::qp::{Qp, QpOptions};
use crate::transport::Service;

/// Tells ids of a device apart; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdNumber(pub u64);

impl fmt::Display for IdNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a connection shall be like, as `struct rdma_conn_param`.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// Its values; those that the peer has a say in are negotiated down.
    pub param: ConnParam,
    /// For the peer's consumer: at most 56 bytes of a request on `RDMA_PS_TCP`, 92 on `RDMA_PS_IB`, 180 of a
    /// lookup; 196 of an answer, 136 of one to a lookup.
    pub private_data: &'a [u8],
    /// CM only: the queue pair, which the id does not have. On datagram services only its number counts.
    pub qp: Option<LocalQp>,
    /// CM only: its service.
    pub transport: Transport,
}

impl<'a> ConnectParams<'a> {
    /// The usual values, with this data for the peer.
    pub const fn with(private_data: &'a [u8]) -> Self {
        Self { param: ConnParam::DEFAULT, private_data, qp: None, transport: Transport::Rc }
    }
}

impl Default for ConnectParams<'_> {
    fn default() -> Self {
        Self::with(&[])
    }
}

/// An id, as `struct rdma_cm_id`. It belongs to the thread of its channel. Dropping it is as
/// `rdma_destroy_id(3)`, without a wait: the peer of a connection is told, and its queue pair is kept until no packet of it
/// can be under way, so that no other has its number meanwhile.
#[derive(Debug)]
pub struct Id {
    provider: Rc<dyn Provider>,
    held: Rc<Held>,
    key: IdKey,
}

impl Id {
    pub(super) fn new(provider: &Rc<dyn Provider>, held: &Rc<Held>, key: IdKey) -> Self {
        Self { provider: Rc::clone(provider), held: Rc::clone(held), key }
    }

    pub(super) const fn key(&self) -> IdKey {
        self.key
    }

    /// Its number, as events name it.
    pub const fn number(&self) -> IdNumber {
        IdNumber(self.key.0)
    }

    /// What is known of it.
    pub fn view(&self) -> IdView {
        self.provider.view(self.key)
    }

    /// Where it stands.
    pub fn state(&self) -> IdState {
        self.view().state
    }

    /// Gives it an address of this side and a port, as `rdma_bind_addr(3)`. An unspecified address stands for all of
    /// the device's, port 0 for any that is free.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn bind(&self, local: SocketAddr) -> Result<(), IdError> {
        self.provider.bind(self.key, local)
    }

    /// Waits for requests, as `rdma_listen(3)`. So many may wait to be answered, further ones are refused; 0 stands
    /// for the most that there can be.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn listen(&self, backlog: usize) -> Result<(), IdError> {
        self.provider.listen(self.key, backlog)
    }

    /// Finds the address of this side for a peer, and binds to it, as `rdma_resolve_addr(3)`. `ADDR_RESOLVED` or
    /// `ADDR_ERROR` follows.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn resolve_addr(&self, to: SocketAddr) -> Result<(), IdError> {
        self.provider.resolve_addr(self.key, to)
    }

    /// Finds the way to the peer, as `rdma_resolve_route(3)`: on RoCE nobody is asked, it follows from the addresses.
    /// `ROUTE_RESOLVED` or `ROUTE_ERROR` follows.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn resolve_route(&self) -> Result<(), IdError> {
        self.provider.resolve_route(self.key)
    }

    /// Packets of the connection have this IPv4 type of service, or IPv6 traffic class, as `RDMA_OPTION_ID_TOS`. It
    /// counts from the next [`Id::resolve_route`].
    pub fn set_type_of_service(&self, tos: u8) {
        self.provider.set_type_of_service(self.key, tos);
    }

    /// Creates a queue pair that the id moves, as `rdma_create_qp(3)`: one of a connection is in INIT then, where receives
    /// can be posted, one for datagrams in RTS.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn create_qp<T: Service>(
        &self,
        pd: &Pd,
        options: &QpOptions<'_>,
    ) -> Result<Rc<Qp<T>>, IdError> {
        let qp = Rc::new(pd.create_qp::<T>(options)?);
        self.provider.attach(self.key, Rc::clone(&qp) as Rc<dyn ManagedQp>)?;
        Ok(qp)
    }

    /// The id's hold on its queue pair ends, as `rdma_destroy_qp(3)`. It is destroyed with the last handle to it, and not
    /// before its timewait is over.
    pub fn destroy_qp(&self) {
        self.provider.detach(self.key);
    }

    /// Asks for a connection, or for the queue pair of a datagram service, as `rdma_connect(3)`. `ESTABLISHED`,
    /// `CONNECT_RESPONSE`, or what went wrong follows.
    ///
    /// # Errors
    /// [`IdError`]; nothing was sent.
    pub fn connect(&self, params: &ConnectParams<'_>) -> Result<(), IdError> {
        self.provider.connect(self.key, params)
    }

    /// CM only, before it is accepted: what the connection would be like. The queue pair is moved to RTS by that, or at
    /// least to RTR, its receives posted, before the request is accepted with the same values.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn negotiate(&self, params: &ConnectParams<'_>) -> Result<Negotiated, IdError> {
        self.provider.negotiate(self.key, params)
    }

    /// Accepts a request, as `rdma_accept(3)`. The id's queue pair is in RTS then. `ESTABLISHED` or what went wrong
    /// follows; nothing more comes of a lookup that is answered.
    ///
    /// # Errors
    /// [`IdError`]; nothing was sent.
    pub fn accept(&self, params: &ConnectParams<'_>) -> Result<(), IdError> {
        self.provider.accept(self.key, params)
    }

    /// Refuses a request, or CM only an acceptance, as `rdma_reject(3)`, with at most 148 bytes of data.
    ///
    /// # Errors
    /// [`IdError`]; nothing was sent.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), IdError> {
        self.provider.reject(self.key, private_data)
    }

    /// CM only: the queue pair is in RTS, as `rdma_establish(3)`. No event follows.
    ///
    /// # Errors
    /// [`IdError`]; nothing was sent.
    pub fn establish(&self, private_data: &[u8]) -> Result<(), IdError> {
        self.provider.establish(self.key, private_data)
    }

    /// Ends a connection, as `rdma_disconnect(3)`: its queue pair is in Error. `DISCONNECTED` follows, and
    /// `TIMEWAIT_EXIT`. One that the peer has ended is over already, and nothing happens.
    ///
    /// # Errors
    /// [`IdError`]; nothing was sent.
    pub fn disconnect(&self) -> Result<(), IdError> {
        self.provider.disconnect(self.key, &[])
    }

    /// The same, with at most 220 bytes of data for the peer.
    ///
    /// # Errors
    /// [`IdError`]; nothing was sent.
    pub fn disconnect_with(&self, private_data: &[u8]) -> Result<(), IdError> {
        self.provider.disconnect(self.key, private_data)
    }

    /// Tells another channel from now on, also what was not taken yet, as `rdma_migrate_id(3)`.
    ///
    /// # Errors
    /// [`IdError::Held`]: an event of it was taken from the channel before, and not acknowledged.
    pub fn migrate(&self, to: &EventChannel) -> Result<(), IdError> {
        if let Some(held) = self.held.oldest(self.key) {
            return Err(held.into());
        }
        self.provider.migrate(self.key, to.key());
        Ok(())
    }

    /// Has the id's datagram queue pair join a group, as `rdma_join_multicast(3)`. `MULTICAST_JOIN` or
    /// `MULTICAST_ERROR` follows.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn join_multicast(&self, group: Gid) -> Result<(), IdError> {
        self.provider.join(self.key, group)
    }

    /// Has it leave, as `rdma_leave_multicast(3)`.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn leave_multicast(&self, group: Gid) -> Result<(), IdError> {
        self.provider.leave(self.key, group)
    }

    /// Destroys it, as `rdma_destroy_id(3)`, which would wait for ever for an event that is held. Here events belong to the
    /// thread of their id, so that no wait could end, and the event is named instead.
    ///
    /// # Errors
    /// [`IdStays`] gives it back.
    pub fn destroy(self) -> Result<(), IdStays> {
        match self.held.oldest(self.key) {
            Some(held) => Err(IdStays { id: self, held }),
            None => Ok(()),
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if let Some(held) = self.held.oldest(self.key) {
            tracing::warn!("an id is destroyed although {held}");
        }
        self.provider.destroy_id(self.key);
    }
}
