//! Communication ids: which place in a table a number means, and whether it still means it.

const SLOT_BITS: u32 = 16;
const SLOT: u32 = (1 << SLOT_BITS) - 1;

/// Numbers of a table's places. A number is place and generation under a mask, so that a place that is
/// used again is told apart and numbers of one run mean nothing in the next; it is never 0, which on
/// the wire is nobody.
#[derive(Debug)]
pub(super) struct Numbers {
    mask: u32,
    generations: Box<[u16]>,
}

impl Numbers {
    #[expect(clippy::cast_possible_truncation, reason = "parts of a random number are meant")]
    pub(super) fn new(places: usize, seed: u64) -> Self {
        let (mask, generation) = (seed as u32, (seed >> 32) as u16);
        let mut numbers = Self { mask, generations: vec![generation; places].into() };
        numbers.avoid_zero(mask & SLOT);
        numbers
    }

    /// The number of a place until it is retired.
    pub(super) fn number(&self, slot: u32) -> u32 {
        let generation = self.generations.get(slot as usize).copied().unwrap_or_default();
        (u32::from(generation) << SLOT_BITS | slot) ^ self.mask
    }

    /// The place that a number means, if it means one.
    pub(super) const fn slot(&self, number: u32) -> u32 {
        (number ^ self.mask) & SLOT
    }

    /// The place is free: its number shall not mean the next one.
    pub(super) fn retire(&mut self, slot: u32) {
        if let Some(generation) = self.generations.get_mut(slot as usize) {
            *generation = generation.wrapping_add(1);
            self.avoid_zero(slot);
        }
    }

    /// One generation of one place would be 0 under the mask.
    fn avoid_zero(&mut self, slot: u32) {
        if self.number(slot) == 0
            && let Some(generation) = self.generations.get_mut(slot as usize)
        {
            *generation = generation.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_used_again_has_another_number_and_none_is_0() {
        for seed in [0, 1, 0x1234_5678_9abc_def0, 3 << 32, 7 << 32 | 7 << 16 | 2, 6 << 32 | 7 << 16]
        {
            let mut numbers = Numbers::new(8, seed);
            let mut seen = Vec::new();
            for slot in (0..8).chain(0..8) {
                let number = numbers.number(slot);
                assert_eq!(numbers.slot(number), slot);
                assert_ne!(number, 0, "seed {seed:#x}");
                seen.push(number);
                numbers.retire(slot);
            }
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 16, "seed {seed:#x}");
        }
    }
}
