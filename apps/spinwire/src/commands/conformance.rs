//! `spinwire conformance`: a device against the specification.

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use pmd_graph::app::{self, Exit};
use pmd_verbs::Device;

use crate::cli::ConformanceArgs;
use crate::conformance::states;
use crate::device;

/// Checks a device, and prints what deviates. The parts that there are: states.
///
/// # Errors
/// When the device cannot be opened, or stdout cannot be written.
pub(crate) fn run(args: &ConformanceArgs) -> anyhow::Result<Exit> {
    let config = match device::config(&args.device) {
        Ok(config) => config,
        Err(complaint) => {
            app::say(format_args!("error: --device {}: {complaint}", args.device));
            return Ok(Exit::Usage);
        }
    };
    let device = Device::open(&config)?;
    let progress = ProgressBar::new(states::CELLS);
    let style = "{spinner} {bar:30} {pos}/{len} transitions";
    progress.set_style(ProgressStyle::with_template(style).context("the progress template")?);
    let report = states::run(&device, || progress.inc(1))?;
    progress.finish_and_clear();
    let name = format!("soft:{}", device.gid().ip());
    if args.json {
        app::print(&format!("{}\n", report.to_json(&name)))?;
    } else {
        app::print(&report.to_text(&name))?;
    }
    Ok(if report.ok() { Exit::Done } else { Exit::Failed })
}
