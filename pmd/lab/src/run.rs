//! The loop of the laboratory: the world, and what the scenario does to it.

use core::fmt;
use core::time::Duration;

use pmd_roce::engine::PostRecvError;
use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::ids::{Instant, Srqn, WrId};
use pmd_roce::work::{Completion, RecvWr, Sge, WcStatus};
use pmd_sim::{HostId, Mr, World};

use crate::build::{self, Built};
use crate::connection::{Buffers, Conn, End, FAR, Fate, NEAR, Scene};
use crate::deeds::Deeds;
use crate::limits;
use crate::message::{delivered, post};
use crate::scenario::{Policy, Scenario};
use crate::timeline::{Action, Timeline};

/// Marks the number of a receive.
const RECEIVE: u64 = 1 << 63;
/// Marks the number of a receive of a shared queue.
const POOLED: u64 = 1 << 62;

/// A device refused what a scenario asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}`: {reason}")]
pub struct SetupError {
    name: String,
    reason: String,
}

impl SetupError {
    pub(crate) fn of(name: &str, error: &dyn fmt::Display) -> Self {
        Self { name: name.to_owned(), reason: error.to_string() }
    }
}

/// A shared receive queue with its buffers.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) host: HostId,
    pub(crate) srqn: Srqn,
    pub(crate) mr: Mr,
    pub(crate) buffers: Buffers,
    pub(crate) limit: Option<u32>,
    pub(crate) hold: Duration,
}

impl Pool {
    /// Posts every free buffer.
    pub(crate) fn fill(&mut self, world: &mut World) -> Result<(), PostRecvError> {
        while let Some(slot) = self.buffers.free.pop_front() {
            let wr_id = WrId(RECEIVE | POOLED | u64::from(slot));
            let sge = self.buffers.sge(&self.mr, slot);
            world.post_srq_recv(self.host, self.srqn, &RecvWr { wr_id, sges: &[sge] })?;
            self.buffers.posted += 1;
            self.buffers.ever += 1;
        }
        Ok(())
    }
}

impl Buffers {
    fn sge(&self, mr: &Mr, slot: u32) -> Sge {
        let len = u32::try_from(self.size).unwrap_or(u32::MAX);
        let mut sge = mr.sge(self.base + self.gap * u64::from(slot), len);
        if self.is_bad {
            sge.lkey.0 = !sge.lkey.0;
        }
        sge
    }
}

/// Posts one free receive buffer of an end; none left is nothing wrong.
pub(crate) fn post_receive(world: &mut World, end: &mut End) -> Result<(), PostRecvError> {
    let Some(slot) = end.buffers.free.pop_front() else { return Ok(()) };
    let wr_id = WrId(RECEIVE | u64::from(end.generation) << 32 | u64::from(slot));
    let sge = end.buffers.sge(&end.mr, slot);
    let posted = world.post_recv(end.host, end.side.qpn, &RecvWr { wr_id, sges: &[sge] });
    match posted {
        Ok(()) => {
            end.buffers.posted += 1;
            end.buffers.ever += 1;
        }
        Err(_) => end.buffers.free.push_front(slot),
    }
    posted
}

/// An asynchronous event, with its time and place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub(crate) at: Instant,
    pub(crate) host: HostId,
    pub(crate) event: AsyncEvent,
}

/// A scenario while it runs, and what is left of it afterwards.
#[derive(Debug)]
pub(crate) struct Lab<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) world: World,
    pub(crate) hosts: Vec<HostId>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) timeline: Timeline,
    pub(crate) events: Vec<Heard>,
    pub(crate) deeds: Deeds,
    batches: Vec<Vec<usize>>,
    curtain: bool,
}

impl<'a> Lab<'a> {
    /// The world of a scenario, before anything has happened.
    pub(crate) fn new(
        scenario: &'a Scenario,
        seed: u64,
        records: bool,
    ) -> Result<Self, SetupError> {
        let Built { world, conns, pools, batches } = build::build(scenario, seed, records)?;
        let hosts: Vec<HostId> = world.hosts().collect();
        let mut timeline = Timeline::default();
        for (index, fault) in scenario.faults.iter().enumerate() {
            timeline.enter(build::START.after(fault.at), Action::Begin(index));
        }
        for (index, work) in scenario.works.iter().enumerate() {
            timeline.enter(build::START.after(work.at), Action::Work { work: index, from: 0 });
        }
        let deeds = Deeds::new(hosts.len());
        let (events, curtain) = (Vec::new(), false);
        Ok(Self { scenario, world, hosts, conns, pools, timeline, events, deeds, batches, curtain })
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self) {
        let limit = build::START.after(self.scenario.limit);
        loop {
            self.collect();
            let recovery = self.recovery_due();
            let own = [self.timeline.next_at(), recovery].into_iter().flatten().min();
            let world = self.world.next_at();
            let Some(next) = [own, world].into_iter().flatten().min().filter(|at| *at <= limit)
            else {
                self.world.run_to(limit);
                self.collect();
                return;
            };
            if own.is_none_or(|own| world.is_some_and(|world| world < own)) {
                self.world.step();
                continue;
            }
            self.world.run_to(next);
            if recovery == Some(next) {
                self.recovery_timeouts();
                continue;
            }
            match self.timeline.pop() {
                Some(Action::Curtain) => {
                    self.curtain = false;
                    if self.is_quiet() {
                        return;
                    }
                }
                Some(action) => self.act(action),
                None => {}
            }
        }
    }

    fn is_quiet(&self) -> bool {
        !self.timeline.has_plans() && self.conns.iter().all(Conn::is_quiet)
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Work { work, from } => self.work(work, from),
            Action::Begin(fault) => self.begin(fault),
            Action::End(fault) => self.cease(fault),
            Action::Deliver { conn, end, message, from } => self.deliver(conn, end, message, from),
            Action::Refill { pool, slot } => self.refill(pool, slot),
            Action::Curtain => {}
        }
    }

    // Work ------------------------------------------------------------------------------------

    fn work(&mut self, index: usize, from: usize) {
        let work = &self.scenario.works[index];
        let now = self.world.now();
        if from == 0 {
            for _ in 0..work.post_recv {
                // Only a dead device takes none, and its event has said so.
                let end = &mut self.conns[work.qp].ends[FAR];
                if post_receive(&mut self.world, end).is_err() {
                    break;
                }
            }
        }
        let batch = &self.batches[index];
        let backlog = &mut self.conns[work.qp].backlog;
        match work.every {
            None => backlog.extend(batch),
            Some(every) => {
                backlog.extend(batch.get(from));
                if from + 1 < batch.len() {
                    let next = Action::Work { work: index, from: from + 1 };
                    self.timeline.enter(now.after(every), next);
                }
            }
        }
        self.feed(work.qp);
    }

    /// Posts as much as the queue takes.
    pub(crate) fn feed(&mut self, index: usize) {
        let plan = &self.scenario.qps[index];
        let now = self.world.now();
        let conn = &mut self.conns[index];
        if conn.degraded {
            if plan.policy == Policy::None || conn.gave_up {
                conn.refuse_backlog(now);
            }
            return;
        }
        while conn.in_flight < plan.depth
            && let Some(request) = conn.backlog.pop_front()
        {
            conn.first_post.get_or_insert(now);
            if post(&mut self.world, conn, request, plan.qkey) {
                conn.requests[request].flying = true;
                conn.in_flight += 1;
            } else {
                conn.end(now, request, Fate::Refused);
            }
        }
    }

    fn refill(&mut self, pool: usize, slot: u32) {
        let pool = &mut self.pools[pool];
        pool.buffers.free.push_back(slot);
        // A queue that failed takes no more, and its event has said so.
        if !self.deeds.stops_receives(pool.host, None) && pool.fill(&mut self.world).is_err() {
            pool.buffers.free.clear();
        }
    }

    // What comes back -------------------------------------------------------------------------

    /// Takes everything that has completed or happened.
    fn collect(&mut self) {
        for index in 0..self.hosts.len() {
            let host = self.hosts[index];
            while let Some(event) = self.world.poll_event(host) {
                self.heard(host, event);
            }
        }
        for conn in 0..self.conns.len() {
            for end in [NEAR, FAR] {
                let End { host, side, .. } = self.conns[conn].ends[end];
                if self.deeds.stops_polls(host) {
                    continue;
                }
                while let Some(completion) = self.world.poll_cq(host, side.send_cq) {
                    self.completed(host, completion);
                }
            }
        }
        self.recovery_progress();
        if !self.curtain && self.is_quiet() {
            self.curtain = true;
            let at = self.world.now().after(limits::AFTERMATH);
            self.timeline.enter(at, Action::Curtain);
        }
    }

    fn completed(&mut self, host: HostId, completion: Completion) {
        let of = |conn: &Conn| {
            let matches = |end: &End| end.host == host && end.side.qpn == completion.qpn;
            conn.ends.iter().position(matches)
        };
        let found = (0..self.conns.len()).find_map(|index| Some((index, of(&self.conns[index])?)));
        let Some((conn, end)) = found else { return };
        if completion.wr_id.0 & RECEIVE == 0 {
            self.sent(conn, &completion);
        } else {
            self.received(conn, end, &completion);
        }
    }

    fn sent(&mut self, index: usize, completion: &Completion) {
        let now = self.world.now();
        let conn = &mut self.conns[index];
        let request = low(completion.wr_id) as usize;
        let is_late = completion.wr_id.0 >> 32 != u64::from(conn.ends[NEAR].generation);
        if is_late || !conn.requests[request].flying {
            // Its request has ended already, by an event or a recovery: it changes nothing.
            return;
        }
        conn.in_flight -= 1;
        conn.end(now, request, Fate::Completed(completion.status));
        if completion.status == WcStatus::Success {
            for end in &mut conn.ends {
                end.recovery.as_mut().map(|recovery| recovery.handle_progress(now.0));
            }
            self.feed(index);
            return;
        }
        if conn.scene.is_none() && completion.status != WcStatus::WrFlush {
            let attrs = [NEAR, FAR].map(|end| build::attr(&self.world, &conn.ends[end]));
            conn.scene = Some(Scene { request, status: completion.status, attrs });
        }
        self.fail(index, NEAR);
    }

    /// An end noticed that its queue pair failed.
    pub(crate) fn fail(&mut self, index: usize, end: usize) {
        let now = self.world.now();
        let conn = &mut self.conns[index];
        conn.failed_at.get_or_insert(now);
        if end == NEAR || conn.ends[end].recovery.is_some() {
            conn.degraded = true;
        }
        self.recovery_failure(index, end);
        self.feed(index);
    }

    fn received(&mut self, index: usize, end: usize, completion: &Completion) {
        let now = self.world.now();
        let conn = &mut self.conns[index];
        let slot = low(completion.wr_id);
        let pool = self.scenario.qps[index].srq.filter(|_| completion.wr_id.0 & POOLED != 0);
        let is_good = completion.status == WcStatus::Success;
        conn.receipts.push((now, completion.status));
        if is_good {
            let sge = match pool.map(|pool| &self.pools[pool]) {
                Some(pool) => pool.buffers.sge(&pool.mr, slot),
                None => conn.ends[end].buffers.sge(&conn.ends[end].mr, slot),
            };
            delivered(&self.world, conn, end, completion, sge.addr);
        }
        if let Some(pool) = pool {
            self.pools[pool].buffers.posted -= 1;
            let at = now.after(self.pools[pool].hold);
            self.timeline.enter(at, Action::Refill { pool, slot });
        } else {
            let this = &mut conn.ends[end];
            this.buffers.posted = this.buffers.posted.saturating_sub(1);
            this.buffers.free.push_back(slot);
            let posts = is_good
                && self.scenario.qps[index].repost
                && !self.deeds.stops_receives(this.host, Some(index));
            if posts && post_receive(&mut self.world, this).is_err() {
                // Only a dead device takes none.
                self.fail(index, end);
            }
        }
        if !is_good {
            self.fail(index, end);
        }
    }

    fn heard(&mut self, host: HostId, event: AsyncEvent) {
        let at = self.world.now();
        self.events.push(Heard { at, host, event });
        if !event.is_fatal() {
            return;
        }
        for index in 0..self.conns.len() {
            for end in [NEAR, FAR] {
                let this = &self.conns[index].ends[end];
                if this.host != host || !concerns(event.scope(), this) {
                    continue;
                }
                if end == NEAR && !event.leaves_completions() {
                    self.conns[index].abandon(at);
                }
                self.fail(index, end);
            }
        }
    }
}

/// The part of a work request's number that says which one it is.
fn low(wr_id: WrId) -> u32 {
    u32::try_from(wr_id.0 & u64::from(u32::MAX)).unwrap_or_default()
}

/// Whether the scope of an event takes in an end of its host.
pub(crate) fn concerns(scope: EventScope, end: &End) -> bool {
    match scope {
        EventScope::Qp(qpn) => end.side.qpn == qpn,
        EventScope::Cq(cq) => end.cqs().contains(&cq),
        EventScope::Srq(srqn) => end.side.plan.srq == Some(srqn),
        EventScope::Port(_) | EventScope::Device => true,
        EventScope::Wq(_) => false,
    }
}
