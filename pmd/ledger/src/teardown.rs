//! The end of a queue pair, step by step, and what it is waiting for.

use std::fmt;

use crate::limits::LAST_WQE_NS;

/// What the end of a queue pair waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Completions of what is in flight.
    Completions {
        /// How many.
        left: u64,
    },
    /// The event that it takes no more from its shared receive queue.
    LastWqe,
    /// Events that somebody took and has not acknowledged: destroying blocks until then.
    Acknowledgements {
        /// How many.
        left: u32,
    },
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completions { left } => write!(f, "{left} completions"),
            Self::LastWqe => f.write_str("QP_LAST_WQE_REACHED"),
            Self::Acknowledgements { left } => {
                write!(f, "{left} events that were taken and not acknowledged")
            }
        }
    }
}

/// Decides when a queue pair may be destroyed. Put it into Error first.
#[derive(Clone, Copy, Debug)]
pub struct Teardown {
    waits_for_last_wqe: bool,
    since_ns: u64,
    limit_ns: u64,
}

impl Teardown {
    /// Starts at `now_ns`. With a shared receive queue the last event is waited for, [`LAST_WQE_NS`] at most: some
    /// providers never send it.
    pub const fn new(now_ns: u64, has_srq: bool) -> Self {
        Self { waits_for_last_wqe: has_srq, since_ns: now_ns, limit_ns: LAST_WQE_NS }
    }

    /// The event came.
    pub const fn last_wqe_reached(&mut self) {
        self.waits_for_last_wqe = false;
    }

    /// When to look again at the latest.
    pub const fn poll_timeout(&self) -> u64 {
        self.since_ns.saturating_add(self.limit_ns)
    }

    /// Whether [`QP_LAST_WQE_REACHED`](Wait::LastWqe) was given up: warn, the provider does not send it.
    pub const fn gave_up(&self, now_ns: u64) -> bool {
        self.waits_for_last_wqe && now_ns >= self.poll_timeout()
    }

    /// What it waits for, and since when, nanoseconds; none when the queue pair may be destroyed. Completions and the
    /// event are waited for in bounded time; acknowledgements are owed by the application, for as long as it takes.
    pub const fn waits_for(
        &self,
        now_ns: u64,
        in_flight: u64,
        unacked: u32,
    ) -> Option<(Wait, u64)> {
        let over = now_ns >= self.poll_timeout();
        let wait = if in_flight > 0 && !over {
            Wait::Completions { left: in_flight }
        } else if self.waits_for_last_wqe && !over {
            Wait::LastWqe
        } else if unacked > 0 {
            Wait::Acknowledgements { left: unacked }
        } else {
            return None;
        };
        Some((wait, self.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S4-18: the event gates the end, in whatever order it comes with the last completion.
    #[test]
    fn s4_18_the_last_wqe_event_gates_the_end() {
        let mut end = Teardown::new(100, true);
        assert_eq!(end.waits_for(100, 2, 0), Some((Wait::Completions { left: 2 }, 100)));
        assert_eq!(end.waits_for(200, 0, 0), Some((Wait::LastWqe, 100)));
        end.last_wqe_reached();
        assert_eq!(end.waits_for(201, 0, 0), None);
        assert!(!end.gave_up(u64::MAX));
        assert_eq!(Teardown::new(100, false).waits_for(100, 0, 0), None);
    }

    /// A provider that never sends it holds nothing up for ever.
    #[test]
    fn s4_18_a_suppressed_event_is_given_up_in_bounded_time() {
        let end = Teardown::new(100, true);
        assert_eq!(end.waits_for(end.poll_timeout() - 1, 0, 0), Some((Wait::LastWqe, 100)));
        assert_eq!(end.waits_for(end.poll_timeout(), 0, 0), None);
        assert!(end.gave_up(end.poll_timeout()));
    }

    /// S0-35: who waits says for what.
    #[test]
    fn s0_35_the_wait_for_acknowledgements_has_a_name() {
        let end = Teardown::new(100, false);
        let (wait, since) = end.waits_for(u64::MAX, 0, 3).unwrap();
        assert_eq!(
            (wait.to_string(), since),
            ("3 events that were taken and not acknowledged".into(), 100)
        );
    }
}
