use core::ops::Deref;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use memmap2::MmapOptions;
use rustix::fs::{FileType, OFlags, SealFlags};

use crate::Size;
use crate::segment::Segment;

/// What an importer wants to do with a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAccess {
    /// Copy out of it.
    Read,
    /// Copy out of it and into it.
    ReadWrite,
}

/// Why a descriptor that a peer sent was not mapped.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is no memfd, or one that can never be sealed.
    #[error("the peer's descriptor is no sealable memfd")]
    NotMemfd,
    /// Its size could change under our feet, and kill us by SIGBUS.
    #[error("the peer's memfd lacks the seals SHRINK, GROW and SEAL (it has {have:#x})")]
    Unsealed {
        /// The seals it has, as `F_GET_SEALS` of fcntl(2) numbers them.
        have: u32,
    },
    /// Its size is not what the peer said.
    #[error("the peer's memfd has {}, announced were {}", Size(*have), Size(*announced))]
    Length {
        /// Bytes it has.
        have: u64,
        /// Bytes announced.
        announced: u64,
    },
    /// It was to be written, but only its owner may, or the descriptor is open for reading.
    #[error("the peer's memfd can only be read here")]
    ReadOnly,
    /// The kernel refused.
    #[error("cannot map the peer's memfd: {step}: {source}")]
    System {
        /// The step that failed.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A peer's region, mapped here. Unmapped when the last holder of its [`Segment`] is gone.
///
/// The seals make the size final. They cannot keep a hostile peer from freeing pages of a *data* region; the next touch then
/// finds a zeroed page, or, on reserved hugepages with an empty pool, none.
#[derive(Debug)]
pub struct Mapping {
    segment: Arc<Segment>,
}

impl Mapping {
    /// Maps `len` bytes of a descriptor that came from a peer, after checking that it is a sealed memfd of just that size.
    ///
    /// The descriptor is not kept.
    pub fn import(fd: impl AsFd, access: MapAccess, len: u64) -> Result<Self, ImportError> {
        let fd = fd.as_fd();
        let system = |step| {
            move |source: rustix::io::Errno| ImportError::System { step, source: source.into() }
        };
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| ImportError::NotMemfd)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL) {
            return Err(ImportError::Unsealed { have: seals.bits() });
        }
        let stat = rustix::fs::fstat(fd).map_err(system("fstat"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(ImportError::NotMemfd);
        }
        let have = u64::try_from(stat.st_size).map_err(|_| ImportError::NotMemfd)?;
        if have != len || have == 0 {
            return Err(ImportError::Length { have, announced: len });
        }
        let map = match access {
            MapAccess::Read => MmapOptions::new().map_raw_read_only(&fd),
            MapAccess::ReadWrite => {
                let flags = rustix::fs::fcntl_getfl(fd).map_err(system("fcntl"))?;
                if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
                    || !flags.contains(OFlags::RDWR)
                {
                    return Err(ImportError::ReadOnly);
                }
                MmapOptions::new().map_raw(&fd)
            }
        };
        let map = map.map_err(|source| ImportError::System { step: "mmap", source })?;
        let segment = Segment::mapped(map, access == MapAccess::ReadWrite)
            .map_err(|source| ImportError::System { step: "madvise", source })?;
        Ok(Self { segment: Arc::new(segment) })
    }

    /// The memory itself, for holders that outlive this value.
    pub const fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}

impl Deref for Mapping {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.segment
    }
}
