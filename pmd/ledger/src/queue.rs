//! The books of one queue: a ring of records in the order of submission.

use crate::limits::MAX_DEPTH;
use crate::outcome::{Cause, Outcome, Settled, Status};
use crate::submission::{Replay, Submission, Ticket};

/// Why a submission is not admitted. It leaves no trace, and never settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AdmitError {
    /// The depth is used up.
    #[error("the queue is full: take completions first")]
    Full,
    /// It is larger than the whole queue, or holds no work request.
    #[error("a submission has 1 to {max} work requests")]
    Size {
        /// The depth.
        max: u32,
    },
    /// Its queue takes nothing for now: a submission was posted in part and has not settled yet, or the send queue failed.
    #[error("the endpoint is degraded until what was posted in part has settled: try again later")]
    Degraded,
    /// The account is closed.
    #[error("the endpoint is degraded, rejecting: {0}")]
    Closed(Cause),
    /// The caller passed the gate before the connection failed and came back.
    #[error(
        "the connection failed after this was submitted: submit it again if it may be repeated"
    )]
    Stale,
}

/// What a queue knows of a submission in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The caller's name.
    pub token: u64,
    /// Work requests that the device holds. 0 marks a settled record.
    pub wrs: u16,
    /// Work requests that the caller asked for.
    pub batch: u16,
    /// Whether its last work request completes by itself when all goes well.
    pub signalled: bool,
    /// Whether it was posted in part: its caller was told at once, and it only holds depth.
    pub orphaned: bool,
    /// Whether it may be made again after a failure.
    pub replay: Replay,
}

impl Record {
    const SETTLED: Self = Self {
        token: 0,
        wrs: 0,
        batch: 0,
        signalled: true,
        orphaned: false,
        replay: Replay::Never,
    };

    /// Whether only a later completion tells that it succeeded.
    const fn is_silent(&self) -> bool {
        !self.signalled || self.orphaned
    }
}

/// The sums of a queue since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Submissions admitted.
    pub admitted: u64,
    /// Submissions that ended.
    pub settled: u64,
    /// Submissions that did not end yet: `admitted - settled`.
    pub in_flight: u64,
    /// Work requests that they hold of the depth.
    pub posted: u32,
}

/// The books of a send or receive queue.
#[derive(Debug)]
pub(crate) struct Queue {
    ring: Box<[Record]>,
    mask: u64,
    /// The oldest ticket in flight; equal to `tail` where none is.
    head: u64,
    /// The next ticket.
    tail: u64,
    /// Records behind `head` that are settled, or silent: while there is one, the short way is not taken.
    irregular: u32,
    /// Of these, the settled ones.
    ahead: u32,
    /// Work requests of all records in flight.
    posted: u32,
    /// What `posted` may rise to: the depth, less where records wait for an older one, 0 when nothing is admitted.
    limit: u32,
    depth: u32,
    open: bool,
}

impl Queue {
    /// An empty queue, whose tickets go on from `first`.
    pub(crate) fn new(first: u64, depth: u32) -> Self {
        let depth = depth.min(MAX_DEPTH);
        // One more for a marker, which is admitted beyond the depth.
        let capacity = (depth as usize + 1).next_power_of_two();
        Self {
            ring: vec![Record::SETTLED; capacity].into(),
            mask: capacity as u64 - 1,
            head: first,
            tail: first,
            irregular: 0,
            ahead: 0,
            posted: 0,
            limit: depth,
            depth,
            open: true,
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the mask is smaller than any usize")]
    const fn slot(&self, ticket: u64) -> usize {
        (ticket & self.mask) as usize
    }

    /// The ticket that comes next, whether admitted or not.
    pub(crate) const fn next(&self) -> u64 {
        self.tail
    }

    /// The oldest in flight.
    pub(crate) fn oldest(&self) -> Option<Ticket> {
        (self.head != self.tail).then_some(Ticket(self.head))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(crate) fn balance(&self) -> Balance {
        let in_flight = self.tail - self.head - u64::from(self.ahead);
        let admitted = Ticket(self.tail).position();
        Balance { admitted, settled: admitted - in_flight, in_flight, posted: self.posted }
    }

    pub(crate) fn record(&self, ticket: Ticket) -> Option<Record> {
        let record = self.ring[self.slot(ticket.0)];
        (self.is_in_flight(ticket) && record.wrs != 0).then_some(record)
    }

    const fn is_in_flight(&self, ticket: Ticket) -> bool {
        ticket.0.wrapping_sub(self.head) < self.tail - self.head
    }

    /// Stores a record, or tells that it does not fit; why, the account knows.
    #[inline]
    pub(crate) fn admit(&mut self, submission: Submission) -> Option<Ticket> {
        let posted = self.posted + u32::from(submission.wrs);
        if posted > self.limit || submission.wrs == 0 {
            return None;
        }
        self.posted = posted;
        Some(self.store(submission))
    }

    /// Admits one signalled work request whether the queue is open or not, and beyond its depth, if there is a place.
    pub(crate) fn admit_marker(&mut self, token: u64) -> Option<Ticket> {
        if self.tail - self.head > self.mask {
            return None;
        }
        self.posted += 1;
        Some(self.store(Submission::one(token)))
    }

    #[inline]
    fn store(&mut self, submission: Submission) -> Ticket {
        let Submission { token, wrs, signalled, replay } = submission;
        let ticket = self.tail;
        let slot = self.slot(ticket);
        self.ring[slot] = Record { token, wrs, batch: wrs, signalled, orphaned: false, replay };
        self.irregular += u32::from(!signalled);
        self.tail = ticket + 1;
        Ticket(ticket)
    }

    /// Takes back the newest record, which the device refused as a whole.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> bool {
        let is_whole = self.record(ticket).is_some_and(|record| !record.orphaned);
        if ticket.0.wrapping_add(1) != self.tail || !is_whole {
            return false;
        }
        let slot = self.slot(ticket.0);
        let record = std::mem::replace(&mut self.ring[slot], Record::SETTLED);
        self.posted -= u32::from(record.wrs);
        self.irregular -= u32::from(record.is_silent());
        self.tail -= 1;
        self.set_limit();
        true
    }

    /// Marks a record as posted in part: it keeps `posted` work requests, and its caller has been told.
    pub(crate) fn orphan(&mut self, ticket: Ticket, posted: u16) -> bool {
        let Some(record) = self.record(ticket) else { return false };
        if posted == 0 || posted > record.wrs || record.orphaned {
            return false;
        }
        let slot = self.slot(ticket.0);
        self.ring[slot].wrs = posted;
        self.ring[slot].orphaned = true;
        self.irregular += u32::from(!record.is_silent());
        self.posted -= u32::from(record.wrs - posted);
        self.set_limit();
        true
    }

    /// Records posted in part that are still in flight.
    pub(crate) fn has_orphans(&self) -> bool {
        (self.head..self.tail).any(|ticket| {
            let record = &self.ring[self.slot(ticket)];
            record.wrs != 0 && record.orphaned
        })
    }

    /// Settles `ticket` if it is the oldest and nothing is special about the queue: the usual way.
    #[inline]
    pub(crate) fn settle_next(&mut self, ticket: Ticket, status: Status) -> Option<Settled> {
        if (ticket.0 ^ self.head) | u64::from(self.irregular) != 0 || self.posted == 0 {
            return None;
        }
        let Record { token, wrs, replay, .. } = self.ring[self.slot(ticket.0)];
        self.posted -= u32::from(wrs);
        self.head = ticket.0 + 1;
        Some(Settled { ticket, token, wrs, outcome: Outcome::Completed(status), replay })
    }

    /// Settles `ticket` wherever it stands, and what its completion tells of silent ones before it: they succeeded, for
    /// a failure always has a completion of its own. Whether there was such a ticket.
    #[cold]
    pub(crate) fn settle_any(
        &mut self,
        ticket: Ticket,
        status: Status,
        mut sink: impl FnMut(Settled),
    ) -> bool {
        if self.record(ticket).is_none() {
            return false;
        }
        for earlier in self.head..ticket.0 {
            if self.ring[self.slot(earlier)].is_silent() {
                self.end(earlier, Outcome::Completed(Status::SUCCESS), &mut sink);
            }
        }
        self.end(ticket.0, Outcome::Completed(status), &mut sink);
        while self.head != self.tail && self.ring[self.slot(self.head)].wrs == 0 {
            self.head += 1;
            self.ahead -= 1;
            self.irregular -= 1;
        }
        self.set_limit();
        true
    }

    /// Ends one record that is still in flight. Who was orphaned has nobody left to tell.
    fn end(&mut self, ticket: u64, outcome: Outcome, sink: &mut impl FnMut(Settled)) {
        let slot = self.slot(ticket);
        let record = std::mem::replace(&mut self.ring[slot], Record::SETTLED);
        if record.wrs == 0 {
            return;
        }
        self.posted -= u32::from(record.wrs);
        self.ahead += 1;
        self.irregular += u32::from(!record.is_silent());
        if !record.orphaned {
            let Record { token, wrs, replay, .. } = record;
            sink(Settled { ticket: Ticket(ticket), token, wrs, outcome, replay });
        }
    }

    /// Fails everything in flight, oldest first; returns how many records that were.
    pub(crate) fn fail_all(&mut self, cause: Cause, mut sink: impl FnMut(Settled)) -> u64 {
        self.check();
        let failed = self.balance().in_flight;
        for ticket in self.head..self.tail {
            self.end(ticket, Outcome::Failed(cause), &mut sink);
        }
        self.head = self.tail;
        self.ahead = 0;
        self.irregular = 0;
        self.set_limit();
        self.check();
        failed
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn set_open(&mut self, open: bool) {
        self.open = open;
        self.set_limit();
    }

    /// Keeps `tail` from running into a record that waits, which `posted` alone does only while records settle in order.
    fn set_limit(&mut self) {
        let places = self.ring.len() as u64 - (self.tail - self.head);
        let room = u32::try_from(places).unwrap_or(u32::MAX).saturating_add(self.posted);
        self.limit = match (self.open, self.ahead) {
            (false, _) => 0,
            (true, 0) => self.depth,
            (true, _) => self.depth.min(room),
        };
    }

    pub(crate) const fn depth(&self) -> u32 {
        self.depth
    }

    /// Counts the records and compares with the sums.
    ///
    /// # Panics
    /// When they differ: something was lost or counted twice, and no result can be trusted.
    pub(crate) fn check(&self) {
        let (mut in_flight, mut posted) = (0_u64, 0_u32);
        for ticket in self.head..self.tail {
            let record = &self.ring[self.slot(ticket)];
            in_flight += u64::from(record.wrs != 0);
            posted += u32::from(record.wrs);
        }
        let balance = self.balance();
        assert!(
            balance.in_flight == in_flight && balance.posted == posted,
            "the ledger does not balance: {in_flight} records with {posted} work requests against {balance:?}"
        );
    }
}
