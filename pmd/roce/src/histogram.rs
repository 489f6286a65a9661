//! A histogram of durations in powers of two.

use core::time::Duration;

/// Powers of two of nanoseconds, up to 2^42 ns, which is over an hour.
const BUCKETS: usize = 43;

/// How often something took how long, to a factor of two. Recording is one store beside the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u32; BUCKETS],
    sum: Duration,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: Duration::ZERO, max: Duration::ZERO }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - nanos.leading_zeros()) as usize;
        let count = &mut self.counts[bucket.min(BUCKETS - 1)];
        *count = count.saturating_add(1);
        self.sum = self.sum.saturating_add(took);
        self.max = self.max.max(took);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// All of them together.
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// The longest one, exactly.
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// The buckets that are not empty, in order: the bound below which its durations are, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let bucket = |(index, count): (usize, &u32)| (bound(index), u64::from(*count));
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(bucket)
    }

    /// A bound that this part of them, 0 to 1, does not exceed; the true value is at least half of it.
    /// `None` when there are none.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let all = self.count();
        #[expect(clippy::cast_precision_loss, reason = "a part of a count needs no last digit")]
        let wanted = part * all as f64;
        let mut seen = 0;
        self.buckets()
            .find(|(_, count)| {
                seen += count;
                #[expect(clippy::cast_precision_loss, reason = "as above")]
                let reached = seen as f64 >= wanted;
                reached
            })
            .map(|(bound, _)| bound.min(self.max))
    }
}

fn bound(bucket: usize) -> Duration {
    Duration::from_nanos(1 << bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_factor_of_two() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.count()), (None, 0));
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        assert_eq!(histogram.count(), 1000);
        assert_eq!(histogram.sum(), Duration::from_micros(500_500));
        assert_eq!(histogram.max(), Duration::from_millis(1));
        for (part, micros) in [(0.01, 10), (0.5, 500), (0.99, 990)] {
            let (truth, bound) = (Duration::from_micros(micros), histogram.quantile(part).unwrap());
            assert!(truth <= bound && bound <= 2 * truth, "{part}: {bound:?}");
        }
        assert_eq!(histogram.quantile(1.0), Some(Duration::from_millis(1)));
    }

    #[test]
    fn nothing_is_too_short_or_too_long() {
        let mut histogram = Histogram::default();
        for took in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX, Duration::MAX] {
            histogram.record(took);
        }
        let buckets: Vec<_> =
            histogram.buckets().map(|(bound, count)| (bound.as_nanos(), count)).collect();
        assert_eq!(buckets, [(1, 1), (2, 1), (1 << 42, 2)]);
        assert_eq!(histogram.max(), Duration::MAX);
    }
}
