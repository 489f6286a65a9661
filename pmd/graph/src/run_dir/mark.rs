//! Whose run a directory tells of, and whether it still lives.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::MARK;
use crate::limits::REPORT_BYTES_MAX;
use crate::regular;

/// The version of a run directory's layout and files; a reader refuses newer ones.
pub const LAYOUT: u32 = 1;

/// `run.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// [`LAYOUT`].
    pub run_dir: u32,
    /// `run` or `perf`.
    pub command: String,
    /// What it was given to run.
    pub configs: Vec<String>,
    /// When it began, in microseconds since 1970 (UTC).
    pub at_us: u64,
    /// The process.
    pub process: ProcessId,
}

impl Mark {
    /// That this process begins now.
    pub fn of_this_process(command: &str, configs: &[String]) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            run_dir: LAYOUT,
            command: command.to_owned(),
            configs: configs.to_vec(),
            at_us: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
            process: ProcessId::of(std::process::id()).unwrap_or_default(),
        }
    }

    /// The mark of a directory, if it has one that can be read.
    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&regular::read(&dir.join(MARK), REPORT_BYTES_MAX).ok()?).ok()
    }
}

/// A process, told apart from later ones that get its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks since the kernel was.
    pub started: u64,
    /// Which start of the kernel.
    pub boot: String,
}

impl ProcessId {
    /// The process that has this number now; `None` where none lives.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, can hold anything: what follows the last one is in columns (man proc_pid_stat).
        let (_, columns) = stat.rsplit_once(')')?;
        let mut columns = columns.split_whitespace();
        let is_over = matches!(columns.next()?, "Z" | "X" | "x");
        let started = columns.nth(18)?.parse().ok()?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        (!is_over).then(|| Self { pid, started, boot: boot.trim().to_owned() })
    }

    /// Whether it still lives.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_told_from_its_successor() {
        let own = ProcessId::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(!ProcessId { started: own.started + 1, ..own.clone() }.is_alive());
        assert!(!ProcessId { boot: "another".into(), ..own }.is_alive());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let other = ProcessId::of(child.id()).unwrap();
        assert!(other.is_alive());
        child.kill().unwrap();
        // Also as long as nobody has asked how it ended.
        while other.is_alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!other.is_alive());
    }
}
