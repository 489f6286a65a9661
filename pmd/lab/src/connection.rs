//! A connection of a scenario while it runs: two queue pairs, their memory, and what became of each request.

use std::collections::{BTreeMap, VecDeque};

use pmd_ledger::recovery::{Recovery, Stage};
use pmd_roce::counters::Counters;
use pmd_roce::ids::{CqId, Gid, Instant, Psn, Qpn};
use pmd_roce::qp::attr::QpAttr;
use pmd_roce::work::{AhId, WcStatus};
use pmd_sim::{HostId, Mr, QpSide};

use crate::scenario::Op;

/// The end that works.
pub(crate) const NEAR: usize = 0;
/// The end that it works on.
pub(crate) const FAR: usize = 1;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// By its completion.
    Completed(WcStatus),
    /// By an asynchronous event, or the death of its host: no completion could come.
    Event,
    /// It was never posted: its connection had failed.
    Refused,
}

impl Fate {
    /// As an expectation calls it.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Completed(status) => (status as u8).to_string(),
            Self::Event => "event".to_owned(),
            Self::Refused => "refused".to_owned(),
        }
    }

    pub(crate) fn is_success(self) -> bool {
        self == Self::Completed(WcStatus::Success)
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) size: u64,
    /// Its place in the region of `from`.
    pub(crate) near: u64,
    /// Its place in the region of `to`.
    pub(crate) far: u64,
    /// Nobody else writes there.
    pub(crate) is_alone: bool,
    pub(crate) bad_rkey: bool,
    pub(crate) bad_lkey: bool,
    pub(crate) flying: bool,
    pub(crate) fate: Option<Fate>,
    /// How often it was delivered to a receive.
    pub(crate) delivered: u32,
}

/// One ending of one attempt at a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) at: Instant,
    pub(crate) fate: Fate,
}

/// Receive buffers of one end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    /// Where they begin in the region.
    pub(crate) base: u64,
    pub(crate) size: u64,
    /// They are not registered.
    pub(crate) is_bad: bool,
    pub(crate) gap: u64,
    pub(crate) free: VecDeque<u32>,
    pub(crate) posted: u32,
    /// Those that are posted from the beginning, and again after a recovery.
    pub(crate) usual: u32,
    pub(crate) ever: u64,
}

/// What the other end must know to reach this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Introduction {
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) gid: Gid,
}

/// One end.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) host: HostId,
    pub(crate) side: QpSide,
    pub(crate) mr: Mr,
    pub(crate) buffers: Buffers,
    /// Its address; its index is looked up again after a failure.
    pub(crate) gid: Gid,
    pub(crate) sgid_index: u8,
    pub(crate) generation: u32,
    pub(crate) peer: Introduction,
    pub(crate) recovery: Option<Recovery>,
    pub(crate) baseline: Counters,
}

impl End {
    pub(crate) fn cqs(&self) -> [CqId; 2] {
        [self.side.send_cq, self.side.recv_cq]
    }

    pub(crate) fn introduction(&self) -> Introduction {
        Introduction { qpn: self.side.qpn, psn: self.side.plan.sq_psn, gid: self.gid }
    }
}

/// Both ends as they were when the first request failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) request: usize,
    pub(crate) status: WcStatus,
    pub(crate) attrs: [Option<QpAttr>; 2],
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) name: String,
    pub(crate) ends: [End; 2],
    pub(crate) ah: Option<AhId>,
    pub(crate) requests: Vec<Request>,
    pub(crate) backlog: VecDeque<usize>,
    pub(crate) in_flight: u32,
    /// Nothing is posted any more, or until it recovers.
    pub(crate) degraded: bool,
    pub(crate) endings: Vec<Ending>,
    pub(crate) receipts: Vec<(Instant, WcStatus)>,
    pub(crate) first_post: Option<Instant>,
    pub(crate) scene: Option<Scene>,
    pub(crate) attrs_at_start: [Option<QpAttr>; 2],
    pub(crate) failed_at: Option<Instant>,
    /// How long each recovery took.
    pub(crate) recoveries: Vec<core::time::Duration>,
    /// When the first one was over.
    pub(crate) resumed_at: Option<Instant>,
    pub(crate) gave_up: bool,
    /// Requests by the first bytes of what they send.
    pub(crate) by_content: BTreeMap<[u8; 8], usize>,
    /// What must never be.
    pub(crate) violations: Vec<String>,
}

impl Conn {
    /// Whether nothing is left to do, now or after a recovery that goes on.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.backlog.is_empty() && !self.is_recovering()
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.ends.iter().any(|end| {
            let stage = end.recovery.as_ref().map(Recovery::stage);
            stage.is_some_and(|stage| !matches!(stage, Stage::Up | Stage::Down))
        })
    }

    /// Notes how a request ended.
    pub(crate) fn end(&mut self, at: Instant, request: usize, fate: Fate) {
        self.requests[request].flying = false;
        self.requests[request].fate = Some(fate);
        self.endings.push(Ending { at, fate });
        if !fate.is_success() {
            self.failed_at.get_or_insert(at);
        }
    }

    /// Ends everything that waits to be posted.
    pub(crate) fn refuse_backlog(&mut self, at: Instant) {
        while let Some(request) = self.backlog.pop_front() {
            self.end(at, request, Fate::Refused);
        }
    }

    /// Ends everything in flight: no completion can come.
    pub(crate) fn abandon(&mut self, at: Instant) {
        for request in 0..self.requests.len() {
            if self.requests[request].flying {
                self.end(at, request, Fate::Event);
            }
        }
        self.in_flight = 0;
    }

    /// The last success before the first failure, else the first post: since then nothing was heard.
    pub(crate) fn last_life(&self) -> Option<Instant> {
        let good = self.endings.iter().take_while(|ending| ending.fate.is_success()).last();
        good.map(|ending| ending.at).or(self.first_post)
    }
}
