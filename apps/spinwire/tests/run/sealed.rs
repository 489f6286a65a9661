//! Control channels that are sealed with a key, between processes: `run` and `perf`, with keys that agree and keys that do not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::bench::{Input, Running, config, free_address, node, report, spinwire, stderr};

/// A file with a key, gone when dropped.
struct Key(PathBuf);

impl Key {
    fn new(name: &str, byte: char) -> Self {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("{name}-{}.psk", std::process::id()));
        let digits = format!("00{}", byte.to_string().repeat(62));
        fs::write(&path, digits).expect("room for a key");
        let key = Self(path);
        key.mode(0o600);
        key
    }

    fn mode(&self, mode: u32) {
        fs::set_permissions(&self.0, PermissionsExt::from_mode(mode)).expect("it is ours");
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn set(&self, node: &str) -> String {
        format!("node.{node}.psk_file={}", self.path())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        fs::remove_file(&self.0).expect("it was there");
    }
}

fn server(address: &str, more: &[&str]) -> Running {
    let (path, listen) =
        (config("quickstart-server.toml"), format!("node.target.listen={address}"));
    Running::start(&[&["run", &path, "--set", &listen, "--json"], more].concat())
}

fn client(address: &str, input: &Input, more: &[&str]) -> (Option<i32>, Value, String) {
    let (path, peer) = (config("quickstart-client.toml"), format!("node.client.peer={address}"));
    let set = input.set();
    let timeout = "node.client.connect_timeout=5s";
    let common = ["run", &path, "--set", &peer, "--set", &set, "--set", timeout, "--json"];
    let output = spinwire(&[&common, more].concat());
    (output.status.code(), report(&output), stderr(&output))
}

/// S0-43: two processes with one key, over both wires.
#[test]
fn s0_43_two_processes_with_one_key() {
    let (input, key) = (Input::new("sealed", 300_001), Key::new("sealed", '7'));
    for wire in ["device.soft0.wire=auto", "device.soft0.wire=udp"] {
        let address = free_address();
        let (ours, theirs) = (key.set("client"), key.set("target"));
        let server = server(&address, &["--set", wire, "--set", &theirs]);
        let (code, sent, errors) = client(&address, &input, &["--set", wire, "--set", &ours]);
        assert_eq!(code, Some(0), "{sent}{errors}");
        assert_eq!(node(&sent, "client")["verified_bytes"], input.len);
        let output = server.end();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

/// S0-43: whoever has another key, or none, is told so, and so is the server's log; the server waits for who has it.
#[test]
fn s0_43_keys_that_differ_are_named_at_both_ends() {
    let input = Input::new("unsealed", 10_000);
    let (key, other) = (Key::new("key", '7'), Key::new("other", '8'));
    let address = free_address();
    let (right, wrong) = (key.set("client"), other.set("client"));
    let sealed = server(&address, &["--set", &key.set("target")]);
    let (code, failed, _) = client(&address, &input, &["--set", &wrong]);
    let verdict = &failed["verdict"];
    assert_eq!((code, &verdict["code"]), (Some(1), &"invalid-request".into()), "{failed}");
    assert_eq!(
        (&verdict["owner"], &verdict["knob"]),
        (&"config".into(), &"node.client.psk_file".into())
    );
    assert!(summary(verdict).contains("the peer has another key"), "{verdict}");
    let (code, failed, _) = client(&address, &input, &[]);
    let verdict = &failed["verdict"];
    assert_eq!((code, &verdict["code"]), (Some(1), &"invalid-request".into()), "{failed}");
    assert!(summary(verdict).contains("wants a sealed channel"), "{verdict}");
    let (code, sent, errors) = client(&address, &input, &["--set", &right]);
    assert_eq!(code, Some(0), "{sent}{errors}");
    let output = sealed.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let log = stderr(&output);
    assert!(log.contains("did not prove that they have its key"), "{log}");
    assert!(log.contains("which has another key"), "{log}");
    assert!(
        !log.contains(&"7".repeat(8)) && !log.contains(&"8".repeat(8)),
        "no key is shown: {log}"
    );

    let address = free_address();
    let mut clear = server(&address, &[]);
    let (code, failed, _) = client(&address, &input, &["--set", &right]);
    let verdict = &failed["verdict"];
    assert_eq!((code, &verdict["code"]), (Some(1), &"invalid-request".into()), "{failed}");
    assert!(summary(verdict).contains("the peer has no key"), "{verdict}");
    clear.signal("-INT");
    let log = stderr(&clear.end());
    assert!(log.contains("wants a sealed channel, and this side has no key"), "{log}");
}

fn summary(verdict: &Value) -> &str {
    verdict["summary"].as_str().expect("a verdict has a summary")
}

/// S0-43: a key that others can read, or that is none, is refused before anything has begun.
#[test]
fn s0_43_a_bad_key_file_is_refused_with_the_way_out() {
    let (key, input) = (Key::new("bad", '7'), Input::new("bad-key", 10));
    key.mode(0o644);
    let set = key.set("client");
    let (code, refused, _) = client("127.0.0.1:1", &input, &["--set", &set]);
    let verdict = &refused["verdict"];
    assert_eq!((code, &verdict["knob"]), (Some(2), &"node.client.psk_file".into()), "{refused}");
    assert!(summary(verdict).contains(&format!("chmod 600 {}", key.path())), "{verdict}");
    let output = spinwire(&["perf", "send-lat", "--psk-file", &key.path(), "--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(summary(&report(&output)["verdict"]).contains("chmod 600"), "{}", stderr(&output));
    key.mode(0o600);
    fs::write(&key.0, "c2hvcnQ=").expect("it is ours");
    let output = spinwire(&["perf", "send-lat", "--psk-file", &key.path(), "--json"]);
    let verdict = &report(&output)["verdict"];
    assert!(summary(verdict).contains("it has 5 bytes, a key has 32"), "{verdict}");
}

/// S0-41, S0-43: a measurement says how its ends have found each other, and whether anybody could listen.
#[test]
fn s0_41_a_measurement_over_a_sealed_channel() {
    let (key, other) = (Key::new("perf", '7'), Key::new("perf-other", '8'));
    let file = key.path();
    let common = ["perf", "write-bw", "-s", "4096", "-n", "200", "--json", "--connect", "oob"];
    let sealed = ["--psk-file", &file];
    for (more, is_sealed) in [(&[][..], false), (&sealed, true)] {
        let two = [&common[..], &["--processes", "2"], more].concat();
        let output = spinwire(&two);
        let measured = report(&output);
        assert_eq!(output.status.code(), Some(0), "{measured}{}", stderr(&output));
        assert_eq!((&measured["connect"], &measured["sealed"]), (&"oob".into(), &is_sealed.into()));
        assert!(measured["verified_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{measured}");
    }
    let address = free_address();
    let server = [&common[..], &sealed, &["--listen", &address]].concat();
    let server = Running::start(&server);
    let peer =
        |file: &str| spinwire(&[&common[..], &["--peer", &address, "--psk-file", file]].concat());
    let output = peer(&other.path());
    let verdict = &report(&output)["verdict"];
    assert_eq!(output.status.code(), Some(2), "{verdict}");
    assert!(summary(verdict).contains("another key"), "{verdict}");
    let output = spinwire(&[&common[..], &["--peer", &address]].concat());
    assert!(summary(&report(&output)["verdict"]).contains("wants a sealed channel"), "{output:?}");
    let output = peer(&file);
    let measured = report(&output);
    assert_eq!(output.status.code(), Some(0), "{measured}{}", stderr(&output));
    assert_eq!(measured["sealed"], true);
    let output = server.end();
    assert_eq!((output.status.code(), &report(&output)["sealed"]), (Some(0), &true.into()));
    assert!(
        stderr(&output).contains("did not prove that they have its key"),
        "{}",
        stderr(&output)
    );
}

/// S0-43: `plan` refuses what a run would refuse, and `check` does, too, but for a key that another machine may have.
#[test]
fn s0_43_keys_are_looked_at_before_a_run() {
    let (key, path) = (Key::new("looked-at", '7'), config("quickstart-client.toml"));
    let looks = |command: &str, set: &str| {
        let output = spinwire(&[command, &path, "--set", set]);
        (output.status.code(), stderr(&output))
    };
    let set = key.set("client");
    for command in ["check", "plan"] {
        let (code, errors) = looks(command, &set);
        assert_eq!((code, errors.contains("psk_file")), (Some(0), false), "{errors}");
    }
    let both_refuse = |set: &str, why: &str| {
        for command in ["check", "plan"] {
            let (code, errors) = looks(command, set);
            assert_eq!(code, Some(2), "{command} {set}: {errors}");
            assert!(errors.contains(why) && errors.contains("psk_file"), "{errors}");
        }
    };
    key.mode(0o644);
    both_refuse(&set, "chmod 600");
    key.mode(0o600);
    fs::write(&key.0, "").expect("it is ours");
    both_refuse(&set, "it has 0 bytes, a key has 32");
    both_refuse("node.client.psk_file=/", "is no file");
    let missing = "node.client.psk_file=/nonexistent/key";
    let (code, errors) = looks("check", missing);
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("warning") && errors.contains("/nonexistent/key"), "{errors}");
    let (code, errors) = looks("plan", missing);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("make one with"), "{errors}");
}
