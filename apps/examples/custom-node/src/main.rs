//! A pipeline program with a kind of node of its own.
//!
//! `xor` masks the bytes of every block. It is registered beside the built-in kinds; everything else (the config and its
//! checks, lcores, memory, devices, report and command line) comes from `pmd-graph`:
//!
//! ```text
//! cargo run -p custom-node -- apps/examples/custom-node/pipeline.toml
//! ```
#![forbid(unsafe_code)]

mod xor;

use std::process::ExitCode;
use std::sync::Arc;

use pmd_graph::registry::Registry;

fn main() -> ExitCode {
    let mut registry = Registry::builtin();
    if let Err(error) = registry.register(Arc::new(xor::Xor::new())) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    pmd_graph::main(&registry)
}
