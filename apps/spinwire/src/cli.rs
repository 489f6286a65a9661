//! The command line. Names and meanings are a contract; they may grow.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pmd_graph::config::units::parse_time;

/// How a command ended, as the exit code says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done and verified.
    Done = 0,
    /// The run failed; the verdict was printed.
    Failed = 1,
    /// Bad usage or config, a named CPU that does not exist included. clap ends with this code, too.
    Usage = 2,
    /// This machine does not fit.
    Unfit = 3,
}

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
}

/// Changes to the config from the command line.
#[derive(Args, Debug)]
pub(crate) struct Sets {
    /// Set one key: node.NAME.key=V, device.NAME.key=V, lcore.NAME.key=V, memory.key=V; V is TOML, else a string
    #[arg(long = "set", value_name = "PATH=V")]
    pub(crate) sets: Vec<String>,
}

/// `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Pipelines, each one a process
    #[arg(value_name = "CONFIG")]
    pub(crate) configs: Vec<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// End after this time, as in 10s
    #[arg(long, value_name = "T", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    #[command(flatten)]
    pub(crate) sets: Sets,
    /// Inject a fault: drop|delay T|dup|corrupt [acks|OPCODE|all] [to NODE|from NODE] [after N] [every N] [psn N], or
    /// flip NODE OFFSET
    #[arg(long = "fault", value_name = "RULE")]
    pub(crate) faults: Vec<String>,
    /// Write every frame to this pcapng file
    #[arg(long, value_name = "F")]
    pub(crate) capture: Option<PathBuf>,
    /// Keep the run's journal and counters in this directory
    #[arg(long, value_name = "D")]
    pub(crate) run_dir: Option<PathBuf>,
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

fn duration(text: &str) -> Result<Duration, String> {
    parse_time(text).map_err(|error| match error.meant {
        Some(meant) => format!("{}; did you mean {meant}?", error.reason),
        None => error.reason,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_carry_units() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(
            duration("10S"),
            Err("`S` is not a unit of a duration; did you mean 10s?".to_owned())
        );
    }
}
