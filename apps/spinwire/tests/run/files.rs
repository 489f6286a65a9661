//! Files that are not what they should be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::{Input, Running, config, report, spinwire, stderr};

/// A FIFO with nobody at its other end; removed when dropped.
struct Fifo(PathBuf);

impl Fifo {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fifo-{name}"));
        // One of a test that was killed.
        drop(fs::remove_file(&path));
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        Self(path)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        fs::remove_file(&self.0).expect("the FIFO is ours");
    }
}

/// Limits of the process are met as errors, and what raises them is named; none kills it.
#[test]
fn limits_of_a_process_are_named() {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("state");
    let run = |limit: &str, arguments: &str| {
        let line = format!("{limit} && exec {} {arguments}", env!("CARGO_BIN_EXE_spinwire"));
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).env("XDG_STATE_HOME", &state).env("SPINWIRE_QP_TIMEOUT", "18");
        shell.output().expect("sh runs")
    };
    // The descriptors end at the device, at its peers, at the file, and at the memory that peers map.
    for most in (9..=32).step_by(2) {
        let arguments = format!("run {} --json", config("quickstart.toml"));
        let output = run(&format!("ulimit -n {most}"), &arguments);
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        match output.status.code() {
            Some(0) => assert!(most > 14, "{text}"),
            Some(1 | 3) => assert!(text.contains("ulimit -n"), "{most}: {text}"),
            _ => panic!("{output:?}"),
        }
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("short-files");
    let input = Input::new("short", 1000);
    let (config, set) = (config("quickstart.toml"), input.set());
    let arguments = format!("run {config} --set {set} --json --run-dir {}", dir.display());
    let output = run("ulimit -f 0", &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert!(text.contains("ulimit -f"), "{text}");
    fs::remove_dir_all(&dir).expect("it is ours");
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
        (&["run", &config, "--set", &source][..], 2),
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
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("cannot read `/proc/self/status`: it has content"), "{text}");
}

/// A capture replaces what was in its file: what the run reads is no such file, by whatever name.
#[test]
fn a_capture_over_an_input_is_refused_before_anything_is_lost() {
    let input = Input::new("captured", 10_000);
    let before = fs::read(&input.path).unwrap();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (config_copy, link) = (dir.join("captured.toml"), dir.join("captured.link"));
    fs::copy(config("quickstart.toml"), &config_copy).unwrap();
    drop(fs::remove_file(&link));
    fs::hard_link(&input.path, &link).unwrap();
    let (config_text, set) = (config_copy.display().to_string(), input.set());
    let observed = format!("observe.capture={}", link.display());
    let server = config("quickstart-server.toml");
    let several = dir.join("captured-1.toml");
    fs::hard_link(&config_copy, &several).or_else(|_| fs::metadata(&several).map(drop)).unwrap();
    let paths = [&input.path, &link, &config_copy, Path::new(env!("CARGO_BIN_EXE_spinwire"))];
    let mut attempts: Vec<Vec<String>> = Vec::new();
    for path in paths {
        let args = ["run", &config_text, "--set", &set, "--capture", &path.display().to_string()];
        attempts.push(args.map(str::to_owned).to_vec());
    }
    attempts
        .push(["run", &config_text, "--set", &set, "--set", &observed].map(str::to_owned).to_vec());
    let args = ["run", &server, &config_text, "--set", &set, "--capture", &config_text];
    attempts.push(args.map(str::to_owned).to_vec());
    for args in &attempts {
        let output = spinwire(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        let complaint = stderr(&output);
        assert!(complaint.contains("which this run reads"), "{args:?}: {complaint}");
    }
    assert_eq!(fs::read(&input.path).unwrap(), before);
    assert_eq!(fs::read(&config_copy).unwrap(), fs::read(config("quickstart.toml")).unwrap());
    for path in [&config_copy, &link, &several] {
        fs::remove_file(path).unwrap();
    }
}

/// A run directory that was asked for and takes no report fails the run, and nothing half-written stays.
#[test]
fn a_run_directory_that_takes_no_report_fails_the_run() {
    let input = Input::new("unkept", 1000);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unkept");
    fs::create_dir_all(dir.join("report.json/in-the-way")).unwrap();
    let (config, set, dir_text) =
        (config("quickstart.toml"), input.set(), dir.display().to_string());
    let args = ["run", &config, "--set", &set, "--json", "--run-dir", &dir_text];
    let output = spinwire(&args);
    assert_eq!(output.status.code(), Some(1));
    let failed = report(&output);
    assert_eq!((&failed["ok"], &failed["verdict"]["owner"]), (&false.into(), &"local".into()));
    let summary = failed["verdict"]["summary"].as_str().unwrap();
    assert!(summary.contains("cannot write") && summary.contains("report.json"), "{summary}");
    let run = failed["verdict"]["evidence"][0].as_str().unwrap();
    assert!(run.starts_with("the run was over: done; "), "{run}");
    let mut names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["journal.jsonl", "plan.json", "report.json", "run.json", "status.json"]);
    fs::remove_dir_all(&dir).unwrap();

    let output = spinwire(&["run", &config, "--set", &set, "--run-dir", "/proc"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("cannot write to the run directory /proc: name one where"), "{text}");
    let file = input.path.display().to_string();
    let output = spinwire(&["run", &config, "--set", &set, "--run-dir", &file]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("is a file: name a directory"), "{text}");
}
