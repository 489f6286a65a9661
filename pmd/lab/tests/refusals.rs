//! What a scenario cannot say is refused with its line, a caret and a way out.

use std::path::Path;

use pmd_lab::Scenario;
use pmd_sim::Rng;

const GOOD: &str = r#"
[[host]]
name = "a"
[[host]]
name = "b"
[[qp]]
name = "w"
from = "a"
to = "b"
[[work]]
qp = "w"
op = "write"
"#;

/// The report on `GOOD` with `from` replaced by `to`, or with `to` behind it where `from` is empty.
fn refused(from: &str, to: &str) -> String {
    let text = if from.is_empty() { format!("{GOOD}{to}") } else { GOOD.replacen(from, to, 1) };
    match Scenario::parse("s.toml", &text) {
        Ok(_) => panic!("taken: {to}"),
        Err(report) => report.to_string(),
    }
}

#[test]
fn unknown_keys_and_tables_are_refused_with_the_fix() {
    assert!(Scenario::parse("s.toml", GOOD).is_ok());
    let report = refused("op = ", "opp = ");
    assert!(report.contains("this work has no key `opp`"), "{report}");
    assert!(report.contains("s.toml:12:1"), "{report}");
    assert!(report.contains("did you mean `op`?") && report.contains('^'), "{report}");
    let report = refused("[[work]]", "[[wrok]]");
    assert!(report.contains("a scenario has no table `wrok`"), "{report}");
    assert!(report.contains("did you mean `work`?"), "{report}");
    let report = refused("\n", "sede = 3\n");
    assert!(report.contains("a scenario has no key `sede`"), "{report}");
    let report = refused("", "[[fault]]\nmatch = { opcode = \"all\", afer = 3 }\ndo = \"drop\"\n");
    assert!(report.contains("did you mean `after`?"), "{report}");
}

#[test]
fn dangling_names_are_refused() {
    for (from, to, what) in [
        ("to = \"b\"", "to = \"bb\"", "no host is called `bb`"),
        ("qp = \"w\"", "qp = \"v\"", "no qp is called `v`"),
        (
            "to = \"b\"",
            "to = \"b\"\nsrq = \"pol\"\n[[srq]]\nname = \"pool\"\nhost = \"b\"\ndepth = 8",
            "no srq is called `pol`",
        ),
        ("", "[[expect]]\nqp = \"x\"\n", "no qp is called `x`"),
        ("", "[[fault]]\nto = \"c\"\ndo = \"pause\"\n", "no host is called `c`"),
        ("", "[[fault]]\nmatch = { qp = \"x\" }\ndo = \"drop\"\n", "no qp is called `x`"),
    ] {
        let report = refused(from, to);
        assert!(report.contains(what), "{report}");
    }
}

#[test]
fn impossible_values_are_refused() {
    for (from, to, what) in [
        ("to = \"b\"", "to = \"b\"\ntimeout = 32", "`timeout` is out of range"),
        ("to = \"b\"", "to = \"a\"", "is connected to its own host"),
        ("to = \"b\"", "to = \"b\"\nsgid_index = 3", "has no address of index 3"),
        (
            "to = \"b\"",
            "to = \"b\"\ntransport = \"uc\"\nretry_cnt = 3",
            "`retry_cnt` does not exist on Uc",
        ),
        ("op = \"write\"", "op = \"write\"\nat = \"11s\"", "the scenario ends before this"),
        (
            "name = \"b\"",
            "name = \"b\"\nmtu = 1024\n[[host]]\nname = \"c\"\n[[qp]]\nname = \"x\"\nfrom = \"c\"\nto = \"b\"\nmtu = 4096",
            "more than its port carries",
        ),
        ("name = \"b\"", "name = \"b\"\naddress = \"10.0.0.1\"", "10.0.0.1 is taken twice"),
        ("name = \"b\"", "name = \"b\"\naddress = \"239.0.0.1\"", "cannot have the address"),
        (
            "to = \"b\"",
            "to = \"b\"\nreceives = 1000\nreceive_size = \"64MiB\"",
            "needs too much memory",
        ),
        ("op = \"write\"", "op = \"write\"\nsize = \"64MiB\"\ncount = 9", "needs too much memory"),
        ("", "[[fault]]\nto = \"b\"\ndo = \"pause\"\n", "a pause has an end"),
        ("", "[[fault]]\nat = \"2s\"\nuntil = \"1s\"\ndo = \"drop\"\n", "over before it begins"),
        ("", "[[fault]]\ndo = \"delay\"\n", "a delay says how long"),
        ("", "[[fault]]\ndo = \"explode\"\n", "is nothing that a fault does"),
        ("", "[[fault]]\ndo = \"partition\"\n", "a partition has two sides"),
        ("", "[[fault]]\nto = \"b\"\ndo = \"kill-srq\"\n", "no shared receive queue"),
        ("", "[[expect]]\nqp = \"w\"\nstatuses = { \"99\" = 1 }\n", "`99` is no status"),
        ("", "[[expect]]\nqp = \"w\"\nverdict = \"peer-ded\"\n", "did you mean `peer-dead`?"),
        ("", "[[expect]]\nqp = \"w\"\nevents = { QP_FATL = 1 }\n", "did you mean `QP_FATAL`?"),
        ("", "[[expect]]\nqp = \"w\"\nrecovers = true\n", "no policy that brings it back"),
        (
            "",
            "[[cq]]\nname = \"c\"\nhost = \"a\"\ndepth = 3\n[[qp]]\nname = \"x\"\nfrom = \"a\"\nto = \"b\"\ncq = \"c\"\n",
            "the completion queue `c` is too small",
        ),
    ] {
        let report = refused(from, to);
        assert!(report.contains(what), "{to}:\n{report}");
    }
    let report = refused("to = \"b\"", "to = \"b\"\ntransport = \"ud\"");
    assert!(report.contains("Ud cannot carry write"), "{report}");
}

/// Whatever stands in a file, reading it ends in a scenario or in a report, and a small scenario runs to its end.
#[test]
fn files_with_any_mistake_are_read_to_the_end() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab");
    let files = std::fs::read_dir(folder).expect("the folder of scenarios").flatten();
    let mut texts: Vec<String> =
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect();
    texts.sort();
    let words: Vec<String> =
        texts.iter().flat_map(|text| text.split_whitespace().map(str::to_owned)).collect();
    let mut rng = Rng::new(11);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..6000 {
        let mut lines: Vec<String> =
            texts[rng.index(texts.len())].lines().map(str::to_owned).collect();
        for _ in 0..rng.between(1, 3) {
            let at = rng.index(lines.len());
            match rng.below(4) {
                0 => drop(lines.remove(at)),
                1 => {
                    let other = rng.index(lines.len());
                    lines.swap(at, other);
                }
                2 => {
                    let (key, _) = lines[at].split_once('=').unwrap_or((&lines[at], ""));
                    lines[at] = format!("{key}= {}", words[rng.index(words.len())]);
                }
                _ => {
                    let line = lines[rng.index(lines.len())].clone();
                    lines.insert(at, line);
                }
            }
            if lines.is_empty() {
                break;
            }
        }
        match Scenario::parse("s.toml", &lines.join("\n")) {
            Err(report) => {
                assert!(report.errors() > 0 && !report.to_string().is_empty());
                refused += 1;
            }
            Ok(scenario) => {
                taken += 1;
                let bytes: u64 = scenario.works.iter().map(|work| work.size * work.count).sum();
                let is_small = bytes < 1 << 18 && scenario.limit.as_secs() <= 3;
                // A device may still refuse it.
                if is_small && let Ok(report) = pmd_lab::run(&scenario, round) {
                    assert!(report.elapsed_virtual_s <= scenario.limit.as_secs_f64());
                }
            }
        }
    }
    assert!(taken > 500 && refused > 500, "{taken} taken, {refused} refused");
}

/// Nodes that touch files have no place in a closed world, and are named.
#[test]
fn nodes_are_refused_by_name() {
    let report =
        refused("", "[[node]]\nname = \"source\"\nkind = \"file-source\"\npath = \"self\"\n");
    assert!(report.contains("`file-source` touches files"), "{report}");
    assert!(report.contains("s.toml:15:8"), "{report}");
}
