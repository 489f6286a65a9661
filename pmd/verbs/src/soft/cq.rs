//! Completion queues: bounded rings that the engine fills and the consumer drains.

use std::collections::VecDeque;
use std::rc::Rc;

use pmd_roce::ids::CqId;
use pmd_roce::sink::CqSink;
use pmd_roce::work::{Completion, CqOverrun};

use super::alarm::Bell;

/// When an armed queue fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Any,
    Solicited,
}

#[derive(Debug)]
struct Ring {
    queue: VecDeque<Completion>,
    depth: usize,
    armed: Armed,
    fired: bool,
    /// Rung when it fires.
    bell: Option<Rc<Bell>>,
    overrun: bool,
}

/// The completion queues of one lcore.
#[derive(Debug, Default)]
pub(crate) struct Cqs {
    rings: Vec<Option<Ring>>,
}

impl Cqs {
    pub(crate) fn create(&mut self, depth: u32) -> CqId {
        let ring = Ring {
            queue: VecDeque::with_capacity(depth as usize),
            depth: depth as usize,
            armed: Armed::No,
            fired: false,
            bell: None,
            overrun: false,
        };
        let free = self.rings.iter().position(Option::is_none).unwrap_or_else(|| {
            self.rings.push(None);
            self.rings.len() - 1
        });
        self.rings[free] = Some(ring);
        CqId(u32::try_from(free).unwrap_or(u32::MAX))
    }

    pub(crate) fn attach_bell(&mut self, cq: CqId, bell: &Rc<Bell>) {
        if let Some(ring) = self.ring(cq) {
            ring.bell = Some(Rc::clone(bell));
        }
    }

    pub(crate) fn destroy(&mut self, cq: CqId) {
        if let Some(slot) = self.rings.get_mut(cq.0 as usize) {
            *slot = None;
        }
    }

    fn ring(&mut self, cq: CqId) -> Option<&mut Ring> {
        self.rings.get_mut(cq.0 as usize)?.as_mut()
    }

    /// Takes up to `room` completions, oldest first.
    pub(crate) fn poll(
        &mut self,
        cq: CqId,
        room: usize,
        mut each: impl FnMut(Completion),
    ) -> usize {
        let Some(ring) = self.ring(cq) else { return 0 };
        let count = ring.queue.len().min(room);
        ring.queue.drain(..count).for_each(&mut each);
        count
    }

    pub(crate) fn arm(&mut self, cq: CqId, armed: Armed) {
        if let Some(ring) = self.ring(cq) {
            ring.armed = armed;
        }
    }

    /// Whether an armed queue has fired since the last call.
    pub(crate) fn take_fired(&mut self, cq: CqId) -> bool {
        self.ring(cq).is_some_and(|ring| std::mem::take(&mut ring.fired))
    }

    pub(crate) fn is_overrun(&self, cq: CqId) -> bool {
        self.rings.get(cq.0 as usize).and_then(Option::as_ref).is_some_and(|ring| ring.overrun)
    }
}

impl CqSink for Cqs {
    fn push(&mut self, cq: CqId, completion: Completion) -> Result<(), CqOverrun> {
        // A queue that was destroyed under its queue pairs takes nothing, as an overrun one.
        let ring = self.rings.get_mut(cq.0 as usize).and_then(Option::as_mut).ok_or(CqOverrun)?;
        if ring.overrun || ring.queue.len() == ring.depth {
            ring.overrun = true;
            return Err(CqOverrun);
        }
        let fires = match ring.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited,
        };
        if fires {
            ring.armed = Armed::No;
            ring.fired = true;
            if let Some(bell) = &ring.bell {
                bell.ring();
            }
        }
        ring.queue.push_back(completion);
        Ok(())
    }
}
