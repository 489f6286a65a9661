//! What the report of a run adds to its last state: what peers have told of themselves.

use std::path::Path;

use pmd_graph::run_dir::{self, REPORT, ReadError};
use pmd_observe::Snapshot;
use pmd_observe::why::End;
use serde_json::Value;

/// A peer, as the report of this end has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Peer {
    /// How it is called.
    pub(crate) name: String,
    /// What it counted during the run.
    pub(crate) counters: Snapshot,
    /// Its queue pair, of which it told when a connection broke, and what that has counted.
    pub(crate) qp: Option<(u32, Snapshot)>,
}

/// The report in a directory; none where the run has left none.
pub(crate) fn report(dir: &Path) -> Result<Option<Value>, ReadError> {
    run_dir::json(&dir.join(REPORT))
}

/// The peers that a report tells of: those of each node, and the one whose connection broke.
pub(crate) fn peers(report: &Value) -> Vec<Peer> {
    let mut peers = Vec::new();
    for node in report["nodes"].as_array().into_iter().flatten() {
        let name = format!("peers of node `{}`", node["name"].as_str().unwrap_or_default());
        peers.extend(moved(&node["counters"]["remote"]).map(|counters| Peer {
            name,
            counters,
            qp: None,
        }));
    }
    let measured = moved(&last(report)["counters"]["remote"]);
    peers.extend(measured.map(|counters| Peer {
        name: "the other end of the measurement".to_owned(),
        counters,
        qp: None,
    }));
    let remote: Option<End> =
        serde_json::from_value(last(report)["evidence"]["remote"].clone()).ok();
    peers.extend(remote.map(End::tamed).map(|end| Peer {
        counters: end.after.since(&end.before),
        qp: end.qp.qpn.map(|qpn| (qpn, end.qp.counters)),
        name: format!("{}, when the connection broke", end.name),
    }));
    peers
}

/// A measurement of several sizes has a result for each; counters run on from one to the next.
fn last(report: &Value) -> &Value {
    report["results"].as_array().and_then(|results| results.last()).unwrap_or(report)
}

/// How far the counters of one end moved.
fn moved(counters: &Value) -> Option<Snapshot> {
    let at = |when: &str| serde_json::from_value::<Snapshot>(counters.get(when)?.clone()).ok();
    Some(at("after")?.since(&at("before")?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn peers_of_nodes_and_of_what_broke() {
        let side = |before: u64, after: u64| json!({ "before": { "rx_packets": before }, "after": { "rx_packets": after } });
        let report = json!({
            "nodes": [
                { "name": "client", "counters": { "local": side(0, 1), "remote": side(5, 12) } },
                { "name": "source", "counters": null },
            ],
            "evidence": { "remote": {
                "name": "`target`\u{1b}[2J",
                "before": { "duplicate_request": 1 },
                "after": { "duplicate_request": 9 },
                "qp": { "qpn": 7, "counters": { "duplicate_request": 3 } },
            } },
        });
        let told = peers(&report);
        let one = |name: &'static str, value| [(name, value)].into_iter().collect::<Snapshot>();
        assert_eq!(told[0].name, "peers of node `client`");
        assert_eq!((&told[0].counters, &told[0].qp), (&one("rx_packets", 7), &None));
        assert_eq!(told[1].name, "`target`[2J, when the connection broke");
        assert_eq!(told[1].counters, one("duplicate_request", 8));
        assert_eq!(told[1].qp, Some((7, one("duplicate_request", 3))));
        assert_eq!(told.len(), 2);
    }

    #[test]
    fn a_measurement_has_one_other_end() {
        let side = |after: u64| json!({ "before": {}, "after": { "tx_packets": after } });
        let result =
            |local, remote| json!({ "counters": { "local": side(local), "remote": side(remote) } });
        let report = json!({ "ok": true, "results": [result(1, 2), result(3, 4)] });
        assert_eq!(peers(&report)[0].counters.get("tx_packets"), Some(4));
        assert_eq!(peers(&report).len(), 1);
    }
}
