//! Two connected lcores to measure messages on, and the traffic between them.
#![forbid(unsafe_code)]

mod side;
mod traffic;

pub use side::{Options, Side, Wish, connect, pair};
pub use traffic::{BATCH, Kind, Sink, Source};
