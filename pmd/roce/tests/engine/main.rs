//! The engine against a scripted peer, and two engines against each other, over packets.
#![expect(clippy::unwrap_used, reason = "what a test sets up must work")]

mod datagrams;
mod failure;
mod inline;
mod integrity;
mod reliable;
mod script;
mod scripts;
mod shared;
mod states;
mod support;
