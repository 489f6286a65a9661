//! `spinwire check`: whether a config would be taken.

use pmd_graph::app::{self, Exit, Keys};
use pmd_graph::registry::Registry;

use crate::cli::CheckArgs;

/// Prints `ok` and what the pipeline is, or refuses it.
///
/// # Errors
/// When stdout cannot be written.
pub(crate) fn run(registry: &Registry, args: &CheckArgs) -> anyhow::Result<Exit> {
    let Some(pipeline) = app::open(registry, &args.config, &args.sets.sets, Keys::Elsewhere)?
    else {
        return Ok(Exit::Usage);
    };
    let plan = &pipeline.plan;
    let kinds: Vec<String> =
        plan.nodes.iter().map(|node| format!("{} ({})", node.name, node.kind)).collect();
    let lcores = match plan.lcores.len() {
        1 => "1 lcore".to_owned(),
        lcores => format!("{lcores} lcores"),
    };
    app::print(&format!("ok: {} on {lcores}\n", kinds.join(", ")))?;
    Ok(Exit::Done)
}
