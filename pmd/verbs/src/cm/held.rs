//! Events that were handed out, and are not acknowledged yet.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use super::id::IdNumber;
use super::provider::{ChannelKey, IdKey};

/// An event that somebody took and still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} of id {id} was taken {age:?} ago and is not acknowledged yet: drop it first")]
pub struct HeldEvent {
    /// Its name, as in `enum rdma_cm_event_type`.
    pub name: &'static str,
    /// The id that it happened to; of a request, the listener.
    pub id: IdNumber,
    /// How long ago it was taken.
    pub age: Duration,
}

#[derive(Debug)]
struct Taken {
    serial: u64,
    channel: ChannelKey,
    id: IdKey,
    name: &'static str,
    since: Instant,
}

impl Taken {
    fn shown(&self) -> HeldEvent {
        HeldEvent { name: self.name, id: IdNumber(self.id.0), age: self.since.elapsed() }
    }
}

/// All of a device's.
#[derive(Debug, Default)]
pub(super) struct Held {
    taken: RefCell<Vec<Taken>>,
    next: Cell<u64>,
}

impl Held {
    /// Notes an event that is handed out; returns its number.
    pub(super) fn enter(&self, channel: ChannelKey, id: IdKey, name: &'static str) -> u64 {
        let serial = self.next.replace(self.next.get() + 1);
        let since = Instant::now();
        self.taken.borrow_mut().push(Taken { serial, channel, id, name, since });
        serial
    }

    pub(super) fn acknowledge(&self, serial: u64) {
        self.taken.borrow_mut().retain(|taken| taken.serial != serial);
    }

    /// The oldest one about an id.
    pub(super) fn oldest(&self, id: IdKey) -> Option<HeldEvent> {
        self.taken.borrow().iter().find(|taken| taken.id == id).map(Taken::shown)
    }

    /// Those of a channel, oldest first.
    pub(super) fn of(&self, channel: ChannelKey) -> Vec<HeldEvent> {
        let taken = self.taken.borrow();
        taken.iter().filter(|taken| taken.channel == channel).map(Taken::shown).collect()
    }
}
