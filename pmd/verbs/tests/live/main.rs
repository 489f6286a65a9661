//! The public API on a live software NIC, over every wire: two lcores of one device talk to each
//! other, and what is asserted is what a program would see.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

#[macro_use]
mod support;

mod addresses;
mod channel;
mod contract;
mod datagrams;
mod doorbell;
mod double;
mod events;
mod evidence;
mod faults;
mod id_failures;
mod id_support;
mod ids;
mod inline;
mod journal;
mod lcores;
mod log;
mod managed;
mod meeting;
mod memlock;
mod mtu;
mod receives;
mod reconnect;
mod scale;
mod shared;
mod states;
mod survey;
