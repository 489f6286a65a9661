//! From a TOML file, `--set` and the environment to a [`Config`] in which every name and number has been checked.
//!
//! The way of a config: text, tree with spans (`document`), `--set` grafted in (`overrides`), every table against its
//! keys (`decode`), every name against what is declared (`links`). Each step reports all it finds.

pub(crate) mod keys;
pub mod reference;
pub mod retry;
pub mod schema;
pub mod suggest;
pub mod transport;
pub mod units;
pub(crate) mod words;

mod decode;
mod document;
mod links;
mod overrides;
mod tables;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmd_lcore::Idle;
use pmd_mem::{Hugepages, Memlock, NumaPolicy};

use crate::diagnostic::{Diagnostic, Report, SourceKind, Span};
use crate::limits::CONFIG_BYTES_MAX;
use crate::registry::{NodeFactory, Registry};
use crate::regular;
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
        let mut bytes = Vec::new();
        let read = regular::open(path)
            .and_then(|(file, _)| file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => Self::parse(&path.display().to_string(), &bytes, sets, environment, registry),
            Err(error) => Err(Report::of(
                Diagnostic::error(format!("cannot read the config `{}`: {error}", path.display()))
                    .help("give the path of a pipeline, as in configs/quickstart.toml"),
            )),
        }
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
        let mut report = Report::default();
        if bytes.len() as u64 > CONFIG_BYTES_MAX {
            return Err(Report::of(
                Diagnostic::error(format!(
                    "`{name}` is larger than a config can be ({CONFIG_BYTES_MAX} bytes)"
                ))
                .help("is it the right file?"),
            ));
        }
        let file = report.sources.add(SourceKind::File, name, String::from_utf8_lossy(bytes));
        if let Err(error) = std::str::from_utf8(bytes) {
            let at = error.valid_up_to();
            report.push(
                Diagnostic::error(format!("`{name}` is not UTF-8"))
                    .at(
                        file.part(at, at + '\u{fffd}'.len_utf8()),
                        format!("byte 0x{:02x} begins no character", bytes[at]),
                    )
                    .help("save it as UTF-8 text"),
            );
            return Err(report);
        }
        let Some(mut root) = document::parse(file, &mut report) else { return Err(report) };
        if root.entries().is_empty() {
            report.push(
                Diagnostic::error(format!("`{name}` is empty"))
                    .at(file.part(0, 0), "expected at least one [[lcore]] and one [[node]]")
                    .help("start from configs/quickstart.toml"),
            );
            return Err(report);
        }
        overrides::apply(&mut root, sets, file, &mut report);
        tables::read(&root, file, environment, registry, report)
    }

    /// Index of the node of this name.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }
}
