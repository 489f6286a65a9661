//! The engine's view of memory: the device's memory table, and copies in and out of its regions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pmd_mem::{Key, LookupError, MemoryTable, Place, Region};
use pmd_roce::ids::{PdId, Rkey};
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::work::{Access, RemoteAddr, Sge, WindowBind};

use super::regions::Regions;

/// Memory of a device as one lcore uses it.
#[derive(Clone, Debug)]
pub(crate) struct TableMemory {
    table: Arc<MemoryTable>,
    regions: Arc<Regions>,
}

impl TableMemory {
    pub(crate) const fn new(table: Arc<MemoryTable>, regions: Arc<Regions>) -> Self {
        Self { table, regions }
    }

    fn local(
        &self,
        pd: PdId,
        sge: &Sge,
        offset: u32,
        len: usize,
        write: bool,
    ) -> Result<Option<At<'_>>, MemoryFault> {
        if u64::from(offset) + len as u64 > u64::from(sge.len) {
            return Err(MemoryFault::OutOfBounds);
        }
        let va = sge.addr.wrapping_add(u64::from(offset));
        let place =
            self.table.check_local(Key(sge.lkey.0), pd.0, va, len as u64, write).map_err(fault)?;
        self.at(place)
    }

    fn remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: usize,
        rights: Access,
    ) -> Result<Option<At<'_>>, MemoryFault> {
        let place = self
            .table
            .check_remote(
                Key(at.rkey.0),
                by.pd.0,
                by.qpn.value(),
                at.addr,
                len as u64,
                access(rights),
            )
            .map_err(fault)?;
        self.at(place)
    }

    fn at(&self, place: Option<Place>) -> Result<Option<At<'_>>, MemoryFault> {
        place
            .map(|place| {
                let region = self.regions.get(place.region).ok_or(MemoryFault::UnknownKey)?;
                Ok(At { region, offset: place.offset })
            })
            .transpose()
    }
}

/// A checked place in a region of this process.
struct At<'a> {
    region: &'a Arc<Region>,
    offset: u64,
}

fn fault(error: LookupError) -> MemoryFault {
    match error {
        LookupError::UnknownKey | LookupError::Revoked => MemoryFault::UnknownKey,
        LookupError::WrongPd | LookupError::WrongQp => MemoryFault::WrongDomain,
        LookupError::NoPermission(_) => MemoryFault::NoPermission,
        LookupError::OutOfBounds => MemoryFault::OutOfBounds,
    }
}

/// The same bits: both carry the values of `enum ibv_access_flags`.
pub(crate) const fn access(rights: Access) -> pmd_mem::Access {
    pmd_mem::Access::from_bits_truncate(rights.bits())
}

impl Memory for TableMemory {
    fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), MemoryFault> {
        self.table
            .check_local(Key(sge.lkey.0), pd.0, sge.addr, u64::from(sge.len), write)
            .map(|_| ())
            .map_err(fault)
    }

    fn gather(&self, pd: PdId, sge: &Sge, offset: u32, into: &mut [u8]) -> Result<(), MemoryFault> {
        let Some(at) = self.local(pd, sge, offset, into.len(), false)? else { return Ok(()) };
        at.region.read_at(at.offset, into).map_err(|_| MemoryFault::OutOfBounds)
    }

    fn scatter(
        &mut self,
        pd: PdId,
        sge: &Sge,
        offset: u32,
        from: &[u8],
    ) -> Result<(), MemoryFault> {
        let Some(at) = self.local(pd, sge, offset, from.len(), true)? else { return Ok(()) };
        at.region.write_at(at.offset, from).map_err(|_| MemoryFault::OutOfBounds)
    }

    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(), MemoryFault> {
        self.table
            .check_remote(Key(at.rkey.0), by.pd.0, by.qpn.value(), at.addr, len, access(rights))
            .map(|_| ())
            .map_err(fault)
    }

    fn read_remote(&self, by: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault> {
        let Some(at) = self.remote(by, at, into.len(), Access::REMOTE_READ)? else { return Ok(()) };
        at.region.read_at(at.offset, into).map_err(|_| MemoryFault::OutOfBounds)
    }

    fn write_remote(&mut self, by: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault> {
        let Some(at) = self.remote(by, at, from.len(), Access::REMOTE_WRITE)? else {
            return Ok(());
        };
        at.region.write_at(at.offset, from).map_err(|_| MemoryFault::OutOfBounds)
    }

    fn atomic_remote(
        &mut self,
        by: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        let at = self.remote(by, at, 8, Access::REMOTE_ATOMIC)?.ok_or(MemoryFault::OutOfBounds)?;
        let cell = at.region.atomic_u64(at.offset).map_err(|_| MemoryFault::OutOfBounds)?;
        Ok(match op {
            AtomicOp::CompareSwap { compare, swap } => cell
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found),
            AtomicOp::FetchAdd(add) => cell.fetch_add(add, Ordering::AcqRel),
        })
    }

    fn invalidate(&mut self, by: Asker, key: Rkey) -> Result<(), MemoryFault> {
        self.table
            .invalidate(Key(key.0), by.pd.0, by.qpn.value())
            .map_err(|_| MemoryFault::UnknownKey)
    }

    fn bind(&mut self, by: Asker, bind: &WindowBind) -> Result<(), MemoryFault> {
        let what = pmd_mem::table::WindowBind {
            region: Key(bind.region.0),
            va: bind.addr,
            length: bind.len,
            access: access(bind.access),
        };
        if bind.window.0 >> 8 != bind.new_key.0 >> 8 {
            return Err(MemoryFault::UnknownKey);
        }
        self.table
            .bind(Key(bind.new_key.0), by.pd.0, by.qpn.value(), &what)
            .map_err(|_| MemoryFault::NoPermission)
    }
}
