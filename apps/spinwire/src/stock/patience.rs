//! How long a peer is waited for, by a process that may have been stopped itself meanwhile.

use std::time::{Duration, Instant};

use pmd_observe::report::Nanos;
use pmd_observe::{Code, Owner, Verdict};

use super::failure::Failure;

/// Two looks so far apart are none of a loop that only waits: it was stopped, or had no core.
const STOOD: Duration = Duration::from_millis(500);
/// Who stood still for so long may have been given up for it.
const GIVEN_UP: Duration = Duration::from_secs(2);

/// A wait. The time that this process itself stood still is not the peer's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    limit: Duration,
    since: Instant,
    looked: Instant,
    stood: Duration,
}

impl Patience {
    /// Begins to wait for at most `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        let now = Instant::now();
        Self { limit, since: now, looked: now, stood: Duration::ZERO }
    }

    /// Whether it has waited for long enough. To be asked at each look.
    pub(super) fn is_over(&mut self) -> bool {
        self.looks(Instant::now())
    }

    fn looks(&mut self, now: Instant) -> bool {
        let gap = now.saturating_duration_since(self.looked);
        self.looked = now;
        if gap > STOOD {
            self.stood += gap;
            self.since += gap;
        }
        now.saturating_duration_since(self.since) > self.limit
    }

    /// A failure that was met, which may be this end's own: peers give up who stands still.
    pub(super) fn judge(mut self, failure: Failure) -> Failure {
        self.looks(Instant::now());
        let silence = [Code::PeerDead, Code::LinkDead, Code::ResponderSlow];
        if self.stood < GIVEN_UP || !silence.contains(&failure.verdict.code) {
            return failure;
        }
        let stood = Nanos(u64::try_from(self.stood.as_nanos()).unwrap_or(u64::MAX));
        let summary = format!("this end stood still for {stood}, and its peer gave it up");
        let verdict = Verdict::new(Code::ResponderSlow, Owner::Local, summary);
        let facts = [failure.verdict.summary].into_iter().chain(failure.verdict.evidence);
        Failure { verdict: facts.fold(verdict, Verdict::because), ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S3-10: the time of one's own standstill is not waited, and is named where a peer has left meanwhile.
    #[test]
    fn who_was_stopped_does_not_blame_the_peer() {
        let mut patience = Patience::new(Duration::from_secs(10));
        let start = patience.since;
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(!patience.looks(at(400)));
        assert!(!patience.looks(at(60_400)), "a minute that nobody waited");
        let mut late = patience;
        for ms in (60_800..70_000).step_by(400) {
            assert!(!late.looks(at(ms)), "{ms}");
        }
        assert!(late.looks(at(70_100)));
        let dead = || Failure::remote(Code::PeerDead, "the server has disconnected");
        let fresh = Patience::new(Duration::from_secs(10)).judge(dead()).verdict;
        assert_eq!((fresh.code, fresh.owner), (Code::PeerDead, Owner::Remote));
        let patience = Patience { looked: Instant::now(), ..patience };
        let told = patience.judge(dead()).verdict;
        assert_eq!((told.code, told.owner), (Code::ResponderSlow, Owner::Local));
        assert!(told.summary.starts_with("this end stood still for 60"), "{told}");
        assert!(told.evidence.contains(&"the server has disconnected".to_owned()), "{told}");
    }
}
