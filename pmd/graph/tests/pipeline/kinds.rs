//! Every kind of node, and one that this crate does not know.

use std::sync::Arc;

use pmd_graph::config::Config;
use pmd_graph::config::schema::{Key, Settings};
use pmd_graph::config::units::Size;
use pmd_graph::device::{Device, DeviceError, DeviceKind, DeviceRequest};
use pmd_graph::diagnostic::Report;
use pmd_graph::failure::Failure;
use pmd_graph::node::{Node, NodeContext};
use pmd_graph::plan::Plan;
use pmd_graph::plan::demand::{Amount, Flow, Region, Rights};
use pmd_graph::registry::{DeviceSchema, NodeFactory, RegisterError, Registry, Schema};

use crate::made_up::{laptop, refused, taken, titles};

const PING_PONG: &str = r#"
[device.soft0]
kind = "soft"
[[lcore]]
name = "lc0"
[[lcore]]
name = "lc1"
[[node]]
name = "pong"
kind = "pingpong"
lcore = "lc0"
device = "soft0"
[[node]]
name = "ping"
kind = "pingpong"
lcore = "lc1"
device = "soft0"
peer = "pong"
transport = "uc"
"#;

#[test]
fn pingpong_of_two_nodes() {
    let config = taken(PING_PONG, &["node.ping.size=1KiB"]);
    let plan = Plan::resolve(&config, &laptop()).unwrap();
    let [pong, ping] = &plan.nodes[..] else { panic!("two nodes") };
    let (answers, asks) = (pong.queues.unwrap(), ping.queues.unwrap());
    assert_eq!((answers.qps, answers.depths, answers.cq_depth), (1, asks.depths, 8));
    assert_eq!(answers.transport, asks.transport);
    assert_eq!((ping.flow.block, ping.regions[0].bytes, &ping.retry), (0, 8192, &None));
    assert_eq!(pong.clients, [1]);
}

#[test]
fn stages_without_rdma() {
    let text = r#"
[[lcore]]
name = "lc0"
[[node]]
name = "source"
kind = "generator"
lcore = "lc0"
block = "8KiB"
count = 10
to = "sum"
[[node]]
name = "sum"
kind = "crc32c"
lcore = "lc0"
to = "end"
[[node]]
name = "end"
kind = "sink"
lcore = "lc0"
"#;
    let plan = Plan::resolve(&taken(text, &[]), &laptop()).unwrap();
    assert_eq!(plan.nodes.iter().map(|node| node.flow.block).collect::<Vec<_>>(), [0, 8192, 8192]);
    assert!(plan.nodes.iter().all(|node| node.queues.is_none() && node.retry.is_none()));
    assert_eq!(plan.nodes[0].regions[0].bytes, 32 * 8192);
}

#[test]
fn every_kind_says_what_it_does() {
    let registry = Registry::builtin();
    for factory in registry.nodes() {
        let schema = factory.schema();
        assert!(!schema.summary().is_empty(), "{}", schema.kind());
        for key in schema.keys() {
            assert!(!key.doc().is_empty(), "{} of {}", key.name(), schema.kind());
            let twice = schema.keys().iter().filter(|other| other.name() == key.name()).count();
            assert_eq!(twice, 1, "{} of {}", key.name(), schema.kind());
        }
    }
    let kinds: Vec<&str> = registry.nodes().map(|factory| factory.schema().kind()).collect();
    let expected = [
        "file-source",
        "generator",
        "crc32c",
        "sink",
        "block-client",
        "block-load",
        "block-target",
        "kv-client",
        "kv-server",
        "pingpong",
        "discovery",
    ];
    assert_eq!(kinds, expected);
    let devices: Vec<(&str, bool)> =
        registry.devices().map(|schema| (schema.kind(), schema.is_available())).collect();
    assert_eq!(devices, [("soft", true), ("verbs", true), ("doca", false)]);
}

/// A kind of some other crate, with keys of its own.
#[derive(Debug)]
struct Thinner(Schema);

impl Thinner {
    fn new() -> Self {
        let every = Key::count("every", 2..=100, "keeps one block of so many").default(10_u64);
        Self(Schema::new("thinner", "drops most blocks").takes_input().gives_output().key(every))
    }
}

impl NodeFactory for Thinner {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn emits(&self, _: &Settings) -> Option<u64> {
        Some(Size::kib(1).get())
    }

    fn holds(&self, settings: &Settings) -> u64 {
        settings.count("every")
    }

    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        let amount = Amount::Bytes(settings.count("every") * flow.block);
        vec![Region { purpose: "kept", amount, rights: Rights::Local }]
    }

    fn build(&self, _: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        Err(Failure::local("a thinner is only planned"))
    }
}

fn thinned(text: &str) -> Result<Config, Report> {
    let mut registry = Registry::builtin();
    registry.register(Arc::new(Thinner::new())).expect("the name is free");
    Config::parse("pipeline.toml", text.as_bytes(), &[], &|_| None, &registry)
}

const THINNED: &str = r#"
[[lcore]]
name = "lc0"
[[node]]
name = "source"
kind = "generator"
lcore = "lc0"
to = "thin"
[[node]]
name = "thin"
kind = "thinner"
lcore = "lc0"
every = 4
to = "end"
[[node]]
name = "end"
kind = "sink"
lcore = "lc0"
"#;

#[test]
fn a_kind_of_another_crate() {
    let plan = Plan::resolve(&thinned(THINNED).unwrap(), &laptop()).unwrap();
    assert_eq!(plan.nodes[1].settings.count("every"), 4);
    assert_eq!(plan.nodes[1].regions[0].bytes, 4 * 65_536);
    assert_eq!(plan.nodes[0].regions[0].bytes, (32 + 4) * 65_536);
    assert_eq!(plan.nodes[2].flow.block, 1024);
    let report = thinned(&THINNED.replace("every = 4", "every = 1")).unwrap_err();
    assert_eq!(titles(&report), ["`every` is out of range"]);
    let report = thinned(&THINNED.replace("every", "evry")).unwrap_err();
    assert_eq!(titles(&report), ["node `thin` has no key `evry`"]);
}

#[test]
fn names_of_kinds_are_taken_once() {
    let mut registry = Registry::builtin();
    registry.register(Arc::new(Thinner::new())).unwrap();
    let again = registry.register(Arc::new(Thinner::new()));
    assert_eq!(again, Err(RegisterError { kind: "thinner" }));
    let soft = Elsewhere(DeviceSchema::new("soft", []));
    assert_eq!(registry.register_device(Arc::new(soft)), Err(RegisterError { kind: "soft" }));
}

/// A kind of device of some other crate.
#[derive(Debug)]
struct Elsewhere(DeviceSchema);

impl DeviceKind for Elsewhere {
    fn schema(&self) -> &DeviceSchema {
        &self.0
    }

    fn open(&self, _: &DeviceRequest<'_>) -> Result<Arc<dyn Device>, DeviceError> {
        Err(DeviceError::Unfit("there is none".to_owned()))
    }
}

/// A device kind that this crate only knows by name becomes available when a program brings it.
#[test]
fn a_device_kind_of_another_crate() {
    let mut registry = Registry::builtin();
    let doca = DeviceSchema::new("doca", [Key::text("library", "where it is")]);
    registry.register_device(Arc::new(Elsewhere(doca))).unwrap();
    let text = PING_PONG.replace("\"soft\"", "\"doca\"");
    let config = Config::parse("p", text.as_bytes(), &[], &|_| None, &registry).unwrap();
    assert_eq!(config.devices[0].kind, "doca");
}

/// A server and a client with these more keys.
fn keys(server: &str, client: &str) -> String {
    format!(
        r#"
[device.soft0]
kind = "soft"
[[lcore]]
name = "lc0"
[[node]]
name = "server"
kind = "kv-server"
lcore = "lc0"
device = "soft0"
{server}
[[node]]
name = "client"
kind = "kv-client"
lcore = "lc0"
device = "soft0"
peer = "server"
{client}
"#
    )
}

/// A server has message buffers for each connection, of this file and of others, and a table that does not grow.
#[test]
fn a_key_value_server_has_memory_for_all_its_connections() {
    let plan = |server: &str, client: &str| {
        Plan::resolve(&taken(&keys(server, client), &[]), &laptop()).unwrap()
    };
    let bytes = |plan: &Plan, node: usize| {
        plan.nodes[node]
            .regions
            .iter()
            .map(|region| (region.purpose, region.bytes))
            .collect::<Vec<_>>()
    };
    // A request of 24 and 40 bytes is a cache line, and so is the reply; a bucket has 16 bytes before its value.
    // Beside the requests that depth counts, there is room for a keep-alive.
    let (server, client) =
        ("capacity = 3000\nvalue = 40\ndepth = 8", "qps = 6\ndepth = 4\nvalue = 40");
    let here = plan(server, client);
    assert_eq!(here.nodes[0].flow.connections, 6);
    let pages = |bytes: u64| bytes.next_multiple_of(4096);
    assert_eq!(bytes(&here, 0), [("table", pages(4001 * 64)), ("messages", pages(6 * 2 * 9 * 64))]);
    assert_eq!(bytes(&here, 1), [("messages", pages(6 * 2 * 5 * 64))]);
    let server = format!("{server}\nlisten = \"127.0.0.1:7471\"\nconnections = 100");
    assert_eq!(bytes(&plan(&server, client), 0)[1], ("messages", pages(106 * 2 * 9 * 64)));
}

/// S1-09: a request that is lost is never answered, so the transport must not lose any.
#[test]
fn s1_09_key_value_clients_need_acknowledgements() {
    for transport in ["uc", "ud"] {
        let report = refused(&keys("", &format!("transport = \"{transport}\"")), &[]);
        let title = format!("`client` needs acknowledgements on {}", transport.to_uppercase());
        assert_eq!(titles(&report), [title.as_str()]);
        assert!(report.to_string().contains("use transport = \"rc\""), "{report}");
    }
}

#[test]
fn fewer_keys_than_queue_pairs() {
    let report = refused(&keys("", "keys = 3\nqps = 4"), &[]);
    assert_eq!(titles(&report), ["`client` has fewer keys than queue pairs"]);
    assert!(report.to_string().contains("set keys = 4 or more, or qps = 3"), "{report}");
}

/// Every rule that the keys of a discovery node are held to together.
#[test]
fn discovery_nodes_that_cannot_find_anybody() {
    let text = |device: &str, node: &str| {
        format!(
            r#"
[device.soft0]
kind = "soft"
{device}
[[lcore]]
name = "lc0"
[[node]]
name = "finder"
kind = "discovery"
lcore = "lc0"
device = "soft0"
{node}
"#
        )
    };
    for (device, node) in [
        ("", ""),
        ("wire = \"udp\"", "expect = 3\nnames = \"a, b\"\ninterval = \"1s\"\nttl = \"1s\""),
        ("address = \"::1\"", "group = \"ff05::77\""),
        ("address = \"127.0.0.1\"", "group = \"239.1.2.3\"\nannounce = false\nttl = \"1ms\""),
    ] {
        taken(&text(device, node), &[]);
    }
    for (device, node, title) in [
        ("wire = \"shm\"", "", "`finder` needs multicast, which `soft0` does not have"),
        ("", "group = \"192.168.0.1\"", "`192.168.0.1` is no multicast group"),
        ("", "group = \"ff05::77\"", "`finder` cannot reach the group ff05::77"),
        ("address = \"::1\"", "group = \"239.1.2.3\"", "`finder` cannot reach the group 239.1.2.3"),
        ("", "names = \"other, finder\"", "`finder` looks for itself"),
        ("", "announce_as = \"a,b\"", "`finder` cannot announce itself as this"),
        ("", "neighbours = 2\nexpect = 3", "`finder` has no room for those that it must find"),
        ("", "neighbours = 1\nnames = \"a,b\"", "`finder` has no room for those that it must find"),
        ("", "ttl = \"99ms\"", "`finder` is forgotten between two announcements"),
        ("", "expect = 1025", "`expect` is out of range"),
    ] {
        assert_eq!(titles(&refused(&text(device, node), &[])), [title], "{device} {node}");
    }
}
