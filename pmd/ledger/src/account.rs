//! The books of one queue pair: both its queues, the gate before them, and what closes it.

use crate::event::{Event, Identity, Switches};
use crate::gate::{Admission, Gate, Refused, Stamp};
use crate::limits::MAX_QUEUES;
use crate::outcome::{Cause, Settled, Status};
use crate::queue::{AdmitError, Balance, Queue, Record};
use crate::submission::{Submission, Ticket};

/// Which of the two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Requests that this side starts.
    Send = 0,
    /// Receives that it posts. They wait for the peer, and have no deadline.
    Recv = 1,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Send, Self::Recv];
}

/// Work requests that each queue of the device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Send queue.
    pub send: u32,
    /// Receive queue; 0 with a shared one.
    pub recv: u32,
}

/// Whether completions of what is in flight still come after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// They come, flushed ones in order; they are waited for so long, nanoseconds, since they say more than the event.
    Within(u64),
    /// The completion queue or the device is gone: what is in flight fails now.
    Never,
}

/// Whether an account takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does.
    Open,
    /// Not until what was posted in part has settled.
    Degraded,
    /// Failed; completions of what is in flight are still taken.
    Draining {
        /// Why.
        cause: Cause,
        /// When the wait for completions ends, nanoseconds.
        until_ns: u64,
    },
    /// Failed, and empty. Only [`Account::reopen`] leads out.
    Closed {
        /// Why.
        cause: Cause,
    },
}

impl State {
    /// Why it was closed, if it was.
    pub const fn cause(&self) -> Option<Cause> {
        match *self {
            Self::Open | Self::Degraded => None,
            Self::Draining { cause, .. } | Self::Closed { cause } => Some(cause),
        }
    }
}

/// The books of one queue pair, owned by one lcore.
#[derive(Debug)]
pub struct Account {
    queues: [Queue; 2],
    state: State,
    gate: Gate,
    identity: Identity,
    /// How long the oldest request may be the oldest; none: only events end it.
    limit_ns: Option<u64>,
    /// The oldest request when somebody last looked, and when it was first seen as such.
    watched: Option<(Ticket, u64)>,
}

impl Account {
    /// An open account. `index` tells its tickets from those of other accounts of the lcore, below
    /// [`MAX_ACCOUNTS`](crate::limits::MAX_ACCOUNTS). `limit_ns` is the time that a request may be the oldest one without
    /// completing: longer than the retry budget, or none where that is without end.
    pub fn new(index: usize, identity: Identity, depths: Depths, limit_ns: Option<u64>) -> Self {
        let queue = 2 * index % MAX_QUEUES;
        Self::continuing(
            [Ticket::first(queue), Ticket::first(queue + 1)],
            identity,
            depths,
            limit_ns,
        )
    }

    /// An account whose tickets go on from `first`.
    pub(crate) fn continuing(
        first: [u64; 2],
        identity: Identity,
        depths: Depths,
        limit_ns: Option<u64>,
    ) -> Self {
        Self {
            queues: [Queue::new(first[0], depths.send), Queue::new(first[1], depths.recv)],
            state: State::Open,
            gate: Gate::new(),
            identity,
            limit_ns,
            watched: None,
        }
    }

    /// What other threads ask before they send a message with work.
    pub fn admission(&self) -> Admission {
        self.gate.admission()
    }

    /// What it is called by events.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether it takes work.
    pub const fn state(&self) -> State {
        self.state
    }

    /// How often it was opened, counted from 0: a number of the connection that it now stands for.
    pub const fn incarnation(&self) -> u64 {
        self.gate.incarnation()
    }

    /// Whether nothing is in flight, in either queue.
    pub const fn is_empty(&self) -> bool {
        self.queues[0].is_empty() && self.queues[1].is_empty()
    }

    /// The sums of one queue.
    pub fn balance(&self, side: Side) -> Balance {
        self.queues[side as usize].balance()
    }

    /// What is known of a submission in flight.
    pub fn record(&self, ticket: Ticket) -> Option<Record> {
        self.queues[ticket.queue() & 1].record(ticket)
    }

    /// Admits a submission. Post it with the ticket as `wr_id`; if the device refuses it, [`Account::withdraw`] it.
    ///
    /// # Errors
    /// [`AdmitError`]; nothing is stored.
    // In line, so that what is known of a submission where it is made is a constant.
    #[inline(always)]
    pub fn admit(&mut self, side: Side, submission: Submission) -> Result<Ticket, AdmitError> {
        match self.queues[side as usize].admit(submission) {
            Some(ticket) => Ok(ticket),
            None => Err(self.refusal(side, submission)),
        }
    }

    /// Admits what another thread sent with a stamp of the gate.
    ///
    /// # Errors
    /// [`AdmitError`]; [`AdmitError::Stale`] if the connection failed and came back in the meantime.
    pub fn admit_stamped(
        &mut self,
        stamp: Stamp,
        side: Side,
        submission: Submission,
    ) -> Result<Ticket, AdmitError> {
        if self.gate.is_current(stamp) {
            self.admit(side, submission)
        } else {
            Err(AdmitError::Stale)
        }
    }

    #[cold]
    fn refusal(&self, side: Side, submission: Submission) -> AdmitError {
        let max = self.queues[side as usize].depth();
        match self.state {
            State::Draining { cause, .. } | State::Closed { cause } => AdmitError::Closed(cause),
            _ if submission.wrs == 0 || u32::from(submission.wrs) > max => AdmitError::Size { max },
            _ if !self.queues[side as usize].is_open() => AdmitError::Degraded,
            State::Open | State::Degraded => AdmitError::Full,
        }
    }

    /// Admits one signalled send beyond the depth, also while no other work is taken: when it completes, so has
    /// everything before it. None in a closed account, and where a marker is in flight in a full queue.
    pub fn admit_marker(&mut self, token: u64) -> Option<Ticket> {
        let closed = matches!(self.state, State::Closed { .. });
        if closed { None } else { self.queues[Side::Send as usize].admit_marker(token) }
    }

    /// Takes back the newest submission, which the device refused as a whole. It never settles. Several are taken back
    /// newest first.
    pub fn withdraw(&mut self, ticket: Ticket) -> bool {
        self.queues[ticket.queue() & 1].withdraw(ticket)
    }

    /// Says that only `posted` work requests of the newest submission reached the device, without the signalled one. Its
    /// caller is told by this call's caller; the record holds depth until something later completes. Until then the queue
    /// takes no work but a marker.
    pub fn orphan(&mut self, ticket: Ticket, posted: u16) -> bool {
        let queue = &mut self.queues[ticket.queue() & 1];
        let orphaned = queue.orphan(ticket, posted);
        if orphaned && self.state.cause().is_none() {
            queue.set_open(false);
            self.state = State::Degraded;
            self.gate.degrade();
        }
        orphaned
    }

    /// Takes completions of requests that succeeded, first come first: settles the oldest submissions of the queue that
    /// the first one names, one with each, as long as they are theirs in this order and `each` agrees. It gets the
    /// submission's token, and says whether the completion is a success. Returns how many were settled: the next one is
    /// for [`Account::settle`], or begins another row.
    #[inline(always)]
    pub fn settle_row<C>(
        &mut self,
        completions: &[C],
        ticket: impl Fn(&C) -> Ticket,
        each: impl FnMut(&C, u64) -> bool,
    ) -> usize {
        let Some(first) = completions.first() else { return 0 };
        self.queues[ticket(first).queue() & 1].settle_row(completions, ticket, each)
    }

    /// Takes a completion. What it settles goes to `sink`; whether it settled anything. A ticket that is not in flight
    /// is late, or forged, and changes nothing.
    pub fn settle(&mut self, ticket: Ticket, status: Status, sink: impl FnMut(Settled)) -> bool {
        let queue = &mut self.queues[ticket.queue() & 1];
        let settled = queue.settle_any(ticket, status, sink);
        // A closed account stays closed, whatever completes.
        if self.state == State::Degraded && !queue.has_orphans() {
            queue.set_open(true);
            if self.queues.iter().all(|queue| !queue.has_orphans()) {
                self.state = State::Open;
                self.gate.restore();
            }
        }
        settled
    }

    /// Takes no work for one queue, while what it has goes on: the send queue failed alone (SQE).
    pub fn hold(&mut self, side: Side) {
        self.queues[side as usize].set_open(false);
    }

    /// Takes work for that queue again, unless the account was closed in the meantime.
    pub fn release(&mut self, side: Side) {
        if self.state == State::Open {
            self.queues[side as usize].set_open(true);
        }
    }

    /// Closes the gate, then fails what is in flight: now, or where its completions come, at the end of the wait for
    /// them. What was closed before keeps its cause. Returns how many records ended here.
    pub fn fail(
        &mut self,
        now_ns: u64,
        cause: Cause,
        flushes: Flushes,
        sink: impl FnMut(Settled),
    ) -> u64 {
        let until = match (self.state, flushes) {
            (State::Closed { .. }, _) | (State::Draining { .. }, Flushes::Within(_)) => return 0,
            (_, Flushes::Within(wait_ns)) if wait_ns > 0 && !self.is_empty() => {
                Some(now_ns.saturating_add(wait_ns))
            }
            _ => None,
        };
        let cause = self.state.cause().unwrap_or(cause);
        self.close_gate();
        match until {
            Some(until_ns) => {
                self.state = State::Draining { cause, until_ns };
                0
            }
            None => self.fail_all(cause, sink),
        }
    }

    fn close_gate(&mut self) {
        self.gate.close();
        self.queues.iter_mut().for_each(|queue| queue.set_open(false));
    }

    fn fail_all(&mut self, cause: Cause, mut sink: impl FnMut(Settled)) -> u64 {
        self.state = State::Closed { cause };
        self.watched = None;
        Side::BOTH.iter().map(|&side| self.queues[side as usize].fail_all(cause, &mut sink)).sum()
    }

    /// Takes an event. None if it does not concern this account or fails nothing; else how many records ended here.
    pub fn handle_event(
        &mut self,
        now_ns: u64,
        event: &Event,
        switches: Switches,
        sink: impl FnMut(Settled),
    ) -> Option<u64> {
        let fails = switches.events
            && switches.fail
            && event.kind.is_fatal()
            && self.identity.concerns(event);
        let flushes = match event.kind.flushes() {
            true => Flushes::Within(switches.drain_ns),
            false => Flushes::Never,
        };
        fails.then(|| self.fail(now_ns, Cause::Event(event.kind), flushes, sink))
    }

    /// Looks whether a wait is over: that for flushed completions, or that of the oldest request. Costs little; call it
    /// when [`Account::poll_timeout`] says so, and now and then in between. Returns how many records ended here.
    pub fn handle_timeout(&mut self, now_ns: u64, sink: impl FnMut(Settled)) -> u64 {
        match self.state {
            State::Draining { cause, until_ns } if self.is_empty() || now_ns >= until_ns => {
                self.fail_all(cause, sink)
            }
            State::Draining { .. } | State::Closed { .. } => 0,
            State::Open | State::Degraded => {
                let (Some(limit_ns), Some(oldest)) = (self.limit_ns, self.oldest()) else {
                    self.watched = None;
                    return 0;
                };
                match self.watched {
                    Some((ticket, since_ns)) if ticket == oldest => {
                        if now_ns.saturating_sub(since_ns) < limit_ns {
                            return 0;
                        }
                        self.close_gate();
                        self.fail_all(Cause::Deadline { limit_ns }, sink)
                    }
                    _ => {
                        self.watched = Some((oldest, now_ns));
                        0
                    }
                }
            }
        }
    }

    fn oldest(&self) -> Option<Ticket> {
        self.queues[Side::Send as usize].oldest()
    }

    /// When [`Account::handle_timeout`] has something to do: 0 is now, since a request has become the oldest that has not
    /// been looked at. None: nothing waits for time.
    pub fn poll_timeout(&self) -> Option<u64> {
        match self.state {
            State::Draining { until_ns, .. } => Some(if self.is_empty() { 0 } else { until_ns }),
            State::Closed { .. } => None,
            State::Open | State::Degraded => {
                let (limit_ns, oldest) = (self.limit_ns?, self.oldest()?);
                match self.watched {
                    Some((ticket, since_ns)) if ticket == oldest => {
                        Some(since_ns.saturating_add(limit_ns))
                    }
                    _ => Some(0),
                }
            }
        }
    }

    /// The queue pair goes to RESET, which discards what it has not reported: closes the account, and fails what is left
    /// of it now. Drain before, so that nothing is.
    pub fn reset(&mut self, now_ns: u64, sink: impl FnMut(Settled)) -> u64 {
        self.fail(now_ns, Cause::Reset, Flushes::Never, sink)
    }

    /// Opens a closed account for the next connection of the queue pair, under the number that it has by then. Tickets go
    /// on where they were.
    ///
    /// # Errors
    /// [`Refused`] where it is not closed and empty: fail or reset it first.
    pub fn reopen(&mut self, identity: Identity) -> Result<u64, Refused> {
        if !matches!(self.state, State::Closed { .. }) {
            return Err(Refused::Degraded);
        }
        self.queues.iter().for_each(Queue::check);
        self.queues.iter_mut().for_each(|queue| queue.set_open(true));
        self.identity = identity;
        self.state = State::Open;
        self.watched = None;
        self.gate.reopen();
        Ok(self.gate.incarnation())
    }

    /// Counts everything in flight and compares with the sums: admitted = settled + in flight. Also done, in every build,
    /// whenever the account closes or opens.
    ///
    /// # Panics
    /// When it does not balance.
    pub fn check(&self) {
        self.queues.iter().for_each(Queue::check);
    }

    pub(crate) const fn next_tickets(&self) -> [u64; 2] {
        [self.queues[0].next(), self.queues[1].next()]
    }
}
