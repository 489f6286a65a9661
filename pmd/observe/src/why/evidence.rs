//! What a diagnosis is made from.
//!
//! Every part can be missing. A part that is missing is unknown, not zero: a rule that needs it does not apply.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::counters::Snapshot;
use crate::limits::{TOLD_CHARS, TOLD_LINES};
use crate::verdict::Code;

/// A failure as somebody met it, and what is known of both ends.
///
/// Collect it with the plain constructors and fields; it is stored as JSON in a run directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// What was met.
    pub symptom: Symptom,
    /// The end that met it.
    pub local: End,
    /// The other end; none where nobody could ask it.
    pub remote: Option<End>,
    /// How long after what was met the other end told of itself, nanoseconds: a gap that it had before has nothing to do
    /// with it.
    pub told_after_ns: Option<u64>,
    /// How bytes reach the peer.
    pub path: Path,
    /// What the peer said when it ended the connection.
    pub told: Option<Told>,
    /// Whether the peer's process lives, as its control channel or the kernel tells.
    pub peer: Peer,
    /// Messages up to so many bytes arrived, longer ones did not: the largest that arrived, the smallest that did not.
    pub sizes: Option<(u64, u64)>,
    /// How settings are called where they can be changed.
    pub knobs: Knobs,
}

/// Why the peer ended a connection, in its own words: nobody has checked them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Its diagnosis.
    pub code: Code,
    /// Its sentence.
    pub reason: String,
}

/// What was met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Symptom {
    /// Nothing: all that was asked for was done.
    #[default]
    None,
    /// A request ended in error. The first that did: flushed ones behind it say nothing.
    Completion(Request),
    /// Nothing completes any more, and nothing fails.
    Stalled {
        /// For how long, nanoseconds.
        for_ns: u64,
    },
    /// Unreliable messages went out and did not all arrive.
    Lost {
        /// Sent.
        sent: u64,
        /// Arrived.
        arrived: u64,
    },
    /// A queue pair was not moved to another state.
    Transition(Transition),
    /// Work was refused at once.
    Post {
        /// The words of the error.
        reason: String,
    },
    /// Bytes that were read back are not those that were written.
    Mismatch {
        /// Where, and what differs.
        place: String,
    },
    /// An asynchronous event, before any completion told more.
    Event,
}

/// A request that ended in error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The number of `enum ibv_wc_status`.
    pub status: u8,
    /// What it was.
    pub opcode: Opcode,
    /// Bytes.
    pub bytes: Option<u64>,
    /// Its first packet.
    pub psn: Option<u32>,
    /// How often it was sent.
    pub tries: Option<u32>,
    /// Where it was to read or write at the peer.
    pub remote_addr: Option<u64>,
}

/// What a request was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Opcode {
    /// SEND, with or without immediate.
    #[default]
    Send,
    /// WRITE.
    Write,
    /// WRITE that consumes a receive.
    WriteImm,
    /// READ.
    Read,
    /// Compare-and-swap or fetch-and-add.
    Atomic,
    /// A receive.
    Recv,
}

impl Opcode {
    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE with immediate",
            Self::Read => "READ",
            Self::Atomic => "atomic",
            Self::Recv => "receive",
        }
    }

    /// The right that it needs on the peer's queue pair and region.
    pub const fn right(self) -> Option<Right> {
        match self {
            Self::Write | Self::WriteImm => Some(Right::Write),
            Self::Read => Some(Right::Read),
            Self::Atomic => Some(Right::Atomic),
            Self::Send | Self::Recv => None,
        }
    }
}

/// A right that one-sided operations need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// `REMOTE_WRITE`, 2.
    Write = 2,
    /// `REMOTE_READ`, 4.
    Read = 4,
    /// `REMOTE_ATOMIC`, 8.
    Atomic = 8,
}

impl Right {
    /// The name of `enum ibv_access_flags`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "REMOTE_WRITE",
            Self::Read => "REMOTE_READ",
            Self::Atomic => "REMOTE_ATOMIC",
        }
    }

    /// Whether it is among `access`, bits of `enum ibv_access_flags`.
    pub const fn is_in(self, access: u32) -> bool {
        access & self as u32 != 0
    }
}

/// A queue pair that was not moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transition {
    /// Where it is, and stays: `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE` or `ERR`.
    pub from: String,
    /// Where it was to go.
    pub to: String,
    /// Attributes that were not given, by the names of `struct ibv_qp_attr`.
    pub missing: Vec<String>,
    /// Attributes that do not belong there.
    pub illegal: Vec<String>,
    /// States that were skipped.
    pub skipped: Vec<String>,
    /// The words of the error.
    pub reason: String,
}

/// What is known of one end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// How it is called: a node, an address, a process.
    pub name: String,
    /// What counts for it: process, device and lcore. Two ends of one place have the same counters.
    pub place: String,
    /// Counters of its port before the run.
    pub before: Snapshot,
    /// Counters of its port after it.
    pub after: Snapshot,
    /// Its queue pair.
    pub qp: Qp,
    /// The status of its own first failed request, receives included.
    pub status: Option<u8>,
    /// Asynchronous events that it got, by name: `QP_ACCESS_ERR`.
    pub events: Vec<String>,
    /// Receives.
    pub receives: Receives,
    /// How often an acknowledgement of the peer was timed since the connection was made: where that is not 0, the two ends
    /// understood each other once.
    pub answers: Option<u64>,
    /// How long ago a request came last that had come before, when this end was asked, nanoseconds.
    pub duplicate_age_ns: Option<u64>,
    /// Completions that its program has not taken.
    pub completions: Option<u64>,
    /// The longest time between two looks of its poll loop, of those that are known, naps that it chose apart, nanoseconds.
    pub gap_ns: Option<u64>,
    /// How long ago that ended when this end was asked, nanoseconds.
    pub gap_age_ns: Option<u64>,
    /// Faults that disturb its frames on purpose.
    pub faults: Vec<FaultHits>,
    /// Lines of its transition journal that tell of trouble.
    pub journal: Vec<String>,
}

impl End {
    /// This end now, with `start`, the same end when the connection was made, as its baseline.
    #[must_use]
    pub fn since(mut self, start: &Self) -> Self {
        self.before = start.after.clone();
        self.qp.counters = self.qp.counters.since(&start.qp.counters);
        self.answers = self.answers.map(|count| count.saturating_sub(start.answers.unwrap_or(0)));
        self
    }

    /// Takes out what no end says that means well: control characters, and names and lists without end. Values stay what
    /// they are: a peer can lie about them, and no rule believes more than it says.
    #[must_use]
    pub fn tamed(mut self) -> Self {
        let word = |text: &mut String| {
            text.retain(|c| !c.is_control());
            let end = text.char_indices().nth(TOLD_CHARS).map_or(text.len(), |(at, _)| at);
            text.truncate(end);
        };
        let list = |lines: &mut Vec<String>| {
            lines.truncate(TOLD_LINES);
            lines.iter_mut().for_each(word);
        };
        word(&mut self.name);
        word(&mut self.place);
        list(&mut self.events);
        list(&mut self.journal);
        self.faults.truncate(TOLD_LINES);
        self.faults.iter_mut().for_each(|fault| word(&mut fault.rule));
        let qp = &mut self.qp;
        for text in [&mut qp.transport, &mut qp.state, &mut qp.gid_type, &mut qp.path_mig_state] {
            text.iter_mut().for_each(word);
        }
        for counters in [&mut self.before, &mut self.after, &mut qp.counters] {
            counters.retain(|name| {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
                name.len() <= TOLD_CHARS && name.chars().all(plain)
            });
        }
        self
    }
}

/// A fault, and how often it acted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultHits {
    /// The rule, as the command line has it.
    pub rule: String,
    /// Frames that it hit, or stored bytes that it changed.
    pub hits: u64,
}

/// What it did, for people.
impl fmt::Display for FaultHits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, hits } = self;
        match rule.starts_with("flip") {
            true => write!(f, "`{rule}` changed {hits} bytes"),
            false => write!(f, "`{rule}` hit {hits} frames"),
        }
    }
}

/// Attributes of a queue pair. PSNs are those it was brought up with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qp {
    /// Number.
    pub qpn: Option<u32>,
    /// The peer's number.
    pub dest_qpn: Option<u32>,
    /// `RC`, `UC`, `UD`, `XRC_INI` or `XRC_TGT`.
    pub transport: Option<String>,
    /// `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE` or `ERR`, when the failure began.
    pub state: Option<String>,
    /// First PSN it sends.
    pub sq_psn: Option<u32>,
    /// First PSN it expects.
    pub rq_psn: Option<u32>,
    /// Payload bytes per packet.
    pub path_mtu: Option<u32>,
    /// ACK timeout code.
    pub timeout: Option<u8>,
    /// Retries.
    pub retry_cnt: Option<u8>,
    /// RNR retries.
    pub rnr_retry: Option<u8>,
    /// RNR timer code.
    pub min_rnr_timer: Option<u8>,
    /// READs and atomics it may have outstanding.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// One-sided operations that the peer may use, bits of `enum ibv_access_flags`.
    pub access: Option<u32>,
    /// Q_Key.
    pub qkey: Option<u32>,
    /// Index of its address in the GID table.
    pub sgid_index: Option<u8>,
    /// Type of that address: `v1` or `v2`.
    pub gid_type: Option<String>,
    /// `ARMED`, `REARM` or `MIGRATED`.
    pub path_mig_state: Option<String>,
    /// What it has counted by itself since the connection was made; rules take these for those of its port that have the
    /// same names.
    pub counters: Snapshot,
}

/// Receives of an end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Receives {
    /// How many were posted in all.
    pub posted: Option<u64>,
    /// How many wait in the queue.
    pub waiting: Option<u64>,
    /// Bytes of the smallest one.
    pub bytes: Option<u64>,
    /// Whether they are in a shared receive queue.
    pub shared: bool,
}

/// How bytes reach the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// In packets.
    #[default]
    Packet,
    /// Through shared memory: nothing is lost on the way.
    Local,
}

/// Whether the peer's process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// Nobody knows.
    #[default]
    Unknown,
    /// It does: something in it answers.
    Alive,
    /// Its control channel is open, and nothing is heard on it.
    Silent,
    /// It does, and stands still: nothing in it answers, on a channel that cannot lose anything.
    Stopped,
    /// It is gone.
    Dead,
}

/// How settings are called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knobs {
    before: String,
    /// Whether words are joined by `-`, as flags are, or by `_`, as keys are.
    flags: bool,
}

impl Knobs {
    /// Flags of `spinwire perf`.
    pub fn flags() -> Self {
        Self { before: "--".into(), flags: true }
    }

    /// Keys of a node in a configuration.
    pub fn node(name: &str) -> Self {
        Self { before: format!("node.{name}."), flags: false }
    }

    /// The full name of a key: `timeout`, `retry_cnt`, `mtu` …
    pub fn name(&self, key: &str) -> String {
        let key = match (self.flags, key) {
            (true, "timeout") => "qp-timeout".into(),
            (true, key) => key.replace('_', "-"),
            (false, key) => key.into(),
        };
        format!("{}{key}", self.before)
    }
}

/// Attributes by their own names.
impl Default for Knobs {
    fn default() -> Self {
        Self { before: String::new(), flags: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_called_as_the_user_can_set_them() {
        let names = |knobs: &Knobs| ["timeout", "retry_cnt"].map(|key| knobs.name(key));
        assert_eq!(names(&Knobs::flags()), ["--qp-timeout", "--retry-cnt"]);
        assert_eq!(names(&Knobs::node("c")), ["node.c.timeout", "node.c.retry_cnt"]);
        assert_eq!(names(&Knobs::default()), ["timeout", "retry_cnt"]);
    }

    #[test]
    fn what_a_peer_tells_is_tamed() {
        let endless = "x".repeat(100_000);
        let end = End {
            name: format!("\u{1b}[2J{endless}"),
            events: vec!["QP_\nFATAL".into(); 1000],
            after: [("duplicate_request".to_owned(), 7), ("\u{7}".to_owned(), 1), (endless, 2)]
                .into_iter()
                .collect(),
            ..End::default()
        };
        let tamed = end.tamed();
        assert_eq!(tamed.name.len(), TOLD_CHARS);
        assert!(tamed.name.starts_with("[2Jx"), "{}", tamed.name);
        assert_eq!(tamed.events, vec!["QP_FATAL"; TOLD_LINES]);
        assert_eq!(tamed.after, [("duplicate_request", 7)].into_iter().collect());
    }

    #[test]
    fn an_end_counts_since_its_baseline() {
        let counters = |value| [("duplicate_request", value)].into_iter().collect::<Snapshot>();
        let at = |port, own| End {
            after: counters(port),
            qp: Qp { counters: counters(own), ..Qp::default() },
            ..End::default()
        };
        let end = at(30, 5).since(&at(10, 2));
        assert_eq!((end.before, end.after), (counters(10), counters(30)));
        assert_eq!(end.qp.counters, counters(3));
    }

    #[test]
    fn evidence_is_kept_as_json_and_what_is_missing_stays_unknown() {
        let request = Request { status: 12, opcode: Opcode::Write, ..Request::default() };
        let evidence = Evidence { symptom: Symptom::Completion(request), ..Evidence::default() };
        let json = serde_json::to_string(&evidence).unwrap();
        assert_eq!(serde_json::from_str::<Evidence>(&json).unwrap(), evidence);
        let little: Evidence =
            serde_json::from_str(r#"{"symptom": {"stalled": {"for_ns": 5}}}"#).unwrap();
        assert_eq!(
            little,
            Evidence { symptom: Symptom::Stalled { for_ns: 5 }, ..Evidence::default() }
        );
    }
}
