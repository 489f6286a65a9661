//! `spinwire plan`: what would run, and whether this machine fits it.

use crate::cli::{Exit, PlanArgs};
use crate::pipeline;

/// Prints the plan.
///
/// # Errors
/// When stdout cannot be written.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<Exit> {
    let Some(pipeline) = pipeline::open(Some(&args.config), &args.sets.sets)? else {
        return Ok(Exit::Usage);
    };
    let fit = pipeline.plan.fit(&pipeline.machine);
    if args.json {
        pipeline::print(&format!("{}\n", serde_json::to_string(&pipeline.plan.to_json(&fit))?))?;
    } else {
        pipeline::print(&pipeline.plan.to_text(&fit))?;
    }
    Ok(if fit.fits() { Exit::Done } else { Exit::Unfit })
}
