//! Which CPUs processes poll on that know nothing of each other.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::bench::{PATIENCE, Running, command, config, free_address, report, stderr};

/// A runtime directory of its own, so that nobody but the processes of the test claims CPUs there.
struct Host(PathBuf);

impl Host {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("host-{name}"));
        drop(fs::remove_dir_all(&path));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .expect("the target folder takes directories");
        Self(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.env("XDG_RUNTIME_DIR", &self.0);
        command
    }

    /// What a server would get.
    fn plan(&self, sets: &[&str]) -> Value {
        let server = config("quickstart-server.toml");
        let mut arguments = vec!["plan", &*server, "--json"];
        sets.iter().for_each(|set| arguments.extend(["--set", set]));
        report(&self.command(&arguments).output().expect("the binary runs"))
    }

    /// Waits until a server would get `cpu`.
    fn until_free(&self, cpu: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.plan(&[])["lcores"][0]["cpu"] != cpu {
            assert!(Instant::now() < deadline, "{}", self.plan(&[]));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("it is ours");
    }
}

/// `auto` takes a CPU on which no other process polls, a CPU that is named is shared with a warning, and what was held is
/// free again however its process ended.
#[test]
fn processes_keep_off_each_others_cpus() {
    let host = Host::new("apart");
    let free = host.plan(&[]);
    let first = usize::try_from(free["lcores"][0]["cpu"].as_u64().unwrap()).unwrap();
    assert_eq!(free["lcores"][0]["shared_with"], json!([]));
    let server = config("quickstart-server.toml");
    let listen = format!("node.target.listen={}", free_address());
    let mut running = Running::begin(&mut host.command(&["run", &server, "--set", &listen]));
    let pid = running.id();
    let deadline = Instant::now() + PATIENCE;
    let apart = loop {
        let plan = host.plan(&[]);
        if plan["lcores"][0]["cpu"] != first {
            break plan;
        }
        assert!(Instant::now() < deadline, "{plan}");
    };
    assert_eq!(apart["lcores"][0]["shared"], false);
    let named = host.plan(&[&format!("lcore.lc0.cpu={first}")]);
    assert_eq!(named["lcores"][0]["shared_with"], json!([pid]));
    let says = format!("lcore `lc0` is on CPU {first}, where process {pid} polls too");
    let is_it = |warning: &Value| warning.as_str().unwrap().starts_with(&says);
    assert!(named["warnings"].as_array().unwrap().iter().any(is_it), "{named}");
    let both = format!("{first},{}", apart["lcores"][0]["cpu"]);
    let mut perf = host.command(&["perf", "send-lat", "-n", "10", "--cpu", &both, "--json"]);
    let output = perf.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(report(&output)["cpus"]["shared_with"], json!([pid]));
    let says = format!("on CPU {first}, where process {pid} polls too");
    assert!(stderr(&output).contains(&says), "{}", stderr(&output));
    running.kill_and_wait();
    host.until_free(first);
    let left: Vec<_> = fs::read_dir(host.0.join("spinwire")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
