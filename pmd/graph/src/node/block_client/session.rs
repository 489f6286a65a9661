//! One connection of a client to its target.

use std::time::Duration;

use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::endpoint::{Endpoint, LocalKey, Op, Remote, RemoteKey, Rights, Settled, Token};

use super::slots::{Slots, Stage};
use super::{MORE_REQUESTS, nanoseconds};
use crate::block::{
    Held, Opened, Operation, Place, Post, Request, Status, forgotten, nonsense, refused,
};
use crate::edge::{Change, Dial, Line, Peer, Pulse};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::node::Record;
use crate::node::deadline::Deadline;
use crate::stream::Block;

/// What an operation was submitted for, in the upper half of its token; the lower half is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Purpose {
    Write = 1,
    Request = 2,
    Read = 3,
    Receive = 4,
}

impl Purpose {
    fn token(self, number: u32) -> Token {
        Token(u64::from(self as u32) << 32 | u64::from(number))
    }

    fn of(token: Token) -> (Option<Self>, u32) {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of a token")]
        let (purpose, number) = ((token.0 >> 32) as u32, token.0 as u32);
        let known = [Self::Write, Self::Request, Self::Read, Self::Receive];
        (known.into_iter().find(|known| *known as u32 == purpose), number)
    }
}

/// What a connection owns of the node's memory, before and after it is made.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) node: String,
    pub(super) post: Post,
    /// A buffer for each block in flight; `None` where nothing is read back.
    pub(super) read_back: Option<Extent>,
    /// Bytes from one of these buffers to the next.
    pub(super) stride: u64,
    /// How long a reply may take, where nothing else tells that it was lost.
    pub(super) patience: Option<Duration>,
    /// How long the target may be silent.
    pub(super) keep_alive: Duration,
    /// How long a block may be without its answer.
    pub(super) request_timeout: Duration,
}

impl Part {
    /// Registers the memory and posts a receive for every reply. Returns a reference to the buffers for what is read back.
    pub(super) fn equip(&self, endpoint: &mut dyn Endpoint) -> Result<Vec<u8>, Failure> {
        self.post.equip(endpoint, |number| Purpose::Receive.token(number))?;
        let Some(read_back) = &self.read_back else { return Ok(Vec::new()) };
        let key = endpoint.register(read_back.region())?;
        let rights = Rights { write: true, ..Rights::default() };
        let memory = endpoint.export(key, read_back.offset(), read_back.len(), rights)?;
        Ok(memory.0.into_vec())
    }
}

/// A connection over which blocks travel.
pub(super) struct Session {
    part: Part,
    line: Line,
    /// The region of messages and blocks.
    key: LocalKey,
    /// The region of what is read back.
    read_key: Option<LocalKey>,
    storage: RemoteKey,
    place: Place,
    capacity: u64,
    depth: u32,
    slots: Slots,
    /// Requests made so far.
    sequence: u64,
    goodbye: Goodbye,
    pulse: Pulse,
    deadline: Deadline,
    /// For how long the target's store had a request, in milliseconds, when the target said so last.
    store_ms: Option<u64>,
    /// Where the target stores.
    held: Held,
    /// Whether it has stored anything.
    has_stored: bool,
    /// The target's process is gone, and can be dialled again.
    gone: bool,
    settled: Vec<Settled>,
}

/// What outlives a target that is started again.
pub(super) struct Before {
    slots: Slots,
    sequence: u64,
    held: Held,
    has_stored: bool,
}

impl Before {
    /// Blocks that are not done.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Where the target had stored.
    pub(super) fn held(&self) -> Held {
        self.held
    }
}

/// How far the end of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    Unsaid,
    Said,
    Answered,
}

impl Session {
    /// A session that stores what the target `granted` in `storage`.
    pub(super) fn new(
        part: Part,
        mut line: Line,
        storage: RemoteKey,
        granted: &Opened,
        before: Option<Before>,
    ) -> Result<Self, Failure> {
        let key = line.endpoint().register(part.post.extent().region())?;
        let read_key = part.read_back.as_ref().map(|read| line.endpoint().register(read.region()));
        let depth = granted.depth.min(part.post.requests() - MORE_REQUESTS).max(1);
        let held = granted.held;
        let fresh = || Before { slots: Slots::new(depth), sequence: 0, held, has_stored: false };
        let before = before.unwrap_or_else(fresh);
        if before.slots.count() > depth as usize {
            let (peer, had) = (line.peer(), before.slots.count());
            let summary = format!("{peer} has come back with less room than it had");
            return Err(Failure::new(Code::Length, Owner::Config, summary)
                .because(format!("{had} blocks in flight before, {depth} now")));
        }
        if before.has_stored && before.held != held {
            return Err(forgotten(line.peer()));
        }
        let Before { slots, sequence, has_stored, .. } = before;
        let caps = line.caps();
        Ok(Self {
            key,
            read_key: read_key.transpose()?,
            storage,
            place: granted.place,
            capacity: granted.capacity,
            depth,
            slots,
            sequence,
            held,
            has_stored,
            gone: false,
            goodbye: Goodbye::Unsaid,
            pulse: Pulse::new(part.keep_alive),
            deadline: Deadline::new(part.request_timeout),
            store_ms: None,
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

    /// Blocks that are not done.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Whether one more block can be begun.
    pub(super) fn has_room(&self) -> bool {
        self.goodbye == Goodbye::Unsaid && self.line.is_up() && self.slots.has_free()
    }

    /// Takes a block on its way.
    pub(super) fn begin(&mut self, now: u64, block: Block) -> Result<(), Failure> {
        let end = block.offset.saturating_add(u64::from(block.len));
        if end > self.capacity {
            let (node, peer, capacity) = (&self.part.node, self.line.peer(), self.capacity);
            let summary = format!(
                "`{node}` has {end} bytes or more to store, and {peer} has room for {capacity}: raise memory.size there"
            );
            return Err(Failure::new(Code::Length, Owner::Config, summary).turn("memory.size"));
        }
        self.slots.begin(now, block);
        self.submit(now)
    }

    /// Takes in what was done and goes on with it. Returns how much was found.
    pub(super) fn run(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let mut settled = std::mem::take(&mut self.settled);
        let found = self.line.poll(now, &mut settled)?;
        for settled in settled.drain(..) {
            self.take_in(now, settled, record)?;
        }
        self.settled = settled;
        self.hear(now, record)?;
        self.submit(now)?;
        self.look_at_the_time(now)?;
        self.keep_alive(now)?;
        Ok(found)
    }

    /// Hears what has become of a connection that broke: a block that is not done is written again, as often as one likes.
    pub(super) fn hear(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        while let Some(change) = self.line.change() {
            match change {
                Change::Broken => {}
                Change::Renewed => {
                    let token = |number| Purpose::Receive.token(number);
                    self.part.post.renew(&mut self.line, now, self.key, token)?;
                }
                Change::Resumed { .. } => {
                    self.slots.begin_again();
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

    /// Dials the target again, with the blocks that are not done.
    pub(super) fn redial(self) -> Option<(Dial, Part, Before)> {
        let Self { slots, sequence, held, has_stored, part, line, .. } = self;
        Some((line.redial()?, part, Before { slots, sequence, held, has_stored }))
    }

    /// Says goodbye once nothing is in flight. Returns whether it was answered.
    pub(super) fn finish(&mut self, now: u64) -> Result<bool, Failure> {
        if self.goodbye == Goodbye::Unsaid && self.slots.is_idle() {
            let bye = Request {
                operation: Operation::Bye,
                tag: self.depth,
                sequence: self.sequence + 1,
                offset: 0,
                len: 0,
                crc32c: None,
            };
            if self.send(now, &bye)? {
                self.sequence += 1;
                self.goodbye = Goodbye::Said;
            }
        }
        self.line.doorbell();
        Ok(self.goodbye == Goodbye::Answered)
    }

    pub(super) fn doorbell(&mut self) {
        self.line.doorbell();
    }

    /// Ends the connection after a goodbye.
    pub(super) fn leave(self) {
        self.line.leave();
    }

    /// Ends the connection and tells the target why.
    pub(super) fn abort(mut self, verdict: &Verdict) {
        self.line.abort(verdict);
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        let reply = self.part.patience.zip(self.slots.oldest());
        let reply = reply.map(|(wait, began)| began.saturating_add(nanoseconds(wait)));
        let pulse = self.pulse.next_timeout().filter(|_| self.line.is_up());
        let waits = self.line.is_up() && self.slots.in_flight() > 0;
        let deadline = self.deadline.next_timeout().filter(|_| waits);
        [reply, pulse, deadline, self.line.next_timeout()].into_iter().flatten().min()
    }

    /// Submits what is ready, until the queue is full.
    fn submit(&mut self, now: u64) -> Result<(), Failure> {
        while let Some(index) = self.slots.ready() {
            let Some(slot) = self.slots.get(index) else { break };
            let Some(block) = &slot.block else { break };
            let (offset, len, crc32c) = (block.offset, block.len, block.crc32c);
            let (op, purpose, next) = match slot.stage {
                Stage::Write => {
                    let (extent, start) = block.buffer.place();
                    let from = extent.local(self.key, start, len);
                    let offset = match self.place {
                        Place::Store => offset,
                        Place::Buffers => u64::from(index) * self.part.stride,
                    };
                    let to = Remote { key: self.storage, offset };
                    (Op::Write { from, to, imm: None }, Purpose::Write, Stage::Commit)
                }
                Stage::Read if self.place == Place::Store => {
                    let (Some(read_back), Some(key)) = (&self.part.read_back, self.read_key) else {
                        break;
                    };
                    let into = read_back.local(key, u64::from(index) * self.part.stride, len);
                    let from = Remote { key: self.storage, offset };
                    (Op::Read { into, from }, Purpose::Read, Stage::Compare)
                }
                Stage::Commit | Stage::Read => {
                    let reads = slot.stage == Stage::Read;
                    let operation = if reads { Operation::Read } else { Operation::Commit };
                    let crc32c = crc32c.filter(|_| !reads);
                    let sequence = self.sequence + 1;
                    let request = Request { operation, tag: index, sequence, offset, len, crc32c };
                    if !self.send(now, &request)? {
                        break;
                    }
                    self.sequence = sequence;
                    if let Some(slot) = self.slots.get(index) {
                        slot.stage = if reads { Stage::Bytes } else { Stage::Reply };
                        slot.sequence = sequence;
                        slot.in_flight += 1;
                    }
                    self.slots.submitted();
                    continue;
                }
                Stage::Free | Stage::Reply | Stage::Bytes | Stage::Compare | Stage::Settle => {
                    self.slots.submitted();
                    continue;
                }
            };
            if !self.line.submit(now, op, purpose.token(index))? {
                break;
            }
            slot.stage = next;
            slot.in_flight += 1;
            if next == Stage::Compare {
                self.slots.submitted();
            }
        }
        Ok(())
    }

    /// Asks a silent target for a sign of life, and gives it up when none comes, or no answer of its store.
    fn keep_alive(&mut self, now: u64) -> Result<(), Failure> {
        if !self.line.is_up() {
            return Ok(());
        }
        let late = self.deadline.look(now, || self.slots.oldest());
        late.act(&self.line, &self.part.node, &mut self.store_ms, &mut self.pulse)?;
        if self.pulse.is_due(now) {
            let sequence = self.sequence + 1;
            let (operation, tag) = (Operation::KeepAlive, self.depth + 1);
            let request = Request { operation, tag, sequence, offset: 0, len: 0, crc32c: None };
            if self.send(now, &request)? {
                self.sequence = sequence;
                self.pulse.asked(now);
            }
        }
        self.pulse.check(now, &self.part.node, self.line.peer())
    }

    /// Sends a request. `false`: not now.
    fn send(&mut self, now: u64, request: &Request) -> Result<bool, Failure> {
        let token = Purpose::Request.token(request.tag);
        self.part.post.send(&mut self.line, now, self.key, request, token)
    }

    fn take_in(&mut self, now: u64, settled: Settled, record: &mut Record) -> Result<(), Failure> {
        match Purpose::of(settled.token) {
            (Some(Purpose::Receive), number) => self.reply(now, number, settled.len, record),
            (Some(Purpose::Read), index) => {
                if let Some(slot) = self.slots.get(index) {
                    slot.in_flight = slot.in_flight.saturating_sub(1);
                }
                self.compare(now, index, record)
            }
            (Some(Purpose::Write | Purpose::Request), index) => {
                if let Some(slot) = self.slots.get(index) {
                    slot.in_flight = slot.in_flight.saturating_sub(1);
                    self.slots.release(index);
                }
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    /// A reply came into the receive of this number.
    fn reply(
        &mut self,
        now: u64,
        number: u32,
        len: u32,
        record: &mut Record,
    ) -> Result<(), Failure> {
        let token = Purpose::Receive.token(number);
        let reply = self.part.post.take(&mut self.line, now, self.key, (number, len), token)?;
        self.pulse.heard(now);
        if reply.operation == Operation::KeepAlive {
            self.store_ms = Some(reply.value);
            return Ok(());
        }
        if reply.operation == Operation::Bye {
            if self.goodbye != Goodbye::Said {
                return Err(self.nonsense("a goodbye that nobody said was answered"));
            }
            self.goodbye = Goodbye::Answered;
            return Ok(());
        }
        let verify = self.part.read_back.is_some();
        let waiting = self
            .slots
            .get(reply.tag)
            .filter(|slot| matches!(slot.stage, Stage::Reply | Stage::Bytes))
            .filter(|slot| slot.sequence == reply.sequence);
        let Some((slot, block)) = waiting.and_then(|slot| {
            let block = slot.block.as_ref().map(|block| (block.offset, block.len));
            Some((slot, block?))
        }) else {
            return Err(self.nonsense("a request that nobody made was answered"));
        };
        if reply.status != Status::Ok {
            return Err(refused(&self.line, &reply, block));
        }
        if slot.stage == Stage::Bytes {
            return self.compare(now, reply.tag, record);
        }
        record.latency(now.saturating_sub(slot.began));
        self.has_stored = true;
        if verify {
            slot.stage = Stage::Read;
            self.slots.queue(reply.tag);
        } else {
            slot.stage = Stage::Settle;
            record.message(now, u64::from(block.1));
            self.slots.release(reply.tag);
        }
        Ok(())
    }

    /// The bytes of a block came back.
    fn compare(&mut self, now: u64, index: u32, record: &mut Record) -> Result<(), Failure> {
        let Some(slot) = self.slots.get(index) else { return Ok(()) };
        slot.stage = Stage::Settle;
        let (Some(block), Some(read_back)) = (&slot.block, &self.part.read_back) else {
            return Ok(());
        };
        let (sent, start) = block.buffer.place();
        let at = u64::from(index) * self.part.stride;
        let len = u64::from(block.len);
        if let Some(differs) = sent.mismatch(start, read_back, at, len)? {
            let (mut expected, mut found) = ([0], [0]);
            sent.read_at(start + differs, &mut expected)?;
            read_back.read_at(at + differs, &mut found)?;
            let byte = block.offset + differs;
            let ([expected], [found], peer) = (expected, found, self.line.peer());
            let summary = format!(
                "byte {byte} differs: {expected:#04x} was written, {found:#04x} was read back from {peer}"
            );
            let place = format!("in the block of {len} bytes at {}", block.offset);
            return Err(Failure::new(Code::DataMismatch, Owner::Remote, summary).because(place));
        }
        record.message(now, len);
        record.verified(len);
        self.slots.release(index);
        Ok(())
    }

    /// A lost message leaves no trace on an unreliable transport.
    fn look_at_the_time(&self, now: u64) -> Result<(), Failure> {
        let overdue = self.part.patience.zip(self.slots.oldest());
        let overdue =
            overdue.is_some_and(|(wait, began)| now.saturating_sub(began) >= nanoseconds(wait));
        if overdue {
            let peer = self.line.peer();
            let summary =
                format!("a message to or from {peer} was lost, and nothing sends it again");
            return Err(Failure::new(Code::LinkDead, Owner::Fabric, summary)
                .because("an unreliable transport has no acknowledgements")
                .turn(format!("node.{}.transport", self.part.node)));
        }
        Ok(())
    }

    fn nonsense(&self, what: &str) -> Failure {
        nonsense(&self.line, what)
    }
}
