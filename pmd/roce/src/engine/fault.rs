//! Failures that are not one queue pair's own: of a completion queue, a shared receive queue, a link's
//! peer, or the device. Each fails the queue pairs in its scope and leaves all others alone.

use super::Engine;
use crate::error::ResourceError;
use crate::event::AsyncEvent;
use crate::ids::{CqId, Instant, LinkId, Srqn};
use crate::local;
use crate::qp::Qp;
use crate::qp::state::{QpState, Transport};
use crate::sink::CqSink;
use crate::transition::Cause;

impl Engine {
    /// Fails a completion queue, as a device does that cannot write to it any more: it raises `CqErr`,
    /// and every queue pair on it falls into Error and raises `QpFatal`. No completion can arrive on it
    /// from now on, and none is made up; a queue pair's other queue is flushed. A second time changes
    /// nothing. The caller's queue is to refuse completions from now on.
    pub fn fail_cq(&mut self, cq: CqId, sink: &mut impl CqSink) {
        let mut users = 0;
        let mut lost = 0;
        for qp in self.qps.iter_mut().filter(|qp| qp.state() != QpState::Reset) {
            let [sends, receives] = completes_on(qp, &self.device.srqs, cq);
            users += usize::from(sends) + usize::from(receives);
            lost +=
                usize::from(sends && qp.send_cq_lost) + usize::from(receives && qp.recv_cq_lost);
        }
        if users == 0 || lost < users {
            self.device.lose(cq);
            self.fail_lost(sink);
        }
    }

    /// Fails a shared receive queue, as a device does that can fetch nothing from it any more (IBTA
    /// 1.4, 10.10.2.3): it raises `SrqErr`, and every queue pair that takes its receives from it
    /// falls into Error, flushes, and raises `QpFatal`. A second time changes nothing.
    ///
    /// # Errors
    /// [`ResourceError::NotFound`].
    pub fn fail_srq(&mut self, srqn: Srqn, cq: &mut impl CqSink) -> Result<(), ResourceError> {
        if !self.device.srqs.fail(srqn)? {
            return Ok(());
        }
        self.device.events.raise(AsyncEvent::SrqErr(srqn));
        let is_up = |qp: &Qp| !matches!(qp.state(), QpState::Reset | QpState::Error);
        let uses = |qp: &&mut Qp| qp.init.srq == Some(srqn) && is_up(qp);
        for qp in self.qps.iter_mut().filter(uses) {
            let cause = Cause::Event(AsyncEvent::QpFatal(qp.qpn));
            qp.enter_error(&mut self.device, cq, Some(cause));
        }
        self.fail_overrun(cq);
        Ok(())
    }

    /// Fails the device: it raises `DeviceFatal`, every queue pair is in Error, and what was posted is
    /// gone without completions (IBTA 1.4, 11.6.3.4: none can be expected). From now on nothing is
    /// created, posted or modified; objects can only be destroyed. A second time changes nothing.
    pub fn fail_device(&mut self, cq: &mut impl CqSink) {
        if core::mem::replace(&mut self.device.fatal, true) {
            return;
        }
        self.device.events.raise(AsyncEvent::DeviceFatal);
        self.device.srqs.fail_all();
        for qp in self.qps.iter_mut().filter(|qp| qp.state() != QpState::Reset) {
            qp.send_cq_lost = true;
            qp.recv_cq_lost = true;
            qp.enter_error(&mut self.device, cq, Some(Cause::Event(AsyncEvent::DeviceFatal)));
        }
    }

    /// Whether [`Engine::fail_device`] was called.
    pub fn is_fatal(&self) -> bool {
        self.device.fatal
    }

    /// The peer behind a link is dead: its queue pairs end with `RetryExc` and flush.
    pub fn handle_link_down(&mut self, _now: Instant, link: LinkId, cq: &mut impl CqSink) {
        for qp in self.qps.iter_mut().filter(|qp| qp.attr.av.link == Some(link)) {
            local::requester::link_down(qp, &mut self.device, cq);
        }
        self.fail_overrun(cq);
    }

    /// Fails every queue pair on the completion queues that overran in this call. No completion can
    /// arrive on them any more, and none is made up; the other queue of a pair is flushed.
    #[inline]
    pub(super) fn fail_overrun(&mut self, cq: &mut impl CqSink) {
        if !self.device.overrun.is_empty() {
            self.fail_lost(cq);
        }
    }

    #[cold]
    fn fail_lost(&mut self, cq: &mut impl CqSink) {
        while let Some(lost) = self.device.overrun.pop() {
            self.device.events.raise(AsyncEvent::CqErr(lost));
            for qp in self.qps.iter_mut().filter(|qp| qp.state() != QpState::Reset) {
                let [sends, receives] = completes_on(qp, &self.device.srqs, lost);
                qp.send_cq_lost |= sends;
                qp.recv_cq_lost |= receives;
                if sends || receives {
                    let cause = Cause::Event(AsyncEvent::QpFatal(qp.qpn));
                    qp.enter_error(&mut self.device, cq, Some(cause));
                }
            }
        }
    }
}

/// Whether sends, and whether receives of the queue pair complete on `cq`.
fn completes_on(qp: &Qp, srqs: &crate::srq::Srqs, cq: CqId) -> [bool; 2] {
    let receives = match qp.init.xrcd {
        Some(xrcd) => srqs.delivers(xrcd, cq),
        None => qp.init.recv_cq == cq,
    };
    [qp.init.send_cq == cq && qp.transport() != Transport::XrcTgt, receives]
}
