//! Completion queues: bounded, in plain memory.

use std::collections::VecDeque;

use pmd_roce::ids::CqId;
use pmd_roce::sink::CqSink;
use pmd_roce::work::{Completion, CqOverrun};

/// A completion queue.
#[derive(Debug)]
struct Cq {
    depth: usize,
    entries: VecDeque<Completion>,
    /// Set by an overrun or a fault: nothing is accepted any more.
    dead: bool,
}

/// The completion queues of a host.
#[derive(Debug, Default)]
pub struct CqTable {
    queues: Vec<Cq>,
    /// What arrived since the last look of the trace.
    pub(crate) arrived: Vec<(CqId, Completion)>,
}

impl CqTable {
    /// A queue for `depth` completions.
    pub fn create(&mut self, depth: usize) -> CqId {
        self.queues.push(Cq { depth, entries: VecDeque::with_capacity(depth), dead: false });
        CqId(u32::try_from(self.queues.len() - 1).expect("fewer than 2^32 queues"))
    }

    /// Takes the oldest completion.
    pub fn poll(&mut self, cq: CqId) -> Option<Completion> {
        self.queues.get_mut(cq.0 as usize)?.entries.pop_front()
    }

    /// Completions that wait in the queue.
    pub fn len(&self, cq: CqId) -> usize {
        self.queues.get(cq.0 as usize).map_or(0, |queue| queue.entries.len())
    }

    /// Makes the queue refuse everything from now on, as after an overrun.
    pub fn kill(&mut self, cq: CqId) {
        if let Some(queue) = self.queues.get_mut(cq.0 as usize) {
            queue.dead = true;
        }
    }

    /// Whether the queue overran or was killed.
    pub fn is_dead(&self, cq: CqId) -> bool {
        self.queues.get(cq.0 as usize).is_none_or(|queue| queue.dead)
    }
}

impl CqSink for CqTable {
    fn push(&mut self, cq: CqId, completion: Completion) -> Result<(), CqOverrun> {
        let queue = self.queues.get_mut(cq.0 as usize).ok_or(CqOverrun)?;
        if queue.dead || queue.entries.len() == queue.depth {
            queue.dead = true;
            return Err(CqOverrun);
        }
        queue.entries.push_back(completion);
        self.arrived.push((cq, completion));
        Ok(())
    }
}
