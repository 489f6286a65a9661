//! How the control thread tells an lcore what has changed.
//!
//! The lcore looks at one flag per turn, and takes the lock only when there is something. For an lcore that sleeps there is a
//! bell, which its peers ring too.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::EventfdFlags;

use super::limits::LINKS_MAX;
use super::link::{Link, LinkFault};
use super::reach::{OwnRegion, PeerRegion};

/// What has changed.
#[derive(Debug)]
pub(crate) enum Event {
    /// A link was made.
    Linked { id: u32, link: Box<Link> },
    /// A region of this device was added, changed or removed.
    Own { id: u32, region: Option<OwnRegion> },
    /// A region of a peer was mapped, mapped anew or removed.
    Mapped { key: u64, id: u32, region: Option<PeerRegion> },
    /// A peer is gone.
    Gone { key: u64, fault: LinkFault },
}

/// The mailbox of one lcore.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pending: AtomicBool,
    state: Mutex<State>,
    bell: OwnedFd,
}

/// Why there is no number for a new link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// The lcore is not there.
    Closed,
    /// It has as many links as it can.
    Full,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// Whether the lcore is there to read them.
    open: bool,
    /// Per slot, how often it was used, so that the number of an ended link is not taken for another.
    uses: Vec<u16>,
    free: Vec<u16>,
}

/// Slot of a link's number.
pub(crate) const fn slot_of(id: u32) -> usize {
    (id & 0xffff) as usize
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { pending: AtomicBool::new(false), state: Mutex::default(), bell })
    }

    /// Readable when there is news for an lcore that sleeps.
    pub(crate) const fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub(crate) fn ring(&self) {
        // Refused only when 2^64 - 2 rings were not heard: then it is readable.
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).unwrap_or_default();
    }

    /// Makes the bell silent until it is rung again.
    pub(crate) fn silence(&self) {
        // Refused when it is silent.
        rustix::io::read(&self.bell, &mut [0; 8]).unwrap_or_default();
    }

    /// Whether something was posted that was not taken.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lcore begins to read. False if it does already.
    pub(crate) fn open(&self) -> bool {
        let mut state = self.state();
        !core::mem::replace(&mut state.open, true)
    }

    /// The lcore reads no more; what lies here is dropped.
    pub(crate) fn close(&self) {
        let events = {
            let mut state = self.state();
            state.open = false;
            core::mem::take(&mut state.events)
        };
        drop(events);
    }

    pub(crate) fn post(&self, event: Event) {
        let mut state = self.state();
        if !state.open {
            return;
        }
        state.events.push_back(event);
        self.pending.store(true, Ordering::Release);
        // Who is woken shall find the lock free.
        drop(state);
        self.ring();
    }

    /// Everything posted so far; `None` when there is nothing. The lock is held for as long as it takes to append to a list: what
    /// was posted before a work request must not be missed by the turn that works on it.
    pub(crate) fn take(&self) -> Option<VecDeque<Event>> {
        if !self.is_pending() {
            return None;
        }
        let mut state = self.state();
        self.pending.store(false, Ordering::Relaxed);
        Some(core::mem::take(&mut state.events))
    }

    /// A number for a new link.
    pub(crate) fn allocate(&self) -> Result<u32, NoSlot> {
        let mut state = self.state();
        if !state.open {
            return Err(NoSlot::Closed);
        }
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.uses.len() < LINKS_MAX => {
                let slot = u16::try_from(state.uses.len()).map_err(|_| NoSlot::Full)?;
                state.uses.push(0);
                slot
            }
            None => return Err(NoSlot::Full),
        };
        let uses = &mut state.uses[usize::from(slot)];
        *uses = uses.wrapping_add(1);
        Ok(u32::from(*uses) << 16 | u32::from(slot))
    }

    /// Takes back a number that names nothing any more.
    pub(crate) fn release(&self, id: u32) {
        let mut state = self.state();
        if let Ok(slot) = u16::try_from(slot_of(id)) {
            state.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_arrive_in_order_and_only_where_somebody_reads() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.post(Event::Own { id: 0, region: None });
        assert!(mailbox.take().is_none());
        assert!(mailbox.open());
        assert!(!mailbox.open());
        for id in 1..4 {
            mailbox.post(Event::Own { id, region: None });
        }
        let ids: Vec<_> = mailbox.take().unwrap().into_iter().collect();
        assert!(matches!(
            ids[..],
            [Event::Own { id: 1, .. }, Event::Own { id: 2, .. }, Event::Own { id: 3, .. }]
        ));
        assert!(mailbox.take().is_none());
        mailbox.close();
        mailbox.post(Event::Own { id: 4, region: None });
        assert!(mailbox.open());
        assert!(mailbox.take().is_none());
    }

    #[test]
    fn an_ended_link_is_not_taken_for_another() {
        let mailbox = Mailbox::new().unwrap();
        assert_eq!(mailbox.allocate(), Err(NoSlot::Closed));
        mailbox.open();
        let ids: Vec<_> = (0..LINKS_MAX).map(|_| mailbox.allocate().unwrap()).collect();
        assert_eq!(mailbox.allocate(), Err(NoSlot::Full));
        mailbox.release(ids[7]);
        let again = mailbox.allocate().unwrap();
        assert_eq!(slot_of(again), slot_of(ids[7]));
        assert_ne!(again, ids[7]);
    }
}
