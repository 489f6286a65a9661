//! The repository's rules, as a test.

fn main() {}
