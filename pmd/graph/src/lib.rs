//! From a TOML pipeline to running nodes.
//!
//! [`config`] checks the file, [`plan`] resolves it against a machine, [`registry`] knows the kinds of node and device,
//! and [`diagnostic`] says what is wrong as rustc does. Nothing here reads the environment, the command line or the clock
//! by itself: they are arguments.
#![forbid(unsafe_code)]

pub mod config;
pub mod diagnostic;
mod kinds;
pub mod limits;
pub mod plan;
pub mod registry;
