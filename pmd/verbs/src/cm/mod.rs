//! Connections by the connection manager's protocol, with any RoCEv2 device that speaks it: a network
//! card, the Linux kernel, another software NIC.
//!
//! [`CmAgent`] is a device's part in it: the state machine of [`pmd_roce::cm`] on queue pair 1 of the
//! device's first lcore, driven by the lcore's own turns. It decides nothing for its user: who is told
//! of a request creates a queue pair, posts receives, brings it to RTS [step by step](CmAgent::step) and accepts.

mod agent;

pub use agent::{CmAgent, OpenCmError};
pub use pmd_roce::cm::*;
