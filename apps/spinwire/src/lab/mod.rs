//! `spinwire lab`: scenarios of faults in a deterministic world; `spinwire record` and `lab replay`: the same run again.

mod args;
mod live;

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use pmd_graph::app::{self, App, Exit, say};
use pmd_graph::regular;
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

/// Where the record of a pipeline goes, unless told otherwise.
const RECORD: &str = "spinwire.rec";
/// The record of a scenario is no longer than that, in bytes.
const TAPE_BYTES: u64 = 1 << 30;
/// A scenario is no longer than that, in bytes.
const SCENARIO_BYTES: u64 = 1 << 20;

/// Runs a pipeline or a scenario with its record.
///
/// # Errors
/// When a file or stdout cannot be written.
pub(crate) fn record(app: &App<'_>, args: &RecordArgs) -> anyhow::Result<Exit> {
    let RecordArgs { out, seed, run } = args;
    if let [file, rest @ ..] = run.configs.as_slice()
        && is_scenario(file)
    {
        let asked = out.as_ref().or(run.record.record.as_ref());
        let ((None, [record]) | (Some(record), [])) = (asked, rest) else {
            say("error: a scenario has one record: `spinwire record SCENARIO FILE`");
            return Ok(Exit::Usage);
        };
        let record = Some(record.clone());
        return scenario(&RunArgs { scenario: file.clone(), seed: *seed, json: run.json, record });
    }
    if seed.is_some() {
        say("error: --seed is for scenarios: nothing of a pipeline is left to it");
        return Ok(Exit::Usage);
    }
    let mut run = run.clone();
    run.record.record.get_or_insert_with(|| out.clone().unwrap_or_else(|| RECORD.into()));
    Ok(app.run(&run))
}

/// Whether the file is of the laboratory; what cannot be read is a pipeline, which complains about it.
fn is_scenario(file: &Path) -> bool {
    let text = regular::read(file, SCENARIO_BYTES).unwrap_or_default();
    let text = String::from_utf8(text).unwrap_or_default();
    let begins = |line: &str, word: &str| line.trim_start().starts_with(word);
    let has = |word: &str| text.lines().any(|line| begins(line, word));
    has("[[host]]") && !has("[[node]]")
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
    if live::is_record(&args.record) {
        return live::replay(&args.record, args.json);
    }
    match play(&args.record) {
        Ok((report, inputs)) => {
            say(format_args!(
                "replayed exactly: {inputs} inputs, each as it was, and the same hash"
            ));
            show(&report, args.json)
        }
        Err(error) => {
            say(format_args!("error: {}: {error:#}", args.record.display()));
            // What is no record was not meant; what is one, and damaged or different, is an answer.
            let is_record = error
                .downcast_ref::<TapeError>()
                .is_some_and(|error| !matches!(error, TapeError::Format(_)));
            Ok(if is_record { Exit::Failed } else { Exit::Usage })
        }
    }
}

fn play(record: &Path) -> anyhow::Result<(Report, usize)> {
    let text = String::from_utf8(regular::read(record, TAPE_BYTES)?)
        .map_err(|_| TapeError::Format("it is no text".into()))?;
    let tape = Tape::from_text(&text)?;
    Ok((tape.replay()?, tape.len()))
}

fn show(report: &Report, json: bool) -> anyhow::Result<Exit> {
    if json {
        app::print(&format!("{}\n", serde_json::to_string(report)?))?;
    } else {
        app::print(&report.to_string())?;
    }
    Ok(if report.ok { Exit::Done } else { Exit::Failed })
}
