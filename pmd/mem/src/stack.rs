//! A free list of indices that any thread pops from and pushes to in bulk, without a lock.

use core::sync::atomic::Ordering;

use crate::sync::{AtomicU32, AtomicU64};

/// A stack of the indices 0 to `capacity - 1`, each in it at most once.
///
/// The head word holds the top index and a tag that every change moves, so that a thread which slept through pops and pushes
/// cannot mistake an old head for the present one. A whole batch moves by one compare-and-swap.
#[derive(Debug)]
pub struct IndexStack {
    /// Tag in the upper half, top index in the lower.
    head: AtomicU64,
    /// For each index in the stack, the one below it.
    below: Box<[AtomicU32]>,
}

const NONE: u32 = u32::MAX;

impl IndexStack {
    /// Holds every index, 0 on top.
    ///
    /// # Panics
    /// When `capacity` is 2^32 - 1, the one number that is not an index.
    pub fn full(capacity: u32) -> Self {
        assert_ne!(capacity, NONE, "one value means none");
        let below = (0..capacity)
            .map(|i| AtomicU32::new(if i + 1 < capacity { i + 1 } else { NONE }))
            .collect();
        Self { head: AtomicU64::new(u64::from(if capacity == 0 { NONE } else { 0 })), below }
    }

    /// Fills `into` from the front with popped indices and returns how many there were.
    pub fn pop(&self, into: &mut [u32]) -> usize {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let mut top = top(head);
            let mut count = 0;
            for index in into.iter_mut() {
                // While others change the stack this walk may read links of different times; the swap below then fails.
                let Some(below) = self.below.get(top as usize) else { break };
                *index = top;
                top = below.load(Ordering::Relaxed);
                count += 1;
            }
            if count == 0 {
                return 0;
            }
            match self.head.compare_exchange_weak(
                head,
                next(head, top),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return count,
                Err(now) => head = now,
            }
        }
    }

    /// Pushes indices that were popped before; the first comes out first.
    pub fn push(&self, indices: &[u32]) {
        let (Some(&first), Some(&last)) = (indices.first(), indices.last()) else { return };
        for pair in indices.windows(2) {
            self.below[pair[0] as usize].store(pair[1], Ordering::Relaxed);
        }
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            self.below[last as usize].store(top(head), Ordering::Relaxed);
            // Release: whoever pops these sees their links, and what their users wrote before giving them back.
            match self.head.compare_exchange_weak(
                head,
                next(head, first),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

const fn top(head: u64) -> u32 {
    let [a, b, c, d, ..] = head.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

const fn next(head: u64, top: u32) -> u64 {
    (head >> 32).wrapping_add(1) << 32 | top as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pops_what_was_pushed() {
        let stack = IndexStack::full(5);
        let mut out = [NONE; 3];
        assert_eq!((stack.pop(&mut out), out), (3, [0, 1, 2]));
        stack.push(&[2, 0]);
        assert_eq!((stack.pop(&mut out), out), (3, [2, 0, 3]));
        assert_eq!((stack.pop(&mut out), out[0]), (1, 4));
        assert_eq!(stack.pop(&mut out), 0);
        stack.push(&[]);
        assert_eq!(stack.pop(&mut out), 0);
        stack.push(&[4]);
        assert_eq!(stack.pop(&mut []), 0);
        assert_eq!((stack.pop(&mut out), out[0]), (1, 4));
        assert_eq!(IndexStack::full(0).pop(&mut out), 0);
    }

    #[test]
    fn four_threads_never_hold_the_same_index() {
        let stack = IndexStack::full(64);
        let owners: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for me in 1..=4 {
                let (stack, owners) = (&stack, &owners);
                scope.spawn(move || {
                    let mut held = [0; 7];
                    for round in 0..5000 {
                        let count = stack.pop(&mut held[..1 + round % 7]);
                        for &index in &held[..count] {
                            assert_eq!(owners[index as usize].swap(me, Ordering::Relaxed), 0);
                        }
                        for &index in &held[..count] {
                            owners[index as usize].store(0, Ordering::Relaxed);
                        }
                        stack.push(&held[..count]);
                    }
                });
            }
        });
        let mut all = [0; 65];
        assert_eq!(stack.pop(&mut all), 64);
        let mut all = all[..64].to_vec();
        all.sort_unstable();
        assert_eq!(all, (0..64).collect::<Vec<_>>());
    }
}
