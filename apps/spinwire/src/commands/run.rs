//! `spinwire run`: a pipeline from its config to its report.

use std::path::Path;

use anyhow::bail;

use crate::cli::{Exit, RunArgs};
use crate::pipeline;

/// Checks every config and whether this machine fits it, then runs them.
///
/// # Errors
/// Always, once the checks have passed: this build has no nodes to run.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<Exit> {
    tracing::debug!(
        json = args.json,
        duration = ?args.duration,
        faults = ?args.faults,
        capture = ?args.capture,
        run_dir = ?args.run_dir,
        "run"
    );
    let mut configs: Vec<Option<&Path>> =
        args.configs.iter().map(|path| Some(path.as_path())).collect();
    if configs.is_empty() {
        configs.push(None);
    }
    for config in configs {
        let Some(pipeline) = pipeline::open(config, &args.sets.sets)? else {
            return Ok(Exit::Usage);
        };
        let fit = pipeline.plan.fit(&pipeline.machine);
        if !fit.fits() {
            eprint!("{}", pipeline.plan.to_text(&fit));
            return Ok(Exit::Unfit);
        }
    }
    bail!("this build can check and plan a pipeline, but not run it")
}
