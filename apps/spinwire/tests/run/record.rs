//! Runs on record, from outside: pipelines and measurements, whole, failed, cut and killed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::bench::{Input, Running, config, free_address, node, report, spinwire, stderr};

const WIRES: [&str; 2] = ["device.soft0.wire=shm", "device.soft0.wire=udp"];

/// A folder of a test, emptied.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("record-{name}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("the folder of an earlier test can go");
    }
    fs::create_dir_all(&folder).expect("there is room for a folder");
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in words")
}

/// What a replay says, and how it ends.
fn replay(record: &Path) -> (Option<i32>, Value) {
    let output = spinwire(&["lab", "replay", text(record), "--json"]);
    (output.status.code(), report(&output))
}

/// A replay that comes out equal; what it says.
fn equal(record: &Path) -> Value {
    let (code, report) = replay(record);
    assert_eq!((code, &report["ok"]), (Some(0), &true.into()), "{report}");
    report
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// B4: a pipeline with both ends in one process, over shared memory and over packets: each lcore's engine does
/// the same again. A byte of a frame that is altered in the file is found, and its input is named.
#[test]
fn b4_a_pipeline_replays_exactly() {
    let (folder, input) = (folder("quickstart"), Input::new("record", 300_000));
    for (wire, is_packets) in [(WIRES[0], false), (WIRES[1], true)] {
        let record = folder.join("run.rec");
        let quickstart = config("quickstart.toml");
        let args = ["record", &quickstart, "--out", text(&record), "--set", wire];
        let output = spinwire(&[&args[..], &["--set", &input.set(), "--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(node(&report(&output), "client")["verified_bytes"], input.len);
        let replayed = equal(&record);
        assert_eq!(replayed["ending"], Value::Null);
        let engines = replayed["engines"].as_array().unwrap();
        assert_eq!(engines.len(), 2, "an engine for each lcore");
        for engine in engines {
            assert!(engine["ended"] == true && number(&engine["outputs"]) > 20, "{engine}");
            assert_eq!(number(&engine["frames"]["in"]) > 50, is_packets, "{engine}");
            assert!(number(&engine["statuses"]["0"]) > 5, "{engine}");
        }
        let bytes = fs::read(&record).unwrap();
        assert_eq!(bytes.len() > 4 * 300_000, is_packets, "packets are kept with their bytes");
        let cut = folder.join("cut-off.rec");
        fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
        let (code, report) = replay(&cut);
        assert_eq!(
            (code, &report["ok"]),
            (Some(1), &Value::from(false)),
            "half is no proof: {report}"
        );
        if is_packets {
            // A byte that a frame carries: one of a length would end the reading earlier.
            let carried = fs::read(&input.path).unwrap();
            let carried = &carried[carried.len() / 2..][..32];
            let at = bytes.windows(32).position(|bytes| bytes == carried).expect("it was sent");
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            fs::write(folder.join("altered.rec"), altered).unwrap();
            let (code, report) = replay(&folder.join("altered.rec"));
            assert_eq!(code, Some(1), "{report}");
            let damaged = number(&report["damaged_at"]);
            assert!(damaged > 0 && damaged < at as u64, "{report}");
            let engines = report["engines"].as_array().unwrap();
            let found = engines.iter().find(|engine| engine["equal"] == false).unwrap();
            let difference = &found["difference"];
            assert!(difference["at_s"].as_f64() > Some(0.0), "{difference}");
            let words = ["input", "recorded", "now"].map(|key| difference[key].as_str().unwrap());
            assert!(words[1] != words[2] && !words[0].is_empty(), "{difference}");
            let output = spinwire(&["lab", "replay", text(&folder.join("altered.rec"))]);
            let told = String::from_utf8(output.stdout).unwrap();
            assert!(told.contains("\n  input ") && told.contains(" differs: "), "{told}");
            let says = format!("the record is damaged at byte {damaged}: the checksum");
            assert!(told.contains(&says), "{told}");
        }
    }
}

/// Two processes have a record each.
#[test]
fn b4_two_processes_replay_exactly() {
    let (folder, input) = (folder("two"), Input::new("record-two", 200_000));
    for wire in ["device.soft0.wire=auto", WIRES[1]] {
        let address = free_address();
        let (server, client) = (config("quickstart-server.toml"), config("quickstart-client.toml"));
        let (listen, peer) =
            (format!("node.target.listen={address}"), format!("node.client.peer={address}"));
        let record = folder.join("x.rec");
        let args = ["run", &server, &client, "--record", text(&record), "--set", wire, "--json"];
        let sets = ["--set", &listen, "--set", &peer, "--set", &input.set()];
        let output = spinwire(&[&args[..], &sets[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        for part in ["x-0.rec", "x-1.rec"] {
            let replayed = equal(&folder.join(part));
            assert_eq!(replayed["engines"].as_array().unwrap().len(), 1);
            assert_eq!(replayed["engines"][0]["ended"], true);
            let notes = replayed["notes"].to_string();
            assert!(notes.contains("quickstart-") && notes.contains("verdict: ok"), "{notes}");
        }
    }
}

/// A run that fails fails again, with the same statuses; the verdict stands beside them.
#[test]
fn a_failed_run_replays_to_the_same_statuses() {
    let folder = folder("failed");
    let record = folder.join("f.rec");
    let line = "perf write-bw --processes 2 --wire udp -n 64 -s 4096 --qp-timeout 12 --json";
    let words: Vec<&str> = line.split(' ').collect();
    let more = ["--fault", "drop acks after 10", "--record", text(&record)];
    let output = spinwire(&[&words[..], &more[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let verdict = report(&output)["verdict"]["code"].as_str().unwrap().to_owned();
    assert_eq!(verdict, "ack-path-lost");
    let client = equal(&folder.join("f-0.rec"));
    let statuses = &client["engines"][0]["statuses"];
    assert_eq!(number(&statuses["12"]), 1, "{client}");
    assert!(number(&statuses["0"]) > 0, "{client}");
    assert!(client["notes"][1].as_str().unwrap().starts_with("verdict: ack-path-lost"));
    let server = equal(&folder.join("f-1.rec"));
    assert!(number(&server["engines"][0]["frames"]["in"]) > 10, "{server}");
}

/// A record that becomes too long is cut and says so; the run ends as it would have.
#[test]
fn a_record_that_is_cut_is_told_and_the_run_goes_on() {
    let folder = folder("cut");
    let record = folder.join("c.rec");
    let line = "perf send-bw --processes 1 -n 3000 -s 64 --record-limit 200KiB --json --record";
    let words: Vec<&str> = line.split(' ').collect();
    let output = spinwire(&[&words[..], &[text(&record)]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("was cut after "), "{}", stderr(&output));
    assert!(fs::metadata(&record).unwrap().len() <= 200 << 10);
    let replayed = equal(&record);
    let ending = replayed["ending"].as_str().unwrap();
    assert!(ending.contains("limit of 204800 bytes"), "{ending}");
}

/// `kill -9` leaves what was written until then.
#[test]
fn a_killed_run_leaves_a_record() {
    let (folder, input) = (folder("killed"), Input::new("record-killed", 100_000));
    let record = folder.join("k.rec");
    let repeat = "node.source.repeat=4000000000";
    let quickstart = config("quickstart.toml");
    let args = ["record", &quickstart, "--out", text(&record), "--record-limit", "64MiB"];
    let sets = ["--set", WIRES[0], "--set", repeat, "--set", &input.set()];
    let mut running = Running::start(&[&args[..], &sets[..]].concat());
    let deadline = std::time::Instant::now() + crate::bench::PATIENCE;
    while fs::metadata(&record).map_or(0, |file| file.len()) < 200_000 {
        assert!(std::time::Instant::now() < deadline, "nothing is recorded");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    running.kill();
    drop(running);
    let replayed = equal(&record);
    assert!(replayed["ending"].as_str().unwrap().contains("its process was killed"), "{replayed}");
    assert!(number(&replayed["engines"][0]["inputs"]) > 100, "{replayed}");
    assert_eq!(replayed["engines"][0]["ended"], false);
}

/// What is asked for makes sense, or is refused by name before anything runs.
#[test]
fn what_cannot_be_recorded_is_refused() {
    let folder = folder("refused");
    let quickstart = config("quickstart.toml");
    let refused = |args: &[&str], words: &str| {
        let output = spinwire(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    };
    let nowhere = folder.join("nowhere/x.rec");
    refused(&["record", &quickstart, "--out", text(&nowhere)], "cannot create the record ");
    refused(&["run", &quickstart, "--record", &quickstart], "the record ");
    refused(&["record", &quickstart, "--seed", "7"], "--seed is for scenarios");
    let scenario = config("lab/no-receives.toml");
    refused(&["record", &scenario], "a scenario has one record");
    let other = folder.join("other.rec");
    fs::write(&other, b"SPINREC\n but nothing else").unwrap();
    refused(&["lab", "replay", text(&other)], "no record of a run: it is too short");
    let mut old = [&b"SPINREC\n"[..], &[0; 504]].concat();
    old[8] = 99;
    fs::write(&other, old).unwrap();
    refused(&["lab", "replay", text(&other)], "another version of the format");
}
