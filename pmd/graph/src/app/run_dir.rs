//! Where a run leaves its report.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pmd_observe::{Code, Owner, Verdict};
use serde_json::Value;

use crate::plan::Plan;
use crate::run::Report;

/// A directory for `report.json` and `plan.json`.
#[derive(Debug)]
pub(super) struct RunDir {
    path: PathBuf,
    /// Whether somebody asked for it, and counts on what is in it.
    asked: bool,
}

impl RunDir {
    /// The one that was asked for, by the command line or the config; else the usual one, if it can be had.
    ///
    /// # Errors
    /// When one was asked for that cannot be made, or takes no files.
    pub(super) fn open(asked: Option<&Path>, plan: &Plan) -> anyhow::Result<Option<Self>> {
        if let Some(path) = asked.or(plan.observe.run_dir.as_deref()) {
            let made = fs::create_dir_all(path);
            made.with_context(|| format!("cannot make the run directory {}", path.display()))?;
            let run_dir = Self { path: path.to_owned(), asked: true };
            let taken = run_dir.probe();
            taken
                .with_context(|| format!("cannot write to the run directory {}", path.display()))?;
            return Ok(Some(run_dir));
        }
        let Some(path) = usual() else {
            tracing::warn!("no run directory: neither XDG_STATE_HOME nor HOME is set");
            return Ok(None);
        };
        match fs::create_dir_all(&path) {
            Ok(()) => Ok(Some(Self { path, asked: false })),
            Err(error) => {
                tracing::warn!("no run directory {}: {error}", path.display());
                Ok(None)
            }
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes both files. What cannot be written fails the run where it was asked for, and else is warned about.
    pub(super) fn write(&self, report: &mut Report, plan: &Value) {
        let text = serde_json::to_string_pretty(report).map_err(io::Error::other);
        let files = [("report.json", text), ("plan.json", Ok(format!("{plan:#}")))];
        for (name, text) in files {
            let Err(error) = text.and_then(|text| self.replace(name, &text)) else { continue };
            let reason = format!("cannot write {}: {error}", self.path.join(name).display());
            if self.asked && report.ok {
                report.ok = false;
                report.verdict = Verdict::new(Code::Unknown, Owner::Local, reason);
            } else {
                tracing::warn!("{reason}");
            }
        }
    }

    /// Readers see the old file or the new one, whole.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let draft = self.draft(name);
        let replaced = fs::write(&draft, format!("{text}\n"))
            .and_then(|()| fs::rename(&draft, self.path.join(name)));
        replaced.inspect_err(|_| {
            // There is none where it could not even be begun.
            drop(fs::remove_file(&draft));
        })
    }

    /// Whether files can be made, before a run of hours turns out to be unwritten.
    fn probe(&self) -> io::Result<()> {
        let draft = self.draft("report.json");
        fs::write(&draft, "")?;
        fs::remove_file(&draft)
    }

    fn draft(&self, name: &str) -> PathBuf {
        self.path.join(format!(".{name}.{}", std::process::id()))
    }
}

/// `$XDG_STATE_HOME/spinwire/last`, as the XDG base directory specification has it.
pub(super) fn usual() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("spinwire/last"))
}
