//! Connections that break between two processes, and come back.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::bench::{Running, free_address, node, report, spinwire, stderr, until_counted};
use crate::killed::under_way;

const WIRES: [&str; 2] = ["device.soft0.wire=auto", "device.soft0.wire=udp"];
const SIZE: u64 = 64;
/// Round trips of a client that is told to end.
const ENDLESS: u64 = 1_000_000_000;

/// One end of a pingpong, as a config of its own.
fn end(name: &str, address: &str, keys: &str) -> String {
    let text = format!(
        "[memory]\nsize = \"16MiB\"\n[device.soft0]\nkind = \"soft\"\n[[lcore]]\nname = \"lc0\"\n\
         [[node]]\nname = \"{name}\"\nkind = \"pingpong\"\nlcore = \"lc0\"\ndevice = \"soft0\"\n{keys}\n"
    );
    let (_, port) = address.rsplit_once(':').expect("an address has a port");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reconnect-{name}-{port}.toml"));
    std::fs::write(&path, text).expect("the target folder takes files");
    path.display().to_string()
}

fn server(address: &str, wire: &str, more: &[&str]) -> Running {
    let config = end("pong", address, "listen = \"127.0.0.1:1\"");
    let listen = format!("node.pong.listen={address}");
    let args = ["run", &config, "--set", wire, "--set", &listen, "--json"];
    Running::start(&[&args[..], more].concat())
}

/// Arguments of a client that comes back, with a retry budget of 34 ms.
fn client(address: &str, wire: &str, iters: u64) -> Vec<String> {
    let config = end("ping", address, "peer = \"127.0.0.1:1\"\nreconnect = \"always\"");
    let sets = [
        wire.to_owned(),
        format!("node.ping.peer={address}"),
        format!("node.ping.iters={iters}"),
        "node.ping.timeout=10".to_owned(),
        "node.ping.reconnect_timeout=50s".to_owned(),
    ];
    let mut args = vec!["run".to_owned(), config, "--json".to_owned()];
    args.extend(sets.into_iter().flat_map(|set| ["--set".to_owned(), set]));
    args
}

fn texts<'a>(args: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    args.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

/// The client got every message back as it was, and says how often it lost its connection.
fn recoveries(output: &std::process::Output) -> u64 {
    let report = report(output);
    assert_eq!(output.status.code(), Some(0), "{report}{}", stderr(output));
    let ping = node(&report, "ping");
    let messages = ping["messages"].as_u64().expect("a count");
    assert!(messages > 0 && ping["verified_bytes"] == messages * SIZE, "{ping}");
    let recoveries = &ping["recoveries"];
    let (last, max) = (recoveries["last_ms"].as_f64(), recoveries["max_ms"].as_f64());
    assert!(last <= max && (recoveries["count"] == 0) == (max == Some(0.0)), "{recoveries}");
    recoveries["count"].as_u64().expect("a count")
}

fn interrupted(mut server: Running) -> Value {
    server.signal("-INT");
    let output = server.end();
    let served = report(&output);
    assert_eq!(output.status.code(), Some(0), "{served}{}", stderr(&output));
    served
}

/// S2-17, S2-19, S4-21, P15, P19: a wire that loses everything for a while breaks the connection; it comes back on the
/// same queue pairs, and every message after that is right. Who else is served does not notice.
#[test]
fn a_wire_that_heals_brings_its_connection_back() {
    let address = free_address();
    let server = server(&address, WIRES[1], &[]);
    let other = client(&address, WIRES[1], ENDLESS);
    let mut other = Running::start(&texts(&other, &["--set", "node.ping.timeout=18"]));
    under_way(&mut other);
    let args = client(&address, WIRES[1], 2000);
    let more = ["--set", "node.ping.timeout=14", "--fault", "drop all after 900 for 1200ms"];
    let output = spinwire(&texts(&args, &more));
    assert_eq!(recoveries(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("broke, and is brought back"), "{}", stderr(&output));
    let took = node(&report(&output), "ping")["recoveries"]["last_ms"].as_f64().unwrap();
    assert!(took > 600.0, "it was dead for longer than that: {took} ms");
    other.signal("-INT");
    assert_eq!(recoveries(&other.end()), 0, "the other one's connection stood");
    let served = interrupted(server);
    assert_eq!(node(&served, "pong")["errors"], 0, "{served}");
    assert_eq!(node(&served, "pong")["recoveries"]["count"], 1);
}

/// A peer that stands still for longer than the retry budget breaks the connection, on either wire, and has it back when it
/// goes on.
#[test]
fn a_server_that_stood_still_has_its_client_back() {
    for wire in WIRES {
        let address = free_address();
        let mut server = server(&address, wire, &[]);
        let args = client(&address, wire, ENDLESS);
        let mut client = Running::start(&texts(&args, &[]));
        under_way(&mut client);
        server.signal("-STOP");
        std::thread::sleep(Duration::from_millis(400));
        server.signal("-CONT");
        under_way(&mut server);
        client.signal("-INT");
        let output = client.end();
        assert!(recoveries(&output) >= 1, "{wire}: {}", stderr(&output));
        let served = interrupted(server);
        assert_eq!(node(&served, "pong")["errors"], 0, "{served}");
    }
}

/// P24, S3-41: a server that is killed and started again has its client back, over a new connection.
#[test]
fn a_killed_server_that_is_started_again_has_its_client_back() {
    for wire in WIRES {
        let address = free_address();
        let mut first = server(&address, wire, &[]);
        let args = client(&address, wire, ENDLESS);
        // Nothing but the death of the server is to break it, however busy the machine is.
        let mut client = Running::start(&texts(&args, &["--set", "node.ping.timeout=16"]));
        under_way(&mut client);
        first.kill();
        drop(first);
        let counters = free_address();
        let observe = format!("observe.listen={counters}");
        let second = server(&address, wire, &["--set", &observe]);
        // Each message but the first answers one that arrived.
        until_counted(&counters, "spinwire_node_messages", 2);
        client.signal("-INT");
        let output = client.end();
        assert_eq!(recoveries(&output), 1, "{wire}: {}", stderr(&output));
        let text = stderr(&output);
        assert!(text.contains("is gone, and is dialled again"), "{text}");
        let served = interrupted(second);
        assert!(node(&served, "pong")["bytes"].as_u64().unwrap() > 0, "{served}");
    }
}

/// What does not come back is given up in bounded time, with the reason of the failure and what was tried.
#[test]
fn what_does_not_come_back_is_given_up() {
    let address = free_address();
    let server = server(&address, WIRES[1], &[]);
    let args = client(&address, WIRES[1], 2000);
    // A timeout that a busy machine does not reach: what was sent twice would speak of the way back.
    let patient = "node.ping.timeout=14";
    let limit = ["--set", "node.ping.reconnect_timeout=300ms", "--set", patient];
    let limit = [&limit[..], &["--fault", "drop all after 900"]].concat();
    let output = spinwire(&texts(&args, &limit));
    let verdict = &report(&output)["verdict"];
    assert_eq!((output.status.code(), &verdict["code"]), (Some(1), &"link-dead".into()));
    let evidence = verdict["evidence"].to_string();
    assert!(evidence.contains("did not bring the connection back"), "{evidence}");
    let served = interrupted(server);
    assert_eq!(node(&served, "pong")["errors"], 1, "{served}");
}
