//! `spinwire plan`: what would run, and whether this machine fits it.

use pmd_graph::app::{self, Exit, Keys};
use pmd_graph::registry::Registry;

use crate::cli::PlanArgs;

/// Prints the plan.
///
/// # Errors
/// When stdout cannot be written.
pub(crate) fn run(registry: &Registry, args: &PlanArgs) -> anyhow::Result<Exit> {
    let Some(pipeline) = app::open(registry, &args.config, &args.sets.sets, Keys::Here)? else {
        return Ok(Exit::Usage);
    };
    let fit = app::fit(&pipeline);
    if args.json {
        app::print(&format!("{}\n", serde_json::to_string(&pipeline.plan.to_json(&fit))?))?;
    } else {
        app::print(&pipeline.plan.to_text(&fit))?;
    }
    Ok(if fit.fits() { Exit::Done } else { Exit::Unfit })
}
