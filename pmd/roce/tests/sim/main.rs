//! The engine in the simulator: two hosts and more, on packets and on shared memory.
#![expect(clippy::cast_possible_truncation, reason = "lengths and indices of tests are small")]

mod basics;
mod harness;
mod model;
mod properties;
