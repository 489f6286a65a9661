//! `spinwire perf` when something is wrong: it ends in bounded time, and says what.

use std::path::Path;
use std::time::{Duration, Instant};

use pmd_observe::why::{Evidence, diagnose};
use serde_json::Value;

use crate::bench::{PATIENCE, Running, report, spinwire, stderr};

/// Runs a measurement that must fail; its verdict.
fn fail(line: &str, code: i32) -> Value {
    let arguments: Vec<&str> = ["perf"].into_iter().chain(line.split_whitespace()).collect();
    let output = spinwire(&[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{line}: {}", stderr(&output));
    let report = report(&output);
    assert_eq!(report["ok"], false, "{line}");
    assert_ne!(stderr(&output), "", "{line}");
    report["verdict"].clone()
}

/// `--fault` words have blanks of their own.
fn fail_by(line: &str, fault: &str) -> Value {
    let arguments: Vec<&str> = ["perf"].into_iter().chain(line.split_whitespace()).collect();
    let output = spinwire(&[&arguments[..], &["--json", "--fault", fault]].concat());
    assert_eq!(output.status.code(), Some(1), "{line} {fault}: {}", stderr(&output));
    report(&output)["verdict"].clone()
}

/// Waits until the second process works; its id.
pub(crate) fn under_way(running: &mut Running) -> u32 {
    let child = running.children(1)[0];
    let deadline = Instant::now() + PATIENCE;
    let works = || {
        let tasks = std::fs::read_dir(format!("/proc/{child}/task")).into_iter().flatten();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.into_iter().any(|name| name.trim() == "server0")
    };
    while !works() {
        assert!(Instant::now() < deadline, "the second process does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(400));
    child
}

#[test]
fn a_changed_byte_is_found_and_named() {
    for (line, fault, owner) in [
        ("send-bw -s 64 -n 20", "flip server 3", "remote"),
        ("send-bw -s 64 -n 20 -c ud --wire udp", "flip client 3", "remote"),
        ("write-bw -s 64 -n 20", "flip server 3", "remote"),
        ("send-bw -c xrc -s 64 -n 20", "flip server 3", "remote"),
        ("read-bw -s 64 -n 20", "flip server 3", "local"),
        // What comes back and what stays there are both looked at, here first.
        ("atomic-bw -n 20", "flip server 3", "local"),
    ] {
        let verdict = fail_by(line, fault);
        assert_eq!(
            (&verdict["code"], &verdict["owner"]),
            (&"data-mismatch".into(), &owner.into()),
            "{line}: {verdict}"
        );
        let hits = format!("`{fault}` changed 1 bytes");
        assert!(verdict["evidence"].to_string().contains(&hits), "{line}: {verdict}");
        let summary = verdict["summary"].as_str().unwrap();
        let found = match owner {
            "remote" => summary.strip_prefix("the peer says: "),
            _ => Some(summary),
        };
        let found = found.unwrap_or_else(|| panic!("{summary}"));
        assert!(found.starts_with("byte 3 is 0x") && found.contains(" instead of 0x"), "{summary}");
    }
}

#[test]
fn a_killed_end_is_named_by_the_other() {
    for wire in ["shm", "udp"] {
        let arguments = ["perf", "send-bw", "-s", "64", "-D", "10m", "--wire", wire, "--json"];
        let mut client = Running::start(&arguments);
        let child = under_way(&mut client);
        let killed = std::process::Command::new("kill").args(["-9", &child.to_string()]).status();
        assert!(killed.unwrap().success());
        let output = client.end();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let verdict = &report(&output)["verdict"];
        assert_eq!(
            (&verdict["code"], &verdict["owner"]),
            (&"peer-dead".into(), &"remote".into()),
            "{verdict}"
        );
        let summary = verdict["summary"].as_str().unwrap();
        assert!(summary.contains(&format!("process {child}")), "{summary}");

        let mut client = Running::start(&arguments);
        let child = under_way(&mut client);
        client.kill();
        let deadline = Instant::now() + PATIENCE;
        while Path::new(&format!("/proc/{child}")).exists() {
            assert!(Instant::now() < deadline, "the second process outlives the first");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Status 13 and its endless variant, and what unreliable messages make of it.
#[test]
fn no_receives_have_a_verdict() {
    let line = "send-bw -s 64 -n 20 --no-post-recv";
    for wire in ["shm", "udp"] {
        let verdict = fail(&format!("{line} --rnr-retry 2 --wire {wire}"), 1);
        assert_eq!(
            (&verdict["code"], &verdict["owner"]),
            (&"no-receives".into(), &"remote".into()),
            "{verdict}"
        );
        let knob = verdict["knob"].as_str().expect("a knob");
        assert!(knob.starts_with("receives at the peer: post them in INIT"), "{knob}");
        let evidence = verdict["evidence"].to_string();
        assert!(evidence.contains("the server posted no receive"), "{evidence}");
        assert!(
            evidence.contains("out_of_buffer=") && evidence.contains("rnr_nak_retry_err="),
            "{evidence}"
        );
    }
    let verdict = fail(line, 1);
    assert_eq!(
        (&verdict["code"], &verdict["knob"]),
        (&"rnr-stall".into(), &"--rnr-retry".into()),
        "{verdict}"
    );
    let verdict = fail(&format!("{line} -c ud --wire udp"), 1);
    assert_eq!(
        (&verdict["code"], &verdict["owner"]),
        (&"no-receives".into(), &"remote".into()),
        "{verdict}"
    );
}

#[test]
fn silence_of_each_kind_has_its_verdict() {
    let line = "send-bw -s 64 -n 500 --wire udp -u 12";
    let dead = fail_by(line, "drop all");
    assert_eq!(
        (&dead["code"], &dead["knob"]),
        (&"link-dead".into(), &"--qp-timeout".into()),
        "{dead}"
    );
    let evidence = dead["evidence"].to_string();
    assert!(
        evidence.contains("--qp-timeout 12, --retry-cnt 7: 16.8 ms a try, 134.2 ms in all"),
        "{evidence}"
    );
    assert_eq!(fail_by(line, "drop acks")["code"], "ack-path-lost");
    // Enough that they are not through before the responder stands still.
    let slow = fail("send-bw -s 64 -n 500000 --wire udp -u 12 --pause-responder 1s", 1);
    assert_eq!(
        (&slow["code"], &slow["owner"]),
        (&"responder-slow".into(), &"remote".into()),
        "{slow}"
    );
    // It stands still for longer than anybody waits for it, or wakes up to say for how long.
    let evidence = slow["evidence"].to_string();
    assert!(
        evidence.contains("answers on the control channel, and its poll loop does not")
            || evidence.contains("its poll loop stood for "),
        "{slow}"
    );
    let nobody = fail_by("send-bw -s 64 -n 20 -c uc --wire udp", "drop all");
    assert_eq!(nobody["code"], "link-dead");
}

/// S0-11, S0-22, S0-25, S1-69, S1-71, P04 and P11: a server that was connected wrongly, between two processes. What the verdict
/// was made of is in the report, and leads to the same verdict again.
#[test]
fn p11_a_server_that_is_connected_wrongly_is_found_out() {
    let write = "write-bw -s 4096 -n 100 -u 12 --processes 2";
    let datagrams = "send-bw -c ud -s 64 -n 20 --processes 2";
    for (line, wires, what, code, owner) in [
        (write, &["udp", "shm"][..], "init", "peer-not-ready", "remote"),
        (write, &["udp"], "psn", "psn-mismatch", "config"),
        (write, &["udp"], "mtu", "mtu-mismatch", "config"),
        (write, &["udp", "shm"], "access-qp", "access-qp", "remote"),
        (write, &["udp", "shm"], "access-mr", "access-mr", "local"),
        (datagrams, &["udp"], "qkey", "qkey-mismatch", "config"),
    ] {
        for wire in wires {
            let line = format!("perf {line} --wire {wire} --misconnect {what} --json");
            let output = spinwire(&line.split_whitespace().collect::<Vec<_>>());
            assert_eq!(output.status.code(), Some(1), "{line}: {}", stderr(&output));
            let report = report(&output);
            let verdict = &report["verdict"];
            assert_eq!(
                (&verdict["code"], &verdict["owner"]),
                (&code.into(), &owner.into()),
                "{line}: {verdict}"
            );
            let evidence: Evidence =
                serde_json::from_value(report["evidence"].clone()).expect("evidence");
            assert_eq!(diagnose(&evidence).code.as_str(), code, "{line}");
            let remote = evidence.remote.expect("the server has told");
            assert_eq!(remote.name, "the server");
            assert!(remote.place.starts_with("process "), "{}", remote.place);
        }
    }
}

/// S0-21 and S0-22: behind a lost way back are the counters of both ends, and how often it was lost.
#[test]
fn s0_22_counters_of_both_ends_and_the_hits_of_faults() {
    let fault = "drop acks after 10";
    let line = "perf write-bw --wire udp --processes 2 -s 4096 -n 100000 -u 12 --json --fault";
    let line: Vec<&str> = line.split_whitespace().chain([fault]).collect();
    let output = spinwire(&line);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report = report(&output);
    assert_eq!(report["verdict"]["code"], "ack-path-lost", "{}", report["verdict"]);
    let moved = |side: &str, name: &str| report["counters"][side]["delta"][name].as_u64();
    assert_eq!(moved("local", "req_transport_retries_exceeded"), Some(1), "{report}");
    assert!(moved("local", "local_ack_timeout_err") >= Some(8), "{report}");
    assert!(moved("local", "retransmits") > Some(0), "{report}");
    assert!(moved("remote", "duplicate_request") > Some(0), "{report}");
    assert_eq!(report["faults"]["local"][0]["rule"], fault);
    assert!(report["faults"]["local"][0]["hits"].as_u64() > Some(0), "{report}");
    assert_eq!(report["packets_by"], "--fault");
    // S0-49: without the fault all is well again.
    let well =
        spinwire(&["perf", "write-bw", "--wire", "udp", "-s", "4096", "-n", "200", "--json"]);
    let well = crate::bench::report(&well);
    assert_eq!((&well["ok"], &well["evidence"]), (&true.into(), &Value::Null));
}

/// S1-02, S1-72: what an unreliable transport loses is counted, and does not stop it: of SENDs, and of WRITEs, of which a
/// message is lost whole with any of its packets.
#[test]
fn losses_are_counted() {
    for (test, fault) in [
        ("send-bw -c ud -s 64", "drop UD_SEND_ONLY every 7"),
        ("send-bw -c uc -s 64", "drop UC_SEND_ONLY every 7"),
        ("write-bw -c uc -s 64", "drop UC_WRITE_ONLY_IMM every 7"),
        ("write-bw -c uc -s 10000", "drop UC_WRITE_MIDDLE every 7"),
    ] {
        let line = format!("perf {test} -n 2000 --wire udp --json");
        let words: Vec<&str> = line.split(' ').chain(["--fault", fault]).collect();
        let output = spinwire(&words);
        assert_eq!(output.status.code(), Some(0), "{test}: {}", stderr(&output));
        let report = report(&output);
        let [arrived, lost] = ["iters", "lost"].map(|key| report[key].as_u64().unwrap());
        assert_eq!(arrived + lost, 2000, "{test}: {report}");
        assert!(lost >= 200 && arrived > 0, "{test}: {report}");
    }
    let late = spinwire(&[
        "perf",
        "send-bw",
        "-s",
        "64",
        "-n",
        "2000",
        "--json",
        "--fault",
        "drop all every 60",
    ]);
    assert_eq!(late.status.code(), Some(0), "{}", stderr(&late));
    let late = report(&late);
    assert_eq!((&late["path"], &late["iters"]), (&"packet".into(), &2000.into()));
    let retransmits = &late["counters"]["local"]["after"]["retransmits"];
    assert!(retransmits.as_u64().unwrap() > 0, "{late}");
}

/// What a measurement survives is told: how often a fault acted, and that a wrong connection did no harm.
#[test]
fn what_is_survived_is_told() {
    let line = "perf send-bw -s 64 -n 2000 --wire udp --fault";
    let line: Vec<&str> = line.split_whitespace().chain(["drop all every 60"]).collect();
    let output = spinwire(&line);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let told =
        text.lines().find(|line| line.starts_with("fault at this end: `drop all every 60` hit "));
    let hits = told.and_then(|line| line.split(' ').rev().nth(1)?.parse::<u64>().ok());
    assert!(hits > Some(0), "{text}");
    let line = "perf write-bw -s 64 -n 100 --wire shm --misconnect mtu --json";
    let output = spinwire(&line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let evidence = report(&output)["verdict"]["evidence"].to_string();
    assert!(evidence.contains("--misconnect mtu had no effect: shared memory has"), "{evidence}");
}

/// Two processes of this machine over IPv6, in one command: over packets each has an address of its own.
#[test]
fn two_processes_measure_over_ipv6() {
    for wire in ["shm", "udp"] {
        let line = format!("perf send-lat -s 64 -n 100 --wire {wire} --ipv6 --processes 2 --json");
        let output = spinwire(&line.split_whitespace().collect::<Vec<_>>());
        let report = report(&output);
        let summary = report["verdict"]["summary"].as_str().unwrap();
        // A machine with one such address has none for the second process, and is told how to get one.
        let lacks =
            summary.contains("ip -6 address add") || summary.contains("no IPv6 address is free");
        assert!(output.status.code() == Some(0) || lacks, "{wire}: {report}{}", stderr(&output));
        if !lacks {
            assert_eq!((&report["wire"], &report["iters"]), (&wire.into(), &100.into()));
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_fix() {
    let no_nic = match pmd_verbs::nics() {
        Ok(_) => "none_such: there is no ",
        Err(_) => "apt install libibverbs1",
    };
    for (line, code, fix) in [
        ("read-bw -c uc", 2, "-c rc"),
        ("send-bw -c ud -s 8192", 2, "-s 4096"),
        ("send-bw -I 600", 2, "-I 512"),
        ("send-bw -q 0", 2, "1 to 2047"),
        ("send-bw --cpu 0,4000", 2, "core 4000 does not exist"),
        ("send-bw --cpu 0", 2, "name one for each"),
        ("send-bw -R -c xrc", 2, "-c rc"),
        ("send-bw --psk-file /nonexistent/key", 2, "head -c 32 /dev/urandom | base64"),
        ("send-bw --peer 192.0.2.77", 2, "--psk-file"),
        ("send-bw --listen 0.0.0.0", 2, "--plaintext"),
        ("send-bw --device verbs:none_such", 3, no_nic),
        ("send-bw --device soft:192.0.2.77", 3, "192.0.2.77"),
        ("send-bw --peer nowhere", 2, "127.0.0.1:18515"),
        ("send-bw -s 1GiB -q 512 -n 1", 3, "fewer queue pairs"),
        ("send-bw --misconnect access-qp", 2, "measure write, read or atomic"),
        ("write-bw --misconnect qkey", 2, "only -c ud has Q_Keys"),
        ("send-bw -x 4000", 2, "see `spinwire devices`"),
        ("send-bw --device soft:127.0.0.1 --ipv6", 2, "leave out -x and --ipv6"),
    ] {
        let verdict = fail(line, code);
        let summary = verdict["summary"].as_str().unwrap();
        assert!(summary.contains(fix), "{line}: {summary}");
    }
    let output = spinwire(&["perf", "send-bw", "--fault", "flip target 3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("client and server are"), "{}", stderr(&output));
    let output = spinwire(&["perf", "send-bw", "--wire", "shm", "--fault", "drop all"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--wire udp"), "{}", stderr(&output));
    // A byte that no buffer has cannot change.
    let output = spinwire(&["perf", "send-bw", "-s", "64", "-n", "1", "--fault", "flip server 64"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("64 bytes"), "{}", stderr(&output));
}
