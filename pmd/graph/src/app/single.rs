//! One pipeline in this process.

use std::io;
use std::path::Path;
use std::sync::Arc;

use pmd_observe::{Code, Owner, Verdict};
use serde_json::json;

use super::bar::Bar;
use super::pipeline::Pipeline;
use super::refusal::Refusal;
use super::{App, Exit, RunArgs, overwrite, pipeline, preflight, say, signals};
use crate::failure::advised;
use crate::fault::Fault;
use crate::plan::Plan;
use crate::run::{Report, RunOptions, run as run_plan};
use crate::run_dir::{self, Mark, RunDir};

/// Checks the config and whether this machine fits it, runs it, and prints the report.
pub(super) fn run(app: &App<'_>, args: &RunArgs) -> Result<Exit, Refusal> {
    if args.part {
        signals::end_with_the_parent();
    }
    let interrupt = signals::interrupt()?;
    let config = args.configs.first().map(AsRef::as_ref);
    if config.is_none() && app.default.is_none() {
        return Err(Refusal::usage("give the path of a pipeline"));
    }
    let claimed = pipeline::claim(app.registry, config, app.default, &args.sets.sets)?;
    let (pipeline, claims) = claimed.ok_or_else(Refusal::config)?;
    let plan = &pipeline.plan;
    preflight::look(plan)?;
    let faults = faults(&args.faults)?;
    let capture = args.capture.as_deref().or(plan.observe.capture.as_deref());
    let inputs = overwrite::inputs(config, plan);
    overwrite::refuse("capture", capture, &inputs)?;
    overwrite::refuse("record", args.record.record.as_deref(), &inputs)?;
    let fit = plan.fit(&pipeline.machine);
    if !fit.fits() {
        return Err(Refusal::unfit(plan, &fit));
    }
    let run_dir = run_dir_of(args, plan)?;
    let record = args.record.begin().map_err(|error| Refusal::usage(error.to_string()))?;
    log(&pipeline);
    let mut bar = (!args.part).then(Bar::new).flatten();
    let mut watch = |progress: &crate::run::Progress| {
        if let Some(bar) = &mut bar {
            bar.show(progress);
        }
    };
    let options = RunOptions {
        duration: args.duration,
        faults,
        capture: args.capture.clone(),
        record: record.as_ref().map(|record| Arc::clone(record.recording())),
        run_dir: run_dir.as_ref().map(|run_dir| run_dir.path().to_owned()),
        interrupt: Some(interrupt),
        watcher: Some(&mut watch),
    };
    let ran = run_plan(plan, app.registry, options);
    drop(claims);
    if let Some(bar) = bar {
        bar.clear();
    }
    if let (Some(record), Ok(report)) = (&record, &ran) {
        record.finish(&report.verdict);
    }
    let mut report = match ran.map_err(Refusal::from) {
        Ok(report) => report,
        Err(refusal) => {
            if let Some(run_dir) = &run_dir {
                keep(run_dir, &mut Report::refused(refusal.verdict()), &plan.to_json(&fit));
            }
            return Err(refusal);
        }
    };
    if let Some(run_dir) = &run_dir {
        keep(run_dir, &mut report, &plan.to_json(&fit));
    }
    if !report.trouble.is_empty() {
        say(&report.trouble);
    }
    if let Err(error) = show(&report, args.json) {
        return Ok(pipeline::unwritten(&error));
    }
    Ok(if report.ok { Exit::Done } else { Exit::Failed })
}

/// The run directory that the command line or the config asks for, or the usual one.
fn run_dir_of(args: &RunArgs, plan: &Plan) -> anyhow::Result<Option<RunDir>> {
    let configs: Vec<String> =
        args.configs.iter().map(|config| config.display().to_string()).collect();
    let mark = Mark::of_this_process("run", &configs);
    match (&args.run_dir, args.run_dir_unasked) {
        (Some(path), true) => match RunDir::at(path, false, &mark) {
            Ok(run_dir) => Ok(Some(run_dir)),
            Err(error) => {
                tracing::warn!("no run directory: {error:#}");
                Ok(None)
            }
        },
        (asked, _) => RunDir::open(asked.as_deref().or(plan.observe.run_dir.as_deref()), &mark),
    }
}

/// Writes report and plan. What cannot be written fails the run where it was asked for, and else is warned about.
fn keep(run_dir: &RunDir, report: &mut Report, plan: &serde_json::Value) {
    let text = serde_json::to_string_pretty(report).map_err(io::Error::other);
    // Whoever waits for the report finds the plan there already.
    let files = [(run_dir::PLAN, Ok(format!("{plan:#}"))), (run_dir::REPORT, text)];
    for (name, text) in files {
        let Err(error) = text.and_then(|text| run_dir.replace(name, &text)) else { continue };
        let path = run_dir.path().join(name);
        let reason = advised(format!("cannot write {}: {error}", path.display()));
        if run_dir.is_asked() && report.ok {
            report.ok = false;
            // The run itself did what it was to do.
            let run = format!("the run was over: {}", report.verdict.summary);
            let unkept = Verdict::new(Code::Unknown, Owner::Local, reason).because(run);
            report.verdict = unkept.turn("observe.run_dir");
        } else {
            tracing::warn!("{reason}");
        }
    }
}

/// The faults that the command line names.
fn faults(texts: &[String]) -> Result<Vec<Fault>, Refusal> {
    let faults: Result<Vec<Fault>, _> = texts.iter().map(|text| text.parse()).collect();
    faults.map_err(|error| Refusal::usage(error.to_string()))
}

/// What was decided for this run, once.
fn log(Pipeline { plan, machine }: &Pipeline) {
    if let Some(warning) = plan.beside_others(machine) {
        tracing::warn!("{warning}");
    }
    for node in &plan.nodes {
        if let Some(retry) = &node.retry {
            tracing::info!("node `{}`: {}", node.name, retry.applied());
        }
    }
}

fn show(report: &Report, as_json: bool) -> io::Result<()> {
    if as_json {
        pipeline::print(&format!("{}\n", serde_json::to_string(report)?))?;
        // Whoever reads the object on stdout may not be whoever looks at the terminal.
        if !report.ok {
            say(&report.verdict);
        }
    } else {
        pipeline::print(&report.to_string())?;
    }
    Ok(())
}

/// What a run that did not get as far as a report is to a reader of JSON.
pub(super) fn failed(config: &Path, exit: Option<i32>) -> serde_json::Value {
    json!({ "ok": false, "config": config.display().to_string(), "exit": exit })
}
