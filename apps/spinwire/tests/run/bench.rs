//! What the tests share: the binary, inputs, ports, and reading reports.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far longer than anything here takes: only a hang meets it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn config(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(name);
    path.display().to_string()
}

/// The binary, with a state directory of the tests.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spinwire"));
    command.args(arguments);
    command.env("XDG_STATE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("state"));
    // On a busy machine, a thread may be kept from its core for longer than the usual retry budget.
    command.env("SPINWIRE_QP_TIMEOUT", "18");
    command.env("XDG_RUNTIME_DIR", host());
    command
}

/// A runtime directory of each test: its processes share CPUs with each other only, as if they were alone on this host.
fn host() -> PathBuf {
    let test = std::thread::current().name().unwrap_or("several").replace("::", "-");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hosts").join(test);
    fs::create_dir_all(&path).expect("the target folder takes directories");
    path
}

/// Runs the binary to its end.
pub(crate) fn spinwire(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

/// A process that is killed if the test ends first.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::begin(&mut command(arguments))
    }

    /// In a process group of its own, as shells start what runs on a terminal.
    pub(crate) fn start_group(arguments: &[&str]) -> Self {
        Self::begin(command(arguments).process_group(0))
    }

    pub(crate) fn begin(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(Some(child.expect("the binary runs")))
    }

    pub(crate) fn id(&mut self) -> u32 {
        self.child().id()
    }

    pub(crate) fn kill(&mut self) {
        self.child().kill().expect("it still runs");
    }

    /// Kills it, and waits until nothing of it is left.
    pub(crate) fn kill_and_wait(&mut self) {
        self.kill();
        self.child().wait().expect("it is our child");
    }

    pub(crate) fn signal(&mut self, name: &str) {
        let sent = Command::new("kill").args([name, &self.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Signals its whole process group, as a terminal does.
    pub(crate) fn signal_group(&mut self, name: &str) {
        let group = format!("-{}", self.id());
        let sent = Command::new("kill").args([name, "--", &group]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// The processes that it has started, once there are so many.
    pub(crate) fn children(&mut self, count: usize) -> Vec<u32> {
        let deadline = Instant::now() + PATIENCE;
        let list = format!("/proc/{0}/task/{0}/children", self.id());
        loop {
            let text = fs::read_to_string(&list).expect("the process runs");
            let ids: Vec<u32> = text.split_whitespace().flat_map(str::parse).collect();
            if ids.len() == count {
                return ids;
            }
            assert!(Instant::now() < deadline, "the process does not start {count} others");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Output {
        let deadline = Instant::now() + PATIENCE;
        while self.child().try_wait().expect("it is our child").is_none() {
            assert!(Instant::now() < deadline, "the process does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let child = self.0.take().expect("it has not been waited for");
        child.wait_with_output().expect("it is our child")
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it has not been waited for")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A file of so many bytes, no two stretches alike; removed when dropped.
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
}

impl Input {
    pub(crate) fn new(name: &str, len: u64) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("input-{name}-{len}"));
        let mut file = std::io::BufWriter::new(
            fs::File::create(&path).expect("the target folder takes files"),
        );
        let mut state = 88_172_645_463_325_252_u64;
        for _ in 0..len {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            file.write_all(&[state.to_le_bytes()[3]]).expect("the disk has room");
        }
        file.flush().expect("the disk has room");
        Self { path, len }
    }

    /// The `--set` that makes it the source's file.
    pub(crate) fn set(&self) -> String {
        format!("node.source.path={}", self.path.display())
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        fs::remove_file(&self.path).expect("the file is ours");
    }
}

/// A loopback host that is this process's own: on 127.0.0.1 any caller of the machine may be given the port, as its end, that
/// a test has looked out for itself.
pub(crate) fn own_host() -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 77, high, low)
}

/// An address where nobody listens.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind((own_host(), 0)).expect("a port is free");
    listener.local_addr().expect("it listens").to_string()
}

/// Waits until the run that serves its counters at `address` has verified bytes: every part of it works then.
pub(crate) fn until_verified(address: &str) {
    until_counted(address, "spinwire_node_verified_bytes", 1);
}

/// Waits until some node of that run has counted so many of a metric.
pub(crate) fn until_counted(address: &str, metric: &str, count: u64) {
    let deadline = Instant::now() + PATIENCE;
    let counted = || {
        let mut text = String::new();
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        stream.read_to_string(&mut text).ok()?;
        let counts = text.lines().filter(|line| line.starts_with(metric));
        counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).max()
    };
    while counted().is_none_or(|counted| counted < count) {
        assert!(Instant::now() < deadline, "{metric} stays below {count}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The JSON on stdout.
pub(crate) fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(output)))
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn node<'a>(report: &'a Value, name: &str) -> &'a Value {
    let nodes = report["nodes"].as_array().expect("a report has nodes");
    nodes.iter().find(|node| node["name"] == name).expect("there is such a node")
}
