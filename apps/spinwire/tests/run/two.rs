//! Two processes on one host, over shared memory and over packets.

use serde_json::Value;

use crate::bench::{Input, Running, config, free_address, node, report, spinwire, stderr};

const WIRES: [&str; 2] = ["device.soft0.wire=auto", "device.soft0.wire=udp"];

#[test]
fn server_and_client() {
    let input = Input::new("two", 1_000_001);
    for wire in WIRES {
        let address = free_address();
        let listen = format!("node.target.listen={address}");
        let peer = format!("node.client.peer={address}");
        let server = config("quickstart-server.toml");
        let server = Running::start(&["run", &server, "--set", wire, "--set", &listen, "--json"]);
        let client = config("quickstart-client.toml");
        let args = ["run", &client, "--set", wire, "--set", &peer, "--set", &input.set(), "--json"];
        let output = spinwire(&args);
        let sent = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {sent}");
        assert_eq!(node(&sent, "client")["verified_bytes"], input.len);
        let output = server.end();
        let served = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {served}");
        assert_eq!(node(&served, "target")["bytes"], input.len);
    }
}

/// Several configs are a process each, and one report; settings go where their names are.
#[test]
fn several_configs_are_a_process_each() {
    let input = Input::new("several", 100_000);
    let address = free_address();
    let (server, client) = (config("quickstart-server.toml"), config("quickstart-client.toml"));
    let (listen, peer) =
        (format!("node.target.listen={address}"), format!("node.client.peer={address}"));
    let args = ["run", &server, &client, "--set", &listen, "--set", &peer, "--set", &input.set()];
    let output = spinwire(&[&args[..], &["--json"]].concat());
    let both = report(&output);
    assert_eq!(output.status.code(), Some(0), "{both}");
    assert_eq!(both["ok"], true);
    let [served, sent] = both["runs"].as_array().unwrap().as_slice() else { panic!("{both}") };
    assert_eq!(
        (&served["config"], &sent["config"]),
        (&Value::from(server.clone()), &Value::from(client.clone()))
    );
    assert_eq!(node(served, "target")["bytes"], input.len);
    assert_eq!(node(sent, "client")["verified_bytes"], input.len);

    let faulty = [&args[..], &["--fault", "flip target 777", "--json"]].concat();
    let output = spinwire(&faulty);
    let both = report(&output);
    assert_eq!((output.status.code(), &both["ok"]), (Some(1), &Value::from(false)));
    let verdict = &both["runs"][1]["verdict"];
    assert_eq!(verdict["code"], "data-mismatch");
    assert!(verdict["summary"].as_str().unwrap().contains("byte 777 differs"), "{verdict}");
}

/// A target without `serve` goes on for ever: clients come one after the other and at once, with one queue pair or several,
/// with any depth; one that is killed is not missed; what it stored is free again.
#[test]
fn a_target_that_serves_for_ever() {
    let input = Input::new("for-ever", 1_000_003);
    let address = free_address();
    let text = std::fs::read_to_string(config("quickstart-server.toml")).unwrap();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("for-ever.toml");
    std::fs::write(&path, text.replace("serve = 1", "")).unwrap();
    let path = path.display().to_string();
    let listen = format!("node.target.listen={address}");
    // Room for two clients at a time, and no more.
    let size = "memory.size=4MiB";
    let mut server = Running::start(&["run", &path, "--set", &listen, "--set", size, "--json"]);
    let (client, peer, set) =
        (config("quickstart-client.toml"), format!("node.client.peer={address}"), input.set());
    let common = ["run", &client, "--set", &peer, "--set", &set, "--json"];
    let sent = |more: &[&str]| {
        let output = spinwire(&[&common[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        assert_eq!(node(&report(&output), "client")["verified_bytes"], input.len);
    };
    sent(&["--set", "node.client.qps=3"]);
    sent(&["--set", "node.client.depth=500"]);
    let killed = [&common[..], &["--set", "node.source.repeat=4000000000"]].concat();
    let mut killed = Running::start(&killed);
    crate::killed::under_way(&mut killed);
    sent(&[]);
    killed.kill();
    drop(killed);
    sent(&[]);
    server.signal("-INT");
    let output = server.end();
    let served = report(&output);
    assert_eq!(output.status.code(), Some(0), "{served}");
    assert_eq!(node(&served, "target")["errors"], 1);
    assert!(stderr(&output).contains("lost a client: `client` (process "), "{}", stderr(&output));
}

#[test]
fn nobody_listening_is_an_error_in_time() {
    let address = free_address();
    let peer = format!("node.client.peer={address}");
    let client = config("quickstart-client.toml");
    let timeout = "node.client.connect_timeout=300ms";
    let output = spinwire(&["run", &client, "--set", &peer, "--set", timeout, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let verdict = &report(&output)["verdict"];
    assert_eq!(verdict["code"], "peer-not-ready");
    let summary = verdict["summary"].as_str().unwrap();
    assert!(summary.contains(&address) && summary.contains("refused"), "{summary}");
    assert_eq!(verdict["knob"], "node.client.peer");
}

/// Nothing was sent: a client that is ended before it has reached its server has failed, and names it.
#[test]
fn a_client_that_is_ended_before_it_is_connected() {
    let address = free_address();
    let peer = format!("node.client.peer={address}");
    let client = config("quickstart-client.toml");
    let output = spinwire(&["run", &client, "--set", &peer, "--json", "--duration", "100ms"]);
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    assert_eq!(report["ok"], false);
    let verdict = &report["verdict"];
    assert_eq!(verdict["code"], "peer-not-ready");
    assert_eq!(
        verdict["summary"],
        format!("ended before it was connected to the peer at {address}")
    );
    assert_eq!(verdict["knob"], "node.client.peer");
}

/// Who was refused is not one of the clients to be served; neither is a crowd that connects and says nothing, which keeps
/// nobody waiting.
#[test]
fn only_connected_clients_count_as_served() {
    let input = Input::new("refused", 5000);
    let address = free_address();
    let (listen, peer) =
        (format!("node.target.listen={address}"), format!("node.client.peer={address}"));
    let (server, client) = (config("quickstart-server.toml"), config("quickstart-client.toml"));
    let packets = "device.soft0.wire=udp";
    let server = Running::start(&["run", &server, "--set", packets, "--set", &listen, "--json"]);
    let set = input.set();
    let sent = |wire: &str| {
        let wait = "node.client.connect_timeout=5s";
        let args = ["run", &client, "--set", wire, "--set", &peer, "--set", &set, "--json"];
        spinwire(&[&args[..], &["--set", wait]].concat())
    };
    let output = sent("device.soft0.wire=shm");
    assert_eq!(output.status.code(), Some(1));
    let verdict = report(&output)["verdict"].to_string();
    assert!(verdict.contains("wire"), "{verdict}");

    let crowd = (0..200).map(|_| std::net::TcpStream::connect(&address).unwrap());
    let crowd: Vec<_> = crowd.collect();
    let output = sent(packets);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    drop(crowd);
    let output = server.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(node(&report(&output), "target")["bytes"], input.len);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let listen = format!("node.target.listen={address}");
    let server = config("quickstart-server.toml");
    let output = spinwire(&["run", &server, "--set", &listen]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    let says = format!("cannot listen at node.target.listen = \"{address}\"");
    assert!(text.contains(&says), "{text}");
}

/// A listener that is no pipeline, and a caller that is none.
#[test]
fn strangers_are_told_apart() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = format!("node.client.peer={}", listener.local_addr().unwrap());
    let client = config("quickstart-client.toml");
    let stranger = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
    });
    let output = spinwire(&["run", &client, "--set", &peer, "--json"]);
    stranger.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let verdict = &report(&output)["verdict"];
    let summary = verdict["summary"].as_str().unwrap();
    assert!(summary.ends_with("does not speak this protocol"), "{verdict}");
    assert_eq!(verdict["knob"], "node.client.peer");

    let input = Input::new("strangers", 5000);
    let address = free_address();
    let listen = format!("node.target.listen={address}");
    let server = config("quickstart-server.toml");
    let server = Running::start(&["run", &server, "--set", &listen, "--json"]);
    let peer = format!("node.client.peer={address}");
    let mut stranger = loop {
        if let Ok(stream) = std::net::TcpStream::connect(&address) {
            break stream;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let output = spinwire(&["run", &client, "--set", &peer, "--set", &input.set(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = server.end();
    assert_eq!(output.status.code(), Some(0), "a stranger is no client: {}", stderr(&output));
}

/// Whoever answers with a refusal that refuses nothing has not done the work.
#[test]
fn a_peer_cannot_call_a_run_done() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = format!("node.client.peer={}", listener.local_addr().unwrap());
    let liar = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut len = [0; 4];
        stream.read_exact(&mut len).unwrap();
        let mut greeting = vec![0; u32::from_be_bytes(len) as usize];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(b"\0\0\0\x09\x03ok: fine").unwrap();
        // Until the other end hangs up.
        drop(stream.read(&mut len));
    });
    let output = spinwire(&["run", &config("quickstart-client.toml"), "--set", &peer, "--json"]);
    liar.join().unwrap();
    let report = report(&output);
    assert_eq!((output.status.code(), &report["ok"]), (Some(1), &Value::from(false)), "{report}");
    assert_eq!(report["verdict"]["code"], "unknown");
    assert_eq!(report["verdict"]["summary"], "ok: fine");
}

/// Ctrl-C reaches everything on the terminal, and is the first signal to every process of the run: all drain and report.
#[test]
fn ctrl_c_on_several_configs_drains_all_of_them() {
    let input = Input::new("ctrl-c", 1_000_000);
    let address = free_address();
    let (server, client) = (config("quickstart-server.toml"), config("quickstart-client.toml"));
    let (listen, peer) =
        (format!("node.target.listen={address}"), format!("node.client.peer={address}"));
    let repeat = "node.source.repeat=4000000000";
    let set = input.set();
    let args = ["run", &server, &client, "--json", "--set", &listen, "--set", &peer];
    let mut run = Running::start_group(&[&args[..], &["--set", &set, "--set", repeat]].concat());
    crate::killed::under_way_as(run.children(2)[1]);
    run.signal_group("-INT");
    let output = run.end();
    let both = report(&output);
    assert_eq!((output.status.code(), &both["ok"]), (Some(0), &Value::from(true)), "{both}");
    let [served, sent] = both["runs"].as_array().unwrap().as_slice() else { panic!("{both}") };
    assert_eq!(served["verdict"]["code"], "ok");
    let sent = node(sent, "client");
    assert!(sent["verified_bytes"].as_u64().unwrap() > 0);
    assert_eq!(sent["verified_bytes"], sent["bytes"]);
}

/// S0-39, S1-26: queue pairs of two processes meet by the connection manager, on both paths and several at once; a server that
/// does not is named with both values; a connection that breaks comes back all the same.
#[test]
fn s0_39_connected_by_the_connection_manager() {
    let input = Input::new("managed", 200_003);
    let managed = ["node.target.connect=cm", "node.client.connect=cm"];
    let run = |wire: &str, ways: [&str; 2], more: &[&str]| {
        let address = free_address();
        let listen = format!("node.target.listen={address}");
        let peer = format!("node.client.peer={address}");
        let (server, client) = (config("quickstart-server.toml"), config("quickstart-client.toml"));
        let common = ["--set", wire, "--json", "--set"];
        let server = [&["run", &server][..], &common, &[ways[0], "--set", &listen]].concat();
        let server = Running::start(&server);
        let set = input.set();
        let client =
            [&["run", &client][..], &common, &[ways[1], "--set", &peer, "--set", &set], more];
        (spinwire(&client.concat()), server)
    };
    for (wire, path) in WIRES.into_iter().zip(["local", "packet"]) {
        let (output, server) = run(wire, managed, &["--set", "node.client.qps=3"]);
        let sent = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {sent}{}", stderr(&output));
        assert_eq!(node(&sent, "client")["verified_bytes"], input.len);
        assert_eq!(node(&sent, "client")["path"], path);
        assert_eq!(server.end().status.code(), Some(0));
    }
    for (ways, said) in [
        ([managed[0], "node.client.connect=oob"], "this side has cm, the peer oob"),
        (["node.target.connect=oob", managed[1]], "this side has oob, the peer cm"),
    ] {
        let (output, mut server) = run(WIRES[1], ways, &[]);
        let verdict = &report(&output)["verdict"];
        assert_eq!(output.status.code(), Some(1), "{verdict}");
        assert!(verdict["summary"].as_str().is_some_and(|text| text.contains(said)), "{verdict}");
        server.signal("-INT");
        drop(server.end());
    }
    // A wire that is dead for longer than the retry budget.
    let sets = ["--set", "node.client.reconnect=always", "--set", "node.client.timeout=8"];
    let fault = ["--fault", "drop all after 40 for 100ms"];
    let (output, server) = run(WIRES[1], managed, &[&sets[..], &fault].concat());
    let sent = report(&output);
    assert_eq!(output.status.code(), Some(0), "{sent}{}", stderr(&output));
    assert_eq!(node(&sent, "client")["verified_bytes"], input.len);
    assert_eq!(server.end().status.code(), Some(0));
}

/// Where there are no packets there is no manager, and the way out is named.
#[test]
fn p25_the_connection_manager_needs_packets() {
    let client = config("quickstart-client.toml");
    let ways = ["--set", "node.client.connect=cm", "--set", "device.soft0.wire=shm"];
    for command in ["check", "run"] {
        let output = spinwire(&[&[command, &client][..], &ways].concat());
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{command}: {told}");
        assert!(told.contains("`client` has no packets to connect by"), "{command}: {told}");
        assert!(told.contains("`soft0` only shares memory"), "{command}: {told}");
    }
}
