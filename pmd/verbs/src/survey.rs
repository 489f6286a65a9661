//! The state of all queue pairs of an lcore, taken a few at a time while the lcore works.
//!
//! Who wants to know lends a [`Survey`]; the lcore fills it within the room that it has, so that nothing is
//! allocated, and hands it back.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pmd_roce::engine::{QpView, SrqView};
use pmd_roce::ids::{Gid, Instant, Qpn, Srqn};
use pmd_roce::qp::attr::QpAttr;
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::qp::stats::QpStats;

use crate::context::Context;

/// One queue pair at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QpStatus {
    /// Its number.
    pub qpn: Qpn,
    /// What it was made for: the number that [`Context::on_behalf`] was given.
    pub owner: Option<u32>,
    /// Its service.
    pub transport: Transport,
    /// The peer's number; 0 before RTR, and for datagrams.
    pub peer: Qpn,
    /// The peer's address; unspecified before RTR, and for datagrams.
    pub peer_gid: Gid,
    /// Whether the peer is reached through shared memory.
    pub shares_memory: bool,
    /// The state, and what it has been through. Of one that has ended: the state that its owner found it in when
    /// it closed it.
    pub stats: QpStats,
    /// How long it has been in that state.
    pub age: Duration,
    /// How long it was in each state, by the state's number.
    pub dwell: [Duration; QpState::ALL.len()],
    /// Send requests not yet completed.
    pub send_used: u32,
    /// Send requests that fit.
    pub send_depth: u32,
    /// Send requests posted since it was created or reset, modulo 2^32.
    pub send_posted: u32,
    /// Receives not yet completed; 0 with a shared queue.
    pub recv_used: u32,
    /// Receives that fit.
    pub recv_depth: u32,
    /// The shared queue that its receives come from.
    pub srq: Option<Srqn>,
}

/// What an lcore tells of its part of a device.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Queue pairs that live, as many as there was room for.
    pub qps: Vec<QpStatus>,
    /// Those beyond.
    pub omitted: usize,
    /// Queue pairs that have ended since they were last told of.
    pub ended: Vec<QpStatus>,
    /// Those of which nothing is left: too many ended since the last survey.
    pub forgotten: u64,
    /// Queue pairs made so far, by the number of their owner.
    pub made: Vec<u32>,
    /// Shared receive queues.
    pub srqs: Vec<(Srqn, SrqView)>,
    /// The engine's counters.
    pub counters: Vec<(&'static str, u64)>,
    /// The wire's counters.
    pub wire: Vec<(&'static str, u64)>,
    /// When it was begun, on the device's clock.
    pub at: Instant,
    /// Where in the engine's table it goes on; `None`: not begun.
    place: Option<u32>,
}

impl Survey {
    /// Room for so many queue pairs, as many that have ended, and owners with numbers below `owners`.
    pub fn with_room(qps: usize, owners: usize) -> Self {
        Self {
            qps: Vec::with_capacity(qps),
            ended: Vec::with_capacity(ENDED_MAX),
            made: Vec::with_capacity(owners),
            srqs: Vec::with_capacity(SRQS_MAX),
            counters: Vec::with_capacity(COUNTERS_MAX),
            wire: Vec::with_capacity(COUNTERS_MAX),
            ..Self::default()
        }
    }

    /// Makes it ready to be lent again, with room for what was omitted.
    pub fn renew(&mut self) {
        let Self { qps, omitted, ended, forgotten, made, srqs, counters, wire, at: _, place } =
            self;
        let wanted = qps.len() + 2 * *omitted;
        qps.clear();
        qps.reserve(wanted);
        ended.clear();
        made.clear();
        srqs.clear();
        counters.clear();
        wire.clear();
        (*omitted, *forgotten, *place) = (0, 0, None);
    }
}

/// As an lcore fills it.
impl Survey {
    /// Where to go on; where it begins, what is no queue pair comes first.
    pub(crate) fn begin(&mut self, now: Instant, fill: impl FnOnce(&mut Self)) -> u32 {
        self.place.unwrap_or_else(|| {
            self.at = now;
            fill(self);
            0
        })
    }

    pub(crate) fn put_srqs(&mut self, srqs: impl IntoIterator<Item = (Srqn, SrqView)>) {
        put(&mut self.srqs, srqs);
    }

    pub(crate) fn put_counters(&mut self, each: impl IntoIterator<Item = (&'static str, u64)>) {
        put(&mut self.counters, each);
    }

    pub(crate) fn put_wire(&mut self, each: impl IntoIterator<Item = (&'static str, u64)>) {
        put(&mut self.wire, each);
    }

    /// The next queue pair, which is looked at only where there is room for it.
    pub(crate) fn put_qp(&mut self, status: impl FnOnce() -> Option<QpStatus>) {
        if self.qps.len() < self.qps.capacity() {
            self.qps.extend(status());
        } else {
            self.omitted += 1;
        }
    }

    pub(crate) const fn go_on_at(&mut self, place: u32) {
        self.place = Some(place);
    }

    /// That was the last one. Those that have ended come after, so that nobody ends between the two lists unseen.
    pub(crate) fn end(&mut self, roll: &mut Roll) {
        let room = self.ended.capacity() - self.ended.len();
        let told = roll.ended.len().min(room);
        self.ended.extend(roll.ended.drain(..told));
        self.forgotten += std::mem::take(&mut roll.forgotten);
        put(&mut self.made, roll.made.iter().copied());
    }
}

/// Queue pairs that have ended and are remembered for the next survey.
pub(crate) const ENDED_MAX: usize = 128;
/// Shared receive queues in a survey.
const SRQS_MAX: usize = 64;
/// Counters of engine or wire.
const COUNTERS_MAX: usize = 128;

/// Appends what fits.
fn put<T>(into: &mut Vec<T>, from: impl IntoIterator<Item = T>) {
    let room = into.capacity() - into.len();
    into.extend(from.into_iter().take(room));
}

/// What a core knows of its queue pairs beside what the engine does.
#[derive(Debug, Default)]
pub(crate) struct Roll {
    entries: BTreeMap<Qpn, Entry>,
    made: Vec<u32>,
    ended: VecDeque<QpStatus>,
    keep: usize,
    forgotten: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: Option<u32>,
    /// The state in which the owner closed it.
    closed_in: Option<QpState>,
}

impl Roll {
    /// A queue pair was created.
    pub(crate) fn enter(&mut self, qpn: Qpn, owner: Option<u32>) {
        self.entries.insert(qpn, Entry { owner, closed_in: None });
        let Some(owner) = owner.map(|owner| owner as usize) else { return };
        if self.made.len() <= owner {
            self.made.resize(owner + 1, 0);
        }
        self.made[owner] = self.made[owner].saturating_add(1);
    }

    /// Its owner moves it on from `state`. To Error is its end, as far as the owner is concerned; to RESET is a new
    /// beginning.
    pub(crate) fn moves(&mut self, qpn: Qpn, state: QpState, attr: &QpAttr, mask: AttrMask) {
        let (ends, begins) = (attr.state == QpState::Error, attr.state == QpState::Reset);
        if !mask.contains(AttrMask::STATE) || !ends && !begins {
            return;
        }
        let Some(entry) = self.entries.get_mut(&qpn) else { return };
        entry.closed_in = if begins { None } else { entry.closed_in.or(Some(state)) };
    }

    /// A queue pair is about to be destroyed.
    pub(crate) fn leave(&mut self, qpn: Qpn, view: &QpView, stats: QpStats, now: Instant) {
        let mut status = self.status(qpn, view, stats, now);
        let entry = self.entries.remove(&qpn);
        if self.keep == 0 {
            return;
        }
        if let Some(state) = entry.and_then(|entry| entry.closed_in) {
            status.stats.state = state;
        }
        if self.ended.len() == self.keep {
            self.ended.pop_front();
            self.forgotten += 1;
        }
        self.ended.push_back(status);
    }

    pub(crate) fn status(&self, qpn: Qpn, view: &QpView, stats: QpStats, now: Instant) -> QpStatus {
        let QpView { init, attr, .. } = view;
        QpStatus {
            qpn,
            owner: self.entries.get(&qpn).and_then(|entry| entry.owner),
            transport: init.transport,
            peer: attr.dest_qpn,
            peer_gid: attr.av.dgid,
            shares_memory: attr.av.link.is_some(),
            age: stats.age(now),
            dwell: QpState::ALL.map(|state| stats.dwell(state, now)),
            stats,
            send_used: view.send_outstanding,
            send_depth: init.cap.max_send_wr,
            send_posted: view.send_posted,
            recv_used: view.recv_outstanding,
            recv_depth: init.cap.max_recv_wr,
            srq: init.srq,
        }
    }

    /// From now on, those that end are remembered.
    fn remember(&mut self) {
        self.keep = ENDED_MAX;
        self.ended.reserve(ENDED_MAX);
    }
}

impl Context {
    /// Remembers queue pairs that end, from now on, until the next survey tells of them. Not for the data path.
    pub fn remember_ended(&self) {
        self.with(|core| core.roll().remember());
    }

    /// Begins a survey, or goes on with it, by at most `budget` queue pairs. Returns whether it is complete. Allocates
    /// nothing: what there is no room for is counted.
    pub fn survey(&self, survey: &mut Survey, budget: usize) -> bool {
        let now = self.device().now();
        self.with(|core| core.survey(now, survey, budget))
    }
}
