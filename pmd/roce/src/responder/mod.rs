//! The responder of reliable connections: executes requests in order of their PSNs, and decides
//! what the peer is told.

mod duplicate;
pub(crate) mod inbound;
mod rdatomic;
pub(crate) mod refuse;
pub(crate) mod reply;

use inbound::{Fault, Message};
use reply::Replies;

use crate::counters::tally;
use crate::device::{Device, Io};
use crate::event::AsyncEvent;
use crate::ids::Psn;
use crate::memory::Memory;
use crate::qp::Qp;
use crate::qp::state::{QpState, Transport};
use crate::sink::CqSink;
use crate::wire::{CreditCode, DropReason, Msn, NakCode, Operation, Packet, Syndrome};

/// An acknowledgement, positive or not, that is due to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) psn: Psn,
    pub(crate) msn: Msn,
    pub(crate) syndrome: Syndrome,
}

/// What a responder knows about the peer's stream of requests.
#[derive(Debug)]
pub(crate) struct Responder {
    /// PSN of the next request.
    pub(crate) expected: Psn,
    /// Messages executed.
    pub(crate) msn: Msn,
    /// Newest packet executed that was not a READ: what duplicates are acknowledged with. A READ's
    /// own responses acknowledge it, which an ACK must not do in their place. `None`: nothing was
    /// executed, so that there are no duplicates, only a peer that counts from elsewhere.
    pub(crate) executed: Option<Psn>,
    /// The peer was told to go back; packets ahead of `expected` need no other word.
    pub(crate) told_back: bool,
    /// The message in progress.
    pub(crate) message: Message,
    /// The ACK that is due: one for everything that came in since the last poll.
    pub(crate) ack: Option<Answer>,
    /// The NAK that is due, after everything that was accepted before it.
    pub(crate) refusal: Option<Answer>,
    /// The queue pair fell into Error for a fault of the peer, which is still to be told.
    pub(crate) parting: bool,
    /// READs and atomics, answered and to be answered.
    pub(crate) replies: Replies,
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self {
            expected: Psn::new(0),
            msn: Msn::new(0),
            executed: None,
            told_back: false,
            message: Message::None,
            ack: None,
            refusal: None,
            parting: false,
            replies: Replies::new(),
        }
    }

    /// RESET: as new, but for the room that READs and atomics had.
    pub(crate) fn reset(&mut self) {
        let mut replies = core::mem::replace(&mut self.replies, Replies::new());
        replies.clear();
        *self = Self { replies, ..Self::new() };
    }

    /// RTR: the first request carries `rq_psn`.
    pub(crate) const fn begin(&mut self, rq_psn: Psn) {
        self.expected = rq_psn;
    }

    /// Error: nothing more is said, unless the peer itself must learn why.
    pub(crate) const fn stop(&mut self) {
        self.message = Message::None;
        if !self.parting {
            self.ack = None;
            self.refusal = None;
            self.replies.forget_due();
        }
    }

    /// Whether an ACK is due to the peer, and nothing else.
    pub(crate) const fn owes_only_ack(&self) -> bool {
        self.ack.is_some() && self.refusal.is_none() && !self.replies.has_due()
    }

    /// Whether something is due to the peer.
    pub(crate) fn has_due(&self) -> bool {
        self.ack.is_some() || self.refusal.is_some() || self.replies.has_due()
    }
}

/// Takes a request.
///
/// # Errors
/// Why it had no effect.
pub(crate) fn handle_request<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    if qp.transport() == Transport::XrcIni {
        return Err(DropReason::WrongTransport);
    }
    let bth = &packet.headers.bth;
    let ahead = bth.psn.since(qp.responder.expected);
    if ahead < 0 {
        return duplicate::handle(qp, dev, packet);
    }
    if ahead > 0 {
        return Err(out_of_sequence(qp, dev));
    }
    note_heard(qp, dev);
    // An answer that asked for this very packet has been overtaken by it.
    qp.responder.told_back = false;
    qp.responder.refusal = None;
    match execute(qp, dev, io, packet) {
        Ok(()) => Ok(()),
        Err(fault) => {
            let Responder { expected, msn, .. } = qp.responder;
            refuse::refuse(qp, dev, io, fault, expected, msn);
            Ok(())
        }
    }
}

/// A packet before it is missing: the peer is told once.
fn out_of_sequence(qp: &mut Qp, dev: &mut Device) -> DropReason {
    tally!(qp, dev, out_of_sequence);
    if !core::mem::replace(&mut qp.responder.told_back, true) {
        let Responder { expected, msn, .. } = qp.responder;
        let syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
        qp.responder.refusal = Some(Answer { psn: expected, msn, syndrome });
        dev.ready.push(qp.slot);
    }
    DropReason::OutOfOrder
}

/// The first packet in RTR tells that the peer considers the connection established.
#[inline]
pub(crate) fn note_heard(qp: &mut Qp, dev: &mut Device) {
    if qp.state() == QpState::Rtr && !core::mem::replace(&mut qp.heard, true) {
        dev.events.raise(AsyncEvent::CommEst(qp.qpn));
    }
}

/// Executes the packet that was expected.
fn execute<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<(), Fault> {
    let bth = &packet.headers.bth;
    match bth.opcode.operation() {
        Operation::ReadRequest => return rdatomic::read(qp, dev, io, packet),
        Operation::CmpSwap | Operation::FetchAdd => return rdatomic::atomic(qp, dev, io, packet),
        _ => {}
    }
    let placed = inbound::place(qp, dev, io, packet);
    let responder = &mut qp.responder;
    if placed.is_ok() {
        responder.expected = responder.expected.plus(1);
        responder.executed = Some(bth.psn);
    }
    if placed? == inbound::Placed::Whole {
        responder.msn = responder.msn.plus(1);
    }
    if bth.ack_req {
        acknowledge(qp, dev, bth.psn);
    }
    Ok(())
}

/// Has an ACK sent at the next poll; it stands for all before it.
fn acknowledge(qp: &mut Qp, dev: &mut Device, psn: Psn) {
    // Credits are filled in when it leaves.
    let syndrome = Syndrome::ACK;
    qp.responder.ack = Some(Answer { psn, msn: qp.responder.msn, syndrome });
    dev.ready.push(qp.slot);
}

/// Has everything that was executed acknowledged once more; false when nothing was.
fn acknowledge_executed(qp: &mut Qp) -> bool {
    let Responder { executed: Some(psn), msn, .. } = qp.responder else { return false };
    qp.responder.ack = Some(Answer { psn, msn, syndrome: Syndrome::ACK });
    true
}

/// Credits of an ACK that leaves now: receives that the peer may count on, where no other queue
/// pair can take them.
fn credits(qp: &Qp) -> Syndrome {
    let credits = match qp.transport() {
        Transport::Rc if qp.init.srq.is_none() => CreditCode::for_receives(qp.rq.len()),
        _ => CreditCode::NONE,
    };
    Syndrome::Ack { credits }
}
