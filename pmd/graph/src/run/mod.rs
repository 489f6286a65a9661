//! From a plan to a report: devices, memory, lcores, nodes, and the end of all of them in bounded time.

mod lcore;
pub(crate) mod memory;
mod report;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pmd_lcore::lcore::LoopError;
use pmd_lcore::{Clock, Ended, LcoreError};
use pmd_observe::why::{Evidence, FaultHits};
use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::FaultText;
use pmd_verbs::connect::channel_pair;
use pmd_verbs::record::Recording;
use thiserror::Error;

use crate::config::Peer;
use crate::device::{Device, DeviceError, DeviceRequest};
use crate::failure::{Failure, advised};
use crate::fault::{self, Fault, FaultError, Flip, Hang};
use crate::limits::DRAIN;
use crate::monitor::{self, Asker, Cast, LcoreRole, Monitor, NodeRole, Outlets, Seat, Subject};
use crate::node::{Edges, Live, NodeResult};
use crate::plan::{LcorePlan, NodePlan, Plan};
use crate::registry::Registry;
use crate::run_dir::JournalKeeper;
use lcore::Ties;
use watch::End;

pub use memory::RegionReport;
pub use report::{
    BothCounters, CounterReport, FaultReport, GidOfEnd, GidReport, LcoreReport, NodeReport, Report,
};
pub use watch::Progress;

/// What a run is asked for beside its plan.
#[derive(Default)]
pub struct RunOptions<'a> {
    /// Ends it after this time.
    pub duration: Option<Duration>,
    /// What is disturbed.
    pub faults: Vec<Fault>,
    /// File that every frame is written to.
    pub capture: Option<PathBuf>,
    /// What every input of its devices is written to.
    pub record: Option<Arc<Recording>>,
    /// Directory that its journal and, once a second, its state are written to.
    pub run_dir: Option<PathBuf>,
    /// Ends it as soon as this is true.
    pub interrupt: Option<Arc<AtomicBool>>,
    /// Is told how far it is, several times a second.
    pub watcher: Option<&'a mut dyn FnMut(&Progress)>,
}

impl std::fmt::Debug for RunOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { duration, faults, capture, record, run_dir, interrupt, watcher: _ } = self;
        f.debug_struct("RunOptions")
            .field("duration", duration)
            .field("faults", faults)
            .field("capture", capture)
            .field("record", record)
            .field("run_dir", run_dir)
            .field("interrupt", interrupt)
            .finish_non_exhaustive()
    }
}

/// Why a pipeline was not started. A run that was started ends in a [`Report`] instead.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// A fault names something that the pipeline does not have.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// The kind of a device is not part of this build.
    #[error("device `{name}`: this build opens no device of kind `{kind}`")]
    NoSuchDevice {
        /// Its name.
        name: String,
        /// Its kind.
        kind: &'static str,
    },
    /// A device cannot be opened.
    #[error("device `{name}`: {source}")]
    Device {
        /// Its name.
        name: String,
        /// Why.
        source: DeviceError,
    },
    /// The counters cannot be served where the config says.
    #[error("cannot serve counters at observe.listen = \"{address}\": {source}")]
    Observe {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The memory cannot be had.
    #[error(transparent)]
    Memory(#[from] pmd_mem::RegionError),
    /// The lcores cannot be started.
    #[error(transparent)]
    Spawn(#[from] pmd_lcore::SpawnError),
}

/// What the lcores of one device share, and which lcores those are: an lcore's place is its number at the device.
struct OpenDevice {
    device: Arc<dyn Device>,
    lcores: Vec<usize>,
}

/// The faults that concern what nodes store.
#[derive(Clone, Debug, Default)]
struct StoreFaults {
    flips: Vec<Flip>,
    hangs: Vec<Hang>,
}

/// Runs a pipeline until its sources are drained and its edges settled, or it is told to end, or something fails.
///
/// # Errors
/// [`RunError`], before anything has run.
pub fn run(plan: &Plan, registry: &Registry, options: RunOptions<'_>) -> Result<Report, RunError> {
    let RunOptions { duration, faults, capture, record, run_dir, interrupt, watcher } = options;
    let (stores, packets) = sort(plan, faults)?;
    let outlets = Outlets::open(run_dir.clone(), plan.observe.listen)
        .map_err(|(address, source)| RunError::Observe { address, source })?;
    let (memory, regions) = memory::reserve(plan)?;
    let capture = capture.or_else(|| plan.observe.capture.clone());
    let devices = open(plan, registry, capture.as_deref(), record.as_ref(), &packets)?;
    let clock = Clock::start();
    let plan = Arc::new(plan.clone());
    let live: Vec<Arc<Live>> = plan.nodes.iter().map(|_| Arc::default()).collect();
    let (results, inbox) = mpsc::channel();
    let (seats, askers) = seats(&plan, &devices, outlets.is_any());
    let ties = Ties { edges: edges(&plan), live: live.clone(), seats, results };
    let starts = lcore::starts(&plan, &devices, memory, &stores, ties);
    let began = Instant::now();
    let running = pmd_lcore::spawn(starts, clock)?;
    let stats = running.lcores().iter().map(|lcore| lcore.reader()).collect();
    let monitor = outlets.is_any().then(|| {
        let (cast, live) = (cast(&plan), live.clone());
        Monitor::start(Subject { cast, live, askers, stats, began }, outlets)
    });
    let monitor = monitor.and_then(|started| {
        started.inspect_err(|error| tracing::warn!("nobody watches this run: {error}")).ok()
    });
    let readers = devices.iter().filter_map(|open| open.device.journal()).collect();
    let journal = JournalKeeper::new(readers, run_dir.as_deref());
    let mut watch =
        watch::Watch { plan: &plan, live: &live, duration, interrupt, watcher, journal };
    let end = watch.until_the_end(&running, began);
    let ended = running.join(DRAIN);
    watch.journal.keep();
    let elapsed = began.elapsed();
    let mut results: Vec<NodeResult> = inbox.try_iter().collect();
    results.sort_by_key(|result| result.index);
    let mut finished = Vec::new();
    for (open, device) in devices.iter().zip(&plan.devices) {
        if let Err(error) = open.device.finish() {
            finished.push(Failure::local(format!("device `{}`: {error}", device.name)));
        }
    }
    let (verdict, evidence) = verdict(&results, &ended, finished, end);
    if let Some(monitor) = monitor {
        monitor.finish(&verdict);
    }
    let packets_by = match (packets.is_empty(), capture.is_some()) {
        (false, _) => Some("--fault"),
        (true, true) => Some("--capture"),
        (true, false) => None,
    };
    let report = |index: usize| {
        let node = &plan.nodes[index];
        match results.iter().find(|result| result.index == index) {
            Some(result) => NodeReport::of(node, result, elapsed),
            None => NodeReport::unknown(node),
        }
    };
    let trouble = if verdict.is_ok() { String::new() } else { watch.journal.trouble() };
    Ok(Report {
        ok: verdict.is_ok(),
        interrupted: end == End::Told,
        elapsed_s: elapsed.as_secs_f64(),
        nodes: (0..plan.nodes.len()).map(report).collect(),
        verdict,
        lcores: plan
            .lcores
            .iter()
            .zip(&ended)
            .map(|(lcore, e)| LcoreReport::of(lcore, &e.stats))
            .collect(),
        memory: regions,
        trouble,
        evidence,
        faults: fault_reports(&devices, &plan, &stores.flips, &results),
        packets_by: packets_by.map(str::to_owned),
    })
}

/// Whom the monitor shows.
fn cast(plan: &Plan) -> Cast {
    let lcore = |lcore: &LcorePlan| LcoreRole { name: lcore.name.clone(), cpu: lcore.cpu };
    let node = |node: &NodePlan| NodeRole {
        name: node.name.clone(),
        kind: node.kind.to_owned(),
        lcore: plan.lcores[node.lcore].name.clone(),
        peer: match node.peer {
            Some(Peer::Remote(address)) => Some(address),
            _ => None,
        },
        listen: node.listen,
    };
    Cast {
        lcores: plan.lcores.iter().map(lcore).collect(),
        devices: plan.devices.iter().map(|device| device.name.clone()).collect(),
        nodes: plan.nodes.iter().map(node).collect(),
    }
}

/// How often each fault has acted, and at which device or node.
fn fault_reports(
    devices: &[OpenDevice],
    plan: &Plan,
    flips: &[Flip],
    results: &[NodeResult],
) -> Vec<FaultReport> {
    let both = devices.iter().zip(&plan.devices);
    let reports = both.flat_map(|(open, device)| {
        let report =
            |FaultHits { rule, hits }| FaultReport { device: device.name.clone(), rule, hits };
        open.device.faults().into_iter().map(report)
    });
    let hits = |flip: &Flip| {
        let own = results.iter().filter(|result| plan.nodes[result.index].name == flip.node);
        let flipped = own.flat_map(|result| &result.flipped);
        flipped.filter(|offset| **offset == flip.offset).count() as u64
    };
    let flips = flips.iter().map(|flip| FaultReport {
        device: flip.node.clone(),
        rule: format!("flip {} {}", flip.node, flip.offset),
        hits: hits(flip),
    });
    reports.chain(flips).collect()
}

/// Which faults concern nodes, and which the frames of devices.
fn sort(plan: &Plan, faults: Vec<Fault>) -> Result<(StoreFaults, Vec<FaultText>), FaultError> {
    let (mut stores, mut packets) = (StoreFaults::default(), Vec::new());
    for fault in faults {
        fault.check(plan)?;
        match fault {
            Fault::Flip(flip) => stores.flips.push(flip),
            Fault::Hang(hang) => stores.hangs.push(hang),
            Fault::Packet(packet) => packets.push(packet),
        }
    }
    Ok((stores, packets))
}

fn open(
    plan: &Plan,
    registry: &Registry,
    capture: Option<&std::path::Path>,
    record: Option<&Arc<Recording>>,
    faults: &[FaultText],
) -> Result<Vec<OpenDevice>, RunError> {
    let mut open = Vec::with_capacity(plan.devices.len());
    for (index, device) in plan.devices.iter().enumerate() {
        let on_it = plan.nodes.iter().filter(|node| node.device == Some(index));
        let mut lcores: Vec<usize> = on_it.map(|node| node.lcore).collect();
        lcores.sort_unstable();
        lcores.dedup();
        let (name, kind) = (device.name.clone(), device.kind);
        let opener = registry.device_kind(kind);
        let opener = opener.ok_or_else(|| RunError::NoSuchDevice { name: name.clone(), kind })?;
        let faults = fault::at_device(faults, plan, index, &lcores);
        let request = DeviceRequest {
            name: &name,
            settings: &device.settings,
            lcores: u32::try_from(lcores.len()).unwrap_or(u32::MAX).max(1),
            memlock: plan.memory.memlock,
            capture,
            record,
            faults: &faults,
        };
        let device = opener
            .open(&request)
            .map_err(|source| RunError::Device { name: name.clone(), source })?;
        open.push(OpenDevice { device, lcores });
    }
    Ok(open)
}

/// For each lcore, its end of the survey, where somebody watches, and the other one.
fn seats(plan: &Plan, open: &[OpenDevice], watched: bool) -> (Vec<Option<Seat>>, Vec<Asker>) {
    let devices = |lcore: usize| -> Vec<usize> {
        let used = |index: &usize| open[*index].lcores.contains(&lcore);
        (0..open.len()).filter(used).collect()
    };
    let ends = (0..plan.lcores.len()).map(|lcore| monitor::ends(&devices(lcore), plan.nodes.len()));
    let (seats, askers): (Vec<Seat>, Vec<Asker>) = ends.unzip();
    (seats.into_iter().map(|seat| watched.then_some(seat)).collect(), askers)
}

/// A pair of channels for every queue pair between two nodes of this process.
fn edges(plan: &Plan) -> Vec<Edges> {
    let mut edges: Vec<Edges> = plan.nodes.iter().map(|_| Edges::default()).collect();
    for (index, node) in plan.nodes.iter().enumerate() {
        let Some(Peer::Node(peer)) = node.peer else { continue };
        for _ in 0..node.queues.map_or(1, |queues| queues.qps) {
            let (here, there) = channel_pair(&node.name, &plan.nodes[peer].name);
            edges[index].to_peer.push(here);
            edges[peer].from_clients.push(there);
        }
    }
    edges
}

/// The verdict on the whole, and what it was made of: of several failures, the first that its own node knows; then what became of lcores; then what
/// nodes heard from their peers.
fn verdict(
    results: &[NodeResult],
    ended: &[Ended],
    finished: Vec<Failure>,
    end: End,
) -> (Verdict, Option<Evidence>) {
    let alone = |verdict| (verdict, None);
    let known = |failure: Failure| (failure.verdict, failure.evidence.map(|evidence| *evidence));
    let first = |hearsay: bool| {
        let failures = results.iter().filter_map(|result| result.failure.as_ref());
        let failures = failures.filter(|(_, failure)| failure.hearsay == hearsay);
        failures.min_by_key(|(at, _)| *at).map(|(_, failure)| known(failure.clone()))
    };
    let failed = |outcome: &Result<(), LcoreError>| match outcome {
        // The node has said why.
        Ok(()) | Err(LcoreError::Loop { source: LoopError::Failed { .. }, .. }) => None,
        Err(error) => {
            let reason = advised(error.to_string());
            Some(alone(Verdict::new(Code::Unknown, Owner::Local, reason)))
        }
    };
    let verified: u64 = results.iter().map(|result| result.counts.verified_bytes).sum();
    first(false)
        .or_else(|| ended.iter().find_map(|lcore| failed(&lcore.outcome)))
        .or_else(|| first(true))
        .or_else(|| finished.into_iter().next().map(known))
        .unwrap_or_else(|| alone(Verdict::ok(format!("{end}; {verified} bytes verified"))))
}

/// What an lcore's start could not do, with the node that could not begin.
#[derive(Debug, Error)]
#[error("node `{node}` did not start: {failure}")]
pub(crate) struct NodeNotStarted {
    node: String,
    failure: Failure,
}
