//! What a scenario cannot say is refused with its line, a caret and a way out.

use pmd_lab::Scenario;

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
        ("to = \"b\"", "to = \"b\"\nsrq = \"pool\"", "no srq is called `pool`"),
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

/// Nodes that touch files have no place in a closed world, and are named.
#[test]
fn nodes_are_refused_by_name() {
    let report =
        refused("", "[[node]]\nname = \"source\"\nkind = \"file-source\"\npath = \"self\"\n");
    assert!(report.contains("`file-source` touches files"), "{report}");
    assert!(report.contains("s.toml:15:8"), "{report}");
}
