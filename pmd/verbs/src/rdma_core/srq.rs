//! Shared receive queues and address handles.

use ::core::ffi::c_int;

use pmd_roce::engine::{PostRecvError, ResourceError, SrqInit, SrqView};
use pmd_roce::ids::{PdId, Srqn};
use pmd_roce::qp::attr::AddressVector;
use pmd_roce::work::{AhId, RecvWr};

use super::abi::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use super::attr::raw_ah;
use super::core::{Core, put};
use super::library::Owned;
use super::nic::{checked, refusal};
use super::post::{not_received, receive};

/// `IBV_SRQ_LIMIT`.
const LIMIT: c_int = 2;

/// A shared receive queue. Its number is its place; the device's own matters to XRC alone.
#[derive(Debug)]
pub(super) struct SharedQueue {
    raw: Owned<ibv_srq>,
    depth: u32,
    max_sge: u32,
    posted: u32,
    pub(super) taken: u32,
    limit: u32,
    pub(super) users: u32,
}

impl SharedQueue {
    pub(super) const fn raw(&self) -> *mut ibv_srq {
        self.raw.get()
    }

    /// What is known without asking the device: receives count as in the queue until their completions are taken.
    pub(super) const fn view_from_books(&self) -> SrqView {
        SrqView {
            len: self.posted.wrapping_sub(self.taken),
            posted: self.posted,
            depth: self.depth,
            limit: self.limit,
            reserve: 0,
            users: self.users,
            dry: 0,
            failed: false,
        }
    }
}

impl Core {
    fn srq(&mut self, srqn: Srqn) -> Option<&mut SharedQueue> {
        self.srqs.get_mut(srqn.0 as usize)?.as_mut()
    }

    pub(crate) fn create_srq(&mut self, init: &SrqInit) -> Result<Srqn, ResourceError> {
        if init.xrc.is_some() {
            let need = "shared receive queues of XRC are not there on this kind of device: use RC";
            return Err(ResourceError::Value { field: "xrcd", value: 0, need });
        }
        let refused = |error| ResourceError::Driver(refusal("ibv_create_srq", &error));
        let pd = self.pd(init.pd).map_err(refused)?;
        let attr = ibv_srq_attr { max_wr: init.max_wr, max_sge: init.max_sge, srq_limit: 0 };
        let mut raw = ibv_srq_init_attr { srq_context: ::core::ptr::null_mut(), attr };
        // SAFETY: the domain is alive, and everything that is read is set.
        let srq = unsafe { (self.library.ibv_create_srq)(pd, &raw mut raw) };
        // SAFETY: it was made just now.
        let srq = unsafe { Owned::new(srq, self.library.ibv_destroy_srq) }.map_err(refused)?;
        let entry = SharedQueue {
            raw: srq,
            // As granted, or where the driver does not say, as asked for.
            depth: raw.attr.max_wr.max(init.max_wr),
            max_sge: raw.attr.max_sge.max(init.max_sge),
            posted: 0,
            taken: 0,
            limit: 0,
            users: 0,
        };
        Ok(Srqn(put(&mut self.srqs, entry)))
    }

    pub(crate) fn destroy_srq(&mut self, srqn: Srqn) {
        if let Some(slot) = self.srqs.get_mut(srqn.0 as usize) {
            *slot = None;
        }
    }

    #[inline]
    pub(crate) fn post_srq_recv(
        &mut self,
        srqn: Srqn,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostRecvError> {
        let post_srq_recv = self.open.context.fields().ops.post_srq_recv;
        let Some(srq) = self.srq(srqn) else { return Err(PostRecvError::NoSuchSrq(srqn)) };
        if wr.sges.len() > srq.max_sge as usize {
            return Err(PostRecvError::TooManySges { max: srq.max_sge });
        }
        let mut raw = receive(wr);
        let mut bad = ::core::ptr::null_mut();
        // SAFETY: the queue is alive; the request and its elements are, until the call returns.
        let status = unsafe { post_srq_recv(srq.raw.get(), &raw mut raw, &raw mut bad) };
        if status != 0 {
            return Err(not_received("ibv_post_srq_recv", status));
        }
        srq.posted = srq.posted.wrapping_add(1);
        Ok(())
    }

    pub(crate) fn arm_srq_limit(&mut self, srqn: Srqn, limit: u32) -> Result<(), ResourceError> {
        let modify = self.library.ibv_modify_srq;
        let srq = self.srq(srqn).ok_or(ResourceError::NotFound)?;
        if limit > srq.depth {
            let need = "must be no more than the queue holds";
            return Err(ResourceError::Value { field: "srq_limit", value: limit.into(), need });
        }
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        // SAFETY: the queue is alive, and what the mask names is set.
        let status = unsafe { modify(srq.raw.get(), &raw mut attr, LIMIT) };
        checked("ibv_modify_srq", status)?;
        srq.limit = limit;
        Ok(())
    }

    pub(crate) fn reserve_srq(&mut self, srqn: Srqn, receives: u32) -> Result<(), ResourceError> {
        self.srq(srqn).ok_or(ResourceError::NotFound)?;
        if receives == 0 {
            return Ok(());
        }
        let need = "a NIC keeps no receives for newcomers: leave it at 0, or use kind = \"soft\"";
        Err(ResourceError::Value { field: "reserve", value: receives.into(), need })
    }

    pub(crate) fn query_srq(&mut self, srqn: Srqn) -> Option<SrqView> {
        let query = self.library.ibv_query_srq;
        let srq = self.srq(srqn)?;
        let mut attr = ibv_srq_attr::default();
        // SAFETY: the queue is alive, and there is room for the answer.
        let status = unsafe { query(srq.raw.get(), &raw mut attr) };
        if status == 0 {
            // The limit is taken back once it was reached.
            srq.limit = attr.srq_limit;
        }
        Some(srq.view_from_books())
    }

    pub(crate) fn create_ah(
        &mut self,
        pd: PdId,
        av: &AddressVector,
    ) -> Result<AhId, ResourceError> {
        let refused = |error| ResourceError::Driver(refusal("ibv_create_ah", &error));
        let pd = self.pd(pd).map_err(refused)?;
        let mut raw = raw_ah(av);
        // SAFETY: the domain is alive, and everything that is read is set.
        let ah = unsafe { (self.library.ibv_create_ah)(pd, &raw mut raw) };
        // SAFETY: it was made just now.
        let ah = unsafe { Owned::new(ah, self.library.ibv_destroy_ah) }.map_err(refused)?;
        Ok(AhId(put(&mut self.ahs, ah)))
    }

    pub(crate) fn destroy_ah(&mut self, ah: AhId) {
        if let Some(slot) = self.ahs.get_mut(ah.0 as usize) {
            *slot = None;
        }
    }
}
