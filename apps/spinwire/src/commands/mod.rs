//! One file per command.

pub(crate) mod check;
pub(crate) mod conformance;
pub(crate) mod devices;
mod inventory;
pub(crate) mod journal;
mod nics;
pub(crate) mod plan;
pub(crate) mod recorded;
pub(crate) mod why;
