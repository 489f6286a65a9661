//! The connection manager: its messages as bytes, and two state machines over a network that loses,
//! doubles and reorders.
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::unwrap_used, reason = "what a test sets up must work")]

#[path = "../trace/mod.rs"]
mod trace;

mod at_random;
mod codec;
mod golden;
mod handshake;
mod lookups;
mod pair;
mod strangers;
mod timeouts;
