//! The command line of the laboratory.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `lab`.
#[derive(Args, Debug)]
pub(crate) struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

/// What the laboratory does.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Run a scenario in virtual time, and say which of its expectations were met
    Run(RunArgs),
    /// Tell new engines what those on record were told, and compare everything that comes of it
    Replay(ReplayArgs),
}

/// `lab run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The scenario
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenario: PathBuf,
    /// What everything left to chance comes from, instead of the scenario's own
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Keep every input of every engine in this file, for `lab replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

/// `lab replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// What was recorded
    #[arg(value_name = "FILE")]
    pub(crate) record: PathBuf,
    /// Print the report as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `record`.
#[derive(Args, Debug)]
#[command(
    override_usage = "spinwire record [--out F] [OPTIONS] [CONFIG]...\n       \
                      spinwire record SCENARIO FILE [--seed N] [--json]",
    after_help = "\
A pipeline is run as by `spinwire run`, with the same options; of several, each process has a record of its own, F-0,
F-1 and so on. A scenario of the laboratory is run as by `spinwire lab run`."
)]
pub(crate) struct RecordArgs {
    /// Where the record goes [default: spinwire.rec]
    #[arg(long, value_name = "F", conflicts_with = "record")]
    pub(crate) out: Option<PathBuf>,
    /// What everything left to chance comes from, instead of the scenario's own
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// As of `run`.
    #[command(flatten)]
    pub(crate) run: pmd_graph::app::RunArgs,
}
