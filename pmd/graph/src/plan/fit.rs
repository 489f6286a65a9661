//! Whether a plan fits a machine, and the exact commands that would make it fit.

use pmd_lcore::assign::shared;
use pmd_mem::{Hugepages, Memlock, NumaPolicy, Rung, ladder};
use pmd_observe::report::Bytes;

use super::machine::{Machine, NumaMemory};
use super::{Plan, Share};
use crate::config::units::Size;
use crate::cores;

const MIB: u64 = 1 << 20;

/// Need and supply of one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The NUMA node.
    pub numa: usize,
    /// Bytes that the plan takes there.
    pub need: u64,
    /// The pages that they would be taken from.
    pub rung: Rung,
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
            let node = machine.numa.iter().find(|node| node.id == share.numa).copied();
            let node =
                node.unwrap_or_else(|| NumaMemory { id: share.numa, ..NumaMemory::default() });
            self.fit_share(*share, &node, machine, &mut fit);
        }
        self.fit_small_pages(machine, &mut fit);
        self.fit_memlock(machine, &mut fit);
        let cpus: Vec<usize> = self.lcores.iter().map(|lcore| lcore.cpu).collect();
        fit.warnings.extend(shared(&cpus).iter().map(|cpu| {
            format!(
                "lcores share CPU {cpu} and take turns: give each a CPU of its own for full speed"
            )
        }));
        fit.warnings.extend(self.beside_others(machine));
        fit
    }

    /// The lcores that have their CPU together with other processes.
    pub fn beside_others(&self, machine: &Machine) -> Option<String> {
        let beside: Vec<_> = self.lcores.iter().filter(|lcore| !lcore.others.is_empty()).collect();
        let held = |cpu: usize| machine.held.iter().any(|holder| holder.cpu == cpu);
        let ours = |cpu: usize| self.lcores.iter().any(|lcore| lcore.cpu == cpu);
        let allowed = machine.topology.allowed();
        let free = allowed.iter().filter(|cpu| !held(*cpu) && !ours(*cpu)).collect();
        let names: Vec<String> = beside.iter().map(|lcore| format!("`{}`", lcore.name)).collect();
        let who = match &*names {
            [] => return None,
            [name] => format!("lcore {name} is"),
            names => format!("lcores {} are", names.join(", ")),
        };
        let others: Vec<_> = beside.iter().flat_map(|lcore| lcore.others.iter().copied()).collect();
        Some(cores::costs(&who, &others, &free, "cpu = \"auto\" takes one that is"))
    }

    /// Which pages a NUMA node's share comes from.
    fn fit_share(&self, share: Share, node: &NumaMemory, machine: &Machine, fit: &mut Fit) {
        let rungs = ladder::rungs(self.memory.hugepages, share.bytes, machine.thp);
        let regions = self.regions_on(share.numa);
        // Every region has pages of its own; one that is too small for a page of a rung takes lesser ones.
        let taken = |rung: Rung| -> u64 {
            if !rung.is_reserved() {
                return share.bytes;
            }
            let takes = |bytes: u64| {
                ladder::rungs(self.memory.hugepages, bytes, machine.thp).contains(&rung)
            };
            let rounded = regions.iter().filter(|bytes| takes(**bytes));
            let rounded = rounded.map(|bytes| rung.round_up(*bytes).unwrap_or(u64::MAX));
            rounded.fold(0, u64::saturating_add)
        };
        let enough = |node: &NumaMemory, rung: Rung| taken(rung) <= node.free(rung);
        let mut row = |rung: Rung| {
            fit.rows.push(Row { numa: share.numa, need: taken(rung), rung, free: node.free(rung) });
        };
        if let Some(rung) = rungs.iter().find(|rung| !rung.is_reserved() || enough(node, **rung)) {
            row(*rung);
            if !rung.is_reserved()
                && self.memory.numa == NumaPolicy::Strict
                && share.bytes > node.available
            {
                fit.problems.push(Problem {
                    what: format!(
                        "numa = \"strict\": NUMA node {} needs {}, and has {} free",
                        share.numa,
                        Bytes(share.bytes),
                        Bytes(node.available)
                    ),
                    fixes: vec!["--set memory.numa=prefer".to_owned()],
                });
            }
            return;
        }
        let rung =
            if self.memory.hugepages == Hugepages::Size1G { Rung::Huge1G } else { Rung::Huge2M };
        row(rung);
        let elsewhere =
            machine.numa.iter().find(|other| other.id != node.id && enough(other, rung));
        match elsewhere {
            Some(other) if self.memory.numa == NumaPolicy::Prefer => fit.warnings.push(format!(
                "lcores on NUMA node {} get memory of node {}, where hugepages are free: every access crosses",
                node.id, other.id
            )),
            _ => {
                let regions = regions.len() as u64;
                fit.problems.push(no_hugepages(taken(rung), regions, rung, node, machine));
            }
        }
    }

    /// Whether all that comes from small pages is there, over all NUMA nodes.
    fn fit_small_pages(&self, machine: &Machine, fit: &mut Fit) {
        let need: u64 =
            fit.rows.iter().filter(|row| !row.rung.is_reserved()).map(|row| row.need).sum();
        if need <= machine.available {
            return;
        }
        // A tenth is left to the rest of the machine.
        let room = Size::bytes(machine.available / 10 * 9 / MIB * MIB);
        let less = (room.get() > 0).then(|| format!("--set memory.size={room}"));
        fit.problems.push(Problem {
            what: format!(
                "{} of memory are needed, and {} are available",
                Bytes(need),
                Bytes(machine.available)
            ),
            fixes: less.into_iter().collect(),
        });
    }

    fn fit_memlock(&self, machine: &Machine, fit: &mut Fit) {
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
                fit.warnings.push(format!("{what}: a NIC would refuse it; {}", fixes[0]));
            }
        }
    }
}

/// Hugepages are missing on a node for `bytes` in so many regions, each in pages of its own: how many, and how to get them.
fn no_hugepages(
    bytes: u64,
    regions: u64,
    rung: Rung,
    node: &NumaMemory,
    machine: &Machine,
) -> Problem {
    let (pool, page) = (node.pool(rung), rung.page_bytes());
    let need = bytes.div_ceil(page);
    let want = pool.total + need.saturating_sub(pool.free);
    let mut what = format!(
        "NUMA node {} needs {need} {rung} ({}), and {} of {} are free",
        node.id,
        Bytes(bytes),
        pool.free,
        pool.total
    );
    if want.saturating_mul(page) < node.total {
        return Problem {
            what,
            fixes: vec![
                reserve(want, rung, node, machine),
                "--set memory.hugepages=auto".to_owned(),
            ],
        };
    }
    what.push_str(&format!("; the node has {} of memory in all", Bytes(node.total)));
    // Half of a node can usually be spared. A number of pages that a person would choose: a multiple of 128, or of 1.
    let unit = if rung == Rung::Huge2M { 128 } else { 1 };
    let pages = node.total / 2 / page / unit * unit;
    let mut fixes =
        vec!["--set memory.hugepages=auto and a memory.size that the machine has".to_owned()];
    // The last page of a region may be nearly empty.
    if pages > regions {
        let less = Size::bytes((pages - regions) * page);
        fixes.insert(
            0,
            format!(
                "{}; and --set memory.size={less}",
                reserve(pages + pool.total.saturating_sub(pool.free), rung, node, machine)
            ),
        );
    }
    Problem { what, fixes }
}

/// The command that makes `pages` hugepages of a rung on a node.
fn reserve(pages: u64, rung: Rung, node: &NumaMemory, machine: &Machine) -> String {
    if rung == Rung::Huge2M && machine.numa.len() == 1 {
        return format!("sudo sysctl -w vm.nr_hugepages={pages}");
    }
    let (id, kib) = (node.id, rung.page_bytes() >> 10);
    format!(
        "echo {pages} | sudo tee /sys/devices/system/node/node{id}/hugepages/hugepages-{kib}kB/nr_hugepages"
    )
}
