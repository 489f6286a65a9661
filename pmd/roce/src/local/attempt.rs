//! One attempt at one request of the local path.

use super::{LocalFault, LocalPeer, PublishedQp, Push, Record, RecordKind, Source};
use crate::completer::RNR_RETRY_FOREVER;
use crate::device::Device;
use crate::event::AsyncEvent::{self, QpAccessErr, QpReqErr};
use crate::ids::{Instant, LinkId, Psn, Qpn};
use crate::limits::LOCAL_PATIENCE;
use crate::memory::{AtomicOp, Memory};
use crate::qp::Qp;
use crate::qp::rq::scatter;
use crate::qp::sq::{SendWqe, Stage};
use crate::requester::{check_elements, fail_next};
use crate::wire::{NakCode, RnrTimer, Syndrome};
use crate::work::{Access, Imm, RemoteAddr, SendFlags, WcStatus};

/// What the request at the cursor came to.
pub(super) enum Step {
    /// It is under way or done: on to the next one.
    Next,
    /// It needed no attention: on to the next one, for free.
    Passed,
    /// It waits, or has failed.
    Wait,
    /// The peer is dead.
    Gone,
}

/// One attempt at the request at the cursor, toward a target that listens.
pub(super) struct Attempt<'a, M, P> {
    pub(super) dev: &'a mut Device,
    pub(super) now: Instant,
    pub(super) mem: &'a mut M,
    pub(super) peers: &'a mut P,
    pub(super) link: LinkId,
    pub(super) page: PublishedQp,
}

impl<M: Memory, P: LocalPeer> Attempt<'_, M, P> {
    /// A SEND, or the message of a WRITE with immediate.
    pub(super) fn message(
        &mut self,
        qp: &mut Qp,
        wqe: &SendWqe,
        kind: RecordKind,
        imm: Option<Imm>,
    ) -> Step {
        if let Some(obstacle) = self.held_back(qp) {
            return obstacle;
        }
        let credits = credits(qp, &self.page);
        let seq = qp.requester.end;
        let record = Record {
            kind,
            dst: qp.attr.dest_qpn,
            src: qp.qpn,
            seq,
            len: wqe.len,
            imm,
            solicited: wqe.flags.contains(SendFlags::SOLICITED),
            srqn: wqe.srqn,
        };
        let payload = match kind {
            RecordKind::WriteImm => Source::Inline(&[]),
            _ => qp.sq.next_source(),
        };
        let position = match self.peers.push(self.link, qp.init.pd, &record, payload) {
            Push::At(position) => position,
            Push::Full => return self.full(qp),
            Push::LocalFault => return fault(qp),
            Push::Gone => return gone(qp),
        };
        if credits.is_none_or(|credits| credits <= 0) {
            qp.local.unsure = position;
        }
        qp.local.question = None;
        qp.local.batch = self.dev.batch;
        qp.requester.end = seq.plus(1);
        if let Some(next) = qp.sq.next_mut() {
            next.stage = Stage::Started;
            next.first_psn = seq;
            next.position = position;
        }
        if kind != RecordKind::WriteImm {
            self.dev.counters.tx_bytes += u64::from(wqe.len);
        }
        if !qp.transport().is_reliable() {
            qp.local.lapsed = false;
            self.dev.timers.clear(qp.slot);
        }
        Step::Next
    }

    /// Whether a message must wait for a receive.
    fn held_back(&mut self, qp: &mut Qp) -> Option<Step> {
        if !qp.transport().is_reliable() {
            return None;
        }
        match credits(qp, &self.page) {
            Some(credits) if credits <= 0 => Some(self.ask_for_receive(qp)),
            None if qp.requester.outstanding() >= qp.local.window => Some(Step::Wait),
            _ => None,
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
            if let Some(timer) = RnrTimer::new(self.page.min_rnr_timer) {
                wait_for_receive(qp, self.dev, self.now, timer);
            }
        }
        Step::Wait
    }

    pub(super) fn write(&mut self, qp: &mut Qp, wqe: &SendWqe, at: RemoteAddr) -> Step {
        match self.copy_out(qp, wqe, at) {
            Ok(()) => done(qp),
            Err(obstacle) => obstacle,
        }
    }

    /// The bytes first, then the message that tells of them.
    pub(super) fn write_imm(
        &mut self,
        qp: &mut Qp,
        wqe: &SendWqe,
        at: RemoteAddr,
        imm: Imm,
    ) -> Step {
        if let Some(obstacle) = self.held_back(qp) {
            return obstacle;
        }
        match self.copy_out(qp, wqe, at) {
            Ok(()) => self.message(qp, wqe, RecordKind::WriteImm, Some(imm)),
            Err(obstacle) => obstacle,
        }
    }

    fn copy_out(&mut self, qp: &mut Qp, wqe: &SendWqe, at: RemoteAddr) -> Result<(), Step> {
        self.in_turn(qp)?;
        self.allowed(qp, Access::REMOTE_WRITE)?;
        self.publish_messages(qp);
        let target = (self.page.pd, qp.attr.dest_qpn);
        let source = qp.sq.next_source();
        let outcome = self.peers.write(self.link, qp.init.pd, source, target, at);
        self.judge(qp, outcome)?;
        self.dev.unfenced |= wqe.len > 0;
        self.dev.counters.tx_bytes += u64::from(wqe.len);
        Ok(())
    }

    pub(super) fn read(&mut self, qp: &mut Qp, wqe: &SendWqe, at: RemoteAddr) -> Step {
        match self.copy_in(qp, wqe, at) {
            Ok(()) => done(qp),
            Err(obstacle) => obstacle,
        }
    }

    fn copy_in(&mut self, qp: &mut Qp, wqe: &SendWqe, at: RemoteAddr) -> Result<(), Step> {
        self.in_turn(qp)?;
        check_elements(qp, self.mem, wqe).map_err(|_| fault(qp))?;
        self.allowed(qp, Access::REMOTE_READ)?;
        self.serves_reads(qp)?;
        self.fence();
        let target = (self.page.pd, qp.attr.dest_qpn);
        let Source::Sges(into) = qp.sq.next_source() else { return Err(fault(qp)) };
        let outcome = self.peers.read(self.link, qp.init.pd, into, target, at);
        self.judge(qp, outcome)?;
        self.dev.counters.rx_bytes += u64::from(wqe.len);
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        qp: &mut Qp,
        wqe: &SendWqe,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Step {
        match self.exchange(qp, wqe, at, op) {
            Ok(()) => done(qp),
            Err(obstacle) => obstacle,
        }
    }

    fn exchange(
        &mut self,
        qp: &mut Qp,
        wqe: &SendWqe,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<(), Step> {
        self.in_turn(qp)?;
        check_elements(qp, self.mem, wqe).map_err(|_| fault(qp))?;
        self.allowed(qp, Access::REMOTE_ATOMIC)?;
        self.serves_reads(qp)?;
        if !at.addr.is_multiple_of(8) {
            return Err(self.refuse(qp, QpAccessErr, WcStatus::RemInvReq));
        }
        self.publish_messages(qp);
        let target = (self.page.pd, qp.attr.dest_qpn);
        let original = match self.peers.atomic(self.link, target, at, op) {
            Ok(original) => original,
            Err(obstacle) => return self.judge(qp, Err(obstacle)),
        };
        let Source::Sges(into) = qp.sq.next_source() else { return Err(fault(qp)) };
        let value = original.to_ne_bytes();
        scatter(self.mem, qp.init.pd, into, 0, &value).map_err(|_| fault(qp))?;
        self.dev.counters.rx_bytes += 8;
        Ok(())
    }

    /// A direct operation overtakes messages in the ring, but none that may still be refused.
    fn in_turn(&self, qp: &Qp) -> Result<(), Step> {
        if qp.local.unsure > self.peers.consumed(self.link) { Err(Step::Wait) } else { Ok(()) }
    }

    /// Whoever sees what a direct operation changed shall find the messages that came before it.
    fn publish_messages(&mut self, qp: &Qp) {
        if qp.local.batch == self.dev.batch {
            self.dev.batch += 1;
            self.peers.publish();
        }
    }

    /// Whether the target queue pair lets its peer do this.
    fn allowed(&mut self, qp: &mut Qp, access: Access) -> Result<(), Step> {
        if self.page.access.contains(access) {
            return Ok(());
        }
        Err(self.refuse(qp, QpReqErr, WcStatus::RemInvReq))
    }

    /// Whether the target serves READs and atomics at all; there is never more than one at a time.
    fn serves_reads(&mut self, qp: &mut Qp) -> Result<(), Step> {
        if self.page.max_dest_rd_atomic > 0 {
            return Ok(());
        }
        Err(self.refuse(qp, QpAccessErr, WcStatus::RemInvReq))
    }

    fn judge(&mut self, qp: &mut Qp, outcome: Result<(), LocalFault>) -> Result<(), Step> {
        outcome.map_err(|fault_found| match fault_found {
            LocalFault::Local => fault(qp),
            LocalFault::RemoteAccess => self.refuse(qp, QpAccessErr, WcStatus::RemAccess),
            LocalFault::NotYet => Step::Wait,
            LocalFault::Gone => gone(qp),
        })
    }

    /// The target's rules forbid the request. It learns of it in the ring, behind the messages that
    /// came before.
    fn refuse(&mut self, qp: &mut Qp, event: fn(Qpn) -> AsyncEvent, status: WcStatus) -> Step {
        if !qp.transport().is_reliable() {
            // Dropped in silence, as a packet would be.
            return done(qp);
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
    fn full(&mut self, qp: &mut Qp) -> Step {
        if qp.transport().is_reliable() {
            return Step::Wait;
        }
        if qp.local.take_lapse() {
            return done(qp);
        }
        if !self.dev.timers.is_set(qp.slot) {
            self.dev.timers.set(qp.slot, self.now.after(LOCAL_PATIENCE));
        }
        Step::Wait
    }

    /// Everything written so far is visible before anything is read.
    fn fence(&mut self) {
        if core::mem::take(&mut self.dev.unfenced) {
            self.peers.fence();
        }
    }
}

/// The request at the cursor needs nothing more but its turn to complete.
pub(super) fn done(qp: &mut Qp) -> Step {
    if let Some(wqe) = qp.sq.next_mut() {
        wqe.stage = Stage::Done;
    }
    Step::Next
}

/// Receives that the target has posted and this side has not used; `None` when only the target can
/// tell.
pub(super) fn credits(qp: &Qp, page: &PublishedQp) -> Option<i32> {
    let sent = qp.requester.end.minus(qp.attr.sq_psn.value());
    // Both count from the beginning of the connection; far fewer than 2^23 lie between them.
    page.posted.map(|posted| Psn::new(posted).since(sent))
}

/// An element of this side is not registered for this use.
fn fault(qp: &mut Qp) -> Step {
    fail_next(qp, WcStatus::LocProt);
    Step::Wait
}

/// The peer died.
fn gone(qp: &mut Qp) -> Step {
    if qp.transport().is_reliable() { Step::Gone } else { done(qp) }
}

/// The target has no receive: wait as long as it asks for, if not too often already. Marks the
/// request at the cursor as failed otherwise.
pub(super) fn wait_for_receive(qp: &mut Qp, dev: &mut Device, now: Instant, timer: RnrTimer) {
    dev.counters.rnr_nak_retry_err += 1;
    if qp.attr.rnr_retry != RNR_RETRY_FOREVER {
        let Some(left) = qp.requester.rnr_retries_left.checked_sub(1) else {
            dev.counters.req_rnr_retries_exceeded += 1;
            fail_next(qp, WcStatus::RnrRetryExc);
            return;
        };
        qp.requester.rnr_retries_left = left;
    }
    qp.requester.rnr_wait = true;
    dev.timers.set(qp.slot, now.after(timer.duration()));
}
