//! Connection management: how two queue pairs that know nothing of each other are connected, by
//! messages between the general services interfaces of their devices (IBTA 1.4, chapter 12; for IP
//! addresses annex A11).
//!
//! [`Cm`] is the state machine of one device, for both sides of many connections. It does no I/O and
//! moves no queue pair: whoever owns it hands in what arrives and the time, and takes out messages to
//! send and events. Methods come in four kinds, as those of [`Engine`](crate::engine::Engine):
//! *commands* (`listen`, `connect`, `accept`, …), *inputs* (`handle_*`), *outputs* (`poll_*`) and
//! getters.
//!
//! ```text
//!   active                                              passive
//!   connect -------- REQ -------->  ConnectRequest: create a queue pair, negotiate, move it to RTS
//!   Reply  <-------- REP ---------  accept
//!   move the queue pair to RTS
//!   establish ------ RTU -------->  Established
//!   disconnect ----- DREQ ------->  Disconnected
//!   Disconnected <-- DREP --------
//!   TimewaitExit                    TimewaitExit
//! ```
//!
//! Each message that wants an answer is sent again until one comes, so often as agreed, and each state
//! that waits has an end. What a stranger sends changes no connection: a message counts only if it comes
//! from the address that the connection is with, and knows its names on both sides.

mod active;
mod config;
mod connection;
mod context;
mod error;
mod event;
mod ip_header;
pub mod limits;
mod listener;
mod lookup;
mod mad;
pub mod message;
mod negotiated;
mod numbers;
mod outbox;
mod passive;
mod patience;
mod private_data;
mod reason;
mod refusal;
mod release;
mod service;
mod span;
mod state;
mod timeout;

pub use config::{Accept, CmConfig, ConnParam, Connect, LocalQp, Lookup, LookupAnswer, Route};
pub use context::{CmCounters, CmDrop};
pub use error::{AnswerError, ConnectError, ListenError};
pub use event::{
    Awaited, CmEvent, ConnectRequest, Disconnection, Found, LookupRequest, PeerAddress, Rejection,
};
pub use ip_header::IpHeader;
pub use listener::{Listen, ListenerId};
pub use lookup::LookupId;
pub use mad::{Mad, MadData, MadError, MadHeader};
pub use message::{Message, SidrStatus};
pub use negotiated::Negotiated;
pub use outbox::Transmit;
pub use private_data::{PrivateData, PrivateDataTooLong};
pub use reason::RejectReason;
pub use service::{PortSpace, ServiceId};
pub use state::{CmState, ConnId};

use connection::Connection;
use context::Context;
use lookup::Lookups;
use numbers::Numbers;

use crate::ids::Instant;
use crate::sink::Flow;
use crate::slots::Slots;

/// The connection manager of a device.
#[derive(Debug)]
pub struct Cm {
    /// Boxed: connections come and go one by one, and the table stays small.
    connections: Slots<Box<Connection>>,
    numbers: Numbers,
    lookups: Lookups,
    context: Context,
}

impl Cm {
    /// Makes room for everything that `config` allows.
    pub fn new(config: CmConfig) -> Self {
        let connections = config.connections.min(limits::MAX_CONNECTIONS);
        Self {
            connections: Slots::new(connections),
            numbers: Numbers::new(connections, config.seed),
            lookups: Lookups::new(&config),
            context: Context::new(config, connections),
        }
    }

    // Inputs --------------------------------------------------------------------------------

    /// Takes a management datagram that came over `from`: sent by `from.src`, to this device's address
    /// `from.dst`.
    ///
    /// # Errors
    /// [`CmDrop`]: it changed nothing, though it may be answered. There is nothing to do about it.
    pub fn handle_mad(&mut self, now: Instant, from: &Flow, mad: &[u8]) -> Result<(), CmDrop> {
        self.context.counters.received += 1;
        let outcome = match Message::parse(mad) {
            Err(error) => Err(CmDrop::Malformed(error)),
            Ok((tid, message)) => self.handle_message(now, from, tid, &message),
        };
        if let Err(reason) = &outcome {
            self.context.counters.count_drop(reason);
        }
        outcome
    }

    fn handle_message(
        &mut self,
        now: Instant,
        from: &Flow,
        tid: u64,
        message: &Message,
    ) -> Result<(), CmDrop> {
        match message {
            Message::Req(req) => self.handle_req(now, from, tid, req),
            Message::Mra(mra) => self.handle_mra(now, from, mra),
            Message::Rej(rej) => self.handle_rej(now, from, rej),
            Message::Rep(rep) => self.handle_rep(now, from, tid, rep),
            Message::Rtu(rtu) => self.handle_rtu(from, rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, from, tid, dreq),
            Message::Drep(drep) => self.handle_drep(now, from, drep),
            Message::SidrReq(req) => self.lookups.handle_request(&mut self.context, from, tid, req),
            Message::SidrRep(rep) => self.lookups.handle_reply(&mut self.context, from, rep),
        }
    }

    /// Runs every timer that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(slot) = self.context.timers.due(now) {
            self.run_timer(now, slot);
        }
        self.lookups.handle_timeout(&mut self.context, now);
    }

    // Outputs -------------------------------------------------------------------------------

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.context.outbox.pop()
    }

    /// The next event, in the order in which they came to pass.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.context.events.pop_front()
    }

    /// Whether [`Cm::poll_event`] has one.
    pub fn has_events(&self) -> bool {
        !self.context.events.is_empty()
    }

    /// When [`Cm::handle_timeout`] is due next.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let next = [self.context.timers.next(), self.lookups.next_timeout()];
        next.into_iter().flatten().min()
    }

    // Getters -------------------------------------------------------------------------------

    /// Where a connection stands; `None` once it is destroyed.
    pub fn state(&self, id: ConnId) -> Option<CmState> {
        self.connection(id).map(|connection| connection.state)
    }

    /// Connections that take a place in the table, those in timewait included.
    pub fn connections(&self) -> usize {
        self.connections.iter().count()
    }

    /// Lookups that take a place in the table, of both sides.
    pub fn lookups(&self) -> usize {
        self.lookups.len()
    }

    /// What was counted.
    pub const fn counters(&self) -> &CmCounters {
        &self.context.counters
    }

    /// What the manager was made with.
    pub const fn config(&self) -> &CmConfig {
        &self.context.config
    }

    // Connections by name ---------------------------------------------------------------------

    /// The connection that a consumer names; one that was destroyed is nobody's.
    fn connection(&self, id: ConnId) -> Option<&Connection> {
        let connection = self.connections.get(self.numbers.slot(id.0))?;
        (connection.id == id && !connection.orphan).then_some(connection)
    }

    fn connection_mut(
        &mut self,
        id: ConnId,
    ) -> Result<(&mut Connection, &mut Context), AnswerError> {
        let found = self.connections.get_mut(self.numbers.slot(id.0));
        match found.filter(|connection| connection.id == id && !connection.orphan) {
            Some(connection) => Ok((connection, &mut self.context)),
            None => Err(AnswerError::NoSuchConnection),
        }
    }

    /// The connection that a message names, if the message comes from its peer.
    fn addressed(
        &mut self,
        comm_id: u32,
        from: &Flow,
    ) -> Result<(&mut Connection, &mut Context), CmDrop> {
        let found = self.connections.get_mut(self.numbers.slot(comm_id));
        match found.filter(|connection| connection.id.0 == comm_id) {
            None => Err(CmDrop::UnknownId),
            Some(connection) if !connection.is_with(from) => Err(CmDrop::WrongPeer),
            Some(connection) => Ok((connection, &mut self.context)),
        }
    }

    /// Gives a place back when nobody needs it any more.
    fn release(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if connection.orphan && connection.state == CmState::Idle {
            connection.leave_indices(&mut self.context);
            self.context.timers.clear(slot);
            self.connections.remove(slot);
            self.numbers.retire(slot);
        }
    }
}
