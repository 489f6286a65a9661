//! The engine in the simulator: two hosts and more, on packets and on shared memory.
#![expect(clippy::cast_possible_truncation, reason = "lengths and indices of tests are small")]
#![expect(clippy::unwrap_used, reason = "what a test sets up must work")]

mod basics;
mod connection;
mod datagrams;
mod drained;
mod errors;
mod goodput;
mod harness;
mod managed;
mod migration;
mod model;
mod ordering;
mod ports;
mod properties;
mod recovery;
mod retries;
mod scopes;
mod scopes_at_random;
mod shared_receives;
mod slow_peers;
mod stats;
mod visibility;
