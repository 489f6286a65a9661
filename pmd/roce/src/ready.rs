//! Which queue pairs have something to do, so that idle ones cost nothing.

use std::collections::VecDeque;

/// A first-in first-out list of slots, each at most once.
#[derive(Debug)]
pub(crate) struct ReadyList {
    slots: VecDeque<u32>,
    listed: Box<[bool]>,
}

impl ReadyList {
    /// Room for slots `0..slots`.
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: VecDeque::with_capacity(slots), listed: vec![false; slots].into() }
    }

    /// Slots in the list.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Appends a slot unless it is listed.
    #[inline]
    pub(crate) fn push(&mut self, slot: u32) {
        if !core::mem::replace(&mut self.listed[slot as usize], true) {
            self.slots.push_back(slot);
        }
    }

    /// Puts a slot first: its turn was cut short.
    #[inline]
    pub(crate) fn push_front(&mut self, slot: u32) {
        if !core::mem::replace(&mut self.listed[slot as usize], true) {
            self.slots.push_front(slot);
        }
    }

    /// Takes the first slot.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let slot = self.slots.pop_front()?;
        self.listed[slot as usize] = false;
        Some(slot)
    }

    /// Takes a slot out, wherever it is.
    pub(crate) fn remove(&mut self, slot: u32) {
        if core::mem::take(&mut self.listed[slot as usize]) {
            // Mostly it is alone.
            if self.slots.front() == Some(&slot) {
                self.slots.pop_front();
            } else {
                self.slots.retain(|listed| *listed != slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ReadyList;

    #[test]
    fn each_slot_once_in_order() {
        let mut ready = ReadyList::new(4);
        for slot in [2, 0, 2, 3] {
            ready.push(slot);
        }
        ready.remove(0);
        assert_eq!(ready.pop(), Some(2));
        ready.push_front(2);
        ready.push(2);
        assert_eq!(core::iter::from_fn(|| ready.pop()).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(ready.len(), 0);
    }
}
