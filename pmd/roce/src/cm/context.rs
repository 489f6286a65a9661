//! Everything of a manager but its connections, so that one of these can be borrowed beside it.

use std::collections::{BTreeMap, VecDeque};

use super::config::{CmConfig, Route};
use super::event::CmEvent;
use super::listener::Listeners;
use super::mad::MadError;
use super::message::Message;
use super::outbox::Outbox;
use crate::ids::{Gid, Qpn};
use crate::timer::Timers;

/// Why a message changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmDrop {
    /// It is no message of connection management.
    #[error(transparent)]
    Malformed(#[from] MadError),
    /// Its values contradict each other, or what RoCE is.
    #[error("the message makes no sense: {0}")]
    Nonsense(&'static str),
    /// It names a connection that is not there (any more).
    #[error("there is no such connection")]
    UnknownId,
    /// It names a connection that is with somebody else.
    #[error("the connection is with another peer")]
    WrongPeer,
    /// It came before, or came too late to matter.
    #[error("a duplicate, or too late")]
    OutOfState,
    /// A request that was refused at once.
    #[error("refused")]
    Refused,
}

/// What a manager has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// Datagrams that arrived.
    pub received: u64,
    /// Messages for the wire, those that were sent again included.
    pub sent: u64,
    /// Messages that were sent again for want of an answer.
    pub resent: u64,
    /// Messages that found no room on the way to the wire.
    pub lost: u64,
    /// Datagrams without effect: no messages, or senseless ones.
    pub malformed: u64,
    /// For connections that are not there.
    pub unknown: u64,
    /// For connections with somebody else.
    pub wrong_peer: u64,
    /// Duplicates, and what came too late.
    pub duplicates: u64,
    /// Requests refused without asking a consumer.
    pub refused: u64,
}

impl CmCounters {
    pub(super) const fn count_drop(&mut self, reason: &CmDrop) {
        let counter = match reason {
            CmDrop::Malformed(_) | CmDrop::Nonsense(_) => &mut self.malformed,
            CmDrop::UnknownId => &mut self.unknown,
            CmDrop::WrongPeer => &mut self.wrong_peer,
            CmDrop::OutOfState => &mut self.duplicates,
            CmDrop::Refused => &mut self.refused,
        };
        *counter += 1;
    }
}

/// A connection as its peer names it: where the peer is, its adapter, and its communication id. What
/// comes from elsewhere can name neither this one nor spoil it.
pub(super) type RemoteId = (Gid, u64, u32);
/// The peer's queue pair.
pub(super) type RemoteQp = (Gid, u64, Qpn);

/// Outputs, indices and settings.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: CmConfig,
    /// One deadline per connection.
    pub(super) timers: Timers,
    pub(super) outbox: Outbox,
    /// Each connection and each lookup has few, so that their number bounds these.
    pub(super) events: VecDeque<CmEvent>,
    pub(super) listeners: Listeners,
    /// Connections by what their peers call them.
    pub(super) by_remote: BTreeMap<RemoteId, u32>,
    /// Connections by their peers' queue pairs.
    pub(super) by_qpn: BTreeMap<RemoteQp, u32>,
    pub(super) counters: CmCounters,
}

impl Context {
    pub(super) fn new(config: CmConfig, connections: usize) -> Self {
        Self {
            config,
            timers: Timers::new(connections),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            listeners: Listeners::default(),
            by_remote: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            counters: CmCounters::default(),
        }
    }

    pub(super) fn send(&mut self, route: Route, tid: u64, message: impl Into<Message>) {
        self.send_mad(route, message.into().emit(tid));
    }

    pub(super) fn send_mad(&mut self, route: Route, mad: super::mad::Mad) {
        if self.outbox.push(route, mad) {
            self.counters.sent += 1;
        } else {
            self.counters.lost += 1;
        }
    }
}
