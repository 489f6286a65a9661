//! The topology as libhwloc tells it.

use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::Topology as Hwloc;
use hwlocality::topology::builder::BuildFlags;

use super::{Cpu, Node, Topology, TopologyError};
use crate::cpuset::CpuSet;

pub(super) fn read(allowed: &CpuSet) -> Result<Topology, TopologyError> {
    // CPUs outside of the container's cpuset still count when a core is named by its lowest CPU.
    let builder = Hwloc::builder().with_flags(BuildFlags::INCLUDE_DISALLOWED);
    let builder = builder.map_err(|error| TopologyError::Hwloc(error.to_string()))?;
    let hwloc = builder.build().map_err(|error| TopologyError::Hwloc(error.to_string()))?;

    let mut cpus: Vec<Cpu> = hwloc.objects_with_type(ObjectType::PU).filter_map(cpu).collect();
    cpus.retain(|cpu| allowed.contains(cpu.id));
    cpus.sort_by_key(|cpu| cpu.id);
    let mut nodes: Vec<Node> =
        hwloc.objects_with_type(ObjectType::NUMANode).filter_map(node).collect();
    nodes.sort_by_key(|node| node.id);
    Ok(Topology { cpus, nodes })
}

fn cpu(unit: &TopologyObject) -> Option<Cpu> {
    let id = unit.os_index()?;
    let core = unit.first_ancestor_with_type(ObjectType::Core);
    let package = unit.first_ancestor_with_type(ObjectType::Package);
    Some(Cpu {
        id,
        core: core.and_then(|core| core.cpuset()?.first_set()).map_or(id, usize::from),
        package: package.and_then(TopologyObject::os_index).unwrap_or(0),
        node: unit.nodeset().and_then(|nodes| nodes.first_set()).map_or(0, usize::from),
    })
}

fn node(object: &TopologyObject) -> Option<Node> {
    let bytes = match object.attributes() {
        Some(ObjectAttributes::NUMANode(numa)) => numa.local_memory().map_or(0, u64::from),
        _ => 0,
    };
    Some(Node { id: object.os_index()?, bytes })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn both_readers_agree_on_this_machine() {
        let allowed = CpuSet::allowed().unwrap();
        let sysfs = Topology::from_sysfs(Path::new("/sys"), &allowed).unwrap();
        assert_eq!(read(&allowed).unwrap(), sysfs);
        let one = CpuSet::from_iter(allowed.first());
        assert_eq!(read(&one).unwrap(), Topology::from_sysfs(Path::new("/sys"), &one).unwrap());
    }
}
