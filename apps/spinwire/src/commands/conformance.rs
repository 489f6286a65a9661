//! `spinwire conformance`: a device against the specification.

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use pmd_graph::app::{self, Exit};
use pmd_verbs::{Device, DeviceConfig, FaultText};

use crate::cli::ConformanceArgs;
use crate::conformance::lens::Clear;
use crate::conformance::rig::Ground;
use crate::conformance::{parts, run as check, steps};
use crate::device;

/// Checks a device, and prints what deviates, and what is done about that.
///
/// # Errors
/// When the device cannot be opened, or stdout cannot be written.
pub(crate) fn run(args: &ConformanceArgs) -> anyhow::Result<Exit> {
    let config = match config(args) {
        Ok(config) => config,
        Err(complaint) => {
            app::say(format_args!("error: {complaint}"));
            return Ok(Exit::Usage);
        }
    };
    let device = match Device::open(&config) {
        Err(error) if error.is_absent() => {
            app::say(format_args!("error: --device {}: {error}", args.device));
            return Ok(Exit::Unfit);
        }
        opened => opened?,
    };
    let ground = Ground::new(&device, &Clear)?;
    let parts = parts(args.only);
    let progress = ProgressBar::new(steps(&ground, &parts));
    let style = "{spinner} {bar:30} {pos}/{len} steps";
    progress.set_style(ProgressStyle::with_template(style).context("the progress template")?);
    let report = check(&ground, &parts, || progress.inc(1))?;
    progress.finish_and_clear();
    let name = format!("{}:{}", device.driver(), device.gid().ip());
    if args.json {
        app::print(&format!("{}\n", report.to_json(&name, args.only)))?;
    } else {
        app::print(&report.to_text(&name))?;
    }
    Ok(if report.ok() { Exit::Done } else { Exit::Failed })
}

/// The device with what the command line says of it: two lcores, which share memory where they may.
fn config(args: &ConformanceArgs) -> Result<DeviceConfig, String> {
    let named = device::config(&args.device);
    let mut config = named.map_err(|complaint| format!("--device {}: {complaint}", args.device))?;
    config.lcores = 2;
    if let Some(wire) = args.wire {
        config.wire = wire.into();
    }
    for text in &args.faults {
        let wrong =
            |reason: &dyn std::fmt::Display| format!("--fault: `{text}` is no fault: {reason}");
        let fault = FaultText::parse(text).map_err(|error| wrong(&error))?;
        if fault.to.is_some() || fault.from.is_some() {
            return Err(wrong(&"one process has both ends: leave out `to` and `from`"));
        }
        config.disturb.faults.push(fault.place(None, None));
    }
    Ok(config)
}
