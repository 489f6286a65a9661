//! A connection between two processes that breaks: `spinwire run` says why, from what both ends know.

use pmd_observe::why::{Evidence, diagnose};
use serde_json::Value;

use crate::bench::{Input, Running, config, free_address, node, report, stderr};
use crate::killed::under_way;

const WIRES: [&str; 2] = ["device.soft0.wire=shm", "device.soft0.wire=udp"];
/// Of `timeout` 12 and the usual seven retries: 134 ms.
const PATIENT: [&str; 2] = ["--set", "node.client.timeout=12"];

/// A server and a client that sends `repeat` times what is in `input`.
struct Pair {
    server: Running,
    client: Running,
}

impl Pair {
    fn start(input: &Input, wire: &str, repeat: &str, more: &[&str]) -> Self {
        let address = free_address();
        let listen = format!("node.target.listen={address}");
        let peer = format!("node.client.peer={address}");
        let repeat = format!("node.source.repeat={repeat}");
        let server = config("quickstart-server.toml");
        let server = Running::start(&["run", &server, "--set", wire, "--set", &listen, "--json"]);
        let client = config("quickstart-client.toml");
        let set = input.set();
        let args = ["run", &client, "--set", wire, "--set", &peer, "--set", &repeat, "--set", &set];
        let client = Running::start(&[&args[..], more, &["--json"]].concat());
        Self { server, client }
    }

    /// The client's report, which must be one of a failure, and the server's.
    fn fail(self) -> [Value; 2] {
        let client = self.client.end();
        assert_eq!(client.status.code(), Some(1), "{}", stderr(&client));
        [report(&client), report(&self.server.end())]
    }
}

/// What the verdict was made of is in the report, and leads to the same verdict again.
fn judged(report: &Value, code: &str, owner: &str) -> Evidence {
    let verdict = &report["verdict"];
    assert_eq!((&verdict["code"], &verdict["owner"]), (&code.into(), &owner.into()), "{report}");
    let evidence: Evidence = serde_json::from_value(report["evidence"].clone()).expect("evidence");
    assert_eq!(diagnose(&evidence).code.as_str(), code);
    evidence
}

fn moved(report: &Value, name: &str, side: &str, counter: &str) -> u64 {
    let side = &node(report, name)["counters"][side];
    let [before, after] = ["before", "after"].map(|when| side[when][counter].as_u64());
    let moved = after.unwrap_or_else(|| panic!("no {counter} in {side}")) - before.unwrap_or(0);
    assert_eq!(side["delta"][counter].as_u64().unwrap_or(0), moved);
    moved
}

/// S0-22: baseline, run and difference of the counters of both ends are in every report of both.
#[test]
fn s0_22_counters_of_both_ends_are_in_every_report() {
    let input = Input::new("counted", 1_000_000);
    for wire in WIRES {
        let Pair { server, client } = Pair::start(&input, wire, "1", &[]);
        let [client, server] = [client, server].map(Running::end);
        assert_eq!(client.status.code(), Some(0), "{}", stderr(&client));
        let [client, server] = [report(&client), report(&server)];
        // What one end copies through shared memory by itself, only that end counts.
        let least = if wire.ends_with("udp") { input.len } else { 1 };
        for side in ["local", "remote"] {
            for (report, name) in [(&client, "client"), (&server, "target")] {
                for counter in ["tx_bytes", "rx_bytes"] {
                    assert!(moved(report, name, side, counter) >= least, "{side} {name}: {report}");
                }
            }
        }
        assert_eq!((&client["evidence"], &client["packets_by"]), (&Value::Null, &Value::Null));
        assert!(client["lcores"][0]["longest_gap_ns"].is_u64(), "{client}");
    }
}

/// P11 (a) and (b), S0-19, S0-21, S0-23 and S0-25: a wire that loses everything, or only answers; afterwards all is well again.
#[test]
fn s0_23_silence_of_a_path_and_of_its_way_back() {
    let input = Input::new("silence", 1_000_000);
    let wire = "device.soft0.wire=auto";
    for (fault, code) in
        [("drop all after 200", "link-dead"), ("drop acks after 10", "ack-path-lost")]
    {
        let more = [&PATIENT[..], &["--fault", fault]].concat();
        let [client, _] = Pair::start(&input, wire, "100000", &more).fail();
        let evidence = judged(&client, code, "fabric");
        let verdict = &client["verdict"];
        assert_eq!(verdict["knob"], "node.client.timeout", "{verdict}");
        let text = verdict["evidence"].to_string();
        for fact in
            ["local_ack_timeout_err=", "req_transport_retries_exceeded=1", "134.2 ms in all"]
        {
            assert!(text.contains(fact), "{verdict}");
        }
        assert!(
            !text.contains("out_of_buffer") && !text.contains("rnr_nak_retry_err"),
            "{verdict}"
        );
        assert!(
            text.contains(&format!("fault on purpose at this end: `{fault}` hit ")),
            "{verdict}"
        );
        let [ours, theirs] = [&evidence.local, evidence.remote.as_ref().expect("it has told")];
        assert_eq!((ours.qp.qpn, ours.qp.sq_psn), (theirs.qp.dest_qpn, theirs.qp.rq_psn));
        assert_eq!(theirs.qp.state.as_deref(), Some("RTS"));
        assert!(theirs.name.starts_with("`target` (process "), "{}", theirs.name);
        // A slow machine sends something again also before the link dies.
        if code == "ack-path-lost" {
            assert!(theirs.qp.counters.get("duplicate_request") > Some(0), "{verdict}");
            assert!(theirs.duplicate_age_ns.is_some(), "{verdict}");
        }
        assert!(moved(&client, "client", "remote", "rx_packets") > 0);
        assert_eq!(client["faults"][0]["rule"], fault);
        assert!(client["faults"][0]["hits"].as_u64() >= Some(8), "{client}");
        // The wire would have been shared memory.
        assert_eq!(client["packets_by"], "--fault");
        assert_eq!(node(&client, "client")["path"], "packet");
    }
    let Pair { server, client } = Pair::start(&input, wire, "1", &PATIENT);
    for output in [client, server].map(Running::end) {
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

/// P11 (e): a server that stands still for longer than the budget, and one that does not for so long.
#[test]
fn p11_e_a_server_that_stands_still() {
    let input = Input::new("still", 2_000_000);
    for wire in WIRES {
        let mut pair = Pair::start(&input, wire, "4000000000", &PATIENT);
        under_way(&mut pair.client);
        pair.server.signal("-STOP");
        let output = pair.client.end();
        pair.server.signal("-CONT");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let client = report(&output);
        let evidence = judged(&client, "responder-slow", "remote");
        assert_eq!(evidence.remote, None, "it could not tell");
        let text = client["verdict"]["evidence"].to_string();
        assert!(text.contains("nothing in it answers"), "{text}");
        // It goes on, finds that it was given up, and knows itself why.
        let server = report(&pair.server.end());
        judged(&server, "responder-slow", "local");
        let summary = server["verdict"]["summary"].as_str().unwrap();
        assert!(summary.starts_with("this end did not poll for "), "{summary}");
        // It goes on in time: nobody notices.
        let more = ["--set", "node.client.timeout=18"];
        let mut pair = Pair::start(&input, wire, "300", &more);
        under_way(&mut pair.client);
        pair.server.signal("-STOP");
        std::thread::sleep(std::time::Duration::from_millis(150));
        pair.server.signal("-CONT");
        let output = pair.client.end();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let gap = report(&pair.server.end())["lcores"][0]["longest_gap_ns"].as_u64();
        assert!(gap >= Some(100_000_000), "{gap:?}");
    }
}

/// Whoever is killed has no half to tell, and this end's is kept.
#[test]
fn a_dead_peer_leaves_this_ends_half() {
    let input = Input::new("dead", 2_000_000);
    for wire in WIRES {
        let mut pair = Pair::start(&input, wire, "4000000000", &[]);
        under_way(&mut pair.client);
        pair.server.kill();
        let client = report(&pair.client.end());
        let evidence = judged(&client, "peer-dead", "remote");
        assert_eq!(evidence.remote, None);
        assert_eq!(evidence.local.name, "client");
        assert!(moved(&client, "client", "local", "tx_bytes") > 0);
    }
}
