//! Latencies, counted in place.

use serde::{Deserialize, Serialize};

use crate::limits::{LATENCY_DIGITS, LATENCY_NS_MAX};

/// A latency histogram of fixed size: about 200 KiB, all of it allocated by [`Histogram::new`], of which a steady
/// workload touches a few cache lines.
///
/// Percentiles are accurate to 0.1 %; minimum and maximum are exact.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: hdrhistogram::Histogram<u64>,
    ns_min: u64,
    ns_max: u64,
}

impl Histogram {
    /// An empty histogram from 1 ns to [`LATENCY_NS_MAX`].
    pub fn new() -> Self {
        let counts = hdrhistogram::Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS);
        Self { counts: counts.expect("constant bounds are in range"), ns_min: u64::MAX, ns_max: 0 }
    }

    /// Counts one latency, in nanoseconds. Never allocates.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        self.counts.saturating_record(latency_ns);
        self.ns_min = self.ns_min.min(latency_ns);
        self.ns_max = self.ns_max.max(latency_ns);
    }

    /// Adds what `other` has counted, as if it had been recorded here.
    pub fn merge(&mut self, other: &Self) {
        self.counts.add(&other.counts).expect("all histograms have the same bounds");
        self.ns_min = self.ns_min.min(other.ns_min);
        self.ns_max = self.ns_max.max(other.ns_max);
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.counts.reset();
        self.ns_min = u64::MAX;
        self.ns_max = 0;
    }

    /// How many latencies were recorded.
    pub fn len(&self) -> u64 {
        self.counts.len()
    }

    /// Whether none was recorded.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The latency in nanoseconds that a share of `quantile` (0.0 to 1.0) did not exceed; 0 where nothing was recorded.
    pub fn quantile(&self, quantile: f64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        // A bucket answers with its upper edge, which may lie outside of what was recorded.
        self.counts.value_at_quantile(quantile).clamp(self.ns_min, self.ns_max)
    }

    /// The usual figures; all zero where nothing was recorded.
    pub fn latency(&self) -> Latency {
        Latency {
            min: if self.is_empty() { 0 } else { self.ns_min },
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: self.ns_max,
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The figures of a [`Histogram`] that reports carry, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Shortest, exact.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// 999 of 1000 took no longer.
    pub p999: u64,
    /// Longest, exact.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Within 0.1 % of `expected`.
    fn close(value: u64, expected: u64) -> bool {
        value.abs_diff(expected) <= expected / 1000
    }

    #[test]
    fn empty_is_all_zero() {
        let histogram = Histogram::new();
        assert!(histogram.is_empty());
        assert_eq!(histogram.latency(), Latency::default());
    }

    #[test]
    fn percentiles_of_a_ramp() {
        let mut histogram = Histogram::new();
        // In reverse, so that the result cannot depend on order.
        (1..=10_000).rev().for_each(|us: u64| histogram.record(us * 1000));
        let latency = histogram.latency();
        assert_eq!(histogram.len(), 10_000);
        assert_eq!((latency.min, latency.max), (1_000, 10_000_000));
        assert!(close(latency.p50, 5_000_000), "{latency:?}");
        assert!(close(latency.p99, 9_900_000), "{latency:?}");
        assert!(close(latency.p999, 9_990_000), "{latency:?}");
    }

    #[test]
    fn one_value_is_every_percentile() {
        let mut histogram = Histogram::new();
        histogram.record(1_234_567);
        let only = 1_234_567;
        assert_eq!(
            histogram.latency(),
            Latency { min: only, p50: only, p99: only, p999: only, max: only }
        );
    }

    #[test]
    fn zero_and_beyond_the_bound_are_counted_and_kept_exact() {
        let mut histogram = Histogram::new();
        histogram.record(0);
        histogram.record(LATENCY_NS_MAX * 10);
        assert_eq!(histogram.len(), 2);
        assert_eq!(histogram.latency().min, 0);
        assert_eq!(histogram.latency().max, LATENCY_NS_MAX * 10);
        assert!(histogram.latency().p999 >= LATENCY_NS_MAX);
    }

    #[test]
    fn merging_equals_recording_in_one() {
        let (mut left, mut right, mut both) =
            (Histogram::new(), Histogram::new(), Histogram::new());
        for ns in 1..=500 {
            left.record(ns);
            right.record(ns * 7919);
            both.record(ns);
            both.record(ns * 7919);
        }
        left.merge(&right);
        assert_eq!(left.latency(), both.latency());
        assert_eq!(left.len(), 1000);
    }

    #[test]
    fn recording_keeps_the_size_and_clearing_empties() {
        let mut histogram = Histogram::new();
        let size = histogram.counts.distinct_values();
        (0..64).for_each(|shift| histogram.record(1 << shift));
        assert_eq!(histogram.counts.distinct_values(), size);
        histogram.clear();
        assert_eq!(histogram.latency(), Latency::default());
    }
}
