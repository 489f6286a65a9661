//! Queue pairs: attributes, the state table, and the queues of a pair.

pub mod attr;
pub mod chart;
pub mod state;
