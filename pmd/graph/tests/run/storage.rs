//! `block-load` and both stores of `block-target`: whatever is asked for, every block holds what it should, and what fails
//! is said.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pmd_graph::run::{Progress, Report, RunOptions};
use pmd_observe::{Code, Owner};

use crate::double::{Input, play, play_with};
use crate::verified::{node, pipeline};

const MIB: u64 = 1 << 20;
/// Blocks of the span that [`storage`] works on.
const BLOCKS: u64 = 64;

/// A load on a target, all on one lcore. `device`, `load` and `target` are more keys of each.
fn storage(device: &str, load: &str, target: &str) -> String {
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
name = "load"
kind = "block-load"
lcore = "lc0"
device = "d0"
peer = "target"
span = "256KiB"
{load}
"#
    )
}

/// A file without a name, through the page cache or not.
const FILE: &str = "backend = \"file\"\nsize = \"1MiB\"";
const CACHED: &str = "backend = \"file\"\nsize = \"1MiB\"\ndirect = \"off\"\ndepth = 3";

/// A file of a test, removed when dropped.
struct Store(PathBuf);

impl Store {
    fn new(name: &str, len: u64) -> Self {
        let name = format!("pmd-graph-store-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = fs::File::create(&path).expect("the temporary folder takes files");
        file.set_len(len).expect("holes take no room");
        Self(path)
    }

    fn keys(&self, more: &str) -> String {
        format!("backend = \"file\"\npath = \"{}\"\n{more}", self.0.display())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        fs::remove_file(&self.0).expect("the file is ours");
    }
}

#[test]
fn loads_of_every_shape() {
    for target in ["", FILE, CACHED] {
        for (load, verified) in [
            ("workload = \"random\"\ncount = 500", 500..=500),
            ("workload = \"sequential\"\nreads = 0\ncount = 100\nflush = 7", BLOCKS..=BLOCKS),
            ("workload = \"mixed\"\ncount = 400\nqps = 3\ndepth = 5", 300..=400),
            ("workload = \"mixed\"\nreads = 50\ncount = 300\ndepth = 1", 180..=250),
        ] {
            for device in ["", "full_every = 2", "full_every = 3\ninline = false"] {
                let report = play(&storage(device, load, target));
                assert!(report.ok, "{load}, {target}, {device}: {report}");
                let node = node(&report, "load");
                let count = load.split("count = ").nth(1).unwrap();
                let count: u64 = count.lines().next().unwrap().parse().unwrap();
                assert_eq!((node.messages, node.bytes), (count, count * 4096), "{load}");
                let blocks = node.verified_bytes / 4096;
                assert!(verified.contains(&blocks), "{load}: {blocks} of {count} verified");
                assert_eq!((node.errors, node.path.as_deref()), (0, Some("double")));
                assert!(node.latency_ns.max >= node.latency_ns.p50);
            }
        }
    }
}

/// The target counts what is filled and checked as well; without verification there is nothing beside the work.
#[test]
fn what_the_target_counts() {
    for target in ["", FILE] {
        let report = play(&storage("", "count = 100\nreads = 0", target));
        assert_eq!(node(&report, "target").messages, 2 * BLOCKS + 100, "{report}");
        let report = play(&storage("", "count = 100\nverify = false", target));
        assert!(report.ok, "{report}");
        assert_eq!(node(&report, "target").messages, 100);
        let load = node(&report, "load");
        assert_eq!((load.messages, load.verified_bytes), (100, 0));
    }
}

/// Without a count or a time, as many requests as there are blocks; with a time, as many as fit.
#[test]
fn how_a_load_ends() {
    let report = play(&storage("", "workload = \"sequential\"", ""));
    assert_eq!(node(&report, "load").messages, BLOCKS, "{report}");
    let report = play(&storage("", "duration = \"50ms\"", FILE));
    assert!(report.ok && node(&report, "load").messages > 0, "{report}");
    assert!(report.elapsed_s >= 0.05);
    let options = RunOptions { duration: Some(Duration::from_millis(50)), ..RunOptions::default() };
    let report = play_with(&storage("", "duration = \"1h\"\nworkload = \"mixed\"", ""), options);
    assert!(report.ok && node(&report, "load").messages > 0, "{report}");
}

#[test]
fn blocks_that_are_no_page() {
    for block in ["512", "1000", "12288", "\"128KiB\""] {
        for target in ["", FILE] {
            let load = format!("block = {block}\nworkload = \"mixed\"\ncount = 50\ndepth = 4");
            let report = play(&storage("", &load, target));
            assert!(report.ok, "{block}, {target}: {report}");
        }
    }
}

/// A file keeps what a client stored, and the client of another run finds its part where it was.
#[test]
fn a_file_that_stays() {
    let store = Store::new("stays", 2 * MIB);
    let input = Input::new("stays", 300_001);
    let text = pipeline(&input, "", "", "", &store.keys("direct = \"auto\""));
    let report = play(&text);
    assert!(report.ok, "{report}");
    assert_eq!(node(&report, "client").verified_bytes, input.len);
    let (stored, sent) = (fs::read(&store.0).unwrap(), fs::read(&input.path).unwrap());
    assert_eq!(stored.len() as u64, 2 * MIB);
    assert!(stored[..sent.len()] == sent, "the file holds what was sent");
}

/// The flipped byte is named by its place, and nothing else is.
#[test]
fn one_flipped_byte_is_found() {
    for target in ["", FILE] {
        for offset in [0, 4095, 100_000] {
            let faults = vec![format!("flip target {offset}").parse().unwrap()];
            let options = RunOptions { faults, ..RunOptions::default() };
            let report =
                play_with(&storage("", "workload = \"sequential\"\nqps = 2", target), options);
            assert_eq!(report.verdict.code, Code::DataMismatch, "{report}");
            let [fault] = &report.faults[..] else { panic!("{:?}", report.faults) };
            assert_eq!((&*fault.device, fault.hits), ("target", 1), "{report}");
            assert!(report.to_string().contains(&format!("`{}` changed 1 bytes", fault.rule)));
            let named = format!("byte {offset} differs: ");
            assert!(report.verdict.summary.starts_with(&named), "{}", report.verdict);
            // With it, everything in flight is given up: up to 32 requests on each of two queue pairs.
            assert!((1..=64).contains(&node(&report, "load").errors), "{report}");
        }
    }
}

fn fails(report: &Report, code: Code, owner: Owner, words: &[&str]) {
    assert!(!report.ok, "{report}");
    let text = report.verdict.to_string();
    assert_eq!((report.verdict.code, report.verdict.owner), (code, owner), "{text}");
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
}

/// A disk that hangs: the target says which, and by its word the load says the same of its peer.
#[test]
fn p24_a_store_that_hangs_is_named_by_its_target() {
    let store = Store::new("hangs", MIB);
    let target = store.keys("store_timeout = \"150ms\"");
    for after in [0, 100] {
        let faults = vec![format!("hang target after {after}").parse().unwrap()];
        let options = RunOptions { faults, ..RunOptions::default() };
        let report = play_with(&storage("", "duration = \"1h\"", &target), options);
        let path = format!("the store of `target`, `{}`, has not answered a", store.0.display());
        let words = [&*path, "32 requests are in flight there", "node.target.store_timeout"];
        fails(&report, Code::StoreStall, Owner::Local, &words);
        // What was answered counts, what was not is an error, once each.
        let (load, served) = (node(&report, "load"), node(&report, "target"));
        assert_eq!((served.messages, load.errors), (after, 32), "{report}");
        assert_eq!(load.messages, after.saturating_sub(BLOCKS), "{report}");
    }
}

/// A store that was to hang and was not asked so often: whoever looks for its effect would be misled.
#[test]
fn a_hang_that_does_not_come_is_told() {
    let faults = vec!["hang target after 1000".parse().unwrap()];
    let options = RunOptions { faults, ..RunOptions::default() };
    let report = play_with(&storage("", "count = 10", ""), options);
    fails(&report, Code::InvalidRequest, Owner::Config, &["it did not hang"]);
}

/// The same where the target waits for its disk for ever: its clients do not. Keep-alives are answered all the while, and
/// say for how long the store has had a request.
#[test]
fn p24_a_store_that_hangs_is_given_up_by_its_clients() {
    let keys = "request_timeout = \"200ms\"\nkeep_alive = \"100ms\"";
    let input = Input::new("hangs", 300_001);
    for target in ["", "backend = \"file\"\nsize = \"1MiB\"\nstore_timeout = \"0s\""] {
        let load = storage("", &format!("duration = \"1h\"\n{keys}"), target);
        let client = pipeline(&input, "", "", keys, target);
        for (text, name) in [(load, "load"), (client, "client")] {
            // One of them is enough, while others are answered.
            let faults = vec!["hang target after 3".parse().unwrap()];
            let options = RunOptions { faults, ..RunOptions::default() };
            let report = play_with(&text, options);
            let knob = format!("node.{name}.request_timeout");
            let words = [
                "the store of `target` has not answered a request for",
                "the target lives, and says that its store had a request for",
                &knob,
            ];
            fails(&report, Code::StoreStall, Owner::Remote, &words);
        }
    }
}

#[test]
fn direct_io_that_does_not_fit() {
    let store = Store::new("unaligned", MIB);
    let target = store.keys("direct = \"require\"");
    let report = play(&storage("", "block = 1000\ncount = 10", &target));
    let words = ["does not fit the direct I/O of `target`", "multiple of", "node.target.direct"];
    fails(&report, Code::RemoteOperation, Owner::Remote, &words);
    assert!((1..=32).contains(&node(&report, "load").errors), "all that was in flight");
}

/// A file that somebody cuts under way.
#[test]
fn a_file_that_is_cut_meanwhile() {
    for direct in ["auto", "off"] {
        let store = Store::new(&format!("cut-{direct}"), MIB);
        let text = storage("", "duration = \"1h\"", &store.keys(&format!("direct = \"{direct}\"")));
        let mut cut = |progress: &Progress| {
            if progress.bytes > 0 {
                fs::File::options().write(true).open(&store.0).unwrap().set_len(8192).unwrap();
            }
        };
        let options = RunOptions { watcher: Some(&mut cut), ..RunOptions::default() };
        let report = play_with(&text, options);
        let words = ["the store of `target` ends within the block of 4096 bytes", "cut the file"];
        fails(&report, Code::RemoteOperation, Owner::Remote, &words);
    }
}

#[test]
fn stores_that_cannot_be_opened() {
    let memory = "/dev/shm/pmd-graph-storage-test";
    for (target, words) in [
        (
            "backend = \"file\"\npath = \"/nonexistent/blocks\"".to_owned(),
            ["cannot open `/nonexistent/blocks`", "node.target.path"],
        ),
        (
            format!(
                "backend = \"file\"\nsize = \"1MiB\"\ndirect = \"require\"\npath = \"{memory}\""
            ),
            ["a file system without direct I/O", "node.target.direct"],
        ),
    ] {
        let report = play(&storage("", "", &target));
        fails(&report, Code::Unknown, Owner::Config, &words);
    }
    fs::remove_file(memory).expect("the store made it");
    let foreign = Store::new("foreign", 0);
    fs::write(&foreign.0, "somebody's words").expect("the file is ours");
    let report = play(&storage("", "", &foreign.keys("size = \"1MiB\"")));
    let words = ["holds data and is not known to be a store", "node.target.overwrite"];
    fails(&report, Code::Unknown, Owner::Config, &words);
    assert_eq!(fs::read(&foreign.0).expect("it is there"), b"somebody's words");
    let report =
        play(&storage("", "count = 10", &foreign.keys("size = \"1MiB\"\noverwrite = true")));
    assert!(report.ok, "{report}");
    let store = Store::new("empty", 0);
    let report = play(&storage("", "", &store.keys("")));
    fails(&report, Code::Unknown, Owner::Config, &["is empty: say how large", "node.target.size"]);
}

/// Several clients of both kinds share a target; each has its part of the store.
#[test]
fn clients_share_a_store() {
    let input = Input::new("shared", 200_000);
    let text = pipeline(&input, "", "", "", "backend = \"file\"\nsize = \"2MiB\"\ndepth = 5");
    let loads: Vec<String> = (0..2)
        .map(|number| {
            let keys = "workload = \"mixed\"\ncount = 300\ndepth = 8\nqps = 2";
            let load = storage("", keys, "");
            let load = load.split("name = \"load\"").nth(1).unwrap();
            format!("[[node]]\nname = \"load{number}\"{load}\nseed = {number}\n")
        })
        .collect();
    let report = play(&format!("{text}{}", loads.concat()));
    assert!(report.ok, "{report}");
    assert_eq!(node(&report, "client").verified_bytes, input.len);
    for name in ["load0", "load1"] {
        assert_eq!(node(&report, name).messages, 300);
    }
}

#[test]
fn more_than_there_is() {
    let report = play(&storage("", "", "capacity = \"128KiB\""));
    let words = ["262144 bytes are to be stored", "room for 131072", "capacity of `target`"];
    fails(&report, Code::Length, Owner::Config, &words);
    let small = "backend = \"file\"\nsize = \"128KiB\"";
    let words = ["262144 bytes are to be stored", "raise the size of `target`"];
    fails(&play(&storage("", "", small)), Code::Length, Owner::Config, &words);
    let few = "backend = \"file\"\nsize = \"1MiB\"\nbuffers = \"64KiB\"";
    let words = ["32 blocks of 4096 bytes", "65536 bytes of buffers", "raise the buffers of"];
    fails(&play(&storage("", "", few)), Code::Length, Owner::Config, &words);
    let words = ["`load` has 262144 bytes to work on, less than a block", "node.load.span"];
    let report = play(&storage("", "block = \"512KiB\"\ndepth = 1", "capacity = \"1MiB\""));
    fails(&report, Code::Length, Owner::Config, &words);
}

/// The connection breaks at some moment: the run ends, and says that it failed.
#[test]
fn a_connection_that_breaks_at_any_moment() {
    for target in ["", FILE] {
        // While it fills, works and checks.
        for after in [1, 6, 33, 47, 60] {
            let load = "count = 20\nspan = \"64KiB\"\ndepth = 4\nworkload = \"mixed\"";
            let text = storage(&format!("break_after = {after}"), load, target);
            let report = play(&text.replace("span = \"256KiB\"\n", ""));
            assert!(!report.ok, "broken at submission {after}: {report}");
            let summary = &report.verdict.summary;
            assert!(summary.contains("the connection to `"), "{after}: {summary}");
        }
    }
}
