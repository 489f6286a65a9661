//! A node as the lcore sees it.

use std::sync::mpsc::Sender;

use pmd_lcore::{Doorbells, NodeState};
use pmd_observe::Latency;

use super::record::Counts;
use super::{Node, Record, Recoveries, Turn};
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
    pub(crate) recoveries: Recoveries,
    /// When it failed (ns), and why.
    pub(crate) failure: Option<(u64, Failure)>,
}

/// Keeps a node's state, counts and failure, and hands them over at the end.
pub(crate) struct Hosted {
    name: String,
    index: usize,
    node: Option<Box<dyn Node>>,
    record: Record,
    failure: Option<(u64, Failure)>,
    results: Sender<NodeResult>,
}

impl Hosted {
    pub(crate) fn new(
        name: String,
        index: usize,
        node: Box<dyn Node>,
        record: Record,
        results: Sender<NodeResult>,
    ) -> Self {
        Self { name, index, node: Some(node), record, failure: None, results }
    }
}

impl pmd_lcore::Node for Hosted {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, now: u64) -> usize {
        let Some(node) = &mut self.node else { return 0 };
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
        1
    }

    fn state(&self) -> NodeState {
        match (&self.node, &self.failure) {
            (Some(_), _) => NodeState::Running,
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
        self.node.as_ref()?.next_timeout()
    }

    fn finish(&mut self) {
        self.record.publish();
        let Record { counts, latency, began, last, path, recoveries, .. } = &self.record;
        let result = NodeResult {
            index: self.index,
            counts: *counts,
            latency: latency.latency(),
            active_ns: began.map_or(0, |began| last.saturating_sub(began)),
            path: *path,
            recoveries: *recoveries,
            failure: self.failure.take(),
        };
        // Whoever waited for it has given up on this lcore.
        drop(self.results.send(result));
    }
}
