//! What this machine has, as far as a plan asks. A plain struct, so that tests make machines up.
//!
//! CPUs and NUMA nodes come from `pmd-lcore`; what is free comes from procfs and sysfs (`proc(5)`,
//! `admin-guide/mm/hugetlbpage`, `cgroup-v2`). What a container does not show counts as nothing special: no hugepages, no
//! limit.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use pmd_lcore::Topology;
use pmd_lcore::topology::TopologyError;
use pmd_mem::{Rung, ladder, memlock_limit};
use pmd_verbs::roce::ids::PathMtu;
use pmd_verbs::{CpuHolder, SoftAddress, soft_addresses};

use crate::cores;

/// A pool of hugepages of one size on one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Pages that are reserved for hugepages.
    pub total: u64,
    /// Those that nobody uses.
    pub free: u64,
}

/// Memory of a NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaMemory {
    /// The kernel's number.
    pub id: usize,
    /// Bytes of memory.
    pub total: u64,
    /// Bytes that can be had as small pages without swapping.
    pub available: u64,
    /// Hugepages of 2 MiB.
    pub huge_2m: Pool,
    /// Hugepages of 1 GiB.
    pub huge_1g: Pool,
}

impl NumaMemory {
    /// The pool of a rung; an empty one for rungs without.
    pub fn pool(&self, rung: Rung) -> Pool {
        match rung {
            Rung::Huge1G => self.huge_1g,
            Rung::Huge2M => self.huge_2m,
            Rung::Thp | Rung::Base => Pool::default(),
        }
    }

    /// Bytes that are free as pages of a rung.
    pub fn free(&self, rung: Rung) -> u64 {
        if rung.is_reserved() {
            self.pool(rung).free.saturating_mul(rung.page_bytes())
        } else {
            self.available
        }
    }
}

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The interface that has it.
    pub interface: String,
    /// Bytes of the largest IP packet that the interface takes.
    pub interface_mtu: usize,
    /// The largest path MTU there; `None`: not even 256 bytes fit.
    pub path_mtu: Option<u32>,
}

/// A machine as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs that this process may use.
    pub topology: Topology,
    /// The lcores of other processes that poll on them.
    pub held: Vec<CpuHolder>,
    /// The memory of each NUMA node, by number.
    pub numa: Vec<NumaMemory>,
    /// Bytes that can be had as small pages, over all nodes and under the cgroup's limit.
    pub available: u64,
    /// Whether the kernel joins small pages of shared memory into transparent hugepages.
    pub thp: bool,
    /// RLIMIT_MEMLOCK in bytes; `None`: unlimited.
    pub memlock: Option<u64>,
    /// The addresses that it has, in the order of the GID table that `spinwire devices` lists; none where the kernel does not
    /// tell.
    pub addresses: Vec<Address>,
    /// The address that a device takes which names none; `None` where it is not known.
    pub auto_address: Option<Ipv4Addr>,
}

impl Machine {
    /// This machine, as the calling thread may use it.
    ///
    /// # Errors
    /// When the kernel does not tell which CPUs there are.
    pub fn detect() -> Result<Self, TopologyError> {
        let topology = Topology::detect()?;
        let root = Path::new("/");
        let (addresses, auto_address) = addresses();
        Ok(Self {
            numa: numa(root, &topology),
            available: available(root),
            thp: ladder::thp_offered(),
            memlock: memlock_limit(),
            addresses,
            auto_address,
            held: cores::holders(&topology),
            topology,
        })
    }
}

fn addresses() -> (Vec<Address>, Option<Ipv4Addr>) {
    let found = match soft_addresses() {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!("the addresses of this machine are not known: {error}");
            return (Vec::new(), None);
        }
    };
    let address = |it: SoftAddress| Address {
        ip: it.gid.gid.ip(),
        interface: it.interface,
        interface_mtu: it.interface_mtu,
        path_mtu: it.active_mtu.map(PathMtu::bytes_u32),
    };
    (found.addresses.into_iter().map(address).collect(), found.auto)
}

/// The memory of each node of `topology`, from the `proc` and `sys` under `root`.
fn numa(root: &Path, topology: &Topology) -> Vec<NumaMemory> {
    if let [only] = topology.nodes() {
        // The only node has all of the machine, and the machine's own files are the more exact ones.
        let meminfo = text(&root.join("proc/meminfo"));
        let pools = root.join("sys/kernel/mm/hugepages");
        return vec![NumaMemory {
            id: only.id,
            total: bytes(&meminfo, "MemTotal:"),
            available: bytes(&meminfo, "MemAvailable:"),
            huge_2m: pool(&pools, 2048),
            huge_1g: pool(&pools, 1_048_576),
        }];
    }
    let node = |id: usize| {
        let folder = root.join(format!("sys/devices/system/node/node{id}"));
        let meminfo = text(&folder.join("meminfo"));
        // A node has no MemAvailable of its own; page cache and reclaimable slabs give way.
        let available = ["MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"];
        NumaMemory {
            id,
            total: bytes(&meminfo, "MemTotal:"),
            available: available.iter().map(|key| bytes(&meminfo, key)).sum(),
            huge_2m: pool(&folder.join("hugepages"), 2048),
            huge_1g: pool(&folder.join("hugepages"), 1_048_576),
        }
    };
    topology.nodes().iter().map(|known| node(known.id)).collect()
}

/// Bytes that this process can still get: what the machine has, or less under its cgroup.
fn available(root: &Path) -> u64 {
    let machine = bytes(&text(&root.join("proc/meminfo")), "MemAvailable:");
    cgroup_room(root).map_or(machine, |room| room.min(machine))
}

/// Bytes below the tightest `memory.max` of this process's cgroup and those above it.
fn cgroup_room(root: &Path) -> Option<u64> {
    let own = text(&root.join("proc/self/cgroup"));
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let top = root.join("sys/fs/cgroup");
    let mut folder: PathBuf = top.join(own);
    let mut room: Option<u64> = None;
    while folder.starts_with(&top) {
        // No number means "max": no limit here.
        let limit = number(&folder.join("memory.max")).zip(number(&folder.join("memory.current")));
        if let Some((max, current)) = limit {
            let here = max.saturating_sub(current);
            room = Some(room.map_or(here, |room| room.min(here)));
        }
        if !folder.pop() {
            break;
        }
    }
    room
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number(path: &Path) -> Option<u64> {
    text(path).trim().parse().ok()
}

/// The kibibytes behind `key` in a meminfo file, as bytes.
fn bytes(meminfo: &str, key: &str) -> u64 {
    let number = meminfo.split_once(key).and_then(|(_, rest)| rest.split_whitespace().next());
    number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
}

fn pool(folder: &Path, kib: u64) -> Pool {
    let read = |name: &str| number(&folder.join(format!("hugepages-{kib}kB/{name}"))).unwrap_or(0);
    Pool { total: read("nr_hugepages"), free: read("free_hugepages") }
}

#[cfg(test)]
mod tests {
    use pmd_lcore::topology::Node;

    use super::*;

    /// A folder that looks like the root of some machine, gone at the end of the test.
    struct MadeUp(PathBuf);

    impl MadeUp {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir()
                .join(format!("pmd-graph-machine-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for MadeUp {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn nodes(count: usize) -> Topology {
        Topology::new(Vec::new(), (0..count).map(|id| Node { id, bytes: 0 }).collect())
    }

    #[test]
    fn two_nodes_with_hugepages_on_one() {
        let node = "sys/devices/system/node";
        let meminfo =
            "Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 100 kB\nNode 1 Inactive(file): 50 kB\n";
        let machine = MadeUp::new(
            "numa",
            &[
                (&format!("{node}/node1/meminfo"), meminfo),
                (&format!("{node}/node1/hugepages/hugepages-2048kB/nr_hugepages"), "8\n"),
                (&format!("{node}/node1/hugepages/hugepages-2048kB/free_hugepages"), "5\n"),
            ],
        );
        let read = numa(&machine.0, &nodes(2));
        assert_eq!(read[0], NumaMemory { id: 0, ..NumaMemory::default() });
        assert_eq!(read[1].huge_2m, Pool { total: 8, free: 5 });
        assert_eq!((read[1].total, read[1].available), (1000 << 10, 150 << 10));
        assert_eq!((read[1].free(Rung::Huge2M), read[1].free(Rung::Base)), (10 << 20, 150 << 10));
    }

    #[test]
    fn a_machine_without_numa_is_one_node() {
        let machine = MadeUp::new(
            "bare",
            &[
                ("proc/meminfo", "MemTotal: 3000 kB\nMemAvailable: 2000 kB\n"),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "4\n"),
            ],
        );
        let read = numa(&machine.0, &nodes(1));
        assert_eq!(read[0].huge_2m, Pool { total: 4, free: 0 });
        assert_eq!((read[0].total, read[0].available), (3000 << 10, 2000 << 10));
        assert_eq!(available(&machine.0), 2000 << 10);
    }

    /// P08: a cgroup's limit below what the host has free.
    #[test]
    fn the_tightest_cgroup_counts() {
        let machine = MadeUp::new(
            "cgroup",
            &[
                ("proc/meminfo", "MemAvailable: 2000 kB\n"),
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/memory.max", "max\n"),
                ("sys/fs/cgroup/a/memory.max", "1048576\n"),
                ("sys/fs/cgroup/a/memory.current", "48576\n"),
            ],
        );
        assert_eq!(available(&machine.0), 1_000_000);
    }

    #[test]
    fn this_machine_has_a_cpu_and_memory() {
        let machine = Machine::detect().unwrap();
        assert!(!machine.topology.cpus().is_empty());
        assert!(machine.available > 0);
        assert!(machine.numa.iter().any(|node| node.total > 0));
    }
}
