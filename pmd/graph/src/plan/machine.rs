//! What this machine has, as far as a plan asks. A plain struct, so that tests make machines up.
//!
//! Read from procfs and sysfs (`proc(5)`, `sysfs-devices-system-cpu`, `admin-guide/mm/hugetlbpage`, `cgroup-v2`). What a
//! container does not show is assumed to be simple: one NUMA node, every CPU a core of its own.

use std::fs;
use std::path::{Path, PathBuf};

/// A CPU that this process may run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The kernel's number.
    pub id: u32,
    /// The physical core, named by its lowest CPU.
    pub core: u32,
    /// The NUMA node whose memory is near.
    pub numa: u32,
}

/// A pool of hugepages of one size on one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Pages that are reserved for hugepages.
    pub total: u64,
    /// Those that nobody uses.
    pub free: u64,
}

/// A NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number.
    pub id: u32,
    /// Bytes of memory.
    pub total: u64,
    /// Bytes that can be had as small pages without swapping.
    pub available: u64,
    /// Hugepages of 2 MiB.
    pub huge_2m: Pool,
    /// Hugepages of 1 GiB.
    pub huge_1g: Pool,
}

/// A machine as this process sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs in the affinity mask, by number.
    pub cpus: Vec<Cpu>,
    /// The NUMA nodes, by number; at least one.
    pub numa: Vec<NumaNode>,
    /// Bytes that can be had as small pages, over all nodes and under the cgroup's limit.
    pub available: u64,
    /// RLIMIT_MEMLOCK in bytes; `None`: unlimited.
    pub memlock: Option<u64>,
}

impl Machine {
    /// This machine.
    pub fn detect() -> Self {
        Self::read(Path::new("/"))
    }

    /// The machine whose `proc` and `sys` stand under `root`.
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let meminfo = text("proc/meminfo");
        let kib =
            |text: &str, key: &str| field(text, key).map_or(0, |kib| kib.saturating_mul(1024));
        let allowed = text("proc/thread-self/status");
        let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let nodes = root.join("sys/devices/system/node");
        let mut numa: Vec<NumaNode> = cpu_list(&text("sys/devices/system/node/has_memory"))
            .into_iter()
            .map(|id| numa_node(&nodes.join(format!("node{id}")), id))
            .collect();
        if numa.len() <= 1 {
            // The only node has all of the machine, and the machine's own file is the more exact one.
            let pools = root.join("sys/kernel/mm");
            numa = vec![NumaNode {
                id: numa.first().map_or(0, |node| node.id),
                total: kib(&meminfo, "MemTotal:"),
                available: kib(&meminfo, "MemAvailable:"),
                huge_2m: pool(&pools, 2048),
                huge_1g: pool(&pools, 1_048_576),
            }];
        }
        let near: Vec<(u32, Vec<u32>)> = cpu_list(&text("sys/devices/system/node/has_cpu"))
            .into_iter()
            .map(|id| (id, cpu_list(&text(&format!("sys/devices/system/node/node{id}/cpulist")))))
            .collect();
        let cpus = cpu_list(allowed.unwrap_or_default())
            .into_iter()
            .map(|id| {
                let siblings =
                    text(&format!("sys/devices/system/cpu/cpu{id}/topology/thread_siblings_list"));
                Cpu {
                    id,
                    core: cpu_list(&siblings).first().copied().unwrap_or(id),
                    numa: near
                        .iter()
                        .find(|(_, cpus)| cpus.contains(&id))
                        .map_or(0, |(numa, _)| *numa),
                }
            })
            .collect();
        let available = kib(&meminfo, "MemAvailable:");
        Self {
            cpus,
            numa,
            available: cgroup_room(root).map_or(available, |room| room.min(available)),
            memlock: memlock(root),
        }
    }

    /// The CPU of this number, if this process may run on it.
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.id == id)
    }

    /// The numbers of the usable CPUs, as the kernel writes lists: `0-3,8`.
    pub fn cpu_ranges(&self) -> String {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in &self.cpus {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu.id => *last = cpu.id,
                _ => ranges.push((cpu.id, cpu.id)),
            }
        }
        let ranges: Vec<String> = ranges
            .into_iter()
            .map(
                |(first, last)| {
                    if first == last { first.to_string() } else { format!("{first}-{last}") }
                },
            )
            .collect();
        ranges.join(",")
    }
}

/// The number behind `key` in a file of `key number` lines.
fn field(text: &str, key: &str) -> Option<u64> {
    let (_, rest) = text.split_once(key)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// A list as the kernel writes it: `0-3,8`.
fn cpu_list(text: &str) -> Vec<u32> {
    let mut list = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            list.extend(first..=last);
        }
    }
    list
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn pool(folder: &Path, kib: u64) -> Pool {
    let folder = folder.join(format!("hugepages/hugepages-{kib}kB"));
    let read = |name: &str| number(&folder.join(name)).unwrap_or(0);
    Pool { total: read("nr_hugepages"), free: read("free_hugepages") }
}

fn numa_node(folder: &Path, id: u32) -> NumaNode {
    let meminfo = fs::read_to_string(folder.join("meminfo")).unwrap_or_default();
    let bytes = |key: &str| field(&meminfo, key).unwrap_or(0).saturating_mul(1024);
    // A node has no MemAvailable of its own; page cache and reclaimable slabs give way.
    let available = ["MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"]
        .iter()
        .map(|key| bytes(key))
        .sum();
    NumaNode {
        id,
        total: bytes("MemTotal:"),
        available,
        huge_2m: pool(folder, 2048),
        huge_1g: pool(folder, 1_048_576),
    }
}

/// Bytes below the tightest `memory.max` of this process's cgroup and those above it.
fn cgroup_room(root: &Path) -> Option<u64> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let top = root.join("sys/fs/cgroup");
    let mut folder: PathBuf = top.join(own);
    let mut room: Option<u64> = None;
    while folder.starts_with(&top) {
        // No number means "max": no limit here.
        if let (Some(max), Some(current)) =
            (number(&folder.join("memory.max")), number(&folder.join("memory.current")))
        {
            let here = max.saturating_sub(current);
            room = Some(room.map_or(here, |room| room.min(here)));
        }
        if !folder.pop() {
            break;
        }
    }
    room
}

/// The soft limit; `None` when it is unlimited or cannot be read.
fn memlock(root: &Path) -> Option<u64> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_up(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("pmd-graph-machine-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn two_nodes_with_hugepages_on_one() {
        let node = "sys/devices/system/node";
        let meminfo =
            "Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 100 kB\nNode 1 Inactive(file): 50 kB\n";
        let root = made_up(
            "numa",
            &[
                ("proc/meminfo", "MemTotal: 3000 kB\nMemAvailable: 2000 kB\n"),
                ("proc/thread-self/status", "Name:\tx\nCpus_allowed_list:\t0-1,3\n"),
                (
                    "proc/self/limits",
                    "Max locked memory         8388608              8388608              bytes\n",
                ),
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/memory.max", "max\n"),
                ("sys/fs/cgroup/a/memory.max", "1048576\n"),
                ("sys/fs/cgroup/a/memory.current", "48576\n"),
                (&format!("{node}/has_memory"), "0-1\n"),
                (&format!("{node}/has_cpu"), "0-1\n"),
                (&format!("{node}/node0/cpulist"), "0-1\n"),
                (&format!("{node}/node1/cpulist"), "2-3\n"),
                (&format!("{node}/node1/meminfo"), meminfo),
                (&format!("{node}/node1/hugepages/hugepages-2048kB/nr_hugepages"), "8\n"),
                (&format!("{node}/node1/hugepages/hugepages-2048kB/free_hugepages"), "5\n"),
                ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
            ],
        );
        let machine = Machine::read(&root);
        fs::remove_dir_all(&root).unwrap();
        let cpu = |id, core, numa| Cpu { id, core, numa };
        assert_eq!(machine.cpus, [cpu(0, 0, 0), cpu(1, 0, 0), cpu(3, 3, 1)]);
        assert_eq!(machine.cpu_ranges(), "0-1,3");
        assert_eq!(machine.numa[1].huge_2m, Pool { total: 8, free: 5 });
        assert_eq!((machine.numa[1].total, machine.numa[1].available), (1000 << 10, 150 << 10));
        assert_eq!(machine.available, 1_000_000, "the cgroup above leaves less than the machine");
        assert_eq!(machine.memlock, Some(8 << 20));
    }

    #[test]
    fn a_container_that_shows_little_is_one_node() {
        let root = made_up(
            "bare",
            &[
                ("proc/meminfo", "MemTotal: 3000 kB\nMemAvailable: 2000 kB\n"),
                ("proc/thread-self/status", "Cpus_allowed_list:\t2\n"),
                (
                    "proc/self/limits",
                    "Max locked memory         unlimited            unlimited            bytes\n",
                ),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "4\n"),
            ],
        );
        let machine = Machine::read(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(machine.cpus, [Cpu { id: 2, core: 2, numa: 0 }]);
        assert_eq!(machine.numa.len(), 1);
        assert_eq!(machine.numa[0].huge_2m, Pool { total: 4, free: 0 });
        assert_eq!((machine.available, machine.memlock), (2000 << 10, None));
    }

    #[test]
    fn this_machine_has_a_cpu_and_memory() {
        let machine = Machine::detect();
        assert!(!machine.cpus.is_empty());
        assert!(machine.available > 0);
        assert!(machine.numa.iter().any(|node| node.total > 0));
    }
}
