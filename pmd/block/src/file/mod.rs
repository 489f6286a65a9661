//! A store in a file, through io_uring.

mod open;
mod ring;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pmd_mem::Segment;

use crate::backend::{Backend, Done, IoError, Kind, Layout, Request, SubmitError, Submitted};
use crate::limits::{CLOSE_WAIT, DEPTH_MAX};
use open::Opened;
use ring::{Buffers, FileIndex, Ring, Span};

pub use open::{Direct, FileSpec, OpenError, Place};

/// The file as it is opened for everything.
const BUFFERED: FileIndex = FileIndex(0);
/// The same file without the page cache.
const DIRECT: FileIndex = FileIndex(1);

/// A store in a file. Bytes pass between the file and the caller's memory without a copy in between where direct I/O is to
/// be had; the number of requests in flight is fixed.
#[derive(Debug)]
pub struct FileBackend {
    ring: Ring,
    buffers: Buffers,
    len: u64,
    /// Alignment of direct requests; `None`: everything goes through the page cache.
    align: Option<u32>,
    /// Whether a request that is not aligned is refused.
    strict: bool,
    flights: Box<[Flight]>,
    free: Vec<u32>,
    opened: Opened,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    token: u64,
    kind: Kind,
    len: u32,
}

impl FileBackend {
    /// Opens the store. Its buffers are the bytes `range` of `memory`. It is polled by the thread that opened it.
    ///
    /// # Errors
    /// [`OpenError`], each with what to do.
    ///
    /// # Panics
    /// When the range leaves the memory: a mistake of the program.
    pub fn open(
        spec: &FileSpec<'_>,
        memory: &Arc<Segment>,
        range: Range<u64>,
    ) -> Result<Self, OpenError> {
        let buffers = Buffers::new(memory, range);
        let opened = open::open(spec)?;
        let depth = spec.depth.clamp(1, DEPTH_MAX);
        let direct = opened.direct.as_ref();
        let files: Vec<&File> =
            std::iter::once(&opened.buffered).chain(direct.map(|direct| &direct.file)).collect();
        let files: Vec<_> = files.into_iter().map(File::as_raw_fd).collect();
        let idle = Flight { token: 0, kind: Kind::Flush, len: 0 };
        Ok(Self {
            ring: Ring::new(depth, &files, buffers.clone())?,
            buffers,
            len: opened.len,
            align: direct.map(|direct| direct.align),
            strict: spec.direct == Direct::Require,
            flights: vec![idle; depth as usize].into_boxed_slice(),
            free: (0..depth).rev().collect(),
            opened,
        })
    }

    /// The file, or the directory of one without a name.
    pub fn path(&self) -> &Path {
        &self.opened.path
    }

    /// What direct requests have to be multiples of, in bytes; `None` where all go through the page cache.
    pub const fn direct_align(&self) -> Option<u32> {
        self.align
    }

    /// Whether the kernel knows the buffers beforehand, and need not pin them for each request.
    pub const fn has_registered_buffers(&self) -> bool {
        self.ring.is_registered()
    }

    /// Which of the two descriptors takes the request.
    fn descriptor(&self, request: &Request) -> Result<FileIndex, SubmitError> {
        let Some(align) = self.align else { return Ok(BUFFERED) };
        let address = self.buffers.address(request.buffer);
        let bits = request.offset | u64::from(request.len) | address;
        if bits & (u64::from(align) - 1) == 0 {
            Ok(DIRECT)
        } else if self.strict {
            Err(SubmitError::Misaligned { align })
        } else {
            Ok(BUFFERED)
        }
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let inside = |at: u64, size: u64| {
            at.checked_add(u64::from(request.len)).is_some_and(|end| end <= size)
        };
        if inside(request.offset, self.len) && inside(request.buffer, self.buffers.len()) {
            Ok(())
        } else {
            Err(SubmitError::OutOfRange)
        }
    }

    /// Gives a request up whose result is known.
    fn land(&mut self, name: u64, result: i32) -> Option<Done> {
        let index = u32::try_from(name).ok()?;
        let flight = *self.flights.get(index as usize)?;
        self.free.push(index);
        Some(Done { token: flight.token, result: judge(&flight, result) })
    }
}

impl Backend for FileBackend {
    fn len(&self) -> u64 {
        self.len
    }

    fn identity(&self) -> Option<u64> {
        self.opened.identity
    }

    fn layout(&self) -> Layout {
        Layout::Buffers
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, SubmitError> {
        if request.kind != Kind::Flush {
            self.check(request)?;
        }
        let file = match request.kind {
            Kind::Flush => BUFFERED,
            Kind::Read | Kind::Write => self.descriptor(request)?,
        };
        let Some(index) = self.free.pop() else { return Err(SubmitError::Full) };
        let span = Span { buffer: request.buffer, len: request.len };
        let name = u64::from(index);
        let queued = match request.kind {
            Kind::Read => self.ring.read(file, span, request.offset, name),
            Kind::Write => self.ring.write(file, span, request.offset, name),
            Kind::Flush => self.ring.flush(file, name),
        };
        if !queued {
            self.free.push(index);
            return Err(SubmitError::Full);
        }
        self.flights[index as usize] =
            Flight { token: request.token, kind: request.kind, len: request.len };
        Ok(Submitted::Pending)
    }

    fn start(&mut self) -> io::Result<()> {
        if self.in_flight() == 0 { Ok(()) } else { self.ring.enter() }
    }

    fn poll(&mut self, sink: &mut dyn FnMut(Done)) -> io::Result<usize> {
        if self.in_flight() == 0 {
            return Ok(0);
        }
        let mut ended = 0;
        while let Some((name, result)) = self.ring.take() {
            ended += 1;
            if let Some(done) = self.land(name, result) {
                sink(done);
            }
        }
        Ok(ended)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (self.in_flight() > 0).then(|| self.ring.fd())
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }
}

impl Drop for FileBackend {
    /// The kernel still reads and writes memory of requests that are in flight.
    fn drop(&mut self) {
        let until = Instant::now() + CLOSE_WAIT;
        while self.in_flight() > 0 && Instant::now() < until {
            let waited = self.ring.wait();
            while let Some((name, result)) = self.ring.take() {
                self.land(name, result);
            }
            if let Err(error) = waited {
                tracing::warn!("closing `{}`: {error}", self.path().display());
                break;
            }
        }
        if self.in_flight() > 0 {
            tracing::warn!(
                "`{}` did not end {} requests: their memory stays",
                self.path().display(),
                self.in_flight()
            );
            self.ring.leak();
        }
        // The kernel lets go of a ring's files a little later than of the ring.
        if let Err(error) = open::unlock(&self.opened) {
            tracing::warn!("closing `{}`: {error}", self.path().display());
        }
    }
}

/// What the kernel's result means: bytes, or a negative errno.
fn judge(flight: &Flight, result: i32) -> Result<(), IoError> {
    match u32::try_from(result) {
        Ok(_) if flight.kind == Kind::Flush => Ok(()),
        Ok(done) if done == flight.len => Ok(()),
        // A write ends early where there is no room for more of it.
        Ok(_) if flight.kind == Kind::Write => Err(IoError::NoSpace { errno: libc::ENOSPC }),
        Ok(done) => Err(IoError::Short { done }),
        Err(_) => match -result {
            errno @ (libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Err(IoError::NoSpace { errno }),
            errno => Err(IoError::Os { errno }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_answers() {
        let flight = |kind| Flight { token: 1, kind, len: 4096 };
        for kind in [Kind::Read, Kind::Write] {
            assert_eq!(judge(&flight(kind), 4096), Ok(()));
            let errno = libc::EIO;
            assert_eq!(judge(&flight(kind), -errno), Err(IoError::Os { errno }));
            for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
                assert_eq!(judge(&flight(kind), -errno), Err(IoError::NoSpace { errno }));
            }
        }
        assert_eq!(judge(&flight(Kind::Read), 512), Err(IoError::Short { done: 512 }));
        let errno = libc::ENOSPC;
        assert_eq!(judge(&flight(Kind::Write), 512), Err(IoError::NoSpace { errno }));
        assert_eq!(judge(&flight(Kind::Flush), 0), Ok(()));
        assert_eq!(judge(&flight(Kind::Flush), -5), Err(IoError::Os { errno: 5 }));
    }
}
