//! Kernel-bypass poll-mode RDMA pipelines.
//!
//! Results go to stdout, everything else to stderr. The exit code says how it ended: see [`cli::Exit`].
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod conformance;
mod pipeline;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::{Cli, Command, Exit};

/// Which log lines are wanted, as `tracing` filters are written: `SPINWIRE_LOG=debug`.
const LOG: &str = "SPINWIRE_LOG";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env(LOG).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(filter)
        .with_ansi(pipeline::colour())
        .with_target(false)
        .without_time()
        .init();
    let ended = match &cli.command {
        Command::Run(args) => commands::run::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Devices(args) => commands::devices::run(args),
        Command::Conformance(args) => commands::conformance::run(args),
    };
    let exit = ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        Exit::Failed
    });
    ExitCode::from(exit as u8)
}
