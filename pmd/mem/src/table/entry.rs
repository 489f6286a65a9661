//! The layout that owner and peers share, and the lookup both run on it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::Arc;

use super::{Access, Key, LookupError, Place};
use crate::anchor::{Anchor, Layout};
use crate::segment::{AccessError, Segment};

/// Says that a segment holds a memory table of this layout.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"SpwMTbl2");

/// The first 64 bytes of a table.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) capacity: AtomicU32,
    /// How initiators announce themselves: 0 by plain stores, 1 by a full fence.
    pub(super) fence: AtomicU32,
}

// SAFETY: atomics and padding.
unsafe impl Layout for Header {}

/// One registration or window. The owner zeroes `key` before it changes anything else.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Entry {
    /// The whole key; 0: nothing here.
    pub(super) key: AtomicU32,
    /// The key before, to tell a revoked key from one that never was.
    pub(super) previous: AtomicU32,
    /// Access bits, and the kind from [`KIND_SHIFT`] on.
    pub(super) rights: AtomicU32,
    pub(super) pd: AtomicU32,
    pub(super) region: AtomicU32,
    /// The queue pair that a type 2 window is bound to.
    pub(super) qpn: AtomicU32,
    /// From the start of the region to the first byte.
    pub(super) offset: AtomicU64,
    /// Virtual address of the first byte; 0 where zero-based.
    pub(super) base: AtomicU64,
    pub(super) length: AtomicU64,
    /// Moves before anything else does: whoever finds it as it was may go by what the entry said then.
    pub(super) version: AtomicU32,
}

// SAFETY: atomics and padding.
unsafe impl Layout for Entry {}

const _: () = assert!(size_of::<Header>() == 64);
const _: () = assert!(size_of::<Entry>() == 64);

const KIND_SHIFT: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    Region = 0,
    Window1 = 1,
    Window2 = 2,
}

/// An entry's content, copied out and whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) kind_bits: u32,
    pub(super) access: Access,
    pub(super) pd: u32,
    pub(super) region: u32,
    pub(super) qpn: u32,
    pub(super) offset: u64,
    pub(super) base: u64,
    pub(super) length: u64,
}

impl Record {
    pub(super) const fn is(&self, kind: Kind) -> bool {
        self.kind_bits == kind as u32
    }

    /// Bounds by subtraction, so that no content of a table can overflow them.
    #[inline]
    pub(super) fn place(&self, va: u64, len: u64) -> Result<Place, LookupError> {
        let within = va.checked_sub(self.base).ok_or(LookupError::OutOfBounds)?;
        if len > self.length || within > self.length - len {
            return Err(LookupError::OutOfBounds);
        }
        let offset = self.offset.checked_add(within).ok_or(LookupError::OutOfBounds)?;
        Ok(Place { region: self.region, offset })
    }
}

impl Entry {
    #[inline]
    pub(super) fn read(&self, key: Key) -> Result<Record, LookupError> {
        if self.key.load(Ordering::Acquire) != key.0 || key.0 == 0 {
            return Err(self.absent(key));
        }
        let rights = self.rights.load(Ordering::Relaxed);
        let record = Record {
            kind_bits: rights >> KIND_SHIFT,
            access: Access::from_bits_truncate(rights),
            pd: self.pd.load(Ordering::Relaxed),
            region: self.region.load(Ordering::Relaxed),
            qpn: self.qpn.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            base: self.base.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
        };
        // Any field that was already overwritten makes the zeroed key visible here.
        fence(Ordering::Acquire);
        if self.key.load(Ordering::Relaxed) == key.0 {
            Ok(record)
        } else {
            Err(LookupError::Revoked)
        }
    }

    #[cold]
    fn absent(&self, key: Key) -> LookupError {
        if key.0 != 0 && self.previous.load(Ordering::Relaxed) == key.0 {
            LookupError::Revoked
        } else {
            LookupError::UnknownKey
        }
    }

    /// Publishes an entry whose key is 0.
    pub(super) fn publish(&self, key: Key, kind: Kind, record: &Record) {
        self.key.store(0, Ordering::Relaxed);
        self.renew();
        fence(Ordering::Release);
        self.rights.store(record.access.bits() | (kind as u32) << KIND_SHIFT, Ordering::Relaxed);
        self.pd.store(record.pd, Ordering::Relaxed);
        self.region.store(record.region, Ordering::Relaxed);
        self.qpn.store(record.qpn, Ordering::Relaxed);
        self.offset.store(record.offset, Ordering::Relaxed);
        self.base.store(record.base, Ordering::Relaxed);
        self.length.store(record.length, Ordering::Relaxed);
        self.key.store(key.0, Ordering::Release);
    }

    fn renew(&self) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
    }

    /// Takes the key back. Lookups that already passed may still be copying: see [`crate::Fence`].
    pub(super) fn revoke(&self) {
        let key = self.key.load(Ordering::Relaxed);
        if key != 0 {
            self.previous.store(key, Ordering::Relaxed);
            self.renew();
            self.key.store(0, Ordering::Release);
        }
    }
}

/// Header and entries of a table, owned or foreign.
#[derive(Clone, Debug)]
pub(super) struct Entries {
    pub(super) header: Anchor<Header>,
    slots: Anchor<[Entry]>,
    mask: u32,
}

impl Entries {
    /// `capacity`, a power of two, entries from the start of `segment`.
    pub(super) fn new(segment: &Arc<Segment>, capacity: u32) -> Result<Self, AccessError> {
        debug_assert!(capacity.is_power_of_two());
        Ok(Self {
            header: Anchor::one(segment, 0)?,
            slots: Anchor::many(segment, size_of::<Header>() as u64, capacity as usize)?,
            mask: capacity - 1,
        })
    }

    pub(super) const fn capacity(&self) -> u32 {
        self.mask + 1
    }

    /// The slot of a key: its index, modulo the capacity.
    #[inline]
    pub(super) const fn slot_of(&self, key: Key) -> u32 {
        key.index() & self.mask
    }

    #[inline]
    pub(super) fn slot(&self, slot: u32) -> &Entry {
        &self.slots[slot as usize]
    }

    /// The entry of a key, by itself.
    pub(super) fn anchor(&self, key: Key) -> Option<Anchor<Entry>> {
        self.slots.element(self.slot_of(key) as usize)
    }

    #[inline]
    pub(super) fn of(&self, key: Key) -> &Entry {
        self.slot(self.slot_of(key))
    }

    #[inline]
    pub(super) fn check_local(
        &self,
        lkey: Key,
        pd: u32,
        va: u64,
        len: u64,
        need_write: bool,
    ) -> Result<Option<Place>, LookupError> {
        if len == 0 {
            return Ok(None);
        }
        let record = self.of(lkey).read(lkey)?;
        if !record.is(Kind::Region) {
            return Err(LookupError::UnknownKey);
        }
        if record.pd != pd {
            return Err(LookupError::WrongPd);
        }
        if need_write && !record.access.contains(Access::LOCAL_WRITE) {
            return Err(LookupError::NoPermission(Access::LOCAL_WRITE));
        }
        record.place(va, len).map(Some)
    }

    #[inline]
    pub(super) fn check_remote(
        &self,
        rkey: Key,
        pd: u32,
        qpn: u32,
        va: u64,
        len: u64,
        rights: Access,
    ) -> Result<Option<Place>, LookupError> {
        if len == 0 {
            return Ok(None);
        }
        let record = self.of(rkey).read(rkey)?;
        if record.pd != pd {
            return Err(LookupError::WrongPd);
        }
        if record.is(Kind::Window2) && record.qpn != qpn {
            return Err(LookupError::WrongQp);
        }
        if !record.access.contains(rights) {
            return Err(LookupError::NoPermission(rights.difference(record.access)));
        }
        record.place(va, len).map(Some)
    }
}
