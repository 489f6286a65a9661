//! `block-client` and `block-target`: every byte of a file, whatever its size, and nothing that differs.

use std::time::Duration;

use pmd_graph::run::{NodeReport, Report, RunOptions};
use pmd_observe::{Code, Owner};

use crate::double::{Input, play, play_with};

/// A file to a target and back, all on one lcore. `device`, `source`, `client` and `target` are more keys of each.
pub(crate) fn pipeline(
    input: &Input,
    device: &str,
    source: &str,
    client: &str,
    target: &str,
) -> String {
    format!(
        r#"
[memory]
size = "16MiB"
hugepages = "none"
[device.d0]
kind = "double"
{device}
[[lcore]]
name = "lc0"
[[node]]
name = "target"
kind = "block-target"
lcore = "lc0"
device = "d0"
{target}
[[node]]
name = "source"
kind = "file-source"
lcore = "lc0"
path = "{}"
to = "client"
{source}
[[node]]
name = "client"
kind = "block-client"
lcore = "lc0"
device = "d0"
peer = "target"
{client}
"#,
        input.path.display()
    )
}

pub(crate) fn node<'a>(report: &'a Report, name: &str) -> &'a NodeReport {
    report.nodes.iter().find(|node| node.name == name).expect("there is such a node")
}

#[test]
fn files_of_every_size() {
    for len in [0, 1, 4095, 65_536, 65_537, 1_048_589] {
        let input = Input::new("sizes", len);
        let report = play(&pipeline(&input, "", "", "", ""));
        assert!(report.ok, "{len} bytes: {report}");
        assert_eq!(report.verdict.code, Code::Ok);
        let client = node(&report, "client");
        assert_eq!((client.verified_bytes, client.bytes, client.errors), (len, len, 0));
        assert_eq!(client.messages, len.div_ceil(65_536));
        assert_eq!(client.path.as_deref(), Some("double"));
        assert_eq!(node(&report, "target").bytes, len);
        assert_eq!(node(&report, "source").messages, len.div_ceil(65_536));
    }
}

#[test]
fn blocks_depths_and_queue_pairs_of_every_shape() {
    let input = Input::new("shapes", 100_003);
    for (block, client) in [
        ("block = 1000", "depth = 1"),
        ("block = 4096", "depth = 3\nqps = 4"),
        ("block = 33", "depth = 64\nqps = 2"),
        ("block = \"128KiB\"", "depth = 2"),
    ] {
        for device in ["", "full_every = 2", "full_every = 3\ninline = false"] {
            let report = play(&pipeline(&input, device, block, client, ""));
            assert!(report.ok, "{block}, {client}, {device}: {report}");
            assert_eq!(node(&report, "client").verified_bytes, input.len);
        }
    }
}

#[test]
fn repeated_files_count_every_time() {
    let input = Input::new("repeat", 70_000);
    let report = play(&pipeline(&input, "", "repeat = 3", "", ""));
    assert!(report.ok, "{report}");
    let client = node(&report, "client");
    assert_eq!((client.verified_bytes, client.messages), (3 * input.len, 6));
}

#[test]
fn without_verification_bytes_are_stored_and_not_read_back() {
    let input = Input::new("unverified", 200_000);
    let report = play(&pipeline(&input, "", "", "verify = false", ""));
    assert!(report.ok, "{report}");
    let client = node(&report, "client");
    assert_eq!((client.verified_bytes, client.bytes), (0, input.len));
    assert!(client.latency_ns.max >= client.latency_ns.p50, "{:?}", client.latency_ns);
}

/// The flipped byte is named by its place in the file, wherever it lies, and nothing else is.
#[test]
fn one_flipped_byte_is_found() {
    let input = Input::new("flip", 300_000);
    for offset in [0, 12_345, 65_536, 299_999] {
        let text = pipeline(&input, "", "", "qps = 2", "");
        let faults = vec![format!("flip target {offset}").parse().unwrap()];
        let report = play_with(&text, RunOptions { faults, ..RunOptions::default() });
        assert!(!report.ok);
        assert_eq!(report.verdict.code, Code::DataMismatch, "{}", report.verdict);
        let named = format!("byte {offset} differs: ");
        assert!(report.verdict.summary.starts_with(&named), "{}", report.verdict);
        // With it, everything in flight is given up.
        assert!((1..=64).contains(&node(&report, "client").errors), "{report}");
        assert!(node(&report, "client").verified_bytes < input.len);
    }
}

/// A byte that changes on the way to the store is found there, if a stage has computed checksums.
#[test]
fn checksums_are_compared_at_the_target() {
    let input = Input::new("crc", 150_000);
    let text =
        pipeline(&input, "", "", "verify = false", "").replace("to = \"client\"", "to = \"sum\"");
    let text = format!(
        "{text}\n[[node]]\nname = \"sum\"\nkind = \"crc32c\"\nlcore = \"lc0\"\nto = \"client\"\n"
    );
    let report = play(&text);
    assert!(report.ok, "{report}");
    assert_eq!(node(&report, "target").verified_bytes, input.len);
    assert_eq!(node(&report, "sum").bytes, input.len);
    assert_eq!(node(&report, "client").verified_bytes, 0);
}

#[test]
fn a_file_larger_than_the_store_is_refused_with_the_fix() {
    let input = Input::new("large", 300_000);
    let report = play(&pipeline(&input, "", "", "", "capacity = \"256KiB\""));
    assert_eq!((report.ok, report.verdict.code), (false, Code::Length));
    assert_eq!(report.verdict.owner, Owner::Config);
    let summary = &report.verdict.summary;
    assert!(summary.contains("300000 bytes"), "{summary}");
    assert!(summary.contains("raise memory.size"), "{summary}");
    assert_eq!(node(&report, "client").messages, 0);
}

#[test]
fn two_clients_share_a_target() {
    let (first, second) = (Input::new("one", 150_001), Input::new("two", 90_000));
    let more = pipeline(&second, "", "", "", "");
    let more = more.split("name = \"source\"").nth(1).unwrap();
    let more = format!("[[node]]\nname = \"source2\"{more}")
        .replace("to = \"client\"", "to = \"client2\"")
        .replace("name = \"client\"", "name = \"client2\"");
    let report = play(&format!("{}{more}", pipeline(&first, "", "", "", "")));
    assert!(report.ok, "{report}");
    assert_eq!(node(&report, "client").verified_bytes, first.len);
    assert_eq!(node(&report, "client2").verified_bytes, second.len);
    assert_eq!(node(&report, "target").bytes, first.len + second.len);
}

/// Two files into one client lie end to end in the store.
#[test]
fn two_sources_feed_a_client() {
    let (first, second) = (Input::new("left", 100_001), Input::new("right", 77_777));
    let more = format!(
        "[[node]]\nname = \"other\"\nkind = \"file-source\"\nlcore = \"lc0\"\npath = \"{}\"\nto = \"client\"\n",
        second.path.display()
    );
    let report = play(&format!("{}{more}", pipeline(&first, "", "block = 5000", "", "")));
    assert!(report.ok, "{report}");
    assert_eq!(node(&report, "client").verified_bytes, first.len + second.len);
}

/// A byte that nobody stores cannot be flipped, and a run that was to show it fails.
#[test]
fn a_flip_beyond_what_is_stored_fails() {
    let input = Input::new("beyond", 1000);
    let text = pipeline(&input, "", "", "", "");
    let faults = vec!["flip target 1000".parse().unwrap()];
    let report = play_with(&text, RunOptions { faults, ..RunOptions::default() });
    assert!(!report.ok, "{report}");
    assert_eq!(report.verdict.summary, "`target`: no client stored byte 1000: nothing was flipped");
}

/// A run that is ended drains: what was begun is verified, and the report says so.
#[test]
fn a_run_that_is_ended_reports_what_it_did() {
    let input = Input::new("ended", 100_000);
    let text = pipeline(&input, "", "repeat = 4000000000", "", "");
    let options = RunOptions { duration: Some(Duration::from_millis(60)), ..RunOptions::default() };
    let report = play_with(&text, options);
    assert!(report.ok, "{report}");
    let client = node(&report, "client");
    assert!(client.verified_bytes > 0);
    assert_eq!(client.verified_bytes, client.bytes);
    assert_eq!(node(&report, "target").bytes, client.bytes);
}
