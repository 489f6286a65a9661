//! Sans-IO RoCEv2 engine.
#![forbid(unsafe_code)]

pub mod ids;
pub mod qp;
pub mod wire;
