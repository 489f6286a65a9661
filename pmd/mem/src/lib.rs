//! Hugepage regions, memory table, mempools and rings.
