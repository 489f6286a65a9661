//! The one source of chance: xoshiro256++ (Blackman and Vigna), seeded by SplitMix64.

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        let state = core::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let out = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        self.state = [a ^ d ^ b, b ^ c ^ a, c ^ a ^ (b << 17), (d ^ b).rotate_left(45)];
        out
    }

    /// 32 random bits.
    pub fn bits32(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// An index below `len`; 0 when `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or_default()
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `parts` times in a million.
    pub fn chance(&mut self, parts: u32) -> bool {
        self.below(1_000_000) < u64::from(parts)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }

    /// A generator of its own, for a part of the world.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_a_sequence() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.bits(), rng.bits(), rng.bits()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_stay_in_range_and_reach_both_ends() {
        let mut rng = Rng::new(3);
        let draws: Vec<_> = (0..1000).map(|_| rng.between(2, 5)).collect();
        assert_eq!(draws.iter().min(), Some(&2));
        assert_eq!(draws.iter().max(), Some(&5));
        assert!(!rng.chance(0));
        assert!(rng.chance(1_000_000));
        assert_eq!(rng.below(0), 0);
    }
}
