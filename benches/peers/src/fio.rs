//! fio: 4 KiB random reads, one job, depth 32.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::command;

/// How fio reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// io_uring on a file in memory.
    UringTmpfs,
    /// Mapped memory.
    MmapTmpfs,
    /// io_uring past the page cache, on the temporary disk.
    UringDirect,
}

/// Bytes of the file.
const SIZE: &str = "256M";

/// A file that goes with its handle.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // fio may have failed before it made the file.
        std::fs::remove_file(&self.0).unwrap_or_default();
    }
}

/// Millions of reads per second.
pub(crate) fn measure(kind: Kind, cpu: usize) -> Result<f64> {
    let (folder, engine, direct) = match kind {
        Kind::UringTmpfs => (PathBuf::from("/dev/shm"), "io_uring", "0"),
        Kind::MmapTmpfs => (PathBuf::from("/dev/shm"), "mmap", "0"),
        Kind::UringDirect => (std::env::temp_dir(), "io_uring", "1"),
    };
    let file = Scratch(folder.join(format!("spinwire-peers-{}.dat", std::process::id())));
    let json = command::output(
        Command::new("fio")
            .args(["--name=x", "--rw=randread", "--bs=4k", "--iodepth=32", "--time_based"])
            .args(["--runtime=1.5", "--ramp_time=0.3", "--norandommap", "--randrepeat=0"])
            .args(["--gtod_reduce=1", "--output-format=json"])
            .arg(format!("--size={SIZE}"))
            .arg(format!("--ioengine={engine}"))
            .arg(format!("--direct={direct}"))
            .arg(format!("--cpus_allowed={cpu}"))
            .arg(format!("--filename={}", file.0.display())),
    )?;
    // Notes may precede the object.
    let object = json.find('{').map_or("", |at| &json[at..]);
    let report: Value = serde_json::from_str(object).context("fio's report is no JSON")?;
    let iops = report["jobs"][0]["read"]["iops"].as_f64().context("fio reports no iops")?;
    Ok(iops / 1e6)
}
