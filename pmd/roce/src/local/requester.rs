//! The requester of the local path: one-sided operations are one copy, messages go into the ring.
//!
//! Nothing is acknowledged packet by packet. A message is done when the peer has taken its record,
//! a direct operation when it is executed; a receive that the peer shows is a credit, and a message
//! without credit is not pushed. Errors, retries and their counters are those of packets: silence
//! uses up `retry_cnt` timeouts, a missing receive `rnr_retry` waits.

use super::attempt::{Attempt, Step, credits, done, wait_for_receive};
use super::{LocalPeer, PublishedQp, RecordKind, Target, page};
use crate::device::{Device, Io};
use crate::event::AsyncEvent;
use crate::ids::{LinkId, Psn};
use crate::memory::{AtomicOp, Memory};
use crate::qp::Qp;
use crate::qp::sq::{SendWqe, Stage};
use crate::qp::state::QpState;
use crate::requester::{self, Gate, start_timer};
use crate::sink::CqSink;
use crate::turn::Turn;
use crate::wire::{NakCode, Syndrome};
use crate::work::{SendOp, WcStatus};

/// What the local path adds to a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    /// Ring position of the newest message for which no receive was known: a direct operation
    /// waits until it is taken, since it could still be refused.
    pub(super) unsure: u64,
    /// Messages that may be on their way while the target alone knows of its receives: one after it
    /// had none, so that queue pairs that share receives share them fairly, and one more with each
    /// that it takes.
    pub(super) window: u32,
    /// Ring position of the question for a receive.
    pub(super) question: Option<u64>,
    /// The batch that the newest message was pushed in.
    pub(super) batch: u64,
    /// The deadline has come since the last turn.
    pub(super) lapsed: bool,
    /// A request has completed since the deadline was set.
    progress: bool,
    /// Responder: the message that comes next.
    pub(super) expected: Psn,
    /// Responder: a message was refused, and what follows is dropped until it comes again.
    pub(super) refused: bool,
}

impl Local {
    /// RTR: the peer's first message has this number.
    pub(crate) const fn new(expected: Psn) -> Self {
        Self {
            unsure: 0,
            window: u32::MAX,
            question: None,
            batch: u64::MAX,
            lapsed: false,
            progress: false,
            expected,
            refused: false,
        }
    }

    /// The deadline of the queue pair has come.
    pub(crate) const fn lapse(&mut self) {
        self.lapsed = true;
    }

    /// Whether the deadline has come; asking forgets it.
    pub(super) const fn take_lapse(&mut self) -> bool {
        core::mem::replace(&mut self.lapsed, false)
    }
}

/// Runs requests of a connection, at most `budget` of them. [`finish`] must follow.
pub(crate) fn transmit<M: Memory, C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut P,
    link: LinkId,
    budget: usize,
) -> Turn {
    let before = qp.sq.len();
    settle(qp, dev, io, peers, link);
    deadline(qp, dev, io, peers);
    if qp.requester.rnr_wait && has_credit(qp, peers, link) {
        // The peer asked for patience until a receive is there, and there it is.
        qp.requester.rnr_wait = false;
        dev.timers.clear(qp.slot);
    }
    let mut done = (before - qp.sq.len()) as usize;
    while !qp.requester.rnr_wait && done < budget {
        match step(qp, dev, io, peers, link) {
            Step::Next => {
                qp.sq.advance();
                done += 1;
            }
            Step::Passed => qp.sq.advance(),
            Step::Wait => break,
            Step::Gone => {
                give_up(qp, dev, io, peers);
                break;
            }
        }
    }
    dev.unsettled.push(qp.slot);
    Turn::idle(done)
}

/// Ends a poll for a queue pair, after the fence: completes what is done, and sees to it that what
/// is not is looked at again.
pub(crate) fn finish<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    link: LinkId,
) {
    settle(qp, dev, io, peers, link);
    if !matches!(qp.state(), QpState::Rts | QpState::Sqd) {
        return;
    }
    let progress = core::mem::take(&mut qp.local.progress);
    let waits =
        qp.sq.next().is_some_and(|wqe| qp.state() == QpState::Rts || wqe.stage != Stage::Posted);
    let busy = waits || !qp.sq.next_is_head();
    if busy {
        dev.ready.push(qp.slot);
    }
    if qp.transport().is_reliable() && !qp.requester.rnr_wait {
        if !busy || progress {
            dev.timers.clear(qp.slot);
        }
        if busy && !dev.timers.is_set(qp.slot) {
            start_timer(qp, dev, io.now);
        }
    }
    qp.note_drained(dev);
}

/// Completes, in order, what the peer has taken and what was executed. It runs before a turn, when
/// the fence of the last poll has made every WRITE visible, and after the fence of this one.
fn settle<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    link: LinkId,
) {
    let taken = peers.consumed(link);
    while let Some(wqe) = qp.sq.head() {
        match wqe.stage {
            Stage::Done => {}
            Stage::Started if !qp.sq.next_is_head() && wqe.position <= taken => {}
            Stage::Failed(status) => return fail(qp, dev, io, peers, status),
            Stage::Started | Stage::Posted => break,
        }
        complete(qp, dev, io);
    }
}

fn complete<M, C: CqSink>(qp: &mut Qp, dev: &mut Device, io: &mut Io<'_, M, C>) {
    if let Some(wqe) = qp.sq.head().filter(|wqe| wqe.stage == Stage::Started) {
        qp.requester.una = wqe.first_psn.plus(1);
        qp.local.window = qp.local.window.saturating_add(1);
    }
    qp.complete_send(dev, io.cq, WcStatus::Success);
    qp.local.progress = true;
    qp.requester.refill(&qp.attr);
}

/// Judges a deadline that has come.
fn deadline<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
) {
    if !qp.transport().is_reliable() || !qp.local.take_lapse() {
        return;
    }
    if core::mem::take(&mut qp.requester.rnr_wait) || qp.local.progress || qp.sq.is_empty() {
        return;
    }
    dev.counters.local_ack_timeout_err += 1;
    retry(qp, dev, io, peers);
}

/// The peer was silent, or takes messages in another order than they come.
fn retry<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
) {
    match qp.requester.retries_left.checked_sub(1) {
        Some(left) => qp.requester.retries_left = left,
        None => give_up(qp, dev, io, peers),
    }
}

fn give_up<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
) {
    dev.counters.req_transport_retries_exceeded += 1;
    fail(qp, dev, io, peers, WcStatus::RetryExc);
}

/// Fails the oldest request. Peers know before the consumer does.
fn fail<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    status: WcStatus,
) {
    match status {
        WcStatus::RemInvReq => dev.counters.req_remote_invalid_request += 1,
        WcStatus::RemAccess => dev.counters.req_remote_access_errors += 1,
        _ => {}
    }
    let state = if qp.transport().is_reliable() { QpState::Error } else { QpState::Sqe };
    page::show_fall(qp, state, peers);
    qp.fail_send(dev, io.cq, status);
}

/// Works on the request at the cursor.
fn step<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    link: LinkId,
) -> Step {
    let Some(&wqe) = qp.sq.next() else { return Step::Wait };
    match wqe.stage {
        // Executed before a message in front of it was refused.
        Stage::Done => return Step::Passed,
        Stage::Failed(_) => return Step::Wait,
        Stage::Posted if qp.state() != QpState::Rts => return Step::Wait,
        Stage::Posted | Stage::Started => {}
    }
    if wqe.op.is_local() {
        return match requester::run_local(qp, io.mem, &wqe) {
            Gate::Passed => Step::Next,
            Gate::Open | Gate::Shut | Gate::Failed(_) => Step::Wait,
        };
    }
    let page = match peers.target(link, qp.attr.dest_qpn) {
        Target::Qp(page) if listens(qp, &page) => page,
        Target::Gone if qp.transport().is_reliable() => return Step::Gone,
        Target::Qp(_) | Target::Absent | Target::Gone => return silence(qp),
    };
    let mut turn = Attempt { dev, now: io.now, mem: io.mem, peers, link, page };
    match wqe.op {
        SendOp::Send => turn.message(qp, &wqe, RecordKind::Send, None),
        SendOp::SendImm(imm) => turn.message(qp, &wqe, RecordKind::Send, Some(imm)),
        SendOp::SendInvalidate(key) => {
            turn.message(qp, &wqe, RecordKind::SendInvalidate(key), None)
        }
        SendOp::Write(at) => turn.write(qp, &wqe, at),
        SendOp::WriteImm(at, imm) => turn.write_imm(qp, &wqe, at, imm),
        SendOp::Read(at) => turn.read(qp, &wqe, at),
        SendOp::CompareSwap { at, compare, swap } => {
            turn.atomic(qp, &wqe, at, AtomicOp::CompareSwap { compare, swap })
        }
        SendOp::FetchAdd { at, add } => turn.atomic(qp, &wqe, at, AtomicOp::FetchAdd(add)),
        SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => Step::Wait,
    }
}

/// Whether the target takes requests from this queue pair: what a packet would have to find.
fn listens(qp: &Qp, page: &PublishedQp) -> bool {
    page.state.receives_packets() && page.peer == qp.qpn && page.rq_psn == qp.attr.sq_psn
}

/// Nobody is there to answer: a reliable request waits for its deadline, another one is lost.
fn silence(qp: &mut Qp) -> Step {
    if qp.transport().is_reliable() { Step::Wait } else { done(qp) }
}

fn has_credit(qp: &Qp, peers: &impl LocalPeer, link: LinkId) -> bool {
    match peers.target(link, qp.attr.dest_qpn) {
        Target::Qp(page) => credits(qp, &page).is_some_and(|credits| credits > 0),
        Target::Absent | Target::Gone => false,
    }
}

/// The target refused the message `seq`: everything before it was taken, and it and everything
/// behind it is to be pushed again, or fails.
pub(super) fn refused<M: Memory, C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut P,
    seq: Psn,
    syndrome: Syndrome,
) {
    if !go_back_to(qp, dev, io, seq) {
        return;
    }
    let status = match syndrome {
        Syndrome::Ack { .. } => return,
        Syndrome::Rnr { timer } => {
            qp.local.window = 1;
            return wait_for_receive(qp, dev, io.now, timer);
        }
        Syndrome::Nak(NakCode::PsnSequenceError) => {
            dev.counters.packet_seq_err += 1;
            return retry(qp, dev, io, peers);
        }
        Syndrome::Nak(NakCode::InvalidRequest | NakCode::InvalidRdRequest) => WcStatus::RemInvReq,
        Syndrome::Nak(NakCode::RemoteAccessError) => WcStatus::RemAccess,
        Syndrome::Nak(NakCode::RemoteOperationalError) => WcStatus::RemOp,
    };
    fail(qp, dev, io, peers, status);
}

/// The target could not read the message `seq` from this side's memory.
pub(super) fn source_fault<M: Memory, C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut P,
    seq: Psn,
) {
    if go_back_to(qp, dev, io, seq) {
        fail(qp, dev, io, peers, WcStatus::LocProt);
    }
}

/// Completes what was pushed before the message `seq`, which becomes the oldest request and the one
/// at the cursor. False: no such message is outstanding, the answer is late.
fn go_back_to<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    seq: Psn,
) -> bool {
    let is_it = |wqe: &SendWqe| wqe.stage == Stage::Started && wqe.first_psn == seq;
    let sends = matches!(qp.state(), QpState::Rts | QpState::Sqd);
    if !sends || !qp.transport().is_reliable() || !qp.sq.sent().any(is_it) {
        return false;
    }
    while qp.sq.head().is_some_and(|wqe| !is_it(wqe)) {
        complete(qp, dev, io);
    }
    qp.sq.go_back();
    (qp.requester.una, qp.requester.end) = (seq, seq);
    qp.local.unsure = 0;
    qp.local.question = None;
    dev.timers.clear(qp.slot);
    dev.ready.push(qp.slot);
    true
}

/// The peer is dead: a reliable connection fails, an unreliable one loses what it sends.
pub(crate) fn link_down(qp: &mut Qp, dev: &mut Device, cq: &mut impl CqSink) {
    if !qp.transport().is_reliable() {
        dev.ready.push(qp.slot);
    } else if qp.sq.is_empty() {
        // No completion can tell.
        let event = AsyncEvent::QpFatal(qp.qpn);
        qp.enter_error(dev, cq, Some(event));
    } else {
        dev.counters.req_transport_retries_exceeded += 1;
        qp.fail_send(dev, cq, WcStatus::RetryExc);
    }
}
