//! A [`Status`] as Prometheus text (exposition format 0.0.4), and the list of all metrics there are.
//!
//! Names and labels are a contract: dashboards and alerts depend on them. How many series there can be is bounded: of
//! the queue pairs, the [`QPS_MAX`] worst are shown one by one, and all of them by the count of each state.

mod families;
mod text;

use std::fmt::Write as _;

use crate::status::{Qp, State, Status};

use families::{DROPS, QP, QPS, QPS_OMITTED, RUN, SRQ};
pub use families::{Family, Kind, NODE_AND_LCORE, PORT_COUNTERS, QP_COUNTERS, WIRE_COUNTERS};
use text::{Labels, Text};

/// Queue pairs that have series of their own.
pub const QPS_MAX: usize = 128;

/// The metrics of a run. A queue pair that has ended has none.
pub fn text(status: &Status) -> String {
    let mut text = Text::default();
    let one = Labels::none();
    text.family(&RUN[0], [(one.clone(), status.elapsed_s)]);
    text.family(&RUN[1], [(one, f64::from(u8::from(status.ended)))]);
    nodes_and_lcores(&mut text, status);
    ports(&mut text, status);
    shared_queues(&mut text, status);
    queue_pairs(&mut text, status);
    text.finish()
}

fn nodes_and_lcores(text: &mut Text, status: &Status) {
    let nodes = || {
        status
            .nodes
            .iter()
            .map(|node| (Labels::of(&[("node", &node.name), ("kind", &node.kind)]), node))
    };
    let [messages, bytes, verified, errors, connections, busy, idle, gap, silent] = NODE_AND_LCORE;
    text.family(&messages, nodes().map(|(labels, node)| (labels, count(node.messages))));
    text.family(&bytes, nodes().map(|(labels, node)| (labels, count(node.bytes))));
    text.family(&verified, nodes().map(|(labels, node)| (labels, count(node.verified_bytes))));
    text.family(&errors, nodes().map(|(labels, node)| (labels, count(node.errors))));
    text.family(&connections, nodes().map(|(labels, node)| (labels, count(node.connections))));
    let lcores = || {
        status.lcores.iter().map(|lcore| {
            (Labels::of(&[("lcore", &lcore.name), ("cpu", &lcore.cpu.to_string())]), lcore)
        })
    };
    text.family(&busy, lcores().map(|(labels, lcore)| (labels, lcore.busy_s)));
    text.family(&idle, lcores().map(|(labels, lcore)| (labels, lcore.idle_s)));
    text.family(&gap, lcores().map(|(labels, lcore)| (labels, lcore.longest_gap_s)));
    text.family(&silent, lcores().map(|(labels, lcore)| (labels, lcore.silent_s)));
}

fn ports(text: &mut Text, status: &Status) {
    let labels = |name: &str| Labels::of(&[("device", name)]);
    for (name, help) in PORT_COUNTERS {
        let values = status
            .devices
            .iter()
            .filter_map(|device| Some((labels(&device.name), count(device.counters.get(name)?))));
        text.counter("spinwire_port_", name, help, values);
    }
    let drops = status.devices.iter().flat_map(|device| {
        device.drops.iter().map(|(reason, value)| {
            (Labels::of(&[("device", &device.name), ("reason", reason)]), count(value))
        })
    });
    text.family(&DROPS, drops);
    for (name, help) in WIRE_COUNTERS {
        let values = status
            .devices
            .iter()
            .filter_map(|device| Some((labels(&device.name), count(device.wire.get(name)?))));
        text.counter("spinwire_wire_", name, help, values);
    }
}

fn shared_queues(text: &mut Text, status: &Status) {
    let srqs = || {
        status.srqs.iter().map(|srq| {
            let labels = [
                ("device", srq.device.as_str()),
                ("lcore", &srq.lcore),
                ("srqn", &srq.srqn.to_string()),
            ];
            (Labels::of(&labels), srq)
        })
    };
    let [receives, depth, limit, dry] = SRQ;
    text.family(&receives, srqs().map(|(labels, srq)| (labels, f64::from(srq.receives))));
    text.family(&depth, srqs().map(|(labels, srq)| (labels, f64::from(srq.depth))));
    text.family(&limit, srqs().map(|(labels, srq)| (labels, f64::from(srq.limit))));
    text.family(&dry, srqs().map(|(labels, srq)| (labels, count(srq.dry))));
}

fn queue_pairs(text: &mut Text, status: &Status) {
    let states = status.devices.iter().flat_map(|device| {
        State::ALL.map(|state| {
            let of_it = |known: &&crate::status::StateCount| {
                known.device == device.name && known.state == state
            };
            let qps = status.states.iter().find(of_it).map_or(0, |known| known.qps);
            (Labels::of(&[("device", &device.name), ("state", state.as_str())]), count(qps))
        })
    });
    text.family(&QPS, states);
    let live = status.qps.iter().filter(|qp| !qp.ended).count();
    let omitted = live.saturating_sub(QPS_MAX) as u64 + status.qps_omitted;
    text.family(&QPS_OMITTED, [(Labels::none(), count(omitted))]);
    let qps = || {
        let live = status.qps.iter().filter(|qp| !qp.ended).take(QPS_MAX);
        live.map(|qp| (labels(qp), qp))
    };
    let [state, seconds, stalled, reconnects, sends, send, send_depth, recv, recv_depth] = QP;
    text.family(
        &state,
        qps().flat_map(|(labels, qp)| {
            State::ALL.map(|state| {
                let is = f64::from(u8::from(qp.state == state));
                (labels.and("state", state.as_str()), is)
            })
        }),
    );
    text.family(&seconds, qps().map(|(labels, qp)| (labels, qp.state_s)));
    text.family(&stalled, qps().map(|(labels, qp)| (labels, qp.stalled_s)));
    text.family(&reconnects, qps().map(|(labels, qp)| (labels, count(qp.reconnects))));
    text.family(&sends, qps().map(|(labels, qp)| (labels, count(qp.sends))));
    text.family(&send, qps().map(|(labels, qp)| (labels, f64::from(qp.send.used))));
    text.family(&send_depth, qps().map(|(labels, qp)| (labels, f64::from(qp.send.depth))));
    text.family(&recv, qps().map(|(labels, qp)| (labels, f64::from(qp.recv.used))));
    text.family(&recv_depth, qps().map(|(labels, qp)| (labels, f64::from(qp.recv.depth))));
    for (name, help) in QP_COUNTERS {
        let value = |qp: &Qp| count(qp.counters.get(name).unwrap_or(0));
        text.counter("spinwire_qp_", name, help, qps().map(|(labels, qp)| (labels, value(qp))));
    }
    text.summary(&families::ROUND_TRIP, qps().map(|(labels, qp)| (labels, qp.ack_round_trip)));
    text.summary(&families::RNR_WAIT, qps().map(|(labels, qp)| (labels, qp.rnr_wait)));
}

fn labels(qp: &Qp) -> Labels {
    Labels::of(&[
        ("device", qp.device.as_str()),
        ("qpn", &format!("{:#08x}", qp.qpn)),
        ("node", &qp.node),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
fn count(value: u64) -> f64 {
    value as f64
}

/// The list of all metrics, in Markdown: what `docs/metrics.md` holds.
pub fn reference() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         What `[observe] listen` serves under `/metrics`, as Prometheus text. Names and labels are a contract; more may\n\
         come. Written from `pmd/observe/src/metrics`: `UPDATE_REFERENCE=1 cargo test -p pmd-observe metrics`.\n\n",
    );
    // Writing to a string cannot fail.
    writeln!(
        page,
        "Figures are taken when somebody asks. Of the queue pairs that live, the {QPS_MAX} worst have series of their own (by \
         state,\nthen by how long they stand still, then by how long they are in their state); `spinwire_qps` counts \
         all.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|"
    )
    .unwrap_or_default();
    for family in families::all() {
        writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            family.name,
            family.kind.as_str(),
            family.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "),
            family.help
        )
        .unwrap_or_default();
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Device, Fill, Lcore, Node, Srq, StateCount, Times};

    fn qp(qpn: u32, state: State) -> Qp {
        let json = format!(r#"{{"device":"soft0","qpn":{qpn},"state":"RTS","node":"client"}}"#);
        Qp { state, ..serde_json::from_str(&json).unwrap() }
    }

    fn status() -> Status {
        let stuck = Qp {
            state_s: 31.5,
            send: Fill { used: 3, depth: 32 },
            counters: [("rnr_nak_retry_err", 7)].into_iter().collect(),
            rnr_wait: Times { count: 7, sum_s: 4.5, p50_ns: 640_000, p99_ns: 655_360, max_ns: 1 },
            ..qp(0x2a801, State::Rtr)
        };
        Status {
            elapsed_s: 12.5,
            lcores: vec![Lcore { name: "lc0".into(), cpu: 3, busy_s: 1.25, ..Lcore::default() }],
            nodes: vec![Node { name: "a\\\"b\n".into(), bytes: 1 << 40, ..Node::default() }],
            devices: vec![Device {
                name: "soft0".into(),
                counters: [("out_of_buffer", 9), ("unheard_of", 1)].into_iter().collect(),
                drops: [("icrc", 2)].into_iter().collect(),
                ..Device::default()
            }],
            srqs: vec![Srq { device: "soft0".into(), srqn: 1, receives: 2, ..Srq::default() }],
            states: vec![StateCount { device: "soft0".into(), state: State::Rtr, qps: 1 }],
            qps: vec![stuck, Qp { ended: true, ..qp(0x2a802, State::Error) }],
            ..Status::default()
        }
    }

    /// S2-24, S2-26: the state of each queue pair, and since when, as gauges.
    #[test]
    fn s2_26_gauges_of_states() {
        let text = text(&status());
        let has = |line: &str| assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        let qp = "device=\"soft0\",qpn=\"0x02a801\",node=\"client\"";
        has(&format!("spinwire_qp_state{{{qp},state=\"RTR\"}} 1"));
        has(&format!("spinwire_qp_state{{{qp},state=\"ERR\"}} 0"));
        has(&format!("spinwire_qp_state_seconds{{{qp}}} 31.5"));
        has(&format!("spinwire_qp_sends_in_flight{{{qp}}} 3"));
        has(&format!("spinwire_qp_rnr_nak_retry_err_total{{{qp}}} 7"));
        has(&format!("spinwire_qp_local_ack_timeout_err_total{{{qp}}} 0"));
        has(&format!("spinwire_qp_rnr_wait_seconds_sum{{{qp}}} 4.5"));
        has(&format!("spinwire_qp_rnr_wait_seconds{{{qp},quantile=\"0.5\"}} 0.00064"));
        has("spinwire_qps{device=\"soft0\",state=\"RTR\"} 1");
        has("spinwire_qps{device=\"soft0\",state=\"ERR\"} 0");
        has("spinwire_port_out_of_buffer_total{device=\"soft0\"} 9");
        has("spinwire_port_drops_total{device=\"soft0\",reason=\"icrc\"} 2");
        has("spinwire_srq_receives{device=\"soft0\",lcore=\"\",srqn=\"1\"} 2");
        has("spinwire_lcore_busy_seconds_total{lcore=\"lc0\",cpu=\"3\"} 1.25");
        has("spinwire_node_bytes_total{node=\"a\\\\\\\"b\\n\",kind=\"\"} 1099511627776");
        assert!(!text.contains("0x02a802"), "what has ended has no series");
        assert!(!text.contains("unheard_of"), "what is not documented is not shown");
        assert!(!text.contains("spinwire_wire_"), "a family without values is left out");
    }

    /// However many queue pairs there are, the number of series stays bounded, and the worst are in.
    #[test]
    fn cardinality_is_bounded() {
        let mut status = status();
        status.qps = (0..1000).map(|qpn| qp(qpn, State::Rts)).collect();
        status.qps.push(qp(0xbad, State::Error));
        status.qps.sort_by(Qp::worse_first);
        let text = text(&status);
        let of_one = text.lines().filter(|line| line.contains("qpn=\"0x000bad\"")).count();
        let all = text.lines().filter(|line| line.contains("qpn=")).count();
        assert_eq!(all, of_one * QPS_MAX);
        assert!(text.contains(&format!("spinwire_qps_omitted {}\n", 1001 - QPS_MAX)));
    }

    #[test]
    fn families_are_declared_once_and_named_by_the_rules() {
        let all = families::all();
        let mut names: Vec<&str> = all.iter().map(|family| family.name.as_ref()).collect();
        for family in &all {
            let is_counter = family.name.ends_with("_total");
            assert_eq!(family.kind == Kind::Counter, is_counter, "{}", family.name);
            assert!(family.name.starts_with("spinwire_"), "{}", family.name);
            assert!(
                !family.help.is_empty() && !family.help.contains(['|', '\n']),
                "{}",
                family.name
            );
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    /// S2-26: an alert on a metric that does not exist never fires.
    #[test]
    fn s2_26_alerts_name_metrics_that_exist() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/alerts.yml");
        let alerts = std::fs::read_to_string(path).unwrap();
        let is_part = |letter: char| letter == '_' || letter.is_ascii_alphanumeric();
        let rules = alerts.split_once("groups:").unwrap().1;
        let words = rules.split(|letter| !is_part(letter));
        let mut count = 0;
        for word in words.filter(|word| word.starts_with("spinwire_")) {
            let name = word.trim_end_matches("_sum").trim_end_matches("_count");
            assert!(families::all().iter().any(|family| family.name == name), "{word}");
            count += 1;
        }
        assert!(count >= 10, "{count}");
    }

    #[test]
    fn the_page_of_metrics_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(path, reference()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap();
        assert!(page == reference(), "run UPDATE_REFERENCE=1 cargo test -p pmd-observe metrics");
    }
}
