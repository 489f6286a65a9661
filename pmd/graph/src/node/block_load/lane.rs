//! One connection of a load generator.

use std::collections::VecDeque;
use std::time::Duration;

use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::endpoint::{Endpoint, LocalKey, Op, Remote, RemoteKey, Rights, Settled, Token};

use super::stamp::Stamps;
use super::workload::{Action, Phase, Step, Workload};
use crate::block::{
    Held, Opened, Operation, Place, Post, Request, Status, forgotten, nonsense, refused,
};
use crate::edge::{Change, Dial, Line, Peer, Pulse};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::node::Record;
use crate::node::block_client::MORE_REQUESTS;
use crate::node::deadline::Deadline;

/// Marks the token of a receive; the others name their slot.
const RECEIVE: u64 = 1 << 32;

/// What a connection owns of the node's memory, before and after it is made.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The node's name.
    pub(super) node: String,
    /// How long the target may be silent.
    pub(super) keep_alive: Duration,
    /// How long a block may be without its answer.
    pub(super) request_timeout: Duration,
    /// Whether it matters what is stored.
    pub(super) verify: bool,
    pub(super) post: Post,
    /// A buffer for each request in flight.
    pub(super) blocks: Extent,
    /// Bytes from one buffer to the next.
    pub(super) stride: u64,
    /// Bytes of a block.
    pub(super) block: u32,
}

impl Part {
    /// Registers the memory and posts a receive for every reply. Returns a reference to the buffers.
    pub(super) fn equip(&self, endpoint: &mut dyn Endpoint) -> Result<Vec<u8>, Failure> {
        self.post.equip(endpoint, |number| Token(RECEIVE | u64::from(number)))?;
        let key = endpoint.register(self.blocks.region())?;
        let rights = Rights { write: true, ..Rights::default() };
        let memory = endpoint.export(key, self.blocks.offset(), self.blocks.len(), rights)?;
        Ok(memory.0.into_vec())
    }
}

/// A connection over which requests are made.
pub(super) struct Lane {
    part: Part,
    line: Line,
    messages_key: LocalKey,
    blocks_key: LocalKey,
    storage: RemoteKey,
    place: Place,
    /// Bytes that the target grants.
    capacity: u64,
    held: Held,
    pending: Pending,
    goodbye: Goodbye,
    pulse: Pulse,
    deadline: Deadline,
    /// For how long the target's store had a request, in milliseconds, when the target said so last.
    store_ms: Option<u64>,
    /// The target's process is gone, and can be dialled again.
    gone: bool,
    settled: Vec<Settled>,
}

/// What is asked of the target: it outlives a connection that breaks.
pub(super) struct Pending {
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Slots that have something to submit.
    ready: VecDeque<u32>,
    /// Requests made so far.
    sequence: u64,
    /// Whether the target has stored anything.
    has_stored: bool,
    /// Bytes that the target has granted.
    capacity: u64,
    /// Where the target has them.
    held: Option<Held>,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Slot {
    step: Step,
    stage: Stage,
    /// Operations that have not settled.
    in_flight: u8,
    sequence: u64,
    began: u64,
}

/// What a slot does next or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its WRITE is to be submitted.
    Write,
    /// Its request is to be submitted.
    Request,
    /// It waits for the reply.
    Reply,
    /// It waits for its own operations to settle, or is free.
    Settle,
}

impl Pending {
    fn new(depth: u32, capacity: u64) -> Self {
        let step = Step { action: Action::Flush, number: 0, generation: 0 };
        let slot = Slot { step, stage: Stage::Settle, in_flight: 0, sequence: 0, began: 0 };
        Self {
            slots: vec![slot; depth as usize].into_boxed_slice(),
            free: (0..depth).rev().collect(),
            ready: VecDeque::with_capacity(depth as usize),
            sequence: 0,
            has_stored: false,
            capacity,
            held: None,
        }
    }

    /// Requests that are not done.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// When the oldest was begun that is not answered.
    fn oldest(&self) -> Option<u64> {
        let waits = self.slots.iter().filter(|slot| slot.stage != Stage::Settle);
        waits.map(|slot| slot.began).min()
    }

    /// What the target had for them.
    pub(super) fn held(&self) -> Option<Held> {
        self.held
    }

    /// Nothing is under way on the new connection: what was not answered begins anew, what only had to settle has.
    fn ask_again(&mut self) {
        self.ready.clear();
        for (index, slot) in (0..).zip(&mut self.slots) {
            let settles = std::mem::take(&mut slot.in_flight) > 0;
            match slot.stage {
                Stage::Settle if settles => self.free.push(index),
                Stage::Settle => {}
                Stage::Write | Stage::Request | Stage::Reply => {
                    slot.stage = Stage::first(slot.step.action);
                    self.ready.push_back(index);
                }
            }
        }
    }
}

impl Stage {
    fn first(action: Action) -> Self {
        if action == Action::Write { Self::Write } else { Self::Request }
    }
}

/// How far the end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    Unsaid,
    Said,
    Answered,
}

/// What all connections share.
pub(super) struct Shared<'a> {
    pub(super) workload: &'a mut Workload,
    /// `None` where nothing is verified.
    pub(super) stamps: Option<&'a mut Stamps>,
    pub(super) record: &'a mut Record,
}

impl Lane {
    pub(super) fn new(
        part: Part,
        mut line: Line,
        storage: RemoteKey,
        granted: &Opened,
        before: Option<Pending>,
    ) -> Result<Self, Failure> {
        let messages_key = line.endpoint().register(part.post.extent().region())?;
        let blocks_key = line.endpoint().register(part.blocks.region())?;
        let depth = granted.depth.min(part.post.requests() - MORE_REQUESTS).max(1);
        let capacity = granted.capacity;
        let pending = before.unwrap_or_else(|| Pending::new(depth, capacity));
        if pending.slots.len() > depth as usize || pending.capacity > capacity {
            let (peer, had) = (line.peer(), (pending.slots.len(), pending.capacity));
            let summary = format!("{peer} has come back with less room than it had");
            let had = format!("{} requests in flight and {} bytes before", had.0, had.1);
            return Err(Failure::new(Code::Length, Owner::Config, summary).because(had));
        }
        if part.verify
            && pending.has_stored
            && pending.held.is_some_and(|held| held != granted.held)
        {
            return Err(forgotten(line.peer()));
        }
        let caps = line.caps();
        Ok(Self {
            messages_key,
            blocks_key,
            storage,
            place: granted.place,
            capacity,
            held: granted.held,
            pending,
            goodbye: Goodbye::Unsaid,
            pulse: Pulse::new(part.keep_alive),
            deadline: Deadline::new(part.request_timeout),
            store_ms: None,
            gone: false,
            settled: Vec::with_capacity((caps.depth + caps.recv_depth) as usize),
            part,
            line,
        })
    }

    pub(super) fn path(&self) -> &'static str {
        self.line.path()
    }

    pub(super) fn peer(&self) -> &Peer {
        self.line.peer()
    }

    /// Whether the target has said goodbye.
    pub(super) fn peer_left(&self) -> bool {
        self.line.peer_left()
    }

    /// Bytes that the target grants.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// Requests that are not done.
    pub(super) fn in_flight(&self) -> usize {
        self.pending.in_flight()
    }

    /// Dials the target again, whose process is gone, with what is still asked of it.
    pub(super) fn redial(self) -> Option<(Dial, Part, Pending)> {
        let held = Some(self.held);
        Some((self.line.redial()?, self.part, Pending { held, ..self.pending }))
    }

    /// Hears what has become of a connection that broke: what was not answered is asked again, since a block may be written
    /// and read as often as one likes.
    fn hear(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        while let Some(change) = self.line.change() {
            match change {
                Change::Broken => {}
                Change::Renewed => {
                    let token = |number| Token(RECEIVE | u64::from(number));
                    self.part.post.renew(&mut self.line, now, self.messages_key, token)?;
                }
                Change::Resumed { .. } => {
                    self.pending.ask_again();
                    self.goodbye = Goodbye::Unsaid;
                    self.pulse.heard(now);
                    self.deadline.renew(now);
                }
                Change::Recovered { took_ns } => record.recovered(took_ns),
                Change::PeerGone => self.gone = true,
            }
        }
        Ok(())
    }

    /// Whether the target's process is gone: [`redial`](Self::redial).
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        let up = self.line.is_up();
        let pulse = self.pulse.next_timeout().filter(|_| up);
        let waits = up && self.in_flight() > 0;
        let deadline = self.deadline.next_timeout().filter(|_| waits);
        [pulse, deadline, self.line.next_timeout()].into_iter().flatten().min()
    }

    /// Takes in what was done, and begins as much as there is room for. Returns how much was found.
    pub(super) fn run(&mut self, now: u64, shared: &mut Shared<'_>) -> Result<usize, Failure> {
        let mut settled = std::mem::take(&mut self.settled);
        let mut found = self.line.poll(now, &mut settled)?;
        for settled in settled.drain(..) {
            match settled.token.0.checked_sub(RECEIVE) {
                Some(number) => {
                    let number = u32::try_from(number).unwrap_or(u32::MAX);
                    self.reply(now, number, settled.len, shared)?;
                }
                None => self.settle(settled.token),
            }
        }
        self.settled = settled;
        self.hear(now, shared.record)?;
        self.submit(now, shared)?;
        while self.pending.ready.is_empty() && self.line.is_up() && !self.pending.free.is_empty() {
            let Some(step) = shared.workload.next() else { break };
            self.begin(now, step);
            self.submit(now, shared)?;
            found += 1;
        }
        self.keep_alive(now)?;
        self.line.doorbell();
        Ok(found)
    }

    /// Asks a silent target for a sign of life, and gives it up when none comes, or no answer of its store.
    fn keep_alive(&mut self, now: u64) -> Result<(), Failure> {
        if !self.line.is_up() {
            return Ok(());
        }
        let late = self.deadline.look(now, || self.pending.oldest());
        late.act(&self.line, &self.part.node, &mut self.store_ms, &mut self.pulse)?;
        if self.pulse.is_due(now) {
            let tag = u32::try_from(self.pending.slots.len()).unwrap_or(u32::MAX).saturating_add(1);
            let (operation, sequence) = (Operation::KeepAlive, self.pending.sequence + 1);
            let request = Request { operation, tag, sequence, offset: 0, len: 0, crc32c: None };
            let (post, key) = (&self.part.post, self.messages_key);
            if post.send(&mut self.line, now, key, &request, Token(u64::from(tag)))? {
                self.pending.sequence = sequence;
                self.pulse.asked(now);
            }
        }
        self.pulse.check(now, &self.part.node, self.line.peer())
    }

    /// Says goodbye, now that nothing is in flight. Returns whether it was answered.
    pub(super) fn finish(&mut self, now: u64) -> Result<bool, Failure> {
        if self.goodbye == Goodbye::Unsaid && self.is_idle() {
            let tag = u32::try_from(self.pending.slots.len()).unwrap_or(u32::MAX);
            let (operation, sequence) = (Operation::Bye, self.pending.sequence + 1);
            let bye = Request { operation, tag, sequence, offset: 0, len: 0, crc32c: None };
            let (post, key) = (&self.part.post, self.messages_key);
            if post.send(&mut self.line, now, key, &bye, Token(u64::from(tag)))? {
                self.pending.sequence = sequence;
                self.goodbye = Goodbye::Said;
            }
        }
        self.line.doorbell();
        Ok(self.goodbye == Goodbye::Answered)
    }

    /// Ends the connection after a goodbye.
    pub(super) fn leave(self) {
        self.line.leave();
    }

    /// Ends the connection and tells the target why.
    pub(super) fn abort(mut self, verdict: &Verdict) {
        self.line.abort(verdict);
    }

    fn begin(&mut self, now: u64, step: Step) {
        let Some(index) = self.pending.free.pop() else { return };
        let stage = Stage::first(step.action);
        self.pending.slots[index as usize] =
            Slot { step, stage, in_flight: 0, sequence: 0, began: now };
        self.pending.ready.push_back(index);
    }

    /// Submits what is ready, until the queue is full.
    #[inline]
    fn submit(&mut self, now: u64, shared: &mut Shared<'_>) -> Result<(), Failure> {
        while let Some(&index) = self.pending.ready.front() {
            let slot = &mut self.pending.slots[index as usize];
            let Step { action, number, generation } = slot.step;
            let offset = number * u64::from(self.part.block);
            if slot.stage == Stage::Write {
                let at = u64::from(index) * self.part.stride;
                if let Some(stamps) = &mut shared.stamps {
                    stamps.write(&self.part.blocks, at, number, generation)?;
                }
                let from = self.part.blocks.local(self.blocks_key, at, self.part.block);
                let offset = if self.place == Place::Store { offset } else { at };
                let to = Remote { key: self.storage, offset };
                let op = Op::Write { from, to, imm: None };
                if !self.line.submit(now, op, Token(u64::from(index)))? {
                    return Ok(());
                }
                slot.in_flight += 1;
                slot.stage = Stage::Request;
            }
            let (operation, offset, len) = match action {
                Action::Read => (Operation::Read, offset, self.part.block),
                Action::Write => (Operation::Commit, offset, self.part.block),
                Action::Flush => (Operation::Flush, 0, 0),
            };
            let sequence = self.pending.sequence + 1;
            let request = Request { operation, tag: index, sequence, offset, len, crc32c: None };
            let (post, token) = (&self.part.post, Token(u64::from(index)));
            if !post.send(&mut self.line, now, self.messages_key, &request, token)? {
                return Ok(());
            }
            self.pending.sequence = sequence;
            slot.sequence = sequence;
            slot.in_flight += 1;
            slot.stage = Stage::Reply;
            self.pending.ready.pop_front();
        }
        Ok(())
    }

    /// An operation of a slot has settled.
    #[inline]
    fn settle(&mut self, token: Token) {
        let Some(slot) =
            usize::try_from(token.0).ok().and_then(|at| self.pending.slots.get_mut(at))
        else {
            // The goodbye, or a keep-alive.
            return;
        };
        slot.in_flight = slot.in_flight.saturating_sub(1);
        if slot.in_flight == 0 && slot.stage == Stage::Settle {
            self.pending.free.push(u32::try_from(token.0).unwrap_or(0));
        }
    }

    /// A reply came into the receive of this number.
    #[inline]
    fn reply(
        &mut self,
        now: u64,
        number: u32,
        len: u32,
        shared: &mut Shared<'_>,
    ) -> Result<(), Failure> {
        let (post, token) = (&self.part.post, Token(RECEIVE | u64::from(number)));
        let reply = post.take(&mut self.line, now, self.messages_key, (number, len), token)?;
        self.pulse.heard(now);
        if reply.operation == Operation::KeepAlive {
            self.store_ms = Some(reply.value);
            return Ok(());
        }
        if reply.operation == Operation::Bye {
            if self.goodbye != Goodbye::Said {
                return Err(nonsense(&self.line, "a goodbye that nobody said was answered"));
            }
            if reply.status != Status::Ok {
                return Err(refused(&self.line, &reply, (0, 0)));
            }
            self.goodbye = Goodbye::Answered;
            return Ok(());
        }
        let waiting = self.pending.slots.get_mut(reply.tag as usize);
        let Some(slot) =
            waiting.filter(|slot| slot.stage == Stage::Reply && slot.sequence == reply.sequence)
        else {
            return Err(nonsense(&self.line, "a request that nobody made was answered"));
        };
        slot.stage = Stage::Settle;
        let Slot { step, in_flight, began, .. } = *slot;
        let block = u64::from(self.part.block);
        if reply.status != Status::Ok {
            let offset = step.number * block;
            return Err(refused(&self.line, &reply, (offset, self.part.block)));
        }
        if step.action == Action::Read
            && let Some(stamps) = &mut shared.stamps
        {
            let at = u64::from(reply.tag) * self.part.stride;
            let wrong = stamps.check(&self.part.blocks, at, step.number, step.generation)?;
            if let Some(wrong) = wrong {
                return Err(self.differs(step.number, wrong));
            }
            shared.record.verified(block);
        }
        if shared.workload.phase() == Phase::Work && step.action != Action::Flush {
            shared.record.latency(now.saturating_sub(began));
            shared.record.message(now, block);
        }
        self.pending.has_stored |= step.action == Action::Write;
        shared.workload.done(&step);
        if in_flight == 0 {
            self.pending.free.push(reply.tag);
        }
        Ok(())
    }

    fn differs(&self, number: u64, wrong: String) -> Failure {
        let (block, peer) = (self.part.block, self.line.peer());
        let offset = number * u64::from(block);
        let place = format!("in the block of {block} bytes at {offset}, read from {peer}");
        Failure::new(Code::DataMismatch, Owner::Remote, wrong).because(place)
    }
}
