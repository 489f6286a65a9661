//! A node as the lcore sees it.

use std::rc::Rc;
use std::sync::mpsc::Sender;

use pmd_lcore::{Doorbells, NodeState};
use pmd_observe::{Latency, Snapshot};
use pmd_verbs::gid::GidPair;

use super::record::Counts;
use super::{Node, Record, Recoveries, Turn};
use crate::device::DeviceLcore;
use crate::edge::Home;
use crate::failure::Failure;

/// What a node leaves behind.
#[derive(Debug)]
pub(crate) struct NodeResult {
    /// Which, in the plan.
    pub(crate) index: usize,
    pub(crate) counts: Counts,
    pub(crate) latency: Latency,
    /// From its first message to its last.
    pub(crate) active_ns: u64,
    pub(crate) path: Option<&'static str>,
    /// The addresses of its connections, each pair once.
    pub(crate) gids: Vec<GidPair>,
    pub(crate) recoveries: Recoveries,
    /// Offsets of stored bytes that a fault has changed.
    pub(crate) flipped: Vec<u64>,
    /// Of a node with a device.
    pub(crate) counters: Option<PortCounters>,
    /// When it failed (ns), and why.
    pub(crate) failure: Option<(u64, Failure)>,
}

/// Counters of the ports that a node and its peers use, before and after.
#[derive(Debug)]
pub(crate) struct PortCounters {
    pub(crate) local: [Snapshot; 2],
    /// Of all peers together, as far as they told.
    pub(crate) remote: Option<[Snapshot; 2]>,
}

/// Where a node counts.
pub(crate) struct Place {
    home: Home,
    device: Option<Rc<dyn DeviceLcore>>,
    before: Snapshot,
}

impl Place {
    /// The baseline is now.
    pub(crate) fn new(home: Home, device: Option<Rc<dyn DeviceLcore>>) -> Self {
        let before = device.as_ref().map(|device| device.counters()).unwrap_or_default();
        Self { home, device, before }
    }

    fn counters(&self) -> Option<PortCounters> {
        let after = self.device.as_ref()?.counters();
        Some(PortCounters { local: [self.before.clone(), after], remote: self.home.remote() })
    }
}

/// Keeps a node's state, counts and failure, and hands them over at the end.
pub(crate) struct Hosted {
    name: String,
    index: usize,
    node: Option<Box<dyn Node>>,
    record: Record,
    place: Place,
    /// The node is done, and its connections have told their peers; some may still have last words.
    parting: bool,
    failure: Option<(u64, Failure)>,
    results: Sender<NodeResult>,
}

impl Hosted {
    pub(crate) fn new(
        name: String,
        index: usize,
        node: Box<dyn Node>,
        record: Record,
        place: Place,
        results: Sender<NodeResult>,
    ) -> Self {
        let (node, failure) = (Some(node), None);
        Self { name, index, node, record, place, parting: false, failure, results }
    }
}

impl pmd_lcore::Node for Hosted {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, now: u64) -> usize {
        let Some(node) = &mut self.node else {
            let waited = std::mem::replace(&mut self.parting, self.place.home.is_parting(now));
            return usize::from(waited && !self.parting);
        };
        let turn = node.run(now, &mut self.record);
        if turn == Ok(Turn::Worked(0)) {
            return 0;
        }
        self.record.publish();
        match turn {
            Ok(Turn::Worked(work)) => return work,
            Ok(Turn::Done) => {}
            Err(failure) => self.failure = Some((now, failure)),
        }
        // What it held, such as connections, is let go at once: others wait for that.
        self.node = None;
        self.parting = self.place.home.is_parting(now);
        1
    }

    fn state(&self) -> NodeState {
        match (&self.node, &self.failure) {
            (Some(_), _) => NodeState::Running,
            (None, None) if self.parting => NodeState::Running,
            (None, Some(_)) => NodeState::Failed,
            (None, None) => NodeState::Done,
        }
    }

    fn stop(&mut self) {
        if let Some(node) = &mut self.node {
            node.stop();
        }
    }

    fn arm<'a>(&'a mut self, doorbells: &mut Doorbells<'a>) {
        if let Some(node) = &mut self.node {
            node.arm(doorbells);
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        match &self.node {
            Some(node) => node.next_timeout(),
            None => self.place.home.next_timeout(),
        }
    }

    fn finish(&mut self) {
        self.record.publish();
        let Record { counts, latency, began, last, path, recoveries, flipped, .. } = &self.record;
        let result = NodeResult {
            index: self.index,
            counts: *counts,
            latency: latency.latency(),
            active_ns: began.map_or(0, |began| last.saturating_sub(began)),
            path: *path,
            gids: self.place.home.gids(),
            recoveries: *recoveries,
            flipped: flipped.clone(),
            counters: self.place.counters(),
            failure: self.failure.take(),
        };
        // Whoever waited for it has given up on this lcore.
        drop(self.results.send(result));
    }
}
