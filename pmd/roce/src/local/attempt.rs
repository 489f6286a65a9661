//! Attempts at the requests of the local path, one request after the other.

use super::{
    LocalFault, LocalPeer, PublishedQp, Push, Record, RecordKind, Source, Target, straight,
};
use crate::completer::RNR_RETRY_FOREVER;
use crate::counters::tally;
use crate::device::{Device, Io};
use crate::event::AsyncEvent::{self, QpAccessErr, QpReqErr};
use crate::ids::{LinkId, Psn, Qpn};
use crate::limits::LOCAL_PATIENCE;
use crate::memory::{AtomicOp, Memory};
use crate::qp::Qp;
use crate::qp::rq::scatter;
use crate::qp::sq::Stage;
use crate::qp::state::{QpState, Transport};
use crate::requester::{self, Gate, check_elements, fail_next};
use crate::sink::CqSink;
use crate::wire::{NakCode, RnrTimer, Syndrome};
use crate::work::{Access, Imm, RemoteAddr, SendFlags, SendOp, WcStatus};

/// What the request at the cursor came to.
pub(super) enum Step {
    /// It is under way, or was done by this side alone: on to the next one.
    Next,
    /// It is done, and the cursor is at the next one.
    Done,
    /// It needed no attention: on to the next one, for free.
    Passed,
    /// It waits, or has failed.
    Wait,
    /// It waits for room in the ring.
    Full,
    /// The peer is dead.
    Gone,
}

/// Attempts at the requests of one queue pair, one after the other.
pub(super) struct Attempt<'a, M, C, P> {
    dev: &'a mut Device,
    mem: &'a mut M,
    cq: &'a mut C,
    peers: &'a mut P,
    link: LinkId,
}

impl<'a, M: Memory, C: CqSink, P: LocalPeer> Attempt<'a, M, C, P> {
    #[inline]
    pub(super) fn new(
        dev: &'a mut Device,
        io: &'a mut Io<'_, M, C>,
        peers: &'a mut P,
        link: LinkId,
    ) -> Self {
        let (mem, cq) = (&mut *io.mem, &mut *io.cq);
        Self { dev, mem, cq, peers, link }
    }

    /// Runs what is usual from the cursor on, at most `budget` requests; returns how many.
    #[inline]
    pub(super) fn run(&mut self, qp: &mut Qp, budget: usize) -> usize {
        straight::run(qp, self.dev, self.cq, self.peers, self.link, budget)
    }

    /// Works on the request at the cursor.
    pub(super) fn step(&mut self, qp: &mut Qp) -> Step {
        let Some(wqe) = qp.sq.next() else { return Step::Wait };
        match wqe.stage {
            // Executed before a message in front of it was refused.
            Stage::Done => return Step::Passed,
            Stage::Failed(_) => return Step::Wait,
            Stage::Posted if qp.state() != QpState::Rts => return Step::Wait,
            Stage::Posted | Stage::Started => {}
        }
        let len = wqe.len;
        if wqe.is_local() {
            return self.run_local(qp);
        }
        let Some(op) = qp.sq.next_op() else { return Step::Wait };
        if let Err(obstacle) = self.see(qp) {
            return obstacle;
        }
        match op {
            SendOp::Send => self.message(qp, RecordKind::Send, None, len),
            SendOp::Write(at) => self.write(qp, at, len),
            SendOp::Read(at) => self.read(qp, at, len),
            SendOp::SendImm(imm) => self.message(qp, RecordKind::Send, Some(imm), len),
            SendOp::SendInvalidate(key) => {
                self.message(qp, RecordKind::SendInvalidate(key), None, len)
            }
            SendOp::WriteImm(at, imm) => self.write_imm(qp, at, imm, len),
            SendOp::CompareSwap { at, compare, swap } => {
                self.atomic(qp, at, AtomicOp::CompareSwap { compare, swap })
            }
            SendOp::FetchAdd { at, add } => self.atomic(qp, at, AtomicOp::FetchAdd(add)),
            SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => Step::Wait,
        }
    }

    #[cold]
    fn run_local(&mut self, qp: &mut Qp) -> Step {
        match requester::run_local(qp, self.mem) {
            Gate::Passed => Step::Next,
            Gate::Open | Gate::Shut | Gate::Failed(_) => Step::Wait,
        }
    }

    /// Makes sure that the target still is as it was when last looked at.
    fn see(&mut self, qp: &mut Qp) -> Result<(), Step> {
        let seen = qp.local.seen;
        if seen.is_some() && self.peers.glance(self.link, qp.attr.dest_qpn) == seen {
            return Ok(());
        }
        self.look(qp)
    }

    /// Reads the target's page.
    fn look(&mut self, qp: &mut Qp) -> Result<(), Step> {
        // First, so that a change between the two is noticed.
        let seen = self.peers.glance(self.link, qp.attr.dest_qpn);
        match self.peers.target(self.link, qp.attr.dest_qpn) {
            Target::Qp(page) if listens(qp, &page) => {
                (qp.local.page, qp.local.seen) = (page, seen);
                Ok(())
            }
            Target::Gone if qp.transport().is_reliable() => Err(Step::Gone),
            // Nobody is there to answer: a reliable request waits for its deadline.
            _ if qp.transport().is_reliable() => Err(Step::Wait),
            _ => Err(self.done(qp)),
        }
    }

    /// A SEND, or the message of a WRITE with immediate.
    fn message(&mut self, qp: &mut Qp, kind: RecordKind, imm: Option<Imm>, len: u32) -> Step {
        if let Some(obstacle) = self.held_back(qp) {
            return obstacle;
        }
        let credits = credits(qp, &qp.local.page);
        let seq = qp.requester.end;
        let Some(wqe) = qp.sq.next() else { return Step::Wait };
        let record = Record {
            kind,
            dst: qp.attr.dest_qpn,
            src: qp.qpn,
            seq,
            len,
            imm,
            solicited: wqe.flags.contains(SendFlags::SOLICITED),
            srqn: if qp.transport() == Transport::XrcIni { qp.sq.next_srqn() } else { None },
        };
        let payload = match kind {
            RecordKind::WriteImm => Source::Inline(&[]),
            _ => qp.sq.next_source(),
        };
        let position = match self.peers.push(self.link, qp.init.pd, &record, payload) {
            Push::At(position) => position,
            Push::Full => return self.full(qp),
            Push::LocalFault => return fault(qp),
            Push::Gone => return self.gone(qp),
        };
        if credits.is_none_or(|credits| credits <= 0) {
            qp.local.unsure = position;
        }
        qp.local.question = None;
        qp.requester.end = seq.plus(1);
        if let Some(next) = qp.sq.next_mut() {
            next.stage = Stage::Started;
            next.first_psn = seq;
            next.position = position;
        }
        if kind != RecordKind::WriteImm {
            self.dev.counters.tx_bytes += u64::from(len);
        }
        if !qp.transport().is_reliable() {
            qp.local.lapsed = false;
            self.dev.timers.clear(qp.slot);
        }
        self.dev.mark(qp, position);
        Step::Next
    }

    /// Whether a message must wait for a receive.
    fn held_back(&mut self, qp: &mut Qp) -> Option<Step> {
        match credits(qp, &qp.local.page) {
            Some(credits) if credits > 0 => None,
            _ if !qp.transport().is_reliable() => None,
            None if qp.requester.outstanding() < qp.local.window => None,
            None => Some(Step::Wait),
            // Perhaps there are new ones.
            Some(_) => match self.look(qp) {
                Err(obstacle) => Some(obstacle),
                Ok(()) if credits(qp, &qp.local.page).is_none_or(|credits| credits > 0) => None,
                Ok(()) => Some(self.ask_for_receive(qp)),
            },
        }
    }

    /// No receive is posted: asks the target, whose taking the question stands for an RNR NAK. A
    /// target that takes nothing is silent, and that is another error.
    fn ask_for_receive(&mut self, qp: &mut Qp) -> Step {
        if !qp.sq.next_is_head() {
            // What was sent before must be taken first, then there is a receive less.
            return Step::Wait;
        }
        let Some(position) = qp.local.question else {
            match self.notify(qp, RecordKind::Starved) {
                Push::At(position) => qp.local.question = Some(position),
                Push::Gone => return Step::Gone,
                Push::Full | Push::LocalFault => {}
            }
            return Step::Wait;
        };
        if self.peers.consumed(self.link) >= position {
            qp.local.question = None;
            if let Some(timer) = RnrTimer::new(qp.local.page.min_rnr_timer) {
                wait_for_receive(qp, self.dev, timer);
            }
        }
        Step::Wait
    }

    fn write(&mut self, qp: &mut Qp, at: RemoteAddr, len: u32) -> Step {
        match self.copy_out(qp, at, len) {
            Ok(()) => self.done(qp),
            Err(obstacle) => obstacle,
        }
    }

    /// The bytes first, then the message that tells of them.
    fn write_imm(&mut self, qp: &mut Qp, at: RemoteAddr, imm: Imm, len: u32) -> Step {
        if let Some(obstacle) = self.held_back(qp) {
            return obstacle;
        }
        match self.copy_out(qp, at, len) {
            Ok(()) => self.message(qp, RecordKind::WriteImm, Some(imm), len),
            Err(obstacle) => obstacle,
        }
    }

    fn copy_out(&mut self, qp: &mut Qp, at: RemoteAddr, len: u32) -> Result<(), Step> {
        self.in_turn(qp)?;
        if !qp.local.page.access.contains(Access::REMOTE_WRITE) {
            return Err(self.refuse(qp, QpReqErr, WcStatus::RemInvReq));
        }
        let target = (qp.local.page.pd, qp.attr.dest_qpn);
        let source = qp.sq.next_source();
        if let Err(fault) = self.peers.write(self.link, qp.init.pd, source, target, at) {
            return Err(self.judge(qp, fault));
        }
        self.dev.unfenced |= len > 0;
        self.dev.counters.tx_bytes += u64::from(len);
        Ok(())
    }

    fn read(&mut self, qp: &mut Qp, at: RemoteAddr, len: u32) -> Step {
        match self.copy_in(qp, at, len) {
            Ok(()) => self.done(qp),
            Err(obstacle) => obstacle,
        }
    }

    fn copy_in(&mut self, qp: &mut Qp, at: RemoteAddr, len: u32) -> Result<(), Step> {
        self.in_turn(qp)?;
        self.allowed(qp, Access::REMOTE_READ)?;
        self.fence();
        let target = (qp.local.page.pd, qp.attr.dest_qpn);
        let Source::Sges(into) = qp.sq.next_source() else { return Err(fault(qp)) };
        if let Err(fault) = self.peers.read(self.link, qp.init.pd, into, target, at) {
            return Err(self.judge(qp, fault));
        }
        self.dev.counters.rx_bytes += u64::from(len);
        Ok(())
    }

    fn atomic(&mut self, qp: &mut Qp, at: RemoteAddr, op: AtomicOp) -> Step {
        match self.exchange(qp, at, op) {
            Ok(()) => self.done(qp),
            Err(obstacle) => obstacle,
        }
    }

    fn exchange(&mut self, qp: &mut Qp, at: RemoteAddr, op: AtomicOp) -> Result<(), Step> {
        self.in_turn(qp)?;
        self.has_elements(qp)?;
        self.allowed(qp, Access::REMOTE_ATOMIC)?;
        if !at.addr.is_multiple_of(8) {
            return Err(self.refuse(qp, QpAccessErr, WcStatus::RemInvReq));
        }
        let target = (qp.local.page.pd, qp.attr.dest_qpn);
        let original = match self.peers.atomic(self.link, target, at, op) {
            Ok(original) => original,
            Err(fault) => return Err(self.judge(qp, fault)),
        };
        let Source::Sges(into) = qp.sq.next_source() else { return Err(fault(qp)) };
        let value = original.to_ne_bytes();
        scatter(self.mem, qp.init.pd, into, 0, &value).map_err(|_| fault(qp))?;
        self.dev.counters.rx_bytes += 8;
        Ok(())
    }

    /// A direct operation overtakes messages in the ring, but none that may still be refused.
    fn in_turn(&self, qp: &Qp) -> Result<(), Step> {
        let waits = qp.local.unsure > 0 && qp.local.unsure > self.peers.consumed(self.link);
        if waits { Err(Step::Wait) } else { Ok(()) }
    }

    /// Whether the target queue pair lets its peer do this, and serves READs and atomics at all;
    /// there is never more than one at a time.
    fn allowed(&mut self, qp: &mut Qp, access: Access) -> Result<(), Step> {
        if qp.local.page.access.contains(access) && qp.local.page.max_dest_rd_atomic > 0 {
            return Ok(());
        }
        // This side's own fault comes first, as it would with packets.
        self.has_elements(qp)?;
        let event = if qp.local.page.access.contains(access) { QpAccessErr } else { QpReqErr };
        Err(self.refuse(qp, event, WcStatus::RemInvReq))
    }

    /// Whether every element is registered for this use.
    fn has_elements(&mut self, qp: &mut Qp) -> Result<(), Step> {
        let Some(wqe) = qp.sq.next() else { return Err(Step::Wait) };
        let checked = check_elements(qp, self.mem, wqe);
        checked.map_err(|_| fault(qp))
    }

    #[cold]
    fn judge(&mut self, qp: &mut Qp, found: LocalFault) -> Step {
        match found {
            LocalFault::Local => fault(qp),
            LocalFault::RemoteAccess => self.refuse(qp, QpAccessErr, WcStatus::RemAccess),
            LocalFault::NotYet => Step::Wait,
            LocalFault::Gone => self.gone(qp),
        }
    }

    /// The target's rules forbid the request. It learns of it in the ring, behind the messages that
    /// came before.
    #[cold]
    fn refuse(&mut self, qp: &mut Qp, event: fn(Qpn) -> AsyncEvent, status: WcStatus) -> Step {
        if !qp.transport().is_reliable() {
            // Dropped in silence, as a packet would be.
            return self.done(qp);
        }
        let access = matches!(event(qp.qpn), QpAccessErr(_));
        let code = match status {
            WcStatus::RemAccess => NakCode::RemoteAccessError,
            _ => NakCode::InvalidRequest,
        };
        let syndrome = Syndrome::Nak(code).byte();
        match self.notify(qp, RecordKind::Violation { access, syndrome }) {
            Push::At(_) => {
                fail_next(qp, status);
                Step::Wait
            }
            Push::Gone => Step::Gone,
            Push::Full | Push::LocalFault => Step::Wait,
        }
    }

    /// Pushes a record without message.
    fn notify(&mut self, qp: &Qp, kind: RecordKind) -> Push {
        let record = Record {
            kind,
            dst: qp.attr.dest_qpn,
            src: qp.qpn,
            seq: qp.requester.end,
            len: 0,
            imm: None,
            solicited: false,
            srqn: None,
        };
        self.peers.push(self.link, qp.init.pd, &record, Source::Inline(&[]))
    }

    /// A full ring is a full wire; what is unreliable waits for it only so long.
    #[cold]
    fn full(&mut self, qp: &mut Qp) -> Step {
        if !qp.transport().is_reliable() {
            if qp.local.take_lapse() {
                return self.done(qp);
            }
            if !self.dev.timers.is_set(qp.slot) {
                self.dev.timers.after(qp.slot, LOCAL_PATIENCE);
            }
        }
        Step::Full
    }

    /// Everything written so far is visible before anything is read.
    #[inline]
    fn fence(&mut self) {
        if core::mem::take(&mut self.dev.unfenced) {
            self.peers.fence();
        }
    }

    /// The request at the cursor needs nothing more.
    #[inline]
    fn done(&mut self, qp: &mut Qp) -> Step {
        qp.sent_direct(self.dev, self.cq);
        Step::Done
    }

    /// The peer died.
    fn gone(&mut self, qp: &mut Qp) -> Step {
        if qp.transport().is_reliable() { Step::Gone } else { self.done(qp) }
    }
}

/// Whether the target takes requests from this queue pair: what a packet would have to find.
pub(super) fn listens(qp: &Qp, page: &PublishedQp) -> bool {
    page.state.receives_packets() && page.peer == qp.qpn && page.rq_psn == qp.attr.sq_psn
}

/// Receives that the target has posted and this side has not used; `None` when only the target can
/// tell.
#[inline]
pub(super) fn credits(qp: &Qp, page: &PublishedQp) -> Option<i32> {
    let sent = qp.requester.end.minus(qp.route().first.value());
    // Both count from the beginning of the connection; far fewer than 2^23 lie between them.
    page.posted.map(|posted| Psn::new(posted).since(sent))
}

/// An element of this side is not registered for this use.
#[cold]
fn fault(qp: &mut Qp) -> Step {
    fail_next(qp, WcStatus::LocProt);
    Step::Wait
}

/// The target has no receive: wait as long as it asks for, if not too often already. Marks the
/// request at the cursor as failed otherwise.
pub(super) fn wait_for_receive(qp: &mut Qp, dev: &mut Device, timer: RnrTimer) {
    tally!(qp, dev, rnr_nak_retry_err);
    if qp.attr.rnr_retry != RNR_RETRY_FOREVER {
        let Some(left) = qp.requester.rnr_retries_left.checked_sub(1) else {
            tally!(qp, dev, req_rnr_retries_exceeded);
            fail_next(qp, WcStatus::RnrRetryExc);
            return;
        };
        qp.requester.rnr_retries_left = left;
    }
    qp.requester.rnr_wait = true;
    qp.book.rnr_wait.record(timer.duration());
    dev.timers.after(qp.slot, timer.duration());
}
