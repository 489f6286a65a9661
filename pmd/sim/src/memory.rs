//! A host's registered memory: regions, windows, keys, rights, in plain vectors.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pmd_roce::ids::{Lkey, PdId, Rkey};
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::work::{Access, RemoteAddr, Sge, WindowBind};

use crate::rng::Rng;

/// A registered region as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Key toward the own device.
    pub lkey: Lkey,
    /// Key toward peers.
    pub rkey: Rkey,
}

impl Mr {
    /// `len` bytes from `offset` on, as a local element.
    pub const fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr + offset, len, lkey: self.lkey }
    }

    /// The place `offset` bytes into the region, as a peer names it.
    pub const fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr + offset, rkey: self.rkey }
    }
}

#[derive(Debug)]
struct Region {
    pd: PdId,
    addr: u64,
    bytes: Vec<u8>,
    access: Access,
    rkey: Rkey,
}

impl Region {
    /// Position of a range inside the region.
    fn locate(&self, addr: u64, len: u64) -> Result<usize, MemoryFault> {
        let offset = addr.checked_sub(self.addr).ok_or(MemoryFault::OutOfBounds)?;
        let end = offset.checked_add(len).ok_or(MemoryFault::OutOfBounds)?;
        if end > self.bytes.len() as u64 {
            return Err(MemoryFault::OutOfBounds);
        }
        usize::try_from(offset).map_err(|_| MemoryFault::OutOfBounds)
    }
}

/// What an rkey opens.
#[derive(Clone, Copy, Debug)]
enum Door {
    Region(Lkey),
    Window { pd: PdId, bound: Option<Bound> },
}

/// The binding of a type 2 window.
#[derive(Clone, Copy, Debug)]
struct Bound {
    by: Asker,
    region: Lkey,
    addr: u64,
    len: u64,
    access: Access,
}

/// Registered memory of one host.
#[derive(Debug)]
pub struct HostMemory {
    rng: Rng,
    next_addr: u64,
    regions: BTreeMap<Lkey, Region>,
    doors: BTreeMap<Rkey, Door>,
}

impl HostMemory {
    pub(crate) fn new(index: usize, mut rng: Rng) -> Self {
        // Ranges of hosts do not overlap, so that an address used on the wrong host is no address.
        let next_addr = (index as u64 + 1) << 40 | rng.below(1 << 20) << 12;
        Self { rng, next_addr, regions: BTreeMap::new(), doors: BTreeMap::new() }
    }

    /// Registers `len` zero bytes.
    pub fn register(&mut self, pd: PdId, len: usize, access: Access) -> Mr {
        let mut lkey = Lkey(self.rng.bits32());
        while self.regions.contains_key(&lkey) {
            lkey = Lkey(self.rng.bits32());
        }
        let rkey = self.fresh_rkey();
        let addr = self.next_addr;
        // A gap after each region: running over its end hits nothing.
        self.next_addr += (len as u64).next_multiple_of(4096) + 4096;
        self.regions.insert(lkey, Region { pd, addr, bytes: vec![0; len], access, rkey });
        self.doors.insert(rkey, Door::Region(lkey));
        Mr { addr, len: len as u64, lkey, rkey }
    }

    /// Ends a registration; false when there is none.
    pub fn deregister(&mut self, lkey: Lkey) -> bool {
        let Some(region) = self.regions.remove(&lkey) else { return false };
        self.doors.remove(&region.rkey);
        true
    }

    /// Allocates a type 2 window; it opens nothing until it is bound.
    pub fn alloc_window(&mut self, pd: PdId) -> Rkey {
        let rkey = self.fresh_rkey();
        self.doors.insert(rkey, Door::Window { pd, bound: None });
        rkey
    }

    /// Bytes of a registered range, as the host's own CPU sees them; `None` outside of regions.
    pub fn bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        self.regions.values().find_map(|region| {
            let at = region.locate(addr, len as u64).ok()?;
            Some(&region.bytes[at..at + len])
        })
    }

    /// Bytes of a registered range, for the host's own CPU to write; `None` outside of regions.
    pub fn bytes_mut(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        self.regions.values_mut().find_map(|region| {
            let at = region.locate(addr, len as u64).ok()?;
            Some(&mut region.bytes[at..at + len])
        })
    }

    fn fresh_rkey(&mut self) -> Rkey {
        loop {
            let rkey = Rkey(self.rng.bits32());
            // The low byte is the consumer's, so that only the upper 24 bits tell keys apart.
            if !self.doors.keys().any(|taken| taken.0 >> 8 == rkey.0 >> 8) {
                return rkey;
            }
        }
    }

    fn local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(&Region, usize), MemoryFault> {
        let region = self.regions.get(&sge.lkey).ok_or(MemoryFault::UnknownKey)?;
        if region.pd != pd {
            return Err(MemoryFault::WrongDomain);
        }
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(MemoryFault::NoPermission);
        }
        Ok((region, region.locate(sge.addr, u64::from(sge.len))?))
    }

    /// The region and position that a peer's key and address name.
    fn remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(Lkey, usize), MemoryFault> {
        let (lkey, addr, access, pd) =
            match *self.doors.get(&at.rkey).ok_or(MemoryFault::UnknownKey)? {
                Door::Region(lkey) => {
                    let region = &self.regions[&lkey];
                    (lkey, at.addr, region.access, region.pd)
                }
                Door::Window { pd, bound } => {
                    let bound = bound.ok_or(MemoryFault::UnknownKey)?;
                    if bound.by.qpn != by.qpn {
                        return Err(MemoryFault::WrongDomain);
                    }
                    let addr = if bound.access.contains(Access::ZERO_BASED) {
                        bound.addr.checked_add(at.addr).ok_or(MemoryFault::OutOfBounds)?
                    } else {
                        at.addr
                    };
                    let offset = addr.checked_sub(bound.addr).ok_or(MemoryFault::OutOfBounds)?;
                    if offset.checked_add(len).is_none_or(|end| end > bound.len) {
                        return Err(MemoryFault::OutOfBounds);
                    }
                    (bound.region, addr, bound.access, pd)
                }
            };
        if pd != by.pd {
            return Err(MemoryFault::WrongDomain);
        }
        if !access.contains(rights) {
            return Err(MemoryFault::NoPermission);
        }
        let region = self.regions.get(&lkey).ok_or(MemoryFault::UnknownKey)?;
        Ok((lkey, region.locate(addr, len)?))
    }

    /// Address of a range that a peer may access so, windows resolved.
    pub(crate) fn place(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<u64, MemoryFault> {
        let (lkey, offset) = self.remote(by, at, len, rights)?;
        Ok(self.regions[&lkey].addr + offset as u64)
    }

    fn remote_mut(
        &mut self,
        by: Asker,
        at: RemoteAddr,
        len: usize,
        rights: Access,
    ) -> Result<&mut [u8], MemoryFault> {
        let (lkey, offset) = self.remote(by, at, len as u64, rights)?;
        let region = self.regions.get_mut(&lkey).ok_or(MemoryFault::UnknownKey)?;
        Ok(&mut region.bytes[offset..offset + len])
    }
}

/// A host's memory as its engine sees it. Shared, since peers on the same machine reach it too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<'a>(pub(crate) &'a RefCell<HostMemory>);

impl Memory for Shared<'_> {
    fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), MemoryFault> {
        if sge.len == 0 {
            return Ok(());
        }
        self.0.borrow().local(pd, sge, write).map(|_| ())
    }

    fn gather(&self, pd: PdId, sge: &Sge, offset: u32, into: &mut [u8]) -> Result<(), MemoryFault> {
        if into.is_empty() {
            return Ok(());
        }
        let memory = self.0.borrow();
        let (region, at) = memory.local(pd, sge, false)?;
        let from = at + offset as usize;
        assert!(offset as usize + into.len() <= sge.len as usize, "gathers beyond the element");
        into.copy_from_slice(&region.bytes[from..from + into.len()]);
        Ok(())
    }

    fn scatter(
        &mut self,
        pd: PdId,
        sge: &Sge,
        offset: u32,
        from: &[u8],
    ) -> Result<(), MemoryFault> {
        if from.is_empty() {
            return Ok(());
        }
        let mut memory = self.0.borrow_mut();
        let (_, at) = memory.local(pd, sge, true)?;
        assert!(offset as usize + from.len() <= sge.len as usize, "scatters beyond the element");
        let at = at + offset as usize;
        let region = memory.regions.get_mut(&sge.lkey).ok_or(MemoryFault::UnknownKey)?;
        region.bytes[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(), MemoryFault> {
        if len == 0 {
            return Ok(());
        }
        self.0.borrow().remote(by, at, len, rights).map(|_| ())
    }

    fn read_remote(&self, by: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault> {
        if into.is_empty() {
            return Ok(());
        }
        let memory = self.0.borrow();
        let (lkey, offset) = memory.remote(by, at, into.len() as u64, Access::REMOTE_READ)?;
        into.copy_from_slice(&memory.regions[&lkey].bytes[offset..offset + into.len()]);
        Ok(())
    }

    fn write_remote(&mut self, by: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault> {
        if from.is_empty() {
            return Ok(());
        }
        let mut memory = self.0.borrow_mut();
        memory.remote_mut(by, at, from.len(), Access::REMOTE_WRITE)?.copy_from_slice(from);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        by: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        assert_eq!(at.addr % 8, 0, "the caller checks alignment");
        let mut memory = self.0.borrow_mut();
        let cell = memory.remote_mut(by, at, 8, Access::REMOTE_ATOMIC)?;
        let mut old = [0; 8];
        old.copy_from_slice(cell);
        let old = u64::from_ne_bytes(old);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd(add) => old.wrapping_add(add),
        };
        cell.copy_from_slice(&new.to_ne_bytes());
        Ok(old)
    }

    fn invalidate(&mut self, by: Asker, key: Rkey) -> Result<(), MemoryFault> {
        let mut memory = self.0.borrow_mut();
        match memory.doors.get_mut(&key).ok_or(MemoryFault::UnknownKey)? {
            Door::Window { pd, bound } => {
                let owner = bound.ok_or(MemoryFault::UnknownKey)?.by;
                if *pd != by.pd || owner.qpn != by.qpn {
                    return Err(MemoryFault::WrongDomain);
                }
                *bound = None;
            }
            Door::Region(lkey) => {
                let lkey = *lkey;
                if memory.regions[&lkey].pd != by.pd {
                    return Err(MemoryFault::WrongDomain);
                }
                // The region stays registered for its owner; peers lose it.
                memory.doors.remove(&key);
            }
        }
        Ok(())
    }

    fn bind(&mut self, by: Asker, bind: &WindowBind) -> Result<(), MemoryFault> {
        let mut memory = self.0.borrow_mut();
        let Some(Door::Window { pd, bound: None }) = memory.doors.get(&bind.window).copied() else {
            return Err(MemoryFault::UnknownKey);
        };
        let region = memory.regions.get(&bind.region).ok_or(MemoryFault::UnknownKey)?;
        if pd != by.pd || region.pd != by.pd || bind.new_key.0 >> 8 != bind.window.0 >> 8 {
            return Err(MemoryFault::WrongDomain);
        }
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !region.access.contains(Access::MW_BIND)
            || (writes && !region.access.contains(Access::LOCAL_WRITE))
        {
            return Err(MemoryFault::NoPermission);
        }
        region.locate(bind.addr, bind.len)?;
        let bound =
            Bound { by, region: bind.region, addr: bind.addr, len: bind.len, access: bind.access };
        memory.doors.remove(&bind.window);
        memory.doors.insert(bind.new_key, Door::Window { pd, bound: Some(bound) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmd_roce::ids::Qpn;

    const PD: PdId = PdId(1);
    const BY: Asker = Asker { pd: PD, qpn: Qpn::new(0x11) };

    fn memory() -> RefCell<HostMemory> {
        RefCell::new(HostMemory::new(0, Rng::new(1)))
    }

    #[test]
    fn keys_domains_rights_and_bounds_are_checked() {
        let memory = memory();
        let mr = memory.borrow_mut().register(PD, 100, Access::REMOTE_READ);
        let mut shared = Shared(&memory);
        let check = |at, len, rights| shared.check_remote(BY, at, len, rights);
        assert_eq!(check(mr.at(0), 100, Access::REMOTE_READ), Ok(()));
        assert_eq!(check(mr.at(1), 100, Access::REMOTE_READ), Err(MemoryFault::OutOfBounds));
        assert_eq!(check(mr.at(0), 1, Access::REMOTE_WRITE), Err(MemoryFault::NoPermission));
        let bad = RemoteAddr { addr: mr.addr, rkey: Rkey(!mr.rkey.0) };
        assert_eq!(check(bad, 1, Access::REMOTE_READ), Err(MemoryFault::UnknownKey));
        assert_eq!(check(bad, 0, Access::REMOTE_READ), Ok(()), "zero length checks nothing");
        let other = Asker { pd: PdId(2), ..BY };
        assert_eq!(
            shared.check_remote(other, mr.at(0), 1, Access::REMOTE_READ),
            Err(MemoryFault::WrongDomain)
        );
        assert_eq!(shared.scatter(PD, &mr.sge(0, 1), 0, &[1]), Err(MemoryFault::NoPermission));
        assert!(memory.borrow_mut().deregister(mr.lkey));
        assert_eq!(shared.check_local(PD, &mr.sge(0, 1), false), Err(MemoryFault::UnknownKey));
    }

    #[test]
    fn a_window_opens_a_part_of_a_region_to_one_queue_pair() {
        let memory = memory();
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let mr = memory.borrow_mut().register(PD, 64, access);
        let window = memory.borrow_mut().alloc_window(PD);
        let new_key = Rkey(window.0 ^ 1);
        let mut shared = Shared(&memory);
        let bind = WindowBind {
            window,
            new_key,
            region: mr.lkey,
            addr: mr.addr + 8,
            len: 8,
            access: Access::REMOTE_WRITE,
        };
        assert_eq!(shared.bind(BY, &bind), Ok(()));
        let at = RemoteAddr { addr: mr.addr + 8, rkey: new_key };
        assert_eq!(shared.write_remote(BY, at, &[7; 8]), Ok(()));
        assert_eq!(shared.write_remote(BY, at, &[7; 9]), Err(MemoryFault::OutOfBounds));
        let stranger = Asker { qpn: Qpn::new(0x12), ..BY };
        assert_eq!(shared.write_remote(stranger, at, &[7; 8]), Err(MemoryFault::WrongDomain));
        assert_eq!(shared.invalidate(BY, new_key), Ok(()));
        assert_eq!(shared.write_remote(BY, at, &[7; 8]), Err(MemoryFault::UnknownKey));
        assert_eq!(
            memory.borrow().bytes(mr.addr, 24).unwrap()[7..17],
            [0, 7, 7, 7, 7, 7, 7, 7, 7, 0]
        );
    }

    #[test]
    fn atomics_work_on_the_hosts_numbers() {
        let memory = memory();
        let mr = memory.borrow_mut().register(PD, 8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC);
        let mut shared = Shared(&memory);
        assert_eq!(shared.atomic_remote(BY, mr.at(0), AtomicOp::FetchAdd(5)), Ok(0));
        let swap = |compare, swap| AtomicOp::CompareSwap { compare, swap };
        assert_eq!(shared.atomic_remote(BY, mr.at(0), swap(4, 9)), Ok(5));
        assert_eq!(shared.atomic_remote(BY, mr.at(0), swap(5, 9)), Ok(5));
        assert_eq!(memory.borrow().bytes(mr.addr, 8).unwrap(), 9u64.to_ne_bytes());
    }
}
