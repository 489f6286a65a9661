//! The memory of a pipeline: for each lcore, one region that peers may at most read, and one that they may write.
//!
//! What a peer may write is apart from everything else, since a peer of this host maps whole regions.

use std::sync::Arc;

use pmd_mem::{Numa, Region, RegionError, RegionSpec, Seal};
use serde::Serialize;

use crate::extent::Extent;
use crate::plan::Plan;

/// The regions of one lcore, and who has which part of them.
#[derive(Debug, Default)]
pub(crate) struct LcoreMemory {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    node: usize,
    purpose: &'static str,
    extent: Extent,
}

/// A region as the report shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegionReport {
    /// The lcore whose nodes use it.
    pub lcore: String,
    /// Bytes.
    pub bytes: u64,
    /// The pages it is made of: the rung that was taken.
    pub pages: String,
    /// Better pages that were tried and not to be had, each with the kernel's answer.
    pub fell: Vec<String>,
    /// Whether peers may write it.
    pub remote_write: bool,
    /// Where its pages were asked to be.
    pub placement: String,
}

impl LcoreMemory {
    /// The memory of a node for one purpose.
    pub(crate) fn extent(&self, node: usize, purpose: &str) -> Option<Extent> {
        let part = self.parts.iter().find(|part| part.node == node && part.purpose == purpose)?;
        Some(part.extent.clone())
    }
}

/// Reserves everything that the plan gives to its nodes, lcore by lcore.
pub(crate) fn reserve(plan: &Plan) -> Result<(Vec<LcoreMemory>, Vec<RegionReport>), RegionError> {
    let mut memory: Vec<LcoreMemory> = plan.lcores.iter().map(|_| LcoreMemory::default()).collect();
    let mut reports = Vec::new();
    for (lcore, name) in plan.lcores.iter().map(|lcore| lcore.name.as_str()).enumerate() {
        for remote_write in [false, true] {
            let wanted: Vec<(usize, &'static str, u64)> = wanted(plan, lcore, remote_write);
            let bytes: u64 = wanted.iter().map(|(_, _, bytes)| bytes).sum();
            if bytes == 0 {
                continue;
            }
            let region = Arc::new(region(plan, lcore, bytes)?);
            let report = report(name, &region, remote_write);
            tracing::info!("lcore `{name}`: {} of {}", pmd_mem::Size(report.bytes), report.pages);
            reports.push(report);
            let mut offset = 0;
            for (node, purpose, bytes) in wanted {
                let extent = Extent::new(Arc::clone(&region), offset, bytes);
                memory[lcore].parts.push(Part { node, purpose, extent });
                offset += bytes;
            }
        }
    }
    Ok((memory, reports))
}

/// Node, purpose and bytes of everything on one lcore that peers may write, or may not.
fn wanted(plan: &Plan, lcore: usize, remote_write: bool) -> Vec<(usize, &'static str, u64)> {
    plan.parts(lcore, remote_write)
        .map(|(index, region)| (index, region.purpose, region.bytes))
        .collect()
}

fn region(plan: &Plan, lcore: usize, bytes: u64) -> Result<Region, RegionError> {
    let lcore = &plan.lcores[lcore];
    Region::create(&RegionSpec {
        name: &format!("spinwire-{}", lcore.name),
        len: bytes,
        hugepages: plan.memory.hugepages,
        numa: &Numa::on(u32::try_from(lcore.numa).unwrap_or(0), plan.memory.numa),
        seal: Seal::Data,
    })
}

fn report(lcore: &str, region: &Region, remote_write: bool) -> RegionReport {
    RegionReport {
        lcore: lcore.to_owned(),
        bytes: region.len(),
        pages: region.rung().to_string(),
        fell: region.falls().iter().map(ToString::to_string).collect(),
        remote_write,
        placement: region.placement().to_string(),
    }
}
