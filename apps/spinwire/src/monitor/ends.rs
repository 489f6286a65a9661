//! Who is at the other end of a queue pair: among the runs that are at hand, else as their reports tell.

use std::collections::HashMap;

use pmd_observe::Snapshot;
use pmd_observe::status::Qp;

use super::source::Run;

/// All queue pairs by their number: those of one host have different ones.
#[derive(Debug)]
pub(crate) struct Ends<'a> {
    qps: HashMap<u32, Vec<&'a Qp>>,
    /// What peers have told of queue pairs of theirs.
    told: HashMap<u32, &'a Snapshot>,
}

impl<'a> Ends<'a> {
    pub(crate) fn of(runs: &'a [Run]) -> Self {
        let mut ends: HashMap<u32, Vec<&Qp>> = HashMap::new();
        for qp in runs.iter().flat_map(|run| &run.status.qps) {
            ends.entry(qp.qpn).or_default().push(qp);
        }
        let told = runs.iter().flat_map(|run| &run.peers).filter_map(|peer| peer.qp.as_ref());
        Self { qps: ends, told: told.map(|(qpn, counters)| (*qpn, counters)).collect() }
    }

    /// The counters of the other end: of the one that names this one, and is named by it. `None` where its run is not at hand
    /// and it has told nothing.
    pub(crate) fn other(&self, qp: &Qp) -> Option<&'a Snapshot> {
        let number = qp.remote_qpn?;
        let there = self.qps.get(&number).into_iter().flatten();
        let found = there.copied().find(|other| other.remote_qpn == Some(qp.qpn));
        found.map(|other| &other.counters).or_else(|| self.told.get(&number).copied())
    }
}

#[cfg(test)]
mod tests {
    use pmd_observe::status::State;

    use super::super::told::Peer;
    use super::super::view::tests::{qp, run};
    use super::*;

    #[test]
    fn ends_name_each_other() {
        let of = |qpn, remote| Qp { remote_qpn: Some(remote), ..qp(qpn, State::Rts, 1.0) };
        let counted = |value| [("out_of_buffer", value)].into_iter().collect::<Snapshot>();
        let named = Qp { counters: counted(4), ..of(2, 1) };
        // A number that comes again on another host belongs to somebody else.
        let mut runs = [run(vec![of(1, 2), of(3, 9)]), run(vec![of(2, 7), named, of(9, 4)])];
        runs[0].peers = vec![Peer {
            name: "told".into(),
            counters: Snapshot::default(),
            qp: Some((8, counted(6))),
        }];
        let ends = Ends::of(&runs);
        let [near, lonely] = &runs[0].status.qps[..] else { panic!() };
        assert_eq!(ends.other(near), Some(&counted(4)));
        assert_eq!(ends.other(lonely), None);
        assert_eq!(ends.other(&of(5, 8)), Some(&counted(6)));
    }
}
