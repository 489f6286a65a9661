//! What the engine is lent: memory at the recorded addresses and keys, queues, and a wire.

use pmd_roce::ids::{CqId, Gid, Lkey, PdId, Qpn, Rkey};
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::sink::{CqSink, Flow, TxSink};
use pmd_roce::work::{Access, Completion, CqOverrun, RemoteAddr, Sge, WindowBind};

/// The protection domain of everything.
pub(crate) const PD: PdId = PdId(1);

/// A region that both sides may do anything with. One number is its lkey and its rkey.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Registered memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions {
    pub(crate) all: Vec<Region>,
    /// How often the engine has changed something.
    pub(crate) changes: u64,
}

impl Regions {
    /// The bytes of a range, if it is in a region.
    pub(crate) fn range(&self, key: u32, addr: u64, len: usize) -> Result<&[u8], MemoryFault> {
        let region = self.all.iter().find(|region| region.key == key);
        let region = region.ok_or(MemoryFault::UnknownKey)?;
        let offset = addr.checked_sub(region.addr).ok_or(MemoryFault::OutOfBounds)?;
        let offset = usize::try_from(offset).map_err(|_| MemoryFault::OutOfBounds)?;
        let end = offset.checked_add(len).ok_or(MemoryFault::OutOfBounds)?;
        region.bytes.get(offset..end).ok_or(MemoryFault::OutOfBounds)
    }

    pub(crate) fn range_mut(
        &mut self,
        key: u32,
        addr: u64,
        len: usize,
    ) -> Result<&mut [u8], MemoryFault> {
        self.range(key, addr, len)?;
        let region = self.all.iter_mut().find(|region| region.key == key);
        let region = region.ok_or(MemoryFault::UnknownKey)?;
        let offset = usize::try_from(addr - region.addr).map_err(|_| MemoryFault::OutOfBounds)?;
        Ok(&mut region.bytes[offset..offset + len])
    }
}

impl Memory for Regions {
    fn check_local(&self, pd: PdId, sge: &Sge, _: bool) -> Result<(), MemoryFault> {
        assert_eq!(pd, PD);
        self.range(sge.lkey.0, sge.addr, sge.len as usize).map(drop)
    }

    fn gather(&self, _: PdId, sge: &Sge, offset: u32, into: &mut [u8]) -> Result<(), MemoryFault> {
        let addr = sge.addr + u64::from(offset);
        into.copy_from_slice(self.range(sge.lkey.0, addr, into.len())?);
        Ok(())
    }

    fn scatter(&mut self, _: PdId, sge: &Sge, offset: u32, from: &[u8]) -> Result<(), MemoryFault> {
        self.changes += 1;
        let addr = sge.addr + u64::from(offset);
        self.range_mut(sge.lkey.0, addr, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        _: Access,
    ) -> Result<(), MemoryFault> {
        assert_eq!(by.pd, PD);
        if len == 0 {
            return Ok(());
        }
        let len = usize::try_from(len).map_err(|_| MemoryFault::OutOfBounds)?;
        self.range(at.rkey.0, at.addr, len).map(drop)
    }

    fn read_remote(&self, _: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault> {
        into.copy_from_slice(self.range(at.rkey.0, at.addr, into.len())?);
        Ok(())
    }

    fn write_remote(&mut self, _: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault> {
        self.changes += 1;
        self.range_mut(at.rkey.0, at.addr, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        _: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        self.changes += 1;
        let cell = self.range_mut(at.rkey.0, at.addr, 8)?;
        let before = u64::from_ne_bytes(*cell.first_chunk().unwrap());
        let after = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == before => swap,
            AtomicOp::CompareSwap { .. } => before,
            AtomicOp::FetchAdd(add) => before.wrapping_add(add),
        };
        cell.copy_from_slice(&after.to_ne_bytes());
        Ok(before)
    }

    fn invalidate(&mut self, _: Asker, _: Rkey) -> Result<(), MemoryFault> {
        unreachable!("no trace invalidates a key")
    }

    fn bind(&mut self, _: Asker, _: &WindowBind) -> Result<(), MemoryFault> {
        unreachable!("no trace binds a window")
    }
}

/// Completions nobody has looked at.
#[derive(Debug, Default)]
pub(crate) struct Completions(pub(crate) Vec<Completion>);

impl CqSink for Completions {
    fn push(&mut self, _: CqId, completion: Completion) -> Result<(), CqOverrun> {
        self.0.push(completion);
        Ok(())
    }
}

/// Frames that the engine has sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox(pub(crate) Vec<(Flow, Vec<u8>)>);

impl TxSink for Outbox {
    fn send(
        &mut self,
        flow: &Flow,
        _to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool {
        let mut payload = vec![0xee; len];
        fill(0, &mut payload);
        self.0.push((*flow, payload));
        true
    }
}

/// The address of an end in IPv6, for replays of what no trace shows.
pub(crate) fn ipv6(v4: Gid) -> Gid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfd, 0x77]);
    gid[15] = v4.0[15];
    Gid(gid)
}

/// A local element.
pub(crate) const fn sge(key: u32, addr: u64, len: u32) -> Sge {
    Sge { addr, len, lkey: Lkey(key) }
}
