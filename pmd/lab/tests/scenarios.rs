//! Every scenario of the repository, on two seeds.

use std::path::{Path, PathBuf};

use pmd_lab::tape::{Tape, TapeError};
use pmd_lab::{Report, Scenario};
use pmd_observe::Code;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab")
}

fn scenarios() -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder())
        .expect("the folder of scenarios")
        .flatten()
        .map(|entry| entry.path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|ext| ext == "toml")).collect();
    files.sort();
    files
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).expect("a scenario")
}

fn run(text: &str, seed: u64) -> Report {
    let scenario = Scenario::parse("a scenario", text).unwrap_or_else(|report| panic!("{report}"));
    pmd_lab::run(&scenario, seed).expect("a world")
}

/// B4, S0-25: what each scenario expects comes true on every seed; the same seed
/// gives the same trace, and another seed or one altered frame another one. The scenarios show, with the counters that must move and those that
/// must not:
///
/// - S0-14, S0-19, S0-23, S3-40 `link-dead`, S0-15, S0-20, S0-24 `no-receives` and `receiver-stops`, S3-10 `slow-*`
/// - P11, S1-68 to S1-71, S2-20, S2-25 `status-12-worlds`, `peer-in-init`, `wrong-psn`, `wrong-qkey`; S1-31 `timeout-off`
/// - P12 `late-receives`, `receives-forgotten`, `rnr-stall`; P14, S1-47, S1-48, S1-50 `srq-limit`, `srq-dry`
/// - P15, S1-30, S1-66 `lost-ack`; P16, S3-15, S4-14 `cq-overrun`, `cq-killed`; S3-16, S3-39 `device-killed`
/// - P20, S3-23, S4-15 `srq-killed`; P22, S0-49, S3-17 `port-flap`, `gid-moved`; P24 `storage-outage`, `peer-killed`
/// - P04 `mtu-mismatch`, `long-frames-vanish`; B1, S1-41, S1-64 `wrong-qkey`; S1-02, S1-72 `datagrams-lost`
/// - S2-23 `drained`; S1-55, S1-57 `path-migration`
/// - S1-32, S1-33 `lost-request`, `lost-read-response`, `storm`; S4-10, S4-12 `bad-rkey`, `no-right-to-write`,
///   `misaligned-atomic`, `too-many-reads`, `message-too-long`, `broken-receive`
#[test]
fn b4_every_scenario_meets_its_expectations_and_repeats_itself() {
    let files = scenarios();
    assert!(files.len() >= 25, "{} scenarios", files.len());
    let check = |path: &PathBuf| {
        let scenario = Scenario::read(path).unwrap_or_else(|report| panic!("{report}"));
        let run = |seed| pmd_lab::run(&scenario, seed).unwrap();
        let [first, second, other] = [7, 7, 1_000_003].map(run);
        for report in [&first, &other] {
            assert!(report.ok, "{} on seed {}:\n{report}", path.display(), report.seed);
        }
        assert_eq!(first.trace_hash, second.trace_hash, "{}", path.display());
        assert_ne!(first.trace_hash, other.trace_hash, "{}", path.display());
        let text = std::fs::read_to_string(path).expect("it was read before");
        let corrupt = "[[fault]]\nmatch = { count = 1 }\ndo = \"corrupt\"\n";
        let altered = self::run(&format!("{text}\n{corrupt}"), 7);
        // Between hosts that share memory there is no frame, and in two worlds none arrives.
        let in_vain =
            ["roce-version.toml", "timeout-off.toml"].iter().any(|name| path.ends_with(name));
        let has_frames = !in_vain && !text.contains("path = \"shared\"");
        assert!(!has_frames || altered.trace_hash != first.trace_hash, "{}", path.display());
    };
    let (left, right) = files.split_at(files.len() / 2);
    std::thread::scope(|scope| {
        for half in [left, right] {
            scope.spawn(|| half.iter().for_each(check));
        }
    });
}

/// Each code of a verdict comes about: a scenario expects it, or a test of the rules does, or one of stores, which no scenario has.
#[test]
fn every_code_comes_about() {
    let texts: Vec<_> =
        scenarios().iter().map(|path| std::fs::read_to_string(path).expect("a scenario")).collect();
    let is_expected =
        |code: &&Code| texts.iter().any(|text| text.contains(&format!("verdict = \"{code}\"")));
    let rest: Vec<_> = Code::ALL.iter().filter(|code| !is_expected(code)).copied().collect();
    assert_eq!(rest, [Code::InvalidRequest, Code::DataMismatch, Code::StoreStall, Code::Unknown]);
    let tests = |path| {
        let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("the tests")
    };
    let (rules, stores) = (tests("observe/tests/why.rs"), tests("graph/tests/run/storage.rs"));
    for code in rest {
        let tests = if code == Code::StoreStall { &stores } else { &rules };
        assert!(tests.contains(&format!("Code::{code:?}")), "{code} comes about nowhere");
    }
}

/// B4: one bit of one frame is enough for another trace.
#[test]
fn b4_one_altered_frame_gives_another_trace() {
    let scenario = |fault: &str| {
        format!(
            "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[qp]]\nname = \"w\"\nfrom = \"a\"\nto = \"b\"\n\
             [[work]]\nqp = \"w\"\nop = \"write\"\ncount = 20\n{fault}"
        )
    };
    let fault = "[[fault]]\nmatch = { after = 7, count = 1 }\ndo = \"corrupt\"\n";
    let (plain, altered) = (run(&scenario(""), 7), run(&scenario(fault), 7));
    assert!(plain.ok && altered.ok);
    assert_ne!(plain.trace_hash, altered.trace_hash);
    // A fault that hits nothing changes nothing.
    let idle = "[[fault]]\nmatch = { after = 100000 }\ndo = \"corrupt\"\n";
    assert_eq!(plain.trace_hash, run(&scenario(idle), 7).trace_hash);
}

/// P15, S1-66, S3-10, S3-40: one lost path, in numbers.
#[test]
fn p15_acknowledgements_that_stop_end_in_one_status_12() {
    let report = run(&text("lost-ack.toml"), 7);
    let [qp] = &report.qps[..] else { panic!("one connection") };
    let statuses: Vec<_> =
        qp.statuses.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(statuses, [("0", 64), ("12", 1), ("5", 53)]);
    assert_eq!(qp.states, ["RTS", "RTS"]);
    assert_eq!(qp.recoveries_s.len(), 1);
}

/// A scenario that was not met says so, and what was seen instead.
#[test]
fn what_is_not_met_is_told() {
    let text = text("no-receives.toml").replace("\"13\" = 1", "\"13\" = 2");
    let report = run(&text, 7);
    assert!(!report.ok);
    let unmet: Vec<_> = report.expectations.iter().filter(|one| !one.met).collect();
    assert_eq!(unmet.len(), 1, "{report}");
    assert_eq!(unmet[0].seen, "1 x 13, 2 x 5");
    assert!(report.to_string().contains("NOT MET"));
}

/// A shared receive queue that is only named, one right, and a host that is cut off from all others.
#[test]
fn what_needs_no_words_has_a_meaning() {
    let qp = |name: &str| {
        format!(
            "[[qp]]\nname = \"{name}\"\nfrom = \"a\"\nto = \"b\"\nsrq = \"pool\"\naccess = \"write\"\n\
             [[work]]\nqp = \"{name}\"\nop = \"send\"\ncount = 40\n[[work]]\nqp = \"{name}\"\nop = \"write\"\nat = \"1ms\"\n\
             [[expect]]\nqp = \"{name}\"\nstatuses = {{ \"0\" = 41, \"12\" = 1 }}\nreceives = {{ \"0\" = 40 }}\nverdict = \"link-dead\"\n\
             [[work]]\nqp = \"{name}\"\nop = \"write\"\nat = \"3ms\"\n"
        )
    };
    let hosts = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n";
    let cut = "[[fault]]\nat = \"2ms\"\nto = \"b\"\ndo = \"partition\"\n";
    let report = run(&format!("{hosts}{}{}{cut}", qp("one"), qp("two")), 7);
    assert!(report.ok, "{report}");
}

/// A stored bit that flips after it was acknowledged: no status tells, and the comparison of all bytes does.
#[test]
fn a_flipped_bit_is_a_data_mismatch() {
    let text = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[qp]]\nname = \"w\"\nfrom = \"a\"\nto = \"b\"\n\
                [[work]]\nqp = \"w\"\nop = \"write\"\nsize = \"4KiB\"\ncount = 3\n\
                [[fault]]\nat = \"1ms\"\nto = \"b\"\nmatch = { qp = \"w\" }\ndo = \"flip 4200\"\n\
                [[expect]]\nqp = \"w\"\nstatuses = { \"0\" = 3 }\nverdict = \"data-mismatch\"\n";
    let report = run(text, 7);
    let unmet: Vec<_> = report.expectations.iter().filter(|one| !one.met).collect();
    assert_eq!(unmet.len(), 1, "{report}");
    assert_eq!(unmet[0].seen, "`w`: the bytes of request 1 differ at the two ends");
}

/// A record is played input for input, and a changed one is noticed at the input that differs.
#[test]
fn a_record_is_replayed_exactly() {
    for name in ["lost-request.toml", "shared-no-receives.toml", "gid-moved.toml"] {
        let scenario = Scenario::parse(name, &text(name)).unwrap();
        let (report, tape) = pmd_lab::run_recorded(&scenario, 7, true).unwrap();
        let record = tape.to_text().unwrap();
        let again = Tape::from_text(&record).unwrap();
        assert_eq!(again, tape);
        assert_eq!(again.replay().unwrap().trace_hash, report.trace_hash);
        let altered = record.replacen(" turn\n", " tern\n", 1);
        assert!(matches!(
            Tape::from_text(&altered).unwrap().replay(),
            Err(TapeError::Differs { is_damaged: true, .. })
        ));
        let head = record.split_once(",\"scenario\"").unwrap().0;
        let (before, sum) = head.rsplit_once(':').unwrap();
        let other = if sum == "1" { "2" } else { "1" };
        let altered = record.replacen(head, &format!("{before}:{other}"), 1);
        assert!(matches!(Tape::from_text(&altered).unwrap().replay(), Err(TapeError::Damaged(_))));
        let shorter = record.trim_end().rsplit_once('\n').unwrap().0;
        assert!(matches!(Tape::from_text(shorter), Err(TapeError::Damaged(_))));
    }
    assert!(matches!(Tape::from_text("{}"), Err(TapeError::Format(_))));
}

/// S2-17: an event is enough to begin a recovery. Nothing is under way when the responder's completion queue is lost, so that no
/// completion tells of it; the connection is back before anything is asked of it again, and every request succeeds.
#[test]
fn s2_17_an_event_alone_begins_the_recovery() {
    let scenario = "limit = \"5s\"\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[qp]]\nname = \"w\"\nfrom = \"a\"\nto = \"b\"\n\
                    depth = 8\npolicy = \"reconnect\"\n[[work]]\nqp = \"w\"\nop = \"write\"\ncount = 10\n[[work]]\nqp = \"w\"\n\
                    op = \"write\"\ncount = 10\nat = \"1s\"\n[[fault]]\nat = \"500ms\"\nto = \"b\"\nmatch = { qp = \"w\" }\n\
                    do = \"kill-cq\"\n[[expect]]\nqp = \"w\"\nstatuses = { \"0\" = 20 }\nrecovers = true\nrecovers_within = \"100ms\"\n";
    for seed in [7, 1_000_003] {
        let report = run(scenario, seed);
        assert!(report.ok, "{report}");
    }
}
