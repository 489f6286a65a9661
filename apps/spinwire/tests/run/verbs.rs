//! Devices of rdma-core, on machines that have none: what is missing is named, and everything else works. What they do where
//! there is one, `ci/lab` shows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::bench::{Input, command, config, node, report, stderr};

/// What helps where libibverbs is not installed.
const PACKAGES: &str = "apt install libibverbs1 ibverbs-providers";

/// A folder with a libibverbs in it that is none: the loader finds that one first, and cannot load it.
fn without_library() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-rdma-core");
    fs::create_dir_all(&folder).expect("the target folder takes directories");
    fs::write(folder.join("libibverbs.so.1"), b"").expect("the folder takes files");
    folder
}

fn spinwire(arguments: &[&str]) -> Output {
    command(arguments).env("LD_LIBRARY_PATH", without_library()).output().expect("the binary runs")
}

#[test]
fn without_rdma_core_the_package_is_named() {
    let quickstart = config("quickstart-verbs.toml");
    for arguments in [
        &["run", &quickstart][..],
        &["plan", &quickstart],
        &["perf", "send-bw", "--device", "verbs", "--processes", "1"],
        &["perf", "send-bw", "--device", "verbs:mlx5_0"],
        &["conformance", "--device", "verbs"],
    ] {
        let output = spinwire(arguments);
        let told = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {told}");
        assert!(told.contains(PACKAGES), "{arguments:?}: {told}");
    }
}

#[test]
fn without_rdma_core_everything_else_works() {
    let input = Input::new("no-rdma-core", 100_000);
    let output = spinwire(&["run", &config("quickstart.toml"), "--set", &input.set(), "--json"]);
    assert_eq!(node(&report(&output), "client")["verified_bytes"], 100_000);
    let devices = spinwire(&["devices", "--json"]);
    assert_eq!(devices.status.code(), Some(0), "{}", stderr(&devices));
    let found = report(&devices);
    assert_eq!(found["devices"][0]["kind"], "soft");
    let reason = found["unavailable"][1]["reason"].as_str().expect("a reason");
    assert!(reason.contains(PACKAGES), "{reason}");
}

/// What only the software NIC has is refused by name, with what has it.
#[test]
fn what_only_a_software_nic_has_is_refused() {
    let quickstart = config("quickstart-verbs.toml");
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("never-written.pcapng");
    let capture = capture.display().to_string();
    for (arguments, named) in [
        (&["run", &quickstart, "--fault", "drop all every 9"][..], "tc netem"),
        (&["run", &quickstart, "--capture", &capture], "tcpdump"),
        (&["perf", "send-bw", "--device", "verbs", "--wire", "shm"], "kind = \"soft\""),
    ] {
        let output = spinwire(arguments);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(named), "{arguments:?}: {told}");
    }
}
