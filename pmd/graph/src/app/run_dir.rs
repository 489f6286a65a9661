//! Where a run leaves its report.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use crate::plan::Plan;
use crate::run::Report;

/// A directory for `report.json` and `plan.json`.
#[derive(Debug)]
pub(super) struct RunDir(PathBuf);

impl RunDir {
    /// The one that was asked for, by the command line or the config; else the usual one, if it can be had.
    ///
    /// # Errors
    /// When one was asked for that cannot be made.
    pub(super) fn open(asked: Option<&Path>, plan: &Plan) -> anyhow::Result<Option<Self>> {
        if let Some(path) = asked.or(plan.observe.run_dir.as_deref()) {
            let made = fs::create_dir_all(path);
            made.with_context(|| format!("cannot make the run directory {}", path.display()))?;
            return Ok(Some(Self(path.to_owned())));
        }
        let Some(path) = usual() else {
            tracing::warn!("no run directory: neither XDG_STATE_HOME nor HOME is set");
            return Ok(None);
        };
        match fs::create_dir_all(&path) {
            Ok(()) => Ok(Some(Self(path))),
            Err(error) => {
                tracing::warn!("no run directory {}: {error}", path.display());
                Ok(None)
            }
        }
    }

    /// Writes both files. What cannot be written is warned about: the run itself is not to blame.
    pub(super) fn write(&self, report: &Report, plan: &Value) {
        let report = serde_json::to_string_pretty(report).map_err(io::Error::other);
        let files = [("report.json", report), ("plan.json", Ok(format!("{plan:#}")))];
        for (name, text) in files {
            if let Err(error) = text.and_then(|text| self.replace(name, &text)) {
                tracing::warn!("cannot write {}: {error}", self.0.join(name).display());
            }
        }
    }

    /// Readers see the old file or the new one, whole.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let draft = self.0.join(format!(".{name}.{}", std::process::id()));
        fs::write(&draft, format!("{text}\n"))?;
        fs::rename(&draft, self.0.join(name))
    }
}

/// `$XDG_STATE_HOME/spinwire/last`, as the XDG base directory specification has it.
fn usual() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("spinwire/last"))
}
