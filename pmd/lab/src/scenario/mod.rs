//! A scenario: what there is, what it does, what goes wrong, and what must come of it.
//!
//! The way of a scenario: text, tables against their keys ([`keys`]), every name and number against the others
//! (`check`). Each step reports all it finds.

mod check;
mod deeds;
pub mod keys;
mod reference;
mod tables;

use core::time::Duration;
use std::path::Path;

use pmd_graph::config::sheet::{Contract, Sheet};
use pmd_graph::diagnostic::Report;
use pmd_observe::Code;
use pmd_roce::ids::{Gid, PathMtu};
use pmd_roce::qp::state::Transport;
use pmd_roce::work::Access;
use pmd_sim::{Frames, Path as Route};

pub use deeds::Deed;
pub use reference::reference;

/// A file of the laboratory.
const CONTRACT: Contract = Contract {
    what: "scenario",
    example: "configs/lab/lost-ack.toml",
    tables: &["host", "cq", "srq", "qp", "work", "fault", "expect", "node"],
};

/// A scenario that was checked. Names have become indices.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The text it was read from.
    pub text: String,
    /// What everything left to chance comes from.
    pub seed: u64,
    /// Virtual time after which it ends.
    pub limit: Duration,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Completion queues that are shared.
    pub cqs: Vec<Cq>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// The connections.
    pub qps: Vec<Connection>,
    /// What is done with them.
    pub works: Vec<Work>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// What must come of it.
    pub expects: Vec<Expect>,
}

/// `[[host]]`.
#[derive(Clone, Debug)]
pub struct Host {
    /// The name.
    pub name: String,
    /// The GID table; an address of zeros is a vacant entry.
    pub gids: Vec<Gid>,
    /// Address of its second port.
    pub second: Option<Gid>,
    /// Which of them speak RoCE v1.
    pub old: Vec<Gid>,
    /// Active MTU.
    pub mtu: PathMtu,
}

/// `[[cq]]`.
#[derive(Clone, Debug)]
pub struct Cq {
    /// The name.
    pub name: String,
    /// Where it is.
    pub host: usize,
    /// Its entries.
    pub depth: usize,
}

/// `[[srq]]`.
#[derive(Clone, Debug)]
pub struct Srq {
    /// The name.
    pub name: String,
    /// Where it is.
    pub host: usize,
    /// Receives in it.
    pub depth: u32,
    /// Fewer raise an event.
    pub limit: Option<u32>,
    /// Bytes of each receive.
    pub size: u64,
    /// How long a buffer is kept before it is posted again.
    pub hold: Duration,
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing.
    None,
    /// The connection is brought back, and what may be repeated is.
    Reconnect,
}

/// `[[qp]]`.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The name.
    pub name: String,
    /// The host that works.
    pub from: usize,
    /// The host that it works on.
    pub to: usize,
    /// Service.
    pub transport: Transport,
    /// Packets or shared memory.
    pub route: Route,
    /// ACK timeout code.
    pub timeout: u8,
    /// Retries after silence.
    pub retry_cnt: u8,
    /// Retries after RNR.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Requests outstanding.
    pub depth: u32,
    /// Receives posted at `to`.
    pub receives: u32,
    /// Bytes of each.
    pub receive_size: u64,
    /// Their buffers are not registered.
    pub bad_receives: bool,
    /// They are posted again.
    pub repost: bool,
    /// Shared receive queue at `to`.
    pub srq: Option<usize>,
    /// Completion queue at one of the hosts.
    pub cq: Option<usize>,
    /// What `to` allows.
    pub access: Access,
    /// READs and atomics outstanding at `from`.
    pub rd_atomic: u8,
    /// Those that `to` has resources for.
    pub to_rd_atomic: u8,
    /// First PSN that `to` expects, if not the right one.
    pub rq_psn: Option<u32>,
    /// Q_Key that is sent.
    pub qkey: u32,
    /// Q_Key that is expected.
    pub to_qkey: u32,
    /// Index of the address at `from`.
    pub sgid_index: u8,
    /// Index of the address at `to`.
    pub to_sgid_index: u8,
    /// Path MTU at `from`.
    pub mtu: PathMtu,
    /// Path MTU at `to`.
    pub to_mtu: PathMtu,
    /// One acknowledgement for each message.
    pub ack_per_message: bool,
    /// The queue pair at `to` stays in INIT.
    pub hold_init: bool,
    /// The second ports are the alternate path.
    pub alternate: bool,
    /// What follows a failure.
    pub policy: Policy,
}

/// An operation of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// WRITE.
    Write,
    /// WRITE with immediate.
    WriteImm,
    /// READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
}

impl Op {
    /// Whether it takes a receive at the peer.
    pub const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Whether it works on 8 bytes.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether doing it twice is as good as once, so that it may be repeated when nobody knows whether it was done.
    pub const fn is_repeatable(self) -> bool {
        matches!(self, Self::Write | Self::Read)
    }
}

/// `[[work]]`.
#[derive(Clone, Debug)]
pub struct Work {
    /// When it begins.
    pub at: Duration,
    /// On which connection.
    pub qp: usize,
    /// Operation; `None`: receives only.
    pub op: Option<Op>,
    /// Bytes of each message.
    pub size: u64,
    /// Requests.
    pub count: u64,
    /// One request in so long.
    pub every: Option<Duration>,
    /// Place in the peer's region.
    pub offset: Option<u64>,
    /// The peer's key is wrong.
    pub bad_rkey: bool,
    /// One's own key is wrong.
    pub bad_lkey: bool,
    /// Receives posted at `to`.
    pub post_recv: u32,
}

/// `[[fault]]`.
#[derive(Clone, Debug)]
pub struct Fault {
    /// When it begins.
    pub at: Duration,
    /// When it is over.
    pub until: Option<Duration>,
    /// Host that frames come from.
    pub from: Option<usize>,
    /// Host that frames go to, or that it happens to.
    pub to: Option<usize>,
    /// Which frames.
    pub frames: Frames,
    /// Their PSN.
    pub psn: Option<u32>,
    /// The connection.
    pub qp: Option<usize>,
    /// So many pass first.
    pub after: u64,
    /// At most so many are hit.
    pub count: Option<u64>,
    /// One in so many.
    pub every: u64,
    /// Only longer ones.
    pub longer_than: Option<u64>,
    /// So many in a million.
    pub per_million: u32,
    /// What happens.
    pub deed: Deed,
}

/// What must be, or need not.
pub type Tally = Vec<(String, u64)>;

/// `[[expect]]`.
#[derive(Clone, Debug)]
pub struct Expect {
    /// Of which connection.
    pub qp: usize,
    /// Completions of requests by status.
    pub statuses: Option<Tally>,
    /// Completions of receives by status.
    pub receives: Option<Tally>,
    /// Asynchronous events by name.
    pub events: Option<Tally>,
    /// The last came so soon.
    pub within: Option<Duration>,
    /// And no sooner.
    pub at_least: Option<Duration>,
    /// The diagnosis.
    pub verdict: Option<Code>,
    /// It comes back, or does not.
    pub recovers: Option<bool>,
    /// How soon.
    pub recovers_within: Option<Duration>,
    /// How soon it is as fast as before.
    pub rate_within: Option<Duration>,
    /// Nothing happens to the others.
    pub siblings: bool,
    /// Least values of counters of `from`.
    pub counters: Tally,
    /// The same of `to`.
    pub to_counters: Tally,
    /// Counters of `from` that do not move.
    pub still: Vec<String>,
}

impl Scenario {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(path: &Path) -> Result<Self, Report> {
        tables::scenario(Sheet::read(path, CONTRACT)?)
    }

    /// Reads a text that is called `name` in messages.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(name: &str, text: &str) -> Result<Self, Report> {
        tables::scenario(Sheet::parse(name, text.as_bytes(), CONTRACT)?)
    }
}
