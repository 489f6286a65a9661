//! A ring that counters without end run around.

/// A power of two of slots: a counter that goes on without end is reduced to one of them, so that none lies outside and
/// an access needs no check.
///
/// ```
/// use pmd_mem::Wheel;
/// let mut wheel = Wheel::new(3, 0_u8);
/// *wheel.get_mut(5) = 7;
/// assert_eq!((wheel.slots(), *wheel.get(1), wheel.row(0, 9)), (4, 7, &[0, 7, 0, 0][..]));
/// ```
#[derive(Clone, Debug)]
pub struct Wheel<T> {
    /// A power of two of them.
    slots: Box<[T]>,
    /// One less than there are.
    mask: u64,
}

impl<T: Clone> Wheel<T> {
    /// At least so many slots, all of them `value`.
    pub fn new(slots: usize, value: T) -> Self {
        let slots = vec![value; slots.next_power_of_two()].into_boxed_slice();
        let mask = slots.len() as u64 - 1;
        Self { slots, mask }
    }
}

impl<T> Wheel<T> {
    /// How many there are.
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the mask is smaller than any usize")]
    const fn at(&self, counter: u64) -> usize {
        (counter & self.mask) as usize
    }

    /// The slot of a counter.
    #[inline(always)]
    pub fn get(&self, counter: u64) -> &T {
        // SAFETY: the length is a power of two, and the mask one less, so that what it leaves is less than the length.
        unsafe { self.slots.get_unchecked(self.at(counter)) }
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, counter: u64) -> &mut T {
        let at = self.at(counter);
        // SAFETY: as above.
        unsafe { self.slots.get_unchecked_mut(at) }
    }

    /// The slots of `count` counters from `first` on, as far as they lie in a row.
    #[inline(always)]
    pub fn row(&self, first: u64, count: usize) -> &[T] {
        // SAFETY: as above.
        let rest = unsafe { self.slots.get_unchecked(self.at(first)..) };
        &rest[..count.min(rest.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every counter has a slot of its own among as many as there are, also where counters begin anew.
    #[test]
    fn counters_find_their_slots() {
        for slots in [0, 1, 2, 5, 8] {
            let mut wheel = Wheel::new(slots, 0);
            let there = wheel.slots() as u64;
            assert!(there.is_power_of_two() && there >= slots as u64);
            for first in [0, 3, u64::MAX - 2] {
                let counters = || (0..there).map(|nth| first.wrapping_add(nth));
                counters().for_each(|counter| *wheel.get_mut(counter) = counter);
                assert!(counters().all(|counter| *wheel.get(counter) == counter));
                let row = wheel.row(first, usize::MAX);
                assert_eq!(row.len() as u64, there - first % there);
                assert!(row.iter().zip(counters()).all(|(found, counter)| *found == counter));
                assert_eq!(wheel.row(first, 1), [first]);
                assert!(wheel.row(first, 0).is_empty());
            }
        }
    }
}
