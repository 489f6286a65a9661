//! Files that are not what they should be.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::{Input, Running, config, stderr};

/// A FIFO with nobody at its other end; removed when dropped.
struct Fifo(PathBuf);

impl Fifo {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fifo-{name}"));
        // One of a test that was killed.
        drop(std::fs::remove_file(&path));
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        Self(path)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("the FIFO is ours");
    }
}

/// Opening a FIFO waits for its other end: it is refused instead, wherever it is given.
#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let fifo = Fifo::new("input");
    let path = fifo.0.display().to_string();
    let (source, config) = (format!("node.source.path={path}"), config("quickstart.toml"));
    let input = Input::new("fifo", 1000);
    let set = input.set();
    for (arguments, code) in [
        (&["run", &config, "--set", &source][..], 1),
        (&["run", &config, "--set", &set, "--capture", &path], 1),
        (&["run", &path], 2),
        (&["check", &path], 2),
        (&["plan", &path], 2),
        (&["run", &path, &config], 2),
    ] {
        let output = Running::start(arguments).end();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(text.contains(&path) && text.contains("no regular file"), "{arguments:?}: {text}");
    }
}

/// A file of `/proc` says that it is empty: nothing of it would be sent, and verified.
#[test]
fn a_file_that_hides_its_size_is_refused() {
    let source = "node.source.path=/proc/self/status";
    let output = Running::start(&["run", &config("quickstart.toml"), "--set", source]).end();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("cannot read `/proc/self/status`: it has content"), "{text}");
}
