//! Which CPUs there are, which of them share a core, and which memory is near.
//!
//! Read from sysfs, which needs no library; with feature `hwloc` from libhwloc, with the same result.

#[cfg(feature = "hwloc")]
mod hwloc;
mod sysfs;

use std::io;
use std::path::{Path, PathBuf};

use crate::cpuset::CpuSet;

/// A hardware thread that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The number that the kernel and `taskset` use.
    pub id: usize,
    /// The core it belongs to, named by the lowest CPU id on that core.
    pub core: usize,
    /// The socket.
    pub package: usize,
    /// The NUMA node whose memory is near.
    pub node: usize,
}

/// A NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The number that the kernel and `numactl` use.
    pub id: usize,
    /// Memory that belongs to it.
    pub bytes: u64,
}

/// The usable part of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
    nodes: Vec<Node>,
}

/// Why the topology could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The kernel does not tell where this process may run.
    #[error("cannot read the affinity mask of this process: {0}")]
    Affinity(#[source] io::Error),
    /// A file of sysfs exists, but cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file of sysfs holds something else than expected.
    #[error("{} holds `{text}`, not {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its content.
        text: String,
        /// What should be there.
        expected: &'static str,
    },
    /// libhwloc refused.
    #[cfg(feature = "hwloc")]
    #[error("libhwloc cannot read the topology of this machine: {0}")]
    Hwloc(String),
}

impl Topology {
    /// The part of this machine that the calling thread may run on. To be asked before the thread pins itself.
    ///
    /// # Errors
    /// See [`TopologyError`].
    pub fn detect() -> Result<Self, TopologyError> {
        let allowed = CpuSet::allowed().map_err(TopologyError::Affinity)?;
        #[cfg(feature = "hwloc")]
        return Self::from_hwloc(&allowed);
        #[cfg(not(feature = "hwloc"))]
        Self::from_sysfs(Path::new("/sys"), &allowed)
    }

    /// The CPUs in `allowed`, as the sysfs mounted at `root` describes them.
    ///
    /// What a container or an old kernel does not show is assumed to be simple: every CPU a core of its own, one
    /// package, one node.
    ///
    /// # Errors
    /// [`TopologyError::Read`] or [`TopologyError::Malformed`], with the file.
    pub fn from_sysfs(root: &Path, allowed: &CpuSet) -> Result<Self, TopologyError> {
        sysfs::read(root, allowed)
    }

    /// The CPUs in `allowed`, as libhwloc describes them.
    ///
    /// # Errors
    /// [`TopologyError::Hwloc`].
    #[cfg(feature = "hwloc")]
    pub fn from_hwloc(allowed: &CpuSet) -> Result<Self, TopologyError> {
        hwloc::read(allowed)
    }

    /// A machine that is known otherwise, or made up: its usable CPUs and its NUMA nodes.
    pub fn new(mut cpus: Vec<Cpu>, mut nodes: Vec<Node>) -> Self {
        cpus.sort_by_key(|cpu| cpu.id);
        nodes.sort_by_key(|node| node.id);
        Self { cpus, nodes }
    }

    /// The usable CPUs, by id.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Every NUMA node, by id; those without usable CPUs too.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The CPU with this id, if this process may use it.
    pub fn cpu(&self, id: usize) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.id == id)
    }

    /// The ids of the usable CPUs.
    pub fn allowed(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }
}
