//! Block storage from outside: the configs as they are, two processes, kills, and disks that fail.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{
    PATIENCE, Running, config, free_address, node, own_host, report, spinwire, stderr,
};
use crate::killed::under_way;

/// A folder of a test on a disk, removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("storage-{name}"));
        fs::create_dir_all(&path).expect("the target folder takes folders");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.0);
        // A test that failed says why; nothing here may hide it.
        assert!(removed.is_ok() || std::thread::panicking(), "the folder is ours: {removed:?}");
    }
}

pub(crate) fn is_done(report: &Value, name: &str) {
    assert_eq!(report["ok"], true, "{report}");
    let node = node(report, name);
    assert!(node["verified_bytes"].as_u64().expect("a number") > 0, "{report}");
    assert!(node["messages_per_s"].as_f64().expect("a number") > 0.0, "{report}");
    assert!(node["latency_ns"]["p50"].as_u64().expect("a number") > 0, "{report}");
    assert_eq!(node["errors"], 0, "{report}");
}

/// As they stand, on every wire; the span is filled, worked on for a moment, and checked.
#[test]
fn the_configs_run() {
    for name in ["storage-memory.toml", "storage-file.toml"] {
        for wire in ["auto", "udp"] {
            let wire = format!("device.soft0.wire={wire}");
            let short = "node.load.duration=200ms";
            let output =
                spinwire(&["run", &config(name), "--json", "--set", &wire, "--set", short]);
            assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
            let report = report(&output);
            is_done(&report, "load");
            let span = if name == "storage-memory.toml" { 64 << 20 } else { 32 << 20 };
            let verified = node(&report, "load")["verified_bytes"].as_u64().expect("a number");
            assert!(verified >= span, "the check at the end reads everything: {report}");
        }
    }
}

/// A file of the config's own choice stays, with what was stored in it.
#[test]
fn a_file_with_a_name_stays() {
    let folder = Folder::new("named");
    let path = folder.0.join("blocks");
    let set = format!("node.target.path={}", path.display());
    let direct = "node.target.direct=require";
    let short = "node.load.duration=50ms";
    let config = config("storage-file.toml");
    let args = ["run", &config, "--json", "--set", &set, "--set", direct, "--set", short];
    for _ in 0..2 {
        let output = spinwire(&args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        is_done(&report(&output), "load");
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 64 << 20);
        // Every block begins with the seed and its own number.
        for number in [0, 1, 8191] {
            let at = number * 4096;
            assert_eq!(bytes[at..at + 8], 1_u64.to_le_bytes());
            assert_eq!(bytes[at + 8..at + 16], (number as u64).to_le_bytes());
        }
        assert!(bytes[32 << 20..].iter().all(|byte| *byte == 0), "beyond the span");
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

/// A target and a load in processes of their own, and a folder for both.
pub(crate) struct Pair {
    pub(crate) target: Running,
    pub(crate) load: Running,
    folder: Folder,
    /// Settings of the target.
    sets: Vec<String>,
}

/// Settings of a target that listens at `address`, in a store of the kind of the config.
fn settings(wire: &str, address: &str) -> Vec<String> {
    vec![format!("device.soft0.wire={wire}"), format!("node.target.listen={address}")]
}

fn target(sets: &[String], more: &[&str]) -> Running {
    let server = config("quickstart-server.toml");
    let mut args = vec!["run", &server, "--json"];
    args.extend(sets.iter().flat_map(|set| ["--set", set.as_str()]));
    Running::start(&[&args[..], more].concat())
}

/// A load of the target at `address`, with more keys and arguments; its config is in the folder.
fn load(wire: &str, address: &str, folder: &Folder, load: &str, more: &[&str]) -> Running {
    let text = format!(
        r#"
[memory]
size = "16MiB"
[device.soft0]
kind = "soft"
[[lcore]]
name = "lc0"
[[node]]
name = "load"
kind = "block-load"
lcore = "lc0"
device = "soft0"
peer = "{address}"
span = "256KiB"
workload = "mixed"
qps = 2
depth = 16
{load}
"#
    );
    let client = folder.0.join("load.toml");
    fs::write(&client, text).expect("the folder takes files");
    let (client, wire) = (client.display().to_string(), format!("device.soft0.wire={wire}"));
    Running::start(&[&["run", &client, "--json", "--set", &wire], more].concat())
}

impl Pair {
    /// `file`: the target keeps its blocks in a file of the folder. `load`: more keys of the load.
    fn start(name: &str, wire: &str, file: bool, load: &str) -> Self {
        Self::start_with(name, wire, file, load, &[])
    }

    /// The same, with more arguments of the load.
    pub(crate) fn start_with(
        name: &str,
        wire: &str,
        file: bool,
        load: &str,
        more: &[&str],
    ) -> Self {
        let folder = Folder::new(name);
        let address = free_address();
        let mut sets = settings(wire, &address);
        if file {
            let path = folder.0.join("blocks");
            let keys = ["backend=file", "size=32MiB", &format!("path={}", path.display())]
                .map(|key| format!("node.target.{key}"));
            sets.extend(keys);
        }
        let target = target(&sets, &[]);
        let load = self::load(wire, &address, &folder, load, more);
        Self { target, load, folder, sets }
    }

    /// Kills the target, and starts it again as it was.
    fn restart_target(&mut self) {
        self.target.kill_and_wait();
        self.start_target();
    }

    /// Starts the target again as it was.
    pub(crate) fn start_target(&mut self) {
        self.target = target(&self.sets, &[]);
    }

    fn path(&self) -> PathBuf {
        self.folder.0.join("blocks")
    }
}

#[test]
fn target_and_load_are_processes() {
    for (wire, file) in [("shm", true), ("udp", true), ("shm", false), ("udp", false)] {
        let pair = Pair::start(&format!("two-{wire}-{file}"), wire, file, "count = 3000");
        let output = pair.load.end();
        let made = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}, {file}: {made}");
        is_done(&made, "load");
        assert_eq!(node(&made, "load")["messages"], 3000);
        let output = pair.target.end();
        let served = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}, {file}: {served}");
        // What fills and what checks come on top.
        assert_eq!(node(&served, "target")["messages"], 3000 + 2 * 64);
    }
}

/// The load ends in bounded time, names who is gone, and leaves nothing but the file that it was given.
#[test]
fn a_killed_target_is_named_by_its_load() {
    for (wire, file) in [("shm", true), ("udp", true), ("shm", false)] {
        let name = format!("kill-{wire}-{file}");
        let mut pair = Pair::start(&name, wire, file, "duration = \"1h\"");
        under_way(&mut pair.load);
        let id = pair.target.id();
        pair.target.kill();
        let output = pair.load.end();
        assert_eq!(output.status.code(), Some(1));
        let verdict = &report(&output)["verdict"];
        assert_eq!((&verdict["code"], &verdict["owner"]), (&"peer-dead".into(), &"remote".into()));
        let summary = verdict["summary"].as_str().unwrap();
        let who = format!("`target` (process {id} at {}:", own_host());
        assert!(summary.starts_with(&who), "{summary}");
        let left = fs::read_dir(&pair.folder.0).unwrap().count();
        assert_eq!(left, 1 + usize::from(file), "the config, and the file");
        if file {
            // Nobody holds it any more.
            let set = format!("node.target.path={}", pair.folder.0.join("blocks").display());
            let args = ["run", &config("storage-file.toml"), "--json", "--set", &set];
            let output = spinwire(&[&args[..], &["--set", "node.load.duration=10ms"]].concat());
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_killed_load_is_named_by_its_target() {
    let mut pair = Pair::start("kill-load", "shm", true, "duration = \"1h\"");
    under_way(&mut pair.load);
    let id = pair.load.id();
    pair.load.kill();
    let output = pair.target.end();
    assert_eq!(output.status.code(), Some(1));
    let verdict = &report(&output)["verdict"];
    assert_eq!(verdict["code"], "peer-dead", "{verdict}");
    let summary = verdict["summary"].as_str().unwrap();
    assert!(summary.starts_with(&format!("`load` (process {id} at 127.0.0.1:")), "{summary}");
}

/// A load that is told to end drains and reports; what it has verified counts.
#[test]
fn a_load_that_is_told_to_end() {
    let runs = Folder::new("told-run");
    let run = runs.0.join("run").display().to_string();
    let more = ["--run-dir", &run];
    let mut pair = Pair::start_with("told", "shm", true, "duration = \"1h\"", &more);
    // A busy disk may take long until the store is filled, and nothing is read before.
    let status = runs.0.join("run/status.json");
    let deadline = Instant::now() + PATIENCE;
    let works = || {
        let status: Option<Value> = serde_json::from_slice(&fs::read(&status).ok()?).ok();
        Some(node(&status?, "load")["messages"].as_u64()? > 0)
    };
    while works() != Some(true) {
        assert!(Instant::now() < deadline, "the load does not work");
        std::thread::sleep(Duration::from_millis(20));
    }
    pair.load.signal("-INT");
    let output = pair.load.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    is_done(&report(&output), "load");
    assert_eq!(pair.target.end().status.code(), Some(0));
}

/// A load whose target is told to end finishes what is in flight, and says that not everything was asked.
#[test]
fn a_target_that_is_told_to_end_lets_its_load_finish() {
    for file in [false, true] {
        let mut pair = Pair::start("deserted", "shm", file, "duration = \"1h\"");
        under_way(&mut pair.load);
        pair.target.signal("-TERM");
        let output = pair.load.end();
        assert_eq!(output.status.code(), Some(1));
        let made = report(&output);
        assert_eq!(made["verdict"]["code"], "peer-not-ready", "{made}");
        let summary = made["verdict"]["summary"].as_str().unwrap();
        assert!(summary.contains("ended before everything was asked of it"), "{summary}");
        let output = pair.target.end();
        let served = report(&output);
        assert_eq!(output.status.code(), Some(0), "{served}");
        // What was answered there has come here.
        let (made, served) = (node(&made, "load"), node(&served, "target"));
        let filled = served["messages"].as_u64().unwrap() - made["messages"].as_u64().unwrap();
        assert_eq!(filled, 64, "{made} {served}");
    }
}

/// P24: a target that hangs, on a connection that would retry for ever, is given up: every request in flight is an error, and
/// what came before is counted.
#[test]
fn p24_a_target_that_hangs_is_given_up_by_its_load() {
    for wire in ["shm", "udp"] {
        let keys = "duration = \"1h\"\nverify = false\nreads = 100\nkeep_alive = \"500ms\"";
        let name = format!("hang-{wire}");
        let for_ever = ["--set", "node.load.timeout=0"];
        let mut pair = Pair::start_with(&name, wire, true, keys, &for_ever);
        under_way(&mut pair.load);
        pair.target.signal("-STOP");
        let output = pair.load.end();
        assert_eq!(output.status.code(), Some(1));
        let made = report(&output);
        let verdict = &made["verdict"];
        assert_eq!(
            (&verdict["code"], &verdict["owner"]),
            (&"responder-slow".into(), &"remote".into()),
            "{verdict}"
        );
        let summary = verdict["summary"].as_str().unwrap();
        assert!(
            summary.contains("answered nothing for") && summary.contains("keep-alive"),
            "{verdict}"
        );
        assert_eq!(verdict["knob"], "node.load.keep_alive");
        // Two queue pairs of 16 requests each.
        assert_eq!(node(&made, "load")["errors"], 32, "{made}");
        pair.target.signal("-CONT");
        let output = pair.target.end();
        assert_eq!(output.status.code(), Some(1), "its client gave up");
    }
}

/// P24: a target does not keep a client that hangs, and serves the next one.
#[test]
fn p24_a_load_that_hangs_is_given_up_by_its_target() {
    let keys = "duration = \"1h\"\nkeep_alive = \"300ms\"";
    let mut pair = Pair::start("hang-load", "shm", false, keys);
    under_way(&mut pair.load);
    pair.load.signal("-STOP");
    let output = pair.target.end();
    assert_eq!(output.status.code(), Some(1));
    let verdict = &report(&output)["verdict"];
    assert_eq!(verdict["code"], "peer-dead", "{verdict}");
    assert!(verdict["summary"].as_str().unwrap().contains("has said nothing for"), "{verdict}");
    pair.load.signal("-CONT");
    let output = pair.load.end();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report(&output)["ok"], false);
}

/// A load that comes back; it reads and writes, and checks all of it at the end of its `count` or when it is told to end.
pub(crate) const COMES_BACK: &str = "reconnect = \"always\"\nreconnect_timeout = \"50s\"";

/// A retry budget of 134 ms, which the environment of the tests has longer.
const SHORT: [&str; 2] = ["--set", "node.load.timeout=12"];

pub(crate) fn recoveries(load: &Value) -> u64 {
    load["recoveries"]["count"].as_u64().expect("a count")
}

/// P24: a target that is killed and started again on its file has its load back; every block is as it was written last.
#[test]
fn p24_a_killed_target_that_is_started_again_has_its_load_back() {
    for wire in ["shm", "udp"] {
        let keys = format!("count = 40000\n{COMES_BACK}");
        let mut pair = Pair::start(&format!("again-{wire}"), wire, true, &keys);
        under_way(&mut pair.load);
        pair.restart_target();
        let output = pair.load.end();
        let made = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {made}{}", stderr(&output));
        is_done(&made, "load");
        let load = node(&made, "load");
        assert_eq!((&load["messages"], recoveries(load)), (&40_000.into(), 2), "{load}");
        let output = pair.target.end();
        assert_eq!(output.status.code(), Some(0), "{}", report(&output));
    }
}

/// P24: a target that dies while its load connects is waited for as one that does not listen yet.
#[test]
fn p24_a_target_that_dies_while_its_load_connects() {
    let (folder, address) = (Folder::new("dies"), free_address());
    let first = TcpListener::bind(&address).expect("the address is free");
    let load = load("shm", &address, &folder, &format!("count = 100\n{COMES_BACK}"), &[]);
    // Both queue pairs are dialled; each is answered by nobody, and loses its channel.
    let calls = [first.accept(), first.accept()];
    drop((calls, first));
    let target = target(&settings("shm", &address), &[]);
    for end in [load, target] {
        let output = end.end();
        assert_eq!(output.status.code(), Some(0), "{}{}", report(&output), stderr(&output));
    }
}

/// P24: a target that stood still for longer than the retry budget has its load back: over the same connection, which breaks
/// where something was on its way to the target, and else only waits.
#[test]
fn p24_a_target_that_stood_still_has_its_load_back() {
    // Enough to be at work for a while, each at its own speed.
    for (wire, file, count) in
        [("shm", true, 40_000), ("udp", true, 40_000), ("shm", false, 1_000_000)]
    {
        let keys = format!("count = {count}\n{COMES_BACK}");
        let name = format!("still-{wire}-{file}");
        let mut pair = Pair::start_with(&name, wire, file, &keys, &SHORT);
        under_way(&mut pair.load);
        pair.target.signal("-STOP");
        std::thread::sleep(Duration::from_secs(2));
        pair.target.signal("-CONT");
        let output = pair.load.end();
        let made = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {made}{}", stderr(&output));
        is_done(&made, "load");
        assert_eq!(node(&made, "load")["messages"], count);
        let output = pair.target.end();
        assert_eq!(output.status.code(), Some(0), "{}", report(&output));
    }
}

/// P24, S2-19: a wire that loses everything for longer than the retry budget: both connections break, and come back to the
/// same store, whose requests from before are not answered twice.
#[test]
fn p24_a_wire_that_heals_has_its_load_back() {
    for file in [true, false] {
        let keys = format!("count = 20000\n{COMES_BACK}");
        let more = [&SHORT[..], &["--fault", "drop all after 9000 for 400ms"]].concat();
        let pair = Pair::start_with(&format!("heals-{file}"), "udp", file, &keys, &more);
        let output = pair.load.end();
        let made = report(&output);
        assert_eq!(output.status.code(), Some(0), "{file}: {made}{}", stderr(&output));
        is_done(&made, "load");
        let load = node(&made, "load");
        assert_eq!(load["messages"], 20_000);
        assert!(recoveries(load) >= 1, "{load}");
        let output = pair.target.end();
        let served = report(&output);
        assert_eq!(output.status.code(), Some(0), "{served}");
        assert!(recoveries(node(&served, "target")) >= 1, "{served}");
    }
}

/// P24: a store in memory that was started again is empty: a load that reads what it wrote before says so.
#[test]
fn p24_a_store_that_forgot_is_found_out() {
    let keys = format!("duration = \"1h\"\nreads = 100\n{COMES_BACK}");
    let mut pair = Pair::start("forgot", "shm", false, &keys);
    under_way(&mut pair.load);
    pair.restart_target();
    let output = pair.load.end();
    assert_eq!(output.status.code(), Some(1));
    let verdict = &report(&output)["verdict"];
    assert_eq!((&verdict["code"], &verdict["owner"]), (&"data-mismatch".into(), &"remote".into()));
    let summary = verdict["summary"].as_str().unwrap();
    assert!(summary.contains("was started again, and has lost what it stored"), "{verdict}");
    assert_eq!(verdict["knob"], "node.target.backend", "{verdict}");
}

/// P24: a target whose disk hangs says so, and its load has it from the target.
#[test]
fn p24_a_disk_that_hangs_is_named_by_both_ends() {
    for wire in ["shm", "udp"] {
        let name = format!("disk-{wire}");
        let (folder, address) = (Folder::new(&name), free_address());
        let path = folder.0.join("blocks");
        let set = |key: &str| format!("node.target.{key}");
        let mut sets = settings(wire, &address);
        sets.extend(["backend=file", "size=1MiB", "store_timeout=300ms"].map(set));
        sets.push(set(&format!("path={}", path.display())));
        let target = target(&sets, &["--fault", "hang target after 200"]);
        let load = load(wire, &address, &folder, "duration = \"1h\"", &[]);
        for (end, owner) in [(load, "remote"), (target, "local")] {
            let output = end.end();
            assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
            let verdict = report(&output)["verdict"].clone();
            assert_eq!(
                (&verdict["code"], &verdict["owner"]),
                (&"store-stall".into(), &owner.into()),
                "{verdict}"
            );
            let disk = format!("the store of `target`, `{}`, has not", path.display());
            assert!(verdict["summary"].as_str().unwrap().starts_with(&disk), "{verdict}");
        }
    }
}

/// P24: keep-alives have room of their own: a store that answers nothing for many times their interval, with as many requests
/// before it as there can be, never causes a reset of the connection. The load ends by the requests' own deadline.
#[test]
fn p24_a_blocked_store_never_causes_a_reset_of_the_connection() {
    for (wire, file) in [("shm", true), ("udp", true), ("shm", false), ("udp", false)] {
        let name = format!("blocked-{wire}-{file}");
        let (folder, address) = (Folder::new(&name), free_address());
        let set = |key: &str| format!("node.target.{key}");
        let mut sets = settings(wire, &address);
        if file {
            sets.extend(["backend=file", "size=1MiB", "store_timeout=5s"].map(set));
        }
        let target = target(&sets, &["--fault", "hang target after 200"]);
        let keys = format!(
            "duration = \"1h\"\nkeep_alive = \"300ms\"\nrequest_timeout = \"1500ms\"\n{COMES_BACK}"
        );
        let run = folder.0.join("run").display().to_string();
        let output = load(wire, &address, &folder, &keys, &["--run-dir", &run]).end();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let made = report(&output);
        let verdict = &made["verdict"];
        assert_eq!(
            (&verdict["code"], &verdict["owner"]),
            (&"store-stall".into(), &"remote".into()),
            "{verdict}"
        );
        let load = node(&made, "load");
        assert_eq!((&load["errors"], recoveries(load)), (&32.into(), 0), "{load}");
        // Each of the two queue pairs went its way up, and nowhere else before it was given up.
        let args = ["journal", &run, "--json"];
        let journal = String::from_utf8(spinwire(&args).stdout).expect("text");
        let to = |line: &str| serde_json::from_str::<Value>(line).ok()?.get("to").cloned();
        let steps: Vec<Value> = journal.lines().filter_map(to).collect();
        let count = |state: &str| steps.iter().filter(|to| **to == *state).count();
        assert_eq!((count("RTS"), count("SQE")), (2, 0), "{journal}");
        let resets = steps.iter().skip_while(|to| **to != "RTS").filter(|to| **to == "RESET");
        assert_eq!(resets.count(), 0, "{journal}");
        // Memory has no limit of its own, since it never hangs by itself.
        if file {
            assert_eq!(target.end().status.code(), Some(1), "its client gave up");
        }
    }
}

/// P24: a client with nothing to ask for is not taken for dead: it says that it is there.
#[test]
fn p24_an_idle_client_is_kept() {
    let address = free_address();
    let folder = Folder::new("idle");
    let client = folder.0.join("idle.toml");
    let text = format!(
        r#"
[memory]
size = "16MiB"
[device.soft0]
kind = "soft"
[[lcore]]
name = "lc0"
[[node]]
name = "source"
kind = "generator"
lcore = "lc0"
block = "4KiB"
count = 4
rate = 2
to = "client"
[[node]]
name = "client"
kind = "block-client"
lcore = "lc0"
device = "soft0"
peer = "{address}"
keep_alive = "100ms"
"#
    );
    fs::write(&client, text).expect("the folder takes files");
    let listen = format!("node.target.listen={address}");
    let server = config("quickstart-server.toml");
    let target = Running::start(&["run", &server, "--json", "--set", &listen]);
    let output = spinwire(&["run", &client.display().to_string(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(node(&report(&output), "client")["messages"], 4);
    let output = target.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// P24: both ends are told to end at once: each finds the other leaving, and neither makes anything of it.
#[test]
fn p24_both_ends_that_leave_at_once() {
    for wire in ["shm", "udp"] {
        let mut pair = Pair::start(&format!("both-{wire}"), wire, true, "duration = \"1h\"");
        under_way(&mut pair.load);
        let pids = [pair.target.id(), pair.load.id()].map(|id| id.to_string());
        let told = Command::new("kill").arg("-INT").args(pids).status();
        assert!(told.expect("kill runs").success());
        for end in [pair.load, pair.target] {
            let output = end.end();
            assert_eq!(output.status.code(), Some(0), "{}", report(&output));
            let text = stderr(&output);
            assert!(!text.contains("ERROR") && !text.contains("WARN"), "{text}");
        }
    }
}

/// The file is cut while it is worked on: the request fails, and both ends say so.
#[test]
fn a_file_that_somebody_cuts() {
    let mut pair = Pair::start("cut", "shm", true, "duration = \"1h\"\nreads = 100");
    under_way(&mut pair.load);
    fs::File::options().write(true).open(pair.path()).unwrap().set_len(4096).unwrap();
    let output = pair.load.end();
    assert_eq!(output.status.code(), Some(1));
    let verdict = &report(&output)["verdict"];
    assert_eq!(verdict["code"], "remote-operation", "{verdict}");
    assert!(verdict["evidence"].to_string().contains("somebody cut the file"), "{verdict}");
    let output = pair.target.end();
    let served = report(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(node(&served, "target")["errors"].as_u64().expect("a number") > 0, "{served}");
}

/// A disk of 4 MiB under a file of 32 MiB with holes: what finds no room fails, and is called so.
#[test]
fn a_disk_that_is_full() {
    let folder = Folder::new("full");
    let disk = folder.0.display().to_string();
    let script =
        "mount -t tmpfs -o size=4m none \"$0\" && truncate -s 64m \"$0/blocks\" && exec \"$@\"";
    let binary = env!("CARGO_BIN_EXE_spinwire");
    let path = format!("node.target.path={disk}/blocks");
    let config = config("storage-file.toml");
    let run = [binary, "run", &config, "--json", "--set", &path];
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, &disk]).args(run);
    command.env("XDG_STATE_HOME", &folder.0);
    let output = command.output().expect("util-linux is there");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let verdict = &report(&output)["verdict"];
    assert_eq!(verdict["code"], "remote-operation", "{verdict}");
    let summary = verdict["summary"].as_str().unwrap();
    assert!(summary.contains("found no room in the store of `target`"), "{summary}");
    assert!(verdict["evidence"].to_string().contains("No space left on device"), "{verdict}");
}

/// Two targets in one file would spoil each other's blocks.
#[test]
fn a_file_that_another_target_has() {
    let mut pair = Pair::start("busy", "shm", true, "duration = \"1h\"");
    under_way(&mut pair.load);
    let set = format!("node.target.path={}", pair.path().display());
    let output = spinwire(&["run", &config("storage-file.toml"), "--json", "--set", &set]);
    assert_eq!(output.status.code(), Some(1));
    let verdict = &report(&output)["verdict"];
    assert!(
        verdict["summary"].as_str().unwrap().contains("in use by another process"),
        "{verdict}"
    );
    assert_eq!(verdict["knob"], "node.target.path");
    pair.load.signal("-INT");
    let output = pair.load.end();
    assert_eq!(output.status.code(), Some(0), "{}{}", report(&output), stderr(&output));
}
