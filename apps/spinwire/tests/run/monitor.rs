//! `spinwire top` and `spinwire counters` beside a run, after it, and after it was killed.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{PATIENCE, Running, config, free_address, report, spinwire, stderr};

/// A key-value run without end, in a directory of its own.
struct Watched {
    run: Option<Running>,
    dir: PathBuf,
}

impl Watched {
    fn start(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("watched-{name}"));
        drop(fs::remove_dir_all(&dir));
        let path = dir.display().to_string();
        let run = Running::start(&[
            "run",
            &config("kv.toml"),
            "--json",
            "--run-dir",
            &path,
            "--set",
            "node.reader.count=4000000000",
            "--set",
            "node.writer.count=4000000000",
            "--set",
            "node.reader.qps=3",
            "--set",
            "node.writer.qps=2",
            "--set",
            "device.soft0.wire=udp",
        ]);
        let watched = Self { run: Some(run), dir };
        let deadline = Instant::now() + PATIENCE;
        while !watched.is_up() {
            assert!(Instant::now() < deadline, "its queue pairs do not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        watched
    }

    fn path(&self) -> String {
        self.dir.display().to_string()
    }

    fn is_up(&self) -> bool {
        let Ok(text) = fs::read_to_string(self.dir.join("status.json")) else { return false };
        let status: Value = serde_json::from_str(&text).expect("readers see a whole file");
        let qps = status["qps"].as_array().expect("there are queue pairs");
        let at_work = |qp: &&Value| qp["state"] == "RTS" && qp["sends"].as_u64() > Some(0);
        qps.iter().filter(at_work).count() == 10
    }

    fn run(&mut self) -> &mut Running {
        self.run.as_mut().expect("it runs")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.run = None;
        drop(fs::remove_dir_all(&self.dir));
    }
}

/// S2-24, S2-28: without a terminal, the same as plain tables; and as JSON.
#[test]
fn s2_28_top_beside_a_run_and_after_it() {
    let mut watched = Watched::start("top");
    let path = watched.path();
    let output = spinwire(&["top", &path, "--once"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pid = watched.run().id();
    assert!(text.starts_with(&format!("process {pid}, ")), "{text}");
    let first = text.lines().next().unwrap_or_default();
    assert!(first.contains(" s, running"), "{first}");
    let at = text.lines().position(|line| line.starts_with("state ")).expect("queue pairs");
    let rows: Vec<&str> = text.lines().skip(at + 1).collect();
    assert_eq!(rows.len(), 10, "{text}");
    assert!(rows.iter().all(|row| row.starts_with("RTS ") && row.contains("rc packet")), "{text}");
    // Without a terminal it needs no flag; with a filter it shows less.
    let output = spinwire(&["top", &path, "--filter", "writer"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows = text.lines().filter(|line| line.starts_with("RTS ")).count();
    assert_eq!(rows, 4, "two, and the server's ends of them: {text}");
    let json = report(&spinwire(&["top", &path, "--json"]));
    assert_eq!(
        (&json["runs"][0]["process"], &json["runs"][0]["pid"]),
        (&"running".into(), &pid.into())
    );
    watched.run().signal("-INT");
    let output = watched.run.take().expect("it runs").end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = spinwire(&["top", &path, "--once"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().next().unwrap_or_default().contains("ended: ok"), "{text}");
    let rows = text.lines().filter(|line| line.starts_with("(RTS) ")).count();
    assert_eq!(rows, 10, "{text}");
}

/// S0-18, S0-22, S2-25: since the start and as they move, of both ends.
#[test]
fn s0_22_counters_of_both_ends() {
    let mut watched = Watched::start("counters");
    let path = watched.path();
    let since_start = report(&spinwire(&["counters", &path, "--json"]));
    let moving = report(&spinwire(&["counters", &path, "--json", "--delta"]));
    let packets = |json: &Value| json["runs"][0]["ports"][0]["counters"]["tx_packets"].as_u64();
    assert!(packets(&since_start) > Some(0) && packets(&moving) > Some(0), "{moving}");
    assert_eq!((&since_start["delta"], &moving["delta"]), (&false.into(), &true.into()));
    let counters = since_start["runs"][0]["ports"][0]["counters"].as_object().expect("counters");
    for name in [
        "local_ack_timeout_err",
        "req_transport_retries_exceeded",
        "rnr_nak_retry_err",
        "req_rnr_retries_exceeded",
        "out_of_buffer",
        "packet_seq_err",
    ] {
        assert!(counters.contains_key(name), "{name}");
    }
    let qps = since_start["runs"][0]["qps"].as_array().expect("queue pairs");
    assert_eq!(qps.len(), 10);
    assert!(qps.iter().all(|qp| qp["remote"].is_object()), "both ends are of this process");
    let output = spinwire(&["counters", &path]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("soft0 port 1\n") && text.contains("tx_packets"), "{text}");
    // It watches until the run is over, and a run that was killed is over.
    let mut watching = Running::start(&["counters", &path, "--watch", "1s", "--json"]);
    assert!(watching.id() > 0);
    watched.run().kill();
    let output = watching.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = spinwire(&["top", &path, "--once"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().next().unwrap_or_default().contains("gone: it was killed"), "{text}");
}

#[test]
fn where_no_run_was_is_said() {
    for command in ["top", "counters"] {
        let output = spinwire(&[command, "/nonexistent/run"]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(stderr(&output).contains("/nonexistent/run"), "{}", stderr(&output));
    }
    // What is there and cannot be read is a failure, for whoever reads it.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unread-state");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.display().to_string();
    for state in ["{", "", r#"{"version":99}"#, r#"{"qps":7}"#] {
        fs::write(dir.join("status.json"), state).unwrap();
        for command in ["top", "counters"] {
            let output = spinwire(&[command, &path]);
            assert_eq!(output.status.code(), Some(1), "{command} {state}");
            assert!(stderr(&output).contains("status.json"), "{}", stderr(&output));
        }
    }
    // Nobody waits for a FIFO, and nothing of what is shown can move a terminal.
    fs::remove_file(dir.join("status.json")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.join("status.json")).status().unwrap().success());
    for command in ["top", "counters"] {
        let output = Running::start(&[command, &path]).end();
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(stderr(&output).contains("no regular file"), "{}", stderr(&output));
    }
    fs::remove_file(dir.join("status.json")).unwrap();
    let state = r#"{"version":1,"ended":true,"nodes":[{"name":"\u001b]0;x\u0007\u009b2J\nlc9"}],
        "devices":[{"name":"\u001b[31msoft0","port":1}],"verdict":{"code":"unknown","owner":"local",
        "summary":"\u001b[2J","evidence":[],"knob":null}}"#;
    fs::write(dir.join("status.json"), state).unwrap();
    for command in ["top", "counters"] {
        let output = spinwire(&[command, &path]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains("\\u001b"), "{text}");
    }
    fs::remove_dir_all(&dir).unwrap();
}

/// A node that has no queue pair yet is seen with what it waits for, and `why` knows of it while the run lives.
#[test]
fn a_client_that_dials_is_seen_dialling() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dialling");
    drop(fs::remove_dir_all(&dir));
    let (path, address) = (dir.display().to_string(), free_address());
    let (client, peer) = (config("quickstart-client.toml"), format!("node.client.peer={address}"));
    let patience = "node.client.connect_timeout=60s";
    let args = ["run", &client, "--run-dir", &path, "--set", &peer, "--set", patience];
    let mut run = Running::start(&args);
    let deadline = Instant::now() + PATIENCE;
    while !dir.join("status.json").exists() {
        assert!(Instant::now() < deadline, "the run writes no state");
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = String::from_utf8(spinwire(&["top", &path, "--once"]).stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with("client ")).unwrap();
    assert!(row.ends_with(&format!("dials {address}")), "{text}");
    let told = report(&spinwire(&["why", &path, "--json"]))["verdict"].clone();
    assert_eq!(told["code"], "ok", "{told}");
    let says = format!("node `client` has no queue pair: it dials {address}");
    assert!(told["evidence"].as_array().unwrap().contains(&says.into()), "{told}");
    run.signal("-INT");
    drop(run.end());
    fs::remove_dir_all(&dir).unwrap();
}

/// A program on a terminal of its own, which script(1) makes.
struct OnTerminal {
    script: Child,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(command: &str) -> Self {
        let command = format!("stty rows 40 cols 200 && exec {command}");
        let mut script = Command::new("script")
            .args(["-qfec", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) is part of every Debian");
        let mut out = script.stdout.take().expect("it is piped");
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let shown = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = out.read(&mut bytes) {
                shown.lock().expect("nobody panics").extend_from_slice(&bytes[..read]);
            }
        });
        Self { script, seen }
    }

    /// Waits until it has shown this.
    fn shows(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen =
                String::from_utf8_lossy(&self.seen.lock().expect("nobody panics")).into_owned();
            if seen.contains(text) {
                return;
            }
            assert!(Instant::now() < deadline, "no {text:?}: {seen:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process on the terminal.
    fn program(&self) -> String {
        let list = format!("/proc/{0}/task/{0}/children", self.script.id());
        let children = fs::read_to_string(list).expect("script runs");
        children.split_whitespace().next().expect("script has a child").to_owned()
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        drop(self.script.kill());
        drop(self.script.wait());
    }
}

/// On a terminal it fills the screen, and leaves it as it was: after `q`, and after a signal.
#[test]
fn a_terminal_is_left_as_it_was() {
    let watched = Watched::start("terminal");
    let top = format!("{} top {}", env!("CARGO_BIN_EXE_spinwire"), watched.path());
    for by_signal in [false, true] {
        let mut terminal = OnTerminal::start(&top);
        terminal.shows("\u{1b}[?1049h");
        terminal.shows("arrows scroll");
        if by_signal {
            let killed = Command::new("kill").args(["-TERM", &terminal.program()]).status();
            assert!(killed.expect("kill runs").success());
        } else {
            let stdin = terminal.script.stdin.as_mut().expect("it is piped");
            stdin.write_all(b"q").expect("it listens");
        }
        terminal.shows("\u{1b}[?1049l");
    }
}
