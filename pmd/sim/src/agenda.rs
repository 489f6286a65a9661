//! What happens when: a queue of events in order of time, then of entry.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use pmd_roce::ids::Instant;

use crate::host::HostId;
use crate::network::Arrival;

/// Something that happens at a point in time.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A frame reaches a host.
    Arrive(Arrival),
    /// A host has a turn, unless it had it earlier.
    Turn,
    /// A host's store buffer empties by itself.
    Drain,
    /// A host's peers learn of its death.
    Buried,
}

#[derive(Debug)]
struct Item {
    at: Instant,
    order: u64,
    host: HostId,
    what: Happening,
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Item {}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives its greatest item first.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Item>,
    entered: u64,
}

impl Agenda {
    fn enter(&mut self, at: Instant, host: HostId, what: Happening) {
        self.heap.push(Item { at, order: self.entered, host, what });
        self.entered += 1;
    }

    pub(crate) fn arrive(&mut self, at: Instant, host: HostId, arrival: Arrival) {
        self.enter(at, host, Happening::Arrive(arrival));
    }

    pub(crate) fn turn(&mut self, at: Instant, host: HostId) {
        self.enter(at, host, Happening::Turn);
    }

    pub(crate) fn drain(&mut self, at: Instant, host: HostId) {
        self.enter(at, host, Happening::Drain);
    }

    pub(crate) fn bury(&mut self, at: Instant, host: HostId) {
        self.enter(at, host, Happening::Buried);
    }

    /// When the next event is.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|item| item.at)
    }

    /// The next event, if it is a turn.
    pub(crate) fn next_turn(&self) -> Option<(Instant, HostId)> {
        let item = self.heap.peek()?;
        matches!(item.what, Happening::Turn).then_some((item.at, item.host))
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<(Instant, HostId, Happening)> {
        self.heap.pop().map(|item| (item.at, item.host, item.what))
    }
}
