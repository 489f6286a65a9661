//! Opening the file of a store.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags, XattrFlags,
};
use rustix::io::Errno;
use thiserror::Error;

use crate::limits::{DIRECT_ALIGN, LOCK_WAIT};

/// Magic numbers of file systems that live in memory (statfs(2)).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The extended attribute of a file that is known to be a store (xattr(7)).
const MARK: &str = "user.spinwire.store";

/// Whether requests pass by the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where the file system can, and a request is aligned.
    #[default]
    Auto,
    /// Always: what cannot is refused.
    Require,
    /// Never.
    Off,
}

/// Which file.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// This one. It is made where there is none, and never cut. See [`FileSpec::overwrite`].
    Path(&'a Path),
    /// One without a name in this directory, which is gone with the process.
    Unnamed(&'a Path),
}

/// What to open.
#[derive(Clone, Copy, Debug)]
pub struct FileSpec<'a> {
    /// Which file.
    pub place: Place<'a>,
    /// Bytes of the store; `None`: what the file has. A shorter file grows, and its blocks are reserved.
    pub size: Option<u64>,
    /// Take the file or device whatever it holds. Otherwise it is refused if it holds data and was not made, or taken while it
    /// held none, by a store: blocks go where they belong, over whatever was there. Which files are stores is remembered in an
    /// extended attribute; devices, and files where there are none, need this each time.
    pub overwrite: bool,
    /// Whether requests pass by the page cache.
    pub direct: Direct,
    /// Most requests in flight.
    pub depth: u32,
}

/// Why a file cannot be a store. Each says what to do.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The kernel refuses to open or make it.
    #[error("cannot open `{}`: {source}", path.display())]
    Open {
        /// The file, or the directory of one without a name.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It is no regular file and no block device.
    #[error("`{}` is neither a file nor a block device", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// It holds something, and perhaps not blocks.
    #[error(
        "`{}` holds data and is not known to be a store: name another file, or set overwrite = true to lose what it holds", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else has it.
    #[error("`{}` is in use by another process: give each target a file of its own", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// It holds nothing, and nobody says how large it is to be.
    #[error("`{}` is empty: say how large it is to be", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be made so large.
    #[error("cannot make `{}` {size} bytes large: {source}", path.display())]
    Size {
        /// The file, or the directory of one without a name.
        path: PathBuf,
        /// Bytes asked for.
        size: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Direct I/O is required, and the file system has none.
    #[error(
        "`{}` lies on a file system without direct I/O: set direct = \"auto\" or \"off\", or put it on a disk", path.display()
    )]
    NoDirect {
        /// The file, or the directory of one without a name.
        path: PathBuf,
    },
    /// The kernel makes no ring.
    #[error("the kernel makes no io_uring: {source}; {fix}")]
    Ring {
        /// Its answer.
        source: io::Error,
        /// What to do.
        fix: &'static str,
    },
}

/// A file that is open twice where it can be: with and without the page cache.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) buffered: File,
    pub(super) direct: Option<DirectFile>,
    pub(super) len: u64,
    pub(super) path: PathBuf,
    /// Tells it from every other file; `None` for one that ends with the process.
    pub(super) identity: Option<u64>,
}

/// The descriptor that passes by the page cache, and what its requests have to be multiples of.
#[derive(Debug)]
pub(super) struct DirectFile {
    pub(super) file: File,
    pub(super) align: u32,
}

pub(super) fn open(spec: &FileSpec<'_>) -> Result<Opened, OpenError> {
    let (file, path) = file(spec.place)?;
    let failed = |source: io::Error| OpenError::Open { path: path.clone(), source };
    let metadata = file.metadata().map_err(failed)?;
    let is_device = metadata.file_type().is_block_device();
    if !metadata.is_file() && !is_device {
        return Err(OpenError::Kind { path });
    }
    match lock(&file) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(OpenError::Busy { path }),
        Err(error) => return Err(failed(error.into())),
    }
    let has = if is_device {
        rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| failed(e.into()))?
    } else {
        metadata.len()
    };
    let len = spec.size.unwrap_or(has);
    if len == 0 {
        return Err(OpenError::Empty { path });
    }
    if !spec.overwrite && !is_marked(&file) && (is_device || holds_data(&file).map_err(failed)?) {
        return Err(OpenError::Foreign { path });
    }
    if !is_device {
        mark(&file).map_err(failed)?;
    }
    if len > has {
        let grown = if is_device { Err(Errno::NOSPC.into()) } else { grow(&file, len) };
        grown.map_err(|source| OpenError::Size { path: path.clone(), size: len, source })?;
    }
    let direct = match spec.direct {
        Direct::Off => None,
        Direct::Auto | Direct::Require => direct(&file).map_err(failed)?,
    };
    if spec.direct == Direct::Require && direct.is_none() {
        return Err(OpenError::NoDirect { path });
    }
    let identity = matches!(spec.place, Place::Path(_)).then(|| identity(&metadata));
    Ok(Opened { buffered: file, direct, len, path, identity })
}

/// Which file it is. Its number alone is given to the next one soon after it is removed; its birth tells the two apart, where
/// the file system knows it.
fn identity(metadata: &Metadata) -> u64 {
    let born = metadata.created().ok();
    let born = born.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let born = born.map_or(0, |time| time.as_secs() << 30 | u64::from(time.subsec_nanos()));
    metadata.dev().rotate_left(48) ^ metadata.ino().rotate_left(24) ^ born
}

/// Keeps others away from the file. Of a process that was killed, the kernel lets go a little later than it is gone.
fn lock(file: &File) -> Result<(), Errno> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(LOCK_WAIT / 100);
            }
            done => return done,
        }
    }
}

/// Lets others have the file.
pub(super) fn unlock(opened: &Opened) -> io::Result<()> {
    Ok(rustix::fs::flock(&opened.buffered, FlockOperation::Unlock)?)
}

fn file(place: Place<'_>) -> Result<(File, PathBuf), OpenError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Open { path, source }
    };
    match place {
        Place::Path(path) => {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            Ok((options.open(path).map_err(failed(path))?, path.to_owned()))
        }
        Place::Unnamed(directory) => {
            let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
            match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => Ok((file.into(), directory.to_owned())),
                // A file system without such files: the name is gone before anything is written.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                    let path = directory.join(format!(".spinwire-blocks.{}", std::process::id()));
                    let mut options = OpenOptions::new();
                    options.read(true).write(true).create_new(true).mode(0o600);
                    let file = options.open(&path).map_err(failed(&path))?;
                    std::fs::remove_file(&path).map_err(failed(&path))?;
                    Ok((file, directory.to_owned()))
                }
                Err(error) => Err(failed(directory)(error.into())),
            }
        }
    }
}

/// Whether there is a byte that is not in a hole.
fn holds_data(file: &File) -> io::Result<bool> {
    match rustix::fs::seek(file, SeekFrom::Data(0)) {
        Ok(_) => Ok(true),
        Err(Errno::NXIO) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_marked(file: &File) -> bool {
    // Where there are no attributes, nothing is marked.
    rustix::fs::fgetxattr(file, MARK, &mut [0; 0][..]).is_ok()
}

/// Remembers that the file is a store, where that can be remembered.
fn mark(file: &File) -> io::Result<()> {
    match rustix::fs::fsetxattr(file, MARK, b"1", XattrFlags::empty()) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reserves the blocks, so that a full disk is an answer here and not one to a write.
fn grow(file: &File, len: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) => return file.set_len(len),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The same file once more, without the page cache; `None` where the file system cannot.
fn direct(file: &File) -> io::Result<Option<DirectFile>> {
    if IN_MEMORY.contains(&magic(file)?) {
        return Ok(None);
    }
    // By descriptor, since the file may have no name, or another one by now.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let direct: File = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file.into(),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let statx = rustix::fs::statx(direct.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    let align = if statx.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        DIRECT_ALIGN
    } else {
        statx.stx_dio_mem_align.max(statx.stx_dio_offset_align)
    };
    Ok(align.is_power_of_two().then_some(DirectFile { file: direct, align }))
}

#[expect(clippy::cast_sign_loss, reason = "a bit pattern, of a type that differs by machine")]
fn magic(file: &File) -> io::Result<u64> {
    Ok(rustix::fs::fstatfs(file)?.f_type as u64)
}
