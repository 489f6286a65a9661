//! The topology in `/sys/devices/system/{cpu,node}` (kernel: Documentation/ABI/stable/sysfs-devices-system-cpu).

use std::fs;
use std::io;
use std::path::Path;

use super::{Cpu, Node, Topology, TopologyError};
use crate::cpuset::CpuSet;

pub(super) fn read(root: &Path, allowed: &CpuSet) -> Result<Topology, TopologyError> {
    let system = root.join("devices/system");
    let online = cpus(&system.join("cpu/online"))?;
    let (nodes, node_cpus) = nodes(&system.join("node"))?;
    let node_of =
        |cpu| node_cpus.iter().find(|(_, cpus)| cpus.contains(cpu)).map_or(0, |&(node, _)| node);
    let usable =
        allowed.iter().filter(|&cpu| online.as_ref().is_none_or(|online| online.contains(cpu)));
    let cpus = usable.map(|id| {
        let topology = system.join(format!("cpu/cpu{id}/topology"));
        let package = number(&topology.join("physical_package_id"))?;
        let core = core(&topology)?.unwrap_or(id);
        Ok(Cpu { id, core, package, node: node_of(id) })
    });
    Ok(Topology { cpus: cpus.collect::<Result<_, _>>()?, nodes })
}

/// The lowest CPU that shares the core: `core_id` alone is unique only within a package, and not dense.
fn core(topology: &Path) -> Result<Option<usize>, TopologyError> {
    let siblings = match cpus(&topology.join("core_cpus_list"))? {
        Some(siblings) => Some(siblings),
        // The name before Linux 5.3.
        None => cpus(&topology.join("thread_siblings_list"))?,
    };
    Ok(siblings.and_then(|siblings| siblings.first()))
}

type NodeCpus = Vec<(usize, CpuSet)>;

/// Every node, and the CPUs near it. A kernel without NUMA has one node without a size.
fn nodes(directory: &Path) -> Result<(Vec<Node>, NodeCpus), TopologyError> {
    let Some(ids) = cpus(&directory.join("online"))? else {
        return Ok((vec![Node { id: 0, bytes: 0 }], Vec::new()));
    };
    let mut nodes = Vec::new();
    let mut node_cpus = Vec::new();
    for id in ids.iter() {
        let node = directory.join(format!("node{id}"));
        nodes.push(Node { id, bytes: bytes(&node.join("meminfo"))? });
        node_cpus.push((id, cpus(&node.join("cpulist"))?.unwrap_or_default()));
    }
    Ok((nodes, node_cpus))
}

/// A file's content; none where it does not exist.
fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TopologyError::Read { path: path.to_owned(), source }),
    }
}

fn malformed(path: &Path, text: &str, expected: &'static str) -> TopologyError {
    TopologyError::Malformed { path: path.to_owned(), text: text.trim().to_owned(), expected }
}

fn cpus(path: &Path) -> Result<Option<CpuSet>, TopologyError> {
    let parse = |text: String| {
        text.parse().map_err(|_| malformed(path, &text, "a list of numbers such as 0-3,8"))
    };
    text(path)?.map(parse).transpose()
}

/// A number, where firmware that does not know writes -1: one package.
fn number(path: &Path) -> Result<usize, TopologyError> {
    let Some(text) = text(path)? else { return Ok(0) };
    let number: i64 = text.trim().parse().map_err(|_| malformed(path, &text, "a number"))?;
    Ok(usize::try_from(number).unwrap_or(0))
}

/// `MemTotal` of a node, whose lines read `Node 0 MemTotal:  8123456 kB`.
fn bytes(path: &Path) -> Result<u64, TopologyError> {
    let Some(text) = text(path)? else { return Ok(0) };
    let total =
        text.lines().find_map(|line| line.split_once("MemTotal:")).and_then(|(_, total)| {
            let kib: u64 = total.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
            kib.checked_mul(1024)
        });
    total.ok_or_else(|| malformed(path, text.lines().next().unwrap_or(""), "a line MemTotal: N kB"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A sysfs in a temporary directory.
    struct Tree(PathBuf);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let unique = format!(
                "pmd-lcore-{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            let tree = Self(std::env::temp_dir().join(unique));
            fs::create_dir_all(&tree.0).unwrap();
            for (path, content) in files {
                let path = tree.0.join("devices/system").join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{content}\n")).unwrap();
            }
            tree
        }

        fn read(&self, allowed: &str) -> Result<Topology, TopologyError> {
            read(&self.0, &allowed.parse().unwrap())
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// Two sockets of two cores of two threads; a third node has memory only. CPU 7 is offline.
    fn two_sockets() -> Tree {
        Tree::new(&[
            ("cpu/online", "0-6"),
            ("cpu/cpu0/topology/core_cpus_list", "0,4"),
            ("cpu/cpu1/topology/core_cpus_list", "1,5"),
            ("cpu/cpu2/topology/core_cpus_list", "2,6"),
            ("cpu/cpu3/topology/core_cpus_list", "3"),
            ("cpu/cpu4/topology/core_cpus_list", "0,4"),
            ("cpu/cpu5/topology/thread_siblings_list", "1,5"),
            ("cpu/cpu6/topology/core_cpus_list", "2,6"),
            ("cpu/cpu0/topology/physical_package_id", "0"),
            ("cpu/cpu1/topology/physical_package_id", "0"),
            ("cpu/cpu2/topology/physical_package_id", "1"),
            ("cpu/cpu3/topology/physical_package_id", "1"),
            ("cpu/cpu4/topology/physical_package_id", "0"),
            ("cpu/cpu5/topology/physical_package_id", "0"),
            ("cpu/cpu6/topology/physical_package_id", "1"),
            ("node/online", "0-2"),
            ("node/node0/cpulist", "0-1,4-5"),
            ("node/node1/cpulist", "2-3,6-7"),
            ("node/node2/cpulist", ""),
            ("node/node0/meminfo", "Node 0 MemTotal:       16384 kB\nNode 0 MemFree:  1 kB"),
            ("node/node1/meminfo", "Node 1 MemTotal:       32768 kB"),
            ("node/node2/meminfo", "Node 2 MemTotal:           1 kB"),
        ])
    }

    #[test]
    fn cores_packages_and_nodes() {
        let topology = two_sockets().read("0-7").unwrap();
        let cpu = |id, core, package, node| Cpu { id, core, package, node };
        assert_eq!(
            topology.cpus(),
            [
                cpu(0, 0, 0, 0),
                cpu(1, 1, 0, 0),
                cpu(2, 2, 1, 1),
                cpu(3, 3, 1, 1),
                cpu(4, 0, 0, 0),
                cpu(5, 1, 0, 0),
                cpu(6, 2, 1, 1),
            ]
        );
        let sizes: Vec<_> = topology.nodes().iter().map(|node| (node.id, node.bytes)).collect();
        assert_eq!(sizes, [(0, 16 << 20), (1, 32 << 20), (2, 1024)]);
    }

    #[test]
    fn the_affinity_mask_is_honoured() {
        let topology = two_sockets().read("1,4,7,9").unwrap();
        assert_eq!(topology.allowed().to_string(), "1,4");
        assert_eq!(topology.cpu(4).map(|cpu| cpu.core), Some(0));
        assert_eq!(topology.cpu(2), None);
    }

    #[test]
    fn a_container_without_sysfs_has_simple_cores() {
        let topology = Tree::new(&[]).read("2-3").unwrap();
        let simple = |id| Cpu { id, core: id, package: 0, node: 0 };
        assert_eq!(topology.cpus(), [simple(2), simple(3)]);
        assert_eq!(topology.nodes(), [Node { id: 0, bytes: 0 }]);
    }

    #[test]
    fn unknown_package_is_package_zero() {
        let topology =
            Tree::new(&[("cpu/cpu0/topology/physical_package_id", "-1")]).read("0").unwrap();
        assert_eq!(topology.cpus()[0].package, 0);
    }

    #[test]
    fn nonsense_is_refused_with_the_file() {
        for (path, content, says) in [
            ("cpu/online", "all", "cpu/online holds `all`, not a list of numbers such as 0-3,8"),
            (
                "cpu/cpu0/topology/physical_package_id",
                "x",
                "physical_package_id holds `x`, not a number",
            ),
            (
                "node/online",
                "0-9999999999",
                "node/online holds `0-9999999999`, not a list of numbers",
            ),
        ] {
            let error = Tree::new(&[(path, content)]).read("0").unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let tree =
            Tree::new(&[("node/online", "0"), ("node/node0/meminfo", "Node 0 MemTotal: many kB")]);
        let error = tree.read("0").unwrap_err().to_string();
        assert!(
            error.ends_with("meminfo holds `Node 0 MemTotal: many kB`, not a line MemTotal: N kB"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        // A directory in a file's place fails for root too.
        let tree = Tree::new(&[("cpu/online/surprise", "")]);
        let error = tree.read("0").unwrap_err();
        assert!(
            matches!(&error, TopologyError::Read { path, .. } if path.ends_with("cpu/online")),
            "{error}"
        );
    }

    #[test]
    fn this_machine_has_every_allowed_cpu() {
        let allowed = CpuSet::allowed().unwrap();
        let topology = Topology::from_sysfs(Path::new("/sys"), &allowed).unwrap();
        assert_eq!(topology.allowed(), allowed);
        assert_eq!(Topology::detect().unwrap(), topology);
        let nodes: Vec<usize> = topology.nodes().iter().map(|node| node.id).collect();
        assert!(topology.cpus().iter().all(|cpu| nodes.contains(&cpu.node)), "{topology:?}");
    }
}
