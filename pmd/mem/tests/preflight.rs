//! Preflight on made-up machines, and reading a machine from a made-up tree.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use pmd_mem::{
    CgroupLimit, Demand, Drawn, Hugepages, Machine, Memlock, MemoryPolicy, NodeMemory, NumaPolicy,
    Placed, Problem, Row, Rung, Warning, page_size, preflight,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn node(id: u32, free_2m: u64) -> NodeMemory {
    NodeMemory { id, available: 4 * GIB, free_1g: 0, free_2m }
}

fn machine(nodes: &[NodeMemory]) -> Machine {
    Machine { nodes: nodes.to_vec(), available: 8 * GIB, ..Machine::default() }
}

fn demand(name: &str, bytes: u64) -> Demand {
    Demand { name: name.into(), bytes, ..Demand::default() }
}

fn policy(hugepages: Hugepages) -> MemoryPolicy {
    MemoryPolicy { hugepages, ..MemoryPolicy::default() }
}

/// P08: 512 MiB needed, 64 MiB of hugepages free.
#[test]
fn p08_require_fails_before_any_allocation_with_table_and_command() {
    let report = preflight(
        &machine(&[node(0, 32)]),
        &policy(Hugepages::Require),
        &[demand("pipeline", 512 * MIB)],
    );
    assert!(!report.fits());
    assert_eq!(report.placed, []);
    assert_eq!(
        report.table,
        [
            Row { node: Some(0), rung: Rung::Huge2M, need: 0, free: 32 },
            Row { node: None, rung: Rung::Huge2M, need: 256, free: 32 }
        ]
    );
    let printed = report.to_string();
    let expected = "\
node      pages                          need       free    missing
node 0    2 MiB hugepages                   0         32          0
any node  2 MiB hugepages                 256         32        224
problem: pipeline: 256 free 2 MiB hugepages needed, 32 free: \
f=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages; echo $(($(cat $f) + 224)) | sudo tee $f
";
    assert_eq!(printed, expected);
}

/// P08: with none at all, `auto` falls down with one warning for all demands.
#[test]
fn p08_auto_falls_back_with_one_warning() {
    let demands = [demand("MR a", 4 * MIB), demand("MR b", 256 * MIB)];
    let report = preflight(&machine(&[node(0, 2)]), &policy(Hugepages::Auto), &demands);
    assert!(report.fits());
    // The first takes the last two pages, the second falls.
    assert_eq!(
        report.placed[0],
        Placed {
            name: "MR a".into(),
            rung: Rung::Huge2M,
            drawn: vec![Drawn { node: Some(0), pages: 2 }]
        }
    );
    assert_eq!(report.placed[1].rung, Rung::Base);
    assert_eq!(report.placed[1].drawn, [Drawn { node: Some(0), pages: 256 * MIB / page_size() }]);
    let [Warning::Fallback { names, wanted: Rung::Huge2M, taken: Rung::Base, fix }] =
        &report.warnings[..]
    else {
        panic!("{:?}", report.warnings);
    };
    assert_eq!(names, &["MR b"]);
    assert!(fix.contains("+ 128"), "{fix}");
    let none = preflight(&machine(&[node(0, 0)]), &policy(Hugepages::Auto), &demands);
    assert_eq!(none.warnings.len(), 1);
    assert!(none.to_string().contains("warning: MR a, MR b: "), "{none}");
}

/// P08: a cgroup allows less than the host has.
#[test]
fn p08_a_cgroup_limit_below_the_free_pages_is_named() {
    let limit = |limit| {
        Some(CgroupLimit {
            file: "/sys/fs/cgroup/pod/hugetlb.2MB.max".into(),
            limit,
            used: 16 * MIB,
        })
    };
    let poor = Machine { hugetlb_2m_cgroup: limit(64 * MIB), ..machine(&[node(0, 1024)]) };
    let report = preflight(&poor, &policy(Hugepages::Require), &[demand("pipeline", 512 * MIB)]);
    assert_eq!(
        report.problems,
        [Problem::Cgroup {
            name: "pipeline".into(),
            need: 512 * MIB,
            left: 48 * MIB,
            file: "/sys/fs/cgroup/pod/hugetlb.2MB.max".into(),
            raise_to: 528 * MIB
        }]
    );
    assert!(
        report.to_string().contains("raise /sys/fs/cgroup/pod/hugetlb.2MB.max to 553648128"),
        "{report}"
    );
    let auto = preflight(&poor, &policy(Hugepages::Auto), &[demand("pipeline", 512 * MIB)]);
    assert!(auto.fits());
    assert_eq!(auto.placed[0].rung, Rung::Base);
    let enough = Machine { hugetlb_2m_cgroup: limit(528 * MIB), ..poor };
    let two = [demand("a", 256 * MIB), demand("b", 258 * MIB)];
    let sum = preflight(&enough, &policy(Hugepages::Require), &two);
    assert!(
        matches!(sum.problems[..], [Problem::Cgroup { left, .. }] if left == 256 * MIB),
        "{sum}"
    );
    assert!(
        preflight(&enough, &policy(Hugepages::Require), &[demand("pipeline", 512 * MIB)]).fits()
    );
}

/// P08: two demands share one pool; what the first takes is gone for the second.
#[test]
fn p08_demands_add_up() {
    let demands = [demand("a", 64 * MIB), demand("b", 64 * MIB)];
    let on = |free| preflight(&machine(&[node(0, free)]), &policy(Hugepages::Size2M), &demands);
    assert!(on(64).fits());
    let short = on(63);
    assert!(
        matches!(&short.problems[..], [Problem::Hugepages { name, need: 32, free: 31, .. }] if name == "b")
    );
    let table = short.table.last().unwrap();
    assert_eq!((table.need, table.free), (64, 63));
}

fn pinned(name: &str, memory: u32, lcore: u32) -> Demand {
    Demand {
        node: Some(memory),
        lcore: Some((format!("lcore {lcore}"), lcore)),
        ..demand(name, 64 * MIB)
    }
}

/// P09: pages only on node 1, lcore on node 1: nothing comes from node 0.
#[test]
fn p09_pages_come_from_the_node_that_has_them() {
    let two = machine(&[node(0, 0), node(1, 32)]);
    for numa in [NumaPolicy::Prefer, NumaPolicy::Strict] {
        let policy = MemoryPolicy { numa, ..policy(Hugepages::Require) };
        let report = preflight(&two, &policy, &[pinned("MR", 1, 1)]);
        assert!(report.fits(), "{report}");
        assert_eq!(report.warnings, []);
        assert_eq!(report.placed[0].drawn, [Drawn { node: Some(1), pages: 32 }]);
    }
}

/// P09: lcore on node 0, memory pinned to node 1.
#[test]
fn p09_cross_numa_warns_and_strict_refuses() {
    let two = machine(&[node(0, 32), node(1, 32)]);
    let demand = pinned("MR", 1, 0);
    let prefer = preflight(&two, &policy(Hugepages::Require), std::slice::from_ref(&demand));
    assert!(prefer.fits());
    assert_eq!(
        prefer.warnings[0].to_string(),
        "lcore 0 / MR node 1 cross-NUMA: lcore 0 is on node 0"
    );
    let strict = MemoryPolicy { numa: NumaPolicy::Strict, ..policy(Hugepages::Require) };
    let strict = preflight(&two, &strict, &[demand]);
    assert!(matches!(&strict.problems[..], [Problem::CrossNuma { node: 1, lcore_node: 0, .. }]));
    assert!(strict.to_string().contains("memory.numa = \"strict\""), "{strict}");
}

/// P09: the wanted node is empty. `prefer` takes the other and says so; `strict` names the node and its own file.
#[test]
fn p09_an_empty_node_is_filled_up_or_refused() {
    let two = machine(&[node(0, 8), node(1, 32)]);
    let prefer = preflight(&two, &policy(Hugepages::Require), &[pinned("MR", 0, 0)]);
    assert!(prefer.fits());
    assert_eq!(
        prefer.placed[0].drawn,
        [Drawn { node: Some(0), pages: 8 }, Drawn { node: Some(1), pages: 24 }]
    );
    assert!(matches!(prefer.warnings[..], [Warning::CrossNuma { node: 1, lcore_node: 0, .. }]));
    let strict = MemoryPolicy { numa: NumaPolicy::Strict, ..policy(Hugepages::Require) };
    let strict = preflight(&two, &strict, &[pinned("MR", 0, 0)]);
    let [Problem::Hugepages { node: Some(0), need: 32, free: 8, fix, .. }] = &strict.problems[..]
    else {
        panic!("{strict}");
    };
    assert_eq!(
        fix,
        "f=/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages; echo $(($(cat $f) + 24)) | sudo tee $f"
    );
    assert_eq!(
        strict.table,
        [
            Row { node: Some(0), rung: Rung::Huge2M, need: 32, free: 8 },
            Row { node: Some(1), rung: Rung::Huge2M, need: 0, free: 32 }
        ]
    );
    let nowhere = preflight(&two, &policy(Hugepages::Auto), &[pinned("MR", 5, 0)]);
    assert!(nowhere.to_string().contains("MR: there is no NUMA node 5, only [0, 1]"), "{nowhere}");
}

/// P10: preflight reports the limit first, as a problem where it is enforced and as a warning where it is not.
#[test]
fn p10_preflight_reports_memlock_first() {
    let poor = Machine { memlock: Some(8 * MIB), available: 16 * MIB, ..machine(&[node(0, 0)]) };
    let demands = [Demand { registered: 64 * MIB, ..demand("MR", 64 * MIB) }];
    let strict = MemoryPolicy { memlock: Memlock::Strict, ..policy(Hugepages::None) };
    let report = preflight(&poor, &strict, &demands);
    assert_eq!(report.problems.len(), 2);
    let first = report.problems[0].to_string();
    assert!(
        first
            .starts_with("locked memory limit 8 MiB < 64 MiB requested; raise it: ulimit -l 65536"),
        "{first}"
    );
    assert!(first.contains("LimitMEMLOCK=") && first.contains("--cap-add IPC_LOCK"), "{first}");
    let check = preflight(&machine(&[node(0, 0)]), &policy(Hugepages::None), &demands);
    assert_eq!(check.warnings, []);
    let rich = Machine { available: GIB, ..poor };
    let check = preflight(&rich, &policy(Hugepages::None), &demands);
    assert!(check.fits());
    assert!(matches!(check.warnings[..], [Warning::Memlock(_)]));
}

#[test]
fn memory_that_is_not_there_is_a_problem_on_every_rung() {
    let small = Machine { available: GIB, ..machine(&[node(0, 0)]) };
    let report = preflight(&small, &policy(Hugepages::Auto), &[demand("pipeline", 900 * GIB)]);
    assert!(
        matches!(report.problems[..], [Problem::Memory { need, available: GIB, .. }] if need == 900 * GIB)
    );
    let limit =
        CgroupLimit { file: "/sys/fs/cgroup/memory.max".into(), limit: 100 * MIB, used: 50 * MIB };
    let contained = Machine { memory_cgroup: Some(limit), ..small };
    let report = preflight(&contained, &policy(Hugepages::None), &[demand("pipeline", 64 * MIB)]);
    assert!(matches!(report.problems[..], [Problem::Cgroup { left, .. }] if left == 50 * MIB));
    let huge = preflight(&contained, &policy(Hugepages::Require), &[demand("pipeline", u64::MAX)]);
    assert!(matches!(huge.problems[..], [Problem::Hugepages { .. }]));
}

#[test]
fn pages_made_on_demand_count() {
    let machine = Machine { overcommit_2m: 10, ..machine(&[node(0, 4)]) };
    let fits = |mib| preflight(&machine, &policy(Hugepages::Require), &[demand("a", mib * MIB)]);
    assert_eq!(
        fits(28).placed[0].drawn,
        [Drawn { node: Some(0), pages: 4 }, Drawn { node: None, pages: 10 }]
    );
    assert!(!fits(30).fits());
}

#[test]
fn the_best_rung_is_taken_first() {
    let mut big = node(0, 4096);
    big.free_1g = 2;
    let machine = Machine { thp: true, ..machine(&[big]) };
    let rung = |hugepages, bytes| {
        preflight(&machine, &policy(hugepages), &[demand("a", bytes)]).placed[0].rung
    };
    assert_eq!(rung(Hugepages::Auto, 2 * GIB), Rung::Huge1G);
    assert_eq!(rung(Hugepages::Auto, 3 * GIB), Rung::Huge2M);
    assert_eq!(rung(Hugepages::Auto, 256 * MIB), Rung::Huge2M);
    assert_eq!(rung(Hugepages::None, 256 * MIB), Rung::Base);
    assert_eq!(rung(Hugepages::Size1G, MIB), Rung::Huge1G);
    let machine = Machine { nodes: vec![node(0, 0)], ..machine };
    assert_eq!(
        preflight(&machine, &policy(Hugepages::Auto), &[demand("a", 8 * MIB)]).placed[0].rung,
        Rung::Thp
    );
}

/// A directory of files that goes with the test.
struct FakeRoot(PathBuf);

impl FakeRoot {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("pmd-mem-{name}-{}", std::process::id()));
        for (path, content) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Self(root)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for FakeRoot {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn a_machine_with_two_nodes_and_cgroup_v2_is_read() {
    let node_info = "Node 1 MemTotal: 100 kB\nNode 1 MemFree: 40 kB\nNode 1 Active(file): 5 kB\nNode 1 Inactive(file): 5 kB\n";
    let root = FakeRoot::new(
        "v2",
        &[
            ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"),
            (
                "proc/self/limits",
                "Limit  Soft  Hard  Units\nMax locked memory         8388608              unlimited            bytes\n",
            ),
            ("proc/self/cgroup", "0::/pod/app\n"),
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemFree: 10 kB\n"),
            ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "3\n"),
            ("sys/devices/system/node/node1/meminfo", node_info),
            ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "7\n"),
            ("sys/devices/system/node/node1/hugepages/hugepages-1048576kB/free_hugepages", "1\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "5\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "4\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages", "1\n"),
            (
                "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size [advise] never deny force\n",
            ),
            ("sys/fs/cgroup/pod/memory.max", "1000000\n"),
            ("sys/fs/cgroup/pod/memory.current", "600000\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 5\ninactive_file 100000\nactive_file 200000\n"),
            ("sys/fs/cgroup/pod/app/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/app/memory.current", "600000\n"),
            ("sys/fs/cgroup/pod/app/hugetlb.2MB.max", "8388608\n"),
            ("sys/fs/cgroup/pod/app/hugetlb.2MB.current", "0\n"),
            ("sys/fs/cgroup/pod/app/hugetlb.2MB.rsvd.max", "6291456\n"),
            ("sys/fs/cgroup/pod/app/hugetlb.2MB.rsvd.current", "2097152\n"),
        ],
    );
    let file = |name: &str| PathBuf::from(format!("/sys/fs/cgroup/pod/{name}"));
    assert_eq!(
        Machine::read_from(root.path()),
        Machine {
            // Five promised pages are taken off the fuller node.
            nodes: vec![
                NodeMemory { id: 0, available: 10 << 10, free_1g: 0, free_2m: 3 },
                NodeMemory { id: 1, available: 50 << 10, free_1g: 1, free_2m: 2 }
            ],
            overcommit_1g: 0,
            overcommit_2m: 3,
            available: 8000 << 10,
            thp: true,
            memory_cgroup: Some(CgroupLimit {
                file: file("memory.max"),
                limit: 1_000_000,
                used: 300_000
            }),
            hugetlb_1g_cgroup: None,
            hugetlb_2m_cgroup: Some(CgroupLimit {
                file: file("app/hugetlb.2MB.rsvd.max"),
                limit: 6 * MIB,
                used: 2 * MIB
            }),
            memlock: Some(8 << 20),
        }
    );
}

#[test]
fn cgroup_v1_and_a_kernel_without_numa_are_read() {
    let root = FakeRoot::new(
        "v1",
        &[
            ("proc/meminfo", "MemAvailable: 100 kB\n"),
            (
                "proc/self/limits",
                "Max locked memory         unlimited            unlimited            bytes\n",
            ),
            // The path is the host's: inside the container only the mount's root exists.
            (
                "proc/self/cgroup",
                "9:hugetlb:/docker/abc\n7:cpu,memory:/docker/abc\n1:name=systemd:/\n",
            ),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "6\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
            ("sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/hugetlb/hugetlb.2MB.usage_in_bytes", "0\n"),
        ],
    );
    let machine = Machine::read_from(root.path());
    assert_eq!(machine.nodes, [NodeMemory { id: 0, available: 100 << 10, free_1g: 0, free_2m: 6 }]);
    assert_eq!(
        machine.memory_cgroup.as_ref().map(|group| (group.limit, group.used)),
        Some((5_000_000, 1000))
    );
    assert_eq!(machine.hugetlb_2m_cgroup, None);
    assert_eq!(machine.memlock, None);
    assert!(!machine.thp);
}

#[test]
fn an_unreadable_machine_is_empty_not_an_error() {
    let machine = Machine::read_from(Path::new("/nonexistent"));
    assert_eq!(machine, Machine { nodes: vec![NodeMemory::default()], ..Machine::default() });
}

/// What is read here agrees with what the kernel says elsewhere, and small demands fit the machine that runs the tests.
#[test]
fn this_machine_is_read() {
    let machine = Machine::read();
    assert!(machine.available > 0);
    assert!(!machine.nodes.is_empty());
    assert_eq!(machine.memlock, pmd_mem::memlock_limit());
    assert_eq!(machine.thp, pmd_mem::ladder::thp_offered());
    let report = preflight(&machine, &policy(Hugepages::Auto), &[demand("test", 64 << 10)]);
    assert!(report.fits(), "{report}");
}
