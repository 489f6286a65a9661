//! `spinwire perf` from outside: what it measures and how it says so.

use serde_json::Value;

use crate::bench::{Running, command, free_address, report, spinwire, stderr};

/// Runs a measurement that must succeed.
fn measure(line: &str) -> Value {
    let arguments: Vec<&str> = ["perf"].into_iter().chain(line.split_whitespace()).collect();
    let output = spinwire(&[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
    report(&output)
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Every operation, transport and wire: a figure, and every byte of the untimed pass compared.
#[test]
fn every_operation_moves_on_both_wires() {
    for (test, transport, verified) in [
        ("send-bw", "rc", 384),
        ("send-lat", "rc", 192),
        ("write-bw", "rc", 384),
        ("write-lat", "rc", 192),
        ("read-bw", "rc", 384),
        ("read-lat", "rc", 96),
        ("send-bw", "uc", 384),
        ("write-bw", "uc", 384),
        ("write-lat", "uc", 192),
        ("send-bw", "ud", 384),
        ("send-lat", "ud", 192),
        ("send-bw", "xrc", 384),
        ("write-lat", "xrc", 192),
    ] {
        for (wire, path) in [("shm", "local"), ("udp", "packet")] {
            let line = format!("{test} -c {transport} --wire {wire} -s 96 -n 40 -t 4");
            let report = measure(&line);
            assert_eq!((&report["op"], &report["transport"]), (&test.into(), &transport.into()));
            assert_eq!((&report["wire"], &report["path"]), (&wire.into(), &path.into()));
            let lossy = matches!(transport, "uc" | "ud");
            let (came, lost) = (count(&report["iters"]), count(&report["lost"]));
            // One that comes after it was taken for lost counts as both.
            assert!(
                came + lost == 40 || (lossy && came <= 40 && came + lost > 40),
                "{line}: {report}"
            );
            assert!(report["messages_per_s"].as_f64().unwrap() > 0.0, "{line}: {report}");
            assert!(count(&report["latency_ns"]["p50"]) > 0, "{line}: {report}");
            // Nothing acknowledges unreliable messages: what was lost was not compared.
            let compared = count(&report["verified_bytes"]);
            assert!(compared == verified || (lossy && compared > 0), "{line}: {compared}");
        }
    }
    for (line, path) in [("--wire shm", "local"), ("--wire udp -A CMP_AND_SWAP", "packet")] {
        let report = measure(&format!("atomic-bw {line} -n 40"));
        // Eight bytes came back, and eight changed.
        assert_eq!((&report["path"], &report["verified_bytes"]), (&path.into(), &16.into()));
    }
}

/// The untimed pass compares every queue pair's every buffer; both lcores of an end have their share.
#[test]
fn every_queue_pair_and_buffer_is_compared() {
    let report = measure("send-bw -q 64 --lcores 2 --buffers rotating -t 16 -s 64 -n 20");
    assert_eq!(count(&report["verified_bytes"]), 64 * 16 * 64);
    assert_eq!(count(&report["iters"]), 64 * 20);
    for end in ["local", "remote"] {
        let lcores = report["lcore_messages"][end].as_array().unwrap();
        assert_eq!(lcores.len(), 2);
        assert!(lcores.iter().all(|messages| count(messages) >= 32 * 20), "{report}");
    }
    let report = measure("write-bw -c xrc -q 8 --buffers rotating -t 16 -s 1000 -n 20 --wire udp");
    assert_eq!(count(&report["verified_bytes"]), 8 * 16 * 1000);
    let report = measure("read-bw --buffers app -s 5000 -n 20 -Q 4");
    assert_eq!(count(&report["verified_bytes"]), 16 * 5000);
}

#[test]
fn both_ways_alternating_inline_sleeping_and_in_one_process() {
    let both = measure("send-bw -b -t 2 -s 64 -n 50");
    assert_eq!((count(&both["iters"]), count(&both["verified_bytes"])), (100, 256));
    let both = measure("send-bw -c ud -b -s 64 -n 50 --wire udp");
    assert_eq!(count(&both["iters"]) + count(&both["lost"]), 100);
    // The WRITEs among the SENDs are compared as well.
    let alternating = measure("send-bw --alternate-write -t 2 -s 64 -n 50");
    assert_eq!((count(&alternating["iters"]), count(&alternating["verified_bytes"])), (50, 256));
    let inline = measure("write-lat -I 64 -s 64 -n 20");
    assert_eq!((&inline["inline"], count(&inline["verified_bytes"])), (&64.into(), 128));
    let sleeping = measure("send-lat -e -s 64 -n 20");
    assert_eq!((&sleeping["events"], count(&sleeping["iters"])), (&true.into(), 20));
    let one = measure("send-bw --processes 1 -s 64 -n 50 --wire udp");
    assert_eq!((&one["processes"], count(&one["iters"])), (&1.into(), 50));
    let timed = measure("write-bw -D 100ms -s 64");
    assert!((0.08..5.0).contains(&timed["elapsed_s"].as_f64().unwrap()), "{timed}");
}

/// The keys that tools depend on.
#[test]
fn the_object_has_its_shape() {
    let report = measure("send-bw -s 4096 -n 10 --wire udp");
    for key in ["op", "transport", "wire", "path"] {
        assert!(report[key].is_string(), "{key}: {report}");
    }
    for key in ["size", "iters", "messages_per_s", "bytes_per_s", "verified_bytes"] {
        assert!(report[key].is_number(), "{key}: {report}");
    }
    for key in ["min", "p50", "p99", "p999", "max"] {
        assert!(report["latency_ns"][key].is_u64(), "{key}: {report}");
    }
    for end in ["local", "remote"] {
        let [before, after] = ["before", "after"].map(|when| &report["counters"][end][when]);
        let moved = |key: &str| count(&after[key]) - count(&before[key]);
        assert!(moved("tx_packets") > 0 && moved("rx_packets") > 0, "{end}: {report}");
    }
    assert_eq!((&report["ok"], &report["verdict"]["code"]), (&true.into(), &"ok".into()));
    assert!(count(&report["qp_memory_bytes"]) > 0);
    assert!(report["probe_ns"].is_u64() || report["cpus"]["local"] == report["cpus"]["remote"]);
    let all = measure("send-bw -a -c ud -m 1024 -n 3");
    let sizes: Vec<u64> =
        all["results"].as_array().unwrap().iter().map(|one| count(&one["size"])).collect();
    assert_eq!(sizes, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
    assert_eq!(all["ok"], true);
}

#[test]
fn the_table_has_the_columns_people_know() {
    let output = spinwire(&["perf", "write-lat", "-s", "8", "-n", "20"]);
    let text = String::from_utf8_lossy(&output.stdout);
    for words in [
        "write-lat: rc over shm",
        "#bytes",
        "#iterations",
        "t_typical[us]",
        "t_p99.9[us]",
        "verdict: ok",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let output = spinwire(&["perf", "send-bw", "-s", "8", "-n", "20"]);
    let text = String::from_utf8_lossy(&output.stdout);
    for words in
        ["MTU 4096", "tx depth 128", "BW average[GB/s]", "MsgRate[M/s]", "verified 1024 bytes"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Two terminals: one waits, the other says everything.
#[test]
fn two_terminals_find_each_other() {
    for wire in ["shm", "udp"] {
        let address = free_address();
        let (ip, port) = address.rsplit_once(':').unwrap();
        let server =
            Running::start(&["perf", "read-bw", "--listen", &address, "--wire", wire, "--json"]);
        let client = [
            "perf", "read-bw", "--peer", ip, "-p", port, "--wire", wire, "-t", "1", "-s", "2000",
            "-n", "30", "--json",
        ];
        let output = spinwire(&client);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let asked = report(&output);
        assert_eq!((&asked["wire"], count(&asked["verified_bytes"])), (&wire.into(), 2000));
        let output = server.end();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let served = report(&output);
        assert_eq!((&served["size"], &served["ok"]), (&2000.into(), &true.into()));
        // It has timed nothing, and makes no figure up.
        assert_eq!(
            (&served["messages_per_s"], &served["latency_ns"]),
            (&Value::Null, &Value::Null)
        );
    }
}

/// Who asks for something else is told so, and is no client: the one that is meant still comes.
#[test]
fn two_terminals_that_want_different_things_say_so() {
    let address = free_address();
    let line = ["perf", "write-bw", "--listen", &address, "--wire", "shm"];
    let server = Running::start(&line);
    let output = spinwire(&["perf", "read-bw", "--peer", &address]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("name the same test"), "{}", stderr(&output));
    let output = spinwire(&["perf", "write-bw", "--peer", &address, "--wire", "udp"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("shared memory only"), "{}", stderr(&output));
    let output = spinwire(&["perf", "write-bw", "--peer", &address, "-n", "10"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = server.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for told in
        ["measures write-bw, and the client read-bw", "2 so far, still waiting for a client"]
    {
        assert!(stderr(&output).contains(told), "{told}: {}", stderr(&output));
    }
}

/// Whoever calls and is no client neither ends the wait for one nor delays it: port scanners, other programs, callers that
/// say nothing, and some that know the protocol and break it.
#[test]
fn strangers_do_not_end_a_wait() {
    use std::io::Write;
    use std::net::TcpStream;
    let address = free_address();
    let server = Running::start(&["perf", "write-bw", "--listen", &address, "--json"]);
    let call = |bytes: &[u8]| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            match TcpStream::connect(&address) {
                Ok(mut stream) => {
                    stream.write_all(bytes).unwrap();
                    return stream;
                }
                Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let hello = |body: &[u8]| {
        let len = u32::try_from(body.len() + 1).unwrap().to_be_bytes();
        [&len[..], b"\x01", body].concat()
    };
    let silent: Vec<_> = (0..120).map(|_| call(b"")).collect();
    drop(call(b""));
    drop(call(b"GET / HTTP/1.1\r\n\r\n"));
    let rude: Vec<_> = [
        hello(b"w\"Alive\""),
        hello(b"w{\"Failed\":{\"exit\":0}}"),
        hello(b"w{\"Welcome\":{\"version\":2,\"pid\":1}}"),
        hello(b"h\0\x50garbage"),
        hello(b""),
        hello(&[b'w'; 60_000]),
        b"\xff\xff\xff\xff\x01".to_vec(),
    ]
    .iter()
    .map(|bytes| call(bytes))
    .collect();
    let output = spinwire(&["perf", "write-bw", "--peer", &address, "-n", "10"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = server.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(report(&output)["ok"], true);
    for told in ["is of another version, or another program", "did not speak this protocol"] {
        assert!(stderr(&output).contains(told), "{told}: {}", stderr(&output));
    }
    drop((silent, rude));
}

/// Ctrl-C ends a long run in a moment, with what was measured so far, also when it comes before anything was.
#[test]
fn an_interrupt_ends_with_the_report() {
    for wire in ["shm", "udp"] {
        let line = ["perf", "send-bw", "-s", "64", "-D", "10m", "--wire", wire, "--json"];
        let mut running = Running::start_group(&line);
        super::perf_broken::under_way(&mut running);
        running.signal_group("-INT");
        let output = running.end();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let late = report(&output);
        assert!(late["elapsed_s"].as_f64().unwrap() < 60.0, "{late}");
        assert_eq!(late["interrupted"], true);

        let mut running = Running::start_group(&line);
        running.children(1);
        running.signal_group("-INT");
        let output = running.end();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(report(&output)["interrupted"], true);
    }
}

#[test]
fn help_names_the_flags_of_perftest() {
    let output = command(&["perf", "--help"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for flags in [
        "-s, --size",
        "-n, --iters",
        "-t, --tx-depth",
        "-q, --qp",
        "-m, --mtu",
        "-x, --gid-index",
        "-u, --qp-timeout",
        "-I, --inline_size",
        "-D, --duration",
        "-a, --all",
        "-b, --bidirectional",
        "-p, --port",
        "-c, --transport",
        "-e, --events",
        "-l, --post_list",
        "-R, --rdma_cm",
        "-Q, --cq-mod",
        "--retry-cnt",
        "--rnr-retry",
        "--min-rnr-timer",
    ] {
        assert!(text.contains(flags), "{flags}: {text}");
    }
}

/// S0-41, S0-47, S1-44: queue pairs find each other by the connection manager's protocol, on both paths, and datagram services by
/// lookups of it; the report says so.
#[test]
fn s0_47_ends_meet_by_the_connection_manager() {
    for (line, path) in [
        ("write-bw --connect cm", "local"),
        ("write-bw --connect cm --wire udp -q 20", "packet"),
        ("read-lat -R --wire udp -m 1024 -o 4 --retry-cnt 3", "packet"),
        ("atomic-bw -R", "local"),
        ("send-bw -R -c uc --wire udp -b", "packet"),
        ("send-lat -R -c ud --wire udp", "packet"),
        ("send-bw -R -c ud -q 3", "local"),
        ("send-lat --connect oob", "local"),
    ] {
        let atomic = line.starts_with("atomic");
        let size = if atomic { "" } else { "-s 1000" };
        let report = measure(&format!("{line} {size} -n 60 -t 8 --processes 2"));
        let connect = if line.contains("oob") { "oob" } else { "cm" };
        assert_eq!(
            (&report["connect"], &report["path"]),
            (&connect.into(), &path.into()),
            "{line}"
        );
        assert!(count(&report["verified_bytes"]) > 0, "{line}: {report}");
        if line.contains("-m 1024") {
            assert_eq!(report["mtu"], 1024);
        }
    }
}
