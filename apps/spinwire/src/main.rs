//! Kernel-bypass poll-mode RDMA pipelines.
//!
//! Results go to stdout, everything else to stderr. The exit code says how it ended: see [`Exit`].
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod conformance;
mod device;
mod lab;
mod monitor;
mod perf;
mod stock;

use std::process::ExitCode;

use clap::Parser;
use pmd_graph::app::{App, Exit, say};
use pmd_graph::registry::Registry;

use cli::{Cli, Command};

/// What `spinwire run` runs when it is given no config.
const QUICKSTART: (&str, &str) =
    ("built-in quickstart.toml", include_str!("../../../configs/quickstart.toml"));

/// What runs pipelines.
const fn app(registry: &Registry) -> App<'_> {
    App { registry, default: Some(QUICKSTART), command: &["run"] }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    pmd_graph::app::log_to_stderr();
    pmd_graph::app::signals::outlive_file_limits();
    let registry = Registry::builtin();
    let ended = match &cli.command {
        Command::Run(args) => Ok(app(&registry).run(args)),
        Command::Check(args) => commands::check::run(&registry, args),
        Command::Plan(args) => commands::plan::run(&registry, args),
        Command::Devices(args) => commands::devices::run(args),
        Command::Conformance(args) => commands::conformance::run(args),
        Command::Perf(args) => Ok(perf::run(args)),
        Command::Rping(args) => Ok(stock::rping(args)),
        Command::Ucmatose(args) => Ok(stock::ucmatose(args)),
        Command::Udaddy(args) => Ok(stock::udaddy(args)),
        Command::Why(args) => commands::why::run(args),
        Command::Journal(args) => commands::journal::run(args),
        Command::Top(args) => monitor::top(args),
        Command::Counters(args) => monitor::counters(args),
        Command::Lab(args) => lab::run(args),
        Command::Record(args) => lab::record(&app(&registry), args),
    };
    let exit = ended.unwrap_or_else(|error| {
        say(format_args!("error: {error:#}"));
        Exit::Failed
    });
    exit.into()
}
