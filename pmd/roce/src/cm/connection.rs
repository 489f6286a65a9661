//! One connection, and what its transitions have in common.

use core::time::Duration;

use super::config::{LocalQp, Route};
use super::context::{Context, RemoteId, RemoteQp};
use super::event::CmEvent;
use super::listener::ListenerId;
use super::mad::Mad;
use super::message::{Answered, Message, Mra, Rej, RejectInfo};
use super::negotiated::Negotiated;
use super::private_data::PrivateData;
use super::reason::RejectReason;
use super::span;
use super::state::{CmState, ConnId};
use crate::ids::Instant;
use crate::sink::Flow;

/// A connection of either side.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnId,
    pub(super) slot: u32,
    pub(super) state: CmState,
    /// Destroyed by its consumer, and not over yet: it goes on without events.
    pub(super) orphan: bool,
    /// Of the two sides, the one that asked.
    pub(super) is_active: bool,
    pub(super) route: Route,
    /// Transaction of the handshake.
    pub(super) tid: u64,
    /// The peer's names; 0 while they are not known.
    pub(super) remote_id: u32,
    pub(super) remote_guid: u64,
    pub(super) qp: LocalQp,
    /// What is agreed so far; before that, what this side or the peer wants.
    pub(super) terms: Negotiated,
    /// The last message that wants an answer, or that answers and may be wanted again.
    pub(super) last: Mad,
    /// How long its answer may take.
    pub(super) interval: Duration,
    /// How often it may be sent again.
    pub(super) max_retries: u8,
    pub(super) retries_left: u8,
    /// How long the peer waits for this side's consumer.
    pub(super) patience: Duration,
    /// Whose backlog it takes a place in.
    pub(super) listener: Option<ListenerId>,
    /// Local ACK timeout that this side's consumer wants, whatever follows from the path.
    pub(super) ack_timeout: Option<u8>,
}

impl Connection {
    /// Whether a message over `from` comes from the peer.
    pub(super) fn is_with(&self, from: &Flow) -> bool {
        self.route.destination == from.src && self.route.source == from.dst
    }

    pub(super) const fn remote_key(&self) -> RemoteId {
        (self.route.destination, self.remote_guid, self.remote_id)
    }

    pub(super) const fn qpn_key(&self) -> RemoteQp {
        (self.route.destination, self.remote_guid, self.terms.dest_qpn)
    }

    /// The peer has told its names.
    pub(super) fn enter_indices(&self, cx: &mut Context) {
        cx.by_remote.insert(self.remote_key(), self.slot);
        cx.by_qpn.insert(self.qpn_key(), self.slot);
    }

    pub(super) fn leave_indices(&self, cx: &mut Context) {
        self.leave_qpn(cx);
        if cx.by_remote.get(&self.remote_key()) == Some(&self.slot) {
            cx.by_remote.remove(&self.remote_key());
        }
    }

    fn leave_qpn(&self, cx: &mut Context) {
        if cx.by_qpn.get(&self.qpn_key()) == Some(&self.slot) {
            cx.by_qpn.remove(&self.qpn_key());
        }
    }

    /// The consumer has made up its mind about a request.
    pub(super) fn leave_backlog(&mut self, cx: &mut Context) {
        if let Some(listener) = self.listener.take() {
            cx.listeners.leave(listener);
        }
    }

    /// Raises an event, unless the consumer has left.
    pub(super) fn raise(&self, cx: &mut Context, event: CmEvent) {
        if !self.orphan {
            cx.events.push_back(event);
        }
    }

    /// Sends a message that wants an answer, and goes to where it is waited for.
    pub(super) fn ask(
        &mut self,
        cx: &mut Context,
        now: Instant,
        tid: u64,
        message: impl Into<Message>,
        state: CmState,
    ) {
        self.last = message.into().emit(tid);
        self.retries_left = self.max_retries;
        self.state = state;
        cx.send_mad(self.route, self.last);
        cx.timers.set(self.slot, now.after(self.interval));
    }

    /// Waits for this side's consumer as long as the peer does.
    pub(super) fn await_consumer(&mut self, cx: &mut Context, now: Instant, state: CmState) {
        self.state = state;
        cx.timers.set(self.slot, now.after(self.patience));
    }

    /// The peer asks again while the consumer thinks: it is asked to wait.
    pub(super) fn ask_for_patience(&mut self, cx: &mut Context, now: Instant, message: Answered) {
        let state = match message {
            Answered::Rep => CmState::MraRepSent,
            _ => CmState::MraReqSent,
        };
        let service_timeout = super::limits::SERVICE_TIMEOUT;
        let mra = Mra {
            local_comm_id: self.id.0,
            remote_comm_id: self.remote_id,
            message,
            service_timeout,
            private_data: PrivateData::EMPTY,
        };
        cx.send(self.route, self.tid, mra);
        self.patience = self.patience.max(span::of_code(service_timeout));
        self.await_consumer(cx, now, state);
    }

    pub(super) fn send_rej(
        &self,
        cx: &mut Context,
        message: Answered,
        reason: RejectReason,
        info: RejectInfo,
        private_data: PrivateData,
    ) {
        let rej = Rej {
            local_comm_id: self.id.0,
            remote_comm_id: self.remote_id,
            message,
            reason,
            info,
            private_data,
        };
        cx.send(self.route, self.tid, rej);
    }

    /// Nothing is going on any more.
    pub(super) fn enter_idle(&mut self, cx: &mut Context) {
        self.leave_indices(cx);
        self.leave_backlog(cx);
        cx.timers.clear(self.slot);
        self.state = CmState::Idle;
    }

    /// Waits until no packet of the connection can be under way. The peer's queue pair may begin
    /// another one at once: its packets have other PSNs.
    pub(super) fn enter_timewait(&mut self, cx: &mut Context, now: Instant) {
        self.leave_qpn(cx);
        self.leave_backlog(cx);
        self.state = CmState::Timewait;
        cx.timers.set(self.slot, now.after(span::of_code(self.terms.timeout)));
    }

    /// The transaction of messages that this side begins after the handshake: its own id as Linux
    /// writes it.
    pub(super) const fn own_tid(id: ConnId) -> u64 {
        AGENT << 32 | id.0.swap_bytes() as u64
    }
}

/// The upper half of transaction ids: whose they are on this device.
const AGENT: u64 = 2;
