//! `spinwire perf`: bandwidth and latency of one operation between two ends.
//!
//! An end is one process, or a part of one, with one or more lcores. The client leads and reports; the
//! server is told everything on the control channel. Before anything is timed, one pass moves every
//! buffer and checks every byte.

mod args;
mod bandwidth;
mod bar;
mod buffers;
mod cm;
mod course;
mod crew;
mod desk;
mod dialogue;
mod ends;
mod failure;
mod faults;
mod inbox;
mod keep;
mod latency;
mod lcore;
mod limits;
mod params;
mod pattern;
mod placement;
mod pulse;
mod refusal;
mod report;
mod requests;
mod second;
mod service;
mod session;
mod tally;
mod test;
mod verdict;
mod verify;

pub(crate) use args::{PerfArgs, Wire};
pub(crate) use course::run;
