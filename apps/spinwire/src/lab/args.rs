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
    /// Run what was recorded again, and compare every input
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
pub(crate) struct RecordArgs {
    /// The scenario
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenario: PathBuf,
    /// Where the record goes
    #[arg(value_name = "FILE")]
    pub(crate) record: PathBuf,
    /// What everything left to chance comes from, instead of the scenario's own
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
