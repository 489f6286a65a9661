//! The numbers that bound this crate.

use std::time::Duration;

/// CPU ids are below this: the size of the kernel's `cpu_set_t` (sched_setaffinity(2)).
pub const CPUS_MAX: usize = rustix::thread::CpuSet::MAX_CPU;

/// How long the clock watches the time-stamp counter before it trusts the rate: a few parts per million are left.
pub const CALIBRATION: Duration = Duration::from_millis(10);

/// Adaptive idling polls at full speed for this long: a reply on shared memory comes sooner.
pub const SPIN_NS: u64 = 10_000;

/// From then on it lets the sibling hardware thread run, up to this much idle time.
pub const PAUSE_NS: u64 = 50_000;

/// From then on it gives the core away after each poll, up to this much idle time; then it naps.
pub const YIELD_NS: u64 = 200_000;

/// First nap; each further one is twice as long.
pub const NAP_NS_MIN: u64 = 50_000;

/// Longest nap, which bounds how late an lcore sees a message that rings no doorbell.
pub const NAP_NS_MAX: u64 = 1_000_000;

/// Shorter times without a poll are nobody's concern: no retry budget is shorter.
pub const GAP_NS_MIN: u64 = 1_000_000;

/// After so long a gap has nothing to do any more with what fails now.
pub const GAP_OLD_NS: u64 = 2_000_000_000;

/// Pause instructions per idle poll.
pub const PAUSES: u32 = 8;

/// Doorbells one nap watches. A device beyond them is polled after the nap.
pub const DOORBELLS_MAX: usize = 16;

/// Commands that wait for one lcore.
pub const COMMANDS_MAX: usize = 16;

/// How long the other nodes of an lcore may drain after one of them failed.
pub const FAILURE_DRAIN: Duration = Duration::from_secs(1);

/// How long the devices of an lcore may settle after its nodes are done.
pub const LINGER: Duration = Duration::from_secs(1);

/// What a join grants on top of the drain, for the last poll and for dropping what the lcore owns.
pub const JOIN_GRACE: Duration = Duration::from_secs(1);
