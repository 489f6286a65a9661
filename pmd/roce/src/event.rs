//! Asynchronous events, each scoped to what it concerns.

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
