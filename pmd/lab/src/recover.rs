//! Bringing a connection back: [`pmd_ledger::recovery`] decides, this does.
//!
//! The control channel is an ideal one: what it carries arrives, [`limits::CONTROL_DELAY`] later, unless the host that it
//! goes to is dead. A host that has no turn hears it when it has one again.

use core::time::Duration;

use pmd_ledger::recovery::{Action, Failure, Heard, Message, Policy, Recovery, Role, Stage};
use pmd_roce::ids::{Instant, Psn};
use pmd_roce::qp::state::QpState;

use crate::build;
use crate::connection::{Conn, FAR, Introduction, NEAR, Request};
use crate::limits;
use crate::run::{Lab, post_receive};
use crate::timeline::Action as Planned;

/// Gives both ends of a connection that stands a recovery.
pub(crate) fn arm(conn: &mut Conn) {
    for (end, role) in [(NEAR, Role::Leads), (FAR, Role::Follows)] {
        conn.ends[end].recovery = Some(Recovery::new(role, 1, Policy::default()));
    }
}

const fn other(end: usize) -> usize {
    if end == NEAR { FAR } else { NEAR }
}

impl Lab<'_> {
    /// When a recovery has something to do by time alone.
    pub(crate) fn recovery_due(&self) -> Option<Instant> {
        let ends = self.conns.iter().flat_map(|conn| &conn.ends);
        let due = ends.filter_map(|end| end.recovery.as_ref()?.poll_timeout()).min()?;
        Some(Instant(due).max(self.world.now()))
    }

    /// Runs the recoveries whose time has come.
    pub(crate) fn recovery_timeouts(&mut self) {
        let now = self.world.now();
        for conn in 0..self.conns.len() {
            for end in [NEAR, FAR] {
                let due = self.conns[conn].ends[end].recovery.as_ref();
                if due.and_then(Recovery::poll_timeout).is_some_and(|due| due <= now.0) {
                    self.tell(conn, end, |recovery, random| recovery.handle_timeout(now.0, random));
                }
            }
        }
    }

    /// Gives a recovery an input, and does what it wants.
    fn tell<R>(
        &mut self,
        conn: usize,
        end: usize,
        input: impl FnOnce(&mut Recovery, u64) -> R,
    ) -> Option<R> {
        let recovery = self.conns[conn].ends[end].recovery.as_mut()?;
        let result = input(recovery, self.world.rng().bits());
        self.recover(conn, end);
        Some(result)
    }

    /// An end has failed.
    pub(crate) fn recovery_failure(&mut self, conn: usize, end: usize) {
        let now = self.world.now();
        self.tell(conn, end, |recovery, random| {
            recovery.handle_failure(now.0, random, Failure::QueuePair);
        });
    }

    /// Nothing may be in flight any more where something was.
    pub(crate) fn recovery_progress(&mut self) {
        let now = self.world.now();
        for index in 0..self.conns.len() {
            for end in [NEAR, FAR] {
                let conn = &self.conns[index];
                let is_empty =
                    conn.ends[end].buffers.posted == 0 && (end == FAR || conn.in_flight == 0);
                let stage = conn.ends[end].recovery.as_ref().map(Recovery::stage);
                if is_empty && stage == Some(Stage::Draining) {
                    self.tell(index, end, |recovery, random| {
                        recovery.handle_drained(now.0, random);
                    });
                }
            }
        }
    }

    /// A message of the control channel arrives.
    pub(crate) fn deliver(
        &mut self,
        conn: usize,
        end: usize,
        message: Message,
        from: Introduction,
    ) {
        let now = self.world.now();
        let host = self.conns[conn].ends[end].host;
        if self.deeds.dead.contains(&host) {
            return;
        }
        let hears_at = self.deeds.paused_until[host.index()];
        if hears_at > now {
            self.timeline.enter(hears_at, Planned::Deliver { conn, end, message, from });
            return;
        }
        let random = self.world.rng().bits();
        let this = &mut self.conns[conn].ends[end];
        let Some(recovery) = &mut this.recovery else { return };
        let heard = recovery.handle_message(now.0, random, message);
        if heard == Heard::Accepted {
            this.peer = from;
        }
        self.recover(conn, end);
    }

    /// Does what the recovery of an end wants.
    fn recover(&mut self, conn: usize, end: usize) {
        while let Some(action) =
            self.conns[conn].ends[end].recovery.as_mut().and_then(Recovery::poll_action)
        {
            let done = self.perform(conn, end, action);
            let (now, random) = (self.world.now(), self.world.rng().bits());
            if !done && let Some(recovery) = &mut self.conns[conn].ends[end].recovery {
                recovery.handle_refusal(now.0, random, action);
            }
        }
    }

    /// Whether the device did it.
    fn perform(&mut self, index: usize, end: usize, action: Action) -> bool {
        let now = self.world.now();
        let conn = &mut self.conns[index];
        let this = &mut conn.ends[end];
        let (host, side) = (this.host, this.side);
        if self.deeds.dead.contains(&host) {
            return !matches!(action, Action::Recreate);
        }
        match action {
            Action::SetError => {
                conn.degraded = true;
                self.world.set_state(host, side.qpn, QpState::Error).is_ok()
            }
            Action::Abandon => {
                if end == NEAR {
                    conn.abandon(now);
                }
                forget_receives(conn, end);
                true
            }
            Action::Reset => {
                // What is late of the old connection is told apart by this.
                this.generation += 1;
                forget_receives(conn, end);
                self.world.set_state(host, side.qpn, QpState::Reset).is_ok()
            }
            Action::Recreate => self.recreate(index, end),
            Action::Dial => {
                if let Some(recovery) = &mut this.recovery {
                    recovery.handle_channel(now.0);
                }
                true
            }
            Action::Refresh => {
                this.side.plan.sq_psn = Psn::new(self.world.rng().bits32());
                let found = self.world.engine(host).find_gid(this.gid);
                this.sgid_index = found.map_or(this.sgid_index, |(_, index)| index);
                found.is_some()
            }
            Action::Init => self.world.to_init(side).is_ok(),
            Action::PostReceives => {
                if self.deeds.stops_receives(host, Some(index)) {
                    return true;
                }
                let wanted = this.buffers.usual;
                (0..wanted).all(|_| post_receive(&mut self.world, this).is_ok())
            }
            Action::Tell(message) => {
                let from = this.introduction();
                let at = now.after(limits::CONTROL_DELAY);
                let end = other(end);
                self.timeline.enter(at, Planned::Deliver { conn: index, end, message, from });
                true
            }
            Action::Rtr => {
                let route = self.scenario.qps[index].route;
                let far = conn.ends[other(end)].host;
                let this = &conn.ends[end];
                let av = build::address(&mut self.world, this, far, this.peer.gid, route);
                let (attr, mask) = this.side.rtr_attr(av, this.peer.qpn, this.peer.psn);
                self.world.modify_qp(host, side.qpn, &attr, mask).is_ok()
            }
            Action::Rts | Action::SqeToRts => self.world.to_rts(side).is_ok(),
            Action::Resume { took_ns, .. } => {
                if end == NEAR {
                    self.resume(index, Duration::from_nanos(took_ns));
                }
                true
            }
            Action::GiveUp { .. } => {
                conn.gave_up = true;
                conn.degraded = true;
                conn.refuse_backlog(now);
                true
            }
        }
    }

    fn recreate(&mut self, index: usize, end: usize) -> bool {
        let this = &mut self.conns[index].ends[end];
        let (host, old) = (this.host, this.side);
        let destroyed = self.world.destroy_qp(host, old.qpn).is_ok();
        match self.world.create_qp(host, old.plan) {
            Ok(side) => {
                this.side = side;
                destroyed
            }
            Err(_) => false,
        }
    }

    /// Goes on: what may be done twice is done again, in the order in which it was asked for; a SEND may have
    /// been delivered and an atomic done, so they stay as they ended.
    fn resume(&mut self, index: usize, took: Duration) {
        let conn = &mut self.conns[index];
        conn.recoveries.push(took);
        let now = self.world.now();
        conn.resumed_at.get_or_insert(now);
        let repeats = |request: &Request| {
            let failed = request.fate.is_some_and(|fate| !fate.is_success());
            failed && request.op.is_repeatable() && !request.bad_rkey && !request.bad_lkey
        };
        for request in (0..conn.requests.len()).rev() {
            if repeats(&conn.requests[request]) {
                conn.requests[request].fate = None;
                conn.backlog.push_front(request);
            }
        }
        conn.degraded = false;
        self.feed(index);
    }
}

/// RESET forgets what was posted; the buffers are the consumer's again.
fn forget_receives(conn: &mut Conn, end: usize) {
    let buffers = &mut conn.ends[end].buffers;
    let slots = u32::try_from(buffers.free.len()).unwrap_or(u32::MAX) + buffers.posted;
    buffers.free = (0..slots).collect();
    buffers.posted = 0;
}
