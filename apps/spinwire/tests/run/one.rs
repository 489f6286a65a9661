//! One process.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::bench::{
    Input, Running, config, free_address, node, report, spinwire, stderr, until_verified,
};

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn files_of_every_size() {
    for len in [0, 1, 4095, 65_536, 1_048_589] {
        let input = Input::new("one", len);
        let output =
            spinwire(&["run", &config("quickstart.toml"), "--set", &input.set(), "--json"]);
        let report = report(&output);
        assert_eq!(output.status.code(), Some(0), "{len}: {report}");
        assert_eq!(report["ok"], true);
        assert_eq!(node(&report, "client")["verified_bytes"], len);
        let text = stderr(&output);
        assert!(!text.contains("revoked"), "memory is given back without waiting: {text}");
    }
}

/// S3-08: what is applied of the retry knobs is logged once, at INFO, in one line with service level and traffic class.
#[test]
fn s3_08_what_is_applied_is_logged_once() {
    let input = Input::new("applied", 1000);
    let set = input.set();
    let args =
        ["run", &config("quickstart.toml"), "--set", &set, "--set", "node.client.timeout=16"];
    let log = stderr(&spinwire(&args));
    let lines: Vec<_> = log.lines().filter(|line| line.contains("`client`: sl ")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("INFO"), "{}", lines[0]);
    let values = "sl 0, traffic_class 0, timeout 16 (--set node.client.timeout=16), retry_cnt 7 (default), rnr_retry 7 \
                  (default), min_rnr_timer 12 (default); retry budget 2147.5 ms";
    assert!(lines[0].contains(values), "{}", lines[0]);
}

/// S3-12: 20, 5 and 4 are what is applied, and no byte is another for it.
#[test]
fn s3_12_overrides_change_no_byte() {
    let input = Input::new("overridden", 300_000);
    let set = input.set();
    let args = ["run", &config("quickstart.toml"), "--json", "--set", &set];
    let wire = ["--set", "device.soft0.wire=udp", "--fault", "drop all every 97"];
    let knobs =
        ["timeout=20", "retry_cnt=5", "rnr_retry=4"].map(|knob| format!("node.client.{knob}"));
    let knobs: Vec<&str> = knobs.iter().flat_map(|knob| ["--set", knob.as_str()]).collect();
    let output = spinwire(&[&args[..], &wire, &knobs].concat());
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let [timeout, retry_cnt, rnr_retry] = ["timeout 20 (", "retry_cnt 5 (", "rnr_retry 4 ("];
    let applied =
        |line: &&str| [timeout, retry_cnt, rnr_retry].iter().all(|value| line.contains(value));
    assert_eq!(log.lines().filter(applied).count(), 1, "{log}");
    assert_eq!(node(&report(&output), "client")["verified_bytes"], input.len);
}

/// The keys are a contract: they may grow, and stay.
#[test]
fn the_report_has_the_keys_of_the_contract() {
    let input = Input::new("keys", 10_000);
    let output = spinwire(&["run", &config("quickstart.toml"), "--set", &input.set(), "--json"]);
    let report = report(&output);
    let expected = [
        "ok",
        "interrupted",
        "elapsed_s",
        "nodes",
        "verdict",
        "lcores",
        "memory",
        "evidence",
        "faults",
        "packets_by",
    ];
    assert_eq!(keys(&report), expected.into());
    let expected = [
        "name",
        "kind",
        "messages",
        "bytes",
        "verified_bytes",
        "bytes_per_s",
        "messages_per_s",
        "errors",
        "latency_ns",
        "path",
        "counters",
        "recoveries",
        "gids",
    ];
    let client = node(&report, "client");
    assert_eq!(keys(client), expected.into());
    assert_eq!(keys(&client["latency_ns"]), ["min", "p50", "p99", "p999", "max"].into());
    assert_eq!(keys(&client["counters"]), ["local", "remote"].into());
    assert_eq!(keys(&client["counters"]["remote"]), ["before", "after", "delta"].into());
    assert!(client["latency_ns"]["p50"].as_u64().unwrap() > 0);
    let expected = ["code", "owner", "summary", "evidence", "knob"];
    assert_eq!(keys(&report["verdict"]), expected.into());
    assert_eq!(report["verdict"]["code"], "ok");
    assert_eq!(report["lcores"].as_array().unwrap().len(), 2);
    assert!(report["memory"][0]["pages"].as_str().unwrap().contains("pages"), "{report}");
}

/// Without arguments: the built-in quickstart sends this very binary, and the table says how much of it was verified.
#[test]
fn without_arguments_the_executable_is_sent() {
    let output = spinwire(&["run"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    let len = fs::metadata(env!("CARGO_BIN_EXE_spinwire")).unwrap().len();
    assert!(text.contains(&format!("{len} B")), "{text}");
    for word in ["busy", "p99.9", "memory of lc0", "verdict: ok"] {
        assert!(text.contains(word), "no {word}: {text}");
    }
}

#[test]
fn a_flipped_byte_is_named_and_fails_the_run() {
    let input = Input::new("flip", 100_000);
    for offset in ["0", "12345", "99999"] {
        let fault = format!("flip target {offset}");
        let set = input.set();
        let args = ["run", &config("quickstart.toml"), "--set", &set, "--fault", &fault];
        let output = spinwire(&args);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("verdict: data-mismatch"), "{text}");
        assert!(text.contains(&format!("byte {offset} differs")), "{text}");
    }
}

#[test]
fn spoiled_frames_are_dropped_and_sent_again() {
    let input = Input::new("spoiled", 300_000);
    let (config, set) = (config("quickstart.toml"), input.set());
    let udp = "device.soft0.wire=udp";
    for fault in ["corrupt all every 50", "drop all every 70", "dup all every 30"] {
        let args = ["run", &config, "--set", &set, "--set", udp, "--fault", fault, "--json"];
        let output = spinwire(&args);
        let report = report(&output);
        assert_eq!(output.status.code(), Some(0), "{fault}: {report}");
        assert_eq!(node(&report, "client")["verified_bytes"], input.len);
        assert_eq!(node(&report, "client")["path"], "packet");
    }
}

#[test]
fn faults_that_make_no_sense_are_bad_usage() {
    for (fault, complaint) in [
        ("explode", "`explode` is no fault"),
        ("flip target", "write `flip NODE OFFSET`"),
        ("flip taget 1", "did you mean `target`?"),
        ("flip source 1", "`source` stores nothing that could be flipped"),
        ("drop all to taget", "did you mean `target`?"),
    ] {
        let output = spinwire(&["run", &config("quickstart.toml"), "--fault", fault]);
        assert_eq!(output.status.code(), Some(2), "{fault}");
        assert!(stderr(&output).contains(complaint), "{fault}: {}", stderr(&output));
        assert_eq!(output.stdout, b"");
    }
}

#[test]
fn an_unreadable_file_is_named() {
    let path = "node.source.path=/nonexistent/file";
    let output = spinwire(&["run", &config("quickstart.toml"), "--set", path]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("cannot read `/nonexistent/file`: No such file"), "{text}");
}

#[test]
fn a_file_larger_than_the_memory_of_the_target() {
    let input = Input::new("large", 3_000_000);
    let (config, set) = (config("quickstart.toml"), input.set());
    let output = spinwire(&["run", &config, "--set", &set, "--set", "memory.size=8MiB", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    assert_eq!(report["verdict"]["owner"], "config");
    let summary = report["verdict"]["summary"].as_str().unwrap();
    assert!(summary.contains("raise memory.size"), "{summary}");
}

#[test]
fn impossible_memory_does_not_fit_this_machine() {
    let output =
        spinwire(&["run", "--set", "memory.size=900GiB", "--set", "memory.hugepages=require"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("hugepages"), "{}", stderr(&output));
}

/// `--duration` and Ctrl-C drain, and still report.
#[test]
fn a_run_that_is_told_to_end_reports() {
    let input = Input::new("told", 1_000_000);
    let (config, set) = (config("quickstart.toml"), input.set());
    let for_ever =
        ["run", &config, "--set", &set, "--set", "node.source.repeat=4000000000", "--json"];
    // A machine may be too busy for the nodes to connect in so little time: then the run says so, and a longer one does not.
    let limited = |duration: &str| spinwire(&[&for_ever[..], &["--duration", duration]].concat());
    let unconnected = |output: &Output| report(output)["verdict"]["code"] == "peer-not-ready";
    let mut outputs = ["200ms", "2s", "20s"].into_iter().map(limited);
    let output = outputs.find(|output| !unconnected(output)).expect("20 s are enough");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let ended = report(&output);
    assert!(node(&ended, "client")["verified_bytes"].as_u64().unwrap() > 0);

    let counters = free_address();
    let listen = format!("observe.listen={counters}");
    let mut running = Running::start(&[&for_ever[..], &["--set", &listen]].concat());
    until_verified(&counters);
    running.signal("-INT");
    let output = running.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let ended = report(&output);
    assert_eq!(node(&ended, "client")["verified_bytes"], node(&ended, "client")["bytes"]);
}

/// Nodes of one process that are ended while they connect have not died.
#[test]
fn a_run_that_is_told_to_end_at_once() {
    let input = Input::new("at-once", 1_000_000);
    let (config, set) = (config("quickstart.toml"), input.set());
    for _ in 0..5 {
        let args = ["run", &config, "--set", &set, "--set", "node.source.repeat=4000000000"];
        let output = spinwire(&[&args[..], &["--json", "--duration", "1us"]].concat());
        let ended = report(&output);
        if output.status.code() == Some(0) {
            assert_eq!(node(&ended, "client")["verified_bytes"], node(&ended, "client")["bytes"]);
        } else {
            assert_eq!(ended["verdict"]["code"], "peer-not-ready", "{ended}");
        }
    }
}

#[test]
fn the_run_directory_keeps_report_and_plan() {
    let input = Input::new("kept", 1000);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-dir");
    let (config, set, dir_text) =
        (config("quickstart.toml"), input.set(), dir.display().to_string());
    let output = spinwire(&["run", &config, "--set", &set, "--run-dir", &dir_text]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let read = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(dir.join(name)).unwrap()).unwrap()
    };
    assert_eq!(node(&read("report.json"), "client")["verified_bytes"], 1000);
    assert_eq!(read("plan.json")["nodes"][0]["name"], "target");
    fs::remove_dir_all(&dir).unwrap();

    let output = spinwire(&["run", &config, "--set", &set, "--run-dir", "/proc/none"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/proc/none"), "{}", stderr(&output));
}

/// The usual run directory is a convenience: without it the run goes on, with a warning.
#[test]
fn no_home_is_only_a_warning() {
    let input = Input::new("homeless", 1000);
    let mut command =
        crate::bench::command(&["run", &config("quickstart.toml"), "--set", &input.set()]);
    let output = command.env("XDG_STATE_HOME", "/proc/none").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("no run directory: cannot make /proc/none"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_capture_that_cannot_be_written_fails_the_run() {
    let input = Input::new("full", 300_000);
    let (config, set) = (config("quickstart.toml"), input.set());
    let udp = "device.soft0.wire=udp";
    for (capture, codes) in [("/dev/full", [1, 3]), ("/nonexistent/x.pcapng", [1, 3])] {
        let args = ["run", &config, "--set", &set, "--set", udp, "--capture", capture];
        let output = spinwire(&args);
        assert!(codes.contains(&output.status.code().unwrap()), "{capture}: {output:?}");
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(text.contains("capture"), "{capture}: {text}");
    }
}

/// P16: a completion queue that is too small is refused; taken on purpose, it overruns, its queue pair fails by that event, and
/// every block in flight is an error, once.
#[test]
fn p16_an_overrun_that_was_asked_for_is_named() {
    let quickstart = config("quickstart.toml");
    let depth = ["--set", "node.client.cq_depth=1"];
    let args = [&["run", &quickstart, "--json"][..], &depth].concat();
    assert_eq!(spinwire(&args).status.code(), Some(2), "refused before anything starts");
    for wire in ["shm", "udp"] {
        let wire = format!("device.soft0.wire={wire}");
        let taken = ["--set", "node.client.cq_overcommit=true", "--set", &wire];
        let output = spinwire(&[&args[..], &taken].concat());
        assert_eq!(output.status.code(), Some(1), "{wire}");
        let warning = "warning: the completion queue of `client` is too small";
        assert!(stderr(&output).contains(warning), "{}", stderr(&output));
        let report = report(&output);
        let verdict = &report["verdict"];
        assert_eq!(
            (&verdict["code"], &verdict["owner"], &verdict["knob"]),
            (&"cq-overrun".into(), &"local".into(), &"node.client.cq_depth".into()),
            "{wire}: {verdict}"
        );
        // No more than there were in flight: none is counted twice.
        let errors = node(&report, "client")["errors"].as_u64().expect("a number");
        assert!((1..=32).contains(&errors), "{wire}: {report}");
    }
}

/// A device's address is looked for by `plan`, as it is by `run`.
#[test]
fn plan_and_run_refuse_an_address_that_no_interface_has() {
    let (input, path) = (Input::new("nowhere", 10), config("quickstart.toml"));
    let set = input.set();
    for command in ["plan", "run"] {
        for wire in ["auto", "udp"] {
            let wire = format!("device.soft0.wire={wire}");
            let sets = ["--set", &set, "--set", "device.soft0.address=192.0.2.77", "--set", &wire];
            let output = spinwire(&[&[command, &path], &sets[..]].concat());
            let shown = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
            assert_eq!(output.status.code(), Some(3), "{command}: {shown}");
            assert!(shown.contains("no interface has the address 192.0.2.77"), "{shown}");
        }
    }
}
