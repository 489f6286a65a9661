//! Whether a machine fits a demand, said before anything is allocated, with the commands that would make it fit.

use core::fmt;
use std::collections::BTreeMap;

use crate::machine::Machine;
use crate::memlock::MemlockExceeded;
use crate::{Hugepages, Memlock, NumaPolicy, Rung, Size, ladder};

/// One region that will be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// What it is for, as reports name it: `MR source`.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Bytes of it that will be registered, and so locked by a NIC.
    pub registered: u64,
    /// The NUMA node its pages shall come from.
    pub node: Option<u32>,
    /// The lcore that works on it, as reports name it (`lcore 0`), and that lcore's node.
    pub lcore: Option<(String, u32)>,
}

/// The `[memory]` section of a pipeline, as far as it is policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// Which pages.
    pub hugepages: Hugepages,
    /// What happens when a node is full, or far from its lcore.
    pub numa: NumaPolicy,
    /// What happens when the locked memory limit is too low.
    pub memlock: Memlock,
}

/// Where a demand would land.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The demand's name.
    pub name: String,
    /// Its pages.
    pub rung: Rung,
    /// How many, from where.
    pub drawn: Vec<Drawn>,
}

/// Pages out of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The node; None: made on demand by the kernel, wherever it can.
    pub node: Option<u32>,
    /// Pages.
    pub pages: u64,
}

/// One line of the need/free table: pages of the best rung that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The node; None: any.
    pub node: Option<u32>,
    /// The pages.
    pub rung: Rung,
    /// Pages asked for.
    pub need: u64,
    /// Pages free before this demand.
    pub free: u64,
}

/// Why the machine does not fit. The message ends with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// More is registered than may be locked, and the limit is enforced.
    #[error(transparent)]
    Memlock(#[from] MemlockExceeded),
    /// Reserved pages were required, and are not free.
    #[error("{name}: {need} free {rung} needed{}, {free} free: {fix}", on(*node))]
    Hugepages {
        /// The demand.
        name: String,
        /// The pages.
        rung: Rung,
        /// The node they have to be on, if any.
        node: Option<u32>,
        /// Pages needed.
        need: u64,
        /// Pages free.
        free: u64,
        /// The command.
        fix: String,
    },
    /// The demand exceeds a limit of a cgroup.
    #[error(
        "{name}: {} needed, the cgroup has {} left: raise {file} to {} (docker: --memory, or the pod's limits)",
        Size(*need), Size(*left), raise_to
    )]
    Cgroup {
        /// The demand.
        name: String,
        /// Bytes needed.
        need: u64,
        /// Bytes left under the limit.
        left: u64,
        /// The file that holds the limit.
        file: String,
        /// A value that would do, in bytes.
        raise_to: u64,
    },
    /// There is not that much memory.
    #[error("{name}: {} needed{}, {} available: lower memory.size, or free memory", Size(*need), on(*node), Size(*available))]
    Memory {
        /// The demand.
        name: String,
        /// The node it has to be on, if any.
        node: Option<u32>,
        /// Bytes needed.
        need: u64,
        /// Bytes available.
        available: u64,
    },
    /// The node asked for does not exist.
    #[error("{name}: there is no NUMA node {node}, only {online:?}: name one of those")]
    NoSuchNode {
        /// The demand.
        name: String,
        /// The node asked for.
        node: u32,
        /// The nodes there are.
        online: Vec<u32>,
    },
    /// An lcore would work on memory of another node, under `numa = "strict"`.
    #[error(
        "{lcore} is on node {lcore_node}, {name} on node {node}: cross-NUMA is refused by memory.numa = \"strict\"; move \
         one of them, or set \"prefer\""
    )]
    CrossNuma {
        /// The lcore.
        lcore: String,
        /// Its node.
        lcore_node: u32,
        /// The demand.
        name: String,
        /// Its node.
        node: u32,
    },
}

/// What will work, though not as well as it could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Hugepages would have been used, and are not free. One for all demands.
    Fallback {
        /// The demands that fall.
        names: Vec<String>,
        /// The best pages that were not to be had.
        wanted: Rung,
        /// The worst that are taken instead.
        taken: Rung,
        /// The command that would reserve them.
        fix: String,
    },
    /// An lcore would work on memory of another node.
    CrossNuma {
        /// The lcore.
        lcore: String,
        /// Its node.
        lcore_node: u32,
        /// The demand.
        name: String,
        /// Where its pages come from.
        node: u32,
    },
    /// A NIC would refuse to register that much.
    Memlock(MemlockExceeded),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fallback { names, wanted, taken, fix } => {
                write!(
                    f,
                    "{}: {taken} instead of {wanted}; to reserve those: {fix}",
                    names.join(", ")
                )
            }
            Self::CrossNuma { lcore, lcore_node, name, node } => {
                write!(
                    f,
                    "{lcore} / {name} node {node} cross-NUMA: {lcore} is on node {lcore_node}"
                )
            }
            Self::Memlock(exceeded) => write!(f, "a NIC would refuse this: {exceeded}"),
        }
    }
}

fn on(node: Option<u32>) -> String {
    node.map_or_else(String::new, |node| format!(" on node {node}"))
}

/// The answer. It prints as the table, then problems and warnings with their fixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Where each demand that fits would land.
    pub placed: Vec<Placed>,
    /// Need and free pages per node, for the pages that were asked for first.
    pub table: Vec<Row>,
    /// Why it does not fit; empty when it does. What stops a NIC first comes first.
    pub problems: Vec<Problem>,
    /// What could be better.
    pub warnings: Vec<Warning>,
}

impl Report {
    /// Whether everything fits.
    pub const fn fits(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:<24} {:>10} {:>10} {:>10}",
            "node", "pages", "need", "free", "missing"
        )?;
        for Row { node, rung, need, free } in &self.table {
            let node = node.map_or_else(|| "any node".into(), |node| format!("node {node}"));
            let missing = need.saturating_sub(*free);
            writeln!(f, "{node:<9} {:<24} {need:>10} {free:>10} {missing:>10}", rung.to_string())?;
        }
        for problem in &self.problems {
            writeln!(f, "problem: {problem}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}

/// Lays `demands` on `machine` in order, as [`Region::create`](crate::Region::create) would.
pub fn preflight(machine: &Machine, policy: &MemoryPolicy, demands: &[Demand]) -> Report {
    let mut run = Run { policy, before: machine, left: machine.clone(), report: Report::default() };
    run.memlock(demands);
    for demand in demands {
        run.place(demand);
    }
    run.tabulate(demands);
    run.report
}

struct Run<'a> {
    policy: &'a MemoryPolicy,
    before: &'a Machine,
    /// What the demands so far leave.
    left: Machine,
    report: Report,
}

impl Run<'_> {
    fn memlock(&mut self, demands: &[Demand]) {
        let requested =
            demands.iter().fold(0_u64, |sum, demand| sum.saturating_add(demand.registered));
        let Some(limit) = self.before.memlock.filter(|limit| requested > *limit) else { return };
        let exceeded = MemlockExceeded { limit, requested, adding: requested };
        match self.policy.memlock {
            Memlock::Strict => self.report.problems.push(exceeded.into()),
            Memlock::Check => self.report.warnings.push(Warning::Memlock(exceeded)),
        }
    }

    fn place(&mut self, demand: &Demand) {
        if let Some(node) = demand.node
            && !self.before.nodes.iter().any(|n| n.id == node)
        {
            let online = self.before.nodes.iter().map(|n| n.id).collect();
            self.report.problems.push(Problem::NoSuchNode {
                name: demand.name.clone(),
                node,
                online,
            });
            return;
        }
        let rungs = ladder::rungs(self.policy.hugepages, demand.bytes, self.before.thp);
        let found = rungs.iter().find_map(|rung| Some((*rung, self.take(demand, *rung)?)));
        let Some((rung, drawn)) = found else {
            self.report.problems.extend(rungs.last().map(|rung| self.shortage(demand, *rung)));
            return;
        };
        if let Some(wanted) =
            rungs.first().filter(|wanted| wanted.is_reserved() && **wanted != rung)
        {
            self.note_fallback(demand, *wanted, rung);
        }
        self.check_distance(demand, &drawn);
        self.report.placed.push(Placed { name: demand.name.clone(), rung, drawn });
    }

    /// The node that a demand cannot do without.
    fn bound_to(&self, demand: &Demand) -> Option<u32> {
        demand.node.filter(|_| self.policy.numa == NumaPolicy::Strict)
    }

    /// Draws the pages of one rung, or leaves everything as it is.
    fn take(&mut self, demand: &Demand, rung: Rung) -> Option<Vec<Drawn>> {
        let bytes = rung.round_up(demand.bytes)?;
        let pages = bytes / rung.page_bytes();
        let base = !rung.is_reserved();
        if self.left.cgroup(rung).is_some_and(|group| group.left() < bytes)
            || base && self.left.available < bytes
        {
            return None;
        }
        let bound = self.bound_to(demand);
        // The wanted node first, then the others by number.
        let mut order: Vec<usize> = (0..self.left.nodes.len()).collect();
        order.sort_by_key(|i| Some(self.left.nodes[*i].id) != demand.node);
        let mut missing = pages;
        let mut drawn = Vec::new();
        for i in order {
            let node = &self.left.nodes[i];
            if bound.is_some_and(|bound| bound != node.id) {
                continue;
            }
            let taken = missing.min(node.free(rung));
            if taken > 0 {
                drawn.push(Drawn { node: Some(node.id), pages: taken });
                missing -= taken;
            }
        }
        if missing > 0 {
            // Base pages that no node accounts for (caches that can be dropped) are still available machine-wide.
            let on_demand =
                if base && bound.is_none() { u64::MAX } else { self.left.overcommit(rung) };
            if missing > on_demand {
                return None;
            }
            drawn.push(Drawn { node: None, pages: missing });
        }
        self.draw(rung, bytes, &drawn);
        Some(drawn)
    }

    fn draw(&mut self, rung: Rung, bytes: u64, drawn: &[Drawn]) {
        let left = &mut self.left;
        for Drawn { node, pages } in drawn {
            let at = node.and_then(|id| left.nodes.iter_mut().find(|n| n.id == id));
            let pool = match (at, rung) {
                (Some(node), Rung::Huge1G) => &mut node.free_1g,
                (Some(node), Rung::Huge2M) => &mut node.free_2m,
                (None, Rung::Huge1G) => &mut left.overcommit_1g,
                (None, Rung::Huge2M) => &mut left.overcommit_2m,
                (Some(node), Rung::Thp | Rung::Base) => {
                    node.available = node.available.saturating_sub(pages * rung.page_bytes());
                    continue;
                }
                (None, Rung::Thp | Rung::Base) => continue,
            };
            *pool = pool.saturating_sub(*pages);
        }
        if !rung.is_reserved() {
            left.available = left.available.saturating_sub(bytes);
        }
        let group = match rung {
            Rung::Huge1G => &mut left.hugetlb_1g_cgroup,
            Rung::Huge2M => &mut left.hugetlb_2m_cgroup,
            Rung::Thp | Rung::Base => &mut left.memory_cgroup,
        };
        if let Some(group) = group {
            group.used = group.used.saturating_add(bytes);
        }
    }

    /// Why the last rung that was allowed could not be had.
    fn shortage(&self, demand: &Demand, rung: Rung) -> Problem {
        // Where any reserved page would do, 2 MiB pages are the ones that can still be reserved on a running machine.
        let rung = if self.policy.hugepages == Hugepages::Require { Rung::Huge2M } else { rung };
        let name = demand.name.clone();
        let need = rung.round_up(demand.bytes).unwrap_or(u64::MAX);
        if let Some(group) = self.left.cgroup(rung).filter(|group| group.left() < need) {
            let raise_to = group.used.saturating_add(need);
            return Problem::Cgroup {
                name,
                need,
                left: group.left(),
                file: group.file.display().to_string(),
                raise_to,
            };
        }
        let node = self.bound_to(demand);
        let free = self.free(&self.left, rung, node);
        if rung.is_reserved() {
            let pages = need / rung.page_bytes();
            let fix = reserve(rung, node, pages.saturating_sub(free));
            Problem::Hugepages { name, rung, node, need: pages, free, fix }
        } else {
            let on_node = free.saturating_mul(rung.page_bytes());
            let available =
                if node.is_some() { on_node.min(self.left.available) } else { self.left.available };
            Problem::Memory { name, node, need, available }
        }
    }

    fn free(&self, machine: &Machine, rung: Rung, node: Option<u32>) -> u64 {
        let of_nodes: u64 = machine
            .nodes
            .iter()
            .filter(|n| node.is_none_or(|node| node == n.id))
            .map(|n| n.free(rung))
            .sum();
        of_nodes.saturating_add(machine.overcommit(rung))
    }

    fn note_fallback(&mut self, demand: &Demand, wanted: Rung, taken: Rung) {
        let bytes = wanted.round_up(demand.bytes).unwrap_or(u64::MAX);
        let fix = reserve(wanted, None, bytes / wanted.page_bytes());
        let known = self.report.warnings.iter_mut().find_map(|warning| match warning {
            Warning::Fallback { names, wanted, taken, fix } => Some((names, wanted, taken, fix)),
            Warning::CrossNuma { .. } | Warning::Memlock(_) => None,
        });
        match known {
            None => {
                let names = vec![demand.name.clone()];
                self.report.warnings.push(Warning::Fallback { names, wanted, taken, fix });
            }
            Some((names, best, worst, command)) => {
                names.push(demand.name.clone());
                *best = (*best).min(wanted);
                *worst = (*worst).max(taken);
                command.push_str("; ");
                command.push_str(&fix);
            }
        }
    }

    fn check_distance(&mut self, demand: &Demand, drawn: &[Drawn]) {
        let Some((lcore, lcore_node)) = &demand.lcore else { return };
        let far = drawn.iter().filter_map(|drawn| drawn.node).find(|node| node != lcore_node);
        let Some(node) = far else { return };
        let (lcore, lcore_node, name) = (lcore.clone(), *lcore_node, demand.name.clone());
        match self.policy.numa {
            NumaPolicy::Strict => {
                self.report.problems.push(Problem::CrossNuma { lcore, lcore_node, name, node });
            }
            NumaPolicy::Prefer => {
                self.report.warnings.push(Warning::CrossNuma { lcore, lcore_node, name, node });
            }
        }
    }

    fn tabulate(&mut self, demands: &[Demand]) {
        let mut need: BTreeMap<(Rung, Option<u32>), u64> = BTreeMap::new();
        for demand in demands {
            let rungs = ladder::rungs(self.policy.hugepages, demand.bytes, self.before.thp);
            let best = if self.policy.hugepages == Hugepages::Require {
                Some(Rung::Huge2M)
            } else {
                rungs.first().copied()
            };
            let Some(rung) = best else { continue };
            let pages = rung.round_up(demand.bytes).unwrap_or(u64::MAX) / rung.page_bytes();
            let sum = need.entry((rung, demand.node)).or_default();
            *sum = sum.saturating_add(pages);
        }
        let mut rungs: Vec<Rung> = need.keys().map(|(rung, _)| *rung).collect();
        rungs.dedup();
        for rung in rungs {
            // Every node is shown, wanted or not: pages on the wrong one are half of the answer.
            for node in &self.before.nodes {
                let need = need.get(&(rung, Some(node.id))).copied().unwrap_or(0);
                self.report.table.push(Row {
                    node: Some(node.id),
                    rung,
                    need,
                    free: node.free(rung),
                });
            }
            if let Some(&need) = need.get(&(rung, None)) {
                let free = self.free(self.before, rung, None);
                self.report.table.push(Row { node: None, rung, need, free });
            }
        }
    }
}

/// The command that reserves `pages` more pages, on a node if one is needed.
fn reserve(rung: Rung, node: Option<u32>, pages: u64) -> String {
    ladder::reserve_command(rung, node, pages).unwrap_or_default()
}
