//! How the control thread tells an lcore what has changed.
//!
//! The lcore looks at one flag per turn; it takes the lock only when there is something, and never waits for it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pmd_mem::Segment;

use super::limits::LINKS_MAX;
use super::link::{Link, LinkFault};
use super::reach::OwnRegion;

/// What has changed.
#[derive(Debug)]
pub(crate) enum Event {
    /// A link was made.
    Linked { id: u32, link: Box<Link> },
    /// A region of this device was added, changed or removed.
    Own { id: u32, region: Option<OwnRegion> },
    /// A region of a peer was mapped, mapped anew or removed.
    Mapped { key: u64, id: u32, segment: Option<Arc<Segment>> },
    /// A peer is gone.
    Gone { key: u64, fault: LinkFault },
}

/// The mailbox of one lcore.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    pending: AtomicBool,
    state: Mutex<State>,
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
        if state.open {
            state.events.push_back(event);
            self.pending.store(true, Ordering::Release);
        }
    }

    /// Everything posted so far; `None` when there is nothing, or somebody is just posting.
    pub(crate) fn take(&self) -> Option<VecDeque<Event>> {
        if !self.pending.load(Ordering::Acquire) {
            return None;
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.pending.store(false, Ordering::Relaxed);
        Some(core::mem::take(&mut state.events))
    }

    /// A number for a new link; `None` when the lcore has as many as it can, or is not there.
    pub(crate) fn allocate(&self) -> Option<u32> {
        let mut state = self.state();
        if !state.open {
            return None;
        }
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.uses.len() < LINKS_MAX => {
                let slot = u16::try_from(state.uses.len()).ok()?;
                state.uses.push(0);
                slot
            }
            None => return None,
        };
        let uses = &mut state.uses[usize::from(slot)];
        *uses = uses.wrapping_add(1);
        Some(u32::from(*uses) << 16 | u32::from(slot))
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
        let mailbox = Mailbox::default();
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
        let mailbox = Mailbox::default();
        assert_eq!(mailbox.allocate(), None);
        mailbox.open();
        let ids: Vec<_> = (0..LINKS_MAX).map(|_| mailbox.allocate().unwrap()).collect();
        assert_eq!(mailbox.allocate(), None);
        mailbox.release(ids[7]);
        let again = mailbox.allocate().unwrap();
        assert_eq!(slot_of(again), slot_of(ids[7]));
        assert_ne!(again, ids[7]);
    }
}
