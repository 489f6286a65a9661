//! The blocks that are on their way over one connection.

use std::collections::VecDeque;

use crate::stream::Block;

/// What a slot does next or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing.
    Free,
    /// Its WRITE is to be submitted.
    Write,
    /// Its commit is to be submitted.
    Commit,
    /// It waits for the reply.
    Reply,
    /// Its READ, or its request for one, is to be submitted.
    Read,
    /// It waits for the reply to its request to be read.
    Bytes,
    /// It waits for the bytes.
    Compare,
    /// It waits for its own operations to settle.
    Settle,
}

/// One block on its way.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) stage: Stage,
    pub(super) block: Option<Block>,
    /// Of its commit.
    pub(super) sequence: u64,
    /// When its WRITE was submitted.
    pub(super) began: u64,
    /// Operations that have not settled.
    pub(super) in_flight: u32,
}

/// A fixed number of slots, a list of the free ones, and a queue of those that have something to submit.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    free: Vec<u32>,
    ready: VecDeque<u32>,
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        let slot =
            |_| Slot { stage: Stage::Free, block: None, sequence: 0, began: 0, in_flight: 0 };
        Self {
            slots: (0..count).map(slot).collect(),
            free: (0..count).rev().collect(),
            ready: VecDeque::with_capacity(count as usize),
        }
    }

    /// Whether there is one free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// How many hold a block.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether all are free.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Puts a block into a free slot, to be written next.
    pub(super) fn begin(&mut self, now: u64, block: Block) {
        let index = self.free.pop().expect("the caller saw a free slot");
        let slot = &mut self.slots[index as usize];
        *slot =
            Slot { stage: Stage::Write, block: Some(block), sequence: 0, began: now, in_flight: 0 };
        self.ready.push_back(index);
    }

    /// The slot of this number, if there is one that holds a block.
    pub(super) fn get(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize).filter(|slot| slot.stage != Stage::Free)
    }

    /// The next slot that has something to submit.
    pub(super) fn ready(&self) -> Option<u32> {
        self.ready.front().copied()
    }

    /// The slot at the head of the queue has nothing more to submit for now.
    pub(super) fn submitted(&mut self) {
        self.ready.pop_front();
    }

    /// The slot has something to submit.
    pub(super) fn queue(&mut self, index: u32) {
        self.ready.push_back(index);
    }

    /// Frees the slot if it is at its end and all its operations have settled.
    pub(super) fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.stage == Stage::Settle && slot.in_flight == 0 {
            slot.stage = Stage::Free;
            slot.block = None;
            self.free.push(index);
        }
    }

    /// Nothing is under way any more: blocks that are not done begin anew, those that only had to settle are done.
    pub(super) fn begin_again(&mut self) {
        self.ready.clear();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            slot.in_flight = 0;
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            match slot.stage {
                Stage::Free => {}
                Stage::Settle => self.release(index),
                _ => {
                    slot.stage = Stage::Write;
                    self.ready.push_back(index);
                }
            }
        }
    }

    /// Blocks that can be on their way.
    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// When the oldest block on its way was begun.
    pub(super) fn oldest(&self) -> Option<u64> {
        let busy = self.slots.iter().filter(|slot| slot.stage != Stage::Free);
        busy.map(|slot| slot.began).min()
    }
}
