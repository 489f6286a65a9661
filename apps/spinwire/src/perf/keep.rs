//! What a measurement leaves: in its run directory, journal and state while it runs and the report when it is over; and
//! its record, if one is wanted.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pmd_graph::app::{Record, RecordTo, say};
use pmd_graph::failure::advised;
use pmd_graph::monitor::{self, Cast, LcoreRole, Monitor, NodeRole, Outlets, Subject};
use pmd_graph::run_dir::{JournalKeeper, Mark, PLAN, REPORT, RunDir, SERVER};
use pmd_lcore::Meter;
use pmd_observe::Verdict;
use pmd_verbs::record::Recording;
use serde_json::Value;

use super::args::PerfArgs;
use super::crew::Seats;
use super::params::Params;
use super::pulse::Station;
use super::refusal::Refusal;
use super::test::Test;

/// The run directory of this end, if it has one.
#[derive(Debug, Default)]
pub(super) struct Keep {
    run_dir: Option<RunDir>,
    journal: Option<JournalKeeper>,
    record: Option<Record>,
    monitor: Option<Monitor>,
    there: There,
}

/// Where the other end is, if not on this machine's other lcores: the address that this one calls, or listens at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct There {
    pub(super) peer: Option<SocketAddr>,
    pub(super) listen: Option<SocketAddr>,
}

impl Keep {
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

    /// Ends the record, and writes the last state, once no lcore is left.
    pub(super) fn settle(&mut self, verdict: &Verdict) {
        if let Some(record) = &self.record {
            record.finish(verdict);
        }
        if let Some(monitor) = self.monitor.take() {
            monitor.finish(verdict);
        }
    }

    /// Where a second process of this machine has its own.
    pub(super) fn of_server(&self) -> Option<PathBuf> {
        self.run_dir.as_ref().map(|run_dir| run_dir.path().join(SERVER))
    }

    /// This end waits for the other one to come: that is its state until they are connected.
    pub(super) fn wait(&mut self, test: Test, there: There) {
        self.there = there;
        self.wait_again(test);
    }

    /// It has lost whoever came.
    pub(super) fn wait_again(&mut self, test: Test) {
        let name = if self.there.listen.is_some() { "server" } else { "client" };
        let cast =
            Cast { nodes: vec![self.role(name.into(), test.to_string(), "")], ..Cast::default() };
        self.watch(Subject {
            cast,
            live: vec![Arc::default()],
            askers: Vec::new(),
            stats: Vec::new(),
            began: Instant::now(),
        });
    }

    /// From now on, the journal of the device is kept, what is to be measured is told, and the lcores of these ends, all of one
    /// device, are watched. Returns what each of them needs to tell of itself.
    pub(super) fn begin<const ENDS: usize>(
        &mut self,
        params: &Params,
        ends: [&Seats; ENDS],
    ) -> [Vec<Station>; ENDS] {
        let run_dir = self.run_dir.as_ref().map(RunDir::path);
        let journals = ends.first().map(|seats| seats.device.journal()).into_iter().collect();
        self.journal = Some(JournalKeeper::new(journals, run_dir));
        if let (Some(run_dir), Ok(plan)) = (&self.run_dir, serde_json::to_string_pretty(params))
            && let Err(error) = run_dir.replace(PLAN, &plan)
        {
            tracing::warn!("cannot write to {}: {error}", run_dir.path().display());
        }
        let watched = run_dir.is_some();
        let devices = ends.first().map(|seats| seats.device.name().to_owned());
        let mut subject = Subject {
            cast: Cast { devices: devices.into_iter().collect(), ..Cast::default() },
            live: Vec::new(),
            askers: Vec::new(),
            stats: Vec::new(),
            began: Instant::now(),
        };
        let nodes = ends.iter().map(|seats| seats.cpus.len()).sum();
        let stations = ends.map(|seats| {
            let station = |(lcore, cpu): (usize, &usize)| {
                let (seat, asker) = monitor::ends(&[0], nodes);
                let (meter, live) = (Meter::new(), Arc::default());
                let node = u32::try_from(subject.live.len()).unwrap_or(u32::MAX);
                let name = format!("{}{lcore}", seats.role());
                let alone = seats.cpus.len() == 1;
                let role = if alone { seats.role().to_owned() } else { name.clone() };
                subject.cast.nodes.push(self.role(role, params.test.to_string(), &name));
                subject.cast.lcores.push(LcoreRole { name, cpu: *cpu });
                subject.askers.push(asker);
                subject.stats.push(meter.reader());
                subject.live.push(Arc::clone(&live));
                Station { node, meter, live, seat: watched.then_some(seat) }
            };
            seats.cpus.iter().enumerate().map(station).collect()
        });
        self.watch(subject);
        stations
    }

    fn role(&self, name: String, kind: String, lcore: &str) -> NodeRole {
        let There { peer, listen } = self.there;
        NodeRole { name, kind, lcore: lcore.to_owned(), peer, listen }
    }

    fn watch(&mut self, subject: Subject) {
        // Whoever was watched before is no more.
        self.monitor = None;
        let Some(run_dir) = &self.run_dir else { return };
        let outlets = Outlets::in_directory(run_dir.path().to_owned());
        let started = Monitor::start(subject, outlets);
        let started =
            started.inspect_err(|error| tracing::warn!("nobody watches this run: {error}"));
        self.monitor = started.ok();
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
