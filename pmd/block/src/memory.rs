//! A store in memory that peers reach themselves.

use std::io;
use std::os::fd::BorrowedFd;

use crate::backend::{Backend, Done, Layout, Request, SubmitError, Submitted};

/// A store in memory: the bytes are where they belong as soon as they are written, so every request is done at once, and
/// only its range is checked. It lives as long as the process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    len: u64,
}

impl Memory {
    /// A store of so many bytes, which lie in memory that the caller shares with its peers.
    pub const fn new(len: u64) -> Self {
        Self { len }
    }
}

impl Backend for Memory {
    fn len(&self) -> u64 {
        self.len
    }

    fn identity(&self) -> Option<u64> {
        None
    }

    fn layout(&self) -> Layout {
        Layout::Store
    }

    #[inline]
    fn submit(&mut self, request: &Request) -> Result<Submitted, SubmitError> {
        let end = request.offset.checked_add(u64::from(request.len));
        match end {
            Some(end) if end <= self.len => Ok(Submitted::Done),
            _ => Err(SubmitError::OutOfRange),
        }
    }

    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    #[inline]
    fn poll(&mut self, _: &mut dyn FnMut(Done)) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn in_flight(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Kind;

    #[test]
    fn requests_inside_are_done_at_once() {
        let mut memory = Memory::new(8192);
        let request = |kind, offset, len| Request { kind, offset, len, buffer: 0, token: 1 };
        for kind in [Kind::Read, Kind::Write] {
            assert_eq!(memory.submit(&request(kind, 4096, 4096)), Ok(Submitted::Done));
            assert_eq!(memory.submit(&request(kind, 4097, 4096)), Err(SubmitError::OutOfRange));
            assert_eq!(memory.submit(&request(kind, u64::MAX, 1)), Err(SubmitError::OutOfRange));
        }
        assert_eq!(memory.submit(&request(Kind::Flush, 0, 0)), Ok(Submitted::Done));
        let mut never = |done: Done| panic!("{done:?}");
        assert_eq!(memory.poll(&mut never).unwrap(), 0);
        assert_eq!((memory.in_flight(), memory.len()), (0, 8192));
    }
}
