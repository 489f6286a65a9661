//! What a run leaves behind, and what `journal` and `why` tell from it: after a failure, after a kill, beside a live run,
//! and from the directories of both ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{Input, PATIENCE, Running, command, config, free_address, report, stderr};
use crate::killed::under_way;

/// A folder of the test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recorded-{name}"));
        // One of a test that was killed.
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).expect("the target folder takes folders");
        Self(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The binary, with this folder as its place for state.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.env("XDG_STATE_HOME", &self.0).env_remove("SPINWIRE_QP_TIMEOUT");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the folder is ours");
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The verdict of `why` on these directories.
fn why(folder: &Folder, dirs: &[&str]) -> Value {
    let output = folder.run(&[&["why", "--json"], dirs].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    report(&output)
}

fn records(folder: &Folder, more: &[&str]) -> Vec<Value> {
    let output = folder.run(&[&["journal", "--json"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = stdout(&output);
    lines.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn edges<'a>(records: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let state = |record: &Value, end: &str| record[end].as_str().unwrap_or("?").to_owned();
    let edge = |record| format!("{} -> {}", state(record, "from"), state(record, "to"));
    records.into_iter().map(edge).collect()
}

const UP: [&str; 3] = ["RESET -> INIT", "INIT -> RTR", "RTR -> RTS"];

/// S2-13, S2-14: after a measurement that failed, stderr shows what moved the queue pair, the usual place has all of it,
/// of both ends, and `why` and `journal` work from there.
#[test]
fn s2_13_a_failed_measurement_can_be_looked_at_afterwards() {
    let folder = Folder::new("perf");
    let line = "perf write-bw --wire udp --processes 2 -n 1000 --qp-timeout 10 --json";
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let output = folder.run(&[&arguments[..], &["--fault", "drop acks after 10"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = report(&output)["verdict"].clone();
    assert_eq!(said["code"], "ack-path-lost");
    let last = folder.at("spinwire/last");
    let run = fs::canonicalize(&last).unwrap();
    assert_eq!(run.parent().unwrap(), fs::canonicalize(folder.at("spinwire/runs")).unwrap());
    let shown = stderr(&output);
    assert!(shown.contains("journal of what failed (times are UTC):"), "{shown}");
    assert!(
        shown.contains("RTS -> ERR, by completion of a send request: transport retry"),
        "{shown}"
    );
    assert!(shown.contains(&format!("all of it: spinwire journal {}", run.display())), "{shown}");

    let all = records(&folder, &[]);
    let of = |part: Option<&'static str>| {
        all.iter().filter(move |record| record["part"].as_str() == part)
    };
    assert_eq!(edges(of(None)), [&UP[..], &["RTS -> ERR"]].concat());
    assert_eq!(edges(of(Some("server")))[..3], UP);
    let client: Vec<&Value> = of(None).collect();
    assert_eq!(client[3]["cause"]["status"], 12);
    assert_eq!(client[1]["attrs"]["dest_qp_num"], of(Some("server")).next().unwrap()["qpn"]);
    assert_eq!(client[2]["attrs"]["timeout"], 10);
    let qpn = format!("{:#x}", client[0]["qpn"].as_u64().unwrap());
    assert_eq!(records(&folder, &["--qp", &qpn]).len(), 4);
    let text = stdout(&folder.run(&["journal"]));
    assert_eq!(text.lines().count(), all.len());
    assert!(text.lines().any(|line| line.starts_with("[server] ")), "{text}");

    let judged = why(&folder, &[]);
    assert_eq!(judged["verdict"]["code"], "ack-path-lost");
    assert_eq!(judged["runs"][0]["life"], "finished");
    assert_eq!(judged["runs"][0]["run_dir"], run.display().to_string());
    let evidence = judged["verdict"]["evidence"].to_string();
    assert!(evidence.contains("duplicate_request="), "{evidence}");
    assert!(evidence.contains("journal of this end: "), "{evidence}");
}

/// The same of a run: the last records are shown, and `why` says what the run said.
#[test]
fn a_failed_run_shows_what_moved_its_queue_pairs() {
    let folder = Folder::new("run");
    let input = Input::new("failed-run", 2_000_000);
    let (quickstart, set) = (config("quickstart.toml"), input.set());
    let sets = ["--set", "device.soft0.wire=udp", "--set", "node.client.timeout=8", "--set", &set];
    let arguments =
        [&["run", &quickstart, "--json", "--fault", "drop all from client after 20"], &sets[..]];
    let output = folder.run(&arguments.concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let shown = stderr(&output);
    assert!(
        shown.contains("RTS -> ERR, by completion of a send request: transport retry"),
        "{shown}"
    );
    let judged = why(&folder, &[]);
    assert_eq!(judged["verdict"]["code"], report(&output)["verdict"]["code"]);
}

/// A run that went well says so, and every run has a directory of its own.
#[test]
fn runs_do_not_write_into_one_directory() {
    let folder = Folder::new("apart");
    let input = Input::new("apart", 1000);
    let (quickstart, set) = (config("quickstart.toml"), input.set());
    for _ in 0..2 {
        let output = folder.run(&["run", &quickstart, "--set", &set]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(why(&folder, &[])["verdict"]["code"], "ok");
    }
    let server = config("quickstart-server.toml");
    let address = free_address();
    let listen = format!("node.target.listen={address}");
    let peer = format!("node.client.peer={address}");
    let client = config("quickstart-client.toml");
    let sets = ["--set", &set, "--set", &listen, "--set", &peer];
    let output = folder.run(&[&["run", &server, &client], &sets[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let runs = fs::read_dir(folder.at("spinwire/runs")).unwrap().count();
    assert_eq!(runs, 3);
    let judged = why(&folder, &[]);
    assert_eq!(
        (&judged["verdict"]["code"], judged["runs"].as_array().unwrap().len()),
        (&"ok".into(), 2)
    );
    for (part, node) in [("0", "target"), ("1", "client")] {
        let path = folder.0.join("spinwire/last").join(part).join("report.json");
        let report: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert!(report["nodes"].as_array().unwrap().iter().any(|n| n["name"] == node), "{report}");
    }
    let parts: Vec<Value> = records(&folder, &[]).iter().map(|r| r["part"].clone()).collect();
    assert!(parts.contains(&"0".into()) && parts.contains(&"1".into()), "{parts:?}");
}

/// A run that lives can be looked at, one that was killed too, and with the directory of the other end the two are one
/// diagnosis: who is gone.
#[test]
fn a_killed_run_and_its_survivor_are_diagnosed_together() {
    let folder = Folder::new("killed");
    let input = Input::new("killed-run", 2_000_000);
    let address = free_address();
    let (listen, peer) =
        (format!("node.target.listen={address}"), format!("node.client.peer={address}"));
    let (near, far) = (folder.at("near"), folder.at("far"));
    let server = config("quickstart-server.toml");
    let mut server =
        Running::start(&["run", &server, "--set", &listen, "--run-dir", &far, "--json"]);
    let client = config("quickstart-client.toml");
    let (repeat, set) = ("node.source.repeat=4000000000", input.set());
    let arguments = [
        "run",
        &client,
        "--set",
        &peer,
        "--set",
        repeat,
        "--set",
        &set,
        "--run-dir",
        &near,
        "--json",
    ];
    let mut client = Running::start(&arguments);
    under_way(&mut client);
    let deadline = Instant::now() + PATIENCE;
    while records(&folder, &[&far]).len() < 3 {
        assert!(Instant::now() < deadline, "the journal stays empty");
    }
    let live = why(&folder, &[&far]);
    assert_eq!(
        (&live["verdict"]["code"], &live["runs"][0]["life"]),
        (&"ok".into(), &"live".into())
    );
    let mut follow = folder.command(&["journal", &near, "--follow"]);
    let follow = follow.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let id = server.id();
    server.kill();
    assert_eq!(client.end().status.code(), Some(1));
    let followed = follow.wait_with_output().unwrap();
    assert!(followed.status.success(), "it ends with the run");
    assert!(stdout(&followed).contains("INIT -> RTR, by connect: "), "{}", stdout(&followed));

    let killed = why(&folder, &[&far]);
    assert_eq!(
        (&killed["verdict"]["code"], &killed["runs"][0]["life"]),
        (&"peer-dead".into(), &"killed".into())
    );
    assert_eq!(killed["verdict"]["owner"], "local", "to others, it is the peer that is gone");
    let summary = killed["verdict"]["summary"].as_str().unwrap();
    assert!(summary.starts_with(&format!("process {id} ended without a report")), "{summary}");
    assert_eq!(edges(&records(&folder, &[&far]))[..3], UP, "what it wrote is there");
    let both = why(&folder, &[&far, &near]);
    assert_eq!(
        (&both["verdict"]["code"], &both["verdict"]["owner"]),
        (&"peer-dead".into(), &"remote".into())
    );
    // A line that was not finished is no reason to be silent.
    let journal = folder.0.join("far/journal.jsonl");
    let text = fs::read(&journal).unwrap();
    fs::write(&journal, &text[..text.len() - 20]).unwrap();
    let output = folder.run(&["journal", &far, "--json"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("1 lines of the journal"), "{}", stderr(&output));
}

/// A client that lives and dials a server again that was killed knows who is gone; and when it has come back and is done,
/// the server's directory still tells of the kill.
#[test]
fn a_client_that_dials_again_says_who_is_gone() {
    let folder = Folder::new("again");
    let input = Input::new("again", 1_000_000);
    let listen = format!("node.target.listen={}", free_address());
    let peer = listen.replace("target.listen", "client.peer");
    let path = format!("node.target.path={}", folder.at("blocks"));
    let server = |dir: &str| {
        let (config, dir) = (config("quickstart-server.toml"), folder.at(dir));
        let mut arguments = vec!["run", &config, "--run-dir", &dir];
        for set in ["node.target.backend=file", "node.target.size=8MiB", &path, &listen] {
            arguments.extend(["--set", set]);
        }
        Running::start(&arguments)
    };
    let mut first = server("far");
    let config = config("quickstart-client.toml");
    let near = folder.at("near");
    let (set, repeat) = (input.set(), "node.source.repeat=4000000000");
    let (again, limit) = ("node.client.reconnect=always", "node.client.reconnect_timeout=60s");
    let sets = [&*peer, &*set, repeat, again, limit];
    let sets = sets.iter().flat_map(|set| ["--set", *set]);
    let arguments: Vec<&str> =
        ["run", &config, "--run-dir", &near].into_iter().chain(sets).collect();
    let mut client = Running::start(&arguments);
    under_way(&mut client);
    first.kill_and_wait();
    // Its state is written once a second.
    let deadline = Instant::now() + PATIENCE;
    let mut live = why(&folder, &[&near]);
    while live["verdict"]["code"] != "peer-dead" {
        assert!(Instant::now() < deadline, "{live}");
        std::thread::sleep(Duration::from_millis(50));
        live = why(&folder, &[&near]);
    }
    assert_eq!(
        (&live["verdict"]["owner"], &live["runs"][0]["life"]),
        (&"remote".into(), &"live".into())
    );
    let evidence = live["verdict"]["evidence"].to_string();
    assert!(evidence.contains("node `client` has no queue pair: it dials "), "{live}");
    let second = server("far2");
    while why(&folder, &[&near])["verdict"]["code"] != "ok" {
        assert!(Instant::now() < deadline, "the client does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
    client.signal("-INT");
    let output = client.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(second.end().status.code(), Some(0));
    let far = folder.at("far");
    for dirs in [[&*near, &*far], [&*far, &*near]] {
        let verdict = why(&folder, &dirs)["verdict"].clone();
        assert_eq!(verdict["code"], "peer-dead", "{verdict}");
        assert!(
            verdict["summary"].as_str().unwrap().contains("ended without a report"),
            "{verdict}"
        );
    }
    assert_eq!(why(&folder, &[&near])["verdict"]["code"], "ok");
}

/// PSNs that differ, and a step that was skipped, are read from directories that somebody else wrote.
#[test]
fn s1_69_directories_of_both_ends_are_read_back() {
    let folder = Folder::new("halves");
    let write = |dir: &str, lines: &[Value]| {
        let dir = folder.0.join(dir);
        fs::create_dir_all(&dir).unwrap();
        let unknown = serde_json::json!({ "code": "unknown", "owner": "local", "summary": "it broke",
            "evidence": [], "knob": null });
        let evidence = serde_json::json!({ "symptom": { "completion": { "status": 12 } },
            "local": { "qp": { "qpn": 16, "dest_qpn": 32 } } });
        let report = serde_json::json!({ "ok": false, "verdict": unknown,
            "evidence": if dir.ends_with("near") { evidence } else { Value::Null } });
        fs::write(dir.join("report.json"), report.to_string()).unwrap();
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(dir.join("journal.jsonl"), format!("{{\"journal\":1}}\n{lines}")).unwrap();
        dir.display().to_string()
    };
    let moved = |qpn: u32, from: &str, to: &str, attrs: Value| {
        serde_json::json!({ "at_us": 1, "device": "soft0", "lcore": 0, "qpn": qpn, "transport": "RC",
            "from": from, "to": to, "cause": { "by": "connect" }, "mask": 1, "attrs": attrs, "refused": null })
    };
    let near = write(
        "near",
        &[
            moved(16, "INIT", "RTR", serde_json::json!({ "dest_qp_num": 32, "rq_psn": 512 })),
            moved(16, "RTR", "RTS", serde_json::json!({ "sq_psn": 256 })),
        ],
    );
    let far = write(
        "far",
        &[moved(32, "INIT", "RTR", serde_json::json!({ "dest_qp_num": 16, "rq_psn": 273 }))],
    );
    let alone = why(&folder, &[&near])["verdict"].clone();
    assert_eq!(alone["code"], "unknown");
    assert!(alone["evidence"].to_string().contains("the peer's half is unknown"), "{alone}");
    let both = why(&folder, &[&near, &far])["verdict"].clone();
    assert_eq!((&both["code"], &both["owner"]), (&"psn-mismatch".into(), &"config".into()));
    let summary = both["summary"].as_str().unwrap();
    assert!(summary.contains("0x100") && summary.contains("0x111"), "{summary}");

    let mut refused = moved(7, "ERR", "RTS", serde_json::json!({}));
    refused["refused"] = serde_json::json!({ "errno": "EINVAL", "reason": "skips RESET", "skipped": ["RESET", "INIT", "RTR"] });
    let reuse = write("reuse", &[refused]);
    let verdict = why(&folder, &[&reuse])["verdict"].clone();
    assert_eq!(verdict["code"], "invalid-request");
    assert_eq!(verdict["knob"], "modify to RESET, then INIT, RTR and RTS");
}

/// What is no run directory, or a damaged or newer one, is refused by name, with an exit code of its own.
#[test]
fn what_cannot_be_read_is_named() {
    let folder = Folder::new("unread");
    for command in ["why", "journal"] {
        let output = folder.run(&[command]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(stderr(&output).contains("there is no run directory"), "{}", stderr(&output));
        let output = folder.run(&[command, &folder.at("")]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(stderr(&output).contains("is no run directory"), "{}", stderr(&output));
    }
    let dir = folder.at("dir");
    fs::create_dir(&dir).unwrap();
    let file = |name: &str, text: &str| fs::write(Path::new(&dir).join(name), text).unwrap();
    for (text, complaint) in
        [("", "is empty"), ("{\"ok\":fal", "is damaged"), ("{\"verdict\":7}", "is damaged")]
    {
        file("report.json", text);
        let output = folder.run(&["why", &dir]);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let said = stderr(&output);
        assert!(said.contains("report.json") && said.contains(complaint), "{said}");
    }
    file("report.json", "{\"ok\":true}");
    file("journal.jsonl", "{\"journal\":2}\n");
    for command in ["why", "journal"] {
        let output = folder.run(&[command, &dir]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(
            stderr(&output).contains("has version 2, and this program reads up to 1"),
            "{}",
            stderr(&output)
        );
    }
    let output = folder.run(&["journal", "--qp", "soft0"]);
    assert_eq!(output.status.code(), Some(2));
}
