//! A config against a machine: which CPU, which memory, which queues, and whether they fit.
//!
//! [`Plan::resolve`] decides, [`Plan::fit`] compares with what is free, and the two renderings (`to_text`, `to_json`) show
//! it. Nothing is allocated or opened here.

mod cores;
pub mod demand;
mod edges;
pub mod fit;
mod json;
pub mod machine;
mod memory;
pub mod path;
mod text;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pmd_lcore::Idle;
use pmd_verbs::CpuHolder;

use crate::config::retry::{self, Retry};
use crate::config::schema::Settings;
use crate::config::transport::Transport;
use crate::config::{Config, Device, Memory, Observe, Peer};
use crate::diagnostic::Report;
use crate::registry::NodeFactory;
use demand::{Flow, Queues, Rights};
use machine::Machine;
use path::PathPlan;

/// A pipeline with every number decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `[memory]`, with the bytes that each NUMA node gives.
    pub memory: Memory,
    /// Bytes per NUMA node, by node; only nodes that give some.
    pub shares: Vec<Share>,
    /// The devices.
    pub devices: Vec<Device>,
    /// Where their packets leave, in the same order; `None` for one without packets.
    pub paths: Vec<Option<PathPlan>>,
    /// The lcores.
    pub lcores: Vec<LcorePlan>,
    /// The nodes; indices in this plan count into it.
    pub nodes: Vec<NodePlan>,
    /// `[observe]`.
    pub observe: Observe,
}

/// Memory of one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The NUMA node.
    pub numa: usize,
    /// Bytes of all regions there.
    pub bytes: u64,
}

/// An lcore with its CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LcorePlan {
    /// The name.
    pub name: String,
    /// The CPU it is pinned to.
    pub cpu: usize,
    /// The NUMA node of that CPU.
    pub numa: usize,
    /// What it does when there is no work.
    pub idle: Idle,
    /// Whether another lcore has the same CPU, of this process or of another.
    pub shared: bool,
    /// The lcores of other processes on that CPU.
    pub others: Vec<CpuHolder>,
}

/// A node with everything around it.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// The name.
    pub name: String,
    /// The kind.
    pub kind: &'static str,
    /// What builds it.
    pub factory: Arc<dyn NodeFactory>,
    /// Its keys.
    pub settings: Settings,
    /// Index of its lcore.
    pub lcore: usize,
    /// Index of its device.
    pub device: Option<usize>,
    /// Indices of the nodes that pass to it.
    pub inputs: Vec<usize>,
    /// Index of the node that it passes to.
    pub to: Option<usize>,
    /// The far end, for an initiator.
    pub peer: Option<Peer>,
    /// Indices of the nodes of this file whose peer it is.
    pub clients: Vec<usize>,
    /// Where it listens for clients of other processes.
    pub listen: Option<SocketAddr>,
    /// Its queue pairs.
    pub queues: Option<QueuePlan>,
    /// Retry budget; `None` without queue pairs, or where the transport has none.
    pub retry: Option<Retry>,
    /// What flows through it.
    pub flow: Flow,
    /// Its registered memory, on the NUMA node of its lcore.
    pub regions: Vec<RegionPlan>,
}

impl NodePlan {
    /// How long its requests may be under way without one that ends; `None`: for ever.
    pub fn stall(&self) -> Option<Duration> {
        retry::stall(&self.settings, self.retry.as_ref())
    }
}

/// Queue pairs of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlan {
    /// How many.
    pub qps: u64,
    /// Whether each client of another process adds as many as it asks for.
    pub more_per_client: bool,
    /// Service type; for a responder that of its first client, `None` while all are elsewhere.
    pub transport: Option<Transport>,
    /// Depths of each QP's queues.
    pub depths: Queues,
    /// Entries of the completion queue that all of them share.
    pub cq_depth: u64,
    /// The path MTU that is asked for; `None`: the largest that both ends take.
    pub mtu: Option<u64>,
}

/// A registered region: one MR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionPlan {
    /// What it is for.
    pub purpose: &'static str,
    /// Its length.
    pub bytes: u64,
    /// Who may reach it.
    pub rights: Rights,
}

impl Plan {
    /// Decides everything that the config leaves open.
    ///
    /// # Errors
    /// A CPU that this process cannot use, or regions that are larger than `memory.size` together.
    pub fn resolve(config: &Config, machine: &Machine) -> Result<Self, Report> {
        let mut report = Report { sources: config.report.sources.clone(), diagnostics: Vec::new() };
        let lcores = cores::choose(config, machine, &mut report);
        let mut nodes = edges::resolve(config);
        memory::share(config, &mut nodes, &mut report);
        if report.errors() > 0 {
            return Err(report);
        }
        let shares = memory::by_numa(&nodes, &lcores);
        Ok(Self {
            memory: config.memory,
            shares,
            paths: config.devices.iter().map(|device| path::resolve(device, machine)).collect(),
            devices: config.devices.clone(),
            lcores,
            nodes,
            observe: config.observe.clone(),
        })
    }
}
