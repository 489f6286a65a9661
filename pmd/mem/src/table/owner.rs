use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::{Entries, Kind, MAGIC, Record};
use super::window::{ClaimError, WindowType};
use super::{Access, Key, KeyCache, LookupError, Place};
use crate::limits::TABLE_ENTRIES_MAX;
use crate::memlock::MemlockExceeded;
use crate::page_size;
use crate::segment::{AccessError, Segment};

/// The memory table of a device: registers, looks up, revokes.
///
/// Lookups, and binding and invalidating windows, take no lock and may run on any lcore; the other calls share one.
pub struct MemoryTable {
    pub(super) entries: Entries,
    pub(super) slots: Box<[Slot]>,
    control: Mutex<Control>,
    locked_max: Option<u64>,
}

/// What only the owner knows of an entry.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// One of the states below; for a region also the number of windows bound to it.
    pub(super) state: AtomicU32,
    /// The key last issued: for a window its index, whatever byte it is bound under.
    pub(super) issued: AtomicU32,
    pub(super) pd: AtomicU32,
    /// The slot of the region that a window is bound to.
    pub(super) parent: AtomicU32,
}

/// Free, or revoked and not yet reclaimed.
pub(super) const IDLE: u32 = 0;
/// A region; the bits below count bound windows.
pub(super) const REGION: u32 = 1 << 31;
/// A type 1 window.
pub(super) const WINDOW1: u32 = 1 << 30;
/// A type 2 window.
pub(super) const WINDOW2: u32 = 1 << 29;
/// A window that somebody is binding, invalidating or freeing.
pub(super) const CLAIMED: u32 = 1;
/// `parent` of a window that is not bound.
pub(super) const UNBOUND: u32 = u32::MAX;

struct Control {
    free: Vec<u32>,
    entropy: Box<dyn FnMut() -> u64 + Send>,
    locked: u64,
    by_pd: BTreeMap<u32, PdUse>,
}

/// What a protection domain still holds; it can be destroyed when this is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PdUse {
    /// Live regions.
    pub regions: u32,
    /// Live windows, bound or not.
    pub windows: u32,
}

/// What a device still holds, for leak reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Live regions.
    pub regions: u32,
    /// Live windows.
    pub windows: u32,
    /// Bytes of pages under live and not yet reclaimed regions, each registration counted for itself, as a NIC driver does.
    pub registered_bytes: u64,
    /// Entries that nobody uses.
    pub free_entries: u32,
}

/// What to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The caller's number of the region.
    pub region: u32,
    /// Bytes of that region.
    pub region_len: u64,
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Bytes to register.
    pub length: u64,
    /// Virtual address of the first byte, by which work requests name it. With [`Access::ZERO_BASED`] it counts as 0.
    pub va: u64,
    /// Protection domain.
    pub pd: u32,
    /// Rights.
    pub access: Access,
}

/// Why a table was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The capacity is no power of two, or too large.
    #[error("a memory table has a power of two of entries, at most {TABLE_ENTRIES_MAX}, not {0}")]
    Capacity(u32),
    /// The segment cannot hold it.
    #[error("the segment cannot hold the memory table: {0}")]
    Segment(#[from] AccessError),
}

/// Why a registration was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// A registration has at least one byte.
    #[error("cannot register 0 bytes")]
    Empty,
    /// The range leaves its region, or its addresses overflow.
    #[error(
        "bytes {offset} + {length} leave a region of {region_len} bytes, or its addresses wrap around"
    )]
    OutOfBounds {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Bytes there are.
        region_len: u64,
    },
    /// A peer could write what the device itself may not; see ibv_reg_mr(3).
    #[error("REMOTE_WRITE and REMOTE_ATOMIC require LOCAL_WRITE")]
    NeedsLocalWrite,
    /// Every entry is taken.
    #[error(
        "all {0} entries of the memory table are taken: deregister something, or open the device with a larger table"
    )]
    TableFull(u32),
    /// RLIMIT_MEMLOCK, enforced as a NIC driver would.
    #[error(transparent)]
    Memlock(#[from] MemlockExceeded),
    /// This process is a fork of the one that opened the device.
    #[error(
        "the memory table belongs to the parent of this process; open the device in the child instead"
    )]
    Forked,
}

/// Why a key was not deregistered. It is still valid, if it ever was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeregisterError {
    /// No such region (or window) is registered.
    #[error("no registration has this key")]
    UnknownKey,
    /// Windows are bound to it.
    #[error("{0} memory windows are bound to the region: invalidate or free them first")]
    WindowsBound(u32),
    /// The window is just being bound or invalidated.
    #[error("the memory window is being bound or invalidated: wait for that work request")]
    Busy,
    /// This process is a fork of the one that opened the device.
    #[error("the memory table belongs to the parent of this process")]
    Forked,
}

/// An entry whose key is revoked, and which peers may still be using. Its memory stays in place, and the entry unused, until
/// [`MemoryTable::reclaim`]; dropping this leaks the entry, never the safety.
#[must_use = "wait for the peers by a Fence, then reclaim it"]
#[derive(Debug)]
pub struct Retired {
    slot: u32,
    locked: u64,
}

impl MemoryTable {
    /// Bytes of a table with `capacity` entries.
    pub const fn bytes(capacity: u32) -> u64 {
        (capacity as u64 + 1) * 64
    }

    /// A table of `capacity` entries (a power of two) at the start of `segment`, which is zeroed and writable here; to share it,
    /// its region is [`OwnerWritten`](crate::Seal::OwnerWritten).
    ///
    /// `locked_max`: the most bytes that may be registered, see [`Memlock::bound`](crate::Memlock::bound). `entropy` makes keys
    /// unpredictable, see [`os_entropy`](crate::os_entropy).
    pub fn new(
        segment: &Arc<Segment>,
        capacity: u32,
        locked_max: Option<u64>,
        entropy: impl FnMut() -> u64 + Send + 'static,
    ) -> Result<Self, TableError> {
        if !capacity.is_power_of_two() || capacity > TABLE_ENTRIES_MAX {
            return Err(TableError::Capacity(capacity));
        }
        if !segment.is_writable() {
            return Err(AccessError::ReadOnly.into());
        }
        let entries = Entries::new(segment, capacity)?;
        entries.header.capacity.store(capacity, Ordering::Relaxed);
        entries.header.magic.store(MAGIC, Ordering::Release);
        let control = Control {
            free: (0..capacity).collect(),
            entropy: Box::new(entropy),
            locked: 0,
            by_pd: BTreeMap::new(),
        };
        Ok(Self {
            entries,
            slots: (0..capacity).map(|_| Slot::default()).collect(),
            control: Mutex::new(control),
            locked_max,
        })
    }

    /// Tells peers that this process cannot run membarrier(2), so that initiators announce themselves by a
    /// full fence: see [`Fence::announce`](crate::Fence::announce).
    /// To be called before the table is exported.
    pub fn require_full_fence(&self) {
        self.entries.header.fence.store(1, Ordering::Release);
    }

    /// A cache for one user of this table's keys.
    pub fn cache(&self) -> KeyCache {
        KeyCache::new(self.entries.clone())
    }

    /// Makes memory reachable by a key, which serves as lkey and, with remote rights, as rkey. See ibv_reg_mr(3).
    pub fn register(&self, what: &Registration) -> Result<Key, RegisterError> {
        self.check_process().map_err(|_| RegisterError::Forked)?;
        let Registration { region, region_len, offset, length, va, pd, access } = *what;
        if length == 0 {
            return Err(RegisterError::Empty);
        }
        let base = if access.contains(Access::ZERO_BASED) { 0 } else { va };
        if offset > region_len
            || length > region_len - offset
            || base.checked_add(length - 1).is_none()
        {
            return Err(RegisterError::OutOfBounds { offset, length, region_len });
        }
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(RegisterError::NeedsLocalWrite);
        }

        let mut control = self.control();
        let locked = locked_bytes(offset, length);
        let requested = control.locked.saturating_add(locked);
        if let Some(limit) = self.locked_max
            && requested > limit
        {
            return Err(MemlockExceeded { limit, requested, adding: locked }.into());
        }
        let (slot, key) = self.issue(&mut control).ok_or_else(|| self.full())?;
        control.locked = requested;
        control.by_pd.entry(pd).or_default().regions += 1;
        self.slots[slot as usize].pd.store(pd, Ordering::Relaxed);
        self.slots[slot as usize].state.store(REGION, Ordering::Release);
        let record = Record { kind_bits: 0, access, pd, region, qpn: 0, offset, base, length };
        self.entries.slot(slot).publish(key, Kind::Region, &record);
        Ok(key)
    }

    /// Takes a region's key back. The memory may be freed only after the peers were waited for: see [`crate::Fence`].
    pub fn deregister(&self, key: Key) -> Result<Retired, DeregisterError> {
        self.check_process().map_err(|_| DeregisterError::Forked)?;
        let mut control = self.control();
        let slot = self.entries.slot_of(key);
        let record = self.entries.slot(slot).read(key).map_err(|_| DeregisterError::UnknownKey)?;
        if !record.is(Kind::Region) {
            return Err(DeregisterError::UnknownKey);
        }
        // From here on no window can be bound to it.
        let state = &self.slots[slot as usize].state;
        if let Err(bound) =
            state.compare_exchange(REGION, IDLE, Ordering::AcqRel, Ordering::Acquire)
        {
            return Err(DeregisterError::WindowsBound(bound & !REGION));
        }
        self.entries.slot(slot).revoke();
        let count = control.by_pd.entry(record.pd).or_default();
        count.regions = count.regions.saturating_sub(1);
        Ok(Retired { slot, locked: locked_bytes(record.offset, record.length) })
    }

    /// A window that is not bound yet. The key's index names it; the byte is the consumer's. See ibv_alloc_mw(3).
    pub fn alloc_window(&self, pd: u32, kind: WindowType) -> Result<Key, RegisterError> {
        self.check_process().map_err(|_| RegisterError::Forked)?;
        let mut control = self.control();
        let (slot, key) = self.issue(&mut control).ok_or_else(|| self.full())?;
        control.by_pd.entry(pd).or_default().windows += 1;
        let slot = &self.slots[slot as usize];
        slot.pd.store(pd, Ordering::Relaxed);
        slot.parent.store(UNBOUND, Ordering::Relaxed);
        slot.state.store(kind.state(), Ordering::Release);
        Ok(key)
    }

    /// Unbinds and frees a window, named by any key of its index. See ibv_dealloc_mw(3).
    pub fn free_window(&self, key: Key) -> Result<Retired, DeregisterError> {
        self.check_process().map_err(|_| DeregisterError::Forked)?;
        let mut control = self.control();
        let claim = self.claim_window(key).map_err(|e| match e {
            ClaimError::Unknown => DeregisterError::UnknownKey,
            ClaimError::Busy => DeregisterError::Busy,
        })?;
        self.unbind(&claim);
        let count = control.by_pd.entry(claim.pd()).or_default();
        count.windows = count.windows.saturating_sub(1);
        Ok(Retired { slot: claim.free(), locked: 0 })
    }

    /// Gives a retired entry back to the table, once no peer can be using it any more.
    #[expect(clippy::needless_pass_by_value, reason = "an entry is given back once")]
    pub fn reclaim(&self, retired: Retired) {
        let Retired { slot, locked } = retired;
        let mut control = self.control();
        control.locked = control.locked.saturating_sub(locked);
        control.free.push(slot);
    }

    /// What a protection domain still holds.
    pub fn pd_use(&self, pd: u32) -> PdUse {
        self.control().by_pd.get(&pd).copied().unwrap_or_default()
    }

    /// What the device still holds.
    pub fn outstanding(&self) -> Outstanding {
        let control = self.control();
        Outstanding {
            regions: control.by_pd.values().map(|pd| pd.regions).sum(),
            windows: control.by_pd.values().map(|pd| pd.windows).sum(),
            registered_bytes: control.locked,
            free_entries: u32::try_from(control.free.len()).unwrap_or(u32::MAX),
        }
    }

    /// Where `len` bytes at `va` lie, if `lkey` reaches them for a queue pair of `pd`. A length of 0 checks nothing, and is nowhere.
    #[inline]
    pub fn check_local(
        &self,
        lkey: Key,
        pd: u32,
        va: u64,
        len: u64,
        need_write: bool,
    ) -> Result<Option<Place>, LookupError> {
        self.entries.check_local(lkey, pd, va, len, need_write)
    }

    /// Where `len` bytes at `va` lie, if `rkey` gives a peer of queue pair `qpn` in `pd` all of `rights` on them. A length of 0
    /// checks nothing, and is nowhere (IBTA 1.4, 9.4.3: the key of a zero-length request is not looked at).
    #[inline]
    pub fn check_remote(
        &self,
        rkey: Key,
        pd: u32,
        qpn: u32,
        va: u64,
        len: u64,
        rights: Access,
    ) -> Result<Option<Place>, LookupError> {
        self.entries.check_remote(rkey, pd, qpn, va, len, rights)
    }

    fn check_process(&self) -> Result<(), AccessError> {
        self.entries.header.segment().check_process()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        // A panic elsewhere leaves no half-done update behind that matters more than going on.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self) -> RegisterError {
        RegisterError::TableFull(self.entries.capacity())
    }

    /// A random free slot and a fresh key for it.
    fn issue(&self, control: &mut Control) -> Option<(u32, Key)> {
        let free = u64::try_from(control.free.len()).ok().filter(|free| *free > 0)?;
        let choice = usize::try_from((control.entropy)() % free).ok()?;
        let slot = control.free.swap_remove(choice);
        let issued = &self.slots[slot as usize].issued;
        let before = Key(issued.load(Ordering::Relaxed)).index();
        let [r0, r1, r2, r3, ..] = (control.entropy)().to_le_bytes();
        let capacity = self.entries.capacity();
        let high = u32::from_le_bytes([r0, r1, r2, 0]) & !(capacity - 1);
        let mut key = Key((high | slot) << 8).with_consumer_byte(r3);
        // Index 0 could lead to key 0, which means none; the slot's last index would bring a stale key back to life. The bits
        // above the slot number have at least 16 values, so this ends.
        while key.index() == 0 || key.index() == before {
            key = Key(key.0.wrapping_add(capacity << 8));
        }
        issued.store(key.0, Ordering::Relaxed);
        Some((slot, key))
    }
}

/// Bytes of the pages that a registration touches.
fn locked_bytes(offset: u64, length: u64) -> u64 {
    let page = page_size();
    let first = offset - offset % page;
    (offset + length).div_ceil(page).saturating_mul(page) - first
}

impl fmt::Debug for MemoryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTable")
            .field("capacity", &self.entries.capacity())
            .finish_non_exhaustive()
    }
}
