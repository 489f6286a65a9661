//! Every input of a live engine on record, and its exact replay.
//!
//! An engine is sans-IO: what it does follows from its configuration, from what it is told, and from what its
//! surroundings answer when it asks them. [`Recorded`] is an engine that writes all of that to a
//! [`Recording`]: commands, frames, records of shared memory and turns of the loop, each with its time; what
//! memory answered, byte for byte where the bytes matter; which frames the wire took. Behind each input stands
//! what came of it: frames, completions, copies, events, the next deadline. [`replay()`] tells the same to a new
//! engine and names the first input that comes out differently.
//!
//! Turns in which nothing can happen are not written down: no deadline had come, nobody waited for a turn, and
//! peers on this host had taken no more than before. The time of the last of them is, with the next input.
#![forbid(unsafe_code)]

mod actor;
mod call;
mod digest;
mod format;
mod input;
pub mod limits;
mod pack;
mod recorded;
mod recording;
mod replay;
mod script;
mod tape;
mod vocabulary;
mod watched;
mod witness;

pub use format::{Ending, MAGIC};
pub use recorded::Recorded;
pub use recording::{RecordError, Recording};
pub use replay::{Difference, EngineReplay, Replay, ReplayError, replay};
