//! Who is at the other end of a queue pair, among the runs that are at hand.

use std::collections::HashMap;

use pmd_observe::status::Qp;

use super::source::Run;

/// All queue pairs by their number: those of one host have different ones.
#[derive(Debug)]
pub(crate) struct Ends<'a>(HashMap<u32, Vec<&'a Qp>>);

impl<'a> Ends<'a> {
    pub(crate) fn of(runs: &'a [Run]) -> Self {
        let mut ends: HashMap<u32, Vec<&Qp>> = HashMap::new();
        for qp in runs.iter().flat_map(|run| &run.status.qps) {
            ends.entry(qp.qpn).or_default().push(qp);
        }
        Self(ends)
    }

    /// The other end: the one that names this one, and is named by it. `None` where its run is not at hand.
    pub(crate) fn other(&self, qp: &Qp) -> Option<&'a Qp> {
        let there = self.0.get(&qp.remote_qpn?)?;
        there.iter().find(|other| other.remote_qpn == Some(qp.qpn)).copied()
    }
}

#[cfg(test)]
mod tests {
    use pmd_observe::status::State;

    use super::super::view::tests::{qp, run};
    use super::*;

    #[test]
    fn ends_name_each_other() {
        let of = |qpn, remote| Qp { remote_qpn: Some(remote), ..qp(qpn, State::Rts, 1.0) };
        // A number that comes again on another host belongs to somebody else.
        let runs = [run(vec![of(1, 2), of(3, 9)]), run(vec![of(2, 7), of(2, 1), of(9, 4)])];
        let ends = Ends::of(&runs);
        let [near, lonely] = &runs[0].status.qps[..] else { panic!() };
        assert_eq!(ends.other(near).unwrap().remote_qpn, Some(1));
        assert_eq!(ends.other(lonely), None);
    }
}
