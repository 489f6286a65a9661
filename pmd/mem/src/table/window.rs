//! Memory windows: a part of a region under a key of its own, bound and taken back without a registration.

use core::sync::atomic::Ordering;

use super::entry::{Kind, Record};
use super::owner::{CLAIMED, IDLE, REGION, Slot, UNBOUND, WINDOW1, WINDOW2};
use super::{Access, Key, LookupError, MemoryTable};

/// The two types of ibv_alloc_mw(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// For every queue pair of its protection domain; rebound at will.
    Type1,
    /// For the one queue pair it was bound on; invalidated before it is bound again. (Type 2B: the domain is checked too.)
    Type2,
}

impl WindowType {
    pub(super) const fn state(self) -> u32 {
        match self {
            Self::Type1 => WINDOW1,
            Self::Type2 => WINDOW2,
        }
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Type1 => Kind::Window1,
            Self::Type2 => Kind::Window2,
        }
    }
}

/// What a window shall reach, `struct ibv_mw_bind_info` of ibv_bind_mw(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBind {
    /// The lkey of the region.
    pub region: Key,
    /// First byte, in the addresses of the region.
    pub va: u64,
    /// Bytes; 0 unbinds a type 1 window.
    pub length: u64,
    /// Remote rights, and [`Access::ZERO_BASED`].
    pub access: Access,
}

/// Why a window was not bound. It is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// No window has this key's index.
    #[error("no memory window has this key")]
    UnknownWindow,
    /// Another work request is at it.
    #[error("the memory window is being bound or invalidated by another queue pair")]
    Busy,
    /// A type 2 window is bound already.
    #[error("a bound type 2 window must be invalidated before it is bound again")]
    Bound,
    /// Only a type 1 window is unbound by binding nothing.
    #[error("a type 2 window cannot be bound to 0 bytes: invalidate it")]
    Empty,
    /// The region's key is not valid.
    #[error("the region to bind to: {0}")]
    Region(#[from] LookupError),
    /// Queue pair, window and region are not all of one protection domain.
    #[error("queue pair, window and region must share a protection domain")]
    WrongPd,
    /// The region was registered without MW_BIND.
    #[error("the region was registered without MW_BIND")]
    NotBindable,
    /// Window addresses in a zero-based region would be ambiguous.
    #[error("a window cannot be bound to a zero-based region")]
    ZeroBasedRegion,
    /// A window gives remote rights only, and writing needs a region with LOCAL_WRITE.
    #[error("a window cannot give {0:?} on this region")]
    Access(Access),
}

/// Why a key was not invalidated. On the wire: a remote operation that fails with an invalid-request or access error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidateError {
    /// It is not valid to begin with, or not for this queue pair.
    #[error(transparent)]
    Key(#[from] LookupError),
    /// Only type 2 windows can be invalidated.
    #[error("only type 2 windows can be invalidated")]
    NotInvalidatable,
    /// Another work request is at it.
    #[error("the memory window is being bound or invalidated by another queue pair")]
    Busy,
}

/// Exclusive use of a window's entry.
pub(super) struct Claim<'a> {
    at: &'a Slot,
    slot: u32,
    window: WindowType,
    after: u32,
}

pub(super) enum ClaimError {
    Unknown,
    Busy,
}

impl Claim<'_> {
    pub(super) fn pd(&self) -> u32 {
        self.at.pd.load(Ordering::Relaxed)
    }

    fn is_bound(&self) -> bool {
        self.at.parent.load(Ordering::Relaxed) != UNBOUND
    }

    /// Ends the window; its slot belongs to the caller.
    pub(super) fn free(mut self) -> u32 {
        self.after = IDLE;
        self.slot
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.at.state.store(self.after, Ordering::Release);
    }
}

impl MemoryTable {
    /// Binds a window under the key `window`: the index that [`Self::alloc_window`] gave, and a byte of the consumer's choice,
    /// best a new one ([`Key::next`]). `pd` and `qpn` are those of the queue pair that executes the bind.
    ///
    /// A type 1 window that was bound leaves its old place; as after [`Self::invalidate`], peers may still be copying there.
    pub fn bind(&self, window: Key, pd: u32, qpn: u32, what: &WindowBind) -> Result<(), BindError> {
        let claim = self.claim_window(window).map_err(|e| match e {
            ClaimError::Unknown => BindError::UnknownWindow,
            ClaimError::Busy => BindError::Busy,
        })?;
        if claim.pd() != pd {
            return Err(BindError::WrongPd);
        }
        match claim.window {
            WindowType::Type2 if claim.is_bound() => return Err(BindError::Bound),
            WindowType::Type2 if what.length == 0 => return Err(BindError::Empty),
            WindowType::Type1 if what.length == 0 => {
                self.unbind(&claim);
                return Ok(());
            }
            WindowType::Type1 | WindowType::Type2 => {}
        }
        let record = self.window_record(pd, qpn, what)?;
        let parent = self.entries.slot_of(what.region);
        if !self.hold_region(parent) {
            return Err(LookupError::Revoked.into());
        }
        // Held regions cannot be deregistered, but this one may have been, and its slot reused, just before.
        if let Err(gone) = self.entries.slot(parent).read(what.region) {
            self.release_region(parent);
            return Err(gone.into());
        }
        self.unbind(&claim);
        claim.at.parent.store(parent, Ordering::Relaxed);
        self.entries.slot(claim.slot).publish(window, claim.window.kind(), &record);
        Ok(())
    }

    /// Takes back the key of a type 2 window, as a local invalidate or a SEND with invalidate does. `pd` and `qpn` are those of
    /// the queue pair that executes it.
    ///
    /// Peers that looked the key up before may still be copying: before the invalidation is reported complete,
    /// [`Fence::wait`](crate::Fence::wait) for them.
    pub fn invalidate(&self, rkey: Key, pd: u32, qpn: u32) -> Result<(), InvalidateError> {
        let record = self.entries.of(rkey).read(rkey)?;
        if record.pd != pd {
            return Err(LookupError::WrongPd.into());
        }
        if !record.is(Kind::Window2) {
            return Err(InvalidateError::NotInvalidatable);
        }
        if record.qpn != qpn {
            return Err(LookupError::WrongQp.into());
        }
        let claim = self.claim_window(rkey).map_err(|e| match e {
            ClaimError::Unknown => InvalidateError::Key(LookupError::Revoked),
            ClaimError::Busy => InvalidateError::Busy,
        })?;
        // It may have been invalidated and bound anew since.
        self.entries.slot(claim.slot).read(rkey)?;
        self.unbind(&claim);
        Ok(())
    }

    /// What the window's entry will say, if the bind is allowed.
    fn window_record(&self, pd: u32, qpn: u32, what: &WindowBind) -> Result<Record, BindError> {
        let region = self.entries.of(what.region).read(what.region)?;
        if !region.is(Kind::Region) {
            return Err(LookupError::UnknownKey.into());
        }
        if region.pd != pd {
            return Err(BindError::WrongPd);
        }
        if !region.access.contains(Access::MW_BIND) {
            return Err(BindError::NotBindable);
        }
        if region.access.contains(Access::ZERO_BASED) {
            return Err(BindError::ZeroBasedRegion);
        }
        let strange = what.access.difference(Access::REMOTE | Access::ZERO_BASED);
        if !strange.is_empty() {
            return Err(BindError::Access(strange));
        }
        let writes = what.access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !writes.is_empty() && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(BindError::Access(writes));
        }
        let place = region.place(what.va, what.length)?;
        let base = if what.access.contains(Access::ZERO_BASED) { 0 } else { what.va };
        Ok(Record {
            kind_bits: 0,
            access: what.access,
            pd,
            region: place.region,
            qpn,
            offset: place.offset,
            base,
            length: what.length,
        })
    }

    pub(super) fn claim_window(&self, key: Key) -> Result<Claim<'_>, ClaimError> {
        let slot = self.entries.slot_of(key);
        let at = &self.slots[slot as usize];
        let state = at.state.load(Ordering::Acquire);
        let window = match state & !CLAIMED {
            WINDOW1 => WindowType::Type1,
            WINDOW2 => WindowType::Type2,
            _ => return Err(ClaimError::Unknown),
        };
        let free = window.state();
        if at
            .state
            .compare_exchange(free, free | CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return Err(ClaimError::Busy);
        }
        let claim = Claim { at, slot, window, after: free };
        // Dropping the claim gives the window back to its rightful name.
        if Key(at.issued.load(Ordering::Relaxed)).index() == key.index() {
            Ok(claim)
        } else {
            Err(ClaimError::Unknown)
        }
    }

    /// Takes the window off its region, if it is on one.
    pub(super) fn unbind(&self, claim: &Claim<'_>) {
        self.entries.slot(claim.slot).revoke();
        let parent = claim.at.parent.swap(UNBOUND, Ordering::Relaxed);
        if parent != UNBOUND {
            self.release_region(parent);
        }
    }

    /// Counts a window on a region, unless it is being deregistered.
    fn hold_region(&self, slot: u32) -> bool {
        let state = &self.slots[slot as usize].state;
        state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                (state & REGION != 0).then_some(state + 1)
            })
            .is_ok()
    }

    fn release_region(&self, slot: u32) {
        self.slots[slot as usize].state.fetch_sub(1, Ordering::AcqRel);
    }
}
