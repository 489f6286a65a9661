//! What a machine has to give: hugepages and memory per node, and the limits of its cgroups and of this process.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Rung;

/// A plain view of a machine, so that a test can make up any topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// NUMA nodes, in order; at least one on a real machine.
    pub nodes: Vec<NodeMemory>,
    /// 1 GiB pages that the kernel would make on demand, on any node (`nr_overcommit_hugepages`).
    pub overcommit_1g: u64,
    /// 2 MiB pages that the kernel would make on demand.
    pub overcommit_2m: u64,
    /// Bytes that could be had without swapping (`MemAvailable`).
    pub available: u64,
    /// Whether shared memory gets transparent hugepages.
    pub thp: bool,
    /// The tightest memory limit of this process's cgroups.
    pub memory_cgroup: Option<CgroupLimit>,
    /// The tightest limit on 1 GiB pages.
    pub hugetlb_1g_cgroup: Option<CgroupLimit>,
    /// The tightest limit on 2 MiB pages.
    pub hugetlb_2m_cgroup: Option<CgroupLimit>,
    /// RLIMIT_MEMLOCK in bytes; None: unlimited.
    pub memlock: Option<u64>,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// Its number.
    pub id: u32,
    /// Bytes of base pages that could be had.
    pub available: u64,
    /// Free 1 GiB pages that nobody was promised.
    pub free_1g: u64,
    /// Free 2 MiB pages that nobody was promised.
    pub free_2m: u64,
}

/// A limit that a cgroup sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The file that holds it.
    pub file: PathBuf,
    /// Bytes allowed.
    pub limit: u64,
    /// Bytes used that cannot be reclaimed.
    pub used: u64,
}

impl CgroupLimit {
    /// Bytes left.
    pub const fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl NodeMemory {
    /// Free pages of a rung; for base pages, of the base size.
    pub fn free(&self, rung: Rung) -> u64 {
        match rung {
            Rung::Huge1G => self.free_1g,
            Rung::Huge2M => self.free_2m,
            Rung::Thp | Rung::Base => self.available / rung.page_bytes(),
        }
    }
}

impl Machine {
    /// Reads this machine's `/proc` and `/sys`. What cannot be read counts as absent or unlimited: this is advice, the kernel
    /// has the last word.
    pub fn read() -> Self {
        Self::read_from(Path::new("/"))
    }

    /// As [`Self::read`], from a copy of the two trees under `root`.
    pub fn read_from(root: &Path) -> Self {
        let tree = Tree { root };
        let meminfo = tree.text("proc/meminfo").unwrap_or_default();
        let pool = |kib: u64, name: &str| {
            tree.number(&format!("sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}")).unwrap_or(0)
        };
        let overcommit = |kib| {
            pool(kib, "nr_overcommit_hugepages").saturating_sub(pool(kib, "surplus_hugepages"))
        };
        let mut nodes: Vec<NodeMemory> =
            tree.online_nodes().into_iter().map(|id| tree.node(id)).collect();
        if nodes.is_empty() {
            // A kernel without NUMA: all there is, is node 0.
            nodes.push(NodeMemory {
                id: 0,
                available: kib_field(&meminfo, "MemAvailable:").unwrap_or(0),
                free_1g: pool(KIB_1G, "free_hugepages"),
                free_2m: pool(KIB_2M, "free_hugepages"),
            });
        }
        // The kernel promises pages machine-wide; which node will keep the promise is not known, so take the fullest first.
        promise(&mut nodes, pool(KIB_1G, "resv_hugepages"), |node| &mut node.free_1g);
        promise(&mut nodes, pool(KIB_2M, "resv_hugepages"), |node| &mut node.free_2m);
        let setting =
            tree.text("sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
        Self {
            nodes,
            overcommit_1g: overcommit(KIB_1G),
            overcommit_2m: overcommit(KIB_2M),
            available: kib_field(&meminfo, "MemAvailable:").unwrap_or(0),
            thp: crate::ladder::thp_setting_offers(&setting),
            memory_cgroup: tree.cgroup_limit("memory", &MEMORY),
            hugetlb_1g_cgroup: tree.cgroup_limit("hugetlb", &HUGETLB_1G),
            hugetlb_2m_cgroup: tree.cgroup_limit("hugetlb", &HUGETLB_2M),
            memlock: tree.memlock(),
        }
    }

    /// The cgroup limit that pages of a rung fall under.
    pub fn cgroup(&self, rung: Rung) -> Option<&CgroupLimit> {
        match rung {
            Rung::Huge1G => self.hugetlb_1g_cgroup.as_ref(),
            Rung::Huge2M => self.hugetlb_2m_cgroup.as_ref(),
            Rung::Thp | Rung::Base => self.memory_cgroup.as_ref(),
        }
    }

    /// Pages of a rung that the kernel makes on demand.
    pub fn overcommit(&self, rung: Rung) -> u64 {
        match rung {
            Rung::Huge1G => self.overcommit_1g,
            Rung::Huge2M => self.overcommit_2m,
            Rung::Thp | Rung::Base => 0,
        }
    }
}

/// Bytes that this process could have now: no more than the machine has available, nor than its cgroup allows. None where
/// `/proc` is hidden.
pub(crate) fn available() -> Option<u64> {
    let tree = Tree { root: Path::new("/") };
    let machine = kib_field(&tree.text("proc/meminfo")?, "MemAvailable:")?;
    let group = tree.cgroup_limit("memory", &MEMORY).map_or(u64::MAX, |group| group.left());
    Some(machine.min(group))
}

const KIB_1G: u64 = 1 << 20;
const KIB_2M: u64 = 2 << 10;

/// Names of a limit and what it limits, in cgroup v2 and v1. Reservations count too: mapping hugepages reserves them.
struct Controller {
    v2: &'static [(&'static str, &'static str)],
    v1: &'static [(&'static str, &'static str)],
    /// File pages are charged, but given up under pressure.
    reclaims_files: bool,
}

const MEMORY: Controller = Controller {
    v2: &[("memory.max", "memory.current")],
    v1: &[("memory.limit_in_bytes", "memory.usage_in_bytes")],
    reclaims_files: true,
};
const HUGETLB_1G: Controller = Controller {
    v2: &[
        ("hugetlb.1GB.max", "hugetlb.1GB.current"),
        ("hugetlb.1GB.rsvd.max", "hugetlb.1GB.rsvd.current"),
    ],
    v1: &[
        ("hugetlb.1GB.limit_in_bytes", "hugetlb.1GB.usage_in_bytes"),
        ("hugetlb.1GB.rsvd.limit_in_bytes", "hugetlb.1GB.rsvd.usage_in_bytes"),
    ],
    reclaims_files: false,
};
const HUGETLB_2M: Controller = Controller {
    v2: &[
        ("hugetlb.2MB.max", "hugetlb.2MB.current"),
        ("hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.current"),
    ],
    v1: &[
        ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.usage_in_bytes"),
        ("hugetlb.2MB.rsvd.limit_in_bytes", "hugetlb.2MB.rsvd.usage_in_bytes"),
    ],
    reclaims_files: false,
};

/// cgroup v1 says "no limit" by a number near 2^63, rounded to pages.
const V1_UNLIMITED: u64 = 1 << 62;

struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    fn online_nodes(&self) -> Vec<u32> {
        let list = self.text("sys/devices/system/node/online").unwrap_or_default();
        let mut nodes = Vec::new();
        for range in list.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
                nodes.extend(first..=last.min(crate::limits::NUMA_NODES_MAX));
            }
        }
        nodes
    }

    fn node(&self, id: u32) -> NodeMemory {
        let at = format!("sys/devices/system/node/node{id}");
        let info = self.text(&format!("{at}/meminfo")).unwrap_or_default();
        let field = |name| kib_field(&info, name).unwrap_or(0);
        let free = |kib| {
            self.number(&format!("{at}/hugepages/hugepages-{kib}kB/free_hugepages")).unwrap_or(0)
        };
        NodeMemory {
            id,
            // What is cached of files is given up when memory is asked for.
            available: field("MemFree:") + field("Active(file):") + field("Inactive(file):"),
            free_1g: free(KIB_1G),
            free_2m: free(KIB_2M),
        }
    }

    /// "Max locked memory" of `/proc/self/limits`.
    fn memlock(&self) -> Option<u64> {
        let limits = self.text("proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// The limit with the least left, over this process's group and the groups above it.
    fn cgroup_limit(&self, controller: &str, names: &Controller) -> Option<CgroupLimit> {
        let groups = self.text("proc/self/cgroup")?;
        let mut tightest: Option<CgroupLimit> = None;
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(group)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let (mounts, files): (Vec<String>, _) = if controllers.is_empty() {
                (vec!["sys/fs/cgroup".into(), "sys/fs/cgroup/unified".into()], names.v2)
            } else if controllers.split(',').any(|name| name == controller) {
                (
                    vec![
                        format!("sys/fs/cgroup/{controllers}"),
                        format!("sys/fs/cgroup/{controller}"),
                    ],
                    names.v1,
                )
            } else {
                continue;
            };
            for mount in &mounts {
                for (limit, used) in files {
                    for directory in self.groups_up(mount, group) {
                        let found = self.limit(&directory, limit, used, names.reclaims_files);
                        tightest = tightest.into_iter().chain(found).min_by_key(CgroupLimit::left);
                    }
                }
            }
        }
        tightest
    }

    /// The directories of a group and of those above it. In a container the path may be the host's, and only the mount exists.
    fn groups_up(&self, mount: &str, group: &str) -> Vec<PathBuf> {
        let mount = self.root.join(mount);
        let inside = mount.join(group.trim_start_matches('/'));
        let within: Vec<PathBuf> = inside
            .ancestors()
            .take_while(|path| path.starts_with(&mount))
            .map(Path::to_path_buf)
            .collect();
        within.into_iter().filter(|path| path.is_dir()).collect()
    }

    fn limit(
        &self,
        directory: &Path,
        limit: &str,
        used: &str,
        reclaims_files: bool,
    ) -> Option<CgroupLimit> {
        let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
        let bytes: u64 = read(limit)?.trim().parse().ok().filter(|bytes| *bytes < V1_UNLIMITED)?;
        let mut used: u64 = read(used)?.trim().parse().ok()?;
        if reclaims_files {
            let stat = read("memory.stat").unwrap_or_default();
            let field = |name: &str| -> u64 {
                stat.lines()
                    .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
                    .unwrap_or(0)
            };
            used = used.saturating_sub(field("inactive_file ") + field("active_file "));
        }
        let file =
            Path::new("/").join(directory.strip_prefix(self.root).unwrap_or(directory)).join(limit);
        Some(CgroupLimit { file, limit: bytes, used })
    }
}

/// A line such as `MemFree: 12 kB` or `Node 0 MemFree: 12 kB`, in bytes.
fn kib_field(info: &str, name: &str) -> Option<u64> {
    let (_, value) = info.lines().find_map(|line| line.split_once(name))?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn promise(
    nodes: &mut [NodeMemory],
    mut promised: u64,
    free: impl Fn(&mut NodeMemory) -> &mut u64,
) {
    while promised > 0 {
        let Some(fullest) = nodes.iter_mut().map(&free).max().filter(|pages| **pages > 0) else {
            return;
        };
        let taken = promised.min(*fullest);
        *fullest -= taken;
        promised -= taken;
    }
}
