//! The program as its users run it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_custom-node");
    Command::new(program)
        .args(arguments)
        .env("XDG_STATE_HOME", std::env::temp_dir())
        // On a busy machine, a thread may be kept from its core for longer than the usual retry budget.
        .env("SPINWIRE_QP_TIMEOUT", "18")
        .output()
        .expect("the program runs")
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

fn node<'a>(report: &'a Value, name: &str) -> &'a Value {
    let nodes = report["nodes"].as_array().expect("a report has nodes");
    nodes.iter().find(|node| node["name"] == name).expect("there is such a node")
}

/// A config of this test, removed when dropped.
struct Config(PathBuf);

impl Config {
    fn new(text: &str) -> Self {
        let name = format!("custom-node-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("the temporary folder takes files");
        Self(path)
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("the file is ours");
    }
}

#[test]
fn its_kind_runs_beside_the_built_in_ones() {
    let pipeline = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipeline.toml");
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/xor.rs");
    let len = std::fs::metadata(&input).unwrap().len();
    let path = format!("node.source.path={}", input.display());
    let output = run(&[&pipeline.display().to_string(), "--set", &path, "--json"]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert_eq!(report["ok"], true);
    assert_eq!(node(&report, "mask")["bytes"], len);
    assert_eq!(node(&report, "mask")["kind"], "xor");
    assert_eq!(node(&report, "client")["verified_bytes"], len);
}

/// Masked once, a pattern is not what it was; masked twice, it is.
#[test]
fn two_masks_cancel_each_other() {
    let stage = |name: &str, to: &str| {
        format!("[[node]]\nname = \"{name}\"\nkind = \"xor\"\nlcore = \"lc0\"\nto = \"{to}\"\n")
    };
    let text = format!(
        r#"
[memory]
size = "8MiB"
[[lcore]]
name = "lc0"
[[node]]
name = "source"
kind = "generator"
lcore = "lc0"
count = 20
block = 5000
to = "on"
{}{}
[[node]]
name = "end"
kind = "sink"
lcore = "lc0"
verify = "pattern"
"#,
        stage("on", "off"),
        stage("off", "end"),
    );
    let config = Config::new(&text);
    let config = config.0.display().to_string();
    let output = run(&[&config, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", report(&output));
    assert_eq!(node(&report(&output), "end")["verified_bytes"], 100_000);
    let output = run(&[&config, "--json", "--set", "node.off.mask=1"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report(&output)["verdict"]["code"], "data-mismatch");
}

#[test]
fn its_keys_are_checked_like_any_other() {
    let pipeline = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipeline.toml");
    let pipeline = pipeline.display().to_string();
    let output = run(&[&pipeline, "--set", "node.mask.mask=256"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("`mask` is out of range"), "{complaint}");
}
