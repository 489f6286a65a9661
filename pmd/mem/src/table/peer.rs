use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::entry::{Entries, MAGIC};
use super::{Access, Key, KeyCache, LookupError, Place};
use crate::limits::TABLE_ENTRIES_MAX;
use crate::segment::{AccessError, Segment};

/// A peer's memory table, read in place.
///
/// Nothing in it is trusted: keys select a slot by masking, and what a slot claims is checked for overflow here and against the
/// bounds of the region it names by that region's [`Segment`]. A peer that writes nonsense harms only itself.
#[derive(Clone, Debug)]
pub struct PeerTable {
    entries: Entries,
    fence: u32,
}

/// The segment that a peer sent holds no memory table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignTable {
    /// It does not begin like one: another program, or another version.
    #[error("the peer's segment is no memory table of this version")]
    Magic,
    /// Its capacity is no power of two, or too large.
    #[error("the peer's memory table claims {0} entries")]
    Capacity(u32),
    /// It is shorter than its capacity says.
    #[error("the peer's memory table is cut short: {0}")]
    Short(#[from] AccessError),
}

impl PeerTable {
    /// Reads the header of a table that a peer exported.
    pub fn import(segment: &Arc<Segment>) -> Result<Self, ForeignTable> {
        let header = Entries::new(segment, 1)?.header;
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(ForeignTable::Magic);
        }
        let capacity = header.capacity.load(Ordering::Relaxed);
        if !capacity.is_power_of_two() || capacity > TABLE_ENTRIES_MAX {
            return Err(ForeignTable::Capacity(capacity));
        }
        let fence = header.fence.load(Ordering::Relaxed);
        Ok(Self { entries: Entries::new(segment, capacity)?, fence })
    }

    /// A cache for one user of this table's keys.
    pub fn cache(&self) -> KeyCache {
        KeyCache::new(self.entries.clone())
    }

    /// Whether the owner's [`Fence`](crate::Fence) needs initiators to announce themselves by a full fence.
    pub const fn needs_full_fence(&self) -> bool {
        self.fence != 0
    }

    /// As [`MemoryTable::check_remote`](super::MemoryTable::check_remote), run by the initiator.
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

    /// As [`MemoryTable::check_local`](super::MemoryTable::check_local): where the source of a SEND that this side pulls lies.
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
}
