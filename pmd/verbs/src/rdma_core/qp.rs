//! Queue pairs: checked by our state table before the device is asked.

use ::core::ffi::c_int;

use pmd_roce::engine::{QpView, ResourceError};
use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::ids::{Gid, Instant, Qpn};
use pmd_roce::qp::attr::{CreateQpError, ModifyQpError, QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{self, AttrMask, QpState, Transport};
use pmd_roce::qp::stats::QpStats;
use pmd_roce::transition::{Cause, Transition};

use super::abi::{ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr};
use super::attr::{from_raw, raw_attr, values};
use super::book::Sends;
use super::core::{Core, put};
use super::library::Owned;
use super::nic::{checked, refusal};
use crate::provider::QpAt;
use crate::qp::JoinGroupError;
use crate::transition::Attempt;

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) raw: Owned<ibv_qp>,
    pub(super) qpn: Qpn,
    /// With the caps as granted.
    pub(super) init: QpInit,
    /// As it was asked for.
    attr: QpAttr,
    /// The state that it was last seen in, and what it has been through.
    pub(super) stats: QpStats,
    pub(super) sends: Sends,
    pub(super) recv_posted: u32,
    pub(super) recv_done: u32,
    /// It has fallen into error, and nobody has looked into which state yet.
    pub(super) fell: Option<Cause>,
}

impl QueuePair {
    /// What is known without asking the device.
    pub(super) fn view_from_books(&self) -> QpView {
        let state = self.stats.state;
        QpView {
            init: self.init,
            attr: QpAttr { state, cur_state: state, ..self.attr },
            send_outstanding: self.sends.len(),
            send_posted: self.sends.posted(),
            recv_outstanding: self.recv_posted.wrapping_sub(self.recv_done),
            recv_posted: self.recv_posted,
            memory_bytes: 0,
        }
    }
}

impl Core {
    pub(super) fn at(&mut self, qp: QpAt) -> Option<&mut QueuePair> {
        self.qps.get_mut(qp.place as usize)?.as_mut()
    }

    pub(crate) fn create_qp(
        &mut self,
        init: &QpInit,
        owner: Option<u32>,
    ) -> Result<QpAt, CreateQpError> {
        if self.fatal {
            return Err(CreateQpError::DeviceFatal);
        }
        if !matches!(init.transport, Transport::Rc | Transport::Uc | Transport::Ud) {
            return Err(CreateQpError::Transport(init.transport));
        }
        let refused = |error| CreateQpError::Driver(refusal("ibv_create_qp", &error));
        let pd = self.pd(init.pd).map_err(refused)?;
        let queue = |cq| self.raw_cq(cq).ok_or(CreateQpError::DeviceFatal);
        let srq = match init.srq {
            None => ::core::ptr::null_mut(),
            Some(srqn) => {
                let srq = self.srqs.get(srqn.0 as usize).and_then(Option::as_ref);
                srq.ok_or(CreateQpError::NoSuchSrq(init.srq))?.raw()
            }
        };
        let max = self.port.attr.max_inline_data;
        let asked = init.cap.max_inline_data;
        if asked > max {
            let field = "max_inline_data";
            return Err(CreateQpError::Range { field, asked, min: 0, max });
        }
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } =
            init.cap;
        let mut raw = ibv_qp_init_attr {
            qp_context: ::core::ptr::null_mut(),
            send_cq: queue(init.send_cq)?,
            recv_cq: queue(init.recv_cq)?,
            srq,
            cap: ibv_qp_cap {
                max_send_wr,
                max_recv_wr,
                max_send_sge,
                max_recv_sge,
                max_inline_data,
            },
            qp_type: init.transport as c_int,
            sq_sig_all: init.sq_sig_all.into(),
        };
        // SAFETY: domain and queues are alive, and everything that is read is set.
        let qp = unsafe { (self.library.ibv_create_qp)(pd, &raw mut raw) };
        // SAFETY: it was made just now.
        let qp = unsafe { Owned::new(qp, self.library.ibv_destroy_qp) }.map_err(refused)?;
        let qpn = Qpn::new(qp.fields().qp_num);
        let granted = QpCap {
            max_send_wr: raw.cap.max_send_wr,
            max_recv_wr: raw.cap.max_recv_wr,
            max_send_sge: raw.cap.max_send_sge,
            max_recv_sge: raw.cap.max_recv_sge,
            // Some drivers round up, and then refuse what is beyond.
            max_inline_data: raw.cap.max_inline_data,
        };
        let entry = QueuePair {
            raw: qp,
            qpn,
            init: QpInit { cap: granted, ..*init },
            attr: QpAttr::new(QpState::Reset),
            stats: QpStats::begun(self.now),
            sends: Sends::new(granted.max_send_wr),
            recv_posted: 0,
            recv_done: 0,
            fell: None,
        };
        let place = put(&mut self.qps, entry);
        let at = self.numbers.partition_point(|(number, _)| *number < qpn.value());
        self.numbers.insert(at, (qpn.value(), place));
        if let Some(Some(srq)) = init.srq.and_then(|srqn| self.srqs.get_mut(srqn.0 as usize)) {
            srq.users += 1;
        }
        self.roll.enter(qpn, owner);
        Ok(QpAt { qpn, place })
    }

    pub(crate) fn destroy_qp(&mut self, qp: QpAt) {
        let Some(ended) = self.qps.get_mut(qp.place as usize).and_then(Option::take) else {
            return;
        };
        self.roll.leave(qp.qpn, &ended.view_from_books(), ended.stats, self.now);
        self.numbers.retain(|(number, _)| *number != qp.qpn.value());
        if let Some(Some(srq)) = ended.init.srq.and_then(|srqn| self.srqs.get_mut(srqn.0 as usize))
        {
            srq.users -= 1;
        }
        drop(ended);
        self.forget(EventScope::Qp(qp.qpn));
    }

    fn query(&self, qp: &QueuePair) -> Option<ibv_qp_attr> {
        let mut attr = ibv_qp_attr::default();
        let mut init = ::core::mem::MaybeUninit::<ibv_qp_init_attr>::zeroed();
        #[expect(clippy::cast_possible_wrap, reason = "bits")]
        let mask = AttrMask::all().bits() as c_int;
        // SAFETY: the queue pair is alive, and there is room for both answers.
        let status = unsafe {
            (self.library.ibv_query_qp)(qp.raw.get(), &raw mut attr, mask, init.as_mut_ptr())
        };
        (status == 0).then_some(attr)
    }

    /// Looks which state the device has it in, and writes down what it has fallen into by itself.
    pub(super) fn refresh(&mut self, place: usize) -> QpState {
        let Some(Some(qp)) = self.qps.get(place) else { return QpState::Reset };
        let known = qp.stats.state;
        let Some(attr) = self.query(qp) else { return known };
        let actual = state_of(attr.qp_state).unwrap_or(known);
        let Some(Some(qp)) = self.qps.get_mut(place) else { return known };
        let cause = qp.fell.take();
        if actual != known {
            let (qpn, transport) = (qp.qpn, qp.init.transport);
            let cause = cause.unwrap_or(Cause::Event(AsyncEvent::QpFatal(qpn)));
            qp.stats.enter(actual, self.now);
            let at = self.now;
            let fall = Transition { at, qpn, transport, from: known, to: actual, cause };
            self.journal.fell(&fall);
        }
        actual
    }

    pub(crate) fn state(&mut self, qp: QpAt) -> QpState {
        self.refresh(qp.place as usize)
    }

    pub(crate) fn query_qp(&mut self, qpn: Qpn) -> Option<QpView> {
        let place = self.place_of(qpn)?;
        self.refresh(place);
        let qp = self.qps.get(place)?.as_ref()?;
        let view = qp.view_from_books();
        match self.query(qp) {
            Some(raw) => Some(QpView { attr: from_raw(&raw, &view.attr), ..view }),
            None => Some(view),
        }
    }

    pub(crate) fn query_qp_stats(&self, qpn: Qpn) -> Option<QpStats> {
        Some(self.qps.get(self.place_of(qpn)?)?.as_ref()?.stats)
    }

    pub(crate) fn queue_pairs(&self) -> Vec<(Qpn, QpState, Instant)> {
        let each = self.qps.iter().flatten();
        each.map(|qp| (qp.qpn, qp.stats.state, qp.stats.since)).collect()
    }

    pub(crate) fn modify(
        &mut self,
        now: Instant,
        qp: QpAt,
        attempt: &Attempt<'_>,
    ) -> Result<(), ModifyQpError> {
        self.now = now;
        let result = self.modified(qp, attempt);
        self.journal.attempt(now, attempt, &result);
        result?;
        let Attempt { from, attr, mask, .. } = *attempt;
        self.roll.moves(qp.qpn, from, attr, mask);
        Ok(())
    }

    fn modified(&mut self, at: QpAt, attempt: &Attempt<'_>) -> Result<(), ModifyQpError> {
        let Attempt { attr, mask, from, .. } = *attempt;
        if self.fatal {
            return Err(ModifyQpError::DeviceFatal);
        }
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != from {
            return Err(ModifyQpError::WrongCurrentState { claimed: attr.cur_state, actual: from });
        }
        let to = attempt.to();
        state::check(attempt.transport, from, to, mask)?;
        values(&self.port, attr, mask)?;
        let library = self.library;
        let now = self.now;
        let qp = self.at(at).ok_or(ModifyQpError::NoSuchQp(at.qpn))?;
        let mut raw = raw_attr(attr);
        #[expect(clippy::cast_possible_wrap, reason = "bits")]
        let bits = mask.bits() as c_int;
        // SAFETY: the queue pair is alive, and everything that the mask names is set.
        let status = unsafe { (library.ibv_modify_qp)(qp.raw.get(), &raw mut raw, bits) };
        checked("ibv_modify_qp", status)?;
        qp.attr = super::attr::merged(&qp.attr, attr, mask);
        qp.stats.enter(to, now);
        if to == QpState::Reset {
            qp.sends.reset();
            (qp.recv_posted, qp.recv_done, qp.fell) = (0, 0, None);
        }
        Ok(())
    }

    pub(crate) fn join(&mut self, qp: QpAt, group: Gid) -> Result<(), JoinGroupError> {
        let attach = self.library.ibv_attach_mcast;
        let Some(member) = self.at(qp) else { return Err(ResourceError::NotFound.into()) };
        // SAFETY: the queue pair is alive.
        let status = unsafe { attach(member.raw.get(), &raw const group.0, 0) };
        checked("ibv_attach_mcast", status).map_err(ResourceError::Driver)?;
        Ok(())
    }

    pub(crate) fn leave(&mut self, qp: QpAt, group: Gid) -> Result<(), JoinGroupError> {
        let detach = self.library.ibv_detach_mcast;
        let Some(member) = self.at(qp) else { return Err(ResourceError::NotFound.into()) };
        // SAFETY: the queue pair is alive.
        let status = unsafe { detach(member.raw.get(), &raw const group.0, 0) };
        checked("ibv_detach_mcast", status).map_err(ResourceError::Driver)?;
        Ok(())
    }
}

pub(super) fn state_of(number: c_int) -> Option<QpState> {
    QpState::ALL.into_iter().find(|state| *state as c_int == number)
}
