//! State changes that nobody asked for: what a queue pair fell into by itself, and why.
//!
//! A change that a modify call asks for is known to its caller; these are not. They wait here until the owner of the
//! engine writes them down.

use core::fmt;
use std::collections::VecDeque;

use crate::event::AsyncEvent;
use crate::ids::{Instant, Qpn};
use crate::limits::TRANSITIONS_KEPT;
use crate::qp::state::{QpState, Transport};
use crate::work::WcStatus;

/// Why a queue pair changed its state by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// One of its send requests ended in error.
    Send(WcStatus),
    /// One of its receives did.
    Receive(WcStatus),
    /// What an asynchronous event tells.
    Event(AsyncEvent),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(status) => write!(f, "a send request failed: {status}"),
            Self::Receive(status) => write!(f, "a receive failed: {status}"),
            Self::Event(event) => f.write_str(event.name()),
        }
    }
}

/// A state change that nobody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// When, to the accuracy of the readings of the clock that the engine is told.
    pub at: Instant,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its service.
    pub transport: Transport,
    /// The state it left.
    pub from: QpState,
    /// The state it is in since.
    pub to: QpState,
    /// Why.
    pub cause: Cause,
}

/// Those that nobody has polled yet; the oldest go first where there are too many.
#[derive(Debug)]
pub(crate) struct Transitions {
    kept: VecDeque<Transition>,
    lost: u64,
}

impl Transitions {
    pub(crate) fn new() -> Self {
        Self { kept: VecDeque::with_capacity(TRANSITIONS_KEPT), lost: 0 }
    }

    #[cold]
    pub(crate) fn note(&mut self, transition: Transition) {
        if self.kept.len() == TRANSITIONS_KEPT {
            self.kept.pop_front();
            self.lost += 1;
        }
        self.kept.push_back(transition);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn poll(&mut self) -> Option<Transition> {
        self.kept.pop_front()
    }

    pub(crate) fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let mut transitions = Transitions::new();
        let number = |n| Transition {
            at: Instant(n),
            qpn: Qpn::new(2),
            transport: Transport::Rc,
            from: QpState::Rts,
            to: QpState::Error,
            cause: Cause::Send(WcStatus::RetryExc),
        };
        let kept = TRANSITIONS_KEPT as u64;
        (0..kept + 3).for_each(|n| transitions.note(number(n)));
        assert_eq!((transitions.take_lost(), transitions.take_lost()), (3, 0));
        let at: Vec<u64> = std::iter::from_fn(|| transitions.poll()).map(|t| t.at.0).collect();
        assert_eq!(at, (3..kept + 3).collect::<Vec<_>>());
    }
}
