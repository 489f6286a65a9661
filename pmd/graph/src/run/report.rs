//! What a run came to.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use pmd_lcore::Stats;
use pmd_observe::report::{
    Align, Bytes, BytesPerSecond, Count, Nanos, PerSecond, Percent, Table, per_second,
};
use pmd_observe::why::{Evidence, FaultHits};
use pmd_observe::{Latency, Snapshot, Verdict};
use pmd_verbs::gid::{GidPair, SourceGid};
use serde::Serialize;

use super::memory::RegionReport;
use crate::node::{NodeResult, Recoveries};
use crate::plan::{LcorePlan, NodePlan};

/// What a run came to. As JSON, the keys `ok, elapsed_s, nodes, verdict` and those of their objects are a contract;
/// `lcores` and `memory` come on top.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Whether everything asked for was done and verified.
    pub ok: bool,
    /// Whether a signal told it to stop before it was done.
    pub interrupted: bool,
    /// From the start of the lcores to their end.
    pub elapsed_s: f64,
    /// The nodes, in the order of the config.
    pub nodes: Vec<NodeReport>,
    /// What went wrong, if something did.
    pub verdict: Verdict,
    /// The lcores, in the order of the config.
    pub lcores: Vec<LcoreReport>,
    /// The regions.
    pub memory: Vec<RegionReport>,
    /// What both ends knew, where a connection broke: what the verdict was made of.
    pub evidence: Option<Evidence>,
    /// The faults of frames and of stored bytes that were asked for, and how often each acted.
    pub faults: Vec<FaultReport>,
    /// What kept everything on the packet path though shared memory may have been there: `--fault` or `--capture`.
    pub packets_by: Option<String>,
    /// Of a run that failed: the last records of the transition journal about what failed, for people.
    #[serde(skip)]
    pub trouble: String,
}

/// A fault of frames or of a stored byte that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultReport {
    /// The device, or the node with the byte, that it acts at.
    pub device: String,
    /// The rule, as the command line has it.
    pub rule: String,
    /// Frames that it hit, or bytes that it changed.
    pub hits: u64,
}

/// Counters of one side before and after a run, and those that moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CounterReport {
    /// Before.
    pub before: Snapshot,
    /// After.
    pub after: Snapshot,
    /// How far they moved; those that did not are left out.
    pub delta: Snapshot,
}

impl From<[Snapshot; 2]> for CounterReport {
    fn from([before, after]: [Snapshot; 2]) -> Self {
        let delta = after.since(&before).nonzero();
        Self { before, after, delta }
    }
}

/// Counters of the ports of both sides of a node's connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BothCounters {
    /// Of the node's lcore.
    pub local: CounterReport,
    /// Of its peers' lcores together, each since its connection was made; null where no peer has told.
    pub remote: Option<CounterReport>,
}

impl Report {
    /// A run that did not begin.
    pub fn refused(verdict: Verdict) -> Self {
        Self {
            ok: false,
            interrupted: false,
            elapsed_s: 0.0,
            nodes: Vec::new(),
            verdict,
            lcores: Vec::new(),
            memory: Vec::new(),
            evidence: None,
            faults: Vec::new(),
            packets_by: None,
            trouble: String::new(),
        }
    }
}

/// What a node did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Messages, or blocks, that it dealt with.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that it compared with what they should be, and that equal it.
    pub verified_bytes: u64,
    /// `bytes` per second between its first message and its last.
    pub bytes_per_s: f64,
    /// `messages` per second in the same time.
    pub messages_per_s: f64,
    /// What went wrong and was survived, and what was not.
    pub errors: u64,
    /// How long its messages took, in nanoseconds; all zero for a node that does not measure.
    pub latency_ns: Latency,
    /// How its bytes reached the peer: `local`, `packet`, or as the device calls it; null without an edge.
    pub path: Option<String>,
    /// The addresses of its connections: each pair of this end's and a peer's once.
    pub gids: Vec<GidReport>,
    /// Its connections that broke and came back.
    pub recoveries: RecoveryReport,
    /// Counters of both sides of its connections; null without a device.
    pub counters: Option<BothCounters>,
}

/// The addresses of both ends of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GidReport {
    /// This end's.
    pub local: GidOfEnd,
    /// The peer's.
    pub remote: GidOfEnd,
}

/// The address that one end of a connection sends from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GidOfEnd {
    /// Its index in the GID table of that end; null where the end did not tell.
    pub index: Option<u32>,
    /// The address.
    pub address: IpAddr,
    /// How its packets look.
    #[serde(rename = "type")]
    pub version: String,
}

impl From<&GidPair> for GidReport {
    fn from(pair: &GidPair) -> Self {
        Self { local: pair.local.into(), remote: pair.remote.into() }
    }
}

impl From<SourceGid> for GidOfEnd {
    fn from(SourceGid { index, gid, version }: SourceGid) -> Self {
        Self { index, address: gid.ip(), version: version.to_string() }
    }
}

impl fmt::Display for GidOfEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.index {
            write!(f, "GID {index}, ")?;
        }
        write!(f, "{} ({})", self.address, self.version)
    }
}

/// Connections that broke and came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RecoveryReport {
    /// How often.
    pub count: u64,
    /// From the failure until something was done over the connection again, in milliseconds: the last time.
    pub last_ms: f64,
    /// The longest time.
    pub max_ms: f64,
}

impl RecoveryReport {
    fn of(recoveries: &Recoveries) -> Self {
        let ms = |ns: u64| Duration::from_nanos(ns).as_secs_f64() * 1e3;
        let Recoveries { count, last_ns, max_ns } = *recoveries;
        Self { count, last_ms: ms(last_ns), max_ms: ms(max_ns) }
    }
}

/// What an lcore did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LcoreReport {
    /// Its name.
    pub name: String,
    /// The CPU it was pinned to.
    pub cpu: usize,
    /// Processes whose lcores polled on that CPU when it was chosen; null for one that did not say.
    pub shared_with: Vec<Option<u32>>,
    /// Share of its time in loops that found work, from 0 to 1.
    pub busy: f64,
    /// Loops.
    pub polls: u64,
    /// Naps taken.
    pub naps: u64,
    /// The longest time that it did not poll, naps that it chose apart, nanoseconds.
    pub longest_gap_ns: u64,
}

impl NodeReport {
    /// A node of which nothing is known: its lcore did not get so far.
    pub(super) fn unknown(plan: &NodePlan) -> Self {
        Self {
            name: plan.name.clone(),
            kind: plan.kind.to_owned(),
            messages: 0,
            bytes: 0,
            verified_bytes: 0,
            bytes_per_s: 0.0,
            messages_per_s: 0.0,
            errors: 0,
            latency_ns: Latency::default(),
            path: None,
            gids: Vec::new(),
            recoveries: RecoveryReport::default(),
            counters: None,
        }
    }

    /// `elapsed` is that of the run, for a node that did all in one moment.
    pub(super) fn of(plan: &NodePlan, result: &NodeResult, elapsed: Duration) -> Self {
        let active = Duration::from_nanos(result.active_ns);
        let active = if active.is_zero() { elapsed } else { active };
        let counts = result.counts;
        Self {
            messages: counts.messages,
            bytes: counts.bytes,
            verified_bytes: counts.verified_bytes,
            bytes_per_s: per_second(counts.bytes, active),
            messages_per_s: per_second(counts.messages, active),
            errors: counts.errors,
            latency_ns: result.latency,
            path: result.path.map(str::to_owned),
            gids: result.gids.iter().map(GidReport::from).collect(),
            recoveries: RecoveryReport::of(&result.recoveries),
            counters: result.counters.as_ref().map(|counters| BothCounters {
                local: counters.local.clone().into(),
                remote: counters.remote.clone().map(Into::into),
            }),
            ..Self::unknown(plan)
        }
    }
}

impl LcoreReport {
    pub(super) fn of(plan: &LcorePlan, stats: &Stats) -> Self {
        let Stats { polls, naps, longest_gap_ns, .. } = *stats;
        Self {
            name: plan.name.clone(),
            cpu: plan.cpu,
            shared_with: plan.others.iter().map(|other| other.pid).collect(),
            busy: stats.busy_share(),
            polls,
            naps,
            longest_gap_ns,
        }
    }
}

impl fmt::Display for Report {
    /// For a terminal: a table of nodes, one of lcores, the memory, and the verdict.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.node_table())?;
        for node in &self.nodes {
            for GidReport { local, remote } in &node.gids {
                writeln!(f, "{} at {local}, its peer at {remote}", node.name)?;
            }
        }
        for node in self.nodes.iter().filter(|node| node.recoveries.count > 0) {
            let RecoveryReport { count, last_ms, max_ms } = node.recoveries;
            let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
            let name = &node.name;
            writeln!(
                f,
                "{name} lost its connection and recovered {times}: the last took {last_ms:.1} ms, the longest {max_ms:.1} ms"
            )?;
        }
        writeln!(f, "{}", self.lcore_table())?;
        for lcore in self.lcores.iter().filter(|lcore| !lcore.shared_with.is_empty()) {
            let LcoreReport { name, cpu, shared_with, .. } = lcore;
            let who = shared_with.iter().map(|pid| match pid {
                Some(pid) => format!("process {pid}"),
                None => "another process".to_owned(),
            });
            let who = who.collect::<Vec<_>>().join(", ");
            writeln!(f, "lcore {name} took turns on CPU {cpu} with {who}: alone it is faster")?;
        }
        for region in &self.memory {
            let RegionReport { lcore, bytes, pages, remote_write, .. } = region;
            let rights = if *remote_write { ", written by peers" } else { "" };
            writeln!(f, "memory of {lcore}: {} in {pages}{rights}", Bytes(*bytes))?;
        }
        for FaultReport { device, rule, hits } in &self.faults {
            let fault = FaultHits { rule: rule.clone(), hits: *hits };
            writeln!(f, "fault at {device}: {fault}")?;
        }
        if let Some(reason) = &self.packets_by {
            writeln!(f, "everything went in packets for the sake of {reason}")?;
        }
        writeln!(f, "elapsed: {:.3} s\n{}", self.elapsed_s, self.verdict)
    }
}

impl Report {
    fn node_table(&self) -> Table {
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("node", Left),
            ("kind", Left),
            ("path", Left),
            ("verified", Right),
            ("bytes", Right),
            ("rate", Right),
            ("IOPS", Right),
            ("p50", Right),
            ("p99", Right),
            ("p99.9", Right),
            ("errors", Right),
        ]);
        for node in &self.nodes {
            // The exact number: it is what was proven.
            let verified = match node.verified_bytes {
                0 => "-".to_owned(),
                bytes => format!("{bytes} B"),
            };
            let latency = |ns: u64| {
                if node.latency_ns.max == 0 { "-".to_owned() } else { Nanos(ns).to_string() }
            };
            table.row([
                node.name.clone(),
                node.kind.clone(),
                node.path.clone().unwrap_or_else(|| "-".to_owned()),
                verified,
                Bytes(node.bytes).to_string(),
                BytesPerSecond(node.bytes_per_s).to_string(),
                PerSecond(node.messages_per_s).to_string(),
                latency(node.latency_ns.p50),
                latency(node.latency_ns.p99),
                latency(node.latency_ns.p999),
                Count(node.errors).to_string(),
            ]);
        }
        table
    }

    fn lcore_table(&self) -> Table {
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("lcore", Left),
            ("cpu", Right),
            ("busy", Right),
            ("polls", Right),
            ("naps", Right),
            ("longest gap", Right),
        ]);
        for lcore in &self.lcores {
            table.row([
                lcore.name.clone(),
                lcore.cpu.to_string(),
                Percent(lcore.busy).to_string(),
                Count(lcore.polls).to_string(),
                Count(lcore.naps).to_string(),
                Nanos(lcore.longest_gap_ns).to_string(),
            ]);
        }
        table
    }
}
