//! One-sided operations: the initiator does them alone, by one copy into or out of the target's memory.

use core::sync::atomic::{Ordering, fence};

use pmd_mem::{Access, Announce, KeyCache};

use super::link::Outbound;
use super::links::{Links, Source, found_mut};
use super::reach::{Elements, MemoryFault, Own, Remote, Sge};

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
    #[inline]
    pub fn write(
        &mut self,
        link: u32,
        pd: u32,
        from: Source<'_>,
        to: &Remote,
    ) -> Result<(), MemoryFault> {
        let Toward { own, keys, out } = self.direct(link)?;
        if let Source::Sges([sge]) = from {
            own.remember(keys, sge.lkey);
        }
        out.reach.remember(&mut out.keys, to.rkey);
        write_any(own, out, pd, from, to)
    }

    /// One-copy READ into local elements; needs `REMOTE_READ`.
    #[inline]
    pub fn read(
        &mut self,
        link: u32,
        pd: u32,
        into: &[Sge],
        from: &Remote,
    ) -> Result<(), MemoryFault> {
        let Toward { own, keys, out } = self.direct(link)?;
        if let [sge] = into {
            own.remember(keys, sge.lkey);
        }
        out.reach.remember(&mut out.keys, from.rkey);
        read_any(own, out, pd, into, from)
    }

    /// Atomic on eight aligned bytes of the peer's memory; returns the value before it. Needs `REMOTE_ATOMIC`.
    pub fn atomic(&mut self, link: u32, at: &Remote, op: AtomicOp) -> Result<u64, MemoryFault> {
        let Toward { out, .. } = self.direct(link)?;
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
    #[inline]
    fn direct(&mut self, id: u32) -> Result<Toward<'_>, MemoryFault> {
        self.busy.enter();
        let Some(link) = found_mut(&mut self.slots, id) else { return Err(MemoryFault::Gone) };
        if link.out.writer.has_unpublished() {
            link.out.publish_before_access(self.busy.announce());
        }
        Ok(Toward { own: &self.own, keys: &mut self.keys, out: &mut link.out })
    }
}

/// What a direct operation works with.
struct Toward<'a> {
    own: &'a Own,
    keys: &'a mut KeyCache,
    out: &'a mut Outbound,
}

impl Outbound {
    #[inline(never)]
    fn publish_before_access(&mut self, announce: Announce) {
        self.writer.publish();
        self.waker.wake(announce);
        // Who sees the access sees the records before it; the copy itself is not ordered by the publication.
        fence(Ordering::Release);
    }
}

/// WRITE of bytes at hand, of several elements, or by keys that are not known yet.
#[inline(never)]
fn write_any(
    own: &Own,
    out: &Outbound,
    pd: u32,
    from: Source<'_>,
    to: &Remote,
) -> Result<(), MemoryFault> {
    match from {
        Source::Inline(bytes) => {
            match out.reach.remote(to, bytes.len() as u64, Access::REMOTE_WRITE)? {
                Some((target, at)) => target.write_at(at, bytes).map_err(|_| MemoryFault::Remote),
                None => Ok(()),
            }
        }
        Source::Sges(sges) => {
            let sges = Elements::new(own, pd, sges, false)?;
            let Some((target, mut at)) = out.reach.remote(to, sges.total, Access::REMOTE_WRITE)?
            else {
                return Ok(());
            };
            sges.each(|segment, offset, len| {
                let to = at;
                at += len;
                segment.copy_to(offset, target, to, len)
            })
        }
    }
}

/// READ into several elements, or by keys that are not known yet.
#[inline(never)]
fn read_any(
    own: &Own,
    out: &Outbound,
    pd: u32,
    into: &[Sge],
    from: &Remote,
) -> Result<(), MemoryFault> {
    let into = Elements::new(own, pd, into, true)?;
    let Some((source, mut at)) = out.reach.remote(from, into.total, Access::REMOTE_READ)? else {
        return Ok(());
    };
    into.each(|segment, offset, len| {
        let from = at;
        at += len;
        source.copy_to(from, segment, offset, len)
    })
}
