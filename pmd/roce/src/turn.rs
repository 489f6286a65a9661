//! A queue pair's turn in `poll_transmit`, where it sends packets, or datagrams by any path.

use crate::datagram;
use crate::device::{Device, Io};
use crate::local::LocalPeer;
use crate::memory::Memory;
use crate::qp::Qp;
use crate::qp::state::{QpState, Transport};
use crate::requester;
use crate::responder::reply;
use crate::sink::{CqSink, TxSink};

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing is left to do until something happens.
    Idle,
    /// The budget is used up, or the peer must be looked at again at the next poll.
    More,
    /// The wire has no room.
    WireFull,
}

/// A turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Frames sent, or local operations done.
    pub(crate) done: usize,
    pub(crate) end: End,
}

impl Turn {
    pub(crate) const fn idle(done: usize) -> Self {
        Self { done, end: End::Idle }
    }

    pub(crate) const fn more(done: usize) -> Self {
        Self { done, end: End::More }
    }

    pub(crate) const fn wire_full(done: usize) -> Self {
        Self { done, end: End::WireFull }
    }
}

/// Lets a queue pair flush, answer, and send, in this order, at most `budget` frames; an ACK that is
/// all it has to answer comes last.
pub(crate) fn take<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    tx: &mut impl TxSink,
    peers: &mut impl LocalPeer,
    budget: usize,
) -> Turn {
    qp.flush(dev, io.cq);
    // An ACK alone waits for the end of the poll, where those of all queue pairs leave in a row.
    let answered = if qp.responder.owes_only_ack() {
        dev.acks.push(qp.slot);
        Turn::idle(0)
    } else {
        reply::transmit(qp, dev, io, tx, budget)
    };
    if answered.end != End::Idle {
        return answered;
    }
    let left = budget - answered.done;
    let sent = match (qp.state(), qp.transport()) {
        (QpState::Rts, Transport::Ud) => datagram::transmit(qp, dev, io, tx, peers, left),
        (QpState::Rts | QpState::Sqd, _) => requester::transmit(qp, dev, io, tx, left),
        _ => Turn::idle(0),
    };
    Turn { done: answered.done + sent.done, end: sent.end }
}
