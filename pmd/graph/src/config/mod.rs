//! From a TOML file, `--set` and the environment to a [`Config`] in which every name and number has been checked.
//!
//! The way of a config: text, tree with spans (`document`), `--set` grafted in (`overrides`), every table against its
//! keys (`decode`), every name against what is declared (`links`). Each step reports all it finds.

pub(crate) mod keys;
pub mod reference;
pub mod retry;
pub mod schema;
pub mod sheet;
pub mod suggest;
pub mod transport;
pub mod units;
pub(crate) mod words;

mod decode;
mod document;
mod links;
mod managed;
mod overrides;
mod tables;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmd_lcore::Idle;
use pmd_mem::{Hugepages, Memlock, NumaPolicy};

use crate::diagnostic::{Report, Span};
use crate::registry::{NodeFactory, Registry};
use retry::{Environment, Retry};
use schema::Settings;
use transport::Transport;
use units::Size;

/// A pipeline that was checked as far as one can without looking at the machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[memory]`.
    pub memory: Memory,
    /// The devices, by name.
    pub devices: Vec<Device>,
    /// The lcores, in the order of the file.
    pub lcores: Vec<Lcore>,
    /// The nodes, in the order of the file.
    pub nodes: Vec<Node>,
    /// `[observe]`.
    pub observe: Observe,
    /// The texts it came from, and the warnings.
    pub report: Report,
}

/// `[memory]`.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes that the process reserves, over all NUMA nodes.
    pub size: Size,
    /// Where `size` was given.
    pub size_span: Option<Span>,
    /// Which pages it is made of.
    pub hugepages: Hugepages,
    /// Where it may lie.
    pub numa: NumaPolicy,
    /// What RLIMIT_MEMLOCK means.
    pub memlock: Memlock,
}

/// One `[device.NAME]`.
#[derive(Clone, Debug)]
pub struct Device {
    /// The name.
    pub name: String,
    /// The kind: `soft`, `verbs`, `doca`, or one that a program registered.
    pub kind: &'static str,
    /// The keys of the kind.
    pub settings: Settings,
    /// Where it is declared.
    pub span: Span,
}

impl Device {
    /// The address it is to answer to; `None`: the first that is free.
    pub fn address(&self) -> Option<IpAddr> {
        match self.settings.value("address") {
            Some(schema::Value::Address(address)) => Some(*address),
            _ => None,
        }
    }

    /// The index of its address in the GID table; `None`: none was asked for.
    pub fn gid_index(&self) -> Option<usize> {
        match self.settings.value("gid_index") {
            Some(schema::Value::Count(index)) => usize::try_from(*index).ok(),
            _ => None,
        }
    }
}

/// One `[[lcore]]`.
#[derive(Clone, Debug)]
pub struct Lcore {
    /// The name.
    pub name: String,
    /// The CPU; `None`: one is chosen.
    pub cpu: Option<usize>,
    /// Where the CPU was given.
    pub cpu_span: Option<Span>,
    /// What it does when there is no work.
    pub idle: Idle,
    /// Where it is declared.
    pub span: Span,
}

/// One `[[node]]`.
#[derive(Clone, Debug)]
pub struct Node {
    /// The name.
    pub name: String,
    /// What knows the kind.
    pub factory: Arc<dyn NodeFactory>,
    /// Index of its lcore.
    pub lcore: usize,
    /// Index of its device, for kinds with an RDMA edge.
    pub device: Option<usize>,
    /// All its keys.
    pub settings: Settings,
    /// Index of the next stage.
    pub to: Option<usize>,
    /// The far end of its RDMA edge, for an initiator.
    pub peer: Option<Peer>,
    /// Service type of its RDMA edge, for an initiator.
    pub transport: Option<Transport>,
    /// Where it listens, for a responder.
    pub listen: Option<SocketAddr>,
    /// Retry budget, for kinds with an RDMA edge.
    pub retry: Option<Retry>,
    /// Where its name stands.
    pub span: Span,
}

/// The far end of an RDMA edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A node of the same file, by index.
    Node(usize),
    /// A listener of another process.
    Remote(SocketAddr),
}

/// `[observe]`.
#[derive(Clone, Debug, Default)]
pub struct Observe {
    /// Where counters are served.
    pub listen: Option<SocketAddr>,
    /// File that frames are captured to.
    pub capture: Option<PathBuf>,
    /// Directory of the run.
    pub run_dir: Option<PathBuf>,
}

impl Config {
    /// Reads the file at `path`. See [`Config::parse`].
    ///
    /// # Errors
    /// When the file cannot be read, and as [`Config::parse`].
    pub fn read(
        path: &Path,
        sets: &[String],
        environment: Environment<'_>,
        registry: &Registry,
    ) -> Result<Self, Report> {
        let bytes = document::read(path, "config", "a pipeline, as in configs/quickstart.toml")?;
        Self::parse(&path.display().to_string(), &bytes, sets, environment, registry)
    }

    /// Checks the text of a config, called `name` in messages, with `sets` from the command line and `environment` as
    /// the lookup of variables.
    ///
    /// # Errors
    /// The report of everything that is wrong, and of what deserves a warning.
    pub fn parse(
        name: &str,
        bytes: &[u8],
        sets: &[String],
        environment: Environment<'_>,
        registry: &Registry,
    ) -> Result<Self, Report> {
        let start = "start from configs/quickstart.toml";
        let expected = "expected at least one [[lcore]] and one [[node]]";
        let (mut root, file, mut report) = document::open(name, bytes, expected, start)?;
        overrides::apply(&mut root, sets, file, &mut report);
        tables::read(&root, file, environment, registry, report)
    }

    /// Index of the node of this name.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }
}
