//! The ring: the one place where the kernel is given memory.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use pmd_mem::Segment;

use super::open::OpenError;
use crate::limits::REGISTERED_BYTES_MAX;

/// A file of the ring, by its place among those registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIndex(pub(super) u32);

/// Bytes of the memory that the ring holds, which the caller has checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) buffer: u64,
    pub(super) len: u32,
}

/// Memory that requests pass through: a part of a segment.
#[derive(Clone, Debug)]
pub(super) struct Buffers {
    segment: Arc<Segment>,
    range: Range<u64>,
}

impl Buffers {
    /// # Panics
    /// When the range leaves the segment: a mistake of the program.
    pub(super) fn new(segment: &Arc<Segment>, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= segment.len(), "{range:?} is mapped");
        Self { segment: Arc::clone(segment), range }
    }

    pub(super) const fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where byte `at` lies in this process.
    pub(super) fn address(&self, at: u64) -> u64 {
        self.segment.address() + self.range.start + at
    }

    fn pointer<T>(&self, at: u64) -> *mut T {
        std::ptr::with_exposed_provenance_mut(
            usize::try_from(self.address(at)).unwrap_or(usize::MAX),
        )
    }
}

/// A ring with the memory that its requests use.
///
/// Everything that the kernel may touch is held until no request is in flight: the caller keeps count, and gives the ring
/// up by [`Ring::leak`] where it cannot wait so long.
pub(super) struct Ring {
    ring: IoUring,
    memory: Buffers,
    /// Bytes of each registered buffer; 0 where none is registered.
    registered: u64,
    queued: u32,
}

impl Ring {
    /// A ring for `depth` requests on `files`, which stay open as long as it, and on the bytes of `memory`.
    pub(super) fn new(depth: u32, files: &[RawFd], memory: Buffers) -> Result<Self, OpenError> {
        let ring = build(depth).map_err(|source| OpenError::Ring { fix: fix(&source), source })?;
        let registered = ring.submitter().register_files(files);
        registered.map_err(|source| OpenError::Ring { fix: fix(&source), source })?;
        let registered = match register(&ring, &memory) {
            Ok(()) => REGISTERED_BYTES_MAX,
            Err(error) => {
                tracing::warn!(
                    "{} of buffers cannot be registered with io_uring: {error}; each request pins its own, which is slower: raise `ulimit -l`",
                    pmd_mem::Size(memory.len())
                );
                0
            }
        };
        Ok(Self { ring, memory, registered, queued: 0 })
    }

    /// Whether requests use registered buffers.
    pub(super) const fn is_registered(&self) -> bool {
        self.registered > 0
    }

    /// Readable when something has ended.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        let fd = self.ring.as_raw_fd();
        // SAFETY: the ring keeps its descriptor open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub(super) fn read(&mut self, file: FileIndex, span: Span, offset: u64, name: u64) -> bool {
        let (file, at) = (types::Fixed(file.0), self.memory.pointer::<u8>(span.buffer));
        let entry = match self.index(span) {
            Some(index) => opcode::ReadFixed::new(file, at, span.len, index).offset(offset).build(),
            None => opcode::Read::new(file, at, span.len).offset(offset).build(),
        };
        self.push(entry, name)
    }

    pub(super) fn write(&mut self, file: FileIndex, span: Span, offset: u64, name: u64) -> bool {
        let (file, at) =
            (types::Fixed(file.0), self.memory.pointer::<u8>(span.buffer).cast_const());
        let entry = match self.index(span) {
            Some(index) => {
                opcode::WriteFixed::new(file, at, span.len, index).offset(offset).build()
            }
            None => opcode::Write::new(file, at, span.len).offset(offset).build(),
        };
        self.push(entry, name)
    }

    pub(super) fn flush(&mut self, file: FileIndex, name: u64) -> bool {
        let flags = types::FsyncFlags::DATASYNC;
        let entry = opcode::Fsync::new(types::Fixed(file.0)).flags(flags).build();
        self.push(entry, name)
    }

    /// Starts what was queued, and lets the kernel hand in what has ended: one system call, or none where there is neither.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        if self.queued == 0 && !self.ring.submission().taskrun() {
            return Ok(());
        }
        match self.ring.submit() {
            Ok(taken) => {
                self.queued = self.queued.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
                Ok(())
            }
            // Not now: the entries stay, and the next turn tries again.
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until something ends, or for a short while.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        let span = types::Timespec::new().nsec(10_000_000);
        let args = types::SubmitArgs::new().timespec(&span);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) || error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes what has ended: name and result.
    pub(super) fn take(&mut self) -> Option<(u64, i32)> {
        let entry = self.ring.completion().next()?;
        Some((entry.user_data(), entry.result()))
    }

    /// Lets the memory stay for ever: requests that do not end may still write it.
    pub(super) fn leak(&self) {
        std::mem::forget(self.memory.clone());
    }

    fn push(&mut self, entry: squeue::Entry, name: u64) -> bool {
        // SAFETY: the entry names bytes of `memory` alone, checked by the caller, which stays mapped until every request
        // has ended (the caller drains before it drops the ring, or leaks the memory); and files that are registered.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(name)) }.is_ok();
        self.queued += u32::from(pushed);
        pushed
    }

    /// The registered buffer that holds all of the span.
    fn index(&self, span: Span) -> Option<u16> {
        let first = span.buffer.checked_div(self.registered)?;
        let last = (span.buffer + u64::from(span.len.max(1)) - 1).checked_div(self.registered)?;
        (first == last).then(|| u16::try_from(first).ok()).flatten()
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { registered, queued, .. } = self;
        f.debug_struct("Ring")
            .field("registered", registered)
            .field("queued", queued)
            .finish_non_exhaustive()
    }
}

/// One thread submits and reaps, and the kernel leaves the work of completing to its calls: it interrupts nothing else that
/// the lcore does. Kernels before 6.1 know neither.
fn build(depth: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    match builder.build(depth) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().build(depth),
        built => built,
    }
}

fn register(ring: &IoUring, memory: &Buffers) -> io::Result<()> {
    let len = memory.len();
    let parts = (0..len).step_by(usize::try_from(REGISTERED_BYTES_MAX).unwrap_or(usize::MAX));
    let parts: Vec<libc::iovec> = parts
        .map(|start| libc::iovec {
            iov_base: memory.pointer(start),
            iov_len: usize::try_from((len - start).min(REGISTERED_BYTES_MAX)).unwrap_or(0),
        })
        .collect();
    // SAFETY: the parts are mapped, and the kernel holds their pages itself until the ring is gone.
    unsafe { ring.submitter().register_buffers(&parts) }
}

/// Whether the same call may succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

fn fix(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "set sysctl kernel.io_uring_disabled=0, and let the container's seccomp profile allow io_uring_setup"
        }
        Some(libc::ENOSYS) => {
            "the kernel is built without it or a seccomp profile hides it: use backend = \"memory\""
        }
        Some(libc::ENOMEM) => "raise the limit of locked memory: `ulimit -l`",
        _ => "use backend = \"memory\"",
    }
}
