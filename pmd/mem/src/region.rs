use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use core::fmt;
use core::ops::Deref;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::ladder::{self, reserve_command};
use crate::segment::{AccessError, Segment};
use crate::{Hugepages, Numa, Placement, Rung, Size, machine, numa};

/// Who writes a region, which decides how it is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// Its size is fixed; peers that were granted so may write it. For message data.
    Data,
    /// Only the mapping made at creation can write it, ever. For key tables, QP pages and rings.
    OwnerWritten,
}

/// What to make.
#[derive(Clone, Debug)]
pub struct RegionSpec<'a> {
    /// Shown in `/proc/PID/maps` as `/memfd:NAME`.
    pub name: &'a str,
    /// Bytes wanted, rounded up to whole pages of the rung taken.
    pub len: u64,
    /// Which pages.
    pub hugepages: Hugepages,
    /// From which nodes.
    pub numa: &'a Numa,
    /// Who writes it.
    pub seal: Seal,
}

/// A rung that was tried and not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fall {
    /// What was tried.
    pub rung: Rung,
    /// The step that failed.
    pub step: &'static str,
    /// The kernel's answer.
    pub errno: i32,
}

impl fmt::Display for Fall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.rung, self.step, io::Error::from_raw_os_error(self.errno))
    }
}

/// Why there is no region. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// A region has at least one byte, and fits the address space.
    #[error("a region cannot have {0} bytes")]
    Length(u64),
    /// Hugepages were asked for and are not there.
    #[error(
        "no hugepages for {}: {}; reserve them: {fix}; or set memory.hugepages = \"auto\"",
        Size(*len), falls.iter().map(Fall::to_string).collect::<Vec<_>>().join("; ")
    )]
    Hugepages {
        /// Bytes asked for.
        len: u64,
        /// What was tried.
        falls: Vec<Fall>,
        /// The command that reserves them.
        fix: String,
    },
    /// More than the machine has, or its cgroup allows: asking the kernel for it would wake its OOM killer.
    #[error("{} asked for, {} available; lower memory.size or free memory", Size(*len), Size(*available))]
    Memory {
        /// Bytes asked for.
        len: u64,
        /// MemAvailable of `/proc/meminfo`, or what the cgroup has left.
        available: u64,
    },
    /// `numa = "strict"`, and the nodes cannot be had.
    #[error("cannot bind {} to NUMA node {nodes:?}: {source}; name an online node, or set memory.numa = \"prefer\"", Size(*len))]
    Numa {
        /// Bytes asked for.
        len: u64,
        /// Nodes asked for.
        nodes: Vec<u32>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a step that needs no scarce pages.
    #[error("cannot make a region of {}: {step}: {source}", Size(*len))]
    System {
        /// Bytes asked for.
        len: u64,
        /// The step that failed.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Memory of this process that can be handed to peers: a sealed memfd, mapped, present, and on the right NUMA node.
///
/// All pages are there before anyone touches them, so that a shortage is an error here and no SIGBUS later. Nothing has a name
/// in any file system: the memory is gone with the last process that maps it, however that ends.
#[derive(Debug)]
pub struct Region {
    segment: Arc<Segment>,
    file: File,
    rung: Rung,
    falls: Vec<Fall>,
    placement: Placement,
}

/// A rung can fail in a way that the next may survive, or for good.
enum Failure {
    Fall(Fall),
    Fatal(RegionError),
}

impl Region {
    /// Makes a region on the best rung that `spec` allows. See memfd_create(2), mbind(2), madvise(2), fcntl(2).
    pub fn create(spec: &RegionSpec<'_>) -> Result<Self, RegionError> {
        if spec.len == 0 || isize::try_from(spec.len).is_err() {
            return Err(RegionError::Length(spec.len));
        }
        let mut falls = Vec::new();
        for rung in ladder::rungs(spec.hugepages, spec.len, ladder::thp_offered()) {
            match Self::on_rung(spec, rung) {
                Ok(region) => return Ok(Self { falls, ..region }),
                Err(Failure::Fall(fall)) => falls.push(fall),
                Err(Failure::Fatal(e)) => return Err(e),
            }
        }
        // Only hugetlb rungs fall, and only explicit choices end on one.
        let fix = falls
            .iter()
            .find_map(|fall| {
                reserve_command(fall.rung, None, spec.len.div_ceil(fall.rung.page_bytes()))
            })
            .unwrap_or_default();
        Err(RegionError::Hugepages { len: spec.len, falls, fix })
    }

    fn on_rung(spec: &RegionSpec<'_>, rung: Rung) -> Result<Self, Failure> {
        let len = rung.round_up(spec.len).ok_or(Failure::Fatal(RegionError::Length(spec.len)))?;
        let failed = |step: &'static str, source: io::Error| {
            if rung.is_reserved() {
                Failure::Fall(Fall { rung, step, errno: source.raw_os_error().unwrap_or(0) })
            } else {
                Failure::Fatal(RegionError::System { len: spec.len, step, source })
            }
        };
        if !rung.is_reserved()
            && let Some(available) = machine::available()
            && available < len
        {
            return Err(Failure::Fatal(RegionError::Memory { len: spec.len, available }));
        }

        let size = match rung {
            Rung::Huge1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
            Rung::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            Rung::Thp | Rung::Base => MemfdFlags::empty(),
        };
        let file: File = rustix::fs::memfd_create(
            spec.name,
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | size,
        )
        .map_err(|e| failed("memfd_create", e.into()))?
        .into();
        file.set_len(len).map_err(|e| failed("set length", e))?;
        // Mapping a hugetlb file shared reserves its pages: from here on a shortage can only be one of a node or a cgroup.
        let map = MmapOptions::new().map_raw(&file).map_err(|e| failed("map", e))?;
        let placement = numa::bind(&map, spec.numa).map_err(|source| {
            Failure::Fatal(RegionError::Numa {
                len: spec.len,
                nodes: spec.numa.nodes.clone(),
                source,
            })
        })?;
        match rung {
            Rung::Thp => map.advise(Advice::HugePage).map_err(|e| failed("advise hugepages", e))?,
            // A kernel built without transparent hugepages does not know the advice, and needs none.
            Rung::Base => match map.advise(Advice::NoHugePage) {
                Err(e) if e.raw_os_error() != Some(libc::EINVAL) => {
                    return Err(failed("advise no hugepages", e));
                }
                _ => {}
            },
            Rung::Huge1G | Rung::Huge2M => {}
        }
        populate(&map, &file, len).map_err(|e| failed("populate", e))?;

        let segment = Segment::mapped(map, true).map_err(|e| failed("keep from children", e))?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if spec.seal == Seal::OwnerWritten {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&file, seals).map_err(|e| failed("seal", e.into()))?;
        Ok(Self { segment: Arc::new(segment), file, rung, falls: Vec::new(), placement })
    }

    /// The memory itself, for holders that outlive the region's owner.
    pub const fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The descriptor to send to a peer that may write.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A descriptor to send to a peer that may only read.
    ///
    /// It keeps honest peers honest: one of the same user can reopen it for writing, unless the region is owner-written.
    pub fn read_only_fd(&self) -> io::Result<OwnedFd> {
        self.segment.check_process().map_err(io::Error::other)?;
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file));
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The pages it is made of.
    pub const fn rung(&self) -> Rung {
        self.rung
    }

    /// Better rungs that were tried and not to be had.
    pub fn falls(&self) -> &[Fall] {
        &self.falls
    }

    /// Where its pages were asked to be.
    pub const fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The NUMA node that holds the byte at `offset`. See get_mempolicy(2), which containers may forbid.
    pub fn node_of(&self, offset: u64) -> io::Result<u32> {
        numa::node_of(self.segment.source(offset, 1).map_err(io::Error::other)?)
    }

    /// Refuses in a process forked after the region was made.
    pub fn check_process(&self) -> Result<(), AccessError> {
        self.segment.check_process()
    }
}

impl Deref for Region {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.segment
    }
}

/// Makes every page present. A page that cannot be had is an error, not a signal.
fn populate(map: &MmapRaw, file: &File, len: u64) -> io::Result<()> {
    match map.advise(Advice::PopulateWrite) {
        // Before Linux 5.14.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
                Err(Errno::INTR) => populate(map, file, len),
                done => Ok(done?),
            }
        }
        Err(e) if e.kind() == io::ErrorKind::Interrupted => populate(map, file, len),
        done => done,
    }
}
