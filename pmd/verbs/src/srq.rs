//! Shared receive queues.

use std::rc::Rc;

use pmd_roce::engine::{DestroyError, PostRecvError, ResourceError, SrqInit, SrqView};
use pmd_roce::event::EventScope;
use pmd_roce::ids::{Srqn, XrcdId};
use pmd_roce::work::RecvWr;

use crate::cq::Cq;
use crate::event::Stays;
use crate::pd::Pd;
use crate::qp::PostRecvListError;

/// What a shared receive queue is created with.
#[derive(Clone, Debug)]
pub struct SrqOptions {
    /// Requests that can be outstanding.
    pub max_wr: u32,
    /// Elements per request.
    pub max_sge: u32,
    /// The XRC domain whose targets deliver here, and where their messages complete.
    pub xrc: Option<(XrcdId, Cq)>,
}

/// A shared receive queue. Destroyed with its last handle, which queue pairs on it hold too.
#[derive(Clone, Debug)]
pub struct Srq {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pd: Pd,
    srqn: Srqn,
    _cq: Option<Cq>,
}

impl Srq {
    pub(crate) fn create(pd: &Pd, options: &SrqOptions) -> Result<Self, ResourceError> {
        let xrc = options.xrc.as_ref().map(|(domain, cq)| (*domain, cq.id()));
        let init = SrqInit { pd: pd.id(), max_wr: options.max_wr, max_sge: options.max_sge, xrc };
        let srqn = pd.context().with(|core| core.create_srq(&init))?;
        let cq = options.xrc.as_ref().map(|(_, cq)| cq.clone());
        Ok(Self { inner: Rc::new(Inner { pd: pd.clone(), srqn, _cq: cq }) })
    }

    /// Its number, which XRC senders name.
    pub fn number(&self) -> Srqn {
        self.inner.srqn
    }

    /// Appends a receive, as `ibv_post_srq_recv(3)`.
    ///
    /// # Errors
    /// [`PostRecvError`]; nothing was posted.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.inner.pd.context().with(|core| core.post_srq_recv(self.inner.srqn, wr))
    }

    /// Appends a list of receives.
    ///
    /// # Errors
    /// [`PostRecvListError`] says how many were posted.
    pub fn post_recv_list(&self, list: &[RecvWr<'_>]) -> Result<(), PostRecvListError> {
        self.inner.pd.context().with(|core| {
            for (posted, wr) in list.iter().enumerate() {
                core.post_srq_recv(self.inner.srqn, wr)
                    .map_err(|error| PostRecvListError { posted, error })?;
            }
            Ok(())
        })
    }

    /// Arms the limit event: it fires once when fewer than `limit` requests are left; 0 disarms.
    ///
    /// # Errors
    /// [`ResourceError::Value`] for a limit beyond the queue's depth.
    pub fn arm_limit(&self, limit: u32) -> Result<(), ResourceError> {
        self.inner.pd.context().with(|core| core.arm_srq_limit(self.inner.srqn, limit))
    }

    /// Keeps the last `receives` for queue pairs that have had none of it yet, so that a new connection's
    /// first message finds one. 0 keeps none.
    ///
    /// # Errors
    /// [`ResourceError::Value`] for more than the queue holds.
    pub fn reserve(&self, receives: u32) -> Result<(), ResourceError> {
        self.inner.pd.context().with(|core| core.reserve_srq(self.inner.srqn, receives))
    }

    /// Fill, limit and history, as `ibv_query_srq(3)`; `None` never, while there is a handle.
    pub fn query(&self) -> Option<SrqView> {
        self.inner.pd.context().with(|core| core.query_srq(self.inner.srqn))
    }

    /// Fails it, as a device does that cannot fetch from it any more: every queue pair that takes its
    /// receives from it is in Error, and flushes to its own completion queue.
    pub fn fail(&self) {
        let srqn = self.inner.srqn;
        self.inner.pd.context().with(|core| core.fail_srq(srqn));
    }

    /// Destroys it, as `ibv_destroy_srq(3)`. Dropping the last handle does the same without waiting.
    ///
    /// # Errors
    /// [`Stays`] gives it back while queue pairs use it, or somebody holds an event about it.
    pub fn destroy(self) -> Result<(), Stays<Self>> {
        let users = Rc::strong_count(&self.inner) - 1;
        if users > 0 {
            let error = DestroyError::InUse(u32::try_from(users).unwrap_or(u32::MAX)).into();
            return Err(Stays { object: self, error });
        }
        match self.inner.pd.context().wait_acknowledged(EventScope::Srq(self.inner.srqn)) {
            Ok(()) => Ok(()),
            Err(held) => Err(Stays { object: self, error: held.into() }),
        }
    }

    /// Requests in the queue.
    pub fn outstanding(&self) -> u32 {
        self.inner
            .pd
            .context()
            .with(|core| core.query_srq(self.inner.srqn))
            .map_or(0, |view| view.len)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let scope = EventScope::Srq(self.srqn);
        self.pd.context().warn_unacknowledged(scope);
        self.pd.context().with(|core| {
            core.forget(scope);
            core.destroy_srq(self.srqn);
        });
    }
}
