//! Sans-IO RoCEv2 engine.
//!
//! Nothing here reads a clock, opens a socket or takes a lock: time, randomness, memory and wire
//! are arguments, so that every behaviour is a seed plus a unit test.
#![forbid(unsafe_code)]

pub mod counters;
pub mod engine;
pub mod event;
pub mod ids;
pub mod limits;
pub mod local;
pub mod memory;
pub mod qp;
pub mod sink;
pub mod wire;
pub mod work;
