//! Sans-IO RoCEv2 engine.
//!
//! Nothing here reads a clock, opens a socket or takes a lock: time, randomness, memory and wire
//! are arguments, so that every behaviour is a seed plus a unit test.
#![forbid(unsafe_code)]

mod address;
pub mod cm;
mod completer;
mod completion;
pub mod counters;
mod datagram;
mod device;
pub mod engine;
pub mod error;
pub mod event;
mod frame;
pub mod gsi;
pub mod histogram;
pub mod ids;
pub mod limits;
pub mod local;
pub mod memory;
mod migration;
mod multicast;
pub mod port;
pub mod qp;
mod ready;
mod receive;
mod requester;
mod responder;
pub mod sink;
mod slots;
mod srq;
mod timer;
pub mod transition;
mod turn;
mod uc;
pub mod wire;
pub mod work;
