//! From a TOML pipeline to running nodes.
//!
//! [`config`] checks the file, [`plan`] resolves it against a machine, [`registry`] knows the kinds of node and device,
//! and [`diagnostic`] says what is wrong as rustc does. [`run`](mod@run) starts what was planned: nodes ([`node`]) that pass
//! blocks on within an lcore ([`stream`]) and are joined by RDMA edges between lcores, processes and hosts ([`edge`]), over
//! any kind of [`device`]. [`monitor`] shows a run while it runs, and [`run_dir`] is what it leaves behind. [`app`] is the command line that all of it comes with; only there the environment, the arguments
//! and the signals of the process are looked at.
#![forbid(unsafe_code)]

pub mod app;
pub mod block;
pub mod config;
pub mod cores;
pub mod device;
pub mod diagnostic;
pub mod discovery;
pub mod edge;
pub mod extent;
pub mod failure;
pub mod fault;
mod kinds;
pub mod kv;
pub mod limits;
pub mod monitor;
pub mod node;
pub mod plan;
pub mod registry;
pub mod regular;
pub mod run;
pub mod run_dir;
pub mod stream;
#[cfg(test)]
mod testing;

pub use app::main;
