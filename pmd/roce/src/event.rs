//! Asynchronous events, each scoped to what it concerns.

use std::collections::VecDeque;

use crate::ids::{CqId, Qpn, Srqn};

/// An event; the kinds of `enum ibv_event_type` that this device raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// A completion queue overran: it, and every queue pair on it, is in error.
    CqErr(CqId),
    /// A queue pair fell into error for a reason of this side, its completion or receive queue.
    QpFatal(Qpn),
    /// A peer's request made no sense: opcode, sequence, or an operation this queue pair forbids.
    QpReqErr(Qpn),
    /// A peer's request broke memory rights, alignment, length or the READ/atomic limit.
    QpAccessErr(Qpn),
    /// Data arrived on a queue pair in RTR: the peer considers the connection established.
    CommEst(Qpn),
    /// The send queue is drained after a transition to SQD that asked for this.
    SqDrained(Qpn),
    /// The queue pair in error will take no more from its shared receive queue.
    LastWqeReached(Qpn),
    /// A shared receive queue failed.
    SrqErr(Srqn),
    /// The requests in a shared receive queue dropped below the armed limit; one shot.
    SrqLimitReached(Srqn),
}

impl AsyncEvent {
    /// The queue pair it concerns, if one.
    pub const fn qpn(self) -> Option<Qpn> {
        match self {
            Self::QpFatal(qpn)
            | Self::QpReqErr(qpn)
            | Self::QpAccessErr(qpn)
            | Self::CommEst(qpn)
            | Self::SqDrained(qpn)
            | Self::LastWqeReached(qpn) => Some(qpn),
            Self::CqErr(_) | Self::SrqErr(_) | Self::SrqLimitReached(_) => None,
        }
    }
}

/// Events that nobody has polled yet. An event that is still in the queue is not raised a second
/// time, which bounds the queue.
#[derive(Debug)]
pub(crate) struct EventQueue(VecDeque<AsyncEvent>);

impl EventQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(VecDeque::with_capacity(capacity))
    }

    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if !self.0.contains(&event) {
            self.0.push_back(event);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn poll(&mut self) -> Option<AsyncEvent> {
        self.0.pop_front()
    }

    /// Drops the events of a queue pair that is no more.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.0.retain(|event| event.qpn() != Some(qpn));
    }
}
