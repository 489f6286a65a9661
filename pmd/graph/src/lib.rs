//! From a TOML pipeline to running nodes.
