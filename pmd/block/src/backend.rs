//! What a target asks of its store.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use thiserror::Error;

/// Where the bytes of a request lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The memory is the store: its byte `n` is byte `n` of the store.
    Store,
    /// The memory holds buffers; every request names the one that its bytes pass through.
    Buffers,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the store into the buffer.
    Read,
    /// From the buffer into the store.
    Write,
    /// Makes every write that is done durable. It has no range.
    Flush,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub kind: Kind,
    /// First byte of the store.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// First byte of the buffer in the backend's memory; without meaning where that is the store.
    pub buffer: u64,
    /// The caller's name for it, returned with [`Done`].
    pub token: u64,
}

/// What became of a request that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is done: [`Backend::poll`] will not mention it.
    Done,
    /// It is on its way once [`Backend::start`] is called.
    Pending,
}

/// Why a request was not taken. It leaves no trace.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SubmitError {
    /// As many requests as the depth are in flight.
    #[error("the queue is full: poll first")]
    Full,
    /// The range lies outside the store, or the buffer outside its memory.
    #[error("the range lies outside the store or its buffers")]
    OutOfRange,
    /// Direct requests begin and end at multiples of this, in the file and in memory.
    #[error("not a multiple of {align} bytes, as direct I/O needs it")]
    Misaligned {
        /// The alignment in bytes.
        align: u32,
    },
}

/// How a request failed; others are not affected.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IoError {
    /// The disk, or the quota, is full.
    #[error("no space left: {}", io::Error::from_raw_os_error(*errno))]
    NoSpace {
        /// The kernel's answer.
        errno: i32,
    },
    /// The file ends before the range does: somebody cut it.
    #[error("the file was cut: {done} bytes were there")]
    Short {
        /// Bytes that were there.
        done: u32,
    },
    /// Anything else, such as EIO.
    #[error("{}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The kernel's answer.
        errno: i32,
    },
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which.
    pub token: u64,
    /// How. A failed read may have changed its buffer.
    pub result: Result<(), IoError>,
}

/// A store that one lcore polls.
pub trait Backend: fmt::Debug {
    /// Bytes of the store.
    fn len(&self) -> u64;

    /// Whether it holds nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which store it is, where what is stored is still there when the process is started again: the same number then, and
    /// another one for any other store. `None`: what is stored ends with the process.
    fn identity(&self) -> Option<u64>;

    /// Where the bytes of a request lie in memory.
    fn layout(&self) -> Layout;

    /// Takes a request. What it does begins at the latest with [`Backend::start`].
    ///
    /// # Errors
    /// [`SubmitError`], without a trace.
    fn submit(&mut self, request: &Request) -> Result<Submitted, SubmitError>;

    /// Starts what was submitted, at most one system call for all of it, and none for nothing.
    ///
    /// # Errors
    /// The kernel's answer, when it takes no requests any more.
    fn start(&mut self) -> io::Result<()>;

    /// Reports the requests that ended, each once. Returns how many.
    ///
    /// # Errors
    /// As [`Backend::start`].
    fn poll(&mut self, sink: &mut dyn FnMut(Done)) -> io::Result<usize>;

    /// What becomes readable when a request ends, for whoever does not want to poll all the time; `None` while there is
    /// nothing to wait for.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Requests that have not ended.
    fn in_flight(&self) -> usize;
}
