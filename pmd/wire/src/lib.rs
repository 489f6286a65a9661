//! How frames reach the peer: wires, and wrappers around any of them.
//!
//! A [`Wire`] moves RoCEv2 frames, everything between the UDP header and the end of the ICRC. The
//! kinds are [`udp`], a plain socket, and [`memory`], two ends inside one process for tests.
//!
//! [`shm`] moves no frames: between lcores of one host it is what the engine's local path runs on.
//!
//! [`tap::Tap`] records what passes a wire, [`fault::Fault`] spoils it; both wrap any wire.
//!
//! The payload is opaque to a wire, with two exceptions it is told about: the destination queue
//! pair number chooses the receiving lcore, and the trailing ICRC is adjusted where a frame has
//! to leave with another IPv4 identification than it was built for (`icrc`).

pub mod fault;
mod icrc;
pub mod limits;
pub mod memory;
pub mod shm;
pub mod tap;
pub mod udp;
mod wire;

pub use wire::{
    Flow, IpId, JoinError, ROCE_PORT, RxFrame, RxHandler, RxVerdict, TxFill, Wire, WireCounters,
};
