//! The key-value nodes: as their configs are, between processes, and with the server killed.

use serde_json::Value;

use crate::bench::{Running, config, free_address, node, report, spinwire, stderr};
use crate::killed::under_way;

const WIRES: [&str; 2] = ["device.soft0.wire=auto", "device.soft0.wire=udp"];

/// Every key of 32 or 64 bytes is put and read once beside the load.
fn checked(report: &Value) {
    for (name, count, keys, value, get) in
        [("reader", 400_000, 20_000, 32, 95), ("writer", 200_000, 10_000, 64, 50)]
    {
        let client = node(report, name);
        let count = if client["messages"] == count { count } else { 2000 };
        assert_eq!(
            (&client["messages"], &client["errors"]),
            (&count.into(), &0.into()),
            "{report}"
        );
        assert_eq!(client["bytes"], count * value);
        let gets = client["verified_bytes"].as_u64().expect("a number") / value - keys;
        let expected = count * get / 100;
        assert!(gets.abs_diff(expected) < count / 20, "{name}: {gets} of {count}");
        assert!(client["latency_ns"]["p999"].as_u64().expect("a number") > 0);
    }
}

#[test]
fn the_config_as_it_is() {
    let output = spinwire(&["run", &config("kv.toml"), "--json"]);
    let whole = report(&output);
    assert_eq!(output.status.code(), Some(0), "{whole}");
    checked(&whole);
    let server = node(&whole, "server");
    assert_eq!(server["messages"], 400_000 + 200_000 + 2 * (20_000 + 10_000));
    assert_eq!(node(&whole, "reader")["path"], "local");
}

/// By packets, some of which are lost and some come twice: each request is answered once all the same.
#[test]
fn lost_packets_lose_no_request() {
    let config = config("kv.toml");
    let args = ["run", &config, "--json", "--set", "device.soft0.wire=udp"];
    let fewer = ["--set", "node.reader.count=2000", "--set", "node.writer.count=2000"];
    let faults = ["--fault", "drop all every 301", "--fault", "dup all every 211"];
    let output = spinwire(&[&args[..], &fewer, &faults].concat());
    let whole = report(&output);
    assert_eq!(output.status.code(), Some(0), "{whole}");
    checked(&whole);
    assert_eq!(node(&whole, "reader")["path"], "packet");
}

fn pair(wire: &str, more: &[&str]) -> (Running, Running) {
    let address = free_address();
    let (listen, peer) =
        (format!("node.server.listen={address}"), format!("node.client.peer={address}"));
    let (server, client) = (config("kv-server.toml"), config("kv-client.toml"));
    let server = Running::start(&["run", &server, "--set", wire, "--set", &listen, "--json"]);
    let args = ["run", &client, "--set", wire, "--set", &peer, "--json"];
    (server, Running::start(&[&args[..], more].concat()))
}

#[test]
fn server_and_client() {
    for wire in WIRES {
        let (server, client) = pair(wire, &["--set", "node.client.count=20000"]);
        let output = client.end();
        let asked = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {asked}");
        let client = node(&asked, "client");
        assert_eq!((&client["messages"], &client["errors"]), (&20_000.into(), &0.into()));
        assert!(client["verified_bytes"].as_u64().unwrap() > (10_000 + 17_000) * 32, "{asked}");
        let output = server.end();
        let served = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {served}");
        assert_eq!(node(&served, "server")["messages"], 10_000 + 20_000 + 10_000);
    }
}

/// A client whose server is killed under load ends, and says who is gone.
#[test]
fn a_killed_server_is_named_by_its_client() {
    for wire in WIRES {
        let (mut server, mut client) = pair(
            wire,
            &["--set", "node.client.duration=1h", "--set", "node.client.count=1000000000000"],
        );
        under_way(&mut client);
        let id = server.id();
        server.kill();
        let output = client.end();
        assert_eq!(output.status.code(), Some(1));
        let verdict = &report(&output)["verdict"];
        assert_eq!((&verdict["code"], &verdict["owner"]), (&"peer-dead".into(), &"remote".into()));
        let summary = verdict["summary"].as_str().unwrap();
        assert!(summary.starts_with(&format!("`server` (process {id} at 127.0.0.1:")), "{summary}");
    }
}

/// A client whose server is told to end finishes what is in flight, and says that not everything was asked.
#[test]
fn a_server_that_is_told_to_end_lets_its_client_finish() {
    let for_ever = ["--set", "node.client.duration=1h", "--set", "node.client.count=1000000000000"];
    let (mut server, mut client) = pair("device.soft0.wire=auto", &for_ever);
    under_way(&mut client);
    server.signal("-TERM");
    let output = client.end();
    assert_eq!(output.status.code(), Some(1));
    let asked = report(&output);
    assert_eq!(asked["verdict"]["code"], "peer-not-ready", "{asked}");
    let summary = asked["verdict"]["summary"].as_str().unwrap();
    assert!(summary.contains("ended before everything was asked of it"), "{summary}");
    let output = server.end();
    let served = report(&output);
    assert_eq!(output.status.code(), Some(0), "{served}");
    let (asked, served) = (node(&asked, "client"), node(&served, "server"));
    let preloaded = served["messages"].as_u64().unwrap() - asked["messages"].as_u64().unwrap();
    // The last answers come when the load has ended, and are not measured any more.
    let in_flight = 8 * 16;
    assert!((10_000..=10_000 + in_flight).contains(&preloaded), "{asked} {served}");
}

/// A server without `serve` goes on for ever: a client that is killed is not missed, and those after it are served.
#[test]
fn a_server_that_serves_for_ever() {
    let address = free_address();
    let text = std::fs::read_to_string(config("kv-server.toml")).unwrap();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kv-for-ever.toml");
    std::fs::write(&path, text.replace("serve = 1\n", "")).unwrap();
    let (path, listen) = (path.display().to_string(), format!("node.server.listen={address}"));
    // No more keys than one client has: what the killed one left behind makes room.
    let capacity = "node.server.capacity=10000";
    let args = ["run", &path, "--set", &listen, "--set", capacity, "--json"];
    let mut server = Running::start(&args);
    let (client, peer) = (config("kv-client.toml"), format!("node.client.peer={address}"));
    let common = ["run", &client, "--set", &peer, "--json"];
    let loads = ["--set", "node.client.duration=1h", "--set", "node.client.count=1000000000000"];
    let mut killed = Running::start(&[&common[..], &loads].concat());
    under_way(&mut killed);
    killed.kill();
    drop(killed);
    for _ in 0..2 {
        let output = spinwire(&[&common[..], &["--set", "node.client.count=5000"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    server.signal("-INT");
    let output = server.end();
    assert_eq!(output.status.code(), Some(0), "{}", report(&output));
    assert!(stderr(&output).contains("lost a client: `client` (process "), "{}", stderr(&output));
}
