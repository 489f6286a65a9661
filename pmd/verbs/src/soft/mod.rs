//! The software NIC: an engine of `pmd-roce` per lcore, the wires of `pmd-wire` under it.
//!
//! This is the only place where engine and wires meet; the adapters here translate between their
//! types and nothing more.

mod alarm;
mod core;
mod cq;
mod handover;
mod management;
mod memory;
mod peers;
mod port;
mod regions;
mod shm;
mod taking;
mod verbs;
mod wire;

pub(crate) use self::alarm::Bell;
pub(crate) use self::core::Core;
pub(crate) use cq::Armed;
pub(crate) use port::Port;
