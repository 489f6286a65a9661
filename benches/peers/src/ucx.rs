//! UCX's own `ucx_perftest`, a server and a client.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::command;
use crate::row::Unit;

/// Iterations that take a few tenths of a second.
fn iterations(tls: &str, test: &str, size: usize) -> u64 {
    let step = match size {
        0..1024 => 0,
        1024..32_768 => 1,
        32_768..524_288 => 2,
        _ => 3,
    };
    let is_slow = test.ends_with("lat") || test == "ucp_get";
    match (tls, is_slow) {
        ("tcp", true) => [8_000, 6_000, 1_500, 150][step],
        ("tcp", false) => [80_000, 30_000, 4_000, 250][step],
        (_, true) => [300_000, 150_000, 15_000, 1_500][step],
        (_, false) => [4_000_000, 600_000, 40_000, 4_000][step],
    }
}

/// Runs one test. Every round has a port of its own, so that a lingering socket disturbs nobody.
pub(crate) fn measure(
    folder: &Path,
    (tls, test, size): (&str, &str, usize),
    unit: Unit,
    port: u16,
    [a, b]: [usize; 2],
) -> Result<f64> {
    let n = iterations(tls, test, size);
    let perftest = || {
        let mut command = Command::new(folder.join("bin/ucx_perftest"));
        command
            .env("LD_LIBRARY_PATH", folder.join("lib"))
            .env("UCX_TLS", tls)
            .env("UCX_LOG_LEVEL", "error")
            .env("UCX_WARN_UNUSED_ENV_VARS", "n");
        if tls == "tcp" {
            command.env("UCX_NET_DEVICES", "lo");
        }
        command.args(["-t", test, "-f", "-v", "-s"]).arg(size.to_string());
        command.arg("-n").arg(n.to_string()).arg("-w").arg((n / 20 + 10).to_string());
        command.arg("-p").arg(port.to_string());
        command
    };
    let _server = command::start(perftest().arg("-c").arg(a.to_string()))?;
    std::thread::sleep(Duration::from_millis(400));
    let csv = command::output(perftest().arg("127.0.0.1").arg("-c").arg(b.to_string()))?;
    figure(&csv, size, unit).with_context(|| format!("ucx_perftest printed: {csv}"))
}

/// Picks a figure from its CSV: iterations, p50, average and overall latency in us, average and
/// overall bandwidth in MiB/s, average and overall rate.
fn figure(csv: &str, size: usize, unit: Unit) -> Option<f64> {
    let fields: Vec<f64> = csv
        .lines()
        .last()?
        .split(',')
        .map(|field| field.trim().parse().ok())
        .collect::<Option<_>>()?;
    let [_, p50, .., rate] = fields[..] else { return None };
    #[expect(clippy::cast_precision_loss, reason = "sizes are small")]
    let size = size as f64;
    Some(match unit {
        Unit::Latency => p50 * 1e3,
        Unit::Rate => rate / 1e6,
        Unit::Bandwidth => rate * size / 1e9,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n2000000,0.040,0.043,0.043,178.23,178.23,23360935,23360935\n";

    #[test]
    fn its_csv_is_read() {
        assert_eq!(figure(CSV, 8, Unit::Rate), Some(23.360_935));
        assert_eq!(figure(CSV, 8, Unit::Latency), Some(40.0));
        assert_eq!(figure(CSV, 1000, Unit::Bandwidth), Some(23.360_935));
        assert_eq!(figure("iterations\n", 8, Unit::Rate), None);
    }
}
