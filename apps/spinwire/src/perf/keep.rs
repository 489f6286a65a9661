//! What a measurement leaves: in its run directory, the journal while it runs and the report when it is over; and
//! its record, if one is wanted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmd_graph::app::{Record, RecordTo, say};
use pmd_graph::failure::advised;
use pmd_graph::run_dir::{JournalKeeper, Mark, PLAN, REPORT, RunDir, SERVER};
use pmd_observe::Verdict;
use pmd_verbs::Device;
use pmd_verbs::record::Recording;
use serde_json::Value;

use super::args::PerfArgs;
use super::params::Params;
use super::refusal::Refusal;

/// The run directory of this end, if it has one.
#[derive(Debug, Default)]
pub(super) struct Keep {
    run_dir: Option<RunDir>,
    journal: Option<JournalKeeper>,
    record: Option<Record>,
    /// Whether this end is the other one's lcore, which keeps the journal of all.
    aside: bool,
}

impl Keep {
    /// An end within a process whose other end keeps everything.
    pub(super) fn aside() -> Self {
        Self { aside: true, ..Self::default() }
    }

    /// Opens the directory that was asked for, or the usual one.
    ///
    /// # Errors
    /// When one was asked for that cannot be had.
    pub(super) fn open(&mut self, args: &PerfArgs) -> Result<(), Refusal> {
        let run_dir = RunDir::open(args.run_dir.as_deref(), &mark(args));
        self.run_dir = run_dir.map_err(|error| Refusal::local(format!("{error:#}")))?;
        Ok(())
    }

    /// The directory that a second process is given.
    pub(super) fn open_at(&mut self, args: &PerfArgs, path: Option<&Path>) {
        let run_dir = path.map(|path| RunDir::at(path, false, &mark(args))).transpose();
        self.run_dir = run_dir.unwrap_or_else(|error| {
            tracing::warn!("no run directory: {error:#}");
            None
        });
    }

    /// Begins the record, if one is wanted.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(super) fn record(&mut self, to: &RecordTo) -> Result<(), Refusal> {
        self.record = to.begin().map_err(|error| Refusal::usage(error.to_string()))?;
        Ok(())
    }

    /// What a device is to be opened with.
    pub(super) fn recording(&self) -> Option<Arc<Recording>> {
        self.record.as_ref().map(|record| Arc::clone(record.recording()))
    }

    /// Ends the record, once no lcore is left.
    pub(super) fn end_record(&self, verdict: &Verdict) {
        if let Some(record) = &self.record {
            record.finish(verdict);
        }
    }

    /// Where a second process of this machine has its own.
    pub(super) fn of_server(&self) -> Option<PathBuf> {
        self.run_dir.as_ref().map(|run_dir| run_dir.path().join(SERVER))
    }

    /// From now on, the journal of a device is kept, and what is to be measured is told.
    pub(super) fn begin(&mut self, device: &Device, params: &Params) {
        if self.aside {
            return;
        }
        let run_dir = self.run_dir.as_ref().map(RunDir::path);
        self.journal = Some(JournalKeeper::new(vec![device.journal()], run_dir));
        if let (Some(run_dir), Ok(plan)) = (&self.run_dir, serde_json::to_string_pretty(params))
            && let Err(error) = run_dir.replace(PLAN, &plan)
        {
            tracing::warn!("cannot write to {}: {error}", run_dir.path().display());
        }
    }

    /// Takes over what the lcores have written.
    pub(super) fn tick(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.keep();
        }
    }

    /// Writes the report. Returns why it could not be written, where the directory was asked for.
    pub(super) fn end(&mut self, report: &Value) -> Option<String> {
        self.tick();
        let run_dir = self.run_dir.as_ref()?;
        let error = run_dir.replace(REPORT, &format!("{report:#}")).err()?;
        let path = run_dir.path().join(REPORT);
        let reason = advised(format!("cannot write {}: {error}", path.display()));
        if run_dir.is_asked() {
            return Some(reason);
        }
        tracing::warn!("{reason}");
        None
    }

    /// Shows the last records about what failed on stderr.
    pub(super) fn show_trouble(&self) {
        let trouble = self.journal.as_ref().map(JournalKeeper::trouble).unwrap_or_default();
        if !trouble.is_empty() {
            say(trouble);
        }
    }
}

fn mark(args: &PerfArgs) -> Mark {
    Mark::of_this_process("perf", &[args.test.to_string()])
}
