//! Pinned poll loops: topology, pinning, clock, mailboxes, idle policy.
#![deny(unsafe_code)]

pub mod assign;
pub mod clock;
pub mod cpuset;
pub mod limits;
pub mod mailbox;
pub mod pin;
pub mod topology;

pub use assign::{CpuChoice, assign};
pub use clock::Clock;
pub use cpuset::CpuSet;
    Context, Ended, LcoreError, LcoreSpec, Running, SpawnError, StartError, Wait, spawn,
};
pub use topology::Topology;
