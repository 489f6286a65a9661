//! A run that is watched: its state in a file, and over HTTP.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd_graph::limits::{REQUEST_BYTES_MAX, SCRAPE_CONNECTIONS};
use pmd_graph::run::{Report, RunOptions};
use pmd_observe::status::{Qp, State, Status};
use pmd_observe::{Code, metrics};

use crate::double::{play_of, registry};

/// Nothing here takes longer, by far.
const PATIENCE: Duration = Duration::from_secs(20);

/// A key-value pair that works until it is told to end.
struct Watched {
    dir: PathBuf,
    address: SocketAddr,
    interrupt: Arc<AtomicBool>,
    run: Option<JoinHandle<Report>>,
}

impl Watched {
    fn start(wire: &str, qps: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("pmd-graph-watched-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let text = format!(
            r#"
[memory]
size = "32MiB"
hugepages = "none"
[device.soft0]
kind = "soft"
wire = "{wire}"
[observe]
listen = "{address}"
[retry]
timeout = 18
[[lcore]]
name = "lc0"
[[node]]
name = "server"
kind = "kv-server"
lcore = "lc0"
device = "soft0"
capacity = 2000
[[node]]
name = "client"
kind = "kv-client"
lcore = "lc0"
device = "soft0"
peer = "server"
qps = {qps}
depth = 4
keys = 2000
count = 4000000000
"#
        );
        let interrupt = Arc::new(AtomicBool::new(false));
        let (run_dir, flag) = (Some(dir.clone()), Some(Arc::clone(&interrupt)));
        let run = std::thread::spawn(move || {
            let options = RunOptions { run_dir, interrupt: flag, ..RunOptions::default() };
            play_of(&text, &registry(), options)
        });
        let watched = Self { dir, address, interrupt, run: Some(run) };
        watched.until(|status| {
            let up = status.qps.iter().filter(|qp| qp.state == State::Rts && qp.sends > 0);
            up.count() == 2 * qps as usize
        });
        watched
    }

    fn status(&self) -> Option<Status> {
        let text = fs::read_to_string(self.dir.join("status.json")).ok()?;
        Some(serde_json::from_str(&text).expect("readers see a whole file"))
    }

    fn until(&self, enough: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.status().filter(&enough) {
                return status;
            }
            assert!(Instant::now() < deadline, "{:?}", self.status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// What comes back for these bytes: head and body.
    fn ask(&self, request: &[u8]) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        (head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str) -> String {
        let (head, body) = self.ask(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        body
    }

    fn end(mut self) -> (Report, Status) {
        self.interrupt.store(true, Ordering::Relaxed);
        let report = self.run.take().expect("it runs").join().unwrap();
        (report, self.status().expect("the last status stays"))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.interrupt.store(true, Ordering::Relaxed);
        if let Some(run) = self.run.take() {
            drop(run.join());
        }
        drop(fs::remove_dir_all(&self.dir));
    }
}

fn of<'a>(status: &'a Status, node: &str) -> Vec<&'a Qp> {
    status.qps.iter().filter(|qp| qp.node == node).collect()
}

/// S2-24: every queue pair with its peer, path, state, queues and counters, while it works; the last status stays, with
/// the states in which queue pairs were closed.
#[test]
fn s2_24_the_state_of_a_run_is_in_a_file() {
    for (wire, path) in [("udp", "packet"), ("auto", "local")] {
        let watched = Watched::start(wire, 3);
        let early = watched.until(|status| status.elapsed_s > 0.0);
        let status = watched.until(|status| {
            status.nodes[1].messages > early.nodes[1].messages
                && status.at_unix_ms > early.at_unix_ms
        });
        assert_eq!((status.version, status.pid), (1, std::process::id()));
        assert!(!status.ended && status.verdict.is_none());
        let (clients, servers) = (of(&status, "client"), of(&status, "server"));
        assert_eq!((clients.len(), servers.len(), status.qps.len()), (3, 3, 6));
        for client in clients {
            let server = servers.iter().find(|qp| Some(qp.qpn) == client.remote_qpn).unwrap();
            assert_eq!(server.remote_qpn, Some(client.qpn));
            assert_eq!(
                (client.peer.as_deref(), server.peer.as_deref()),
                (Some("server"), Some("client"))
            );
            assert_eq!((client.device.as_str(), client.lcore.as_str()), ("soft0", "lc0"));
            assert_eq!((client.transport.as_str(), client.path.as_deref()), ("rc", Some(path)));
            assert!(client.send.depth >= 4 && client.send.used <= client.send.depth);
            assert!(client.recv.depth > 0 && client.state_s > 0.0);
            assert_eq!((client.reconnects, client.ended), (0, false));
            assert_eq!(client.ack_round_trip.count > 0, path == "packet");
            assert!(client.dwell.iter().any(|dwell| dwell.state == State::Rts));
        }
        assert_eq!(status.states.iter().map(|count| count.qps).collect::<Vec<_>>(), [6]);
        assert_eq!(status.nodes[0].connections, 3);
        assert!(status.lcores[0].busy > 0.0 && status.lcores[0].polls > 0);
        let sent = |status: &Status| status.devices[0].counters.get("tx_bytes").unwrap();
        assert!(sent(&status) > sent(&early) || sent(&early) > 0);
        assert!(status.devices[0].wire.get("tx_frames").is_some());
        let (report, last) = watched.end();
        assert!(report.ok, "{report}");
        assert!(
            last.ended && last.verdict.as_ref().is_some_and(|verdict| verdict.code == Code::Ok)
        );
        assert_eq!(last.qps.len(), 6);
        assert!(last.qps.iter().all(|qp| qp.ended && qp.state == State::Rts && qp.sends > 0));
        assert_eq!(last.nodes[1].messages, report.nodes[1].messages);
        assert_eq!(last.nodes[0].connections, 3, "made so far, however many are left");
    }
}

/// S2-26: what is served has the names that the documentation lists, all of them and no other.
#[test]
fn s2_26_metrics_are_those_of_the_page() {
    let watched = Watched::start("udp", 2);
    let text = watched.get("/metrics");
    let live: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md"));
    let page = page.unwrap();
    let listed: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `spinwire_"))
        .filter_map(|line| line.split('`').next())
        .collect();
    let live: BTreeSet<&str> = live.iter().map(|name| &name["spinwire_".len()..]).collect();
    let absent: Vec<_> = listed.difference(&live).copied().collect();
    // No node has a shared receive queue, and nothing was dropped.
    let rare = ["port_drops_total", "srq_depth", "srq_dry_total", "srq_limit", "srq_receives"];
    assert_eq!(absent, rare);
    assert!(live.is_subset(&listed), "{:?}", live.difference(&listed));
    assert_eq!(text.lines().filter(|line| line.contains("state=\"RTS\"} 1")).count(), 4);
    assert!(text.contains("spinwire_qps{device=\"soft0\",state=\"RTS\"} 4\n"), "{text}");
    let status: Status = serde_json::from_str(&watched.get("/status")).unwrap();
    assert_eq!(of(&status, "client").len(), 2);
}

/// The counters of the engine are listed under its names.
#[test]
fn every_counter_of_the_engine_has_a_metric() {
    let names = |table: &[(&'static str, &str)]| -> BTreeSet<&'static str> {
        table.iter().map(|(name, _)| *name).collect()
    };
    let port = pmd_roce::counters::Counters::default();
    let port: BTreeSet<&str> =
        port.iter().map(|(name, _)| name).filter(|name| !name.starts_with("drop_")).collect();
    assert_eq!(names(metrics::PORT_COUNTERS), port);
    let qp = pmd_roce::counters::QpCounters::default();
    assert_eq!(names(metrics::QP_COUNTERS), qp.iter().map(|(name, _)| name).collect());
}

/// Nobody who reads metrics holds up the run or others: neither who says nothing, nor who takes nothing, nor who talks
/// nonsense, however many they are.
#[test]
fn readers_disturb_nobody() {
    let watched = Watched::start("auto", 1);
    for (request, answer) in [
        (&b"GET /nothing HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"hello\r\n\r\n", "400"),
        (b"\xff\xfe\xfd\r\n\r\n", "400"),
        (&vec![b'x'; REQUEST_BYTES_MAX], "431"),
    ] {
        let (head, _) = watched.ask(request);
        assert!(head.starts_with(&format!("HTTP/1.1 {answer} ")), "{head}");
    }
    let (head, body) = watched.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body.is_empty(), "{head}");
    // A request in pieces, and a reader that says that it has said all.
    let mut stream = watched.connect();
    for piece in [&b"GET /met"[..], b"rics HTTP/1.1\r\n", b"\r\n"] {
        stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("spinwire_run_seconds"), "{answer}");
    // More than are let in, silent; those beyond are turned away, and places come free again.
    let silent: Vec<TcpStream> = (0..3 * SCRAPE_CONNECTIONS).map(|_| watched.connect()).collect();
    let mut turned_away = 0;
    for mut stream in &silent {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        match stream.read(&mut [0]) {
            Ok(0) => turned_away += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Closed before it was let in.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => turned_away += 1,
            other => panic!("{other:?}"),
        }
    }
    // Somebody of before may still be about to leave.
    assert!(turned_away >= 2 * SCRAPE_CONNECTIONS && turned_away < silent.len());
    let before = watched.until(|_| true);
    watched.until(|status| status.nodes[1].messages > before.nodes[1].messages);
    // One that asks is answered while all of them are there.
    let (head, _) = watched.ask(b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    drop(silent);
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(watched.address)
        .and_then(|mut stream| {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text.contains("spinwire_run_seconds"))
        })
        .ok()
        != Some(true)
    {
        assert!(Instant::now() < deadline, "the places stay taken");
    }
    let (report, last) = watched.end();
    assert!(report.ok && last.ended, "{report}");
}

/// A run whose state cannot be written goes on, and a device that tells nothing has none.
#[test]
fn a_run_needs_no_watcher() {
    let input = crate::double::Input::new("unwatched", 100_000);
    let text = crate::verified::pipeline(&input, "", "", "", "");
    let run_dir = Some(PathBuf::from("/proc/self/nowhere"));
    let report = crate::double::play_with(&text, RunOptions { run_dir, ..RunOptions::default() });
    assert!(report.ok, "{report}");
    let dir = std::env::temp_dir().join(format!("pmd-graph-double-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let run_dir = Some(dir.clone());
    let report = crate::double::play_with(&text, RunOptions { run_dir, ..RunOptions::default() });
    assert!(report.ok, "{report}");
    let status = fs::read_to_string(dir.join("status.json")).unwrap();
    let status: Status = serde_json::from_str(&status).unwrap();
    assert!(status.ended && status.qps.is_empty());
    assert_eq!(
        status.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(),
        ["target", "source", "client"]
    );
    let mut left: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["journal.jsonl", "status.json"], "drafts are gone");
    fs::remove_dir_all(dir).unwrap();
}
