//! Shared receive queues: one pool of receives for many queue pairs.

use crate::device::Device;
use crate::engine::{SrqInit, SrqView};
use crate::error::{DestroyError, PostRecvError, ResourceError};
use crate::event::AsyncEvent;
use crate::ids::{CqId, PdId, Srqn, XrcdId};
use crate::limits::{MAX_SGE, MAX_SRQ_WR};
use crate::qp::rq::{Receive, RecvQueue};
use crate::slots::Slots;
use crate::work::RecvWr;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    queue: RecvQueue,
    pd: PdId,
    /// Where XRC targets deliver: the domain they must be of, and the completion queue.
    xrc: Option<(XrcdId, CqId)>,
    /// Fires when fewer receives are left; 0: disarmed.
    limit: u32,
    /// The last receives, which are for newcomers.
    reserve: u32,
    /// Queue pairs made with this queue.
    users: u32,
    /// Messages that found no receive.
    dry: u64,
    /// Gives no receive any more.
    failed: bool,
}

impl Srq {
    /// Domain and completion queue for XRC. A queue that failed is in no domain.
    pub(crate) fn xrc(&self) -> Option<(XrcdId, CqId)> {
        self.xrc.filter(|_| !self.failed)
    }
}

/// All shared receive queues of an engine, by number.
#[derive(Debug)]
pub(crate) struct Srqs(Slots<Srq>);

impl Srqs {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Slots::new(capacity))
    }

    /// Numbers count from 1: in an XRCETH, 0 shall name nothing.
    fn slot(srqn: Srqn) -> u32 {
        srqn.0.wrapping_sub(1)
    }

    pub(crate) fn get(&self, srqn: Srqn) -> Option<&Srq> {
        self.0.get(Self::slot(srqn))
    }

    fn get_mut(&mut self, srqn: Srqn) -> Option<&mut Srq> {
        self.0.get_mut(Self::slot(srqn))
    }

    pub(crate) fn create(&mut self, init: &SrqInit) -> Result<Srqn, ResourceError> {
        let range = |field, value, max, need| match value {
            value if value <= max => Ok(()),
            value => Err(ResourceError::Value { field, value: u64::from(value), need }),
        };
        range("max_wr", init.max_wr, MAX_SRQ_WR, "at most 65536 requests")?;
        range("max_sge", init.max_sge, MAX_SGE, "at most 16 elements")?;
        if init.max_wr == 0 {
            let need = "at least one request";
            return Err(ResourceError::Value { field: "max_wr", value: 0, need });
        }
        let srq = Srq {
            queue: RecvQueue::new(init.max_wr, init.max_sge),
            pd: init.pd,
            xrc: init.xrc,
            limit: 0,
            reserve: 0,
            users: 0,
            dry: 0,
            failed: false,
        };
        let slot = self.0.insert(srq).ok_or_else(|| ResourceError::TooMany(self.0.capacity()))?;
        Ok(Srqn(slot + 1))
    }

    pub(crate) fn destroy(&mut self, srqn: Srqn) -> Result<(), DestroyError> {
        match self.get(srqn) {
            None => Err(DestroyError::NotFound),
            Some(srq) if srq.users > 0 => Err(DestroyError::InUse(srq.users)),
            Some(_) => {
                self.0.remove(Self::slot(srqn));
                Ok(())
            }
        }
    }

    pub(crate) fn query(&self, srqn: Srqn) -> Option<SrqView> {
        self.get(srqn).map(|srq| {
            let Srq { ref queue, limit, reserve, users, dry, failed, .. } = *srq;
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_SRQ_WR")]
            let depth = queue.capacity() as u32;
            let (len, posted) = (queue.len(), queue.posted());
            SrqView { len, posted, depth, limit, reserve, users, dry, failed }
        })
    }

    pub(crate) fn arm(&mut self, srqn: Srqn, limit: u32) -> Result<(), ResourceError> {
        self.holding(srqn, "srq_limit", limit)?.limit = limit;
        Ok(())
    }

    pub(crate) fn reserve(&mut self, srqn: Srqn, receives: u32) -> Result<(), ResourceError> {
        self.holding(srqn, "reserve", receives)?.reserve = receives;
        Ok(())
    }

    /// A queue that can hold so many requests.
    fn holding(
        &mut self,
        srqn: Srqn,
        field: &'static str,
        requests: u32,
    ) -> Result<&mut Srq, ResourceError> {
        let srq = self.get_mut(srqn).ok_or(ResourceError::NotFound)?;
        if requests as usize > srq.queue.capacity() {
            let need = "no more than the queue's max_wr";
            return Err(ResourceError::Value { field, value: requests.into(), need });
        }
        Ok(srq)
    }

    pub(crate) fn post(&mut self, srqn: Srqn, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.get_mut(srqn).ok_or(PostRecvError::NoSuchSrq(srqn))?.queue.post(wr)
    }

    /// The receives of a queue that gives any, their domain, and how many are there for queue pairs
    /// that had some.
    #[inline]
    pub(crate) fn queue_of(&mut self, srqn: Srqn) -> Option<(&mut RecvQueue, PdId, usize)> {
        let srq = self.get_mut(srqn).filter(|srq| !srq.failed)?;
        let spare = srq.queue.len().saturating_sub(srq.reserve);
        Some((&mut srq.queue, srq.pd, spare as usize))
    }

    /// The queue gives no receive any more. False: it failed before.
    pub(crate) fn fail(&mut self, srqn: Srqn) -> Result<bool, ResourceError> {
        let srq = self.get_mut(srqn).ok_or(ResourceError::NotFound)?;
        Ok(!core::mem::replace(&mut srq.failed, true))
    }

    /// None of them gives a receive any more.
    pub(crate) fn fail_all(&mut self) {
        self.0.iter_mut().for_each(|srq| srq.failed = true);
    }

    /// The numbers of all queues.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = Srqn> + '_ {
        let from = |slot| Some(self.0.first_from(slot)?.0);
        core::iter::successors(from(0), move |slot| from(slot + 1)).map(|slot| Srqn(slot + 1))
    }

    /// Whether messages for targets of an XRC domain may complete on `cq`.
    pub(crate) fn delivers(&self, xrcd: XrcdId, cq: CqId) -> bool {
        self.0.iter().any(|srq| srq.xrc == Some((xrcd, cq)))
    }

    /// Counts a queue pair that comes (`true`) or goes.
    pub(crate) fn count_user(&mut self, srqn: Srqn, comes: bool) {
        if let Some(srq) = self.get_mut(srqn) {
            srq.users = if comes { srq.users + 1 } else { srq.users - 1 };
        }
    }
}

impl Device {
    /// Takes the oldest receive of a shared queue, to complete on `cq`.
    pub(crate) fn take_shared(&mut self, srqn: Srqn, receive: &mut Receive, cq: CqId) -> bool {
        let Some(srq) = self.srqs.get_mut(srqn) else { return false };
        if srq.failed {
            return false;
        }
        let is_kept = srq.queue.len() <= srq.reserve && receive.had_shared;
        if is_kept || !srq.queue.take(receive, srq.pd, cq) {
            srq.dry += 1;
            self.counters.srq_dry += 1;
            return false;
        }
        receive.had_shared = true;
        self.note_shared_taken(srqn);
        true
    }

    /// Receives were taken out of a shared queue: raises the limit event where it has dropped below its
    /// limit by that.
    pub(crate) fn note_shared_taken(&mut self, srqn: Srqn) {
        let Some(srq) = self.srqs.get_mut(srqn) else { return };
        if srq.queue.len() < srq.limit {
            srq.limit = 0;
            self.events.raise(AsyncEvent::SrqLimitReached(srqn));
        }
    }
}
