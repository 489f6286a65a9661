//! Who waits for requests.

use super::Cm;
use super::error::ListenError;
use super::limits::MAX_LISTENERS;
use super::service::ServiceId;
use crate::ids::Gid;

/// A listener of a [`Cm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// What to listen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The service.
    pub service: ServiceId,
    /// At which address; `None`: at all of the device's.
    pub address: Option<Gid>,
    /// Requests that may wait for the consumer; further ones are refused.
    pub backlog: usize,
}

#[derive(Debug)]
struct Listener {
    id: ListenerId,
    listen: Listen,
    waiting: usize,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: Vec<Listener>,
    next: u32,
}

impl Listeners {
    fn add(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        let Listen { service, address, .. } = listen;
        let is_taken = |other: &Listener| {
            let there = other.listen.address;
            other.listen.service == service
                && (there == address || there.is_none() || address.is_none())
        };
        if self.all.iter().any(is_taken) {
            return Err(ListenError::InUse(service));
        }
        if self.all.len() == MAX_LISTENERS {
            return Err(ListenError::TooMany(MAX_LISTENERS));
        }
        let id = ListenerId(self.next);
        self.next = self.next.wrapping_add(1);
        self.all.push(Listener { id, listen, waiting: 0 });
        Ok(id)
    }

    /// Who listens for a service at an address.
    pub(super) fn find(&self, service: ServiceId, address: Gid) -> Option<ListenerId> {
        let hears = |listener: &&Listener| {
            let Listen { service: its, address: at, .. } = listener.listen;
            its == service && at.is_none_or(|at| at == address)
        };
        self.all.iter().find(hears).map(|listener| listener.id)
    }

    /// Takes a place in a listener's backlog. False: there is none.
    pub(super) fn enter(&mut self, id: ListenerId) -> bool {
        let listener = self.all.iter_mut().find(|listener| listener.id == id);
        let Some(listener) = listener else { return false };
        let has_room = listener.waiting < listener.listen.backlog;
        listener.waiting += usize::from(has_room);
        has_room
    }

    /// Gives it back.
    pub(super) fn leave(&mut self, id: ListenerId) {
        if let Some(listener) = self.all.iter_mut().find(|listener| listener.id == id) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }
}

impl Cm {
    /// Waits for requests.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        self.context.listeners.add(listen)
    }

    /// Waits no more. Requests that wait already can still be answered.
    pub fn unlisten(&mut self, id: ListenerId) {
        self.context.listeners.all.retain(|listener| listener.id != id);
    }
}
