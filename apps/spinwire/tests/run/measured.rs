//! A measurement as `top`, `counters`, `journal` and `why` see it: while it runs, after it, and after it was killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{PATIENCE, Running, free_address, report, spinwire, stderr};

/// A run directory of a test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("measured-{name}"));
        drop(fs::remove_dir_all(&dir));
        Self(dir)
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    /// Waits for a state that is as wanted.
    fn until(&self, part: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = self.0.join(part).join("status.json");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(text) = fs::read_to_string(&path) {
                let status: Value = serde_json::from_str(&text).expect("readers see a whole file");
                if wanted(&status) {
                    return status;
                }
            }
            assert!(Instant::now() < deadline, "{} is never as wanted", path.display());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether its queue pairs are at work, so many of them.
    fn until_at_work(&self, part: &str, count: usize) -> Value {
        self.until(part, |status| {
            let nodes = status["nodes"].as_array().into_iter().flatten();
            let messages: u64 = nodes.filter_map(|node| node["messages"].as_u64()).sum();
            in_rts(status) == count && messages > 0
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn in_rts(status: &Value) -> usize {
    let qps = status["qps"].as_array().into_iter().flatten();
    qps.filter(|qp| qp["state"] == "RTS" && qp["ended"] == false).count()
}

fn text(arguments: &[&str]) -> String {
    let output = spinwire(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// S0-22, S2-24: both processes of a measurement are seen at work, their counters move, and their last state stays.
#[test]
fn s2_24_both_processes_of_a_measurement_are_watched() {
    let place = Place::new("two");
    let path = place.path();
    let line = ["perf", "write-bw", "-D", "300", "-q", "2", "--wire", "udp", "--run-dir", &path];
    let mut run = Running::start(&line);
    let client = place.until_at_work("", 2);
    place.until("server", |status| in_rts(status) == 2);
    assert_eq!(
        (&client["nodes"][0]["name"], &client["nodes"][0]["kind"]),
        (&"client".into(), &"write-bw".into())
    );
    assert!(client["lcores"][0]["polls"].as_u64() > Some(0), "{client}");
    let shown = text(&["top", &path, "--once"]);
    let rows = shown.lines().filter(|line| line.starts_with("RTS ")).count();
    assert_eq!(rows, 4, "{shown}");
    assert_eq!(shown.matches("s, running").count(), 2, "{shown}");
    let moving = report(&spinwire(&["counters", &path, "--json", "--delta"]));
    for run in moving["runs"].as_array().expect("two processes") {
        assert!(run["ports"][0]["counters"]["tx_packets"].as_u64() > Some(0), "{moving}");
    }
    let qps: Vec<&Value> = moving["runs"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|run| run["qps"].as_array().unwrap())
        .collect();
    assert!(qps.len() == 4 && qps.iter().all(|qp| qp["remote"].is_object()), "{moving}");
    let told = report(&spinwire(&["why", &path, "--json"]))["verdict"].clone();
    assert_eq!(told["code"], "ok", "{told}");
    let says = told["evidence"].to_string();
    assert!(says.contains("node `client` has done"), "{says}");
    assert!(text(&["journal", &path]).contains("RTR -> RTS"), "the journal is there meanwhile");
    run.signal("-INT");
    let output = run.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown = text(&["top", &path, "--once"]);
    assert_eq!(shown.matches("ended: ok").count(), 2, "{shown}");
    let rows = shown.lines().filter(|line| line.starts_with("(RTS) ")).count();
    assert_eq!(rows, 4, "{shown}");
    let counted = report(&spinwire(&["counters", &path, "--json"]));
    let client = &counted["runs"][0];
    assert!(client["ports"][0]["counters"]["tx_packets"].as_u64() > Some(10), "{counted}");
    assert_eq!(client["peers"][0]["name"], "the other end of the measurement");
    assert!(client["peers"][0]["counters"]["tx_packets"].as_u64() > Some(0), "{counted}");
}

/// Both ends of one process are one run, with a node for each.
#[test]
fn one_process_shows_both_of_its_ends() {
    let place = Place::new("one");
    let path = place.path();
    let line = ["perf", "send-lat", "-D", "300", "--processes", "1", "--run-dir", &path];
    let mut run = Running::start(&line);
    let status = place.until_at_work("", 2);
    let nodes: Vec<&Value> =
        status["nodes"].as_array().unwrap().iter().map(|node| &node["name"]).collect();
    assert_eq!(nodes, ["client", "server"]);
    let peers: Vec<&Value> =
        status["qps"].as_array().unwrap().iter().map(|qp| &qp["peer"]).collect();
    assert!(peers.contains(&&"client".into()) && peers.contains(&&"server".into()), "{status}");
    run.signal("-INT");
    let output = run.end();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let last = place.until("", |status| status["ended"] == true);
    assert_eq!(last["verdict"]["code"], "ok");
}

/// Two terminals: what an end waits for before the other one comes, both at work, and what is left of one that was killed.
#[test]
fn ends_of_two_terminals_are_watched_each_in_its_own_directory() {
    let (here, there) = (Place::new("listens"), Place::new("calls"));
    let (address, paths) = (free_address(), [here.path(), there.path()]);
    let measure = ["perf", "write-bw", "-D", "300", "--wire", "udp"];
    let server =
        Running::start(&[&measure[..], &["--listen", &address, "--run-dir", &paths[0]]].concat());
    let waits = here.until("", |status| status["nodes"][0]["edge"].is_string());
    assert_eq!(waits["nodes"][0]["edge"], format!("listens on {address}"));
    let mut client =
        Running::start(&[&measure[..], &["--peer", &address, "--run-dir", &paths[1]]].concat());
    let at_work = there.until_at_work("", 1);
    assert_eq!(at_work["qps"][0]["peer"], address);
    here.until("", |status| in_rts(status) == 1);
    client.kill();
    let last = here.until("", |status| status["ended"] == true);
    assert_eq!(last["verdict"]["code"], "peer-dead", "{last}");
    assert_eq!(server.end().status.code(), Some(1));
    let shown = text(&["top", &paths[1], "--once"]);
    assert!(shown.contains("gone: it was killed"), "{shown}");
}
