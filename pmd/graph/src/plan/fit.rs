//! Whether a plan fits a machine, and the exact commands that would make it fit.

use pmd_observe::report::Bytes;

use super::machine::{Machine, NumaNode, Pool};
use super::{Plan, Share};
use crate::config::units::Size;
use crate::config::words::{Hugepages, Memlock, Numa};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A kind of page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// 1 GiB, from the pool of the NUMA node.
    OneGib,
    /// 2 MiB, from the pool of the NUMA node.
    TwoMib,
    /// Small pages, huge ones where the kernel joins them.
    Small,
}

impl Page {
    /// Bytes of one page; small ones as most machines have them.
    pub fn bytes(self) -> u64 {
        match self {
            Self::OneGib => GIB,
            Self::TwoMib => 2 * MIB,
            Self::Small => 4096,
        }
    }

    /// What the plan calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneGib => "1GiB",
            Self::TwoMib => "2MiB",
            Self::Small => "4KiB",
        }
    }

    fn pool(self, node: &NumaNode) -> Pool {
        match self {
            Self::OneGib => node.huge_1g,
            Self::TwoMib => node.huge_2m,
            Self::Small => Pool::default(),
        }
    }
}

/// Need and supply of one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The NUMA node.
    pub numa: u32,
    /// Bytes that the plan takes there.
    pub need: u64,
    /// The pages that they would be taken from.
    pub page: Page,
    /// Bytes that are free there as such pages.
    pub free: u64,
}

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What, with need and supply.
    pub what: String,
    /// Commands and settings, each of which makes it fit.
    pub fixes: Vec<String>,
}

/// A plan against a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Need and supply per NUMA node.
    pub rows: Vec<Row>,
    /// What is missing; the plan fits if there is nothing.
    pub problems: Vec<Problem>,
    /// What will work, and not as well as it could.
    pub warnings: Vec<String>,
}

impl Fit {
    /// Whether nothing is missing.
    pub fn fits(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Plan {
    /// Compares what the plan takes with what is free.
    pub fn fit(&self, machine: &Machine) -> Fit {
        let mut fit = Fit::default();
        for share in &self.shares {
            let node =
                machine.numa.iter().find(|node| node.id == share.numa).copied().unwrap_or_default();
            self.share(*share, &node, machine, &mut fit);
        }
        self.small_pages(machine, &mut fit);
        self.memlock(machine, &mut fit);
        for cpu in self.shared_cpus() {
            fit.warnings.push(format!(
                "lcores share CPU {cpu}: they take turns and yield when idle; give each a CPU of its own for full speed"
            ));
        }
        fit
    }

    /// Which pages a NUMA node's share comes from.
    fn share(&self, share: Share, node: &NumaNode, machine: &Machine, fit: &mut Fit) {
        let enough = |page: Page, pool: Pool| pool.free >= share.bytes.div_ceil(page.bytes());
        let rungs: &[Page] = match self.memory.hugepages {
            Hugepages::Auto => &[Page::OneGib, Page::TwoMib, Page::Small],
            Hugepages::OneGib => &[Page::OneGib],
            Hugepages::TwoMib => &[Page::TwoMib],
            Hugepages::None => &[Page::Small],
            Hugepages::Require => &[Page::OneGib, Page::TwoMib],
        };
        // A gigabyte page for less than a gigabyte is waste that nobody asked for.
        let worth = |page: Page| rungs.len() == 1 || page != Page::OneGib || share.bytes >= GIB;
        let found = rungs
            .iter()
            .find(|page| **page == Page::Small || worth(**page) && enough(**page, page.pool(node)));
        if let Some(page) = found {
            let free = if *page == Page::Small {
                node.available
            } else {
                page.pool(node).free * page.bytes()
            };
            fit.rows.push(Row { numa: share.numa, need: share.bytes, page: *page, free });
            if *page == Page::Small
                && self.memory.numa == Numa::Strict
                && share.bytes > node.available
            {
                fit.problems.push(Problem {
                    what: format!(
                        "NUMA node {} has {} free and numa = \"strict\": {} are needed there",
                        share.numa,
                        Bytes(node.available),
                        Bytes(share.bytes)
                    ),
                    fixes: vec!["--set memory.numa=prefer".to_owned()],
                });
            }
            return;
        }
        let page = if rungs == [Page::OneGib] { Page::OneGib } else { Page::TwoMib };
        fit.rows.push(Row {
            numa: share.numa,
            need: share.bytes,
            page,
            free: page.pool(node).free * page.bytes(),
        });
        let elsewhere =
            machine.numa.iter().find(|other| other.id != node.id && enough(page, page.pool(other)));
        match elsewhere {
            Some(other) if self.memory.numa == Numa::Prefer => fit.warnings.push(format!(
                "memory of lcores on NUMA node {} comes from node {}, where hugepages are free: every access crosses",
                node.id, other.id
            )),
            _ => fit.problems.push(no_hugepages(share, page, node, machine)),
        }
    }

    /// Whether all that comes from small pages is there, over all NUMA nodes.
    fn small_pages(&self, machine: &Machine, fit: &mut Fit) {
        let need: u64 =
            fit.rows.iter().filter(|row| row.page == Page::Small).map(|row| row.need).sum();
        if need <= machine.available {
            return;
        }
        let mut fixes = Vec::new();
        // What the other nodes take stays; a tenth is left for the rest of the machine.
        let fixed = self.memory.size.get().saturating_sub(need);
        let room = Size::bytes((machine.available / 10 * 9).saturating_sub(fixed) / MIB * MIB);
        if room.get() > 0 {
            fixes.push(format!("--set memory.size={room}"));
        }
        fit.problems.push(Problem {
            what: format!(
                "{} of memory are needed, and {} are available",
                Bytes(need),
                Bytes(machine.available)
            ),
            fixes,
        });
    }

    fn memlock(&self, machine: &Machine, fit: &mut Fit) {
        let need: u64 = self.shares.iter().map(|share| share.bytes).sum();
        let Some(limit) = machine.memlock.filter(|limit| *limit < need) else { return };
        let what = format!("locked memory limit {} < {} requested", Bytes(limit), Bytes(need));
        let fixes = vec![
            format!("ulimit -l {}", need.div_ceil(1024)),
            format!("LimitMEMLOCK={need} in the systemd unit"),
            format!("--ulimit memlock={need} --cap-add IPC_LOCK for a container"),
        ];
        match self.memory.memlock {
            Memlock::Strict => fit.problems.push(Problem { what, fixes }),
            Memlock::Check => {
                fit.warnings.push(format!(
                    "{what}: the software NIC locks nothing, a real one would refuse ({})",
                    fixes[0]
                ));
            }
        }
    }

    /// CPUs of more than one lcore, each once.
    fn shared_cpus(&self) -> Vec<u32> {
        let mut cpus: Vec<u32> =
            self.lcores.iter().filter(|lcore| lcore.shared).map(|lcore| lcore.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }
}

/// Hugepages are missing on a node: how many, and how to get them.
fn no_hugepages(share: Share, page: Page, node: &NumaNode, machine: &Machine) -> Problem {
    let pool = page.pool(node);
    let need = share.bytes.div_ceil(page.bytes());
    let want = pool.total + (need - pool.free.min(need));
    let mut fixes = Vec::new();
    let possible = want.saturating_mul(page.bytes()) < node.total;
    if possible {
        fixes.push(if page == Page::TwoMib && machine.numa.len() == 1 {
            format!("sudo sysctl -w vm.nr_hugepages={want}")
        } else {
            let kib = page.bytes() / 1024;
            format!(
                "echo {want} | sudo tee /sys/devices/system/node/node{}/hugepages/hugepages-{kib}kB/nr_hugepages",
                node.id
            )
        });
        fixes.push("--set memory.hugepages=auto".to_owned());
    } else {
        // No setting of the kernel helps; half of the memory can usually be spared.
        let room =
            Size::bytes(node.total / 2 / GIB.min(page.bytes() * 128) * GIB.min(page.bytes() * 128));
        fixes.push(format!(
            "--set memory.size={room}, and then sudo sysctl -w vm.nr_hugepages={}",
            room.get() / page.bytes()
        ));
    }
    Problem {
        what: format!(
            "hugepages of {}: NUMA node {} needs {need} ({}), and {} of {} are free{}",
            page.name(),
            node.id,
            Bytes(share.bytes),
            pool.free,
            pool.total,
            if possible {
                String::new()
            } else {
                format!("; the node has {} of memory in all", Bytes(node.total))
            }
        ),
        fixes,
    }
}
