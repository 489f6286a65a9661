//! Asynchronous events that were taken, and who still has one.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pmd_roce::engine::DestroyError;
use pmd_roce::event::{AsyncEvent, EventScope};

/// How long the end of an object waits for events about it that somebody still holds.
pub const EVENT_PATIENCE: Duration = Duration::from_millis(500);

/// An event that was taken, as by `ibv_get_async_event(3)`. Dropping it acknowledges it; until then the
/// object that it is about is not destroyed. It may go to another thread, which handles it there.
#[must_use = "dropping an event acknowledges it"]
pub struct Event {
    event: AsyncEvent,
    register: Arc<Register>,
}

impl Event {
    /// What has happened, and to what.
    pub const fn kind(&self) -> AsyncEvent {
        self.event
    }

    /// Says that it was dealt with, as `ibv_ack_async_event(3)`; the same as dropping it.
    pub fn acknowledge(self) {}
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.event).finish()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let mut held = self.register.held();
        if let Some(at) = held.iter().position(|(event, _)| *event == self.event) {
            held.remove(at);
        }
        drop(held);
        self.register.changed.notify_all();
    }
}

/// An event about an object that was to be destroyed, and was not since somebody holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} was taken {age:?} ago and is not acknowledged yet: drop it first")]
pub struct Unacknowledged {
    /// The event.
    pub event: AsyncEvent,
    /// How long ago it was taken.
    pub age: Duration,
}

/// Why an object stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaysBecause {
    /// The device refuses.
    #[error(transparent)]
    Device(#[from] DestroyError),
    /// Somebody deals with an event about it, and did not finish within [`EVENT_PATIENCE`].
    #[error(transparent)]
    Event(#[from] Unacknowledged),
}

/// An object that was not destroyed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Stays<T> {
    /// The object, as it was.
    pub object: T,
    /// Why it stays.
    pub error: StaysBecause,
}

/// The events that were taken and not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Register {
    held: Mutex<Vec<(AsyncEvent, Instant)>>,
    changed: Condvar,
}

impl Register {
    fn held(&self) -> MutexGuard<'_, Vec<(AsyncEvent, Instant)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands an event out.
    pub(crate) fn hand_out(self: &Arc<Self>, event: AsyncEvent) -> Event {
        self.held().push((event, Instant::now()));
        Event { event, register: Arc::clone(self) }
    }

    /// The oldest event about an object that somebody holds.
    pub(crate) fn oldest(&self, scope: EventScope) -> Option<Unacknowledged> {
        oldest(&self.held(), scope)
    }

    /// Waits until nobody holds an event about an object, up to `limit`.
    pub(crate) fn wait(&self, scope: EventScope, limit: Duration) -> Result<(), Unacknowledged> {
        let is_held = |held: &mut Vec<_>| oldest(held, scope).is_some();
        let waited = self.changed.wait_timeout_while(self.held(), limit, is_held);
        let (held, _) = waited.unwrap_or_else(PoisonError::into_inner);
        oldest(&held, scope).map_or(Ok(()), Err)
    }
}

fn oldest(held: &[(AsyncEvent, Instant)], scope: EventScope) -> Option<Unacknowledged> {
    let (event, since) = held.iter().find(|(event, _)| event.scope() == scope)?;
    Some(Unacknowledged { event: *event, age: since.elapsed() })
}
