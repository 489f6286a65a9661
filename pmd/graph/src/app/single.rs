//! One pipeline in this process.

use std::path::Path;

use serde_json::json;

use super::bar::Bar;
use super::run_dir::RunDir;
use super::{App, Exit, RunArgs, pipeline, say, signals};
use crate::config::retry::milliseconds;
use crate::fault::Fault;
use crate::plan::Plan;
use crate::run::{Report, RunError, RunOptions, run as run_plan};

/// Checks the config and whether this machine fits it, runs it, and prints the report.
pub(super) fn run(app: &App<'_>, args: &RunArgs) -> anyhow::Result<Exit> {
    if args.part {
        signals::end_with_the_parent();
    }
    let interrupt = signals::interrupt()?;
    let config = args.configs.first().map(AsRef::as_ref);
    if config.is_none() && app.default.is_none() {
        say("error: give the path of a pipeline");
        return Ok(Exit::Usage);
    }
    let Some(pipeline) = pipeline::open(app.registry, config, app.default, &args.sets.sets)? else {
        return Ok(Exit::Usage);
    };
    let plan = &pipeline.plan;
    let Some(faults) = faults(&args.faults) else { return Ok(Exit::Usage) };
    let fit = plan.fit(&pipeline.machine);
    if !fit.fits() {
        say(plan.to_text(&fit).trim_end());
        return Ok(Exit::Unfit);
    }
    let run_dir = RunDir::open(args.run_dir.as_deref(), plan)?;
    log(plan);
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
        interrupt: Some(interrupt),
        watcher: Some(&mut watch),
    };
    let ran = run_plan(plan, app.registry, options);
    if let Some(bar) = bar {
        bar.clear();
    }
    let report = match ran {
        Ok(report) => report,
        Err(error) => {
            say(format_args!("error: {error}"));
            return Ok(exit(&error));
        }
    };
    if let Some(run_dir) = run_dir {
        run_dir.write(&report, &plan.to_json(&fit));
    }
    show(&report, args.json)?;
    Ok(if report.ok { Exit::Done } else { Exit::Failed })
}

/// The faults that the command line names; `None`, with the reason on stderr, if one is none.
fn faults(texts: &[String]) -> Option<Vec<Fault>> {
    let faults: Result<Vec<Fault>, _> = texts.iter().map(|text| text.parse()).collect();
    faults.inspect_err(|error| say(format_args!("error: {error}"))).ok()
}

/// What was decided for this run, once.
fn log(plan: &Plan) {
    for node in &plan.nodes {
        let Some(retry) = &node.retry else { continue };
        let knobs =
            retry.knobs().map(|(name, knob)| format!("{name} {} ({})", knob.value, knob.origin));
        let budget = retry.budget().map_or_else(|| "no limit".to_owned(), milliseconds);
        tracing::info!("node `{}`: {}; retry budget {budget}", node.name, knobs.join(", "));
    }
}

fn exit(error: &RunError) -> Exit {
    use crate::device::DeviceError;
    match error {
        RunError::Fault(_) => Exit::Usage,
        RunError::NoSuchDevice { .. }
        | RunError::Memory(_)
        | RunError::Device { source: DeviceError::Unfit(_), .. } => Exit::Unfit,
        RunError::Device { .. } | RunError::Observe { .. } | RunError::Spawn(_) => Exit::Failed,
    }
}

fn show(report: &Report, as_json: bool) -> anyhow::Result<()> {
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
