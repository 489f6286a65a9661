//! Who has which part of the store.

/// A range of bytes that is given out in parts, each the first gap that is large enough.
#[derive(Debug)]
pub(super) struct Store {
    len: u64,
    /// Parts begin at multiples of this.
    align: u64,
    /// Start and end of each part, in ascending order.
    taken: Vec<(u64, u64)>,
}

impl Store {
    pub(super) fn new(len: u64, align: u64) -> Self {
        Self { len, align, taken: Vec::new() }
    }

    /// Where `bytes` lie that were free; `None` if there is no such gap.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (index, start) =
            self.gaps().find(|(_, (start, end))| end - start >= bytes).map(|(i, (s, _))| (i, s))?;
        self.taken.insert(index, (start, start + bytes));
        Some(start)
    }

    /// Whether just these `bytes` from `start` were free; they are taken then.
    pub(super) fn take_at(&mut self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let gap = self.gaps().find(|(_, (first, last))| *first <= start && end <= *last);
        let Some((index, _)) = gap.filter(|_| start.is_multiple_of(self.align)) else {
            return false;
        };
        self.taken.insert(index, (start, end));
        true
    }

    /// The part that begins at `start` is free again.
    pub(super) fn give_back(&mut self, start: u64, bytes: u64) {
        self.taken.retain(|part| *part != (start, start + bytes));
    }

    /// Bytes of the largest gap.
    pub(super) fn largest(&self) -> u64 {
        self.gaps().map(|(_, (start, end))| end - start).max().unwrap_or(0)
    }

    /// The gaps in order, each with the place of a part there among those that are taken.
    fn gaps(&self) -> impl Iterator<Item = (usize, (u64, u64))> {
        let starts = std::iter::once(0).chain(self.taken.iter().map(|(_, end)| *end));
        let ends = self.taken.iter().map(|(start, _)| *start).chain([self.len]);
        let gaps = starts.zip(ends).map(|(start, end)| {
            let start = start.checked_next_multiple_of(self.align).unwrap_or(end);
            (start.min(end), end)
        });
        gaps.enumerate()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALIGN: u64 = 4096;

    #[test]
    fn the_first_gap_that_fits() {
        let mut store = Store::new(10 * ALIGN, ALIGN);
        assert_eq!(store.take(3 * ALIGN + 1), Some(0));
        assert_eq!(store.take(ALIGN), Some(4 * ALIGN));
        assert_eq!(store.take(6 * ALIGN), None);
        assert_eq!(store.largest(), 5 * ALIGN);
        assert_eq!(store.take(5 * ALIGN), Some(5 * ALIGN));
        assert_eq!((store.take(1), store.largest()), (None, 0));
        store.give_back(4 * ALIGN, ALIGN);
        assert_eq!(store.take(ALIGN + 1), None);
        assert_eq!(store.take(ALIGN), Some(4 * ALIGN));
    }

    /// A part can be had where it was, and only there, and only if nobody has any of it.
    #[test]
    fn a_part_in_its_place() {
        let mut store = Store::new(10 * ALIGN, ALIGN);
        assert!(store.take_at(4 * ALIGN, 2 * ALIGN));
        assert!(!store.take_at(3 * ALIGN, ALIGN + 1) && !store.take_at(5 * ALIGN, ALIGN));
        assert!(!store.take_at(ALIGN + 1, 1), "parts are aligned");
        assert!(!store.take_at(9 * ALIGN, ALIGN + 1) && !store.take_at(u64::MAX, 2));
        assert!(store.take_at(3 * ALIGN, ALIGN) && store.take_at(6 * ALIGN, 4 * ALIGN));
        assert_eq!(store.take(3 * ALIGN), Some(0));
        assert_eq!(store.largest(), 0);
        store.give_back(4 * ALIGN, 2 * ALIGN);
        assert!(store.take_at(4 * ALIGN, 2 * ALIGN));
    }

    proptest! {
        #[test]
        fn parts_never_overlap(wants in prop::collection::vec((1..40_000_u64, any::<bool>()), 1..40)) {
            let mut store = Store::new(100_000, ALIGN);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (bytes, give_back) in wants {
                if give_back && let Some((start, bytes)) = held.pop() {
                    store.give_back(start, bytes);
                }
                if let Some(start) = store.take(bytes) {
                    prop_assert!(start + bytes <= 100_000);
                    prop_assert!(held.iter().all(|(s, b)| start + bytes <= *s || s + b <= start));
                    held.push((start, bytes));
                }
            }
            for (start, bytes) in held {
                store.give_back(start, bytes);
            }
            prop_assert_eq!(store.largest(), 100_000);
        }
    }
}
