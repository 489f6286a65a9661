//! The state of all queue pairs of an lcore, taken a few at a time while the lcore works.
//!
//! Who wants to know lends a [`Survey`]; the lcore fills it within the room that it has, so that nothing is
//! allocated, and hands it back.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pmd_roce::engine::{Engine, SrqView};
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
    pub(crate) fn leave(&mut self, qpn: Qpn, engine: &Engine, now: Instant) {
        let status = self.status(qpn, engine, now);
        let entry = self.entries.remove(&qpn);
        let Some(mut status) = status.filter(|_| self.keep > 0) else { return };
        if let Some(state) = entry.and_then(|entry| entry.closed_in) {
            status.stats.state = state;
        }
        if self.ended.len() == self.keep {
            self.ended.pop_front();
            self.forgotten += 1;
        }
        self.ended.push_back(status);
    }

    fn status(&self, qpn: Qpn, engine: &Engine, now: Instant) -> Option<QpStatus> {
        let (view, stats) = (engine.query_qp(qpn)?, engine.query_qp_stats(qpn)?);
        let (init, attr) = (&view.init, &view.attr);
        Some(QpStatus {
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
        })
    }
}

impl Context {
    /// Remembers queue pairs that end, from now on, until the next survey tells of them. Not for the data path.
    pub fn remember_ended(&self) {
        self.with(|core| {
            core.roll.keep = ENDED_MAX;
            core.roll.ended.reserve(ENDED_MAX);
        });
    }

    /// Begins a survey, or goes on with it, by at most `budget` queue pairs. Returns whether it is complete. Allocates
    /// nothing: what there is no room for is counted.
    pub fn survey(&self, survey: &mut Survey, budget: usize) -> bool {
        let now = self.device().now();
        self.with(|core| {
            let engine = &core.engine;
            let mut place = survey.place.unwrap_or_else(|| {
                survey.at = now;
                put(&mut survey.srqs, engine.shared_receive_queues());
                put(&mut survey.counters, engine.counters().iter());
                let wire = core.wire.as_ref().map(|wire| wire.counters());
                put(&mut survey.wire, wire.iter().flat_map(|wire| wire.fields()));
                0
            });
            for _ in 0..budget {
                let Some((qpn, next)) = engine.queue_pair_from(place) else {
                    // Last, so that nobody ends between the two lists unseen.
                    let roll = &mut core.roll;
                    let room = survey.ended.capacity() - survey.ended.len();
                    let told = roll.ended.len().min(room);
                    survey.ended.extend(roll.ended.drain(..told));
                    survey.forgotten += std::mem::take(&mut roll.forgotten);
                    put(&mut survey.made, roll.made.iter().copied());
                    return true;
                };
                place = next;
                if survey.qps.len() < survey.qps.capacity() {
                    survey.qps.extend(core.roll.status(qpn, engine, now));
                } else {
                    survey.omitted += 1;
                }
            }
            survey.place = Some(place);
            false
        })
    }
}
