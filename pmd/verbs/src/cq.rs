//! Completion queues.

use std::rc::{Rc, Weak};

use arrayvec::ArrayVec;
use pmd_roce::engine::{DestroyError, Refusal};
use pmd_roce::event::EventScope;
use pmd_roce::ids::CqId;
use pmd_roce::work::Completion;

use crate::context::Context;
use crate::event::Stays;
use crate::soft::Armed;

/// Completions a queue can hold at most.
pub const MAX_CQE: u32 = 1 << 22;

/// Completions taken out at a time.
const BATCH: usize = 32;

/// Why a completion queue was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateCqError {
    /// The depth is 0 or too large.
    #[error("a completion queue holds 1 to {MAX_CQE} completions, not {0}")]
    Depth(u32),
    /// The device's driver refused.
    #[error(transparent)]
    Driver(Refusal),
}

/// A completion queue. Destroyed with its last handle, which queue pairs on it hold too.
#[derive(Clone, Debug)]
pub struct Cq {
    inner: Rc<Inner>,
}

/// A completion queue that others keep alive.
#[derive(Debug)]
pub(crate) struct WeakCq(Weak<Inner>);

impl WeakCq {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub(crate) fn upgrade(&self) -> Option<Cq> {
        self.0.upgrade().map(|inner| Cq { inner })
    }
}

#[derive(Debug)]
struct Inner {
    cx: Context,
    id: CqId,
    depth: u32,
}

impl Cq {
    pub(crate) fn create(cx: &Context, depth: u32) -> Result<Self, CreateCqError> {
        if depth == 0 || depth > MAX_CQE {
            return Err(CreateCqError::Depth(depth));
        }
        let id = cx.with(|core| core.create_cq(depth))?;
        Ok(Self { inner: Rc::new(Inner { cx: cx.clone(), id, depth }) })
    }

    pub(crate) fn downgrade(&self) -> WeakCq {
        WeakCq(Rc::downgrade(&self.inner))
    }

    pub(crate) fn id(&self) -> CqId {
        self.inner.id
    }

    /// Completions it can hold.
    pub fn depth(&self) -> u32 {
        self.inner.depth
    }

    /// Hands over up to `room` completions, oldest first, as `ibv_poll_cq(3)`. `each` may use every
    /// object of this lcore, for instance to post the next request.
    #[inline]
    pub fn poll(&self, room: usize, mut each: impl FnMut(Completion)) -> usize {
        let mut taken = 0;
        loop {
            let mut batch = ArrayVec::<Completion, BATCH>::new();
            let want = BATCH.min(room - taken);
            self.inner.cx.with(|core| {
                if taken == 0 {
                    core.nudge(|| self.inner.cx.device().now());
                }
                core.take(self.inner.id, want, &mut batch);
            });
            taken += batch.len();
            batch.iter().for_each(|completion| each(*completion));
            if batch.len() < want || taken == room {
                return taken;
            }
        }
    }

    /// Fills `batch` up with completions, oldest first, and returns how many came: for loops that take
    /// them in batches of a fixed size. What is in `batch` already stays.
    #[inline]
    pub fn poll_batch<const N: usize>(&self, batch: &mut ArrayVec<Completion, N>) -> usize {
        let before = batch.len();
        self.inner.cx.with(|core| {
            core.nudge(|| self.inner.cx.device().now());
            core.take(self.inner.id, usize::MAX, batch);
        });
        batch.len() - before
    }

    /// Arms the queue, as `ibv_req_notify_cq(3)`: the next completion, or the next solicited one or
    /// error, fires once. Poll once more afterwards: what came before does not fire.
    pub fn arm(&self, solicited_only: bool) {
        let armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        self.inner.cx.with(|core| core.arm(self.inner.id, armed));
    }

    /// Whether the armed queue has fired since the last call.
    pub fn fired(&self) -> bool {
        self.inner.cx.nudge();
        self.inner.cx.with(|core| core.take_fired(self.inner.id))
    }

    /// Destroys it, as `ibv_destroy_cq(3)`. Dropping the last handle does the same without waiting.
    ///
    /// # Errors
    /// [`Stays`] gives it back while queue pairs use it, or somebody holds an event about it.
    pub fn destroy(self) -> Result<(), Stays<Self>> {
        let users = Rc::strong_count(&self.inner) - 1;
        if users > 0 {
            let error = DestroyError::InUse(u32::try_from(users).unwrap_or(u32::MAX)).into();
            return Err(Stays { object: self, error });
        }
        match self.inner.cx.wait_acknowledged(EventScope::Cq(self.inner.id)) {
            Ok(()) => Ok(()),
            Err(held) => Err(Stays { object: self, error: held.into() }),
        }
    }

    /// Fails it, as a device does that cannot write to it any more: it takes no completion from now on,
    /// and every queue pair on it is in Error.
    pub fn fail(&self) {
        self.inner.cx.with(|core| core.fail_cq(self.inner.id));
    }

    /// Whether completions were lost: the queue is in error, and so is every queue pair on it.
    pub fn is_overrun(&self) -> bool {
        self.inner.cx.with(|core| core.is_overrun(self.inner.id))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let scope = EventScope::Cq(self.id);
        self.cx.warn_unacknowledged(scope);
        self.cx.with(|core| core.forget(scope));
        self.cx.with(|core| core.destroy_cq(self.id));
    }
}
