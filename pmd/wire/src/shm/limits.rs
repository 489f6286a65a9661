//! Every limit of the shared-memory wire, by name.

use core::time::Duration;

/// Processes (devices, to be exact) that one rendezvous directory tells apart: prefixes 1 ..= 127 of a QPN.
pub const PREFIX_MAX: u8 = 127;
/// Lcores of one device: three bits of a QPN.
pub const LCORES_MAX: usize = 8;
/// Low bits of a QPN that name a slot in its lcore's page.
pub const QPN_INDEX_BITS: u32 = 11;
/// Queue pairs that one lcore can show.
pub const QPS_MAX: u32 = 1 << QPN_INDEX_BITS;
/// Bits of a QPN below the lcore.
pub const QPN_LCORE_SHIFT: u32 = 14;
/// Bits of a QPN below the prefix.
pub const QPN_PREFIX_SHIFT: u32 = 17;
/// Lcores that are told apart on one CPU: more than that take turns unseen.
pub const CPU_PLACES: usize = 8;
/// Addresses that one device answers to.
pub const ADDRESSES_MAX: usize = 32;

/// Bytes of the ring of one direction of a link, unless configured otherwise.
pub const RING_BYTES: u64 = 64 << 10;
/// Smallest ring: a quarter of it still holds an inline datagram of 256 bytes.
pub const RING_BYTES_MIN: u64 = 2 << 10;
/// Largest ring.
pub const RING_BYTES_MAX: u64 = 16 << 20;
/// The largest record takes this part of its ring, so that one message never waits for an empty ring.
pub const RECORD_DIVISOR: u64 = 4;
/// This part of a ring is kept for records that are no messages, so that peers whose rings are full of them can still answer.
pub const RESERVE_DIVISOR: u64 = 16;
/// Payloads up to here travel inside the ring: below it, the copy costs less than a second look into the sender's memory.
pub const INLINE_MAX: u32 = 256;
/// Datagrams up to here travel inside the ring whatever they cost, since their sender's buffer is free at once. The largest MTU.
pub const DATAGRAM_MAX: u32 = 4096;
/// Scatter/gather elements of one record.
pub const SGES_MAX: usize = 16;
/// Records taken from one link in one burst.
pub const RX_BURST: usize = 32;

/// Links of one lcore at any time.
pub const LINKS_MAX: usize = 1024;
/// Regions that one device can export at any time.
pub const REGIONS_MAX: u32 = 4096;
/// Largest region that a peer may announce: what 47 bits of address space can hold of several.
pub const REGION_BYTES_MAX: u64 = 1 << 44;
/// Messages waiting for a peer that does not read its control socket; beyond, it is given up.
pub const CONTROL_BACKLOG: usize = 16 << 10;
/// Messages taken from one peer before the others have their turn.
pub const CONTROL_BURST: usize = 64;
/// Such bursts that are still taken from a peer that has left.
pub const LAST_WORDS: usize = 256;
/// How long a new control connection may take to introduce itself.
pub const GREETING_LIMIT: Duration = Duration::from_secs(2);
/// How long the call of a peer that refused ours, because both crossed, is waited for before calling again.
pub const CROSSING_PATIENCE: Duration = Duration::from_millis(20);
/// Connections that may be introducing themselves at one time.
pub const GREETINGS_MAX: usize = 64;

/// How often the control thread looks whether quarantined memory can be let go, while there is any.
pub const QUARANTINE_LOOK: Duration = Duration::from_millis(50);
/// Devices whose process lives but whose connection ended, and which are still waited for when memory is deregistered.
pub const DEPARTED_MAX: usize = 256;
