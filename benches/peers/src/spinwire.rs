//! Our own side.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::command;
use crate::row::{Ours, Unit};

/// Runs spinwire once and picks the figure.
pub(crate) fn measure(binary: &Path, ours: &Ours, unit: Unit, cpus: [usize; 2]) -> Result<f64> {
    let mut command = Command::new(binary);
    match ours {
        Ours::Perf(args) => {
            command.arg("perf").args(args).args(["-D", "500ms", "--json"]);
            // The sending side's first.
            command.args(["--cpu", &format!("{},{}", cpus[1], cpus[0])]);
        }
        Ours::Pipeline { config, set, .. } => {
            command.args(["run", config, "--json"]);
            for pair in set {
                command.args(["--set", pair]);
            }
        }
    }
    let json = command::output(&mut command)?;
    let report: Value = serde_json::from_str(&json).context("the report is no JSON")?;
    figure(&report, ours, unit).with_context(|| format!("no figure in: {json}"))
}

fn figure(report: &Value, ours: &Ours, unit: Unit) -> Option<f64> {
    match ours {
        Ours::Perf(_) => Some(match unit {
            Unit::Rate => report["messages_per_s"].as_f64()? / 1e6,
            Unit::Bandwidth => report["bytes_per_s"].as_f64()? / 1e9,
            Unit::Latency => report["latency_ns"]["p50"].as_f64()?,
        }),
        Ours::Pipeline { node, .. } => {
            let node = report["nodes"].as_array()?.iter().find(|found| found["name"] == **node)?;
            let per_message = node["bytes"].as_f64()? / node["messages"].as_f64()?;
            Some(node["bytes_per_s"].as_f64()? / per_message / 1e6)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pipeline_has_the_rate_of_its_node() {
        let report = json!({"nodes": [
            {"name": "target", "messages": 1, "bytes": 1, "bytes_per_s": 1.0},
            {"name": "client", "messages": 1000, "bytes": 4_096_000, "bytes_per_s": 8.192e9},
        ]});
        let ours = Ours::Pipeline { config: "", node: "client", set: Vec::new() };
        assert_eq!(figure(&report, &ours, Unit::Rate), Some(2.0));
    }

    #[test]
    fn perf_has_three_figures() {
        let report = json!({"messages_per_s": 2e6, "bytes_per_s": 4e9, "latency_ns": {"p50": 70}});
        let ours = Ours::Perf(Vec::new());
        let all = [Unit::Rate, Unit::Bandwidth, Unit::Latency];
        assert_eq!(
            all.map(|unit| figure(&report, &ours, unit)),
            [Some(2.0), Some(4.0), Some(70.0)]
        );
    }
}
