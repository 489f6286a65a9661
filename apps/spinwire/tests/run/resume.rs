//! Storage that goes on: a `block-client` whose target dies, stands still, or is cut off, and comes back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::bench::{Running, config, free_address, node, report, stderr, until_verified};

/// Blocks of a client, and bytes of each.
const BLOCKS: u64 = 3000;
const BLOCK: u64 = 4096;
/// A retry budget of 34 ms, which the environment of the tests has longer.
const SHORT: [&str; 2] = ["--set", "node.client.timeout=10"];

/// A folder of a test on a disk, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("resume-{name}"));
        fs::create_dir_all(&path).expect("the target folder takes folders");
        Self(path)
    }

    fn store(&self) -> PathBuf {
        self.0.join("blocks")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.0);
        // A test that failed says why; nothing here may hide it.
        assert!(removed.is_ok() || std::thread::panicking(), "the folder is ours: {removed:?}");
    }
}

/// A target of a folder, which can be started again.
struct Target {
    process: Running,
    sets: Vec<String>,
    address: String,
}

impl Target {
    /// `backend`: its keys. It serves so many clients.
    fn start(wire: &str, backend: &[String], serve: u64) -> Self {
        let address = free_address();
        let mut sets = vec![
            format!("device.soft0.wire={wire}"),
            format!("node.target.listen={address}"),
            format!("node.target.serve={serve}"),
            "memory.size=64MiB".to_owned(),
        ];
        sets.extend(backend.iter().map(|key| format!("node.target.{key}")));
        Self { process: Self::run(&sets), sets, address }
    }

    fn in_file(wire: &str, folder: &Folder, serve: u64) -> Self {
        let path = format!("path={}", folder.store().display());
        Self::start(wire, &["backend=file".to_owned(), "size=32MiB".to_owned(), path], serve)
    }

    fn run(sets: &[String]) -> Running {
        let server = config("quickstart-server.toml");
        let mut args = vec!["run", &server, "--json"];
        args.extend(sets.iter().flat_map(|set| ["--set", set.as_str()]));
        Running::start(&args)
    }

    fn kill(&mut self) {
        self.process.kill_and_wait();
    }

    fn start_again(&mut self) {
        self.process = Self::run(&self.sets);
    }
}

/// A client that stores its blocks within a second, and comes back. `seed`: of what it stores.
struct Client {
    process: Running,
    metrics: String,
}

impl Client {
    fn start(wire: &str, target: &Target, folder: &Folder, seed: u64, more: &[&str]) -> Self {
        let (peer, metrics) = (&target.address, free_address());
        let text = format!(
            r#"
[memory]
size = "16MiB"
[device.soft0]
kind = "soft"
wire = "{wire}"
[observe]
listen = "{metrics}"
[[lcore]]
name = "lc0"
[[node]]
name = "source"
kind = "generator"
lcore = "lc0"
block = {BLOCK}
count = {BLOCKS}
rate = {BLOCKS}
seed = {seed}
to = "client"
[[node]]
name = "client"
kind = "block-client"
lcore = "lc0"
device = "soft0"
peer = "{peer}"
qps = 2
depth = 16
reconnect = "always"
reconnect_timeout = "50s"
"#
        );
        let path = folder.0.join(format!("client-{seed}.toml"));
        fs::write(&path, text).expect("the folder takes files");
        let path = path.display().to_string();
        let process = Running::start(&[&["run", &path, "--json"], more].concat());
        Self { process, metrics }
    }

    fn under_way(&self) {
        until_verified(&self.metrics);
    }

    /// Everything was stored and read back as it was. Returns how often a connection came back.
    fn done(self) -> u64 {
        let output = self.process.end();
        let stored = report(&output);
        assert_eq!(output.status.code(), Some(0), "{stored}{}", stderr(&output));
        let client = node(&stored, "client");
        let counted = [&client["messages"], &client["verified_bytes"], &client["errors"]];
        assert_eq!(
            counted,
            [&BLOCKS.into(), &(BLOCKS * BLOCK).into(), &Value::from(0)],
            "{client}"
        );
        client["recoveries"]["count"].as_u64().expect("a count")
    }

    /// It failed. Returns its report.
    fn failed(self) -> Value {
        let output = self.process.end();
        let stored = report(&output);
        assert_eq!(output.status.code(), Some(1), "{stored}");
        stored
    }
}

fn served(target: Target) -> Value {
    let output = target.process.end();
    let served = report(&output);
    assert_eq!(output.status.code(), Some(0), "{served}{}", stderr(&output));
    served
}

/// What a client of this seed leaves in a file where nothing goes wrong.
fn undisturbed(seed: u64) -> Vec<u8> {
    let folder = Folder::new(&format!("undisturbed-{}-{seed}", free_address()));
    let target = Target::in_file("shm", &folder, 1);
    assert_eq!(Client::start("shm", &target, &folder, seed, &[]).done(), 0);
    served(target);
    stored(&folder)[..len(BLOCKS * BLOCK)].to_vec()
}

fn stored(folder: &Folder) -> Vec<u8> {
    fs::read(folder.store()).expect("the target made it")
}

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a file of a test")
}

/// P24: a target that is killed and started again on its file has its client back; not a block is lost.
#[test]
fn p24_a_killed_target_that_is_started_again_has_its_client_back() {
    let whole = undisturbed(7);
    for wire in ["shm", "udp"] {
        let folder = Folder::new(&format!("killed-{wire}"));
        let mut target = Target::in_file(wire, &folder, 1);
        let client = Client::start(wire, &target, &folder, 7, &[]);
        client.under_way();
        target.kill();
        target.start_again();
        assert_eq!(client.done(), 2, "both connections, {wire}");
        served(target);
        assert!(stored(&folder)[..len(BLOCKS * BLOCK)] == whole[..], "{wire}: byte for byte");
    }
}

/// P24: clients that come back to a target which was started again have their own parts of its file, whoever is first.
#[test]
fn p24_clients_that_come_back_have_their_own_parts() {
    let folder = Folder::new("parts");
    let mut target = Target::in_file("shm", &folder, 2);
    let first = Client::start("shm", &target, &folder, 1, &[]);
    first.under_way();
    let second = Client::start("shm", &target, &folder, 2, &[]);
    second.under_way();
    target.kill();
    target.start_again();
    assert_eq!([first.done(), second.done()], [2, 2]);
    served(target);
    let (stored, part) = (stored(&folder), len(BLOCKS * BLOCK));
    assert!(stored[..part] == undisturbed(1)[..], "the first client's");
    assert!(stored[part..2 * part] == undisturbed(2)[..], "the second client's");
}

/// P24: a target that stood still for longer than the retry budget has its client back. Where a file is slow, all blocks may
/// be there already when it stops: then nothing is on its way, and nothing breaks.
#[test]
fn p24_a_target_that_stood_still_has_its_client_back() {
    for (wire, file) in [("shm", true), ("shm", false), ("udp", true), ("udp", false)] {
        let folder = Folder::new(&format!("still-{wire}-{file}"));
        let mut target = match file {
            true => Target::in_file(wire, &folder, 1),
            false => Target::start(wire, &[], 1),
        };
        let client = Client::start(wire, &target, &folder, 7, &SHORT);
        client.under_way();
        target.process.signal("-STOP");
        std::thread::sleep(Duration::from_millis(400));
        target.process.signal("-CONT");
        let recoveries = client.done();
        assert!(file || recoveries >= 1, "{wire}: each block needs the target's own work");
        served(target);
        if file {
            assert!(stored(&folder)[..len(BLOCKS * BLOCK)] == undisturbed(7)[..], "{wire}");
        }
    }
}

/// P24, P15: a wire that loses everything for longer than the retry budget: the connections come back on their queue pairs,
/// also to a store in memory, which has lost nothing.
#[test]
fn p24_a_wire_that_heals_has_its_client_back() {
    let folder = Folder::new("heals");
    let target = Target::start("udp", &[], 1);
    let fault = [&SHORT[..], &["--fault", "drop all after 3000 for 300ms"]].concat();
    let client = Client::start("udp", &target, &folder, 7, &fault);
    assert!(client.done() >= 1);
    let served = served(target);
    assert!(node(&served, "target")["recoveries"]["count"].as_u64() >= Some(1), "{served}");
}

/// P24: a store that ends with its process, in memory or in a file without a name, has lost what was stored: its client says so.
#[test]
fn p24_a_store_that_forgot_is_found_out_by_its_client() {
    for backend in [&[][..], &["backend=file".to_owned(), "size=32MiB".to_owned()]] {
        let folder = Folder::new(&format!("forgot-{}", backend.len()));
        let mut target = Target::start("shm", backend, 1);
        let client = Client::start("shm", &target, &folder, 7, &[]);
        client.under_way();
        target.kill();
        target.start_again();
        let verdict = &client.failed()["verdict"];
        assert_eq!(verdict["code"], "data-mismatch", "{verdict}");
        let summary = verdict["summary"].as_str().expect("a summary");
        assert!(summary.ends_with("was started again, and has lost what it stored"), "{summary}");
    }
}

/// P24: a target that does not come back is given up in bounded time; every block in flight is an error.
#[test]
fn p24_a_target_that_does_not_come_back_is_given_up() {
    let folder = Folder::new("gone");
    let mut target = Target::in_file("shm", &folder, 1);
    let limit = ["--set", "node.client.reconnect_timeout=300ms"];
    let client = Client::start("shm", &target, &folder, 7, &limit);
    client.under_way();
    target.kill();
    let stored = client.failed();
    let verdict = &stored["verdict"];
    assert_eq!(verdict["code"], "peer-dead", "{verdict}");
    let summary = verdict["summary"].as_str().expect("a summary");
    assert!(summary.contains("nobody has come back within 300ms"), "{summary}");
    let client = node(&stored, "client");
    let errors = client["errors"].as_u64().expect("a count");
    assert!((1..=32).contains(&errors), "two queue pairs of 16: {client}");
}

/// P24: client and target are told to end at once: each finds the other leaving, and neither makes anything of it.
#[test]
fn p24_a_client_and_its_target_that_leave_at_once() {
    for wire in ["shm", "udp"] {
        let folder = Folder::new(&format!("both-{wire}"));
        let mut target = Target::in_file(wire, &folder, 1);
        // Of two, one may work while the other is not connected yet.
        let one = ["--set", "node.client.qps=1"];
        let mut client = Client::start(wire, &target, &folder, 7, &one);
        client.under_way();
        let pids = [target.process.id(), client.process.id()].map(|id| id.to_string());
        let told = Command::new("kill").arg("-INT").args(pids).status();
        assert!(told.expect("kill runs").success());
        let ends = [client.process.end(), target.process.end()];
        let texts = ends.each_ref().map(stderr);
        for (end, text) in ends.iter().zip(&texts) {
            assert_eq!(end.status.code(), Some(0), "{}: {texts:?}", report(end)["verdict"]);
            assert!(!text.contains("ERROR") && !text.contains("WARN"), "{texts:?}");
        }
    }
}
