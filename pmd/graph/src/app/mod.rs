//! The command line that runs pipelines: what `spinwire run` is, and what any binary becomes that calls [`main`].
//!
//! Results go to stdout, everything else to stderr; the exit code says how it ended.

mod bar;
mod harmless;
mod overwrite;
mod pipeline;
mod preflight;
mod record;
mod refusal;
mod several;
pub mod signals;
mod single;
mod stderr;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};
use tracing_subscriber::EnvFilter;

use crate::config::units::parse_time;
use crate::registry::Registry;

pub use harmless::harmless;
pub use pipeline::{Pipeline, colour, open, print, tell};
pub use preflight::{Keys, fit};
pub use record::{Record, RecordTo, of_part};
pub use stderr::say;

pub use crate::run_dir::last as last_run;

/// Which log lines are wanted, as `tracing` filters are written: `SPINWIRE_LOG=debug`.
const LOG: &str = "SPINWIRE_LOG";

/// How a command ended, as the exit code says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done and verified.
    Done = 0,
    /// The run failed; the verdict was printed.
    Failed = 1,
    /// Bad usage or config, a named CPU that does not exist included. clap ends with this code, too.
    Usage = 2,
    /// This machine does not fit.
    Unfit = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Changes to the config from the command line.
#[derive(Args, Clone, Debug, Default)]
pub struct Sets {
    /// Set one key: node.NAME.key=V, device.NAME.key=V, lcore.NAME.key=V, memory.key=V; V is TOML, else a string
    #[arg(long = "set", value_name = "PATH=V")]
    pub sets: Vec<String>,
}

/// The arguments of a run.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArgs {
    /// Pipelines, each one a process
    #[arg(value_name = "CONFIG")]
    pub configs: Vec<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
    /// End after this time, as in 10s
    #[arg(long, value_name = "T", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Changes to the config.
    #[command(flatten)]
    pub sets: Sets,
    /// Inject a fault: drop|delay T|dup|reorder|corrupt|partition [acks|OPCODE|all] [to NODE|from NODE] [after N] [every N] [count N] [for T] [psn N],
    /// or flip NODE OFFSET, or hang NODE [after N]
    #[arg(long = "fault", value_name = "RULE")]
    pub faults: Vec<String>,
    /// Write every frame to this pcapng file
    #[arg(long, value_name = "F")]
    pub capture: Option<PathBuf>,
    /// Where inputs are kept.
    #[command(flatten)]
    pub record: RecordTo,
    /// Keep the report and the plan of the run in this directory
    #[arg(long, value_name = "D")]
    pub run_dir: Option<PathBuf>,
    /// The run directory was not asked for: what it does not take is warned about
    #[arg(long, hide = true)]
    pub run_dir_unasked: bool,
    /// One of several processes that a run was split into: it shows no progress, and ends with the one that started it
    #[arg(long, hide = true)]
    pub part: bool,
}

/// A program that runs pipelines.
#[derive(Clone, Copy, Debug)]
pub struct App<'a> {
    /// The kinds of node and device that it knows.
    pub registry: &'a Registry,
    /// What it runs when it is given no config: a name for messages, and the text.
    pub default: Option<(&'static str, &'static str)>,
    /// What stands between the program's name and the arguments of a run.
    pub command: &'a [&'a str],
}

/// What a program of its own parses.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    run: RunArgs,
}

/// The `main` of a program that registers kinds of its own and runs pipelines: its arguments are those of `spinwire run`.
pub fn main(registry: &Registry) -> ExitCode {
    log_to_stderr();
    signals::outlive_file_limits();
    let cli = Cli::parse();
    let app = App { registry, default: None, command: &[] };
    app.run(&cli.run).into()
}

impl App<'_> {
    /// Runs what the arguments say, prints the report, and says how it ended. Errors go to stderr.
    pub fn run(&self, args: &RunArgs) -> Exit {
        let ended = match args.configs.as_slice() {
            [] | [_] => single::run(self, args),
            configs => several::run(self, args, configs),
        };
        ended.unwrap_or_else(|refusal| refusal.tell(args.json))
    }
}

/// Sends the log of the process to stderr: warnings and what happens once, unless `SPINWIRE_LOG` says otherwise.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_env(LOG).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(filter)
        .with_ansi(colour())
        .with_target(false)
        .without_time()
        // It would complain about stderr on stderr, and panic.
        .log_internal_errors(false)
        .init();
}

/// A duration with its unit, more than nothing, for clap.
///
/// # Errors
/// What is wrong with the text, and what may have been meant.
pub fn duration(text: &str) -> Result<Duration, String> {
    let zero =
        "it must be more than zero: leave it out for a run without a limit, or write a time as 10s";
    match parse_time(text) {
        Ok(Duration::ZERO) => Err(zero.to_owned()),
        Err(_) if text.parse() == Ok(0) => Err(zero.to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(match error.meant {
            Some(meant) => format!("{}; did you mean {meant}?", error.reason),
            None => error.reason,
        }),
    }
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
        for nothing in ["0s", "0", "0ms"] {
            let error = duration(nothing).unwrap_err();
            assert!(error.starts_with("it must be more than zero: leave it out"), "{error}");
        }
        assert_eq!(
            duration("10S"),
            Err("`S` is not a unit of a duration; did you mean 10s?".to_owned())
        );
    }
}
