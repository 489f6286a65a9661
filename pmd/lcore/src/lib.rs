//! Pinned poll loops: topology, pinning, clock, mailboxes, idle policy.
//!
//! An *lcore* is a thread pinned to one core that polls its devices and runs its nodes to completion, again and
//! again, until they are done. It shares nothing: what it polls is built on its own thread by a start closure, need
//! not be `Send`, and is dropped there too. Lcores and the control thread talk through bounded [`mailbox`]es.
//!
//! [`assign::assign`] chooses cores, [`spawn::spawn`] starts the threads, and [`lcore::Lcore::poll`] is the loop's body.
#![deny(unsafe_code)]

pub mod assign;
pub mod clock;
pub mod cpuset;
pub mod distance;
pub mod doorbell;
pub mod idle;
pub mod lcore;
pub mod limits;
pub mod mailbox;
pub mod pin;
pub mod spawn;
pub mod stats;
pub mod topology;

pub use assign::{CpuChoice, assign};
pub use clock::Clock;
pub use cpuset::CpuSet;
pub use distance::hop_ns;
pub use doorbell::Doorbells;
pub use idle::Idle;
pub use lcore::{Command, Lcore, Node, NodeState, Parts, Progress};
pub use spawn::{
    Context, Ended, LcoreError, LcoreSpec, Running, SpawnError, StartError, Wait, spawn,
};
pub use stats::{Gap, Meter, Stats, StatsReader};
pub use topology::Topology;
