//! Which request comes next.

use super::zipf::Zipf;
use crate::kv::Operation;

/// Numbers that follow from a seed: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// From a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Two numbers of 32 bits each.
    pub(super) fn next(&mut self) -> (u32, u32) {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let halves = ((z >> 32) as u32, z as u32);
        halves
    }
}

/// Draws requests over some keys, numbered from 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    random: Random,
    keys: u32,
    zipf: Option<Zipf>,
    /// Requests that are GETs, in percent.
    get: u32,
}

impl Draw {
    /// Over `keys` keys, at least one; the first ones are popular if `zipf`, else all are alike.
    pub(super) fn new(seed: u64, keys: u32, zipf: bool, get: u32) -> Self {
        let zipf = zipf.then(|| Zipf::new(keys));
        Self { random: Random::new(seed), keys, zipf, get }
    }

    /// The next request.
    pub(super) fn next(&mut self) -> (Operation, u32) {
        let (which, how) = self.random.next();
        let operation = if scaled(how, 100) < self.get { Operation::Get } else { Operation::Put };
        let key = match self.zipf {
            None => scaled(which, self.keys),
            Some(zipf) => zipf.rank(|| self.random.next().0),
        };
        (operation, key)
    }
}

/// A number of 32 bits brought to 0..`to`.
fn scaled(number: u32, to: u32) -> u32 {
    ((u64::from(number) * u64::from(to)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, keys: u32, zipf: bool, get: u32) -> Vec<(Operation, u32)> {
        let mut draw = Draw::new(seed, keys, zipf, get);
        (0..10_000).map(|_| draw.next()).collect()
    }

    #[test]
    fn one_seed_gives_one_order_of_requests() {
        for zipf in [false, true] {
            assert_eq!(drawn(3, 100, zipf, 50), drawn(3, 100, zipf, 50));
            assert_ne!(drawn(3, 100, zipf, 50), drawn(4, 100, zipf, 50));
        }
    }

    #[test]
    fn gets_have_their_share_and_keys_are_drawn_over_their_range() {
        for get in [0, 1, 50, 95, 100] {
            let gets =
                drawn(1, 8, false, get).iter().filter(|(op, _)| *op == Operation::Get).count();
            assert!(gets.abs_diff(get as usize * 100) <= 250, "{get} %: {gets} of 10000");
            assert!((get == 0) == (gets == 0) && (get == 100) == (gets == 10_000), "{gets}");
        }
        let mut counts = [0_u32; 8];
        for (_, key) in drawn(1, 8, false, 50) {
            counts[key as usize] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(1250) < 200), "{counts:?}");
        assert!(drawn(1, 8, true, 50).iter().filter(|(_, key)| *key == 0).count() > 3000);
    }
}
