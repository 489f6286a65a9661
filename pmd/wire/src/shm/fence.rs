//! Deregistration with peers that copy without asking.
//!
//! Each lcore has one line, in its page, that is odd while it may be using memory that somebody else can deregister: a peer's
//! through a link, or its own device's. Deregistering revokes the key and then waits for those lines; see
//! [`pmd_mem::Fence`] for why that is enough. The wait is bounded: whoever is still copying then loses its links, and the memory
//! stays where it is until that process is gone.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use pmd_mem::{AccessError, Announce, Fence, Load, PeerWord, Segment, Word, table::Retired};

use super::link::LinkFault;
use super::page::BUSY_AT;
use super::port::{Command, Port, lock};

/// An lcore's line.
#[derive(Debug)]
pub(super) struct Busy {
    line: pmd_mem::Busy<Word>,
    fence: Fence,
    announce: Announce,
}

impl Busy {
    pub(super) fn new(page: &Arc<Segment>, fence: Fence) -> Result<Self, AccessError> {
        let line = pmd_mem::Busy::new(Word::new(page, BUSY_AT)?);
        Ok(Self { line, fence, announce: fence.announce(false) })
    }

    /// A peer was linked; its table says whether it can be deregistered from by membarrier(2).
    pub(super) fn serve(&mut self, needs_full_fence: bool) {
        if needs_full_fence {
            self.announce = self.fence.announce(true);
        }
    }

    /// Begins to use memory, unless it is so already.
    #[inline]
    pub(super) fn enter(&mut self) {
        self.line.begin(self.announce);
    }

    /// Stops using memory.
    #[inline]
    pub(super) fn exit(&mut self) {
        self.line.end();
    }

    /// How this lcore orders its announcements.
    pub(super) const fn announce(&self) -> Announce {
        self.announce
    }

    /// A store-load fence here, and on every lcore that relies on plain stores. False: there was none on others.
    pub(super) fn barrier(&self) -> bool {
        self.fence.barrier().is_ok()
    }

    pub(super) const fn is_inside(&self) -> bool {
        self.line.is_busy()
    }
}

/// Somebody who may be using this device's memory.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    line: PeerWord,
    pub(super) who: Who,
    /// Set when the process is gone.
    gone: Arc<AtomicBool>,
}

/// Whose line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// An lcore of this device.
    Lcore(u8),
    /// A peer device.
    Peer {
        /// Its number at the control thread.
        key: u64,
        /// Its process.
        pid: u32,
    },
}

impl Watch {
    pub(super) fn new(
        page: &Arc<Segment>,
        who: Who,
        gone: &Arc<AtomicBool>,
    ) -> Result<Self, AccessError> {
        Ok(Self { line: PeerWord::new(page, BUSY_AT)?, who, gone: Arc::clone(gone) })
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// Memory that somebody may still be using.
#[derive(Debug)]
pub(super) struct Held {
    retired: Retired,
    /// Kept mapped meanwhile.
    _memory: Option<Arc<Segment>>,
    /// Who, and what the line said.
    users: Vec<(Watch, u64)>,
}

impl Held {
    /// Looks whether it can be let go; then returns the entry for its table.
    pub(super) fn release(mut self) -> Result<Retired, Self> {
        self.users.retain(|(watch, seen)| {
            !watch.is_gone() && watch.line.load(Ordering::Acquire) == *seen
        });
        if self.users.is_empty() { Ok(self.retired) } else { Err(self) }
    }
}

/// A revoked key whose memory may still be in use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key is revoked, but {} did not stop using the memory in time: it is kept until they do, and their links are down",
    users(.pids, .lcores)
)]
pub struct StillUsed {
    /// Processes that did not leave it.
    pub pids: Vec<u32>,
    /// Lcores of this device that did not leave it: are they polled?
    pub lcores: Vec<u8>,
}

fn users(pids: &[u32], lcores: &[u8]) -> String {
    let mut users: Vec<String> = pids.iter().map(|pid| format!("process {pid}")).collect();
    users.extend(lcores.iter().map(|lcore| format!("lcore {lcore} of this device")));
    users.join(", ")
}

impl Port {
    /// Makes a revocation final: when this returns, nobody reads or writes the memory through the key any more, and the table
    /// can use its entry again. `memory` is what the key was for.
    ///
    /// # Errors
    /// [`StillUsed`] after `limit`: links to the processes named are down, and `memory` and the entry are kept for them. The
    /// caller must not use the memory for anything else; it may drop it.
    pub fn reclaim(
        &self,
        retired: Retired,
        memory: Option<&Arc<Segment>>,
        limit: Duration,
    ) -> Result<(), StillUsed> {
        let shared = self.shared();
        let until = Instant::now() + limit;
        let watches = lock(&shared.watches).clone();
        let lines: Vec<&PeerWord> = watches.iter().map(|watch| &watch.line).collect();
        let waited =
            shared.fence.wait(&lines, |i| !watches[i].is_gone(), || Instant::now() >= until);
        let Err(stuck) = waited else {
            shared.table.reclaim(retired);
            return Ok(());
        };
        let users: Vec<(Watch, u64)> = stuck
            .into_iter()
            .map(|i| (watches[i].clone(), watches[i].line.load(Ordering::Acquire)))
            .collect();
        let mut still = StillUsed { pids: Vec::new(), lcores: Vec::new() };
        for (watch, _) in &users {
            match watch.who {
                Who::Lcore(lcore) => still.lcores.push(lcore),
                Who::Peer { key, pid } => {
                    if !still.pids.contains(&pid) {
                        still.pids.push(pid);
                    }
                    shared.command(Command::Condemn { key, fault: LinkFault::Stuck });
                }
            }
        }
        shared.command(Command::Quarantine(Held {
            retired,
            _memory: memory.map(Arc::clone),
            users,
        }));
        Err(still)
    }
}
