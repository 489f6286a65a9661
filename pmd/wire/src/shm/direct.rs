//! One-sided operations: the initiator does them alone, by one copy into or out of the target's memory.

use core::sync::atomic::{Ordering, fence};

use pmd_mem::Access;

use super::link::Outbound;
use super::links::{Links, Parts, Source};
use super::reach::{MemoryFault, Own, Remote, Sge};

/// An atomic operation on eight aligned bytes, in the host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Swap when equal.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, modulo 2^64.
    FetchAdd(u64),
}

impl Links {
    /// One-copy WRITE; needs `REMOTE_WRITE` of the peer's key. The last word is stored last.
    pub fn write(
        &mut self,
        link: u32,
        pd: u32,
        from: Source<'_>,
        to: &Remote,
    ) -> Result<(), MemoryFault> {
        let (own, out) = self.direct(link)?;
        match from {
            Source::Inline(bytes) => {
                match out.reach.remote(to, bytes.len() as u64, Access::REMOTE_WRITE)? {
                    Some((target, at)) => {
                        target.write_at(at, bytes).map_err(|_| MemoryFault::Remote)
                    }
                    None => Ok(()),
                }
            }
            Source::Sges(sges) => {
                let (parts, total) = parts(own, pd, sges, false)?;
                let Some((target, mut at)) = out.reach.remote(to, total, Access::REMOTE_WRITE)?
                else {
                    return Ok(());
                };
                for (segment, offset, len) in parts {
                    segment.copy_to(offset, target, at, len).map_err(|_| MemoryFault::Local)?;
                    at += len;
                }
                Ok(())
            }
        }
    }

    /// One-copy READ into local elements; needs `REMOTE_READ`.
    pub fn read(
        &mut self,
        link: u32,
        pd: u32,
        into: &[Sge],
        from: &Remote,
    ) -> Result<(), MemoryFault> {
        let (own, out) = self.direct(link)?;
        let (parts, total) = parts(own, pd, into, true)?;
        let Some((source, mut at)) = out.reach.remote(from, total, Access::REMOTE_READ)? else {
            return Ok(());
        };
        for (segment, offset, len) in parts {
            source.copy_to(at, segment, offset, len).map_err(|_| MemoryFault::Local)?;
            at += len;
        }
        Ok(())
    }

    /// Atomic on eight aligned bytes of the peer's memory; returns the value before it. Needs `REMOTE_ATOMIC`.
    pub fn atomic(&mut self, link: u32, at: &Remote, op: AtomicOp) -> Result<u64, MemoryFault> {
        let (_, out) = self.direct(link)?;
        let Some((target, offset)) = out.reach.remote(at, 8, Access::REMOTE_ATOMIC)? else {
            return Err(MemoryFault::Remote);
        };
        let word = target.atomic_u64(offset).map_err(|_| MemoryFault::Remote)?;
        Ok(match op {
            AtomicOp::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(before) | Err(before) => before,
                }
            }
            AtomicOp::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
        })
    }

    /// Announces an access to the peer's memory, and makes records that precede it visible first.
    fn direct(&mut self, id: u32) -> Result<(&Own, &Outbound), MemoryFault> {
        self.busy.enter();
        let announce = self.busy.announce();
        let link = self.link_mut(id).ok_or(MemoryFault::Gone)?;
        if link.out.writer.publish() {
            link.out.wake(announce);
            // Who sees the access sees the records before it; the copy itself is not ordered by the publication.
            fence(Ordering::Release);
        }
        let link = self.link(id).ok_or(MemoryFault::Gone)?;
        Ok((&self.own, &link.out))
    }
}

/// Where local elements are, and how long they are together.
fn parts<'a>(
    own: &'a Own,
    pd: u32,
    sges: &[Sge],
    write: bool,
) -> Result<(Parts<'a>, u64), MemoryFault> {
    let (mut parts, mut total) = (Parts::new(), 0);
    for sge in sges {
        let len = u64::from(sge.len);
        if let Some((region, offset)) = own.local(pd, sge, len, write)? {
            parts.try_push((&*region.segment, offset, len)).map_err(|_| MemoryFault::Local)?;
            total += len;
        }
    }
    Ok((parts, total))
}
