//! Whether requests to a peer get anywhere.

use std::time::Duration;

use super::comeback::nanoseconds;

/// Looks in so many are needed before it is a standstill: a process that was itself stopped for a while counts that as one.
const LOOKS: u64 = 4;

/// How long nothing has ended although something is under way. Retries can last for ever; a run must not.
#[derive(Debug)]
pub(super) struct Stall {
    /// `None`: for as long as it likes.
    limit: Option<u64>,
    /// Nanoseconds so far.
    quiet: u64,
    /// Of the last look.
    seen: u64,
}

impl Stall {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self { limit: limit.map(nanoseconds), quiet: 0, seen: 0 }
    }

    /// Something has ended, or nothing is under way.
    #[inline]
    pub(super) fn progress(&mut self, now: u64) {
        (self.quiet, self.seen) = (0, now);
    }

    /// Nothing has ended since the last look. Returns for how long, if that is too long.
    pub(super) fn look(&mut self, now: u64) -> Option<u64> {
        let limit = self.limit?;
        let since = now.saturating_sub(self.seen).min(limit.div_ceil(LOOKS));
        (self.quiet, self.seen) = (self.quiet.saturating_add(since), now);
        (self.quiet >= limit).then_some(self.quiet)
    }

    /// When to look again, while something is under way.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        let limit = self.limit?;
        Some(self.seen.saturating_add(limit.div_ceil(LOOKS).min(limit.saturating_sub(self.quiet))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_noticed_in_time() {
        let mut stall = Stall::new(Some(Duration::from_nanos(400)));
        stall.progress(1000);
        assert_eq!(stall.next_timeout(), Some(1100));
        for now in [1100, 1200, 1300] {
            assert_eq!(stall.look(now), None);
        }
        assert_eq!((stall.look(1399), stall.next_timeout()), (None, Some(1400)));
        assert_eq!(stall.look(1400), Some(400));
        stall.progress(1500);
        assert_eq!((stall.look(1600), stall.next_timeout()), (None, Some(1700)));
    }

    /// Whoever did not look for a long time does not know what happened meanwhile.
    #[test]
    fn who_slept_does_not_blame_the_peer() {
        let mut stall = Stall::new(Some(Duration::from_nanos(400)));
        stall.progress(1000);
        assert_eq!(stall.look(1_000_000), None);
        assert_eq!(stall.look(1_000_100), None);
        assert_eq!(stall.look(1_000_200), None);
        assert_eq!(stall.look(1_000_300), Some(400));
    }

    #[test]
    fn who_waits_for_ever_notices_nothing() {
        let mut stall = Stall::new(None);
        assert_eq!((stall.look(u64::MAX), stall.next_timeout()), (None, None));
    }
}
