//! Shared memory between the lcores of one host, in one process or several.

pub mod limits;
mod record;
mod ring;

pub use record::{Garbage, Kind, Record};
