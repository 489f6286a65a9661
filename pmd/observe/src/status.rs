//! The state of a run while it runs, and the last one that it leaves: the content of `status.json`.
//!
//! The schema has a [`VERSION`], which grows where a key changes its meaning or goes; keys may come at any time, and
//! whoever reads leaves those alone that it does not know. A part that is missing reads as empty.

use std::cmp::{Ordering, Reverse};

use serde::{Deserialize, Serialize};

use crate::{Snapshot, Verdict};

/// The version of the schema.
pub const VERSION: u32 = 1;

/// Name of the file in the run directory.
pub const FILE: &str = "status.json";

/// State of a queue pair, as the specification spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum State {
    /// Newly made, or emptied.
    #[serde(rename = "RESET")]
    Reset,
    /// Packets are still dropped.
    #[serde(rename = "INIT")]
    Init,
    /// Ready to receive.
    #[serde(rename = "RTR")]
    Rtr,
    /// Ready to send.
    #[serde(rename = "RTS")]
    Rts,
    /// Sends are drained.
    #[serde(rename = "SQD")]
    Sqd,
    /// Sends failed; receiving goes on.
    #[serde(rename = "SQE")]
    Sqe,
    /// Everything is flushed.
    #[serde(rename = "ERR")]
    Error,
}

impl State {
    /// All of them, by the number that verbs gives them.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Error];

    /// The name that the specification uses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        }
    }

    /// How much it wants somebody to look, 0 the least: what failed, then what is on its way and may never arrive.
    pub const fn severity(self) -> u8 {
        match self {
            Self::Error => 6,
            Self::Sqe => 5,
            Self::Rtr => 4,
            Self::Init => 3,
            Self::Sqd => 2,
            Self::Reset => 1,
            Self::Rts => 0,
        }
    }
}

/// A run at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// [`VERSION`] of whoever wrote it.
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// When it started, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// When this was written, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Seconds since the lcores were started.
    pub elapsed_s: f64,
    /// Whether the run is over: nothing changes any more.
    pub ended: bool,
    /// What came of it, once it is over.
    pub verdict: Option<Verdict>,
    /// The lcores, in the order of the config.
    pub lcores: Vec<Lcore>,
    /// The nodes, in the order of the config.
    pub nodes: Vec<Node>,
    /// The devices, in the order of the config.
    pub devices: Vec<Device>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Queue pairs, the worst first: see [`Qp::worse_first`]. Those that have ended stand behind those that live.
    pub qps: Vec<Qp>,
    /// Queue pairs that live, by state; those that are left out of `qps` are counted here, too.
    pub states: Vec<StateCount>,
    /// Queue pairs that live and are left out of `qps`: there are too many, and they are the least bad ones.
    pub qps_omitted: u64,
    /// Queue pairs that have ended and are left out: there were too many.
    pub qps_forgotten: u64,
}

/// What an lcore has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lcore {
    /// Its name.
    pub name: String,
    /// The CPU it is pinned to.
    pub cpu: u64,
    /// Share of its time in loops that found work, since the last status.
    pub busy: f64,
    /// Seconds in loops that found work.
    pub busy_s: f64,
    /// Seconds in loops that found none, naps included.
    pub idle_s: f64,
    /// Loops.
    pub polls: u64,
    /// Units of work: frames, messages, completions.
    pub work: u64,
    /// Naps taken.
    pub naps: u64,
    /// Longest time between two loops beyond what a nap may take.
    pub longest_gap_s: f64,
    /// Seconds since it last told of its queue pairs: an lcore whose loop stands still tells nothing.
    pub silent_s: f64,
}

/// What a node has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Its lcore.
    pub lcore: String,
    /// Messages, or blocks, that it dealt with.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that it compared and found equal.
    pub verified_bytes: u64,
    /// What went wrong.
    pub errors: u64,
    /// Queue pairs made for it so far.
    pub connections: u64,
    /// What it waits for at the edge of its process while it has no queue pair: `dials 127.0.0.1:7471`; none where it has one,
    /// or needs none.
    pub edge: Option<String>,
}

impl Node {
    /// What [`Node::edge`] ends in where a peer that was there before is dialled.
    pub const AGAIN: &'static str = " again";

    /// Whether its peer's process is gone, and dialled again.
    pub fn dials_again(&self) -> bool {
        self.edge.as_ref().is_some_and(|edge| edge.ends_with(Self::AGAIN))
    }
}

/// The counters of a device's port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The port.
    pub port: u32,
    /// Counters of the port, under the names of the kernel where it has them.
    pub counters: Snapshot,
    /// Packets without effect, by reason.
    pub drops: Snapshot,
    /// Counters of what carries its packets.
    pub wire: Snapshot,
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fill {
    /// Requests that were posted and have not completed.
    pub used: u32,
    /// Requests that fit.
    pub depth: u32,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Srq {
    /// Its device.
    pub device: String,
    /// Its lcore.
    pub lcore: String,
    /// Its number.
    pub srqn: u32,
    /// Receives in it.
    pub receives: u32,
    /// Receives that fit.
    pub depth: u32,
    /// The armed limit; 0: none is armed, or it has fired.
    pub limit: u32,
    /// Receives that are kept for newcomers.
    pub reserve: u32,
    /// Queue pairs that take their receives from it.
    pub users: u32,
    /// Messages that found it dry.
    pub dry: u64,
    /// Whether it has failed.
    pub failed: bool,
}

/// How many queue pairs of a device are in a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateCount {
    /// The device.
    pub device: String,
    /// The state.
    pub state: State,
    /// Queue pairs.
    pub qps: u64,
}

/// How often something took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// How often.
    pub count: u64,
    /// All together.
    pub sum_s: f64,
    /// Half of them took no longer than this; to a factor of two.
    pub p50_ns: u64,
    /// 99 % of them took no longer than this; to a factor of two.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Time spent in a state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dwell {
    /// The state.
    pub state: State,
    /// Seconds in it, all times together.
    pub seconds: f64,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qp {
    /// Its device.
    pub device: String,
    /// Its lcore.
    #[serde(default)]
    pub lcore: String,
    /// Its number.
    pub qpn: u32,
    /// The node it was made for.
    #[serde(default)]
    pub node: String,
    /// The peer's number; none before RTR, and for datagrams.
    #[serde(default)]
    pub remote_qpn: Option<u32>,
    /// The peer's address.
    #[serde(default)]
    pub remote_gid: Option<String>,
    /// The node at the other end, where that is of this process; else where the config says that the peer is.
    #[serde(default)]
    pub peer: Option<String>,
    /// `rc`, `uc`, `ud`, …
    #[serde(default)]
    pub transport: String,
    /// `local` through shared memory, `packet` else; none before RTR.
    #[serde(default)]
    pub path: Option<String>,
    /// The state; of one that has ended, the state in which its owner closed it.
    pub state: State,
    /// Seconds in that state.
    #[serde(default)]
    pub state_s: f64,
    /// Whether it was destroyed.
    #[serde(default)]
    pub ended: bool,
    /// Seconds for which sends have been in flight and none has completed; 0 where they do. Looked at once a second.
    #[serde(default)]
    pub stalled_s: f64,
    /// Sends that completed, since it was watched.
    #[serde(default)]
    pub sends: u64,
    /// The send queue.
    #[serde(default)]
    pub send: Fill,
    /// The receive queue of its own.
    #[serde(default)]
    pub recv: Fill,
    /// The shared receive queue that its receives come from.
    #[serde(default)]
    pub srq: Option<u32>,
    /// How often it was connected anew.
    #[serde(default)]
    pub reconnects: u64,
    /// Its own counters under the names of the kernel: those that are not zero.
    #[serde(default)]
    pub counters: Snapshot,
    /// From a packet to its acknowledgement; packets only.
    #[serde(default)]
    pub ack_round_trip: Times,
    /// How long the peer asked to wait for a receive.
    #[serde(default)]
    pub rnr_wait: Times,
    /// Time in each state that it has been in.
    #[serde(default)]
    pub dwell: Vec<Dwell>,
}

impl Qp {
    /// Who wants somebody to look comes first: those that live, by the severity of their state, then who has stood still
    /// for longest, then who has been in its state for longest. The number decides at last, so that rows stay in place.
    pub fn worse_first(&self, other: &Self) -> Ordering {
        let key = |qp: &Self| (qp.ended, Reverse(qp.state.severity()));
        key(self)
            .cmp(&key(other))
            .then_with(|| other.stalled_s.total_cmp(&self.stalled_s))
            .then_with(|| other.state_s.total_cmp(&self.state_s))
            .then_with(|| self.qpn.cmp(&other.qpn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qp(qpn: u32, state: State, state_s: f64) -> Qp {
        let json = format!(r#"{{"device":"soft0","qpn":{qpn},"state":"RTS"}}"#);
        Qp { state, state_s, ..serde_json::from_str(&json).unwrap() }
    }

    /// S2-28: among hundreds, the one that is stuck stands first.
    #[test]
    fn s2_28_the_worst_stands_first() {
        let mut qps: Vec<Qp> = (0..500).map(|qpn| qp(qpn, State::Rts, 900.0)).collect();
        qps.push(Qp { ended: true, ..qp(900, State::Error, 5000.0) });
        qps.push(qp(901, State::Reset, 3000.0));
        qps.push(qp(902, State::Init, 40.0));
        qps.push(qp(903, State::Rtr, 2.0));
        qps.push(qp(904, State::Rtr, 700.0));
        qps.push(Qp { stalled_s: 12.0, ..qp(905, State::Rts, 3.0) });
        qps.push(qp(906, State::Sqe, 1.0));
        qps.push(qp(907, State::Error, 0.5));
        qps.push(qp(908, State::Sqd, 0.5));
        qps.sort_by(Qp::worse_first);
        let first: Vec<u32> = qps.iter().take(10).map(|qp| qp.qpn).collect();
        assert_eq!(first, [907, 906, 904, 903, 902, 908, 901, 905, 0, 1]);
        assert_eq!(qps.last().unwrap().qpn, 900);
    }

    #[test]
    fn states_read_back_by_their_names() {
        for state in State::ALL {
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{}\"", state.as_str()));
            assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state);
        }
        let mut severities = State::ALL.map(State::severity);
        severities.sort_unstable();
        assert_eq!(severities, [0, 1, 2, 3, 4, 5, 6]);
    }

    /// A newer writer may say more, an older one less.
    #[test]
    fn keys_come_and_go() {
        let json = r#"{"version":1,"pid":7,"new":[1],"qps":[{"device":"d","qpn":9,"state":"ERR","new":2}]}"#;
        let status: Status = serde_json::from_str(json).unwrap();
        assert_eq!((status.pid, status.qps[0].qpn, status.qps[0].state), (7, 9, State::Error));
        assert_eq!(serde_json::from_str::<Status>("{}").unwrap(), Status::default());
        let again = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&again).unwrap(), status);
    }
}
