//! One lcore of the software NIC.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pmd_record::Recorded;
use pmd_roce::cm::Cm;
use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::ids::{Gid, Instant};
use pmd_roce::qp::attr::ModifyQpError;
use pmd_roce::qp::state::QpState;
use pmd_wire::{JoinError, RxVerdict, Wire};

use super::alarm::{Alarm, Bell};
use super::cq::Cqs;
use super::handover::Handover;
use super::memory::TableMemory;
use super::peers::Peers;
use super::wire::{LastFlow, WireSink, frame, verdict};
use crate::event::{Event, Register};
use crate::journal::Journal;
use crate::provider::QpAt;
use crate::qp::JoinGroupError;
use crate::survey::Roll;
use crate::transition::Attempt;

/// Events kept for a consumer that does not take them; the oldest go first.
const MAX_EVENTS: usize = 4096;
/// How often a sleeper looks after what has no descriptor: a full socket, frames that another lcore hands over, and what a
/// peer that shares memory shows in its page while something is under way to it.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How long frames, deadlines and events may wait while an lcore polls shared memory without rest and
/// nothing else has had anything to do, in nanoseconds.
const LOOK_EVERY: u64 = 1000;
/// Polls between two that read the clock, for callers that have no time of their own.
const QUICK_POLLS: u32 = 15;
/// Who polls less often than this, in nanoseconds, needs the clock each time.
const RESTLESS: u64 = 2000;

/// An engine with everything that its traits ask for.
pub(crate) struct Core {
    pub(crate) engine: Recorded,
    pub(crate) cqs: Cqs,
    pub(crate) memory: TableMemory,
    pub(crate) peers: Peers,
    pub(crate) wire: Option<Box<dyn Wire>>,
    last_flow: LastFlow,
    pub(crate) handover: Handover,
    /// Manages the connections of the device, where this lcore does.
    pub(crate) cm: Option<Box<Cm>>,
    /// Rung when the manager has an event, for whoever sleeps until then.
    pub(crate) cm_bell: Option<Rc<Bell>>,
    pub(crate) events: VecDeque<AsyncEvent>,
    pub(crate) lost_events: u64,
    /// What is known of queue pairs beside what the engine knows.
    pub(crate) roll: Roll,
    /// Events that consumers took and did not acknowledge yet.
    pub(crate) taken: Arc<Register>,
    /// Multicast groups that the wire is in, and how many queue pairs are in each.
    groups: Vec<(Gid, u32)>,
    /// For whoever sleeps on a channel; made with the first one.
    alarm: Option<Alarm>,
    /// The lcore's loop makes progress, so that polling a queue need not.
    pub(crate) driven: bool,
    /// Until then, turns do what shared memory needs, and no more. It answers in less time than
    /// anything else takes to be looked at.
    look_at: Instant,
    /// Polls left before the next one that reads the clock.
    quick: u32,
    /// Polls without a clock between the last that read it and the next.
    skipped: u32,
    /// Frames that came or went in this turn.
    frames: usize,
    pub(crate) now: Instant,
    journal: Journal,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("wire", &self.wire.as_ref().map(|w| w.name()))
            .finish_non_exhaustive()
    }
}

/// What a [`Core`] is put together from.
pub(crate) struct CoreParts {
    pub(crate) engine: Recorded,
    pub(crate) memory: TableMemory,
    pub(crate) peers: Peers,
    pub(crate) wire: Option<Box<dyn Wire>>,
    pub(crate) handover: Handover,
    pub(crate) journal: Journal,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Self {
        let CoreParts { engine, memory, peers, wire, handover, journal } = parts;
        Self {
            engine,
            cqs: Cqs::default(),
            memory,
            peers,
            wire,
            last_flow: LastFlow::new(),
            handover,
            cm: None,
            cm_bell: None,
            events: VecDeque::with_capacity(MAX_EVENTS),
            lost_events: 0,
            roll: Roll::default(),
            taken: Arc::default(),
            groups: Vec::new(),
            alarm: None,
            driven: false,
            look_at: Instant::default(),
            quick: 0,
            skipped: 0,
            frames: 0,
            now: Instant::default(),
            journal,
        }
    }

    /// A poll by a caller without a loop; the clock is read where it is needed. To read it takes longer
    /// than to look at shared memory, so that most polls of an lcore that does nothing else go without.
    #[inline]
    pub(crate) fn nudge(&mut self, clock: impl FnOnce() -> Instant) -> usize {
        if self.driven {
            return 0;
        }
        if self.quick == 0 || self.engine.has_packets() {
            return self.timed(clock());
        }
        self.quick -= 1;
        self.progress(self.now)
    }

    #[inline(never)]
    fn timed(&mut self, now: Instant) -> usize {
        let polls = 1 + u64::from(core::mem::take(&mut self.skipped));
        let restless = now.0.saturating_sub(self.now.0) < RESTLESS * polls;
        self.look_at = Instant::default();
        let work = self.progress(now);
        if restless && self.look_at > now {
            (self.quick, self.skipped) = (QUICK_POLLS, QUICK_POLLS);
        }
        work
    }

    /// One turn: receive, run timers, send, ring one doorbell. Returns how much was done.
    #[inline]
    pub(crate) fn progress(&mut self, now: Instant) -> usize {
        let work = self.receive(now);
        work + self.transmit(now)
    }

    /// The first half of a turn, before the applications of the lcore run.
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant) -> usize {
        let Self { engine, cqs, memory, peers, .. } = self;
        let work = peers.receive(now, engine, memory, cqs);
        if now < self.look_at { work } else { work + self.look(now) }
    }

    /// Takes in frames, and runs timers.
    #[inline(never)]
    fn look(&mut self, now: Instant) -> usize {
        self.now = now;
        let Self { engine, cqs, memory, wire, handover, .. } = self;
        self.frames = 0;
        if let Some(wire) = wire {
            self.frames += wire.rx_burst(now.0, &mut |rx| {
                let frame = frame(&rx);
                if handover.divert(&frame) {
                    // Its lcore judges it; until then, the identification is as good as its guess.
                    return RxVerdict { ip_id: rx.ip_id.value(), dropped: None, rest: 0 };
                }
                verdict(engine.handle_frame(now, &frame, memory, cqs))
            });
            self.frames += handover.receive(|frame| {
                engine.handle_frame(now, frame, memory, cqs);
            });
        }
        engine.handle_timeout(now, memory, cqs);
        self.receive_mads(now);
        let Self { engine, peers, .. } = self;
        // A queue pair that failed here must be seen to have failed before its completions are.
        engine.publish(peers);
        self.frames
    }

    /// The second half: what engine and applications want sent.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Instant) -> usize {
        if now >= self.look_at || self.engine.has_packets() {
            return self.transmit_all(now);
        }
        let Self { engine, cqs, memory, peers, .. } = self;
        let work = engine.poll_local(memory, peers, cqs);
        if engine.has_events() {
            self.collect_events();
        }
        work
    }

    #[inline(never)]
    fn transmit_all(&mut self, now: Instant) -> usize {
        self.post_mads();
        let Self { engine, cqs, memory, peers, wire, last_flow, .. } = self;
        let dyn_wire = wire.as_deref_mut().map(|wire| wire as &mut dyn Wire);
        let mut sink = WireSink::new(dyn_wire, last_flow);
        let work = engine.poll_transmit(now, memory, &mut sink, peers, cqs);
        self.frames += sink.sent;
        if let Some(wire) = wire {
            wire.flush(now.0);
        }
        self.collect_events();
        if self.alarm.is_some() {
            self.set_alarm(now);
        }
        self.look_at = if self.is_quiet() { Instant(now.0 + LOOK_EVERY) } else { Instant(0) };
        work
    }

    /// Whether shared memory is all that this lcore works with at the moment. Who may sleep needs the
    /// alarm set in each turn.
    fn is_quiet(&self) -> bool {
        let is_sent = |wire: &dyn Wire| wire.pending() == 0;
        self.frames == 0
            && self.alarm.is_none()
            && self.peers.has_links()
            && self.wire.as_deref().is_none_or(is_sent)
    }

    /// The time of a command. An lcore's loop has read the clock in this turn.
    pub(crate) fn time(&self, clock: impl FnOnce() -> Instant) -> Instant {
        if self.driven { self.now } else { clock() }
    }

    /// State of a queue pair that a handle keeps alive.
    pub(crate) fn state(&self, qp: QpAt) -> QpState {
        self.engine.qp_state(qp.qpn).expect("a handle keeps its queue pair alive")
    }

    pub(crate) fn modify(
        &mut self,
        now: Instant,
        qp: QpAt,
        attempt: &Attempt<'_>,
    ) -> Result<(), ModifyQpError> {
        // What it fell into before comes before.
        self.note_transitions(now);
        let Attempt { from, attr, mask, .. } = *attempt;
        let qpn = qp.qpn;
        let Self { engine, cqs, memory, peers, roll, .. } = self;
        let result = engine.modify_qp(now, qpn, attr, mask, memory, cqs);
        self.journal.attempt(now, attempt, &result);
        result?;
        roll.moves(qpn, from, attr, mask);
        // Peers must see the new state before the caller acts on it.
        engine.publish(peers);
        self.collect_events();
        Ok(())
    }

    /// Writes down what queue pairs fell into by themselves.
    #[inline]
    fn note_transitions(&mut self, now: Instant) {
        if self.engine.has_transitions() {
            self.write_transitions(now);
        }
    }

    #[cold]
    fn write_transitions(&mut self, now: Instant) {
        while let Some(transition) = self.engine.poll_transition() {
            self.journal.fell(&transition);
        }
        match self.engine.take_lost_transitions() {
            0 => {}
            lost => self.journal.lost(now, lost),
        }
    }

    /// Destroys a queue pair whose handle ends.
    pub(crate) fn destroy_qp(&mut self, qp: QpAt) {
        let qpn = qp.qpn;
        if let (Some(view), Some(stats)) = (self.query_qp(qpn), self.query_qp_stats(qpn)) {
            self.roll.leave(qpn, &view, stats, self.now);
        }
        let destroyed = self.engine.destroy_qp(qpn);
        debug_assert!(
            destroyed.is_ok(),
            "the handle detached it from its groups and nobody else destroys it"
        );
        // Who takes events later shall not learn of it.
        self.forget(EventScope::Qp(qpn));
        self.engine.publish(&mut self.peers);
    }

    /// Drops the events about an object that is no more.
    pub(crate) fn forget(&mut self, scope: EventScope) {
        self.events.retain(|event| event.scope() != scope);
    }

    /// Runs a command that fails or changes something of the device, and shows peers what came of it.
    pub(crate) fn command<R>(&mut self, act: impl FnOnce(&mut Recorded, &mut Cqs) -> R) -> R {
        let result = act(&mut self.engine, &mut self.cqs);
        self.engine.publish(&mut self.peers);
        self.collect_events();
        result
    }

    /// Fails the device: no completion comes any more.
    pub(crate) fn fail_device(&mut self) {
        self.command(|engine, cqs| engine.fail_device(cqs));
    }

    /// The oldest event that nobody took yet; it is to be acknowledged.
    pub(crate) fn get_event(&mut self) -> Option<Event> {
        self.events.pop_front().map(|event| self.taken.hand_out(event))
    }

    fn collect_events(&mut self) {
        self.note_transitions(self.now);
        while let Some(event) = self.engine.poll_event() {
            if let AsyncEvent::CommEst(qpn) = event {
                self.note_communication(qpn);
            }
            if self.events.len() == MAX_EVENTS {
                self.events.pop_front();
                self.lost_events += 1;
            }
            self.events.push_back(event);
        }
    }

    /// The oldest event that `wanted` takes.
    pub(crate) fn take_event(
        &mut self,
        wanted: &dyn Fn(&AsyncEvent) -> bool,
    ) -> Option<AsyncEvent> {
        let at = self.events.iter().position(wanted)?;
        self.events.remove(at)
    }

    /// When this lcore wants its next turn although nothing arrives.
    pub(crate) fn next_timeout(&mut self) -> Option<Instant> {
        let wire = self.wire.as_ref().and_then(|wire| wire.poll_timeout()).map(Instant);
        [self.engine.poll_timeout(), self.next_management(), wire].into_iter().flatten().min()
    }

    /// What wakes a sleeper at the device's next deadline.
    pub(crate) fn alarm(&mut self) -> io::Result<&Alarm> {
        if self.alarm.is_none() {
            self.alarm = Some(Alarm::new()?);
            // From now on it is set in each turn.
            self.look_at = Instant::default();
            self.quick = 0;
        }
        self.alarm.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Wakes a sleeper at once.
    pub(crate) fn wake(&mut self, now: Instant) {
        if let Some(alarm) = &mut self.alarm {
            alarm.set(now, Some(now));
        }
    }

    fn set_alarm(&mut self, now: Instant) {
        let due = self.next_timeout();
        let has_no_descriptor = (self.peers.has_links() && due.is_some())
            || self
                .wire
                .as_ref()
                .is_some_and(|wire| self.handover.is_shared() || wire.pending() > 0);
        let look = has_no_descriptor.then(|| now.after(LOOK_AGAIN));
        let wanted = [due, look].into_iter().flatten().min();
        if let Some(alarm) = &mut self.alarm {
            alarm.set(now, wanted);
        }
    }

    /// Makes a queue pair a member of a group, and the wire with the first member.
    pub(crate) fn join(&mut self, qp: QpAt, group: Gid) -> Result<(), JoinGroupError> {
        let qpn = qp.qpn;
        let Some(wire) = &mut self.wire else {
            return Err(JoinGroupError::Wire(JoinError::Unsupported("shared-memory").to_string()));
        };
        self.engine.attach_multicast(qpn, group)?;
        if let Some((_, members)) = self.groups.iter_mut().find(|(known, _)| *known == group) {
            *members += 1;
            return Ok(());
        }
        if let Err(error) = wire.join(group.ip()) {
            self.engine.detach_multicast(qpn, group)?;
            return Err(JoinGroupError::Wire(error.to_string()));
        }
        self.groups.push((group, 1));
        Ok(())
    }

    /// Ends a membership, and the wire's with the last one.
    pub(crate) fn leave(&mut self, qp: QpAt, group: Gid) -> Result<(), JoinGroupError> {
        let qpn = qp.qpn;
        self.engine.detach_multicast(qpn, group)?;
        let Some(at) = self.groups.iter().position(|(known, _)| *known == group) else {
            return Ok(());
        };
        self.groups[at].1 -= 1;
        if self.groups[at].1 == 0 {
            self.groups.swap_remove(at);
            let left = self.wire.as_mut().map_or(Ok(()), |wire| wire.leave(group.ip()));
            left.map_err(|error| JoinGroupError::Wire(error.to_string()))?;
        }
        Ok(())
    }
}
