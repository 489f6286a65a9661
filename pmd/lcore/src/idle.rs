//! What an lcore does after a poll that found nothing.

use std::fmt;
use std::str::FromStr;

use crate::limits::{NAP_NS_MAX, NAP_NS_MIN, PAUSE_NS, SPIN_NS, YIELD_NS};

/// The policy, as the configuration names it: `spin | pause | yield | sleep | adaptive`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls again at once: lowest latency, a whole core, also for the sibling hardware thread.
    Spin,
    /// Polls again after a few pause instructions.
    Pause,
    /// Gives the core to whoever else wants it, then polls again.
    Yield,
    /// Naps, up to [`NAP_NS_MAX`].
    Sleep,
    /// Each of these in turn, the longer nothing comes.
    #[default]
    Adaptive,
}

impl Idle {
    /// Every policy.
    pub const ALL: [Self; 5] = [Self::Spin, Self::Pause, Self::Yield, Self::Sleep, Self::Adaptive];

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Pause => "pause",
            Self::Yield => "yield",
            Self::Sleep => "sleep",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no idle policy: write spin, pause, yield, sleep or adaptive")]
pub struct IdleError(String);

impl FromStr for Idle {
    type Err = IdleError;

    fn from_str(name: &str) -> Result<Self, IdleError> {
        Self::ALL
            .into_iter()
            .find(|idle| idle.as_str() == name)
            .ok_or_else(|| IdleError(name.to_owned()))
    }
}

/// What to do before the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing.
    Spin,
    /// A few pause instructions.
    Pause,
    /// Give the core away.
    Yield,
    /// Nap for so many nanoseconds at most.
    Nap(u64),
}

/// Follows one lcore's idle time and applies the policy to it.
#[derive(Debug)]
pub struct Pacer {
    policy: Idle,
    crowded: bool,
    idle_since: Option<u64>,
    nap_ns: u64,
}

impl Pacer {
    /// `crowded`: others want this core too, so that idling must always give it away.
    pub const fn new(policy: Idle, crowded: bool) -> Self {
        Self { policy, crowded, idle_since: None, nap_ns: NAP_NS_MIN }
    }

    /// What to do after the poll at `now` (ns) that found `work`.
    #[inline]
    pub fn after(&mut self, now: u64, work: usize) -> Rest {
        if work > 0 {
            self.idle_since = None;
            self.nap_ns = NAP_NS_MIN;
            return Rest::Spin;
        }
        let idle_ns = now.saturating_sub(*self.idle_since.get_or_insert(now));
        match self.policy {
            Idle::Sleep => self.nap(),
            Idle::Adaptive if idle_ns >= YIELD_NS => self.nap(),
            _ if self.crowded => Rest::Yield,
            Idle::Yield => Rest::Yield,
            Idle::Adaptive if idle_ns >= PAUSE_NS => Rest::Yield,
            Idle::Adaptive if idle_ns >= SPIN_NS => Rest::Pause,
            Idle::Pause => Rest::Pause,
            Idle::Spin | Idle::Adaptive => Rest::Spin,
        }
    }

    const fn nap(&mut self) -> Rest {
        let nap = self.nap_ns;
        let next = nap * 2;
        self.nap_ns = if next < NAP_NS_MAX { next } else { NAP_NS_MAX };
        Rest::Nap(nap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for idle in Idle::ALL {
            assert_eq!(idle.to_string().parse(), Ok(idle));
        }
        let error = "doze".parse::<Idle>().unwrap_err().to_string();
        assert_eq!(error, "`doze` is no idle policy: write spin, pause, yield, sleep or adaptive");
        assert_eq!(Idle::default(), Idle::Adaptive);
    }

    #[test]
    fn work_is_followed_by_the_next_poll_at_once() {
        for idle in Idle::ALL {
            assert_eq!(Pacer::new(idle, true).after(5, 1), Rest::Spin);
        }
    }

    #[test]
    fn adaptive_steps_down_with_idle_time_and_back_up_with_work() {
        let mut pacer = Pacer::new(Idle::Adaptive, false);
        let start = 1_000_000;
        assert_eq!(pacer.after(start, 0), Rest::Spin);
        assert_eq!(pacer.after(start + SPIN_NS - 1, 0), Rest::Spin);
        assert_eq!(pacer.after(start + SPIN_NS, 0), Rest::Pause);
        assert_eq!(pacer.after(start + PAUSE_NS, 0), Rest::Yield);
        assert_eq!(pacer.after(start + YIELD_NS, 0), Rest::Nap(NAP_NS_MIN));
        assert_eq!(pacer.after(start + YIELD_NS + 1, 0), Rest::Nap(NAP_NS_MIN * 2));
        assert_eq!(pacer.after(start + YIELD_NS + 2, 3), Rest::Spin);
        assert_eq!(pacer.after(start + YIELD_NS + 3, 0), Rest::Spin, "idle time starts anew");
        assert_eq!(pacer.after(start + YIELD_NS * 3, 0), Rest::Nap(NAP_NS_MIN));
    }

    #[test]
    fn naps_grow_to_a_bound() {
        let mut pacer = Pacer::new(Idle::Sleep, false);
        let naps: Vec<Rest> = (0..8).map(|now| pacer.after(now, 0)).collect();
        let expected =
            [50_000, 100_000, 200_000, 400_000, 800_000, 1_000_000, 1_000_000, 1_000_000];
        assert_eq!(naps, expected.map(Rest::Nap));
    }

    #[test]
    fn fixed_policies_stay() {
        for (idle, rest) in
            [(Idle::Spin, Rest::Spin), (Idle::Pause, Rest::Pause), (Idle::Yield, Rest::Yield)]
        {
            let mut pacer = Pacer::new(idle, false);
            assert_eq!(pacer.after(0, 0), rest);
            assert_eq!(pacer.after(u64::MAX, 0), rest);
        }
    }

    #[test]
    fn on_a_crowded_core_nobody_holds_it_while_idle() {
        for idle in [Idle::Spin, Idle::Pause, Idle::Yield, Idle::Adaptive] {
            assert_eq!(Pacer::new(idle, true).after(0, 0), Rest::Yield);
        }
        assert_eq!(Pacer::new(Idle::Sleep, true).after(0, 0), Rest::Nap(NAP_NS_MIN));
    }
}
