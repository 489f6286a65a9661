//! Which queue pairs have something to do, so that idle ones cost nothing.

/// A first-in first-out list of slots, each at most once.
#[derive(Debug)]
pub(crate) struct ReadyList {
    /// A place for each slot, up to a power of two.
    ring: Box<[u32]>,
    /// The first slot, and where the next one goes; both count on without end.
    head: u32,
    tail: u32,
    listed: Box<[bool]>,
}

impl ReadyList {
    /// Room for slots `0..slots`.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            ring: vec![0; slots.next_power_of_two()].into(),
            head: 0,
            tail: 0,
            listed: vec![false; slots].into(),
        }
    }

    /// Slots in the list.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Whether there is none.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// The first slot.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        if self.is_empty() { None } else { Some(self.ring[self.place(self.head)]) }
    }

    /// The slot so many places behind the first.
    #[inline]
    pub(crate) fn nth(&self, nth: usize) -> Option<u32> {
        if nth < self.len() {
            #[expect(clippy::cast_possible_truncation, reason = "below the length")]
            let count = self.head.wrapping_add(nth as u32);
            Some(self.ring[self.place(count)])
        } else {
            None
        }
    }

    /// Appends a slot unless it is listed.
    #[inline]
    pub(crate) fn push(&mut self, slot: u32) {
        if !core::mem::replace(&mut self.listed[slot as usize], true) {
            let place = self.place(self.tail);
            self.ring[place] = slot;
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Puts a slot first: its turn was cut short.
    #[inline]
    pub(crate) fn push_front(&mut self, slot: u32) {
        if !core::mem::replace(&mut self.listed[slot as usize], true) {
            self.head = self.head.wrapping_sub(1);
            let place = self.place(self.head);
            self.ring[place] = slot;
        }
    }

    /// Takes the first slot.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let slot = self.first()?;
        self.head = self.head.wrapping_add(1);
        self.listed[slot as usize] = false;
        Some(slot)
    }

    /// Takes a slot out, wherever it is.
    pub(crate) fn remove(&mut self, slot: u32) {
        if !core::mem::take(&mut self.listed[slot as usize]) {
            return;
        }
        // Mostly it is alone, or the first; then nothing moves.
        let mut here = self.head;
        while self.ring[self.place(here)] != slot {
            here = here.wrapping_add(1);
        }
        while here != self.head {
            let before = here.wrapping_sub(1);
            self.ring[self.place(here)] = self.ring[self.place(before)];
            here = before;
        }
        self.head = self.head.wrapping_add(1);
    }

    #[inline]
    const fn place(&self, count: u32) -> usize {
        count as usize & (self.ring.len() - 1)
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

    /// The places of the list are used over and over, whichever end and whatever slot is taken.
    #[test]
    fn agrees_with_a_queue() {
        let (mut ready, mut model) = (ReadyList::new(5), std::collections::VecDeque::new());
        let mut seed = 3u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let slot = (seed >> 40) as u32 % 5;
            match (seed >> 33) % 5 {
                0 | 1 if !model.contains(&slot) => model.push_back(slot),
                2 if !model.contains(&slot) => model.push_front(slot),
                3 => model.retain(|there| *there != slot),
                _ => {}
            }
            match (seed >> 33) % 5 {
                0 | 1 => ready.push(slot),
                2 => ready.push_front(slot),
                3 => ready.remove(slot),
                _ => assert_eq!(ready.pop(), model.pop_front()),
            }
            assert_eq!((ready.len(), ready.first()), (model.len(), model.front().copied()));
            for nth in 0..6 {
                assert_eq!(ready.nth(nth), model.get(nth).copied());
            }
        }
    }
}
