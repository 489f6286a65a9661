//! Whole pipelines over a test double of a device: no wire, no keys, coarse statuses, and the odd refusal.

mod allocations;
mod broken;
mod callers;
mod double;
mod edges;
mod keys;
mod stages;
mod storage;
mod vandal;
mod verified;
mod watched;
