//! `spinwire conformance`: a device against the specification.

use std::net::IpAddr;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use pmd_graph::app::{self, Exit};
use pmd_verbs::{Device, DeviceConfig};

use crate::cli::ConformanceArgs;
use crate::conformance::states;

/// Checks a device, and prints what deviates. The parts that there are: states.
///
/// # Errors
/// When the device cannot be opened, or stdout cannot be written.
pub(crate) fn run(args: &ConformanceArgs) -> anyhow::Result<Exit> {
    let config = match config(&args.device) {
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

/// The device that `KIND[:NAME]` means; software NICs are named by their address.
fn config(device: &str) -> Result<DeviceConfig, String> {
    let (kind, name) = match device.split_once(':') {
        Some((kind, name)) => (kind, Some(name)),
        None => (device, None),
    };
    match kind {
        "soft" => {
            let address = name.map(|name| {
                name.parse::<IpAddr>().map_err(|_| {
                    format!(
                        "{name:?} is not an address, by which software NICs are named: soft, or for \
                         instance soft:127.0.0.1"
                    )
                })
            });
            Ok(DeviceConfig { address: address.transpose()?, ..DeviceConfig::default() })
        }
        "verbs" | "doca" => Err(format!("{kind} devices are not available in this build; soft is")),
        kind => Err(format!(
            "{kind:?} is no kind of device: soft is (verbs and doca are not in this build)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_by_kind_and_name() {
        assert_eq!(config("soft").unwrap().address, None);
        let named = config("soft:127.7.0.1").unwrap().address;
        assert_eq!(named, Some(IpAddr::from([127, 7, 0, 1])));
        assert_eq!(config("soft:::1").unwrap().address, Some("::1".parse().unwrap()));
        for (device, complaint) in [
            ("soft:eth0", "not an address"),
            ("verbs:rxe0", "not available in this build"),
            ("doca", "not available in this build"),
            ("hard", "no kind of device"),
            ("", "no kind of device"),
        ] {
            let text = config(device).unwrap_err();
            assert!(text.contains(complaint), "{text}");
        }
    }
}
