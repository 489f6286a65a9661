//! The state of runs, from their directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pmd_graph::run_dir::{self, ReadError};
use pmd_observe::status::{FILE, Status, VERSION};
use serde_json::{Value, json};

use super::told::{self, Peer};

/// A run that lives writes its state each second; one that has not for so long does not get to it.
const SILENCE: Duration = Duration::from_secs(5);

/// Where states are read from.
#[derive(Debug)]
pub(crate) struct Source {
    dirs: Vec<PathBuf>,
}

/// One process of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// Its last state.
    pub(crate) status: Status,
    /// What became of it.
    pub(crate) life: Life,
    /// What its peers have told, as its report says.
    pub(crate) peers: Vec<Peer>,
}

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It runs.
    Running,
    /// It runs, and has not written its state for so long.
    Silent(Duration),
    /// The run is over.
    Ended,
    /// The process is gone, and did not say that the run is over: it was killed.
    Gone,
}

impl Life {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Silent(_) => "silent",
            Self::Ended => "ended",
            Self::Gone => "gone",
        }
    }
}

impl Run {
    /// The state, and what became of the process.
    pub(crate) fn to_json(&self) -> Value {
        let mut value = serde_json::to_value(&self.status).unwrap_or_default();
        if let Value::Object(map) = &mut value {
            map.insert("run_dir".to_owned(), json!(self.dir.display().to_string()));
            map.insert("process".to_owned(), json!(self.life.as_str()));
        }
        value
    }
}

impl Source {
    pub(crate) const fn new(dirs: Vec<PathBuf>) -> Self {
        Self { dirs }
    }

    /// The state of every process: of one that wrote into the directory itself, and of those that have a directory in it.
    ///
    /// # Errors
    /// [`ReadError`], if one of the directories holds none.
    pub(crate) fn read(&self) -> Result<Vec<Run>, ReadError> {
        let mut runs = Vec::new();
        for dir in &self.dirs {
            let before = runs.len();
            for part in parts(dir) {
                runs.extend(read(&part)?);
            }
            if runs.len() == before {
                return Err(ReadError::NoState(dir.clone()));
            }
        }
        Ok(runs)
    }
}

/// A directory and those in it, in order.
fn parts(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut parts: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    parts.sort();
    parts.insert(0, dir.to_owned());
    parts
}

/// The state in a directory; none where nobody has written one.
fn read(dir: &Path) -> Result<Option<Run>, ReadError> {
    let path = dir.join(FILE);
    let report = told::report(dir)?;
    let peers = report.as_ref().map(told::peers).unwrap_or_default();
    let Some(value) = run_dir::json(&path)? else {
        return Ok(None);
    };
    let version = value.get("version").and_then(Value::as_u64).unwrap_or(0);
    if version > u64::from(VERSION) {
        let theirs = u32::try_from(version).unwrap_or(u32::MAX);
        return Err(ReadError::Newer { path, theirs, ours: VERSION });
    }
    let status: Status = serde_json::from_value(value)
        .map_err(|error| ReadError::Damaged { path: path.clone(), reason: error.to_string() })?;
    let life = life(&status);
    Ok(Some(Run { dir: dir.to_owned(), status, life, peers }))
}

fn life(status: &Status) -> Life {
    if status.ended {
        return Life::Ended;
    }
    if !lives(status.pid) {
        return Life::Gone;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match now.saturating_sub(Duration::from_millis(status.at_unix_ms)) {
        silent if silent > SILENCE => Life::Silent(silent),
        _ => Life::Running,
    }
}

/// Whether a process is there, and is no zombie: one that was killed stays until somebody has waited for it (proc(5)).
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before may hold anything.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("spinwire-source-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn put(dir: &Path, text: &str) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(FILE), text).unwrap();
    }

    #[test]
    fn what_became_of_a_process_is_told() {
        let own = std::process::id();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let dir = dir("life");
        let source = Source::new(vec![dir.clone()]);
        for (text, expected) in [
            (format!(r#"{{"version":1,"pid":{own},"at_unix_ms":{now}}}"#), "running"),
            (format!(r#"{{"version":1,"pid":{own},"at_unix_ms":{}}}"#, now - 60_000), "silent"),
            (r#"{"version":1,"pid":4194305}"#.to_owned(), "gone"),
            (r#"{"version":1,"pid":4194305,"ended":true}"#.to_owned(), "ended"),
        ] {
            put(&dir, &text);
            let runs = source.read().unwrap();
            assert_eq!(runs[0].life.as_str(), expected, "{text}");
            assert_eq!(runs[0].to_json()["process"], expected);
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn processes_of_one_run_have_directories_in_its_own() {
        let dir = dir("parts");
        let source = Source::new(vec![dir.clone()]);
        assert!(matches!(source.read(), Err(ReadError::NoState(_))));
        for (part, pid) in [("0", 7), ("1", 8)] {
            put(&dir.join(part), &format!(r#"{{"version":1,"pid":{pid}}}"#));
        }
        fs::write(dir.join("report.json"), "{}").unwrap();
        let pids: Vec<u32> = source.read().unwrap().iter().map(|run| run.status.pid).collect();
        assert_eq!(pids, [7, 8]);
        put(&dir, "{");
        assert!(matches!(source.read(), Err(ReadError::Damaged { .. })));
        put(&dir, r#"{"version":99}"#);
        let error = source.read().unwrap_err().to_string();
        assert!(error.contains("has version 99"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }
}
