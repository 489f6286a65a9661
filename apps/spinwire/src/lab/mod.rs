//! `spinwire lab`: scenarios of faults in a deterministic world; `spinwire record` and `lab replay`: the same run again.

mod args;

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use pmd_graph::app::{self, Exit, say};
use pmd_lab::tape::{Tape, TapeError};
use pmd_lab::{Report, Scenario};

pub(crate) use args::{LabArgs, RecordArgs};
use args::{LabCommand, ReplayArgs, RunArgs};

/// Does what the arguments say.
///
/// # Errors
/// When a file or stdout cannot be written.
pub(crate) fn run(args: &LabArgs) -> anyhow::Result<Exit> {
    match &args.command {
        LabCommand::Run(args) => scenario(args),
        LabCommand::Replay(args) => replay(args),
    }
}

/// Runs a scenario with its record.
///
/// # Errors
/// When a file or stdout cannot be written.
pub(crate) fn record(args: &RecordArgs) -> anyhow::Result<Exit> {
    let RecordArgs { scenario: file, record, seed, json } = args;
    let record = Some(record.clone());
    scenario(&RunArgs { scenario: file.clone(), seed: *seed, json: *json, record })
}

fn scenario(args: &RunArgs) -> anyhow::Result<Exit> {
    let scenario = match Scenario::read(&args.scenario) {
        Ok(scenario) => scenario,
        Err(report) => {
            app::tell(&report, "scenario");
            return Ok(Exit::Usage);
        }
    };
    let seed = args.seed.unwrap_or(scenario.seed);
    let (report, tape) = match pmd_lab::run_recorded(&scenario, seed, args.record.is_some()) {
        Ok(ran) => ran,
        Err(error) => {
            say(format_args!("error: the scenario cannot be set up: {error}"));
            return Ok(Exit::Usage);
        }
    };
    if let Some(path) = &args.record {
        let text = tape.to_text()?;
        fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
        say(format_args!("{} inputs in {}", tape.len(), path.display()));
    }
    show(&report, args.json)
}

fn replay(args: &ReplayArgs) -> anyhow::Result<Exit> {
    match play(&args.record) {
        Ok(report) => show(&report, args.json),
        Err(error) => {
            say(format_args!("error: {}: {error:#}", args.record.display()));
            let is_other = error.downcast_ref::<TapeError>().is_some_and(|error| {
                matches!(error, TapeError::Differs { .. } | TapeError::Trace { .. })
            });
            Ok(if is_other { Exit::Failed } else { Exit::Usage })
        }
    }
}

fn play(record: &Path) -> anyhow::Result<Report> {
    let text = fs::read_to_string(record)?;
    Ok(Tape::from_text(&text)?.replay()?)
}

fn show(report: &Report, json: bool) -> anyhow::Result<Exit> {
    if json {
        app::print(&format!("{}\n", serde_json::to_string(report)?))?;
    } else {
        app::print(&report.to_string())?;
    }
    Ok(if report.ok { Exit::Done } else { Exit::Failed })
}
