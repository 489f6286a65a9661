//! How an lcore spends its time, written by it alone and read by anyone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::{GAP_NS_MIN, GAP_OLD_NS};

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
    /// for so long nobody was heard. Nanoseconds; gaps below [`GAP_NS_MIN`] do not count.
    pub longest_gap_ns: u64,
    /// The one of these gaps that ended lately and was long.
    pub recent_gap: Gap,
}

/// A time for which an lcore did not poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// When it ended, nanoseconds of the lcore's clock.
    pub ended: u64,
    /// How long it was, nanoseconds; 0: there was none.
    pub ns: u64,
}

impl Gap {
    /// Takes in another one, which ends now: it is kept where it is longer, or the one before has become old.
    pub const fn note(&mut self, other: Self) {
        if other.ns >= self.ns || other.ended.saturating_sub(self.ended) > GAP_OLD_NS {
            *self = other;
        }
    }
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
            recent_gap: self.recent_gap,
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
    recent_gap_ended: AtomicU64,
    recent_gap_ns: AtomicU64,
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
            recent_gap: Gap {
                ended: load(&self.0.recent_gap_ended),
                ns: load(&self.0.recent_gap_ns),
            },
        }
    }
}

/// The writing half, owned by the lcore: for a loop of its own kind as well as for [`Lcore`](crate::Lcore).
#[derive(Debug, Default)]
pub struct Meter {
    stats: Stats,
    /// Start of the current loop, and whether it found work.
    current: Option<(u64, bool)>,
    /// When the lcore last looked at its devices and nodes, and how long it has meant to nap since.
    looked: Option<u64>,
    allowed_ns: u64,
    published: StatsReader,
}

impl Meter {
    /// Of an lcore that has done nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// For whoever wants to know.
    pub fn reader(&self) -> StatsReader {
        self.published.clone()
    }

    /// Accounts for the loop that began at `now` and found `work`: plain stores, and no second look at the clock. The
    /// time up to the next loop is this one's.
    #[inline]
    pub fn publish(&mut self, now: u64, work: usize) {
        self.account(now, 1, work);
        self.show();
    }

    /// The same for so many loops, of which nobody is told before [`Meter::show`].
    #[inline]
    pub fn account(&mut self, now: u64, polls: u64, work: usize) {
        let elapsed = self
            .current
            .replace((now, work > 0))
            .map_or((0, false), |(start, busy)| (now.saturating_sub(start), busy));
        match elapsed {
            (ns, true) => self.stats.busy_ns += ns,
            (ns, false) => self.stats.idle_ns += ns,
        }
        self.stats.polls += polls;
        self.stats.busy_polls += u64::from(work > 0);
        self.stats.work += work as u64;
    }

    /// What has been accounted for.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The lcore is about to look at its devices and nodes: they may ask how long it has not.
    #[inline]
    pub fn look(&mut self, now: u64) {
        let since = self.looked.replace(now).map_or(0, |looked| now.saturating_sub(looked));
        let gap_ns = since.saturating_sub(std::mem::take(&mut self.allowed_ns));
        if gap_ns >= GAP_NS_MIN {
            self.gap(Gap { ended: now, ns: gap_ns });
        }
    }

    /// It did something else since it last looked: that is no gap.
    pub fn excuse(&mut self) {
        self.looked = None;
    }

    /// Accounts for a nap of at most `allowed_ns` within the current loop.
    pub fn nap(&mut self, allowed_ns: u64) {
        self.stats.naps += 1;
        self.allowed_ns = allowed_ns;
    }

    #[cold]
    fn gap(&mut self, gap: Gap) {
        let store = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
        self.stats.recent_gap.note(gap);
        self.stats.longest_gap_ns = self.stats.longest_gap_ns.max(gap.ns);
        store(&self.published.0.longest_gap_ns, self.stats.longest_gap_ns);
        store(&self.published.0.recent_gap_ended, self.stats.recent_gap.ended);
        store(&self.published.0.recent_gap_ns, self.stats.recent_gap.ns);
    }

    /// Tells what was accounted for: plain stores.
    #[inline]
    pub fn show(&self) {
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
        assert_eq!(stats, Stats { polls: 4, busy_polls: 2, work: 6, naps: 1, ..busy_and_idle });
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
            Stats { polls: 1, busy_polls: 1, work: 5, idle_ns: 30, ..Stats::default() }
        );
    }

    /// S3-10: who stood still for longer than it meant to has not heard its peers meanwhile.
    #[test]
    fn a_gap_is_what_no_nap_explains() {
        const MS: u64 = 1_000_000;
        let mut meter = Meter::new();
        let reader = meter.reader();
        meter.look(MS);
        meter.nap(5 * MS);
        meter.look(6 * MS);
        assert_eq!(reader.read().longest_gap_ns, 0);
        meter.nap(5 * MS);
        meter.look(91 * MS);
        let gap = Gap { ended: 91 * MS, ns: 80 * MS };
        assert_eq!((reader.read().longest_gap_ns, reader.read().recent_gap), (gap.ns, gap));
        // The nap belonged to that loop alone.
        meter.look(175 * MS);
        let long = reader.read();
        assert_eq!(long.longest_gap_ns, 84 * MS);
        meter.look(180 * MS);
        assert_eq!(reader.read().since(&long).longest_gap_ns, 0);
        assert_eq!(reader.read().recent_gap.ns, 84 * MS, "it was longer, and not long ago");
    }

    #[test]
    fn a_gap_is_kept_until_a_longer_one_comes_or_it_is_old() {
        let mut kept = Gap::default();
        kept.note(Gap { ended: 10, ns: 80 });
        kept.note(Gap { ended: 20, ns: 5 });
        assert_eq!(kept, Gap { ended: 10, ns: 80 });
        kept.note(Gap { ended: 30, ns: 80 });
        assert_eq!(kept, Gap { ended: 30, ns: 80 });
        let late = Gap { ended: 31 + GAP_OLD_NS, ns: 5 };
        kept.note(late);
        assert_eq!(kept, late);
    }
}
