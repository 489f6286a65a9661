//! Verdicts, histograms and counters as a reader sees them.
//!
//! A leaf: it knows no device, no thread and no clock. Whoever owns a counter or a latency hands the numbers over.
#![forbid(unsafe_code)]

pub mod counters;
pub mod histogram;
pub mod journal;
pub mod limits;
pub mod metrics;
pub mod report;
pub mod status;
pub mod verdict;
pub mod why;

pub use counters::Snapshot;
pub use histogram::{Histogram, Latency};
pub use verdict::{Code, Owner, Verdict};
