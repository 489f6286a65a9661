//! What a queue pair has been through: its own counters, how long answers and waits took, and how long
//! it was in which state. All of it lies apart from what a message touches.

use core::time::Duration;

use super::state::QpState;
use crate::counters::QpCounters;
use crate::histogram::Histogram;
use crate::ids::{Instant, Psn};

/// What is known of a queue pair since it was created; RESET does not begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStats {
    /// Its part of the engine's counters, under the same names.
    pub counters: QpCounters,
    /// From a packet that asks for an acknowledgement to the acknowledgement, on the packet path: one
    /// packet at a time, none that was sent again. As exact as the poll loop is fast.
    pub ack_round_trip: Histogram,
    /// How long the peer asked to wait for a receive, each time.
    pub rnr_wait: Histogram,
    /// When a request last came that had come before, to the accuracy of [`since`](Self::since).
    pub last_duplicate: Option<Instant>,
    /// The state it is in.
    pub state: QpState,
    /// Since when it is in this state, to the accuracy of the readings of the clock that the engine is
    /// told.
    pub since: Instant,
    /// How often it was brought out of RESET: once to be connected, and once more each time that it was
    /// connected anew.
    pub starts: u32,
    dwell: [Duration; QpState::ALL.len()],
}

impl QpStats {
    /// Of a queue pair that was created now, for whoever keeps its book where no engine does.
    pub fn begun(now: Instant) -> Self {
        Book::new(now).stats(QpState::Reset)
    }

    /// It has gone to another state, or to the same anew.
    pub fn enter(&mut self, state: QpState, now: Instant) {
        self.dwell[self.state as usize] += now.since(self.since);
        self.starts += u32::from(self.state == QpState::Reset && state != QpState::Reset);
        (self.state, self.since) = (state, now);
    }

    /// How long it was in a state, all times together, the present one up to `now`.
    pub fn dwell(&self, state: QpState, now: Instant) -> Duration {
        let present = if state == self.state { now.since(self.since) } else { Duration::ZERO };
        self.dwell[state as usize] + present
    }

    /// How long it has been in its present state.
    pub fn age(&self, now: Instant) -> Duration {
        now.since(self.since)
    }
}

/// The packet whose acknowledgement is timed.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// One past its PSN.
    upto: Psn,
    sent: Instant,
}

/// The book that a queue pair keeps.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) counters: QpCounters,
    pub(crate) rnr_wait: Histogram,
    ack_round_trip: Histogram,
    last_duplicate: Option<Instant>,
    probe: Option<Probe>,
    since: Instant,
    starts: u32,
    dwell: [Duration; QpState::ALL.len()],
}

impl Book {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            counters: QpCounters::default(),
            rnr_wait: Histogram::default(),
            ack_round_trip: Histogram::default(),
            last_duplicate: None,
            probe: None,
            since: now,
            starts: 0,
            dwell: [Duration::ZERO; QpState::ALL.len()],
        }
    }

    /// The queue pair leaves a state.
    pub(crate) fn leave(&mut self, state: QpState, now: Instant) {
        self.dwell[state as usize] += now.since(self.since);
        self.since = now;
        self.starts += u32::from(state == QpState::Reset);
        self.probe = None;
    }

    /// A packet that asks for an acknowledgement was sent, with the last PSN before `upto`.
    #[inline]
    pub(crate) fn asked(&mut self, upto: Psn, now: Instant) {
        self.probe.get_or_insert(Probe { upto, sent: now });
    }

    /// A request came that had come before.
    pub(crate) const fn duplicated(&mut self, now: Instant) {
        self.last_duplicate = Some(now);
    }

    /// Packets are sent again: an answer would not tell to which of them.
    pub(crate) const fn sent_again(&mut self) {
        self.probe = None;
    }

    /// Everything before `upto` is acknowledged.
    #[inline]
    pub(crate) fn answered(&mut self, upto: Psn, now: Instant) {
        if let Some(probe) = self.probe.take_if(|probe| upto.since(probe.upto) >= 0) {
            self.ack_round_trip.record(now.since(probe.sent));
        }
    }

    pub(crate) const fn since(&self) -> Instant {
        self.since
    }

    pub(crate) fn stats(&self, state: QpState) -> QpStats {
        let Self {
            counters, rnr_wait, ack_round_trip, last_duplicate, since, starts, dwell, ..
        } = *self;
        QpStats { counters, ack_round_trip, rnr_wait, last_duplicate, state, since, starts, dwell }
    }
}
