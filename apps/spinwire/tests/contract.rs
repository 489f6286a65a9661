//! The contract of the commands that run nothing from outside: exit codes, what goes where, and every broken config.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const DONE: i32 = 0;
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const UNFIT: i32 = 3;

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(name)
}

fn spinwire(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spinwire"))
        .args(args)
        .env_remove("SPINWIRE_QP_TIMEOUT")
        .output()
        .expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Writes `content` where only this test looks, and checks it.
fn check(name: &str, content: &[u8]) -> (Option<i32>, String) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
    fs::write(&path, content).expect("the target folder takes files");
    let output = spinwire(&["check", path.to_str().expect("the path is UTF-8")]);
    assert_eq!(text(&output.stdout), "", "{name}: a refusal is no result");
    (output.status.code(), text(&output.stderr))
}

/// The quickstart with the first line that begins with `from` replaced, as sed would.
fn broken(from: &str, to: &str) -> Vec<u8> {
    let quickstart =
        fs::read_to_string(config("quickstart.toml")).expect("the quickstart is there");
    let line =
        quickstart.lines().find(|line| line.starts_with(from)).expect("there is such a line");
    quickstart.replacen(line, to, 1).into_bytes()
}

/// Refused with exit 2, naming the culprit and its line.
fn refused(name: &str, content: &[u8], culprit: &str) {
    let (code, complaint) = check(name, content);
    assert_eq!(code, Some(USAGE), "{name}: {complaint}");
    assert!(complaint.contains(culprit), "{name}: {complaint}");
    let line =
        match String::from_utf8_lossy(content).lines().position(|line| line.contains(culprit)) {
            Some(line) => line + 1,
            None => 1,
        };
    assert!(
        complaint.contains(&format!("{name}.toml:{line}:")),
        "{name}: not at line {line}: {complaint}"
    );
}

#[test]
fn broken_configs_are_refused_at_their_line() {
    let mut unknown_table = fs::read(config("quickstart.toml")).expect("the quickstart is there");
    unknown_table.extend(b"\n[colour]\nred = 1\n");
    refused("unknown-table", &unknown_table, "colour");
    refused(
        "unknown-kind",
        &broken("kind = \"block-target\"", "kind = \"no-such-kind\""),
        "no-such-kind",
    );
    refused("unknown-key", &broken("depth", "dpeth = 32"), "dpeth");
    refused("wrong-type", &broken("depth", "depth = \"many\""), "many");
    refused("no-such-cpu", &broken("cpu", "cpu = 4096"), "4096");
    refused("syntax", b"[[node\n", "[[node");
    refused("empty", b"", "empty");
    refused("dangling-stage", &broken("to", "to = \"nobody\""), "nobody");
    refused("dangling-peer", &broken("peer", "peer = \"nobody\""), "nobody");
    refused("not-utf8", b"\xff\xfe\x00", "not UTF-8");
    refused("bad-size", &broken("block", "block = \"64KiBB\""), "64KiBB");
    refused("read-on-uc", &broken("transport", "transport = \"uc\""), "\"uc\"");
    refused("depth-zero", &broken("depth", "depth = 0"), "depth");
    refused("small-cq", &broken("cq_depth", "cq_depth = 8"), "cq_depth = 8");
}

#[test]
fn two_nodes_of_one_name() {
    let (code, complaint) =
        check("two-of-one-name", &broken("name = \"client\"", "name = \"target\""));
    assert_eq!(code, Some(USAGE));
    assert!(complaint.contains("two nodes are called `target`"), "{complaint}");
}

#[test]
fn a_missing_file_is_named() {
    let output = spinwire(&["check", "/nonexistent/none.toml"]);
    assert_eq!(output.status.code(), Some(USAGE));
    assert!(text(&output.stderr).contains("/nonexistent/none.toml"));
}

#[test]
fn bad_usage() {
    for args in [
        &["run", "--no-such-flag"][..],
        &["check"],
        &["no-such-command"],
        &[],
        &["run", "--duration", "5"],
    ] {
        assert_eq!(spinwire(args).status.code(), Some(USAGE), "{args:?}");
    }
    assert_eq!(spinwire(&["--help"]).status.code(), Some(DONE));
}

#[test]
fn every_config_passes_and_is_summed_up() {
    for entry in fs::read_dir(config("")).expect("there are configs") {
        let path = entry.expect("the folder can be read").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let output = spinwire(&["check", path.to_str().expect("the path is UTF-8")]);
        let shown = text(&output.stdout);
        assert_eq!(
            output.status.code(),
            Some(DONE),
            "{}: {}",
            path.display(),
            text(&output.stderr)
        );
        assert!(shown.starts_with("ok: ") && shown.lines().count() == 1, "{shown}");
    }
}

#[test]
fn plan_prints_one_object() {
    let quickstart = config("quickstart.toml");
    let output = spinwire(&[
        "plan",
        quickstart.to_str().expect("the path is UTF-8"),
        "--json",
        "--set",
        "memory.size=32MiB",
    ]);
    assert_eq!(output.status.code(), Some(DONE), "{}", text(&output.stderr));
    let plan: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("stdout is one JSON object");
    assert_eq!(plan["ok"], true);
    assert_eq!(plan["memory"]["size"], 32 << 20);
    assert_eq!(plan["qps"][1]["retry"]["budget_ms"], 536.870_912);
    let names: Vec<&str> = plan["nodes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|node| node["name"].as_str())
        .collect();
    assert_eq!(names, ["target", "source", "client"]);
}

#[test]
fn a_machine_that_is_too_small() {
    let quickstart = config("quickstart.toml");
    let quickstart = quickstart.to_str().expect("the path is UTF-8");
    let output = spinwire(&["plan", quickstart, "--set", "memory.size=900TiB"]);
    assert_eq!(output.status.code(), Some(UNFIT));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("does not fit this machine") && shown.contains("fix: --set memory.size="),
        "{shown}"
    );
    let output = spinwire(&["plan", quickstart, "--json", "--set", "memory.size=900TiB"]);
    assert_eq!(output.status.code(), Some(UNFIT));
    let plan: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("stdout is one JSON object");
    assert_eq!(plan["ok"], false);
    let required =
        ["run", quickstart, "--set", "memory.hugepages=require", "--set", "memory.size=900TiB"];
    let output = spinwire(&required);
    assert_eq!(output.status.code(), Some(UNFIT));
    assert!(text(&output.stderr).contains("hugepages"), "{}", text(&output.stderr));
}

#[test]
fn the_environment_is_heard_and_bad_values_are_not() {
    let quickstart = config("quickstart.toml");
    let plan = |timeout: &str| {
        Command::new(env!("CARGO_BIN_EXE_spinwire"))
            .args(["plan", quickstart.to_str().expect("the path is UTF-8"), "--json"])
            .env("SPINWIRE_CLIENT_QP_TIMEOUT", timeout)
            .output()
            .expect("the binary runs")
    };
    let timeout = |output: &Output| {
        let plan: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("stdout is one JSON object");
        plan["qps"][1]["retry"]["timeout"].clone()
    };
    let heard = plan("10");
    assert_eq!(
        timeout(&heard),
        serde_json::json!({ "value": 10, "from": "SPINWIRE_CLIENT_QP_TIMEOUT" })
    );
    let ignored = plan("32");
    assert_eq!(timeout(&ignored), serde_json::json!({ "value": 14, "from": "default" }));
    assert!(text(&ignored.stderr).contains("SPINWIRE_CLIENT_QP_TIMEOUT is ignored"));
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON object")
}

/// P02, S0-02 to S0-08: the software NIC keeps to the state table on every transport.
#[test]
fn p02_conformance_finds_no_deviation_in_the_software_nic() {
    let output = spinwire(&["conformance", "--device", "soft", "--only", "states", "--json"]);
    assert_eq!(output.status.code(), Some(DONE), "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!((&report["ok"], &report["deviations"]), (&true.into(), &serde_json::json!([])));
    assert!(report["device"].as_str().is_some_and(|device| device.starts_with("soft:127.")));
    assert!(report["checks"].as_u64().is_some_and(|checks| checks > 6000), "{report}");
    assert_eq!((&report["part"], &report["unanswered"]), (&"states".into(), &0.into()));
    let output = spinwire(&["conformance", "--device", "soft"]);
    assert_eq!(output.status.code(), Some(DONE), "{}", text(&output.stdout));
    let shown = text(&output.stdout);
    assert!(shown.contains("\nINIT -> RTR ") && shown.contains(" checks, 0 deviations"), "{shown}");
    for part in ["flush", "inline", "query", "reset", "srq", "timing", "errors", "events"] {
        for path in ["packets", "shared memory"] {
            let row =
                |line: &str| line.starts_with(&format!("ok        {part}.")) && line.contains(path);
            assert!(shown.lines().any(row), "{part} over {path}: {shown}");
        }
    }
    assert_eq!(text(&output.stderr), "", "progress is for terminals");
}

/// A device that is wrong is found out: without acknowledgements, what is sent inline fails. What deviates is listed with
/// what was expected and who says so, and nobody has an answer to it.
#[test]
fn conformance_finds_a_device_that_is_wrong() {
    let wrong = ["conformance", "--device", "soft", "--only", "inline", "--fault", "drop acks"];
    let output = spinwire(&[&wrong[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(FAILED), "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!((&report["ok"], &report["part"]), (&false.into(), &"inline".into()));
    let deviation = &report["deviations"][0];
    assert_eq!(deviation["check"], "inline.up-to-the-cap", "{report}");
    assert_eq!(
        (&deviation["path"], &deviation["answer"]),
        (&"packets".into(), &serde_json::Value::Null)
    );
    assert!(
        deviation["got"]
            .as_str()
            .is_some_and(|got| got.starts_with("1 transport retry counter exceeded (12)"))
    );
    assert!(deviation["source"].as_str().is_some_and(|source| source.contains("ibv_post_send")));
    let checked = report["results"].as_array().expect("a list");
    let failed = checked.iter().filter(|result| result["ok"] == false).count();
    assert_eq!(report["unanswered"], failed);
    assert!(failed < checked.len(), "what needs no acknowledgement is right");
}

#[test]
fn conformance_says_what_there_is() {
    let cases = [
        (&["--device", "soft", "--only", "cm"][..], "states"),
        (&["--device", "verbs:rxe0@x"], "no index of a GID"),
        (&["--device", "doca"], "not available in this build"),
        (&["--device", "nic"], "no kind of device"),
        (&["--device", "soft:eth0"], "not an address"),
        (&["--device", "soft", "--fault", "explode"], "is no fault"),
        (&["--device", "soft", "--fault", "drop acks to server"], "leave out `to`"),
        (&["--device", "soft", "--wire", "dpdk"], "--wire"),
        (&[], "--device"),
    ];
    for (args, complaint) in cases {
        let output = spinwire(&[&["conformance"], args].concat());
        assert_eq!(output.status.code(), Some(USAGE), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(text(&output.stderr).contains(complaint), "{}", text(&output.stderr));
    }
}

/// A device that this machine does not have is no deviation of it.
#[test]
fn conformance_without_the_device() {
    let output = spinwire(&["conformance", "--device", "soft:192.0.2.77", "--json"]);
    assert_eq!(output.status.code(), Some(UNFIT), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("no interface has the address 192.0.2.77"));
    // Without rdma-core the package is named, and else that there is no such device.
    let output = spinwire(&["conformance", "--device", "verbs:never0", "--json"]);
    assert_eq!(output.status.code(), Some(UNFIT), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
    let told = text(&output.stderr);
    assert!(told.contains("ibverbs") || told.contains("there is no RDMA device"), "{told}");
}

/// An address serves one process: who has it is said, once, with one that is free.
#[test]
fn conformance_on_an_address_that_is_taken() {
    let [low, high, ..] = std::process::id().to_le_bytes();
    let address = format!("127.{}.{low}.77", 200 + high % 50);
    let holder = std::net::UdpSocket::bind(format!("{address}:4791")).expect("nobody has it");
    let device = format!("soft:{address}");
    let output = spinwire(&["conformance", "--device", &device, "--json"]);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(FAILED), "{complaint}");
    let owner = format!("belongs to process {} (", std::process::id());
    assert_eq!(complaint.matches(&owner).count(), 1, "{complaint}");
    assert!(complaint.contains("use another, for instance 127."), "{complaint}");
    let listed = json(&spinwire(&["devices", "--json"]));
    let gids = listed["devices"][0]["ports"][0]["gids"].as_array().expect("a list").clone();
    let taken = gids.iter().find(|gid| gid["address"] == *address).expect("it is listed");
    assert_eq!(taken["taken"], true);
    assert!(
        taken["owner"].as_str().is_some_and(|text| text.contains(&std::process::id().to_string()))
    );
    drop(holder);
    // A child that another test is just starting has the socket too, until it runs its own program.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let output = spinwire(&["conformance", "--device", &device]);
        if output.status.code() == Some(DONE) {
            break;
        }
        assert!(Instant::now() < deadline, "{}", text(&output.stderr));
    }
}

/// P05: the list has every address with its type, and the automatic choice with its reason.
#[test]
fn p05_devices_lists_addresses_and_the_choice() {
    let output = spinwire(&["devices", "--json"]);
    assert_eq!(output.status.code(), Some(DONE), "{}", text(&output.stderr));
    let listed = json(&output);
    let port = &listed["devices"][0]["ports"][0];
    assert_eq!(
        (&listed["devices"][0]["kind"], &port["state"]),
        (&"soft".into(), &"PORT_ACTIVE".into())
    );
    let gids = port["gids"].as_array().expect("a list");
    let lo = gids.iter().find(|gid| gid["address"] == "127.0.0.1").expect("a loopback address");
    assert_eq!((&lo["type"], &lo["form"]), (&"RoCE v2".into(), &"IPv4-mapped".into()));
    assert_eq!(lo["gid"], "::ffff:127.0.0.1");
    assert_eq!(lo["active_mtu"], 4096);
    let choice = &port["choice"];
    assert!(gids.iter().any(|gid| gid["index"] == choice["index"] && gid["gid"] == choice["gid"]));
    assert!(choice["reason"].as_str().is_some_and(|reason| reason.starts_with("RoCE v2")));
    let output = spinwire(&["devices"]);
    let shown = text(&output.stdout);
    assert!(
        shown.contains("automatic choice: GID") && shown.contains("::ffff:127.0.0.1"),
        "{shown}"
    );
}

/// S0-48: the list can be kept, as a baseline that nothing overwrites; a sound one is what `--json` prints.
#[test]
fn s0_48_the_inventory_can_be_kept() {
    let file = std::env::temp_dir().join(format!("spinwire-inventory-{}.json", std::process::id()));
    let path = file.display().to_string();
    let output = spinwire(&["devices", "--save", &path]);
    assert_eq!(output.status.code(), Some(DONE), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("wire xdp: not in this build; this machine "));
    let kept = fs::read_to_string(&file).expect("it is kept");
    let kept: serde_json::Value = serde_json::from_str(&kept).expect("an object");
    assert_eq!(kept["devices"][0]["cm_roce_mode"], "RoCE v2");
    assert!(kept["devices"][0]["ports"][0]["gids"][0]["type"].is_string(), "{kept}");
    assert!(kept["machine"]["udp_counters"]["InDatagrams"].is_u64(), "{kept}");
    assert_eq!(kept["machine"]["other_wires"][1]["in_this_build"], false);
    let again = spinwire(&["devices", "--save", &path]);
    assert_ne!(again.status.code(), Some(DONE));
    assert!(text(&again.stderr).contains(&format!("cannot save the list as {path}")));
    fs::remove_file(&file).expect("it is there");
}
