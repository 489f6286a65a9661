//! What memory an lcore can reach: its own device's, and what a peer exported.
//!
//! Both are a table of keys and the regions that the table's entries name. They change when registrations and peers come and go,
//! by a message to the lcore, so looking something up takes no lock and no counted reference.

use std::sync::Arc;

use pmd_mem::{Access, AccessError, Key, KeyCache, MemoryTable, PeerTable, Segment};

use super::limits::SGES_MAX;
use super::record::Piece;

/// A local scatter/gather element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Virtual address within the region's address range.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address as the peer announced it.
    pub addr: u64,
    /// Key that the peer announced with it.
    pub rkey: u32,
    /// Protection domain of the target queue pair, from its page.
    pub pd: u32,
    /// The target queue pair.
    pub qpn: u32,
}

/// Why an operation on memory did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// A local element is not registered for this use.
    #[error("a local element is not registered for this use")]
    Local,
    /// The peer's key, rights or bounds forbid it.
    #[error("the peer's key, rights or bounds forbid it")]
    Remote,
    /// The peer's key is valid but its memory is not mapped here yet: try again at the next poll.
    #[error("the peer's memory is not mapped yet")]
    NotYet,
    /// The peer's key is valid, but its memory stays in its process: it is not one that can be mapped.
    #[error("the peer's memory is registered, but not shared with other processes")]
    Private,
    /// The link is down.
    #[error("the peer is gone")]
    Gone,
}

/// A region of this device.
#[derive(Clone, Debug)]
pub(crate) struct OwnRegion {
    pub(crate) segment: Arc<Segment>,
    /// Whether peers have it mapped, or soon will.
    pub(crate) exported: bool,
}

/// The memory of this device.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) table: Arc<MemoryTable>,
    pub(crate) regions: Vec<Option<OwnRegion>>,
}

/// The memory of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub(crate) table: PeerTable,
    pub(crate) regions: Vec<Option<PeerRegion>>,
}

/// A region of a peer, once it has said something about it.
#[derive(Clone, Debug)]
pub(crate) enum PeerRegion {
    /// Mapped here.
    Mapped(Arc<Segment>),
    /// Not for other processes.
    Private,
}

/// Sets an element of a vector that grows as needed.
pub(crate) fn put<T>(regions: &mut Vec<Option<T>>, id: u32, region: Option<T>) {
    let id = id as usize;
    if id >= regions.len() {
        regions.resize_with(id + 1, || None);
    }
    regions[id] = region;
}

impl Own {
    /// Where the first `len` bytes of an element are; `None` when there are none.
    #[inline]
    pub(crate) fn local(
        &self,
        pd: u32,
        sge: &Sge,
        len: u64,
        write: bool,
    ) -> Result<Option<(&OwnRegion, u64)>, MemoryFault> {
        let place = self
            .table
            .check_local(Key(sge.lkey), pd, sge.addr, len, write)
            .map_err(|_| MemoryFault::Local)?;
        let Some(place) = place else { return Ok(None) };
        match self.regions.get(place.region as usize) {
            Some(Some(region)) => Ok(Some((region, place.offset))),
            _ => Err(MemoryFault::Local),
        }
    }

    /// Whether peers have a region mapped, or soon will.
    #[inline]
    pub(crate) fn is_exported(&self, id: u32) -> bool {
        matches!(self.regions.get(id as usize), Some(Some(region)) if region.exported)
    }

    /// Has a cache find the region of a key the next time.
    #[cold]
    pub(crate) fn remember(&self, keys: &mut KeyCache, lkey: u32) {
        keys.remember(Key(lkey), |id| match self.regions.get(id as usize) {
            Some(Some(region)) => Some(&region.segment),
            _ => None,
        });
    }
}

/// Local elements whose keys allow what is meant with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements<'a> {
    own: &'a Own,
    pd: u32,
    sges: &'a [Sge],
    write: bool,
    /// Bytes of all together.
    pub(crate) total: u64,
    /// Whether peers can reach all of them.
    pub(crate) exported: bool,
    /// Where the bytes are when there is but one element, the usual case.
    only: Option<(&'a OwnRegion, u64)>,
}

impl<'a> Elements<'a> {
    /// Checks every element before any is touched.
    pub(crate) fn new(
        own: &'a Own,
        pd: u32,
        sges: &'a [Sge],
        write: bool,
    ) -> Result<Self, MemoryFault> {
        if sges.len() > SGES_MAX {
            return Err(MemoryFault::Local);
        }
        let mut elements = Self { own, pd, sges, write, total: 0, exported: true, only: None };
        for sge in sges {
            let len = u64::from(sge.len);
            let there = own.local(pd, sge, len, write)?;
            elements.total += len;
            elements.exported &= there.is_none_or(|(region, _)| region.exported);
            if sges.len() == 1 {
                elements.only = there;
            }
        }
        Ok(elements)
    }

    /// Runs `copy` on each element's segment, offset and length. Looking several up again is cheaper than to remember them.
    pub(crate) fn each(
        &self,
        mut copy: impl FnMut(&Segment, u64, u64) -> Result<(), AccessError>,
    ) -> Result<(), MemoryFault> {
        if let Some((region, offset)) = self.only {
            return copy(&region.segment, offset, self.total).map_err(|_| MemoryFault::Local);
        }
        for sge in self.sges {
            let len = u64::from(sge.len);
            if let Some((region, offset)) = self.own.local(self.pd, sge, len, self.write)? {
                copy(&region.segment, offset, len).map_err(|_| MemoryFault::Local)?;
            }
        }
        Ok(())
    }

    /// The elements as a peer has to look for them.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let pd = self.pd;
        let bytes = self.sges.iter().filter(|sge| sge.len > 0);
        bytes.map(move |sge| Piece { lkey: sge.lkey, pd, addr: sge.addr, len: sge.len })
    }
}

impl Reach {
    /// Has a cache find the region of a key the next time.
    #[cold]
    pub(crate) fn remember(&self, keys: &mut KeyCache, key: u32) {
        keys.remember(Key(key), |id| match self.regions.get(id as usize) {
            Some(Some(PeerRegion::Mapped(segment))) => Some(segment),
            _ => None,
        });
    }

    /// Where `len` bytes at the peer are, if it grants all of `rights`.
    #[inline]
    pub(crate) fn remote(
        &self,
        at: &Remote,
        len: u64,
        rights: Access,
    ) -> Result<Option<(&Segment, u64)>, MemoryFault> {
        let place = self
            .table
            .check_remote(Key(at.rkey), at.pd, at.qpn, at.addr, len, rights)
            .map_err(|_| MemoryFault::Remote)?;
        let Some(place) = place else { return Ok(None) };
        let segment = self.region(place.region, place.offset, len)?;
        if rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !segment.is_writable()
        {
            return Err(MemoryFault::NotYet);
        }
        Ok(Some((segment, place.offset)))
    }

    /// Where `len` bytes are that the peer offered by its own key, for this side to take.
    #[inline]
    pub(crate) fn source(
        &self,
        lkey: u32,
        pd: u32,
        addr: u64,
        len: u64,
    ) -> Result<Option<(&Segment, u64)>, MemoryFault> {
        let place = self
            .table
            .check_local(Key(lkey), pd, addr, len, false)
            .map_err(|_| MemoryFault::Remote)?;
        let Some(place) = place else { return Ok(None) };
        Ok(Some((self.region(place.region, place.offset, len)?, place.offset)))
    }

    /// The region that the peer's table names: what the table claims is checked against what is mapped.
    #[inline]
    fn region(&self, id: u32, offset: u64, len: u64) -> Result<&Segment, MemoryFault> {
        let segment = match self.regions.get(id as usize) {
            Some(Some(PeerRegion::Mapped(segment))) => segment,
            Some(Some(PeerRegion::Private)) => return Err(MemoryFault::Private),
            Some(None) | None => return Err(MemoryFault::NotYet),
        };
        if offset > segment.len() || len > segment.len() - offset {
            return Err(MemoryFault::Remote);
        }
        Ok(segment)
    }
}
