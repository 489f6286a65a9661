//! Memory that devices and peers share: hugepage regions, the memory table, mempools and rings.
//!
//! - [`Region`] makes a sealed `memfd` from the best pages the machine has; [`Mapping`] imports a peer's.
//!   Both lead to a [`Segment`], whose bytes are reached by copy only; a [`Span`] is a part of one.
//! - [`MemoryTable`] says which key reaches which bytes with which rights; [`PeerTable`] reads a peer's.
//!   A [`KeyCache`] remembers what they said. [`Fence`] makes a revoked key final for peers that copy without asking.
//! - [`Mempool`] hands out fixed-size buffers, through a [`Cache`] per lcore.
//! - [`Cursor`] is one side of a single-producer single-consumer ring; [`snapshot`] publishes small records.
//! - [`preflight()`] says before anything is allocated whether a [`Machine`] fits a demand, and what would fix it.
//!
//! Other processes may write the memory behind a segment at any moment, a hostile one may write nonsense.
//! Nothing here lends a slice of it, and nothing read from it is used unchecked.

mod anchor;
mod copy;
pub mod cursor;
mod epoch;
mod fork;
pub mod ladder;
pub mod limits;
mod machine;
mod mapping;
mod memlock;
mod numa;
mod pool;
mod prefetch;
mod preflight;
mod region;
mod segment;
mod size;
pub mod snapshot;
mod span;
mod stack;
mod sync;
pub mod table;
mod wheel;
pub mod word;

pub use cursor::Cursor;
pub use epoch::{Announce, Busy, Entered, Fence, Quarantined, RevokeError};
pub use ladder::{Hugepages, Rung};
pub use machine::{CgroupLimit, Machine, NodeMemory};
pub use mapping::{ImportError, MapAccess, Mapping};
pub use memlock::{Memlock, MemlockExceeded, memlock_limit};
pub use numa::{Numa, NumaPolicy, Placement};
pub use pool::{Buffer, Cache, Mempool, MempoolError, MempoolSpec};
pub use prefetch::prefetch;
pub use preflight::{
    Demand, Drawn, MemoryPolicy, Placed, Problem, Report, Row, Warning, preflight,
};
pub use region::{Fall, Region, RegionError, RegionSpec, Seal};
pub use segment::{AccessError, Segment};
pub use size::Size;
pub use snapshot::{SnapshotReader, SnapshotWriter};
pub use span::{Bytes, Span};
pub use stack::IndexStack;
pub use table::{Access, Key, KeyCache, Known, LookupError, MemoryTable, PeerTable, Place};
pub use wheel::Wheel;
pub use word::{Load, PeerWord, PeerWordRef, PeerWords, Room, Store, Word, Words};

/// Bytes of a base page of this machine: 4 KiB, 16 KiB or 64 KiB.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Sixty-four unpredictable bits from the kernel.
///
/// The usual source of keys for [`MemoryTable`]; a simulation passes a seeded one instead.
///
/// # Panics
/// When the kernel has no `getrandom(2)` (before Linux 3.17).
pub fn os_entropy() -> u64 {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    // Requests of up to 256 bytes are neither cut short nor interrupted, says getrandom(2).
    assert_eq!(got, Ok(bytes.len()), "getrandom(2)");
    u64::from_ne_bytes(bytes)
}
