//! What is submitted, and the number that names it.

use crate::limits::TICKET_POSITION_BITS;

/// Names an admitted submission; never given out twice. It goes to the device as the work request's `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

impl Ticket {
    /// The queue that gave it out: twice the account's index, plus one for receives.
    #[inline]
    pub const fn queue(self) -> usize {
        // Twelve bits fit into any usize.
        (self.0 >> TICKET_POSITION_BITS) as usize
    }

    /// How many submissions of the queue came before it.
    pub const fn position(self) -> u64 {
        self.0 & ((1 << TICKET_POSITION_BITS) - 1)
    }

    /// The first ticket of a queue.
    pub(crate) const fn first(queue: usize) -> u64 {
        (queue as u64) << TICKET_POSITION_BITS
    }
}

/// Whether a submission may be made again after the connection has come back, although it may have taken effect before.
///
/// A failed request can have been executed: its acknowledgement may be what was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replay {
    /// Executing it twice does harm: atomics, SENDs, and WRITEs that tell the peer (at most once).
    Never,
    /// Executing it twice is the same as once: WRITE, READ, receives, and SENDs that the application calls idempotent.
    Again,
}

/// What the caller wants admitted: one or more work requests that succeed or fail together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The caller's own name for it, returned when it settles; several may share one.
    pub token: u64,
    /// Work requests: what it takes from the depth of the queue. At least 1.
    pub wrs: u16,
    /// Whether the last of them completes by itself even when all goes well.
    pub signalled: bool,
    /// Whether it may be made again after a failure.
    pub replay: Replay,
}

impl Submission {
    /// One signalled work request that is not made again.
    pub const fn one(token: u64) -> Self {
        Self { token, wrs: 1, signalled: true, replay: Replay::Never }
    }

    /// Several work requests, of which the last is signalled.
    pub const fn batch(token: u64, wrs: u16) -> Self {
        Self { wrs, ..Self::one(token) }
    }

    /// The same, to be made again after a failure.
    #[must_use]
    pub const fn replayable(self) -> Self {
        Self { replay: Replay::Again, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_names_its_queue() {
        let ticket = Ticket(Ticket::first(5) + 77);
        assert_eq!((ticket.queue(), ticket.position()), (5, 77));
    }
}
