//! `spinwire lab`, `record` and `lab replay`, from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn scenario(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab").join(name)
}

fn spinwire(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spinwire")).args(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The contract of `lab run --json`: keys, exit codes, one object on stdout.
#[test]
fn a_scenario_ends_in_json_with_the_keys_of_the_contract() {
    let file = scenario("no-receives.toml");
    let output = spinwire(&["lab", "run", file.to_str().unwrap(), "--seed", "7", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["ok"], &json["seed"]), (&true.into(), &7.into()));
    assert_eq!(json["trace_hash"].as_str().map(str::len), Some(16));
    assert!(json["elapsed_virtual_s"].as_f64().is_some_and(|passed| passed > 0.0));
    assert_eq!(json["expectations"][0]["met"], true);
    assert!(json["expectations"][0]["text"].as_str().is_some_and(|text| text.contains("1 x 13")));
    assert_eq!(json["verdicts"][0]["code"], "no-receives");
    assert_eq!(json["verdicts"][0]["qp"], "w");
}

/// Not met is exit 1 and told; refused is exit 2, with line, caret and fix; a replay is exact.
#[test]
fn what_is_not_met_is_1_and_what_is_refused_is_2() {
    let folder = std::env::temp_dir().join(format!("spinwire-lab-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let good = fs::read_to_string(scenario("no-receives.toml")).unwrap();
    fs::write(path("unmet.toml"), good.replace("\"13\" = 1", "\"13\" = 3")).unwrap();
    let output = spinwire(&["lab", "run", &path("unmet.toml")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("seen instead: 1 x 13"), "{}", text(&output.stdout));

    fs::write(path("bad.toml"), good.replace("rnr_retry = 3", "rnr_retri = 3")).unwrap();
    let output = spinwire(&["lab", "run", &path("bad.toml")]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let complaint = text(&output.stderr);
    assert!(complaint.contains("has no key `rnr_retri`") && complaint.contains('^'), "{complaint}");
    assert!(complaint.contains("did you mean `rnr_retry`?"), "{complaint}");

    let file = scenario("no-receives.toml");
    let output = spinwire(&["record", file.to_str().unwrap(), &path("a.tape")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let recorded = text(&output.stdout);
    let output = spinwire(&["lab", "replay", &path("a.tape")]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), recorded));
    let told = text(&output.stderr);
    assert!(told.contains("replayed exactly: ") && told.contains(" inputs"), "{told}");
    let tape = fs::read_to_string(path("a.tape")).unwrap().replacen(" turn\n", " twist\n", 1);
    fs::write(path("b.tape"), tape).unwrap();
    let output = spinwire(&["lab", "replay", &path("b.tape")]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("on record: 0 0 twist") && told.contains("is damaged"), "{told}");
    fs::remove_dir_all(&folder).unwrap();
}
