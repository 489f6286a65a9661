//! Which NUMA node the pages of a region come from.

use core::fmt;
use std::io;

use memmap2::MmapRaw;

use crate::limits::NUMA_NODES_MAX;

/// What happens when the wanted nodes have no memory (`memory.numa` in a pipeline).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaPolicy {
    /// Take it from elsewhere.
    #[default]
    Prefer,
    /// Fail.
    Strict,
}

/// The nodes a region wants, and how much it wants them. No nodes: wherever the first touch happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numa {
    /// Node numbers, each below [`NUMA_NODES_MAX`].
    pub nodes: Vec<u32>,
    /// What happens when they are full.
    pub policy: NumaPolicy,
}

impl Numa {
    /// Memory near the core that asks.
    pub fn on(node: u32, policy: NumaPolicy) -> Self {
        Self { nodes: vec![node], policy }
    }
}

/// What became of the wish for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// None was expressed.
    FirstTouch,
    /// The pages were bound before they were touched.
    Bound(Numa),
    /// The kernel allows no binding here (a container without CAP_SYS_NICE, or a kernel without NUMA).
    NotAllowed,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstTouch => f.write_str("first touch"),
            Self::NotAllowed => f.write_str("no binding allowed here"),
            Self::Bound(numa) => {
                let policy = if numa.policy == NumaPolicy::Strict { "only" } else { "prefer" };
                write!(
                    f,
                    "{policy} node {}",
                    numa.nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
                )
            }
        }
    }
}

/// `MPOL_F_NODE | MPOL_F_ADDR` of get_mempolicy(2): tell the node that holds an address.
const NODE_OF_ADDRESS: libc::c_ulong = 1 | 2;

/// `MPOL_PREFERRED_MANY` of `set_mempolicy(2)`, Linux 5.15.
const MPOL_PREFERRED_MANY: libc::c_int = 5;

/// Binds pages that nobody touched yet, by mbind(2).
pub(crate) fn bind(map: &MmapRaw, numa: &Numa) -> io::Result<Placement> {
    let Some(&first) = numa.nodes.first() else {
        return Ok(Placement::FirstTouch);
    };
    if let Some(node) = numa.nodes.iter().find(|node| **node >= NUMA_NODES_MAX) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("there is no NUMA node {node}"),
        ));
    }
    let result = match numa.policy {
        NumaPolicy::Strict => mbind(map, libc::MPOL_BIND, &numa.nodes),
        NumaPolicy::Prefer if numa.nodes.len() == 1 => mbind(map, libc::MPOL_PREFERRED, &[first]),
        NumaPolicy::Prefer => mbind(map, MPOL_PREFERRED_MANY, &numa.nodes)
            // Before 5.15 only one node can be preferred.
            .or_else(|_| mbind(map, libc::MPOL_PREFERRED, &[first])),
    };
    match result {
        Ok(()) => Ok(Placement::Bound(numa.clone())),
        Err(e)
            if numa.policy == NumaPolicy::Prefer
                && matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) =>
        {
            Ok(Placement::NotAllowed)
        }
        Err(e) => Err(e),
    }
}

fn mbind(map: &MmapRaw, mode: libc::c_int, nodes: &[u32]) -> io::Result<()> {
    let mut mask = [0_u64; (NUMA_NODES_MAX / 64) as usize];
    for node in nodes {
        mask[(node / 64) as usize] |= 1 << (node % 64);
    }
    // The kernel reads one bit less than it is told.
    let bits = u64::from(NUMA_NODES_MAX) + 1;
    // SAFETY: the range is ours, the mask is `bits - 1` bits long.
    let code = unsafe {
        libc::syscall(libc::SYS_mbind, map.as_mut_ptr(), map.len(), mode, mask.as_ptr(), bits, 0)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node that holds the page at `address` of this process, by get_mempolicy(2).
pub(crate) fn node_of(address: *mut u8) -> io::Result<u32> {
    let mut node: libc::c_int = 0;
    // SAFETY: writes one int; the address is only looked up.
    let code = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            core::ptr::null_mut::<u64>(),
            0,
            address,
            NODE_OF_ADDRESS,
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(node).map_err(io::Error::other)
}
