//! The requests of a send queue that have not completed: a completion in error does not say what it was that failed, and
//! nobody says what becomes of requests without completions.

use pmd_roce::work::WcOpcode;

/// A request that was posted.
#[derive(Clone, Copy, Debug)]
struct Sent {
    wr_id: u64,
    opcode: WcOpcode,
    /// It completes with a completion also where all goes well.
    signaled: bool,
}

/// The book of a send queue: in the order of posting, which is the order of completions.
#[derive(Debug)]
pub(super) struct Sends {
    ring: Box<[Sent]>,
    depth: u32,
    /// Both count on without end.
    posted: u32,
    done: u32,
}

impl Sends {
    /// Of a queue with room for `depth` requests.
    pub(super) fn new(depth: u32) -> Self {
        let none = Sent { wr_id: 0, opcode: WcOpcode::Send, signaled: false };
        let size = depth.max(1).next_power_of_two() as usize;
        Self { ring: vec![none; size].into_boxed_slice(), depth, posted: 0, done: 0 }
    }

    #[inline]
    const fn at(&self, count: u32) -> usize {
        count as usize & (self.ring.len() - 1)
    }

    /// Requests that have not completed.
    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.posted.wrapping_sub(self.done)
    }

    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.len() >= self.depth
    }

    /// Requests posted since the beginning.
    pub(super) const fn posted(&self) -> u32 {
        self.posted
    }

    /// One was posted.
    #[inline]
    pub(super) fn push(&mut self, wr_id: u64, opcode: WcOpcode, signaled: bool) {
        let at = self.at(self.posted);
        self.ring[at] = Sent { wr_id, opcode, signaled };
        self.posted = self.posted.wrapping_add(1);
    }

    /// The oldest that is told of has completed, and what is before it with it.
    #[inline]
    pub(super) fn succeeded(&mut self) {
        while self.len() > 0 {
            let oldest = self.ring[self.at(self.done)];
            self.done = self.done.wrapping_add(1);
            if oldest.signaled {
                return;
            }
        }
    }

    /// The oldest of this name has failed, and what is before it has succeeded without a word. What it was; `None` where
    /// there is none of this name.
    pub(super) fn failed(&mut self, wr_id: u64) -> Option<WcOpcode> {
        let ahead = (0..self.len())
            .find(|ahead| self.ring[self.at(self.done.wrapping_add(*ahead))].wr_id == wr_id)?;
        let opcode = self.ring[self.at(self.done.wrapping_add(ahead))].opcode;
        self.done = self.done.wrapping_add(ahead + 1);
        Some(opcode)
    }

    /// All are forgotten.
    pub(super) const fn reset(&mut self) {
        (self.posted, self.done) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_stands_for_those_before_it_without_one() {
        let mut sends = Sends::new(3);
        for lap in 0..10 {
            sends.push(lap, WcOpcode::Write, false);
            sends.push(lap, WcOpcode::Write, false);
            assert!(!sends.is_full());
            sends.push(lap, WcOpcode::Send, true);
            assert!(sends.is_full());
            sends.succeeded();
            assert_eq!((sends.len(), sends.posted()), (0, 3 * (u32::try_from(lap).unwrap() + 1)));
        }
    }

    #[test]
    fn what_failed_is_found_by_its_name() {
        let mut sends = Sends::new(8);
        sends.push(1, WcOpcode::Send, false);
        sends.push(2, WcOpcode::Read, false);
        sends.push(3, WcOpcode::FetchAdd, true);
        assert_eq!((sends.failed(7), sends.len()), (None, 3));
        assert_eq!((sends.failed(2), sends.len()), (Some(WcOpcode::Read), 1));
        assert_eq!((sends.failed(3), sends.len()), (Some(WcOpcode::FetchAdd), 0));
        // A completion that comes late, after RESET, changes nothing.
        sends.succeeded();
        assert_eq!((sends.failed(3), sends.len()), (None, 0));
    }
}
