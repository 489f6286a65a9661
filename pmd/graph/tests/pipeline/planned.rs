//! Plans for made-up machines: who gets which CPU and which memory, and whether it fits.

use insta::{assert_json_snapshot, assert_snapshot};
use pmd_graph::plan::Plan;
use pmd_graph::plan::machine::{Address, Machine, Pool};
use pmd_mem::Rung;
use pmd_verbs::CpuHolder;
use serde_json::json;

use crate::made_up::{QUICKSTART, laptop, machine, memory, parse, quickstart};

const SERVER: &str = include_str!("../../../../configs/quickstart-server.toml");
const CLIENT: &str = include_str!("../../../../configs/quickstart-client.toml");
const MIB: u64 = 1 << 20;

fn plan(text: &str, sets: &[&str], machine: &Machine) -> Plan {
    let config = parse(text, sets, &[]).unwrap_or_else(|report| panic!("{report}"));
    Plan::resolve(&config, machine).unwrap_or_else(|report| panic!("{report}"))
}

fn region(plan: &Plan, node: &str, purpose: &str) -> u64 {
    let node = plan.nodes.iter().find(|planned| planned.name == node).expect("the node is planned");
    node.regions.iter().find(|region| region.purpose == purpose).expect("it has the region").bytes
}

#[test]
fn quickstart_as_people_read_it() {
    let plan = plan(QUICKSTART, &[], &laptop());
    assert_snapshot!(plan.to_text(&plan.fit(&laptop())));
}

#[test]
fn quickstart_as_programs_read_it() {
    let plan = plan(QUICKSTART, &["node.client.timeout=0"], &laptop());
    assert_json_snapshot!(plan.to_json(&plan.fit(&laptop())));
}

#[test]
fn two_processes() {
    let server = plan(SERVER, &[], &laptop());
    let queues = server.nodes[0].queues.unwrap();
    assert_eq!((queues.qps, queues.more_per_client, queues.transport), (0, true, None));
    assert_eq!(server.nodes[0].flow.receives, 128);
    assert_snapshot!("server", server.to_text(&server.fit(&laptop())));
    let client = plan(CLIENT, &[], &laptop());
    assert_snapshot!("client", client.to_text(&client.fit(&laptop())));
}

#[test]
fn lcores_get_cpus_of_their_own_while_there_are_some() {
    let cpus =
        |plan: &Plan| plan.lcores.iter().map(|lcore| (lcore.cpu, lcore.shared)).collect::<Vec<_>>();
    // CPUs 0 and 1 are threads of one core.
    let smt = machine(&[(0, 0), (0, 0), (2, 0), (2, 0)], vec![memory(0, 8)]);
    assert_eq!(cpus(&plan(QUICKSTART, &[], &smt)), [(0, false), (2, false)]);
    assert_eq!(cpus(&plan(QUICKSTART, &["lcore.lc1.cpu=0"], &smt)), [(2, false), (0, false)]);
    let one = machine(&[(0, 0)], vec![memory(0, 8)]);
    let shared = plan(QUICKSTART, &[], &one);
    assert_eq!(cpus(&shared), [(0, true), (0, true)]);
    let fit = shared.fit(&one);
    assert!(fit.fits());
    assert_eq!(
        fit.warnings,
        ["lcores share CPU 0 and take turns: give each a CPU of its own for full speed"]
    );
}

/// CPUs on which other processes poll are left to them, as long as there are others.
#[test]
fn lcores_keep_clear_of_other_processes() {
    let cpus = |plan: &Plan| {
        let each = plan.lcores.iter();
        each.map(|lcore| (lcore.cpu, lcore.shared, lcore.others.len())).collect::<Vec<_>>()
    };
    let holder = |cpu| CpuHolder { cpu, pid: Some(4711) };
    let four = machine(&[(0, 0), (1, 0), (2, 0), (3, 0)], vec![memory(0, 8)]);
    let held = Machine { held: vec![holder(0), holder(2)], ..four };
    let apart = plan(QUICKSTART, &[], &held);
    assert_eq!(cpus(&apart), [(1, false, 0), (3, false, 0)]);
    assert_eq!(apart.beside_others(&held), None);
    let named = plan(QUICKSTART, &["lcore.lc0.cpu=0"], &held);
    assert_eq!(cpus(&named), [(0, true, 1), (1, false, 0)]);
    let warning = "lcore `lc0` is on CPU 0, where process 4711 polls too: they take turns, and a message waits \
                   milliseconds for its turn instead of microseconds; CPU 3 is free: cpu = \"auto\" takes one that is";
    assert_eq!(named.fit(&held).warnings, [warning]);
    assert_eq!(named.to_json(&named.fit(&held))["lcores"][0]["shared_with"], json!([4711]));
    let both = Machine { held: vec![holder(0), holder(1)], ..laptop() };
    let crowded = plan(QUICKSTART, &[], &both);
    assert_eq!(cpus(&crowded), [(0, true, 1), (1, true, 1)]);
    let warning = crowded.beside_others(&both).unwrap();
    assert!(
        warning.starts_with("lcores `lc0`, `lc1` are on CPU 0-1, where process 4711 polls too")
    );
    assert!(warning.ends_with("no CPU is free: end some process, or use fewer lcores"));
}

#[test]
fn a_process_that_may_run_nowhere() {
    let config = parse(QUICKSTART, &[], &[]).unwrap();
    let report = Plan::resolve(&config, &machine(&[], vec![memory(0, 8)])).unwrap_err();
    assert_eq!(report.errors(), 1);
}

/// The client keeps its blocks until they are verified, so the source has buffers for those and for reading ahead.
#[test]
fn buffers_follow_the_depths() {
    let plan = plan(
        QUICKSTART,
        &["node.client.depth=16", "node.client.qps=4", "node.source.block=4KiB"],
        &laptop(),
    );
    assert_eq!(region(&plan, "source", "blocks"), (32 + 64) * 4096);
    assert_eq!(region(&plan, "client", "read-back"), 64 * 4096);
    let client = plan.nodes[2].queues.unwrap();
    assert_eq!((client.qps, client.depths.send, client.cq_depth), (4, 34, 4 * (34 + 18)));
    let target = plan.nodes[0].queues.unwrap();
    assert_eq!((target.qps, target.depths.receive, target.cq_depth), (4, 18, 4 * (36 + 18)));
    assert_eq!((plan.nodes[1].flow.held_downstream, plan.nodes[2].flow.block), (64, 4096));
    assert_eq!((&plan.nodes[0].clients[..], &plan.nodes[2].inputs[..]), (&[2][..], &[1][..]));
}

#[test]
fn stages_between_pass_sizes_on() {
    let text = quickstart(&[(
        "to = \"client\"",
        "to = \"sum\"\n[[node]]\nname = \"sum\"\nkind = \"crc32c\"\nlcore = \"lc1\"\nto = \"client\"",
    )]);
    let plan = plan(&text, &[], &laptop());
    let client = plan.nodes.iter().find(|node| node.name == "client").unwrap();
    assert_eq!(client.flow.block, 65_536);
    assert_eq!(region(&plan, "source", "blocks"), (32 + 32) * 65_536);
}

#[test]
fn the_target_gets_what_is_left() {
    let full = plan(QUICKSTART, &["memory.size=1GiB"], &laptop());
    let total: u64 =
        full.nodes.iter().flat_map(|node| &node.regions).map(|region| region.bytes).sum();
    assert_eq!(total, 1 << 30);
    assert!(region(&full, "target", "storage") > 1000 * MIB);
    let fixed = plan(QUICKSTART, &["node.target.capacity=10000B"], &laptop());
    assert_eq!(region(&fixed, "target", "storage"), 3 * 4096);
    let unverified = plan(QUICKSTART, &["node.client.verify=false"], &laptop());
    assert!(unverified.nodes[2].regions.iter().all(|region| region.purpose != "read-back"));
}

#[test]
fn more_memory_than_there_is() {
    let fit = plan(QUICKSTART, &["memory.size=4TiB"], &laptop()).fit(&laptop());
    assert_eq!(fit.problems.len(), 1);
    assert_eq!(fit.problems[0].what, "4 TiB of memory are needed, and 8 GiB are available");
    assert_eq!(fit.problems[0].fixes, ["--set memory.size=7372MiB"]);
    assert!(plan(QUICKSTART, &["memory.size=7372MiB"], &laptop()).fit(&laptop()).fits());
}

/// P08: too few hugepages are found before anything is allocated, with need, supply and the command.
#[test]
fn p08_hugepages_are_required_and_short() {
    let mut poor = laptop();
    poor.numa[0].huge_2m = Pool { total: 40, free: 32 };
    let wanted = ["memory.hugepages=require", "memory.size=512MiB"];
    let plan = plan(QUICKSTART, &wanted, &poor);
    let fit = plan.fit(&poor);
    assert_eq!(
        fit.problems[0].what,
        "NUMA node 0 needs 258 2 MiB hugepages (516 MiB), and 32 of 40 are free"
    );
    assert_eq!(
        fit.problems[0].fixes,
        ["sudo sysctl -w vm.nr_hugepages=266", "--set memory.hugepages=auto"]
    );
    assert_eq!((fit.rows[0].need, fit.rows[0].free), (516 * MIB, 64 * MIB));
    poor.numa[0].huge_2m = Pool { total: 266, free: 258 };
    assert!(plan.fit(&poor).fits(), "the command is enough");
    poor.numa[0].huge_2m.free = 257;
    assert!(!plan.fit(&poor).fits(), "every region has pages of its own");
}

#[test]
fn hugepages_beyond_the_machine() {
    let fit = plan(QUICKSTART, &["memory.hugepages=require", "memory.size=900GiB"], &laptop())
        .fit(&laptop());
    assert!(
        fit.problems[0].what.contains("hugepages")
            && fit.problems[0].what.ends_with("the node has 8 GiB of memory in all")
    );
    assert_eq!(
        fit.problems[0].fixes[0],
        "sudo sysctl -w vm.nr_hugepages=2048; and --set memory.size=4088MiB"
    );
}

#[test]
fn hugepages_are_taken_where_they_are_free_and_missed_nowhere() {
    let mut rich = laptop();
    let rung = |machine: &Machine, sets: &[&str]| {
        plan(QUICKSTART, sets, machine).fit(machine).rows[0].rung
    };
    assert_eq!(rung(&rich, &[]), Rung::Base);
    rich.thp = true;
    assert_eq!(rung(&rich, &[]), Rung::Thp);
    rich.numa[0].huge_2m = Pool { total: 128, free: 128 };
    assert_eq!(rung(&rich, &[]), Rung::Huge2M);
    assert_eq!(rung(&rich, &["memory.size=264MiB"]), Rung::Thp);
    assert_eq!(rung(&rich, &["memory.hugepages=none"]), Rung::Base);
    rich.numa[0].huge_1g = Pool { total: 1, free: 1 };
    assert_eq!(rung(&rich, &["memory.size=1GiB"]), Rung::Huge1G);
}

/// P09: hugepages on node 1 only; lcores there take them, lcores on node 0 cross or are refused.
#[test]
fn p09_memory_on_another_node() {
    let mut two = machine(&[(0, 0), (1, 0), (2, 1), (3, 1)], vec![memory(0, 4), memory(1, 4)]);
    two.numa[1].huge_2m = Pool { total: 256, free: 256 };
    let near = ["memory.hugepages=2MiB", "lcore.lc0.cpu=2", "lcore.lc1.cpu=3"];
    let there = plan(QUICKSTART, &near, &two);
    assert_eq!(
        there.shares.iter().map(|share| (share.numa, share.bytes)).collect::<Vec<_>>(),
        [(1, 256 * MIB)]
    );
    let fit = there.fit(&two);
    assert!(fit.fits() && fit.warnings.is_empty());

    let crossing = plan(QUICKSTART, &["memory.hugepages=2MiB"], &two).fit(&two);
    assert!(crossing.fits());
    assert_eq!(
        crossing.warnings,
        [
            "lcores on NUMA node 0 get memory of node 1, where hugepages are free: every access crosses"
        ]
    );
    let strict = plan(QUICKSTART, &["memory.hugepages=2MiB", "memory.numa=strict"], &two).fit(&two);
    assert_eq!(
        strict.problems[0].fixes[0],
        "echo 130 | sudo tee /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
    );
}

#[test]
fn every_numa_node_gives_to_its_lcores() {
    let two = machine(&[(0, 0), (1, 1)], vec![memory(0, 4), memory(1, 4)]);
    let plan = plan(QUICKSTART, &[], &two);
    let shares: Vec<(usize, u64)> =
        plan.shares.iter().map(|share| (share.numa, share.bytes)).collect();
    assert_eq!(shares, [(0, 256 * MIB - (6 * MIB + 4096)), (1, 6 * MIB + 4096)]);
    let mut full = two;
    full.numa[0].available = 100 * MIB;
    assert!(plan.fit(&full).fits(), "preferred memory may come from elsewhere");
    let strict = self::plan(QUICKSTART, &["memory.numa=strict"], &full).fit(&full);
    assert_eq!(strict.problems[0].fixes, ["--set memory.numa=prefer"]);
}

/// P10: the locked memory limit is named with both numbers, refused under `strict` and warned about otherwise.
#[test]
fn p10_locked_memory() {
    let mut limited = laptop();
    limited.memlock = Some(8 * MIB);
    let text = "locked memory limit 8 MiB < 64 MiB requested";
    let checked = plan(QUICKSTART, &["memory.size=64MiB"], &limited).fit(&limited);
    assert!(checked.fits());
    assert_eq!(checked.warnings, [format!("{text}: a NIC would refuse it; ulimit -l 65536")]);
    let strict =
        plan(QUICKSTART, &["memory.size=64MiB", "memory.memlock=strict"], &limited).fit(&limited);
    assert_eq!(strict.problems[0].what, text);
    assert_eq!(strict.problems[0].fixes[0], "ulimit -l 65536");
    limited.memlock = Some(64 * MIB);
    assert!(
        plan(QUICKSTART, &["memory.size=64MiB", "memory.memlock=strict"], &limited)
            .fit(&limited)
            .fits()
    );
}

/// P05, S0-47: a plan says which address packets come from, its index and type, and why; an index means the entry that
/// `spinwire devices` lists.
#[test]
fn p05_a_plan_shows_the_gid_and_why() {
    let mut two = laptop();
    let eth0 = Address {
        ip: [10, 7, 0, 2].into(),
        interface: "eth0".into(),
        interface_mtu: 1500,
        path_mtu: Some(1024),
    };
    two.addresses.push(eth0);
    let shown = |sets: &[&str]| {
        let plan = plan(QUICKSTART, sets, &two);
        let text = plan.to_text(&plan.fit(&two));
        let gid = plan.to_json(&plan.fit(&two))["devices"][0]["gid"].clone();
        (gid, text)
    };
    let (gid, text) = shown(&[]);
    let first = "the first free loopback address, toward peers of this host";
    assert_eq!(
        gid,
        json!({ "index": 0, "address": "127.0.0.1", "type": "RoCE v2", "reason": first })
    );
    assert!(text.contains(first), "{text}");
    let (gid, text) = shown(&["device.soft0.gid_index=1"]);
    let asked = "gid_index = 1 was asked for";
    assert_eq!(
        gid,
        json!({ "index": 1, "address": "10.7.0.2", "type": "RoCE v2", "reason": asked })
    );
    assert!(text.contains("eth0") && text.contains("up to 1024"), "{text}");
    let (gid, _) = shown(&["device.soft0.address=127.9.9.9"]);
    assert_eq!((&gid["index"], &gid["reason"]), (&json!(null), &json!("asked for")));
    let both = ["device.soft0.gid_index=1", "device.soft0.address=10.7.0.2"];
    let refused = parse(QUICKSTART, &both, &[]).unwrap_err().to_string();
    assert!(
        refused.contains("device `soft0` has both an address and the index of one"),
        "{refused}"
    );
}
