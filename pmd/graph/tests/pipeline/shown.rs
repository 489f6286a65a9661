//! What people read: one snapshot for each family of complaint, without colour.

use insta::assert_snapshot;
use pmd_graph::config::Config;
use pmd_graph::plan::Plan;
use pmd_graph::registry::Registry;

use crate::made_up::{QUICKSTART, laptop, parse, quickstart, refused};

#[test]
fn unknown_key() {
    assert_snapshot!(refused(&quickstart(&[("depth = 32", "dpeth = 32")]), &[]));
}

#[test]
fn unknown_table() {
    assert_snapshot!(refused(&format!("{QUICKSTART}\n[colour]\nred = 1\n[memroy]\n"), &[]));
}

#[test]
fn unknown_kind() {
    let text = quickstart(&[
        ("kind = \"block-target\"", "kind = \"block-taget\""),
        ("kind = \"soft\"", "kind = \"hard\""),
    ]);
    assert_snapshot!(refused(&text, &[]));
}

#[test]
fn missing_key() {
    assert_snapshot!(refused(
        &quickstart(&[("path = \"self\"                   # the running executable\n", "")]),
        &[]
    ));
}

#[test]
fn wrong_type() {
    assert_snapshot!(refused(
        &quickstart(&[("depth = 32", "depth = \"32\""), ("verify = true", "verify = 1")]),
        &[]
    ));
}

#[test]
fn out_of_range() {
    let text =
        quickstart(&[("depth = 32", "depth = 0"), ("mtu = \"auto\"", "mtu = 1500\ntimeout = 32")]);
    assert_snapshot!(refused(&text, &[]));
}

#[test]
fn bad_unit() {
    let text = quickstart(&[("\"64KiB\"", "\"64KiBB\""), ("verify = true", "connect_timeout = 5")]);
    assert_snapshot!(refused(&text, &[]));
}

#[test]
fn dangling_name() {
    let text = quickstart(&[
        ("to = \"client\"", "to = \"cleint\""),
        ("lcore = \"lc0\"", "lcore = \"lc7\""),
    ]);
    assert_snapshot!(refused(&text, &[]));
}

#[test]
fn two_of_one_name() {
    assert_snapshot!(refused(&quickstart(&[("name = \"lc1\"", "name = \"lc0\"")]), &[]));
}

#[test]
fn two_lcores_for_one_pipeline() {
    assert_snapshot!(refused(
        &quickstart(&[("lcore = \"lc1\"\npath", "lcore = \"lc0\"\npath")]),
        &[]
    ));
}

#[test]
fn wrong_peer() {
    assert_snapshot!(refused(&quickstart(&[("peer = \"target\"", "peer = \"source\"")]), &[]));
}

#[test]
fn unreachable_target() {
    assert_snapshot!(refused(
        &quickstart(&[("peer = \"target\"", "peer = \"127.0.0.1:7471\"")]),
        &[]
    ));
}

#[test]
fn read_on_uc() {
    assert_snapshot!(refused(
        &quickstart(&[("transport = \"rc\"", "transport = \"uc\"\nretry_cnt = 3")]),
        &[]
    ));
}

#[test]
fn completion_queue_too_small() {
    assert_snapshot!(refused(&quickstart(&[("cq_depth = \"auto\"", "cq_depth = 8")]), &[]));
}

/// P16: who wants to see an overrun has it taken, with a warning.
#[test]
fn p16_completion_queue_that_is_taken_though_too_small() {
    let config = quickstart(&[("cq_depth = \"auto\"", "cq_depth = 8\ncq_overcommit = true")]);
    let config = parse(&config, &[], &[]).expect("it is taken");
    assert_snapshot!(config.report);
}

#[test]
fn not_in_this_build() {
    assert_snapshot!(refused(
        &quickstart(&[("wire = \"auto\"", "wire = \"xdp\"\ninterface = \"eth1\"")]),
        &["node.client.connect=bridge"]
    ));
}

#[test]
fn no_effect() {
    assert_snapshot!(refused(&quickstart(&[("wire = \"auto\"", "interface = \"eth1\"")]), &[]));
}

#[test]
fn set() {
    assert_snapshot!(refused(
        QUICKSTART,
        &["node.cleint.depth=1", "memory.size", "device.soft0.wire=udpp", "nodes.x=1"]
    ));
}

#[test]
fn impossible_budget() {
    assert_snapshot!(refused(QUICKSTART, &["node.client.timeout=31"]));
}

#[test]
fn ignored_variable() {
    let environment = [("SPINWIRE_QP_TIMEOUT", "99"), ("SPINWIRE_CLIENT_QP_TIMEOUT", "0")];
    assert_snapshot!(
        parse(QUICKSTART, &[], &environment).expect("the environment refuses nothing").report
    );
}

#[test]
fn syntax() {
    assert_snapshot!(refused("[memory]\nsize = 256MiB\n[[node\n", &[]));
}

#[test]
fn empty() {
    assert_snapshot!(refused("", &[]));
}

#[test]
fn not_utf8() {
    let report = Config::parse(
        "pipeline.toml",
        b"[memory]\nsize = \"\xff\"\n",
        &[],
        &|_| None,
        &Registry::builtin(),
    );
    assert_snapshot!(report.expect_err("it is no text"));
}

#[test]
fn missing_file() {
    let path = std::path::Path::new("/nonexistent/pipeline.toml");
    assert_snapshot!(
        Config::read(path, &[], &|_| None, &Registry::builtin()).expect_err("there is no file")
    );
}

/// A name with an escape sequence in it does not reach the terminal as one.
#[test]
fn hostile_names() {
    let report = refused(
        &quickstart(&[("to = \"client\"", "to = \"\\u001b[31mred\"")]),
        &["\u{1b}[31m.x=1"],
    );
    let shown = report.to_string();
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn no_such_cpu() {
    let config = parse(&quickstart(&[("cpu = \"auto\"", "cpu = 4096")]), &[], &[])
        .expect("the file is sound");
    assert_snapshot!(Plan::resolve(&config, &laptop()).expect_err("a laptop has two CPUs"));
}

#[test]
fn too_little_memory() {
    let config = parse(QUICKSTART, &["node.client.depth=4096"], &[]).expect("the file is sound");
    assert_snapshot!(Plan::resolve(&config, &laptop()).expect_err("the regions are too large"));
}
