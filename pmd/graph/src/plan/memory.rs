//! Who gets how much of `memory.size`.

use pmd_mem::page_size;
use pmd_observe::report::Bytes;

use super::demand::{Amount, Region, Rights};
use super::{LcorePlan, NodePlan, Plan, RegionPlan, Share};
use crate::config::Config;
use crate::config::units::Size;
use crate::diagnostic::{Diagnostic, Report};

/// Gives every node its regions: first what asks for so many bytes, then equal shares of what is left.
pub(super) fn share(config: &Config, nodes: &mut [NodePlan], report: &mut Report) {
    let wanted: Vec<Vec<Region>> =
        nodes.iter().map(|node| node.factory.regions(&node.settings, &node.flow)).collect();
    let (mut fixed, mut sharers) = (0_u64, 0_u64);
    for region in wanted.iter().flatten() {
        match region.amount {
            Amount::Bytes(bytes) => fixed = fixed.saturating_add(pages(bytes)),
            Amount::Rest => sharers += 1,
        }
    }
    let size = config.memory.size.get();
    // Every region begins on a page of its own.
    let page = page_size();
    let needed = fixed.saturating_add(sharers * page);
    if needed > size {
        report.push(too_small(config, nodes, &wanted, needed));
        return;
    }
    let rest = (size - fixed).checked_div(sharers).unwrap_or(0) / page * page;
    for (node, regions) in nodes.iter_mut().zip(wanted) {
        node.regions = regions
            .into_iter()
            .map(|region| RegionPlan {
                purpose: region.purpose,
                bytes: match region.amount {
                    Amount::Bytes(bytes) => pages(bytes),
                    Amount::Rest => rest,
                },
                rights: region.rights,
            })
            .filter(|region| region.bytes > 0)
            .collect();
    }
}

/// Whole pages; at the end of 64 bits, as far as they go.
fn pages(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(page_size()).unwrap_or(u64::MAX)
}

fn too_small(
    config: &Config,
    nodes: &[NodePlan],
    wanted: &[Vec<Region>],
    needed: u64,
) -> Diagnostic {
    let size = config.memory.size;
    let mut diagnostic =
        Diagnostic::error(format!("the nodes need more memory than memory.size = {size}"));
    for (node, regions) in nodes.iter().zip(wanted) {
        for region in regions {
            let amount = match region.amount {
                Amount::Bytes(bytes) => Bytes(pages(bytes)).to_string(),
                Amount::Rest => "what is left".to_owned(),
            };
            diagnostic =
                diagnostic.note(format!("{} of `{}`: {amount}", region.purpose, node.name));
        }
    }
    // The next whole MiB is a number that a person would write.
    let enough = Size::bytes(needed.checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX));
    let help = format!("set memory.size to {enough} or more, or lower depth or block");
    match config.memory.size_span {
        Some(span) => {
            let replacement = format!("\"{enough}\"");
            diagnostic.at(span, format!("{} are needed", Bytes(needed))).fix(
                span,
                replacement,
                help,
            )
        }
        None => diagnostic.help(help),
    }
}

impl Plan {
    /// What lies in one region of memory: the parts of the nodes on one lcore that peers may write, or may not. With the
    /// index of the node.
    pub(crate) fn parts(
        &self,
        lcore: usize,
        remote_write: bool,
    ) -> impl Iterator<Item = (usize, &RegionPlan)> {
        let nodes = self.nodes.iter().enumerate().filter(move |(_, node)| node.lcore == lcore);
        let parts =
            nodes.flat_map(|(index, node)| node.regions.iter().map(move |part| (index, part)));
        parts.filter(move |(_, part)| (part.rights == Rights::RemoteReadWrite) == remote_write)
    }

    /// The bytes of every region of memory on a NUMA node.
    pub(super) fn regions_on(&self, numa: usize) -> Vec<u64> {
        let lcores = (0..self.lcores.len()).filter(|lcore| self.lcores[*lcore].numa == numa);
        let regions = lcores.flat_map(|lcore| [(lcore, false), (lcore, true)]);
        let bytes = regions.map(|(lcore, remote_write)| {
            self.parts(lcore, remote_write).map(|(_, part)| part.bytes).sum()
        });
        bytes.filter(|bytes| *bytes > 0).collect()
    }
}

/// The bytes of all regions on each NUMA node.
pub(super) fn by_numa(nodes: &[NodePlan], lcores: &[LcorePlan]) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    for node in nodes {
        let numa = lcores[node.lcore].numa;
        let bytes: u64 = node.regions.iter().map(|region| region.bytes).sum();
        match shares.iter_mut().find(|share| share.numa == numa) {
            Some(share) => share.bytes += bytes,
            None => shares.push(Share { numa, bytes }),
        }
    }
    shares.retain(|share| share.bytes > 0);
    shares.sort_by_key(|share| share.numa);
    shares
}
