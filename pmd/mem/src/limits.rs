//! Every fixed limit of this crate.

/// Bytes of a cache line as laid out in shared structures; 128 keeps adjacent-line prefetch from coupling two writers.
pub const LINE_PAIR: u64 = 128;

/// Entries of a memory table: of a key's 24 index bits at least 4 stay random, so that a reused slot gets another index.
pub const TABLE_ENTRIES_MAX: u32 = 1 << 20;

/// NUMA nodes that a region can name: Linux is built for up to 1024.
pub const NUMA_NODES_MAX: u32 = 1024;

/// Part of a region that rounding up to hugepages may add under `hugepages = "auto"`, as a divisor: one quarter.
pub const ROUNDING_WASTE_DIVISOR: u64 = 4;

/// Bytes of a transparent hugepage on machines with 4 KiB base pages.
pub const THP_BYTES: u64 = 2 << 20;

/// Bytes compared at a time when shared memory is checked against private bytes.
pub const COMPARE_CHUNK: usize = 1024;

/// How often a snapshot is read before its writer counts as stuck half-way.
pub const SNAPSHOT_TRIES: u32 = 1000;

/// Buffers of a mempool: an index is 32 bits, and one value means none.
pub const MEMPOOL_BUFFERS_MAX: u32 = u32::MAX - 1;

/// Regions that one user of a memory table remembers at a time, by the low bits of their keys' indices. An even number.
pub const KEY_CACHE_LINES: usize = 64;
