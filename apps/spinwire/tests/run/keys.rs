//! The key-value nodes: as their configs are, between processes, and with the server killed.

use serde_json::Value;

use crate::bench::{
    Running, config, free_address, node, own_host, report, spinwire, stderr, until_counted,
};
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
    (server(wire, &address), client(wire, &address, more))
}

fn server(wire: &str, address: &str) -> Running {
    server_with(wire, address, &[])
}

fn server_with(wire: &str, address: &str, more: &[&str]) -> Running {
    let (config, listen) = (config("kv-server.toml"), format!("node.server.listen={address}"));
    let args = ["run", &config, "--set", wire, "--set", &listen, "--json"];
    Running::start(&[&args[..], more].concat())
}

fn client(wire: &str, address: &str, more: &[&str]) -> Running {
    let (config, peer) = (config("kv-client.toml"), format!("node.client.peer={address}"));
    let args = ["run", &config, "--set", wire, "--set", &peer, "--json"];
    Running::start(&[&args[..], more].concat())
}

/// The config of a server that serves for ever.
fn without_serve(name: &str) -> String {
    let text = std::fs::read_to_string(config("kv-server.toml")).expect("the config is there");
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-{name}.toml"));
    std::fs::write(&path, text.replace("serve = 1\n", "")).expect("the target folder takes files");
    path.display().to_string()
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
        let who = format!("`server` (process {id} at {}:", own_host());
        assert!(summary.starts_with(&who), "{summary}");
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
    let (path, listen) = (without_serve("for-ever"), format!("node.server.listen={address}"));
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

/// A client that comes back.
const COMES_BACK: [&str; 6] = [
    "--set",
    "node.client.reconnect=always",
    "--set",
    "node.client.reconnect_timeout=50s",
    "--set",
    "node.client.get=50",
];
/// A retry budget of 34 ms, which the environment of the tests has longer.
const SHORT: [&str; 2] = ["--set", "node.client.timeout=10"];
const FOR_EVER: [&str; 4] =
    ["--set", "node.client.duration=1h", "--set", "node.client.count=1000000000000"];

fn recoveries(report: &Value, name: &str) -> u64 {
    node(report, name)["recoveries"]["count"].as_u64().expect("a count")
}

/// Every request was answered, and every value that came back was right, at the end all of them. Returns the report.
fn answered(client: Running, count: u64) -> Value {
    let output = client.end();
    let asked = report(&output);
    assert_eq!(output.status.code(), Some(0), "{asked}{}", stderr(&output));
    let client = node(&asked, "client");
    assert_eq!((&client["messages"], &client["errors"]), (&count.into(), &0.into()), "{client}");
    let gets = client["verified_bytes"].as_u64().expect("a number") / 32 - 10_000;
    assert!(gets.abs_diff(count / 2) < count / 20, "half of them are GETs: {client}");
    asked
}

/// P24, P15: a server that stood still for longer than the retry budget has its client back. What was under way is asked again,
/// PUTs too, and every GET finds what was put last.
#[test]
fn p24_a_server_that_stood_still_has_its_client_back() {
    for (wire, count) in [(WIRES[0], 400_000), (WIRES[1], 150_000)] {
        let more = ["--set", &format!("node.client.count={count}")];
        let (mut server, mut client) = pair(wire, &[&COMES_BACK[..], &SHORT, &more].concat());
        under_way(&mut client);
        server.signal("-STOP");
        std::thread::sleep(std::time::Duration::from_millis(400));
        server.signal("-CONT");
        let asked = answered(client, count);
        assert!(recoveries(&asked, "client") >= 1, "{wire}: {asked}");
        let output = server.end();
        let served = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {served}");
        assert!(recoveries(&served, "server") >= 1, "{wire}: {served}");
    }
}

/// P24: a wire that loses everything for longer than the retry budget. Who else is served does not notice.
#[test]
fn p24_a_wire_that_heals_has_its_client_back() {
    let address = free_address();
    let config = without_serve("heals");
    let listen = format!("node.server.listen={address}");
    let mut server =
        Running::start(&["run", &config, "--set", WIRES[1], "--set", &listen, "--json"]);
    let mut other =
        client(WIRES[1], &address, &[&FOR_EVER[..], &["--set", "node.client.get=50"]].concat());
    under_way(&mut other);
    let more = ["--set", "node.client.count=50000", "--fault", "drop all after 9000 for 300ms"];
    let broken = client(WIRES[1], &address, &[&COMES_BACK[..], &SHORT, &more].concat());
    let asked = answered(broken, 50_000);
    assert!(recoveries(&asked, "client") >= 1, "{asked}");
    other.signal("-INT");
    let output = other.end();
    let asked = report(&output);
    assert_eq!(output.status.code(), Some(0), "{asked}");
    assert_eq!((recoveries(&asked, "client"), &node(&asked, "client")["errors"]), (0, &0.into()));
    server.signal("-INT");
    let output = server.end();
    let served = report(&output);
    assert_eq!(output.status.code(), Some(0), "{served}");
    assert!(recoveries(&served, "server") >= 1, "{served}");
}

/// P24: a server that is killed and started again has lost its keys. A client that verifies says so; another goes on.
#[test]
fn p24_a_killed_server_that_is_started_again() {
    for (verify, wire) in [(true, WIRES[0]), (false, WIRES[0]), (false, WIRES[1])] {
        let address = free_address();
        let mut first = server(wire, &address);
        let verifies = format!("node.client.verify={verify}");
        let more = [&COMES_BACK[..], &FOR_EVER, &["--set", &verifies]].concat();
        let mut client = client(wire, &address, &more);
        under_way(&mut client);
        first.kill_and_wait();
        let counters = free_address();
        let observe = format!("observe.listen={counters}");
        let mut second = server_with(wire, &address, &["--set", &observe]);
        if !verify {
            until_counted(&counters, "spinwire_node_connections_total", 8);
            under_way(&mut second);
            client.signal("-INT");
        }
        let output = client.end();
        let asked = report(&output);
        if verify {
            assert_eq!(output.status.code(), Some(1), "{asked}");
            let verdict = &asked["verdict"];
            assert_eq!(verdict["code"], "data-mismatch", "{verdict}");
            let summary = verdict["summary"].as_str().unwrap();
            assert!(summary.ends_with("was started again, and has lost what it kept"), "{summary}");
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{wire}: {asked}{}", stderr(&output));
        assert_eq!(recoveries(&asked, "client"), 8, "each of its queue pairs, {wire}: {asked}");
        let output = second.end();
        assert_eq!(output.status.code(), Some(0), "{wire}: {}", report(&output));
    }
}

/// P24: a server that hangs, on a connection that would retry for ever, is given up; each request under way is an error.
#[test]
fn p24_a_server_that_hangs_is_given_up_by_its_client() {
    for wire in WIRES {
        let keys = ["--set", "node.client.timeout=0", "--set", "node.client.keep_alive=500ms"];
        let (mut server, mut client) = pair(wire, &[&FOR_EVER[..], &keys].concat());
        under_way(&mut client);
        server.signal("-STOP");
        let output = client.end();
        let asked = report(&output);
        assert_eq!(output.status.code(), Some(1), "{asked}");
        let verdict = &asked["verdict"];
        let told = (&verdict["code"], &verdict["owner"], &verdict["knob"]);
        let knob = "node.client.keep_alive".into();
        assert_eq!(told, (&"responder-slow".into(), &"remote".into(), &knob), "{verdict}");
        assert_eq!(node(&asked, "client")["errors"], 128, "8 queue pairs of 16 requests: {asked}");
        server.signal("-CONT");
        assert_eq!(server.end().status.code(), Some(1), "its client gave up");
    }
}

/// P24: a server does not keep a client that hangs, and the others do not notice.
#[test]
fn p24_a_client_that_hangs_is_given_up_by_its_server() {
    let address = free_address();
    let config = without_serve("hangs");
    let listen = format!("node.server.listen={address}");
    let mut server = Running::start(&["run", &config, "--set", &listen, "--json"]);
    let keep_alive = ["--set", "node.client.keep_alive=300ms"];
    let mut hangs = client(WIRES[0], &address, &[&FOR_EVER[..], &keep_alive].concat());
    let mut other = client(WIRES[0], &address, &FOR_EVER);
    under_way(&mut hangs);
    under_way(&mut other);
    hangs.signal("-STOP");
    // Its end of the control channel is closed once it is given up.
    std::thread::sleep(std::time::Duration::from_millis(800));
    hangs.signal("-CONT");
    assert_eq!(hangs.end().status.code(), Some(1));
    other.signal("-INT");
    let output = other.end();
    assert_eq!(output.status.code(), Some(0), "{}", report(&output));
    server.signal("-INT");
    let output = server.end();
    assert_eq!(output.status.code(), Some(0), "{}", report(&output));
    assert_eq!(node(&report(&output), "server")["errors"], 8, "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("has said nothing for").count(), 8, "{}", stderr(&output));
}

/// P24: both ends are told to end at once: each finds the other leaving, and neither makes anything of it.
#[test]
fn p24_both_ends_that_leave_at_once() {
    for wire in WIRES {
        let (mut server, mut client) = pair(wire, &FOR_EVER);
        under_way(&mut client);
        let pids = [server.id(), client.id()].map(|id| id.to_string());
        let told = std::process::Command::new("kill").arg("-INT").args(pids).status();
        assert!(told.expect("kill runs").success());
        for end in [client, server] {
            let output = end.end();
            assert_eq!(output.status.code(), Some(0), "{}", report(&output));
            let text = stderr(&output);
            assert!(!text.contains("ERROR") && !text.contains("WARN"), "{text}");
        }
    }
}
