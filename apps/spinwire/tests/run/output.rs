//! Outputs that take nothing.

use std::fs::File;
use std::process::Stdio;

use serde_json::Value;

use crate::bench::{Input, command, config, node, report, spinwire, stderr};

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("Linux has /dev/full").into()
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe is free");
    drop(reader);
    writer.into()
}

/// What stderr takes changes nothing about the run: not its log, its complaints, or how it ends.
#[test]
fn a_stderr_that_takes_nothing_changes_nothing() {
    let input = Input::new("deaf", 10_000);
    let (config, set) = (config("quickstart.toml"), input.set());
    for stderr in [full, closed] {
        let mut done = command(&["run", &config, "--set", &set, "--json"]);
        let output = done.env("SPINWIRE_LOG", "trace").stderr(stderr()).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(node(&report(&output), "client")["verified_bytes"], input.len);
        for (arguments, code) in [
            (&["run", &config, "--set", &set, "--fault", "flip target 1", "--json"][..], 1),
            (&["run", "--capture", "/nonexistent/x.pcapng"], 1),
            (&["run", "/nonexistent.toml"], 2),
            (&["run", &config, "--set", "node.client.dpeth=1"], 2),
            (&["run", "--fault", "explode"], 2),
            (&["run", "--no-such-flag"], 2),
            (&["conformance", "--device", "nic"], 2),
            (&["run", "--set", "memory.size=900GiB", "--set", "memory.hugepages=require"], 3),
        ] {
            let status = command(arguments).stdout(Stdio::null()).stderr(stderr()).status();
            assert_eq!(status.unwrap().code(), Some(code), "{arguments:?}");
        }
    }
}

/// A result that nobody gets is a failure, and no panic.
#[test]
fn a_stdout_that_takes_nothing_fails_the_run() {
    let input = Input::new("mute", 10_000);
    let (config, set) = (config("quickstart.toml"), input.set());
    for stdout in [full, closed] {
        for json in [&["--json"][..], &[]] {
            let arguments = [&["run", &config, "--set", &set][..], json].concat();
            let output = command(&arguments).stdout(stdout()).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let silent = command(&arguments).stdout(stdout()).stderr(stdout()).status();
            assert_eq!(silent.unwrap().code(), Some(1));
        }
    }
}

/// Programs that read the object on stdout find one with a verdict, however early the run failed.
#[test]
fn a_run_that_does_not_begin_is_an_object_too() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("observe.listen={}", taken.local_addr().unwrap());
    let one = config("quickstart.toml");
    let server = config("quickstart-server.toml");
    let big = ["--set", "memory.size=900GiB", "--set", "memory.hugepages=require"];
    let shm = "device.soft0.wire=shm";
    for (arguments, code, owner, reason) in [
        (&["--capture", "/nonexistent/x.pcapng"][..], 1, "local", "/nonexistent/x.pcapng"),
        (&["--run-dir", "/proc/none"], 1, "local", "/proc/none"),
        (&["--set", &listen], 2, "config", "observe.listen"),
        (&["--set", "node.source.path=/nonexistent"], 2, "config", "cannot read `/nonexistent`"),
        (&["--set", "device.soft0.address=192.0.2.77"], 3, "local", "192.0.2.77"),
        (&big, 3, "local", "does not fit this machine"),
        (&[&server, big[0], big[1], big[2], big[3]], 3, "local", "does not fit this machine"),
        (&["--fault", "explode"], 2, "config", "explode"),
        (&["--set", "node.client.dpeth=1"], 2, "config", "the config is refused"),
        (&["--set", shm, "--fault", "drop all every 9"], 2, "config", "wire = \"shm\" has none"),
        (&["--set", shm, "--capture", "/dev/null"], 2, "config", "wire = \"shm\" has none"),
    ] {
        let output = spinwire(&[&["run", "--json", &one][..], arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let report = report(&output);
        assert_eq!(report["ok"], false);
        assert_eq!((&report["elapsed_s"], &report["nodes"]), (&0.0.into(), &Value::Array(vec![])));
        let verdict = &report["verdict"];
        assert_eq!((&verdict["code"], &verdict["owner"]), (&"unknown".into(), &owner.into()));
        let summary = verdict["summary"].as_str().unwrap();
        assert!(summary.contains(reason), "{arguments:?}: {summary}");
        assert!(verdict["evidence"].is_array() && verdict.get("knob").is_some(), "{verdict}");
        assert_ne!(stderr(&output), "", "{arguments:?}");
    }
}

/// An address at which somebody else listens is found before anything runs, and named with its key.
#[test]
fn a_listener_whose_address_is_taken_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let listen = format!("node.target.listen={address}");
    let (server, client) = (config("quickstart-server.toml"), config("quickstart-client.toml"));
    for configs in [&[&*server][..], &[&server, &client]] {
        let output = spinwire(&[&["run", "--json", "--set", &listen], configs].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let verdict = report(&output)["verdict"].clone();
        assert_eq!(
            (&verdict["owner"], &verdict["knob"]),
            (&"config".into(), &"node.target.listen".into())
        );
        let summary = verdict["summary"].as_str().unwrap();
        let says = format!("cannot listen at node.target.listen = \"{address}\"");
        assert!(summary.contains(&says) && summary.contains("set another port"), "{summary}");
    }
    let output = spinwire(&["perf", "send-lat", "--listen", &address.to_string()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("choose another port with -p"), "{}", stderr(&output));
}

#[test]
fn a_run_of_no_time_is_refused() {
    for duration in ["0s", "0ms", "0"] {
        let output = spinwire(&["run", "--duration", duration]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            stderr(&output).contains("must be more than zero: leave it out"),
            "{}",
            stderr(&output)
        );
    }
}
