//! The command line. Names and meanings are a contract; they may grow.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pmd_graph::app::{RunArgs, Sets};

use crate::lab::{LabArgs, RecordArgs};
use crate::monitor::{CountersArgs, TopArgs};
use crate::perf::{PerfArgs, Wire};
use crate::stock::{RpingArgs, UcmatoseArgs, UdaddyArgs};

/// Kernel-bypass poll-mode RDMA pipelines.
#[derive(Debug, Parser)]
#[command(name = "spinwire", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How commands end that read what a run has left.
pub(crate) const READER_CODES: &str = "\
The exit code is 0 where there is something to show; 1 where a file there is damaged, of a newer version or cannot be read;
2 where there is no run.";

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
    /// Ping over a connection as librdmacm's rping does: either end can be the stock one
    Rping(RpingArgs),
    /// Connect and exchange messages as librdmacm's ucmatose does
    Ucmatose(UcmatoseArgs),
    /// Look up datagram services and exchange datagrams as librdmacm's udaddy does
    Udaddy(UdaddyArgs),
    /// Say why a run failed, from what it left or while it lives
    Why(WhyArgs),
    /// Show what moved queue pairs, and what was refused
    Journal(JournalArgs),
    /// Show a run while it runs, or what it left: lcores, nodes, and queue pairs, the worst first
    Top(TopArgs),
    /// Print the counters of ports and queue pairs under the kernel's names, of both ends
    Counters(CountersArgs),
    /// Scenarios of faults in a deterministic world
    Lab(LabArgs),
    /// Run a pipeline or a scenario, and keep every input for `lab replay`
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
    /// Keep the list in this new file as well, as one JSON object
    #[arg(long, value_name = "F")]
    pub(crate) save: Option<PathBuf>,
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
    /// Software NIC: how its queue pairs reach each other [default: by packets, and by shared memory]
    #[arg(long, value_enum)]
    pub(crate) wire: Option<Wire>,
    /// Software NIC: disturb its packets, as `perf --fault` does: a device that is made wrong deviates
    #[arg(long = "fault", value_name = "RULE")]
    pub(crate) faults: Vec<String>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `why`.
#[derive(Args, Debug)]
#[command(after_help = "\
Without RUN_DIR the last run is meant. With the directories of both ends of a connection, the evidence of both is used.
The exit code is 0 where there is a diagnosis, whatever it says; 1 where a file there is damaged, of a newer version or cannot
be read; 2 where there is no run. So it is with journal, top, counters and lab replay.")]
pub(crate) struct WhyArgs {
    /// Run directories: of one end, or of both
    #[arg(value_name = "RUN_DIR")]
    pub(crate) run_dirs: Vec<PathBuf>,
    /// Print the verdict and the runs as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `journal`.
#[derive(Args, Debug)]
#[command(after_help = READER_CODES)]
pub(crate) struct JournalArgs {
    /// Run directory [default: that of the last run]
    #[arg(value_name = "RUN_DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Go on as long as the run lives
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only this queue pair: 0x024001, or decimal
    #[arg(long, value_name = "QPN", value_parser = qpn)]
    pub(crate) qp: Option<u32>,
    /// Print each record as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number < 1 << 24 => Ok(number),
        _ => Err("a queue pair number has 24 bits: 0x024001, or decimal".to_owned()),
    }
}

/// A part of the conformance check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// A live QP for every transport, transition and mask bit
    States,
    /// The order in which work ends on a QP that fails or is drained
    Flush,
    /// What can be sent inline, and what is refused
    Inline,
    /// Whether what was set is read back, and what no field holds refused
    Query,
    /// RESET from every state, and back
    Reset,
    /// Shared receive queues: order, limit and last-WQE events
    Srq,
    /// How long retries take, of silence and of missing receives
    Timing,
    /// How requests end that break a rule, at each side
    Errors,
    /// Which asynchronous events come, and whom they leave alone
    Events,
}

impl Part {
    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::States => "states",
            Self::Flush => "flush",
            Self::Inline => "inline",
            Self::Query => "query",
            Self::Reset => "reset",
            Self::Srq => "srq",
            Self::Timing => "timing",
            Self::Errors => "errors",
            Self::Events => "events",
        }
    }

    /// What it is about.
    pub(crate) const fn about(self) -> &'static str {
        match self {
            Self::States => "queue pair states, checks per transition",
            Self::Flush => "in which order work ends on a queue pair that fails or is drained",
            Self::Inline => "what can be sent inline, and what is refused",
            Self::Query => "whether what was set is read back",
            Self::Reset => "RESET from every state, and back",
            Self::Srq => "shared receive queues, their order and events",
            Self::Timing => "how long retries take",
            Self::Errors => "how requests end that break a rule",
            Self::Events => "asynchronous events, and whom they leave alone",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn queue_pairs_are_named_in_hexadecimal_or_decimal() {
        assert_eq!((qpn("0x024001"), qpn("147457")), (Ok(0x02_4001), Ok(0x02_4001)));
        assert!(qpn("0x1000000").is_err() && qpn("soft0").is_err() && qpn("").is_err());
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
