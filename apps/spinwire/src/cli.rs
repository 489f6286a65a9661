//! The command line. Names and meanings are a contract; they may grow.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pmd_graph::app::{RunArgs, Sets};

use crate::lab::{LabArgs, RecordArgs};
use crate::perf::PerfArgs;

/// Kernel-bypass poll-mode RDMA pipelines.
#[derive(Debug, Parser)]
#[command(name = "spinwire", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a pipeline; without CONFIG the built-in quickstart; several: a process each
    Run(RunArgs),
    /// Validate a pipeline, with every complaint at its line
    Check(CheckArgs),
    /// Print what would run, and whether this machine fits it
    Plan(PlanArgs),
    /// List devices, ports and GIDs, with the automatic choice and its reason
    Devices(DevicesArgs),
    /// Hold a device against the specification
    Conformance(ConformanceArgs),
    /// Measure bandwidth or latency of one operation, with the flags of perftest
    Perf(PerfArgs),
    /// Scenarios of faults in a deterministic world
    Lab(LabArgs),
    /// Run a scenario, and record every input for exact replay
    Record(RecordArgs),
}

/// `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The pipeline
    #[arg(value_name = "CONFIG")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) sets: Sets,
}

/// `plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// The pipeline
    #[arg(value_name = "CONFIG")]
    pub(crate) config: PathBuf,
    /// Print the plan as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) sets: Sets,
}

/// `devices`.
#[derive(Args, Debug)]
pub(crate) struct DevicesArgs {
    /// Print the list as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `conformance`.
#[derive(Args, Debug)]
pub(crate) struct ConformanceArgs {
    /// The device: KIND, or KIND:NAME
    #[arg(long, value_name = "KIND[:NAME]")]
    pub(crate) device: String,
    /// Only this part
    #[arg(long, value_enum)]
    pub(crate) only: Option<Part>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A part of the conformance check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// A live QP for every transport, transition and mask bit
    States,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
