//! `kill -9` of either end: the other ends in bounded time and says who is gone.

use std::time::{Duration, Instant};

use crate::bench::{Input, PATIENCE, Running, config, free_address, own_host, report};

fn pair(wire: &str, input: &Input) -> (Running, Running) {
    let address = free_address();
    let (listen, peer) =
        (format!("node.target.listen={address}"), format!("node.client.peer={address}"));
    let server = config("quickstart-server.toml");
    let server = Running::start(&["run", &server, "--set", wire, "--set", &listen, "--json"]);
    let client = config("quickstart-client.toml");
    let repeat = "node.source.repeat=4000000000";
    let set = input.set();
    let args = ["run", &client, "--set", wire, "--set", &peer, "--set", repeat, "--set", &set];
    (server, Running::start(&[&args[..], &["--json"]].concat()))
}

/// Waits until bytes have been on their way for a while: the client's threads show that it is connected, and the time that it
/// has had since then, on a machine however busy, that it works.
pub(crate) fn under_way(client: &mut Running) {
    under_way_as(client.id());
}

/// The same of a process by its id.
pub(crate) fn under_way_as(client: u32) {
    let deadline = Instant::now() + PATIENCE;
    let tasks = format!("/proc/{client}/task");
    let connected = || {
        let tasks = std::fs::read_dir(&tasks).expect("the client runs");
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.into_iter().any(|name| name.trim() == "channel")
    };
    while !connected() {
        assert!(Instant::now() < deadline, "the client does not connect");
        std::thread::sleep(Duration::from_millis(5));
    }
    let connected = ticks(client);
    while ticks(client) < connected + WORK_TICKS {
        assert!(Instant::now() < deadline, "the client does not work");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// CPU time of a process that shows that it works, in hundredths of a second.
const WORK_TICKS: u64 = 10;

/// CPU time of a process so far, in hundredths of a second: proc_pid_stat(5), utime and stime.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the client runs");
    let (_, fields) = stat.rsplit_once(") ").expect("the name is in brackets");
    let fields = fields.split(' ').skip(11).take(2);
    fields.map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_killed_server_is_named_by_its_client() {
    let input = Input::new("kill-server", 2_000_000);
    for wire in ["device.soft0.wire=auto", "device.soft0.wire=udp"] {
        let (mut server, mut client) = pair(wire, &input);
        under_way(&mut client);
        let id = server.id();
        server.kill();
        let output = client.end();
        assert_eq!(output.status.code(), Some(1));
        let verdict = &report(&output)["verdict"];
        assert_eq!((&verdict["code"], &verdict["owner"]), (&"peer-dead".into(), &"remote".into()));
        let summary = verdict["summary"].as_str().unwrap();
        let who = format!("`target` (process {id} at {}:", own_host());
        assert!(summary.starts_with(&who), "{summary}");
    }
}

#[test]
fn a_killed_client_is_named_by_its_server() {
    let input = Input::new("kill-client", 2_000_000);
    for wire in ["device.soft0.wire=auto", "device.soft0.wire=udp"] {
        let (server, mut client) = pair(wire, &input);
        under_way(&mut client);
        let id = client.id();
        client.kill();
        let output = server.end();
        assert_eq!(output.status.code(), Some(1));
        let verdict = &report(&output)["verdict"];
        assert_eq!((&verdict["code"], &verdict["owner"]), (&"peer-dead".into(), &"remote".into()));
        let summary = verdict["summary"].as_str().unwrap();
        assert!(summary.starts_with(&format!("`client` (process {id} at 127.0.0.1:")), "{summary}");
    }
}

/// A client whose server is told to end finishes what is in flight, and says that not everything was sent.
#[test]
fn a_server_that_is_told_to_end_lets_its_client_finish() {
    let input = Input::new("leave", 2_000_000);
    let (mut server, mut client) = pair("device.soft0.wire=udp", &input);
    under_way(&mut client);
    server.signal("-TERM");
    let output = client.end();
    assert_eq!(output.status.code(), Some(1));
    let sent = report(&output);
    assert_eq!(sent["verdict"]["code"], "peer-not-ready");
    let summary = sent["verdict"]["summary"].as_str().unwrap();
    assert!(summary.contains("ended before everything was asked of it"), "{summary}");
    let output = server.end();
    assert_eq!(output.status.code(), Some(0), "{}", report(&output));
}
