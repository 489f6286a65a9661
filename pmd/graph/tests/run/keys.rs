//! `kv-client` and `kv-server`: what is put comes back, whatever the shape of the load, and what is no request is answered
//! or ends its connection alone.

use std::sync::Arc;
use std::time::Duration;

use pmd_graph::run::RunOptions;
use pmd_observe::{Code, Owner};

use crate::double::{play, play_of, play_with, registry};
use crate::vandal::{MISCHIEF, VandalKind};
use crate::verified::node;

/// A client and a server on one lcore. `device`, `client` and `server` are more keys of each.
fn pipeline(device: &str, client: &str, server: &str) -> String {
    format!(
        r#"
[memory]
size = "64MiB"
hugepages = "none"
[device.d0]
kind = "double"
{device}
[[lcore]]
name = "lc0"
[[node]]
name = "server"
kind = "kv-server"
lcore = "lc0"
device = "d0"
{server}
[[node]]
name = "client"
kind = "kv-client"
lcore = "lc0"
device = "d0"
peer = "server"
{client}
"#
    )
}

/// The shares of verified bytes: with nothing but PUTs, each key once at the end; with nothing but GETs, each request too.
#[test]
fn every_value_that_comes_back_is_the_one_that_was_put() {
    for value in [1_u64, 8, 40, 41, 1000] {
        for (get, more) in [
            (0, "qps = 3\ndepth = 5"),
            (100, "qps = 1\ndepth = 1"),
            (50, "qps = 4\ndepth = 40\ndistribution = \"zipf\""),
        ] {
            for device in ["", "full_every = 2", "full_every = 3\ninline = false"] {
                let client =
                    format!("keys = 50\ncount = 400\nvalue = {value}\nget = {get}\n{more}");
                let report = play(&pipeline(device, &client, "value = \"1KiB\"\ncapacity = 50"));
                assert!(report.ok, "{client}, {device}: {report}");
                let client = node(&report, "client");
                assert_eq!((client.messages, client.bytes, client.errors), (400, 400 * value, 0));
                let gets = client.verified_bytes / value - 50;
                match get {
                    0 | 100 => assert_eq!(gets, get * 4),
                    _ => assert!((100..300).contains(&gets), "{gets} of 400"),
                }
                assert!(client.latency_ns.p50 > 0);
                assert_eq!(client.path.as_deref(), Some("double"));
                let server = node(&report, "server");
                assert_eq!((server.messages, server.errors), (50 + 400 + 50, 0));
            }
        }
    }
}

/// Without a preload there is nothing to be found, and that is right.
#[test]
fn keys_that_were_never_put_are_not_found() {
    let client = "keys = 20\ncount = 100\nget = 100\npreload = false";
    let report = play(&pipeline("", client, ""));
    assert!(report.ok, "{report}");
    let client = node(&report, "client");
    assert_eq!((client.messages, client.bytes, client.verified_bytes), (100, 0, 0));
}

#[test]
fn a_byte_that_changes_in_the_table_is_found() {
    let client = "keys = 30\ncount = 200\nvalue = 10\nget = 100";
    for flip in [0, 123, 299] {
        let faults = vec![format!("flip server {flip}").parse().unwrap()];
        let options = RunOptions { faults, ..RunOptions::default() };
        let report = play_with(&pipeline("", client, ""), options);
        assert!(!report.ok);
        assert_eq!(report.verdict.code, Code::DataMismatch, "{}", report.verdict);
        let (key, byte) = (flip / 10, flip % 10);
        let named = format!("key {key} differs at `server`: byte {byte} of its value was put as ");
        assert!(report.verdict.summary.starts_with(&named), "{}", report.verdict);
    }
    // Nobody looks.
    let unverified = format!("{client}\nverify = false");
    let faults = vec!["flip server 0".parse().unwrap()];
    let options = RunOptions { faults, ..RunOptions::default() };
    let report = play_with(&pipeline("", &unverified, ""), options);
    assert!(report.ok, "{report}");
    assert_eq!(node(&report, "client").verified_bytes, 0);
    let faults = vec!["flip server 1000000".parse().unwrap()];
    let options = RunOptions { faults, ..RunOptions::default() };
    let report = play_with(&pipeline("", client, ""), options);
    let summary = "`server`: no client put byte 1000000: nothing was flipped";
    assert_eq!(report.verdict.summary, summary);
}

/// A full table answers, and the client says what to raise.
#[test]
fn a_full_table_is_named() {
    let report = play(&pipeline("", "keys = 11\nqps = 2", "capacity = 10"));
    assert_eq!((report.ok, report.verdict.code), (false, Code::Length));
    assert_eq!(report.verdict.owner, Owner::Config);
    let summary = "`server` keeps as many keys as it has room for: raise its `capacity`";
    assert_eq!(report.verdict.summary, summary);
    let report = play(&pipeline("", "keys = 10\nqps = 2\ncount = 50", "capacity = 10"));
    assert!(report.ok, "{report}");
}

#[test]
fn values_that_are_too_long_are_refused_before_anything_is_sent() {
    let report = play(&pipeline("", "value = 17", "value = 16"));
    assert_eq!((report.ok, report.verdict.code), (false, Code::Length));
    let summary = &report.verdict.summary;
    assert!(summary.starts_with("values of 17 bytes are to be kept, and `server`"), "{summary}");
    assert!(summary.ends_with("raise the `value` of `server`"), "{summary}");
    assert_eq!(node(&report, "server").messages, 0);
}

/// Each of two clients has keys of its own, and a server that grants less depth than was asked for serves them as well.
#[test]
fn two_clients_do_not_see_each_others_keys() {
    let keys = "keys = 100\ncount = 1000\nget = 50\nqps = 2";
    let text = pipeline("", keys, "capacity = 200\ndepth = 3");
    let more = format!(
        "[[node]]\nname = \"other\"\nkind = \"kv-client\"\nlcore = \"lc0\"\ndevice = \"d0\"\npeer = \"server\"\n{keys}\n"
    );
    let report = play(&format!("{text}{more}"));
    assert!(report.ok, "{report}");
    for name in ["client", "other"] {
        assert_eq!(node(&report, name).messages, 1000);
        assert!(node(&report, name).verified_bytes > 100 * 32);
    }
    assert_eq!(node(&report, "server").messages, 2 * (100 + 1000 + 100));
}

/// The load lasts as long as it is told, and what it put is read all the same.
#[test]
fn a_load_by_the_clock() {
    let client = "keys = 40\nduration = \"30ms\"\nget = 0";
    let report = play(&pipeline("", client, ""));
    assert!(report.ok, "{report}");
    let client = node(&report, "client");
    assert!(client.messages > 0);
    assert_eq!(client.verified_bytes, 40 * 32, "{report}");
}

#[test]
fn a_run_that_is_ended_drains() {
    let client = "keys = 40\nduration = \"1h\"";
    let options = RunOptions { duration: Some(Duration::from_millis(60)), ..RunOptions::default() };
    let report = play_with(&pipeline("", client, ""), options);
    assert!(report.ok, "{report}");
    assert!(node(&report, "client").verified_bytes > 0);
    assert_eq!(node(&report, "client").errors, 0);
}

/// The connection breaks at every moment: the run ends, and says that it failed.
#[test]
fn a_connection_that_breaks_at_any_moment() {
    // 3 requests to preload, 4 to measure, 3 to check, by one submission each.
    for after in [1, 3, 5, 8, 10] {
        let device = format!("break_after = {after}");
        let report = play(&pipeline(&device, "keys = 3\ncount = 4\ndepth = 2", ""));
        assert!(!report.ok, "broken at submission {after}: {report}");
        let summary = &report.verdict.summary;
        assert!(summary.contains("the connection to `"), "{after}: {summary}");
    }
}

/// Who does not keep to the protocol loses its connection; everybody else is served to the end.
#[test]
fn nonsense_ends_its_own_connection_and_no_other() {
    for (word, _, reason) in MISCHIEF {
        let more = format!(
            "[[node]]\nname = \"vandal\"\nkind = \"kv-vandal\"\nlcore = \"lc0\"\ndevice = \"d0\"\npeer = \"server\"\nmischief = \"{word}\"\n"
        );
        let text = pipeline("", "keys = 50\ncount = 5000", "");
        let mut registry = registry();
        registry.register(Arc::new(VandalKind::new())).unwrap();
        let report = play_of(&format!("{text}{more}"), &registry, RunOptions::default());
        assert!(!report.ok, "{word}: {report}");
        assert_eq!(node(&report, "vandal").messages, 1, "{word}: it was answered first");
        let (client, server) = (node(&report, "client"), node(&report, "server"));
        assert_eq!((client.messages, client.errors), (5000, 0), "{word}: {report}");
        assert!(client.verified_bytes > 50 * 32);
        assert_eq!(server.errors, 2, "a key that is not its own, and the nonsense");
        let summary = &report.verdict.summary;
        assert!(summary.contains(reason) && summary.contains("`vandal`"), "{word}: {summary}");
    }
}

/// P12, S3-40: a peer that asks and never posts a receive is waited for without limit by its queue pair (rnr_retry = 7), and not
/// by the run: the connection is given up in bounded time, with the verdict that names it. Nobody else notices.
#[test]
fn p12_a_peer_that_never_posts_a_receive_is_given_up() {
    for wire in ["shm", "udp"] {
        let more = "[[node]]\nname = \"vandal\"\nkind = \"kv-vandal\"\nlcore = \"lc0\"\ndevice = \"d0\"\npeer = \"server\"\nmischief = \"deaf\"\n";
        let text = pipeline("", "keys = 50\ncount = 5000", "stall_timeout = \"600ms\"");
        let text =
            text.replace("kind = \"double\"", &format!("kind = \"soft\"\nwire = \"{wire}\""));
        let mut registry = registry();
        registry.register(Arc::new(VandalKind::new())).unwrap();
        let report = play_of(&format!("{text}{more}"), &registry, RunOptions::default());
        let verdict = &report.verdict;
        assert_eq!((verdict.code, verdict.owner), (Code::RnrStall, Owner::Remote), "{report}");
        assert!(verdict.summary.contains("`vandal` has had no receive posted for"), "{report}");
        assert_eq!(verdict.knob.as_deref(), Some("node.server.rnr_retry"));
        let evidence = verdict.evidence.join("\n");
        assert!(
            evidence.contains("none had ended for 6") && evidence.contains("stall_timeout"),
            "{evidence}"
        );
        let (client, server) = (node(&report, "client"), node(&report, "server"));
        assert_eq!((client.messages, client.errors, server.errors), (5000, 0, 1 + 1), "{report}");
    }
}
