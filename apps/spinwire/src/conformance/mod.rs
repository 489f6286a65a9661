//! Devices against the specification.
//!
//! What must happen is written down in [`spec`], from the specification and not from any device;
//! what does happen is found out on live queue pairs through the public API, so that every kind of
//! device is judged alike.

pub(crate) mod judge;
pub(crate) mod report;
pub(crate) mod spec;
pub(crate) mod states;
mod subject;
