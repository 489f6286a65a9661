//! Devices of rdma-core: NICs with a driver in the kernel, and the kernel's own RoCE, through libibverbs.
//!
//! The library is loaded when the first device is opened or listed; without it, everything else works. Each lcore opens
//! the device for itself, so that it shares nothing with others, and its events are its own. What moves messages is called
//! straight in the driver (`ibv_context_ops`), from the types of [`abi`]; what is checked by a state table elsewhere is
//! checked by the same one here, before the device is asked.
#![expect(unsafe_code, reason = "calls of a C library")]

mod abi;
mod attr;
mod book;
mod core;
mod counters;
mod cq;
mod library;
mod memory;
mod nic;
mod port;
mod post;
mod qp;
mod srq;

pub(crate) use self::core::Core;
pub use library::LibraryError;
pub use nic::{NicChoice, NicError, NicInfo, nics};
pub(crate) use port::Port;
