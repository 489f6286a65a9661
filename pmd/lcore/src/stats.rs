//! How an lcore spends its time, written by it alone and read by anyone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What an lcore has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Loops.
    pub polls: u64,
    /// Loops that found work.
    pub busy_polls: u64,
    /// Units of work: frames, messages, completions.
    pub work: u64,
    /// Nanoseconds in loops that found work.
    pub busy_ns: u64,
    /// Nanoseconds in loops that found none, naps included.
    pub idle_ns: u64,
    /// Naps taken.
    pub naps: u64,
    /// The longest time between the starts of two loops that followed each other, beyond a nap that the first was allowed:
    /// for so long nobody was heard. Nanoseconds.
    pub longest_gap_ns: u64,
}

impl Stats {
    /// The share of time spent in loops that found work, from 0.0 to 1.0.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share for people, of spans far below 2^53 ns"
    )]
    pub fn busy_share(&self) -> f64 {
        match self.busy_ns + self.idle_ns {
            0 => 0.0,
            total => self.busy_ns as f64 / total as f64,
        }
    }

    /// What has happened since `earlier`, a reading of the same lcore. A gap that is no longer than one before is not
    /// known any more, and counts as none.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            polls: self.polls.wrapping_sub(earlier.polls),
            busy_polls: self.busy_polls.wrapping_sub(earlier.busy_polls),
            work: self.work.wrapping_sub(earlier.work),
            busy_ns: self.busy_ns.wrapping_sub(earlier.busy_ns),
            idle_ns: self.idle_ns.wrapping_sub(earlier.idle_ns),
            naps: self.naps.wrapping_sub(earlier.naps),
            longest_gap_ns: if self.longest_gap_ns > earlier.longest_gap_ns {
                self.longest_gap_ns
            } else {
                0
            },
        }
    }
}

/// On cache lines of its own, so that a reader disturbs nothing but these.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Published {
    polls: AtomicU64,
    busy_polls: AtomicU64,
    work: AtomicU64,
    busy_ns: AtomicU64,
    idle_ns: AtomicU64,
    naps: AtomicU64,
    longest_gap_ns: AtomicU64,
}

/// Reads one lcore's statistics from any thread.
#[derive(Clone, Debug, Default)]
pub struct StatsReader(Arc<Published>);

impl StatsReader {
    /// The figures now. Each is exact; they may be one poll apart from each other.
    pub fn read(&self) -> Stats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            polls: load(&self.0.polls),
            busy_polls: load(&self.0.busy_polls),
            work: load(&self.0.work),
            busy_ns: load(&self.0.busy_ns),
            idle_ns: load(&self.0.idle_ns),
            naps: load(&self.0.naps),
            longest_gap_ns: load(&self.0.longest_gap_ns),
        }
    }
}

/// The writing half, owned by the lcore.
#[derive(Debug)]
pub(crate) struct Meter {
    stats: Stats,
    /// Start of the current loop, and whether it found work.
    current: Option<(u64, bool)>,
    /// How long the current loop may nap.
    allowed_ns: u64,
    published: StatsReader,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            stats: Stats::default(),
            current: None,
            allowed_ns: 0,
            published: StatsReader::default(),
        }
    }

    pub(crate) fn reader(&self) -> StatsReader {
        self.published.clone()
    }

    /// Accounts for the loop that began at `now` and found `work`: plain stores, and no second look at the clock. The
    /// time up to the next loop is this one's.
    #[inline]
    pub(crate) fn publish(&mut self, now: u64, work: usize) {
        let elapsed = self
            .current
            .replace((now, work > 0))
            .map_or((0, false), |(start, busy)| (now.saturating_sub(start), busy));
        match elapsed {
            (ns, true) => self.stats.busy_ns += ns,
            (ns, false) => self.stats.idle_ns += ns,
        }
        self.stats.polls += 1;
        self.stats.busy_polls += u64::from(work > 0);
        self.stats.work += work as u64;
        self.store();
        let gap_ns = elapsed.0.saturating_sub(self.allowed_ns);
        self.allowed_ns = 0;
        if gap_ns > self.stats.longest_gap_ns {
            self.longest_gap(gap_ns);
        }
    }

    /// Accounts for a nap of at most `allowed_ns` within the current loop.
    pub(crate) fn nap(&mut self, allowed_ns: u64) {
        self.stats.naps += 1;
        self.allowed_ns = allowed_ns;
    }

    #[cold]
    fn longest_gap(&mut self, gap_ns: u64) {
        self.stats.longest_gap_ns = gap_ns;
        self.published.0.longest_gap_ns.store(gap_ns, Ordering::Relaxed);
    }

    #[inline]
    fn store(&self) {
        let store = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
        store(&self.published.0.polls, self.stats.polls);
        store(&self.published.0.busy_polls, self.stats.busy_polls);
        store(&self.published.0.work, self.stats.work);
        store(&self.published.0.busy_ns, self.stats.busy_ns);
        store(&self.published.0.idle_ns, self.stats.idle_ns);
        store(&self.published.0.naps, self.stats.naps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_belongs_to_the_loop_that_it_passed_in() {
        let mut meter = Meter::new();
        let reader = meter.reader();
        assert_eq!(reader.read(), Stats::default());
        meter.publish(1_000, 4);
        meter.publish(1_300, 0);
        meter.nap(950);
        meter.publish(2_300, 2);
        meter.publish(2_400, 0);
        let stats = reader.read();
        let busy_and_idle = Stats { busy_ns: 400, idle_ns: 1_000, ..Stats::default() };
        assert_eq!(
            stats,
            Stats {
                polls: 4,
                busy_polls: 2,
                work: 6,
                naps: 1,
                longest_gap_ns: 300,
                ..busy_and_idle
            }
        );
        assert!((stats.busy_share() - 400.0 / 1_400.0).abs() < 1e-12);
    }

    #[test]
    fn share_of_no_time_is_zero() {
        assert_eq!(Stats::default().busy_share().to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn readings_subtract() {
        let mut meter = Meter::new();
        meter.publish(0, 1);
        meter.publish(10, 0);
        let earlier = meter.reader().read();
        meter.publish(40, 5);
        let moved = meter.reader().read().since(&earlier);
        assert_eq!(
            moved,
            Stats {
                polls: 1,
                busy_polls: 1,
                work: 5,
                idle_ns: 30,
                longest_gap_ns: 30,
                ..Stats::default()
            }
        );
    }

    /// S3-10: who stood still for longer than it meant to has not heard its peers meanwhile.
    #[test]
    fn a_gap_is_what_no_nap_explains() {
        let mut meter = Meter::new();
        let reader = meter.reader();
        meter.publish(1_000, 0);
        meter.nap(50_000);
        meter.publish(51_000, 0);
        assert_eq!(reader.read().longest_gap_ns, 0);
        meter.nap(50_000);
        meter.publish(901_000, 1);
        assert_eq!(reader.read().longest_gap_ns, 800_000);
        // The nap belonged to that loop alone.
        meter.publish(1_741_000, 0);
        let long = reader.read();
        assert_eq!(long.longest_gap_ns, 840_000);
        meter.publish(1_751_000, 0);
        assert_eq!(reader.read().since(&long).longest_gap_ns, 0);
        meter.publish(2_651_000, 0);
        assert_eq!(reader.read().since(&long).longest_gap_ns, 900_000);
    }
}
