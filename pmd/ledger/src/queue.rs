//! The books of one queue: a ring of records in the order of submission.

use pmd_mem::Wheel;

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

/// What a queue stores of a submission.
#[derive(Clone, Copy, Debug)]
struct Entry {
    token: u64,
    shape: Shape,
    /// Work requests that reached the device, where these are not all.
    part: u16,
}

/// What a submission is. In one word, which is a constant where a request is put together.
#[derive(Clone, Copy, Debug)]
struct Shape(u32);

impl Shape {
    const SIGNALLED: u32 = 1 << 16;
    const ORPHANED: u32 = 1 << 17;
    const REPLAY: u32 = 1 << 18;

    #[inline(always)]
    const fn of(submission: &Submission) -> Self {
        let replay = match submission.replay {
            Replay::Never => 0,
            Replay::Again => Self::REPLAY,
        };
        let signalled = if submission.signalled { Self::SIGNALLED } else { 0 };
        Self(submission.wrs as u32 | signalled | replay)
    }

    /// Work requests that the caller asked for.
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    const fn batch(self) -> u16 {
        self.0 as u16
    }

    const fn is_orphaned(self) -> bool {
        self.0 & Self::ORPHANED != 0
    }

    /// Whether only a later completion tells that it succeeded.
    const fn is_silent(self) -> bool {
        self.0 & Self::SIGNALLED == 0 || self.is_orphaned()
    }

    /// Whether it is something else than one signalled work request.
    #[inline(always)]
    const fn is_special(self) -> bool {
        self.batch() != 1 || self.is_silent()
    }

    const fn replay(self) -> Replay {
        if self.0 & Self::REPLAY == 0 { Replay::Never } else { Replay::Again }
    }
}

impl Entry {
    const SETTLED: Self = Self { token: 0, shape: Shape(Shape::SIGNALLED), part: 0 };

    /// Work requests that the device holds.
    const fn wrs(&self) -> u16 {
        if self.shape.is_orphaned() { self.part } else { self.shape.batch() }
    }

    /// Of these, those beyond the first.
    const fn extra(&self) -> u32 {
        (self.wrs() as u32).saturating_sub(1)
    }

    const fn is_settled(&self) -> bool {
        self.shape.batch() == 0
    }

    const fn record(&self) -> Record {
        let shape = self.shape;
        Record {
            token: self.token,
            wrs: self.wrs(),
            batch: shape.batch(),
            signalled: shape.0 & Shape::SIGNALLED != 0,
            orphaned: shape.is_orphaned(),
            replay: shape.replay(),
        }
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

/// The books of a send or receive queue: entries between two cursors.
///
/// ```text
///     head                     tail            limit
///      | in flight, oldest first | room          |
/// ```
///
/// As long as every entry is one signalled work request, and they end in order, the cursors say everything: admitting
/// compares `tail` with `limit`, settling a row of completions moves `head` and `limit` by its length. What is special is
/// counted aside, and only what is special pays for that.
#[derive(Debug)]
pub(crate) struct Queue {
    ring: Wheel<Entry>,
    /// The oldest ticket in flight; equal to `tail` where none is.
    head: u64,
    /// The next ticket.
    tail: u64,
    /// Tickets end before this one: room is what the depth leaves, and what the ring has behind entries that wait.
    limit: u64,
    /// Submissions that ended.
    settled: u64,
    /// Entries from `head` on that are [special](Shape::is_special), or have ended: while there is one, rows are not
    /// settled as such.
    special: u32,
    /// Of these, the ones that have ended.
    ahead: u32,
    /// Work requests of entries in flight beyond one for each.
    extra: u32,
    depth: u32,
    open: bool,
}

/// Counts what of a row was settled, also where its receiver panics in the middle.
struct Row<'a> {
    queue: [&'a mut u64; 3],
    count: u64,
}

impl Drop for Row<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.iter_mut().for_each(|cursor| **cursor += self.count);
    }
}

impl Queue {
    /// An empty queue, whose tickets go on from `first`.
    pub(crate) fn new(first: u64, depth: u32) -> Self {
        let depth = depth.min(MAX_DEPTH);
        // One more for a marker, which is admitted beyond the depth.
        Self {
            ring: Wheel::new(depth as usize + 1, Entry::SETTLED),
            head: first,
            tail: first,
            limit: first + u64::from(depth),
            settled: Ticket(first).position(),
            special: 0,
            ahead: 0,
            extra: 0,
            depth,
            open: true,
        }
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

    const fn in_flight(&self) -> u64 {
        self.tail - self.head - self.ahead as u64
    }

    /// Work requests of all entries in flight.
    #[expect(clippy::cast_possible_truncation, reason = "no more entries than places in the ring")]
    const fn posted(&self) -> u32 {
        self.in_flight() as u32 + self.extra
    }

    pub(crate) const fn balance(&self) -> Balance {
        Balance {
            admitted: Ticket(self.tail).position(),
            settled: self.settled,
            in_flight: self.in_flight(),
            posted: self.posted(),
        }
    }

    pub(crate) fn record(&self, ticket: Ticket) -> Option<Record> {
        let entry = self.ring.get(ticket.0);
        (self.is_in_flight(ticket) && !entry.is_settled()).then(|| entry.record())
    }

    const fn is_in_flight(&self, ticket: Ticket) -> bool {
        ticket.0.wrapping_sub(self.head) < self.tail - self.head
    }

    /// Stores a record, or tells that it does not fit; why, the account knows.
    #[inline(always)]
    pub(crate) fn admit(&mut self, submission: Submission) -> Option<Ticket> {
        let extra = u64::from(submission.wrs).wrapping_sub(1);
        if submission.wrs == 0 || self.tail + extra >= self.limit {
            return None;
        }
        self.limit -= extra;
        Some(self.store(&submission))
    }

    /// Admits one signalled work request whether the queue is open or not, and beyond its depth, if there is a place.
    pub(crate) fn admit_marker(&mut self, token: u64) -> Option<Ticket> {
        let has_place = self.tail - self.head < self.ring.slots() as u64;
        has_place.then(|| self.store(&Submission::one(token)))
    }

    #[inline(always)]
    fn store(&mut self, submission: &Submission) -> Ticket {
        let ticket = self.tail;
        let (entry, shape) = (self.ring.get_mut(ticket), Shape::of(submission));
        (entry.token, entry.shape) = (submission.token, shape);
        if shape.is_special() {
            self.special += 1;
            self.extra += u32::from(submission.wrs) - 1;
        }
        self.tail = ticket + 1;
        Ticket(ticket)
    }

    /// Takes back the newest record, which the device refused as a whole.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> bool {
        let is_whole = self.record(ticket).is_some_and(|record| !record.orphaned);
        if ticket.0.wrapping_add(1) != self.tail || !is_whole {
            return false;
        }
        let entry = std::mem::replace(self.ring.get_mut(ticket.0), Entry::SETTLED);
        self.special -= u32::from(entry.shape.is_special());
        self.extra -= entry.extra();
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
        let Entry { shape, part, .. } = self.ring.get_mut(ticket.0);
        self.special += u32::from(!shape.is_special());
        self.extra -= u32::from(record.wrs - posted);
        (shape.0, *part) = (shape.0 | Shape::ORPHANED, posted);
        self.set_limit();
        true
    }

    /// Records posted in part that are still in flight.
    pub(crate) fn has_orphans(&self) -> bool {
        (self.head..self.tail).any(|ticket| self.ring.get(ticket).shape.is_orphaned())
    }

    /// Settles the oldest entries, one with each of `completions`, as long as these are theirs, and `each`, which gets
    /// their tokens, says that one was: the usual way. Returns how many; none where something is special about the queue.
    #[inline(always)]
    pub(crate) fn settle_row<C>(
        &mut self,
        completions: &[C],
        ticket: impl Fn(&C) -> Ticket,
        mut each: impl FnMut(&C, u64) -> bool,
    ) -> usize {
        if !self.open || self.special != 0 {
            return 0;
        }
        let oldest = self.head;
        #[expect(clippy::cast_possible_truncation, reason = "at most the ring's slots")]
        let entries = self.ring.row(oldest, (self.tail - oldest) as usize);
        let queue = [&mut self.head, &mut self.limit, &mut self.settled];
        let mut row = Row { queue, count: 0 };
        // Where the last of them is as far behind the first as it should be, so are those between: they come in order.
        let are_theirs = completions.len() <= entries.len()
            && completions.first().is_some_and(|first| ticket(first).0 == oldest)
            && completions.last().is_some_and(|last| {
                ticket(last).0.wrapping_sub(oldest) == completions.len() as u64 - 1
            });
        for (completion, entry) in completions.iter().zip(entries) {
            let is_next = are_theirs || ticket(completion).0 == oldest + row.count;
            debug_assert!(!are_theirs || ticket(completion).0 == oldest + row.count);
            if !is_next || !each(completion, entry.token) {
                break;
            }
            row.count += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the ring's length")]
        return row.count as usize;
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
            if self.ring.get(earlier).shape.is_silent() {
                self.end(earlier, Outcome::Completed(Status::SUCCESS), &mut sink);
            }
        }
        self.end(ticket.0, Outcome::Completed(status), &mut sink);
        while self.head != self.tail && self.ring.get(self.head).is_settled() {
            self.head += 1;
            self.ahead -= 1;
            self.special -= 1;
        }
        self.set_limit();
        true
    }

    /// Ends one record that is still in flight. Who was orphaned has nobody left to tell.
    fn end(&mut self, ticket: u64, outcome: Outcome, sink: &mut impl FnMut(Settled)) {
        let entry = std::mem::replace(self.ring.get_mut(ticket), Entry::SETTLED);
        if entry.is_settled() {
            return;
        }
        let Entry { token, shape, .. } = entry;
        self.extra -= entry.extra();
        self.ahead += 1;
        self.settled += 1;
        self.special += u32::from(!shape.is_special());
        if !shape.is_orphaned() {
            let (wrs, replay) = (entry.wrs(), shape.replay());
            sink(Settled { ticket: Ticket(ticket), token, wrs, outcome, replay });
        }
    }

    /// Fails everything in flight, oldest first; returns how many records that were.
    pub(crate) fn fail_all(&mut self, cause: Cause, mut sink: impl FnMut(Settled)) -> u64 {
        self.check();
        let failed = self.in_flight();
        for ticket in self.head..self.tail {
            self.end(ticket, Outcome::Failed(cause), &mut sink);
        }
        self.head = self.tail;
        self.ahead = 0;
        self.special = 0;
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

    /// Keeps `tail` from running into an entry that waits, which the depth alone does only while entries end in order.
    fn set_limit(&mut self) {
        let places = self.ring.slots() as u64 - (self.tail - self.head);
        let depth = self.tail + u64::from(self.depth) - u64::from(self.posted());
        self.limit = match (self.open, self.ahead) {
            (false, _) => self.tail,
            (true, 0) => depth,
            (true, _) => depth.min(self.tail + places),
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
        let (mut in_flight, mut posted, mut special) = (0_u64, 0_u32, 0_u32);
        for ticket in self.head..self.tail {
            let entry = self.ring.get(ticket);
            in_flight += u64::from(!entry.is_settled());
            posted += u32::from(entry.wrs());
            special += u32::from(entry.shape.is_special());
        }
        let balance = self.balance();
        assert!(
            balance.admitted == balance.settled + in_flight
                && (balance.in_flight, balance.posted) == (in_flight, posted)
                && self.special == special,
            "the ledger does not balance: {in_flight} records with {posted} work requests, {special} of \
             them special, against {balance:?} and {}",
            self.special
        );
    }
}
