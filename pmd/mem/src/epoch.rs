//! The deregistration fence: a revoked key is final once nobody who saw it valid is still copying.
//!
//! Initiators copy into a peer's memory without asking it. Around each batch they say so by storing an odd number in a line
//! of theirs, and look the key up afterwards; the owner revokes the key and then looks at the lines. One of the two must see
//! the other, which takes a store-load fence on both sides. membarrier(2) lets the owner execute both, so that the
//! initiator's side is two plain stores.

use core::sync::atomic::{Ordering, compiler_fence};
use std::io;

use crate::sync::{fence, yield_now};
use crate::table::{DeregisterError, Key, MemoryTable, Retired};
use crate::word::{Load, Store};

/// How an initiator orders its announcement before its lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    /// Plain stores; the owner's membarrier(2) orders them.
    Plain,
    /// A full fence, because one of the two processes cannot take part in membarrier(2).
    FullFence,
}

/// One initiator's line: odd while it may be copying. One per thread, in memory that the owners of the targets can read.
#[derive(Debug)]
pub struct Busy<W: Store> {
    word: W,
    sequence: u64,
}

impl<W: Store> Busy<W> {
    /// An idle line.
    pub fn new(word: W) -> Self {
        word.store(0, Ordering::Release);
        Self { word, sequence: 0 }
    }

    /// Announces a batch of lookups and the copies they allow; leaving is dropping the result.
    ///
    /// `announce` is [`Fence::announce`] toward the target. Keep the batch short, one post list or one chunk of a large copy:
    /// the target's deregistrations wait for it.
    #[inline]
    pub fn enter(&mut self, announce: Announce) -> Entered<'_, W> {
        self.begin(announce);
        Entered(self)
    }

    /// As [`Self::enter`], for batches that do not end in the scope they begin in: [`Self::end`] ends them. Nothing happens
    /// inside a batch.
    #[inline]
    pub fn begin(&mut self, announce: Announce) {
        if self.is_busy() {
            return;
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.word.store(self.sequence, Ordering::Relaxed);
        match announce {
            Announce::Plain => compiler_fence(Ordering::SeqCst),
            Announce::FullFence => fence(Ordering::SeqCst),
        }
    }

    /// Ends a batch; nothing happens where there is none.
    #[inline]
    pub fn end(&mut self) {
        if self.is_busy() {
            self.sequence = self.sequence.wrapping_add(1);
            // Release: the copies are done.
            self.word.store(self.sequence, Ordering::Release);
        }
    }

    /// Whether a batch is on.
    #[inline]
    pub const fn is_busy(&self) -> bool {
        self.sequence % 2 == 1
    }
}

/// While it lives, keys that are looked up stay good.
#[derive(Debug)]
#[must_use = "dropping it ends the announcement"]
pub struct Entered<'a, W: Store>(&'a mut Busy<W>);

impl<W: Store> Drop for Entered<'_, W> {
    #[inline]
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The owner's side, and this process's part in membarrier(2).
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    own: Announce,
}

/// Peers that neither ended their batch nor died in time. The memory under the key must stay where it is until they are gone.
#[derive(Debug, thiserror::Error)]
#[error(
    "peers {peers:?} may still be copying: fail their connections, keep the memory, and give the entry back to \
     MemoryTable::reclaim when those processes are gone"
)]
pub struct Quarantined {
    /// The entry, out of use.
    pub retired: Retired,
    /// Indices of the lines that did not move.
    pub peers: Vec<usize>,
}

/// Why a key is not both revoked and forgotten.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// It was not revoked at all.
    #[error(transparent)]
    Deregister(#[from] DeregisterError),
    /// It is revoked, but its memory may still be touched.
    #[error(transparent)]
    Quarantined(#[from] Quarantined),
}

impl Fence {
    /// Registers this process with membarrier(2), as target and as initiator. Where that is refused (an old kernel, seccomp), the
    /// owner publishes it by [`MemoryTable::require_full_fence`].
    pub fn register() -> Self {
        let own = if membarrier(REGISTER_GLOBAL_EXPEDITED).is_ok() {
            Announce::Plain
        } else {
            Announce::FullFence
        };
        Self { own }
    }

    /// Takes no part in membarrier(2), as if it had been refused.
    pub const fn without_membarrier() -> Self {
        Self { own: Announce::FullFence }
    }

    /// How this process's initiators announce themselves to a target; `needs_full_fence` is the target's
    /// [`PeerTable::needs_full_fence`](crate::PeerTable::needs_full_fence).
    pub const fn announce(&self, needs_full_fence: bool) -> Announce {
        if needs_full_fence { Announce::FullFence } else { self.own }
    }

    /// Whether this process's table needs [`MemoryTable::require_full_fence`].
    pub const fn needs_full_fence(&self) -> bool {
        matches!(self.own, Announce::FullFence)
    }

    /// Waits until no line of `peers` is in the batch it was in when the call began: whatever was revoked before is unreachable.
    ///
    /// `alive(i)` says whether the process of line `i` exists; `expired()` ends the wait. Lines belong to peers, who may
    /// write anything there: the worst is that the wait expires.
    ///
    /// # Errors
    /// The indices of the lines that did not move.
    pub fn wait<W: Load>(
        &self,
        peers: &[W],
        mut alive: impl FnMut(usize) -> bool,
        mut expired: impl FnMut() -> bool,
    ) -> Result<(), Vec<usize>> {
        // Without the barrier no idle line can be believed.
        if self.barrier().is_err() {
            let living: Vec<usize> = (0..peers.len()).filter(|i| alive(*i)).collect();
            return if living.is_empty() { Ok(()) } else { Err(living) };
        }
        let mut busy: Vec<(usize, u64)> = peers
            .iter()
            .map(|line| line.load(Ordering::Acquire))
            .enumerate()
            .filter(|(_, seen)| seen % 2 == 1)
            .collect();
        loop {
            busy.retain(|&(i, seen)| peers[i].load(Ordering::Acquire) == seen && alive(i));
            if busy.is_empty() {
                return Ok(());
            }
            if expired() {
                return Err(busy.into_iter().map(|(i, _)| i).collect());
            }
            yield_now();
        }
    }

    /// Waits as [`Self::wait`] and gives a retired entry back to its table.
    pub fn reclaim<W: Load>(
        &self,
        table: &MemoryTable,
        retired: Retired,
        peers: &[W],
        alive: impl FnMut(usize) -> bool,
        expired: impl FnMut() -> bool,
    ) -> Result<(), Quarantined> {
        match self.wait(peers, alive, expired) {
            Ok(()) => {
                table.reclaim(retired);
                Ok(())
            }
            Err(peers) => Err(Quarantined { retired, peers }),
        }
    }

    /// Deregisters a region for good: when this succeeds, its memory can be freed.
    pub fn revoke_and_wait<W: Load>(
        &self,
        table: &MemoryTable,
        key: Key,
        peers: &[W],
        alive: impl FnMut(usize) -> bool,
        expired: impl FnMut() -> bool,
    ) -> Result<(), RevokeError> {
        let retired = table.deregister(key)?;
        Ok(self.reclaim(table, retired, peers, alive, expired)?)
    }

    /// A store-load fence here and, with membarrier, in every registered process.
    ///
    /// # Errors
    /// When the kernel refuses membarrier(2) after it was registered: there was none in other processes.
    pub fn barrier(&self) -> io::Result<()> {
        fence(Ordering::SeqCst);
        match self.own {
            Announce::Plain => membarrier(GLOBAL_EXPEDITED),
            Announce::FullFence => Ok(()),
        }
    }
}

/// `MEMBARRIER_CMD_GLOBAL_EXPEDITED` of membarrier(2), Linux 4.16.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
/// `MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`.
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointer.
    let code = unsafe { libc::syscall(libc::SYS_membarrier, command, 0) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;

    /// A batch that begins and ends in different scopes announces itself as one that does not.
    #[test]
    fn a_batch_begins_once_and_ends_once() {
        let line = AtomicU64::new(9);
        let mut busy = Busy::new(&line);
        let now = || line.load(Ordering::Relaxed);
        busy.end();
        assert_eq!((now(), busy.is_busy()), (0, false));
        for announce in [Announce::Plain, Announce::FullFence] {
            let before = now();
            busy.begin(announce);
            busy.begin(announce);
            assert_eq!((now(), busy.is_busy()), (before + 1, true));
            busy.end();
            busy.end();
            assert_eq!((now(), busy.is_busy()), (before + 2, false));
            drop(busy.enter(announce));
            assert_eq!(now(), before + 4);
        }
    }
}
