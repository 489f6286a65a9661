//! Queues between stages.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::Block;

#[derive(Debug)]
struct Queue {
    blocks: RefCell<VecDeque<Block>>,
    capacity: usize,
    /// Bytes of one pass over the stream, if known.
    length: Cell<Option<u64>>,
    ended: Cell<bool>,
    abandoned: Cell<bool>,
}

/// A queue of at most `capacity` blocks.
pub(crate) fn link(capacity: usize) -> (Outlet, Inlet) {
    let queue = Rc::new(Queue {
        blocks: RefCell::new(VecDeque::with_capacity(capacity)),
        capacity,
        length: Cell::new(None),
        ended: Cell::new(false),
        abandoned: Cell::new(false),
    });
    (Outlet(Rc::clone(&queue)), Inlet { queues: vec![queue], next: 0 })
}

/// Where a stage passes blocks on. Dropping it ends the stream.
#[derive(Debug)]
pub struct Outlet(Rc<Queue>);

impl Outlet {
    /// Whether the next stage takes one more block now. It always does when it has gone, and drops what it gets.
    pub fn has_room(&self) -> bool {
        self.is_abandoned() || self.0.blocks.borrow().len() < self.0.capacity
    }

    /// Passes a block on.
    ///
    /// # Errors
    /// The block, when there is no room: keep it for the next turn.
    pub fn give(&self, block: Block) -> Result<(), Block> {
        if self.is_abandoned() {
            return Ok(());
        }
        let mut blocks = self.0.blocks.borrow_mut();
        if blocks.len() == self.0.capacity {
            return Err(block);
        }
        blocks.push_back(block);
        Ok(())
    }

    /// Says how many bytes one pass over the stream has. A source knows, and a stage that keeps lengths hands on what its
    /// inlet says, when it is built.
    pub fn announce(&self, length: Option<u64>) {
        self.0.length.set(length);
    }

    /// Whether the next stage takes no more: producing is in vain.
    pub fn is_abandoned(&self) -> bool {
        self.0.abandoned.get()
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.0.ended.set(true);
    }
}

/// Where a stage takes blocks from: one earlier stage or several, in turn. Dropping it tells them to stop.
#[derive(Debug)]
pub struct Inlet {
    queues: Vec<Rc<Queue>>,
    next: usize,
}

impl Inlet {
    /// Joins the inlets of several earlier stages. Their streams are laid end to end: each begins where the one before
    /// it ends.
    pub(crate) fn join(inlets: Vec<Self>) -> Option<Self> {
        let queues: Vec<_> = inlets.into_iter().flat_map(Self::into_queues).collect();
        (!queues.is_empty()).then_some(Self { queues, next: 0 })
    }

    /// The next block, if one waits.
    pub fn take(&mut self) -> Option<Block> {
        for _ in 0..self.queues.len() {
            let index = self.next;
            self.next = (self.next + 1) % self.queues.len();
            let taken = self.queues[index].blocks.borrow_mut().pop_front();
            if let Some(mut block) = taken {
                block.offset = block.offset.saturating_add(self.start(index));
                return Some(block);
            }
        }
        None
    }

    /// Whether a block waits.
    pub fn has_block(&self) -> bool {
        self.queues.iter().any(|queue| !queue.blocks.borrow().is_empty())
    }

    /// Whether no block waits and none will come.
    pub fn is_drained(&self) -> bool {
        self.queues.iter().all(|queue| queue.ended.get() && queue.blocks.borrow().is_empty())
    }

    /// Bytes of one pass over the stream, if every earlier stage has announced them.
    pub fn length(&self) -> Option<u64> {
        self.queues.iter().try_fold(0_u64, |sum, queue| sum.checked_add(queue.length.get()?))
    }

    /// Takes no more: drops what waits, and tells the earlier stages.
    pub fn abandon(&self) {
        for queue in &self.queues {
            queue.abandoned.set(true);
            queue.blocks.borrow_mut().clear();
        }
    }

    /// Where the stream of one queue begins among all of them.
    fn start(&self, index: usize) -> u64 {
        let before = self.queues[..index].iter().filter_map(|queue| queue.length.get());
        before.fold(0, u64::saturating_add)
    }

    fn into_queues(mut self) -> Vec<Rc<Queue>> {
        std::mem::take(&mut self.queues)
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Extent;
    use crate::stream::Buffers;
    use crate::testing::region;

    fn pool() -> Buffers {
        Buffers::new("test", Extent::new(region(4096), 0, 4096), 512).unwrap()
    }

    fn block(pool: &Buffers, offset: u64) -> Block {
        Block { buffer: pool.take().unwrap(), len: 512, offset, crc32c: None }
    }

    #[test]
    fn a_full_queue_hands_the_block_back() {
        let pool = pool();
        let (outlet, mut inlet) = link(2);
        assert!(outlet.give(block(&pool, 0)).is_ok());
        assert!(outlet.give(block(&pool, 512)).is_ok());
        assert!(!outlet.has_room());
        let kept = outlet.give(block(&pool, 1024)).unwrap_err();
        assert_eq!(inlet.take().map(|block| block.offset), Some(0));
        assert!(outlet.give(kept).is_ok());
        drop(outlet);
        assert!(!inlet.is_drained());
        let rest: Vec<u64> =
            std::iter::from_fn(|| inlet.take()).map(|block| block.offset).collect();
        assert_eq!(rest, [512, 1024]);
        assert!(inlet.is_drained());
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    fn nobody_waits_for_a_stage_that_has_gone() {
        let pool = pool();
        let (outlet, inlet) = link(1);
        assert!(outlet.give(block(&pool, 0)).is_ok());
        drop(inlet);
        assert!(outlet.is_abandoned() && outlet.has_room());
        assert!(outlet.give(block(&pool, 512)).is_ok());
        assert_eq!(pool.taken(), 0, "what nobody takes goes back to its pool");
    }

    #[test]
    fn joined_streams_lie_end_to_end() {
        let pool = pool();
        let ((first, a), (second, b)) = (link(4), link(4));
        let mut inlet = Inlet::join(vec![a, b]).unwrap();
        assert_eq!(inlet.length(), None);
        first.announce(Some(1000));
        second.announce(Some(24));
        assert_eq!(inlet.length(), Some(1024));
        for offset in [0, 512] {
            assert!(first.give(block(&pool, offset)).is_ok());
        }
        assert!(second.give(block(&pool, 0)).is_ok());
        let order: Vec<u64> =
            std::iter::from_fn(|| inlet.take()).map(|block| block.offset).collect();
        assert_eq!(order, [0, 1000, 512], "in turn, one from each");
        drop(first);
        assert!(!inlet.is_drained());
        drop(second);
        assert!(inlet.is_drained());
    }
}
