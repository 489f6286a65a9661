//! Edges of other kinds, and ends that do not fit each other.

use pmd_observe::Code;

use crate::double::play;
use crate::verified::node;

fn pingpong(device: &str, left: &str, right: &str) -> String {
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
name = "left"
kind = "pingpong"
lcore = "lc0"
device = "d0"
peer = "right"
{left}
[[node]]
name = "right"
kind = "pingpong"
lcore = "lc0"
device = "d0"
{right}
"#
    )
}

#[test]
fn messages_go_back_and_forth() {
    for size in [1, 64, 65, 5000] {
        for device in ["", "full_every = 2\ninline = false"] {
            let size = format!("size = {size}");
            let report = play(&pingpong(device, &format!("iters = 100\n{size}"), &size));
            assert!(report.ok, "{size}, {device}: {report}");
            let left = node(&report, "left");
            assert_eq!((left.messages, left.errors), (100, 0));
            assert_eq!(left.verified_bytes, left.bytes);
            assert!(left.latency_ns.p50 > 0);
            assert_eq!(node(&report, "right").messages, 100);
        }
    }
}

#[test]
fn ends_of_different_sizes_do_not_connect() {
    let report = play(&pingpong("", "size = 64", "size = 32"));
    assert_eq!((report.ok, report.verdict.code), (false, Code::Length));
    assert_eq!(report.verdict.summary, "`size` of `right` is 32, that of the caller 64");
}

#[test]
fn a_pingpong_that_breaks() {
    let report = play(&pingpong("break_after = 7", "iters = 100", ""));
    assert!(!report.ok);
    assert!(report.verdict.summary.starts_with("the connection to `"), "{}", report.verdict);
}
