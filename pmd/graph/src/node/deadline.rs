//! Whether the oldest of several requests has waited for too long.

use std::time::Duration;

use crate::block::unanswered;
use crate::edge::{Line, Pulse};
use crate::failure::Failure;

/// How long the oldest request may wait for its answer.
///
/// Requests have no order here and no timer of their own: the oldest is looked for when it could be overdue, which is seldom.
/// Whoever finds that it is looks once more, an eighth of the limit later: what came while this end was itself kept from its
/// core lies unread until then.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// In nanoseconds; `None`: for as long as it likes.
    limit: Option<u64>,
    /// What began before counts from here; `None` before the first look.
    from: Option<u64>,
    /// When the oldest could be overdue.
    next: u64,
    noticed: bool,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// Nothing is overdue.
    No,
    /// Something seems to be: whoever else knows of it is to be asked now.
    Perhaps,
    /// Something has waited for so long.
    Yes(Duration),
}

impl Late {
    /// What a client of a store does about it: asks the target how its store does, and gives it up the next time. `store_ms`:
    /// what it last said of that.
    ///
    /// # Errors
    /// The target, or its store, is given up.
    #[inline]
    pub(crate) fn act(
        self,
        line: &Line,
        node: &str,
        store_ms: &mut Option<u64>,
        pulse: &mut Pulse,
    ) -> Result<(), Failure> {
        match self {
            Self::No => {}
            Self::Perhaps => {
                *store_ms = None;
                pulse.want();
            }
            Self::Yes(waited) => return Err(unanswered(line, node, waited, *store_ms)),
        }
        Ok(())
    }
}

impl Deadline {
    /// Zero: a request may wait for ever.
    pub(crate) fn new(limit: Duration) -> Self {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Self { limit: (limit > 0).then_some(limit), from: None, next: 0, noticed: false }
    }

    /// What was asked for is asked for again: it counts from now.
    pub(crate) fn renew(&mut self, now: u64) {
        *self = Self { limit: self.limit, from: Some(now), next: now, noticed: false };
    }

    /// Looks when `oldest`, of the requests that wait, began.
    #[inline]
    pub(crate) fn look(&mut self, now: u64, oldest: impl FnOnce() -> Option<u64>) -> Late {
        let Some(limit) = self.limit else { return Late::No };
        let from = *self.from.get_or_insert(now);
        if now < self.next {
            return Late::No;
        }
        let since = oldest().map_or(now, |began| began.max(from));
        let waited = now.saturating_sub(since);
        if waited < limit {
            (self.noticed, self.next) = (false, since.saturating_add(limit));
            Late::No
        } else if std::mem::replace(&mut self.noticed, true) {
            Late::Yes(Duration::from_nanos(waited))
        } else {
            self.next = now.saturating_add(limit / 8);
            Late::Perhaps
        }
    }

    /// When to look again.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.limit.map(|_| self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline() -> Deadline {
        Deadline::new(Duration::from_nanos(800))
    }

    fn never() -> Option<u64> {
        panic!("nobody has to look yet")
    }

    #[test]
    fn the_oldest_is_found_late_at_the_second_look() {
        let mut deadline = deadline();
        assert_eq!(deadline.look(1000, || Some(1000)), Late::No);
        assert_eq!(deadline.next_timeout(), Some(1800));
        assert_eq!(deadline.look(1799, never), Late::No);
        assert_eq!(deadline.look(1800, || Some(1000)), Late::Perhaps);
        assert_eq!(deadline.look(1899, never), Late::No);
        assert_eq!(deadline.look(1900, || Some(1000)), Late::Yes(Duration::from_nanos(900)));
    }

    #[test]
    fn others_that_are_answered_do_not_hide_it() {
        let mut deadline = deadline();
        assert_eq!(deadline.look(0, || None), Late::No);
        // Meanwhile some were answered, and the one from 100 was not.
        assert_eq!(deadline.look(800, || Some(100)), Late::No);
        assert_eq!(deadline.next_timeout(), Some(900));
        assert_eq!(deadline.look(900, || Some(100)), Late::Perhaps);
        assert_eq!(deadline.look(1000, || Some(100)), Late::Yes(Duration::from_nanos(900)));
    }

    /// What came while this end slept is read before the second look.
    #[test]
    fn who_slept_blames_nobody() {
        let mut deadline = deadline();
        assert_eq!(deadline.look(0, || Some(0)), Late::No);
        assert_eq!(deadline.look(1_000_000, || Some(500)), Late::Perhaps);
        assert_eq!(deadline.look(1_000_100, || Some(1_000_000)), Late::No);
        assert_eq!(deadline.look(1_000_800, || Some(1_000_000)), Late::Perhaps, "all anew");
    }

    #[test]
    fn what_is_asked_again_counts_anew() {
        let mut deadline = deadline();
        assert_eq!(deadline.look(5000, || Some(0)), Late::No, "time begins with the first look");
        assert_eq!(deadline.look(5800, || Some(0)), Late::Perhaps);
        deadline.renew(5850);
        assert_eq!(deadline.look(5900, || Some(0)), Late::No);
        assert_eq!(deadline.next_timeout(), Some(6650));
    }

    #[test]
    fn whoever_may_wait_for_ever_is_never_late() {
        let mut deadline = Deadline::new(Duration::ZERO);
        assert_eq!(deadline.look(u64::MAX, never), Late::No);
        assert_eq!(deadline.next_timeout(), None);
    }
}
