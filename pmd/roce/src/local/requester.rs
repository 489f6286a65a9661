//! The requester of the local path: one-sided operations are one copy, messages go into the ring.
//!
//! Nothing is acknowledged packet by packet. A message is done when the peer has taken its record,
//! a direct operation when it is executed; a receive that the peer shows is a credit, and a message
//! without credit is not pushed. Errors, retries and their counters are those of packets: silence
//! uses up `retry_cnt` timeouts, a missing receive `rnr_retry` waits.

use super::attempt::{Attempt, Step, credits, listens, wait_for_receive};
use super::lane::Lanes;
use super::{LocalPeer, PublishedQp, Target, lone, page};
use crate::counters::tally;
use crate::device::{Device, Io};
use crate::event::AsyncEvent;
use crate::ids::{LinkId, PdId, Psn, Qpn};
use crate::limits::{LONG_MESSAGE, SLOWEST_COPY};
use crate::memory::Memory;
use crate::qp::sq::{SendWqe, Stage};
use crate::qp::state::QpState;
use crate::qp::{Qp, sent_completion};
use crate::sink::CqSink;
use crate::transition::Cause;
use crate::wire::{NakCode, Syndrome};
use crate::work::{Access, WcStatus};

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
    /// The target as it was when last looked at.
    pub(super) page: PublishedQp,
    /// What shows that it still is.
    pub(super) seen: Option<u64>,
    /// The link, among those of the engine; [`Lanes::NONE`] before RTR.
    pub(crate) lane: u32,
    /// Found the ring full: the lane has it try again.
    pub(super) blocked: bool,
    /// No mark leads to its newest message: it is looked at in each poll.
    pub(super) unmarked: bool,
    /// The deadline has come since the last turn.
    pub(super) lapsed: bool,
    /// A request has completed since the deadline was set.
    pub(super) progress: bool,
    /// Up to where the peer had taken records when the deadline was set.
    taken: u64,
    /// Retries that deadlines have used up since the peer last took anything.
    pub(super) silent: u8,
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
            page: NO_PAGE,
            seen: None,
            lane: Lanes::NONE,
            blocked: false,
            unmarked: false,
            lapsed: false,
            progress: false,
            taken: 0,
            silent: 0,
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

/// Before the first look.
const NO_PAGE: PublishedQp = PublishedQp {
    state: QpState::Reset,
    peer: Qpn::new(0),
    access: Access::empty(),
    pd: PdId(0),
    max_dest_rd_atomic: 0,
    min_rnr_timer: 0,
    rq_psn: Psn::new(0),
    posted: None,
};

/// Runs requests of a connection, at most `budget` of them; returns how many. What completes is
/// visible once the fence that ends the poll has been; [`finish`] follows where that is not all.
#[inline]
pub(crate) fn transmit<M: Memory, C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut P,
    link: LinkId,
    budget: usize,
) -> usize {
    if qp.local.lapsed {
        deadline(qp, dev, io, peers, link);
    }
    qp.local.blocked = false;
    if qp.requester.rnr_wait && !receive_has_come(qp, dev, peers, link) {
        dev.unsettled.push(qp.slot);
        return 0;
    }
    let mut attempt = Attempt::new(dev, io, peers, link);
    let mut done = attempt.run(qp, budget);
    if done > 0 && qp.is_all_under_way() {
        // Nothing is left to be done before the peer has taken it, and then a mark leads here.
        if !dev.timers.is_set(qp.slot) {
            start_timer(qp, dev, peers.consumed(link));
        }
        return done;
    }
    let end = loop {
        if done == budget || !qp.sq.has_next() {
            break Step::Wait;
        }
        match attempt.step(qp) {
            Step::Next => {
                qp.sq.advance();
                done += 1;
            }
            Step::Done => done += 1,
            Step::Passed => qp.sq.advance(),
            end @ (Step::Wait | Step::Full | Step::Gone) => break end,
        }
        done += attempt.run(qp, budget - done);
    };
    match end {
        Step::Gone => give_up(qp, dev, io, peers),
        Step::Full => dev.lanes.block(qp.local.lane, qp.slot, done > 0),
        _ => {}
    }
    qp.local.blocked = matches!(end, Step::Full);
    dev.unsettled.push(qp.slot);
    done
}

impl Qp {
    /// Whether every request is on its way as a message, and none has completed since its timer was
    /// set.
    #[inline]
    pub(super) fn is_all_under_way(&self) -> bool {
        let is_started = |wqe: &SendWqe| wqe.stage == Stage::Started;
        !self.local.progress
            && !self.sq.has_next()
            && self.sq.head().is_some_and(is_started)
            && (self.route().is_open || self.state() == QpState::Rts)
            && !self.local.unmarked
    }
}

/// Ends a poll for a queue pair, after the fence: completes what is done, and sees to it that what
/// is not is looked at again. Returns how many requests completed.
pub(crate) fn finish<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    taken: u64,
) -> usize {
    if lone::settle(qp, dev, io.cq, taken) {
        return 1;
    }
    let before = qp.sq.len();
    settle(qp, dev, io, peers, taken);
    let completed = (before - qp.sq.len()) as usize;
    let is_open = qp.route().is_open;
    if !is_open && !matches!(qp.state(), QpState::Rts | QpState::Sqd) {
        return completed;
    }
    let progress = core::mem::take(&mut qp.local.progress);
    if progress {
        qp.requester.renew();
        qp.local.silent = 0;
    }
    let is_rts = is_open || qp.state() == QpState::Rts;
    let waits = qp.sq.next().is_some_and(|wqe| is_rts || wqe.stage != Stage::Posted);
    qp.local.unmarked &= !qp.sq.next_is_head();
    if waits && !qp.local.blocked || qp.local.unmarked {
        dev.local.push(qp.slot);
    }
    if (is_open || qp.transport().is_reliable()) && !qp.requester.rnr_wait {
        if !waits && qp.sq.next_is_head() {
            dev.timers.clear(qp.slot);
        } else if progress || !dev.timers.is_set(qp.slot) {
            start_timer(qp, dev, taken);
        }
    }
    qp.note_drained(dev);
    completed
}

/// Starts the time that the peer, which has taken records up to `taken`, has to do something.
#[inline]
pub(super) fn start_timer(qp: &mut Qp, dev: &mut Device, taken: u64) {
    qp.local.taken = taken;
    match qp.route().patience {
        0 => dev.timers.clear(qp.slot),
        patience => dev.timers.after_nanos(qp.slot, patience.saturating_add(copying(qp))),
    }
}

/// The time in nanoseconds that the peer needs for the bytes of the oldest message: it copies all of them before it takes the record, where
/// packets are acknowledged one by one.
#[inline]
fn copying(qp: &Qp) -> u64 {
    match qp.sq.head() {
        Some(wqe) if wqe.len >= LONG_MESSAGE => SLOWEST_COPY * u64::from(wqe.len / LONG_MESSAGE),
        _ => 0,
    }
}

/// Completes, in order, what the peer has taken and what was executed, after a fence has made every
/// WRITE visible.
#[inline(never)]
fn settle<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    taken: u64,
) {
    settle_row(qp, dev, io.cq, taken);
    let mut lost = qp.send_cq_lost;
    let send_cq = qp.route().send_cq;
    while !qp.sq.is_empty() {
        let was_sent = !qp.sq.next_is_head();
        let Some(wqe) = qp.sq.head() else { break };
        match wqe.stage {
            Stage::Started if was_sent && wqe.position <= taken => {
                qp.requester.una = wqe.first_psn.plus(1);
                qp.local.window = qp.local.window.saturating_add(1);
            }
            Stage::Done => {}
            Stage::Failed(status) => return fail(qp, dev, io, peers, status),
            Stage::Started | Stage::Posted => break,
        }
        if wqe.is_signaled() && !lost {
            let brought = if wqe.is_read_or_atomic() { wqe.len } else { 0 };
            lost = io.cq.push(send_cq, sent_completion(wqe, qp.qpn, brought)).is_err();
            if lost {
                qp.lose_send_cq(dev);
            }
        }
        qp.sq.retire();
        qp.local.progress = true;
    }
}

/// Whether a request before the cursor has come to its end, now that the peer has taken records up to `taken`.
#[inline(always)]
fn is_done(wqe: &SendWqe, taken: u64) -> bool {
    matches!(wqe.stage, Stage::Started) && wqe.position <= taken || matches!(wqe.stage, Stage::Done)
}

/// The part of it that is nearly always all: requests before the cursor which lie in a row, with completions that do as well.
#[inline(always)]
fn settle_row(qp: &mut Qp, dev: &mut Device, cq: &mut impl CqSink, taken: u64) {
    let (qpn, row) = (qp.qpn, qp.sq.in_flight());
    let is_row = matches!(row, [_, second, ..] if is_done(second, taken));
    if !is_row || qp.send_cq_lost {
        return;
    }
    let (mut done, mut messages) = (0, 0);
    let filled = cq.fill(qp.route().send_cq, |slots| {
        let mut filled = 0;
        for wqe in row {
            if !is_done(wqe, taken) {
                break;
            }
            if wqe.is_signaled() {
                let Some(slot) = slots.get_mut(filled) else { break };
                let brought = if wqe.is_read_or_atomic() { wqe.len } else { 0 };
                *slot = sent_completion(wqe, qpn, brought);
                filled += 1;
            }
            messages += u32::from(matches!(wqe.stage, Stage::Started));
            done += 1;
        }
        filled
    });
    if let Some(last) = row[..done].iter().rfind(|wqe| wqe.stage == Stage::Started) {
        qp.requester.una = last.first_psn.plus(1);
        qp.local.window = qp.local.window.saturating_add(messages);
    }
    qp.sq.pass(0, done);
    qp.local.progress |= done > 0;
    if filled.is_err() {
        qp.lose_send_cq(dev);
    }
}

fn complete<M, C: CqSink>(qp: &mut Qp, dev: &mut Device, io: &mut Io<'_, M, C>) {
    if let Some(wqe) = qp.sq.head().filter(|wqe| wqe.stage == Stage::Started) {
        qp.requester.una = wqe.first_psn.plus(1);
        qp.local.window = qp.local.window.saturating_add(1);
    }
    qp.succeed_send(dev, io.cq);
    qp.local.progress = true;
}

/// Judges a deadline that has come.
#[cold]
fn deadline<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    link: LinkId,
) {
    if !qp.transport().is_reliable() {
        return;
    }
    qp.local.lapsed = false;
    // The fence of the last poll has made every WRITE visible.
    let taken = peers.consumed(link);
    settle(qp, dev, io, peers, taken);
    if core::mem::take(&mut qp.requester.rnr_wait) || qp.local.progress || qp.sq.is_empty() {
        return;
    }
    if waits_behind_others(qp, peers, link, taken) {
        // The peer is slow, not silent. What its refusals have used up stays used up, so that this
        // comes to an end.
        let left = qp.requester.retries_left.saturating_add(core::mem::take(&mut qp.local.silent));
        qp.requester.retries_left = left.min(qp.attr.retry_cnt);
        return;
    }
    tally!(qp, dev, local_ack_timeout_err);
    qp.local.silent = qp.local.silent.saturating_add(1);
    retry(qp, dev, io, peers);
}

/// Whether the target is there, and the peer has taken records since the deadline was set while what
/// is next of this queue pair has not come to its turn: it lies in the ring behind others, or finds
/// no room there.
#[cold]
fn waits_behind_others(qp: &Qp, peers: &impl LocalPeer, link: LinkId, taken: u64) -> bool {
    let is_there = match peers.target(link, qp.attr.dest_qpn) {
        Target::Qp(page) => listens(qp, &page),
        Target::Absent | Target::Gone => false,
    };
    let is_ahead = |wqe: &SendWqe| wqe.stage == Stage::Started && wqe.position > taken;
    let in_ring = !qp.sq.next_is_head() && qp.sq.head().is_some_and(is_ahead)
        || qp.local.question.is_some_and(|position| position > taken);
    is_there && taken != qp.local.taken && (in_ring || qp.local.blocked)
}

/// Whether a wait for a receive is over: the peer asked for patience until there is one.
#[cold]
fn receive_has_come(qp: &mut Qp, dev: &mut Device, peers: &impl LocalPeer, link: LinkId) -> bool {
    let has_come = match peers.target(link, qp.attr.dest_qpn) {
        Target::Qp(page) => credits(qp, &page).is_some_and(|credits| credits > 0),
        Target::Absent | Target::Gone => false,
    };
    if has_come {
        qp.requester.rnr_wait = false;
        dev.timers.clear(qp.slot);
    }
    has_come
}

/// The peer was silent, or takes messages in another order than they come.
#[cold]
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

#[cold]
fn give_up<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
) {
    tally!(qp, dev, req_transport_retries_exceeded);
    fail(qp, dev, io, peers, WcStatus::RetryExc);
}

/// Fails the oldest request. Peers know before the consumer does.
#[cold]
fn fail<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    status: WcStatus,
) {
    match status {
        WcStatus::RemInvReq => tally!(qp, dev, req_remote_invalid_request),
        WcStatus::RemAccess => tally!(qp, dev, req_remote_access_errors),
        _ => {}
    }
    let state = if qp.transport().is_reliable() { QpState::Error } else { QpState::Sqe };
    page::show_fall(qp, state, peers);
    qp.fail_send(dev, io.cq, status);
}

/// The target refused the message `seq`: everything before it was taken, and it and everything
/// behind it is to be pushed again, or fails.
#[cold]
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
            return wait_for_receive(qp, dev, timer);
        }
        Syndrome::Nak(NakCode::PsnSequenceError) => {
            tally!(qp, dev, packet_seq_err);
            return retry(qp, dev, io, peers);
        }
        Syndrome::Nak(NakCode::InvalidRequest | NakCode::InvalidRdRequest) => WcStatus::RemInvReq,
        Syndrome::Nak(NakCode::RemoteAccessError) => WcStatus::RemAccess,
        Syndrome::Nak(NakCode::RemoteOperationalError) => WcStatus::RemOp,
    };
    fail(qp, dev, io, peers, status);
}

/// The target could not read the message `seq` from this side's memory.
#[cold]
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
#[cold]
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
    dev.local.push(qp.slot);
    true
}

/// The peer is dead: a reliable connection fails, an unreliable one loses what it sends.
#[cold]
pub(crate) fn link_down(qp: &mut Qp, dev: &mut Device, cq: &mut impl CqSink) {
    if !qp.transport().is_reliable() {
        dev.local.push(qp.slot);
    } else if qp.sq.is_empty() {
        // No completion can tell.
        let cause = Cause::Event(AsyncEvent::QpFatal(qp.qpn));
        qp.enter_error(dev, cq, Some(cause));
    } else {
        tally!(qp, dev, req_transport_retries_exceeded);
        qp.fail_send(dev, cq, WcStatus::RetryExc);
    }
}
