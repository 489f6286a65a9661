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
mod regions;
mod shm;
mod taking;
mod verbs;
mod wire;

pub(crate) use self::alarm::Bell;
pub(crate) use self::core::{Core, CoreParts};
pub(crate) use self::shm::Shm;
pub(crate) use cq::Armed;
pub(crate) use handover::Handover;
pub(crate) use memory::{TableMemory, access};
pub(crate) use peers::Peers;
pub(crate) use regions::{MAX_REGIONS, Regions};
