//! Messages that wait for room on the wire.

use std::collections::VecDeque;

use super::config::Route;
use super::limits::OUTBOX;
use super::mad::Mad;

/// A datagram from this device's general services interface to the one at `route.destination`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The way there.
    pub route: Route,
    /// What to send.
    pub mad: Mad,
}

/// Bounded: what does not fit is lost, as it could be on the wire, and sent again in time.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Transmit>,
}

impl Outbox {
    /// False: there is no room.
    pub(super) fn push(&mut self, route: Route, mad: Mad) -> bool {
        let has_room = self.waiting.len() < OUTBOX;
        if has_room {
            self.waiting.push_back(Transmit { route, mad });
        }
        has_room
    }

    pub(super) fn pop(&mut self) -> Option<Transmit> {
        self.waiting.pop_front()
    }
}
