//! The verbs of the software NIC, as [`Provider`](crate::provider::Provider) asks for them: most are the engine's.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use pmd_roce::engine::{PostRecvError, PostSendError, QpView, ResourceError, SrqInit, SrqView};
use pmd_roce::ids::{CqId, Gid, Instant, PdId, Qpn, Srqn};
use pmd_roce::port::PortState;
use pmd_roce::qp::attr::{AddressVector, CreateQpError, QpInit};
use pmd_roce::qp::state::QpState;
use pmd_roce::qp::stats::QpStats;
use pmd_roce::work::{AhId, RecvWr, SendWr};

use super::alarm::Bell;
use super::core::Core;
use super::cq::Armed;
use crate::cq::CreateCqError;
use crate::event::Register;
use crate::provider::{Counters, QpAt};
use crate::survey::{Roll, Survey};

impl Core {
    pub(crate) const fn drive(&mut self) {
        self.driven = true;
    }

    #[inline]
    pub(crate) const fn is_driven(&self) -> bool {
        self.driven
    }

    pub(crate) fn sleep(&mut self) -> bool {
        self.peers.sleep()
    }

    pub(crate) fn watch(
        &mut self,
        sleeps: bool,
        each: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        if sleeps {
            each(self.alarm()?.fd())?;
        }
        let wire = self.wire.as_ref().and_then(|wire| wire.fd());
        [wire, self.peers.bell()].into_iter().flatten().try_for_each(each)
    }

    pub(crate) fn taken(&self) -> Arc<Register> {
        Arc::clone(&self.taken)
    }

    pub(crate) fn is_fatal(&self) -> bool {
        self.engine.is_fatal()
    }

    pub(crate) fn set_port(&mut self, state: PortState) {
        let done = self.command(|engine, _| match state {
            PortState::Down => engine.port_down(1),
            PortState::Active => engine.port_up(1),
        });
        debug_assert!(done.is_ok(), "every device has a port 1");
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "a device may refuse, memory of this process does not"
    )]
    pub(crate) fn create_cq(&mut self, depth: u32) -> Result<CqId, CreateCqError> {
        Ok(self.cqs.create(depth))
    }

    pub(crate) fn destroy_cq(&mut self, cq: CqId) {
        self.cqs.destroy(cq);
    }

    pub(crate) fn arm(&mut self, cq: CqId, armed: Armed) {
        self.cqs.arm(cq, armed);
    }

    pub(crate) fn take_fired(&mut self, cq: CqId) -> bool {
        self.cqs.take_fired(cq)
    }

    pub(crate) fn attach_bell(&mut self, cq: CqId, bell: &Rc<Bell>) {
        self.cqs.attach_bell(cq, bell);
    }

    pub(crate) fn is_overrun(&self, cq: CqId) -> bool {
        self.cqs.is_overrun(cq)
    }

    pub(crate) fn waiting(&self, cq: CqId) -> Option<u64> {
        Some(self.cqs.waiting(cq).into())
    }

    pub(crate) fn fail_cq(&mut self, cq: CqId) {
        self.command(|engine, cqs| {
            cqs.kill(cq);
            engine.fail_cq(cq, cqs);
        });
    }

    /// Domains are numbers here.
    pub(crate) const fn free_pd(&self, _: PdId) {}

    pub(crate) fn create_qp(
        &mut self,
        init: &QpInit,
        owner: Option<u32>,
    ) -> Result<QpAt, CreateQpError> {
        let qpn = self.engine.create_qp(init)?;
        self.roll.enter(qpn, owner);
        Ok(QpAt { qpn, place: 0 })
    }

    pub(crate) fn query_qp(&self, qpn: Qpn) -> Option<QpView> {
        self.engine.query_qp(qpn)
    }

    pub(crate) fn query_qp_stats(&self, qpn: Qpn) -> Option<QpStats> {
        self.engine.query_qp_stats(qpn)
    }

    pub(crate) fn queue_pairs(&self) -> Vec<(Qpn, QpState, Instant)> {
        self.engine.queue_pairs().collect()
    }

    #[inline]
    pub(crate) fn post_send(&mut self, qp: QpAt, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.engine.post_send(qp.qpn, wr)
    }

    #[inline]
    pub(crate) fn post_recv(&mut self, qp: QpAt, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.engine.post_recv(qp.qpn, wr)
    }

    pub(crate) fn create_srq(&mut self, init: &SrqInit) -> Result<Srqn, ResourceError> {
        self.engine.create_srq(init)
    }

    pub(crate) fn destroy_srq(&mut self, srqn: Srqn) {
        // Queue pairs hold a handle, so none uses it any more.
        let destroyed = self.engine.destroy_srq(srqn);
        debug_assert!(destroyed.is_ok());
    }

    pub(crate) fn post_srq_recv(
        &mut self,
        srqn: Srqn,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostRecvError> {
        self.engine.post_srq_recv(srqn, wr)
    }

    pub(crate) fn arm_srq_limit(&mut self, srqn: Srqn, limit: u32) -> Result<(), ResourceError> {
        self.engine.arm_srq_limit(srqn, limit)
    }

    pub(crate) fn reserve_srq(&mut self, srqn: Srqn, receives: u32) -> Result<(), ResourceError> {
        self.engine.reserve_srq(srqn, receives)
    }

    pub(crate) fn query_srq(&self, srqn: Srqn) -> Option<SrqView> {
        self.engine.query_srq(srqn)
    }

    pub(crate) fn fail_srq(&mut self, srqn: Srqn) {
        let failed = self.command(|engine, cqs| engine.fail_srq(srqn, cqs));
        debug_assert!(failed.is_ok(), "a handle keeps its queue alive");
    }

    pub(crate) fn create_ah(&mut self, _: PdId, av: &AddressVector) -> Result<AhId, ResourceError> {
        self.engine.create_ah(av)
    }

    pub(crate) fn destroy_ah(&mut self, ah: AhId) {
        // The engine made the handle and nothing else destroys it.
        let destroyed = self.engine.destroy_ah(ah);
        debug_assert!(destroyed.is_ok());
    }

    pub(crate) fn find_gid(&self, gid: Gid) -> Option<(u8, u8)> {
        self.engine.find_gid(gid)
    }

    /// Those of engine and wire, and `rx_handed_over`.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::from_iter(self.engine.counters().iter());
        if let Some(wire) = &self.wire {
            let fields = wire.counters();
            counters.extend(fields.fields().map(|(name, value)| match name {
                // The engine counts payload by these names, the wire whole frames.
                "tx_bytes" => ("wire_tx_bytes", value),
                "rx_bytes" => ("wire_rx_bytes", value),
                name => (name, value),
            }));
            counters.push(("rx_handed_over", self.handover.given()));
        }
        counters
    }

    pub(crate) const fn roll(&mut self) -> &mut Roll {
        &mut self.roll
    }

    pub(crate) fn survey(&mut self, now: Instant, survey: &mut Survey, budget: usize) -> bool {
        let Self { engine, wire, roll, .. } = self;
        let mut place = survey.begin(now, |survey| {
            survey.put_srqs(engine.shared_receive_queues());
            survey.put_counters(engine.counters().iter());
            let wire = wire.as_ref().map(|wire| wire.counters());
            survey.put_wire(wire.iter().flat_map(|wire| wire.fields()));
        });
        for _ in 0..budget {
            let Some((qpn, next)) = engine.queue_pair_from(place) else {
                survey.end(roll);
                return true;
            };
            place = next;
            survey.put_qp(|| {
                let (view, stats) = (engine.query_qp(qpn)?, engine.query_qp_stats(qpn)?);
                Some(roll.status(qpn, &view, stats, now))
            });
        }
        survey.go_on_at(place);
        false
    }
}
