//! How work requests end: completions, flushing, and falling into Error.

use super::Qp;
use super::sq::SendWqe;
use super::state::{QpState, Transport};
use crate::device::Device;
use crate::event::AsyncEvent;
use crate::ids::{CqId, Qpn, WrId};
use crate::sink::CqSink;
use crate::transition::{Cause, Transition};
use crate::work::{Completion, WcOpcode, WcStatus};

/// The completion of a request that succeeded.
#[inline(always)]
pub(crate) const fn sent_completion(wqe: &SendWqe, qpn: Qpn, byte_len: u32) -> Completion {
    Completion::new(wqe.wc_opcode(), byte_len).of(wqe.wr_id, qpn)
}

impl Qp {
    /// Completes the oldest send request. One that succeeds unsignalled leaves no completion.
    pub(crate) fn complete_send(
        &mut self,
        dev: &mut Device,
        cq: &mut impl CqSink,
        status: WcStatus,
    ) {
        if !self.sq.is_empty() {
            self.end_send(dev, cq, status);
        }
    }

    /// The oldest send request, which there is, succeeds.
    #[inline(always)]
    pub(crate) fn succeed_send(&mut self, dev: &mut Device, cq: &mut impl CqSink) {
        self.end_send(dev, cq, WcStatus::Success);
    }

    #[inline(always)]
    fn end_send(&mut self, dev: &mut Device, cq: &mut impl CqSink, status: WcStatus) {
        let Some(wqe) = self.sq.head() else { return };
        if status != WcStatus::Success || wqe.is_signaled() {
            let byte_len = if wqe.is_read_or_atomic() { wqe.len } else { 0 };
            let what = Completion::new(wqe.wc_opcode(), byte_len);
            let completion = self.completion(wqe.wr_id, status, what);
            self.push_send(dev, cq, completion);
        }
        if self.sq.retire() {
            // The packets of the next one are sent from its first on.
            self.requester.packet = 0;
        }
    }

    /// Fails the oldest send request, and with it the send queue: UC and UD fall into SQE and go on
    /// receiving, everything else falls into Error.
    pub(crate) fn fail_send(&mut self, dev: &mut Device, cq: &mut impl CqSink, status: WcStatus) {
        self.complete_send(dev, cq, status);
        match self.transport() {
            Transport::Uc | Transport::Ud => {
                self.fall(dev, QpState::Sqe, Some(Cause::Send(status)));
                dev.pages.touch(self.slot);
                self.flush_sends(dev, cq);
            }
            _ => self.enter_error(dev, cq, Some(Cause::Send(status))),
        }
    }

    /// Completes the open receive with the message it holds.
    #[inline]
    pub(crate) fn complete_receive(
        &mut self,
        dev: &mut Device,
        cq: &mut impl CqSink,
        received: Completion,
    ) {
        self.end_receive(dev, cq, WcStatus::Success, received);
    }

    /// Completes the open receive, if there is one, with an error.
    pub(crate) fn fail_receive(
        &mut self,
        dev: &mut Device,
        cq: &mut impl CqSink,
        status: WcStatus,
    ) {
        self.end_receive(dev, cq, status, Completion::new(WcOpcode::Recv, 0));
    }

    #[inline]
    fn end_receive(
        &mut self,
        dev: &mut Device,
        cq: &mut impl CqSink,
        status: WcStatus,
        received: Completion,
    ) {
        if core::mem::take(&mut self.receive.open) {
            let completion = self.completion(self.receive.wr_id, status, received);
            self.push_receive(dev, cq, self.receive.cq, completion);
        }
    }

    /// Falls into Error: both queues are flushed in order, and an event that is the cause is raised; where a
    /// completion is, it says it all. No cause: a modify call asked for it. The last answers to the peer are
    /// still sent.
    #[cold]
    pub(crate) fn enter_error(
        &mut self,
        dev: &mut Device,
        cq: &mut impl CqSink,
        cause: Option<Cause>,
    ) {
        if let Some(Cause::Event(event)) = cause {
            dev.events.raise(event);
        }
        if self.state() == QpState::Error {
            return;
        }
        self.fall(dev, QpState::Error, cause);
        dev.pages.touch(self.slot);
        self.requester.stop();
        self.responder.stop();
        dev.timers.clear(self.slot);
        self.notify_drained = false;
        self.flush(dev, cq);
        if self.init.srq.is_some() || self.transport() == Transport::XrcTgt {
            dev.events.raise(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    /// Enters a state, and notes it unless somebody asked for it.
    fn fall(&mut self, dev: &mut Device, to: QpState, cause: Option<Cause>) {
        let from = self.state();
        self.enter(to, dev.now);
        if let Some(cause) = cause {
            let (at, qpn, transport) = (dev.now, self.qpn, self.transport());
            dev.transitions.note(Transition { at, qpn, transport, from, to, cause });
        }
    }

    /// Completes as flushed what the state says must not run: after a fall, and whatever is posted
    /// afterwards.
    #[inline]
    pub(crate) fn flush(&mut self, dev: &mut Device, cq: &mut impl CqSink) {
        if self.state().flushes_sends() {
            self.flush_sends(dev, cq);
        }
        if self.state().flushes_receives() {
            self.fail_receive(dev, cq, WcStatus::WrFlush);
            while let Some(wr_id) = self.rq.flush_one() {
                let what = Completion::new(WcOpcode::Recv, 0);
                let completion = self.completion(wr_id, WcStatus::WrFlush, what);
                self.push_receive(dev, cq, self.init.recv_cq, completion);
            }
        }
    }

    fn flush_sends(&mut self, dev: &mut Device, cq: &mut impl CqSink) {
        while !self.sq.is_empty() {
            self.complete_send(dev, cq, WcStatus::WrFlush);
        }
    }

    /// SQD: raises the event that was asked for once nothing that was started is in flight.
    #[inline]
    pub(crate) fn note_drained(&mut self, dev: &mut Device) {
        if self.notify_drained && self.state() == QpState::Sqd && self.sq.is_drained() {
            self.notify_drained = false;
            dev.events.raise(AsyncEvent::SqDrained(self.qpn));
        }
    }

    #[inline(always)]
    fn completion(&self, wr_id: WrId, status: WcStatus, what: Completion) -> Completion {
        what.of(wr_id, self.qpn).with_status(status)
    }

    /// The completion queue for sends takes no more.
    #[cold]
    pub(crate) fn lose_send_cq(&mut self, dev: &mut Device) {
        self.send_cq_lost = true;
        dev.note_overrun(self.init.send_cq);
    }

    /// The completion queue for receives takes no more.
    #[cold]
    pub(crate) fn lose_recv_cq(&mut self, dev: &mut Device, cq: CqId) {
        self.recv_cq_lost = true;
        dev.note_overrun(cq);
    }

    #[inline(always)]
    fn push_send(&mut self, dev: &mut Device, cq: &mut impl CqSink, completion: Completion) {
        if !self.send_cq_lost && cq.push(self.init.send_cq, completion).is_err() {
            self.lose_send_cq(dev);
        }
    }

    #[inline(always)]
    fn push_receive(
        &mut self,
        dev: &mut Device,
        cq: &mut impl CqSink,
        to: CqId,
        completion: Completion,
    ) {
        if !self.recv_cq_lost && cq.push(to, completion).is_err() {
            self.lose_recv_cq(dev, to);
        }
    }
}
