//! Deterministic world of RoCEv2 engines.
//!
//! A [`World`] holds hosts, each with an engine, memory, completion queues and asynchronous events;
//! a network that loses, delays, doubles, reorders and corrupts frames by a [`fault::Fault`] plan;
//! links, through which hosts share memory; and a virtual clock that jumps to the next wake-up.
//! One seed drives everything: the same seed and the same calls give the same
//! [`World::trace_hash`].
//!
//! ```
//! use pmd_sim::{Path, QpPlan, World};
//!
//! let mut world = World::new(1);
//! let (a, b) = (world.add_host("a"), world.add_host("b"));
//! let near = world.create_qp(a, QpPlan::rc()).unwrap();
//! let far = world.create_qp(b, QpPlan::rc()).unwrap();
//! world.connect(near, far, Path::Packets).unwrap();
//! ```
#![forbid(unsafe_code)]

mod agenda;
mod arrivals;
mod cm;
pub mod connect;
pub mod cq;
pub mod fault;
mod host;
pub mod limits;
mod link;
pub mod memory;
pub mod network;
pub mod rng;
mod tape;
pub mod trace;
mod turn;
mod world;

pub use connect::{Path, QpPlan, QpSide};
pub use fault::{Act, Fault, Filter, Frames};
pub use host::HostId;
pub use memory::{HostMemory, Mr};
pub use rng::Rng;
pub use tape::Input;
pub use world::World;
