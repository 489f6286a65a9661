//! libfabric's `fi_pingpong`; Debian packages none of its bandwidth tests.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::command;

/// Half a round trip in nanoseconds; the tool gives the mean.
pub(crate) fn measure(provider: &str, size: usize, port: u16, [a, b]: [usize; 2]) -> Result<f64> {
    let endpoint = match provider {
        "udp" => "dgram",
        "tcp" => "msg",
        _ => "rdm",
    };
    let pingpong = |cpu: usize| {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "fi_pingpong", "-p", provider, "-e", endpoint]);
        command.args(["-I", "5000", "-S", &size.to_string()]);
        command
    };
    let _server = command::start(pingpong(a).args(["-B", &port.to_string()]))?;
    std::thread::sleep(Duration::from_millis(300));
    let table = command::output(pingpong(b).args(["-P", &port.to_string(), "127.0.0.1"]))?;
    figure(&table).with_context(|| format!("fi_pingpong printed: {table}"))
}

/// The column of microseconds per transfer, the last but one.
fn figure(table: &str) -> Option<f64> {
    let us: f64 = table.trim().lines().last()?.split_whitespace().rev().nth(1)?.parse().ok()?;
    Some(us * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_table_is_read() {
        let table = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n64      5k      =5k      625k        0.04s     15.78       4.06       0.25\n";
        assert_eq!(figure(table).map(f64::round), Some(4060.0));
    }
}
