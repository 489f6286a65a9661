//! Every limit of the laboratory, by name.

use core::time::Duration;

/// Longest virtual time of a scenario.
pub const LIMIT_MAX: Duration = Duration::from_secs(3600);
/// Virtual time of a scenario that names none.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(10);
/// Hosts of a scenario.
pub const HOSTS_MAX: usize = 64;
/// Connections of a scenario.
pub const QPS_MAX: usize = 128;
/// Requests of one work.
pub const COUNT_MAX: u64 = 1 << 20;
/// Largest message.
pub const SIZE_MAX: u64 = 64 << 20;
/// Registered memory of a whole scenario, bytes.
pub const MEMORY_MAX: u64 = 1 << 30;
/// Depth of a queue.
pub const DEPTH_MAX: u64 = 1 << 15;
/// Depth of a send queue that no scenario names.
pub const DEPTH_DEFAULT: u64 = 64;
/// Entries of a completion queue.
pub const CQ_DEPTH_MAX: u64 = 1 << 20;
/// From one end to the other over the control channel.
pub const CONTROL_DELAY: Duration = Duration::from_micros(50);
/// How long the world goes on after all work has ended, for what comes late.
pub const AFTERMATH: Duration = Duration::from_millis(2);
/// A queue pair that has work and makes no progress for so long is stalled.
pub const STALL: Duration = Duration::from_millis(100);
/// Bytes between the slots of a region, so that what runs over its slot is seen.
pub const SLOT_GAP: u64 = 64;
/// Packets of a window: a message of several MiB is in flight at once.
pub const WINDOW_PACKETS: u32 = 1024;
