//! A pipeline with a node kind of its own.

fn main() {}
