//! Which session has which keys.

use super::table::Owner;

/// A range of keys that belongs to one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    /// First key.
    pub(super) first: u64,
    /// How many there are.
    pub(super) keys: u64,
    /// Tells it from every other range, also of the same keys before it.
    pub(super) owner: Owner,
}

impl Range {
    /// Whether a key belongs to it.
    pub(super) fn holds(&self, key: u64) -> bool {
        key.wrapping_sub(self.first) < self.keys
    }
}

/// Gives ranges out, each the first gap that is large enough: sessions that come one after the other have the same keys.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// In ascending order.
    taken: Vec<Range>,
    owners: Owner,
}

impl Ranges {
    /// A range of `keys` keys; `None` if there are not so many left in 64 bits.
    pub(super) fn take(&mut self, keys: u64) -> Option<Range> {
        let (mut first, mut place) = (0_u64, self.taken.len());
        for (index, range) in self.taken.iter().enumerate() {
            if range.first - first >= keys {
                place = index;
                break;
            }
            first = range.first + range.keys;
        }
        first.checked_add(keys)?;
        self.owners = self.owners.checked_add(1).unwrap_or(1);
        let range = Range { first, keys, owner: self.owners };
        self.taken.insert(place, range);
        Some(range)
    }

    /// The session of this range has ended.
    pub(super) fn give_back(&mut self, range: &Range) {
        self.taken.retain(|taken| taken.owner != range.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back() {
        let mut ranges = Ranges::default();
        let take = |ranges: &mut Ranges, keys| ranges.take(keys).unwrap();
        let (a, b) = (take(&mut ranges, 10), take(&mut ranges, 5));
        assert_eq!((a.first, b.first), (0, 10));
        assert_eq!((a.holds(0), a.holds(9), a.holds(10), b.holds(9)), (true, true, false, false));
        ranges.give_back(&a);
        let (c, d, e) = (take(&mut ranges, 11), take(&mut ranges, 4), take(&mut ranges, 6));
        assert_eq!((c.first, d.first, e.first), (15, 0, 4), "the first gap that fits");
        let mut owners: Vec<Owner> = [a, b, c, d, e].map(|range| range.owner).to_vec();
        owners.sort_unstable();
        owners.dedup();
        assert_eq!(owners.len(), 5, "the same keys, another owner");
        assert_eq!(ranges.take(u64::MAX), None);
    }
}
