//! A store that stops answering, as a disk does that hangs.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use pmd_block::{Backend, Done, Layout, Request, SubmitError, Submitted};

/// A store whose requests are done like those of the one inside, and are never reported beyond a number of them: what a
/// fault asks for.
#[derive(Debug)]
pub(super) struct Hung {
    inside: Box<dyn Backend>,
    /// Requests that it still answers.
    left: u64,
    /// Requests that it will not answer.
    held: Rc<Cell<usize>>,
}

impl Hung {
    /// `held` counts the requests that it will not answer.
    pub(super) fn new(inside: Box<dyn Backend>, after: u64, held: Rc<Cell<usize>>) -> Self {
        Self { inside, left: after, held }
    }

    /// Whether one more is answered.
    fn answers(&mut self) -> bool {
        let answers = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.held.set(self.held.get() + usize::from(!answers));
        answers
    }
}

impl Backend for Hung {
    fn len(&self) -> u64 {
        self.inside.len()
    }

    fn identity(&self) -> Option<u64> {
        self.inside.identity()
    }

    fn layout(&self) -> Layout {
        self.inside.layout()
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, SubmitError> {
        match self.inside.submit(request)? {
            Submitted::Done if !self.answers() => Ok(Submitted::Pending),
            submitted => Ok(submitted),
        }
    }

    fn start(&mut self) -> io::Result<()> {
        self.inside.start()
    }

    fn poll(&mut self, sink: &mut dyn FnMut(Done)) -> io::Result<usize> {
        let mut ended = Vec::new();
        self.inside.poll(&mut |done| ended.push(done))?;
        ended.retain(|_| self.answers());
        let told = ended.len();
        ended.into_iter().for_each(sink);
        Ok(told)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inside.fd()
    }

    fn in_flight(&self) -> usize {
        self.inside.in_flight() + self.held.get()
    }
}

#[cfg(test)]
mod tests {
    use pmd_block::{Kind, Memory};

    use super::*;

    #[test]
    fn it_answers_as_many_as_it_is_told_to() {
        let mut store = Hung::new(Box::new(Memory::new(4096)), 2, Rc::default());
        let request = |offset| Request { kind: Kind::Read, offset, len: 512, buffer: 0, token: 1 };
        assert_eq!(store.submit(&request(4096)), Err(SubmitError::OutOfRange), "not one of them");
        for _ in 0..2 {
            assert_eq!(store.submit(&request(0)), Ok(Submitted::Done));
        }
        for held in 1..4 {
            assert_eq!(store.submit(&request(0)), Ok(Submitted::Pending));
            assert_eq!(store.in_flight(), held);
        }
        let mut never = |done: Done| panic!("{done:?}");
        assert_eq!(store.poll(&mut never).unwrap(), 0);
        assert_eq!((store.len(), store.layout()), (4096, Layout::Store));
    }
}
