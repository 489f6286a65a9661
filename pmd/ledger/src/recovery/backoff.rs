//! How long to wait before the next attempt.

/// Waits that double up to a limit, of which a random half is left out, so that many connections that failed together do
/// not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second attempt, at most. The first is made at once.
    pub first_ns: u64,
    /// Before any later one, at most.
    pub max_ns: u64,
}

impl Backoff {
    /// The wait before an attempt, counted from 0. `random` is any 64 bits.
    pub fn delay_ns(self, attempt: u32, random: u64) -> u64 {
        let Some(doublings) = attempt.checked_sub(1) else { return 0 };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let whole = self.first_ns.saturating_mul(factor).min(self.max_ns);
        let half = whole / 2;
        whole - half + random.checked_rem(half + 1).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_differ_by_chance() {
        let backoff = Backoff { first_ns: 100, max_ns: 1000 };
        let most = |attempt| backoff.delay_ns(attempt, 50);
        assert_eq!([0, 1].map(most), [0, 100]);
        for (attempt, whole) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (200, 1000)] {
            for random in [0, 1, 77, u64::MAX] {
                let delay = backoff.delay_ns(attempt, random);
                assert!((whole / 2..=whole).contains(&delay), "{attempt} {random}: {delay}");
            }
        }
        assert_ne!(backoff.delay_ns(3, 1), backoff.delay_ns(3, 2));
        assert_eq!(Backoff { first_ns: 0, max_ns: 0 }.delay_ns(9, 7), 0);
    }
}
