//! Where ids tell what happens to them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pmd_roce::cm::PortSpace;

use super::agent::CmAgent;
use super::event::Event;
use super::held::{Held, HeldEvent};
use super::id::{Id, IdNumber};
use super::provider::{ChannelKey, IdKey, Provider};

/// Tells of its ids, in the order in which things happened. It belongs to the thread of the device's first
/// lcore, and drives the device where no loop does.
#[derive(Debug)]
pub struct EventChannel {
    provider: Rc<dyn Provider>,
    held: Rc<Held>,
    key: ChannelKey,
    fd: OwnedFd,
}

impl CmAgent {
    /// Creates a channel, as `rdma_create_event_channel(3)`.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn create_channel(&self) -> io::Result<EventChannel> {
        let (provider, held) = self.provider();
        let (key, fd) = provider.create_channel()?;
        Ok(EventChannel { provider, held, key, fd })
    }
}

impl EventChannel {
    /// Creates an id, as `rdma_create_id(3)`.
    pub fn create_id(&self, space: PortSpace) -> Id {
        let key = self.provider.create_id(self.key, space);
        Id::new(&self.provider, &self.held, key)
    }

    /// Takes the oldest event, as `rdma_get_cm_event(3)` without blocking.
    pub fn poll(&self) -> Option<Event> {
        self.take(None)
    }

    /// The same, sleeping until there is one, at most for `limit`. `None`: there was none.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(&self, limit: Duration) -> io::Result<Option<Event>> {
        self.wait_for(None, limit)
    }

    /// The descriptor of the channel: readable when there may be something to do, for event loops that wait for other
    /// things, too. Then, and before every sleep, call [`EventChannel::poll`] until it returns `None`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The events of this channel that were taken and are not acknowledged yet, oldest first.
    pub fn unacknowledged(&self) -> Vec<HeldEvent> {
        self.held.of(self.key)
    }

    pub(super) const fn key(&self) -> ChannelKey {
        self.key
    }

    pub(super) fn wait_for(
        &self,
        only: Option<IdKey>,
        limit: Duration,
    ) -> io::Result<Option<Event>> {
        let deadline = Instant::now() + limit;
        loop {
            let event = self.take(only);
            let left = deadline.saturating_duration_since(Instant::now());
            if event.is_some() || left.is_zero() {
                return Ok(event);
            }
            self.provider.sleep(self.key, left)?;
        }
    }

    fn take(&self, only: Option<IdKey>) -> Option<Event> {
        let occurrence = self.provider.poll(self.key, only)?;
        let serial = self.held.enter(self.key, occurrence.id, occurrence.kind.name());
        let request = occurrence.request.map(|key| Id::new(&self.provider, &self.held, key));
        let (kind, id, held) = (occurrence.kind, IdNumber(occurrence.id.0), Rc::clone(&self.held));
        Some(Event { kind, id, request, serial, held })
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        self.provider.destroy_channel(self.key);
    }
}
