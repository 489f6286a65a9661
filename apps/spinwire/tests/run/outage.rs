//! P24 with its own numbers: 128 reads are in flight when the target goes, and it is back after three seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{PATIENCE, node, report, stderr};
use crate::killed::under_way;
use crate::storage::{COMES_BACK, Pair, is_done, recoveries};

/// Reads in flight.
const READS: u64 = 128;
/// Reads alone, as many as that over one connection. Keep-alives notice no outage before it is over.
const KEYS: &str = "reads = 100\nkeep_alive = \"30s\"";

/// A load with so many reads in flight, and its run directory.
fn start(name: &str, wire: &str, keys: &str) -> (Pair, PathBuf) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("outage-{name}-{wire}"));
    drop(fs::remove_dir_all(&dir));
    let path = dir.display().to_string();
    let depth = format!("node.load.depth={READS}");
    // A block has one request in flight: there are many more of them.
    let span = "node.load.span=4MiB";
    let more = ["--run-dir", &path, "--set", "node.load.qps=1", "--set", &depth, "--set", span];
    let pair = Pair::start_with(&format!("{name}-{wire}"), wire, true, keys, &more);
    (pair, dir)
}

/// Waits until the load has asked for all it may: between two of its states it has turned, and nothing was answered.
fn until_all_wait(dir: &Path) {
    let deadline = Instant::now() + PATIENCE;
    let mut before: Option<[u64; 2]> = None;
    loop {
        let text = fs::read_to_string(dir.join("status.json")).expect("the run has a state");
        let status: Value = serde_json::from_str(&text).expect("readers see a whole file");
        let [done, turns] = [&status["nodes"][0]["messages"], &status["lcores"][0]["polls"]];
        let now = [done, turns].map(|count| count.as_u64().expect("a count"));
        match before {
            Some([done, turns]) if done == now[0] && turns < now[1] => return,
            Some([done, _]) if done == now[0] => {}
            _ => before = Some(now),
        }
        assert!(Instant::now() < deadline, "reads go on while the target is stopped: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// P24, S3-40: every one of 128 reads that are in flight when the target dies ends once, as an error of its own kind.
#[test]
fn p24_all_reads_in_flight_end_when_the_target_dies() {
    for wire in ["shm", "udp"] {
        let (mut pair, dir) = start("ends", wire, &format!("duration = \"1h\"\n{KEYS}"));
        under_way(&mut pair.load);
        pair.target.signal("-STOP");
        until_all_wait(&dir);
        let died = Instant::now();
        pair.target.kill_and_wait();
        let output = pair.load.end();
        // The death of a process is no silence: no retry budget passes.
        assert!(died.elapsed() < PATIENCE, "bounded");
        let made = report(&output);
        assert_eq!(output.status.code(), Some(1), "{wire}: {made}");
        assert_eq!(made["verdict"]["code"], "peer-dead", "{}", made["verdict"]);
        assert_eq!(node(&made, "load")["errors"], READS, "{made}");
        fs::remove_dir_all(dir).expect("the directory is ours");
    }
}

/// P24, S2-19: the target is back on its file after three seconds. The load goes on by itself, with the reads that were in
/// flight, and every block is as it was written.
#[test]
fn p24_reads_go_on_after_three_seconds_without_the_target() {
    const COUNT: u64 = 60_000;
    for wire in ["shm", "udp"] {
        let keys = format!("count = {COUNT}\n{COMES_BACK}\n{KEYS}");
        let (mut pair, dir) = start("back", wire, &keys);
        under_way(&mut pair.load);
        pair.target.signal("-STOP");
        until_all_wait(&dir);
        pair.target.kill_and_wait();
        std::thread::sleep(Duration::from_secs(3));
        pair.start_target();
        let output = pair.load.end();
        let made = report(&output);
        assert_eq!(output.status.code(), Some(0), "{wire}: {made}{}", stderr(&output));
        is_done(&made, "load");
        let load = node(&made, "load");
        assert_eq!((&load["messages"], recoveries(load)), (&COUNT.into(), 1), "{load}");
        assert!(load["recoveries"]["last_ms"].as_f64() >= Some(3000.0), "{load}");
        let output = pair.target.end();
        assert_eq!(output.status.code(), Some(0), "{}", report(&output));
        fs::remove_dir_all(dir).expect("the directory is ours");
    }
}
