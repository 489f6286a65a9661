//! Every rule that a config is held to, one broken config each.

use pmd_graph::config::Config;
use pmd_graph::registry::Registry;

use crate::made_up::{QUICKSTART, parse, quickstart, refused, taken, titles};

/// The whole complaint is one title.
fn only(text: &str, sets: &[&str], title: &str) {
    assert_eq!(titles(&refused(text, sets)), [title]);
}

#[test]
fn the_quickstart_is_taken() {
    let config = taken(QUICKSTART, &[]);
    assert_eq!(config.nodes.len(), 3);
    assert_eq!(config.nodes[1].to, Some(2));
    assert_eq!(config.nodes[2].settings.size_opt("block"), None);
    assert_eq!(config.nodes[1].settings.size("block").get(), 65_536);
}

#[test]
fn all_complaints_come_at_once() {
    let text = quickstart(&[
        ("depth = 32", "dpeth = 32"),
        ("qps = 1", "qps = 0"),
        ("kind = \"soft\"", "kind = \"sfot\""),
    ]);
    assert_eq!(
        titles(&refused(&text, &[])),
        [
            "no kind of device is called `sfot`",
            "`qps` is out of range",
            "node `client` has no key `dpeth`"
        ]
    );
}

#[test]
fn wrong_types() {
    for (change, title) in [
        (("depth = 32", "depth = \"32\""), "`depth` cannot be a string"),
        (("depth = 32", "depth = 3.5"), "`depth` cannot be a number with a fraction"),
        (("depth = 32", "depth = true"), "`depth` cannot be true or false"),
        (("verify = true", "verify = 1"), "`verify` cannot be a number"),
        (("path = \"self\"", "path = []"), "`path` cannot be a list"),
        (("path = \"self\"", "path = \"\""), "`path` is empty"),
        (("name = \"client\"", "name = 7"), "`name` cannot be a number"),
        (("block = \"64KiB\"", "block = 1979-05-27"), "`block` cannot be a date"),
        (("mtu = \"auto\"", "mtu = 1500"), "`mtu` does not take this value"),
        (("mtu = \"auto\"", "mtu = \"large\""), "`mtu` cannot be a string"),
        (("idle = \"adaptive\"", "idle = \"lazy\""), "`idle` does not take this value"),
        (("address = \"auto\"", "address = \"localhost\""), "`address` does not take this value"),
        (("[memory]", "[[memory]]"), "`memory` cannot be a list"),
        (("cpu = \"auto\"", "cpu = -1"), "`cpu` is out of range"),
    ] {
        let text = quickstart(&[change]);
        let report = refused(&text, &[]);
        assert!(titles(&report).contains(&title), "{change:?}: {report}");
    }
    only("node = 3\n[[lcore]]\nname = \"a\"\n", &[], "`node` is a list of tables");
    only("node = [3]\n[[lcore]]\nname = \"a\"\n", &[], "`node` is a list of tables");
    let text = QUICKSTART.replace("[device.soft0]", "[device]");
    assert!(titles(&refused(&text, &[])).contains(&"`device` has no key `kind`"));
}

#[test]
fn numbers_that_no_field_holds() {
    only(
        &quickstart(&[("depth = 32", "depth = 99999999999999999999999")]),
        &[],
        "`depth` is out of range",
    );
    only(
        &quickstart(&[("depth = 32", "depth = 0x7fffffffffffffff")]),
        &[],
        "`depth` is out of range",
    );
    only(
        &quickstart(&[("\"64KiB\"", "\"99999999999TiB\"")]),
        &[],
        "`block` = \"99999999999TiB\" cannot be read",
    );
    only(&quickstart(&[("\"64KiB\"", "-1")]), &[], "`block` does not take this value");
    only(&quickstart(&[("\"64KiB\"", "\"65MiB\"")]), &[], "`block` is out of range");
}

#[test]
fn missing_keys() {
    only(&quickstart(&[("path = \"self\"", "")]), &[], "node `source` lacks the key `path`");
    only(
        &quickstart(&[("kind = \"block-target\"", "")]),
        &[],
        "node `target` lacks the key `kind`",
    );
    let nameless = quickstart(&[("name = \"lc0\"", "")]);
    assert_eq!(
        titles(&refused(&nameless, &[])),
        ["this lcore lacks the key `name`", "no lcore is called `lc0`"]
    );
    only(&quickstart(&[("kind = \"soft\"", "")]), &[], "device `soft0` lacks the key `kind`");
}

#[test]
fn names() {
    only(&quickstart(&[("lcore = \"lc0\"", "lcore = \"lc9\"")]), &[], "no lcore is called `lc9`");
    only(
        &quickstart(&[("device = \"soft0\"", "device = \"soft1\"")]),
        &[],
        "no device is called `soft1`",
    );
    only(&quickstart(&[("to = \"client\"", "to = \"nobody\"")]), &[], "no node is called `nobody`");
    only(
        &quickstart(&[("peer = \"target\"", "peer = \"nobody\"")]),
        &[],
        "no node is called `nobody`",
    );
    let twice = quickstart(&[("name = \"lc1\"", "name = \"lc0\"")]);
    assert_eq!(titles(&refused(&twice, &[]))[0], "two lcores are called `lc0`");
    only(
        &quickstart(&[("[device.soft0]", "[device.\"so ft\"]")]),
        &["node.target.device=so ft", "node.client.device=so ft"],
        "`so ft` is no name for a device",
    );
    let twice = quickstart(&[("name = \"client\"", "name = \"target\"")]);
    assert!(titles(&refused(&twice, &[])).contains(&"two nodes are called `target`"));
}

/// A node whose own keys are wrong is still there for those that name it.
#[test]
fn one_mistake_makes_one_complaint() {
    only(
        &quickstart(&[("backend = \"memory\"", "backend = \"tape\"")]),
        &[],
        "`backend` does not take this value",
    );
    only(
        &quickstart(&[("kind = \"block-client\"", "kind = \"block-cleint\"")]),
        &[],
        "no kind of node is called `block-cleint`",
    );
}

#[test]
fn stages() {
    let other_lcore = quickstart(&[("lcore = \"lc1\"\npath", "lcore = \"lc0\"\npath")]);
    only(&other_lcore, &[], "`source` and its next stage are on two lcores");
    only(
        &quickstart(&[("to = \"client\"", "to = \"target\"")]),
        &[],
        "`target` takes nothing from an earlier stage",
    );
    let unfed = quickstart(&[
        ("kind = \"file-source\"", "kind = \"sink\""),
        ("path = \"self\"", ""),
        ("block = \"64KiB\"", ""),
        ("repeat = 1", ""),
        ("to = \"client\"", ""),
    ]);
    assert_eq!(
        titles(&refused(&unfed, &[])),
        ["nothing comes to `source`", "nothing comes to `client`"]
    );
    let circle = "[[lcore]]\nname = \"a\"\n[[node]]\nname = \"one\"\nkind = \"crc32c\"\nlcore = \"a\"\nto = \"two\"\n\
                  [[node]]\nname = \"two\"\nkind = \"crc32c\"\nlcore = \"a\"\nto = \"one\"\n";
    only(circle, &[], "stages go round in a circle");
}

#[test]
fn rdma_edges() {
    only(
        &quickstart(&[("peer = \"target\"", "peer = \"client\"")]),
        &[],
        "`client` is its own peer",
    );
    only(
        &quickstart(&[("peer = \"target\"", "peer = \"source\"")]),
        &[],
        "`source` cannot be the peer of `client`",
    );
    only(
        &quickstart(&[("peer = \"target\"", "peer = \"127.0.0.1:7471\"")]),
        &[],
        "nobody can reach `target`",
    );
    only(
        &quickstart(&[("peer = \"target\"", "peer = \"127.0.0.1\"")]),
        &[],
        "no node is called `127.0.0.1`",
    );
    only(
        &quickstart(&[("peer = \"target\"", "peer = \"host:7471\"")]),
        &[],
        "`peer` does not take this value",
    );
    only(
        &quickstart(&[("peer = \"target\"", "peer = \"127.0.0.1:0\"")]),
        &[],
        "`peer` does not take this value",
    );
    only(
        &quickstart(&[("backend = \"memory\"", "serve = 1")]),
        &[],
        "`serve` of `target` has no effect",
    );
    let pingpong = quickstart(&[
        ("kind = \"block-target\"", "kind = \"pingpong\""),
        ("backend = \"memory\"", ""),
    ]);
    only(&pingpong, &[], "`target` cannot be the peer of `client`");
    let both = "[device.d]\nkind = \"soft\"\n[[lcore]]\nname = \"a\"\n[[node]]\nname = \"p\"\nkind = \"pingpong\"\nlcore = \"a\"\n\
                device = \"d\"\npeer = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n";
    only(both, &[], "`p` has a peer and listens");
}

/// S1-09: what a service type cannot do is refused when the file is read, with the reason.
#[test]
fn s1_09_operations_that_a_transport_lacks() {
    only(QUICKSTART, &["node.client.transport=uc"], "`client` needs READ on UC");
    assert_eq!(
        titles(&refused(QUICKSTART, &["node.client.transport=ud"])),
        ["`client` needs WRITE on UD", "`client` needs READ on UD"]
    );
    taken(QUICKSTART, &["node.client.transport=uc", "node.client.verify=false"]);
    let group = quickstart(&[
        ("backend = \"memory\"", "listen = \"127.0.0.1:0\""),
        ("peer = \"target\"", "peer = \"239.1.1.1:7471\""),
    ]);
    only(&group, &[], "`client` needs multicast on RC");
}

/// S0-43: connection data crosses a network sealed, or where somebody says that it may.
#[test]
fn s0_43_connection_data_crosses_no_network_in_the_clear() {
    let title = "connection data of `client` would cross a network in the clear";
    let apart = |peer: &str| {
        let peer = format!("peer = \"{peer}\"");
        quickstart(&[
            ("backend = \"memory\"", "listen = \"127.0.0.1:7471\""),
            ("peer = \"target\"", &peer),
        ])
    };
    for peer in ["10.0.0.7:7471", "[2001:db8::7]:7471"] {
        only(&apart(peer), &[], title);
        let text = refused(&apart(peer), &[]).to_string();
        assert!(
            text.contains("psk_file = \"FILE\"") && text.contains("plaintext = true"),
            "{text}"
        );
        for set in ["node.client.psk_file=key", "node.client.plaintext=true"] {
            taken(&apart(peer), &[set]);
        }
        only(&apart(peer), &["node.client.plaintext=false"], title);
    }
    let everywhere = "node.target.listen=0.0.0.0:7471";
    let title = "connection data of `target` would cross a network in the clear";
    only(&apart("127.0.0.1:7471"), &[everywhere], title);
    taken(&apart("127.0.0.1:7471"), &[everywhere, "node.target.psk_file=key"]);
    // Within a process there is nothing to seal.
    let config = parse(QUICKSTART, &["node.client.psk_file=key"], &[]).expect("a warning only");
    assert_eq!(titles(&config.report), ["`psk_file` of `client` has no effect"]);
}

/// S0-43: a key in place of the name of its file is not said again, wherever it stands.
#[test]
fn s0_43_a_key_in_place_of_its_file_is_refused_unsaid() {
    let secret = "AAcOFRwjKjE4P0ZNVFtiaXB3foWMk5qhqK+2vcTL0tk=";
    let inline = quickstart(&[(
        "peer = \"target\"",
        &format!("peer = \"target\"\npsk_file = \"{secret}\""),
    )]);
    let set = format!("node.client.psk_file={secret}");
    for (text, sets) in [(&*inline, &[][..]), (QUICKSTART, &[&*set][..])] {
        let report = refused(text, sets);
        let shown = report.to_string();
        assert_eq!(
            titles(&report),
            ["`psk_file` of `client` is a key, not the name of a file with one"]
        );
        assert!(shown.contains("give a file, not the key") && shown.contains("line "), "{shown}");
        assert!(!shown.contains(secret), "{shown}");
    }
}

/// S0-39: the connection manager connects nodes of two processes, on the first lcore of a device.
#[test]
fn s0_39_where_the_connection_manager_connects() {
    only(QUICKSTART, &["node.client.connect=cm"], "`client` and its peer are in one process");
    let here = parse(QUICKSTART, &["node.target.connect=cm"], &[]).expect("a warning only");
    assert_eq!(titles(&here.report), ["`connect` of `target` has no effect"]);
    let apart = quickstart(&[
        ("backend = \"memory\"", "listen = \"127.0.0.1:7471\""),
        ("peer = \"target\"", "peer = \"127.0.0.1:7472\""),
    ]);
    taken(&apart, &["node.target.connect=cm"]);
    let shared = ["node.target.connect=cm", "device.soft0.wire=shm"];
    only(&apart, &shared, "`target` has no packets to connect by");
    let shown = refused(&apart, &shared).to_string();
    assert!(shown.contains("`soft0` only shares memory"), "{shown}");
    only(&apart, &["node.client.connect=cm"], "`client` is not on the first lcore of its device");
}

#[test]
fn addresses_that_no_device_has() {
    for address in ["0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
        let title = format!("device `soft0` cannot have the address {address}");
        only(QUICKSTART, &[&format!("device.soft0.address=\"{address}\"")], &title);
    }
    let config = taken(QUICKSTART, &["device.soft0.address=127.0.0.7"]);
    assert_eq!(config.devices[0].address(), Some([127, 0, 0, 7].into()));
}

#[test]
fn completion_queues() {
    only(QUICKSTART, &["node.client.cq_depth=99"], "the completion queue of `client` is too small");
    taken(QUICKSTART, &["node.client.cq_depth=100"]);
    only(
        QUICKSTART,
        &["node.client.cq_depth=100", "node.client.qps=2"],
        "the completion queue of `client` is too small",
    );
    only(QUICKSTART, &["node.client.cq_depth=0"], "`cq_depth` is out of range");
}

#[test]
fn what_this_build_lacks_is_said() {
    for (set, title) in [
        ("device.soft0.wire=xdp", "wire = \"xdp\" is not available in this build"),
        ("device.soft0.wire=dpdk", "wire = \"dpdk\" is not available in this build"),
        ("device.soft0.kind=doca", "devices of kind `doca` are not available in this build"),
        ("node.client.transport=xrc", "transport = \"xrc\" is not available in this build"),
        ("node.client.connect=bridge", "connect = \"bridge\" is not available in this build"),
    ] {
        let report = refused(QUICKSTART, &[set]);
        assert!(titles(&report).contains(&title), "{set}: {report}");
    }
}

/// A device of rdma-core takes the place of the software NIC by its kind alone.
#[test]
fn another_kind_of_device_is_another_word() {
    let soft = "kind = \"soft\"\naddress = \"auto\"\nwire = \"auto\"";
    for verbs in
        ["kind = \"verbs\"", "kind = \"verbs\"\nname = \"mlx5_0\"\nport = 2\ngid_index = 3"]
    {
        taken(&quickstart(&[(soft, verbs)]), &[]);
    }
    only(
        &quickstart(&[(soft, "kind = \"verbs\"\ngid_index = 256")]),
        &[],
        "`gid_index` is out of range",
    );
}

#[test]
fn a_key_that_says_nothing_is_refused() {
    only(
        QUICKSTART,
        &["device.soft0.interface=eth1"],
        "`interface` of device `soft0` has no effect",
    );
}

#[test]
fn files_that_are_no_pipeline() {
    only("", &[], "`pipeline.toml` is empty");
    only("# nothing\n", &[], "`pipeline.toml` is empty");
    assert_eq!(
        titles(&refused("[memory]\n", &[])),
        ["the pipeline has no lcore", "the pipeline has no node"]
    );
    only("[[node\n", &[], "not TOML: unclosed array table, expected `]]`");
    only("a = 1\na = 2\n", &[], "not TOML: duplicate key");
    for bytes in [&b"\xff\xfe\x00"[..], b"[memory]\n\xc3", b"# \xf0\x9f\n"] {
        let registry = Registry::builtin();
        let report = Config::parse("p", bytes, &[], &|_| None, &registry).unwrap_err();
        assert_eq!(titles(&report), ["`p` is not UTF-8"]);
    }
    let long = "#".repeat(1 << 20) + "\n";
    only(&long, &[], "`pipeline.toml` is larger than a config can be (1048576 bytes)");
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(!titles(&refused(&deep, &[])).is_empty());
}

/// Whatever a file holds, the answer is a report that can be shown.
#[test]
fn no_text_makes_it_panic() {
    let registry = Registry::builtin();
    let show = |bytes: &[u8]| {
        let shown = match Config::parse("pipeline.toml", bytes, &[], &|_| None, &registry) {
            Ok(config) => config.report.to_string(),
            Err(report) => report.to_string(),
        };
        assert!(shown.is_empty() || shown.contains("pipeline.toml:"), "{shown}");
    };
    let texts = [
        QUICKSTART.to_owned(),
        QUICKSTART.replace('\n', "\r\n"),
        QUICKSTART.replace("lc", "lü\u{1f980}"),
    ];
    for text in texts {
        let bytes = text.as_bytes();
        for at in 0..bytes.len() {
            show(&bytes[..at]);
            let mut without = bytes.to_vec();
            without.remove(at);
            show(&without);
            let mut changed = bytes.to_vec();
            changed[at] = b"\"[]=\n{0\\"[at % 8];
            show(&changed);
        }
    }
}

#[test]
fn sets() {
    for (set, title) in [
        ("memory.size", "`--set` without a value"),
        ("=1", "no table `` to set a key of"),
        ("memory=1", "`--set` names no key"),
        ("node.client=1", "`--set` names no key"),
        ("node.client.depth.x=1", "`--set` names no key"),
        ("nodes.client.depth=1", "no table `nodes` to set a key of"),
        ("node.cleint.depth=1", "no node named `cleint` to set a key of"),
        ("device.soft9.wire=udp", "no device named `soft9` to set a key of"),
        ("lcore.lc9.cpu=1", "no lcore named `lc9` to set a key of"),
        ("node.client.name=x", "a name cannot be set"),
        ("node.client.dpeth=1", "node `client` has no key `dpeth`"),
        ("node.client.depth=many", "`depth` cannot be a string"),
        ("memory.size=1GiBB", "`size` = \"1GiBB\" cannot be read"),
        ("retry.timeout=32", "`timeout` is out of range"),
    ] {
        only(QUICKSTART, &[set], title);
    }
}

#[test]
fn sets_are_toml_else_a_string_and_the_last_one_wins() {
    let config = taken(
        QUICKSTART,
        &[
            "memory.size=1GiB",
            "node.client.depth=8",
            "node.client.depth=16",
            "node.source.path=files/a b=c",
            "node.client.verify=false",
            "node.source.block=\"4KiB\"",
            "observe.run_dir=runs/one",
            "lcore.lc1.cpu=1",
        ],
    );
    assert_eq!(config.memory.size.to_string(), "1GiB");
    assert_eq!(config.nodes[2].settings.count("depth"), 16);
    assert_eq!(config.nodes[1].settings.text("path"), "files/a b=c");
    assert!(!config.nodes[2].settings.flag("verify"));
    assert_eq!(config.nodes[1].settings.size("block").get(), 4096);
    assert_eq!(config.observe.run_dir.as_deref(), Some(std::path::Path::new("runs/one")));
    assert_eq!(config.lcores[1].cpu, Some(1));
}

#[test]
fn what_nobody_uses_is_warned_about() {
    let text =
        format!("{QUICKSTART}[[lcore]]\nname = \"spare\"\n[device.soft1]\nkind = \"soft\"\n");
    let config = parse(&text, &[], &[]).unwrap();
    assert_eq!(
        titles(&config.report),
        ["no node uses lcore `spare`", "no node uses device `soft1`"]
    );
    assert_eq!(config.report.errors(), 0);
}

/// A key that other kinds have is no slip of the fingers: nothing like it is suggested, but where it would be read.
#[test]
fn keys_of_other_kinds_are_no_slips() {
    let text =
        quickstart(&[("backend = \"memory\"", "backend = \"memory\"\nreconnect = \"always\"")]);
    let report = refused(&text, &[]);
    assert_eq!(titles(&report), ["node `target` has no key `reconnect`"]);
    let shown = report.to_string();
    assert!(
        shown.contains("kinds that have `reconnect` are ") && shown.contains("pingpong"),
        "{shown}"
    );
    assert!(!shown.contains("did you mean"), "{shown}");
    let slip = quickstart(&[("backend = \"memory\"", "backand = \"memory\"")]);
    assert!(refused(&slip, &[]).to_string().contains("did you mean `backend`?"));
}
