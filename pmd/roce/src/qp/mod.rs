//! Queue pairs.

pub mod chart;
pub mod state;
