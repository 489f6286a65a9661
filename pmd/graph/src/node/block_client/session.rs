//! One connection of a client to its target.

use std::time::Duration;

use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::endpoint::{Endpoint, Local, LocalKey, Op, Remote, RemoteKey, Settled, Token};

use super::slots::{Slots, Stage};
use super::{MORE_REQUESTS, nanoseconds};
use crate::block::{MESSAGE_BYTES, MESSAGE_LEN, Operation, Reply, Request, Status};
use crate::edge::{Line, Peer};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::node::Record;
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
    /// Receives for replies, then copies of requests.
    pub(super) messages: Extent,
    /// A buffer for each block in flight; `None` where nothing is read back.
    pub(super) read_back: Option<Extent>,
    /// Bytes of the largest block.
    pub(super) block: u64,
    /// How long a reply may take, where nothing else tells that it was lost.
    pub(super) patience: Option<Duration>,
}

impl Part {
    /// Registers the memory and posts a receive for every reply.
    pub(super) fn equip(&self, endpoint: &mut dyn Endpoint) -> Result<(), Failure> {
        let key = endpoint.register(self.messages.region())?;
        let replies = u32::try_from(self.messages.len() / MESSAGE_BYTES as u64 / 2);
        for number in 0..replies.unwrap_or(u32::MAX) {
            let into = self.receive(key, number);
            endpoint.submit(Op::Recv { into }, Purpose::Receive.token(number))?;
        }
        Ok(())
    }

    fn receive(&self, key: LocalKey, number: u32) -> Local {
        self.messages.local(key, u64::from(number) * u64::from(MESSAGE_LEN), MESSAGE_LEN)
    }
}

/// A connection over which blocks travel.
pub(super) struct Session {
    part: Part,
    line: Line,
    /// The region of messages, read-back buffers and blocks.
    key: LocalKey,
    storage: RemoteKey,
    capacity: u64,
    depth: u32,
    slots: Slots,
    /// Requests made so far.
    sequence: u64,
    goodbye: Goodbye,
    settled: Vec<Settled>,
}

/// How far the end of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    Unsaid,
    Said,
    Answered,
}

impl Session {
    /// A session that may store `capacity` bytes in `storage`, with `depth` requests in flight.
    pub(super) fn new(
        part: Part,
        mut line: Line,
        storage: RemoteKey,
        capacity: u64,
        depth: u32,
    ) -> Result<Self, Failure> {
        let key = line.endpoint().register(part.messages.region())?;
        let receives = u32::try_from(part.messages.len() / MESSAGE_BYTES as u64 / 2);
        let depth = depth.min(receives.unwrap_or(u32::MAX) - MORE_REQUESTS).max(1);
        let caps = line.caps();
        Ok(Self {
            key,
            storage,
            capacity,
            depth,
            slots: Slots::new(depth),
            sequence: 0,
            goodbye: Goodbye::Unsaid,
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
        self.submit(now)?;
        self.look_at_the_time(now)?;
        Ok(found)
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
        [reply, self.line.next_timeout()].into_iter().flatten().min()
    }

    /// Submits what is ready, until the queue is full.
    fn submit(&mut self, now: u64) -> Result<(), Failure> {
        while let Some(index) = self.slots.ready() {
            let Some(slot) = self.slots.get(index) else { break };
            let Some(block) = &slot.block else { break };
            let (extent, start) = block.buffer.place();
            let remote = Remote { key: self.storage, offset: block.offset };
            let (op, purpose, next) = match slot.stage {
                Stage::Write => {
                    let from = extent.local(self.key, start, block.len);
                    (Op::Write { from, to: remote, imm: None }, Purpose::Write, Stage::Commit)
                }
                Stage::Read => {
                    let Some(read_back) = &self.part.read_back else { break };
                    let at = u64::from(index) * self.part.block;
                    let into = read_back.local(self.key, at, block.len);
                    (Op::Read { into, from: remote }, Purpose::Read, Stage::Compare)
                }
                Stage::Commit => {
                    let request = Request {
                        operation: Operation::Commit,
                        tag: index,
                        sequence: self.sequence + 1,
                        offset: block.offset,
                        len: block.len,
                        crc32c: block.crc32c,
                    };
                    if !self.send(now, &request)? {
                        break;
                    }
                    self.sequence += 1;
                    let sequence = self.sequence;
                    if let Some(slot) = self.slots.get(index) {
                        slot.stage = Stage::Reply;
                        slot.sequence = sequence;
                        slot.in_flight += 1;
                    }
                    self.slots.submitted();
                    continue;
                }
                Stage::Free | Stage::Reply | Stage::Compare | Stage::Settle => {
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

    /// Sends a request, inline where the device can. `false`: not now.
    fn send(&mut self, now: u64, request: &Request) -> Result<bool, Failure> {
        let bytes = request.encode();
        let token = Purpose::Request.token(request.tag);
        if self.line.caps().inline >= MESSAGE_LEN {
            return self.line.submit(now, Op::SendInline { bytes: &bytes, imm: None }, token);
        }
        let copies = self.part.messages.len() / 2;
        let at = copies + u64::from(request.tag) * u64::from(MESSAGE_LEN);
        self.part.messages.write_at(at, &bytes)?;
        let from = self.part.messages.local(self.key, at, MESSAGE_LEN);
        self.line.submit(now, Op::Send { from, imm: None }, token)
    }

    fn take_in(&mut self, now: u64, settled: Settled, record: &mut Record) -> Result<(), Failure> {
        match Purpose::of(settled.token) {
            (Some(Purpose::Receive), number) => self.reply(now, number, settled.len, record),
            (Some(Purpose::Read), index) => self.compare(now, index, record),
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
        let mut bytes = [0; MESSAGE_BYTES];
        let at = u64::from(number) * u64::from(MESSAGE_LEN);
        self.part.messages.read_at(at, &mut bytes)?;
        let into = self.part.receive(self.key, number);
        self.line.submit(now, Op::Recv { into }, Purpose::Receive.token(number))?;
        let reply = Reply::decode(&bytes[..MESSAGE_BYTES.min(len as usize)])
            .map_err(|error| self.nonsense(&error.to_string()))?;
        if reply.operation == Operation::Bye {
            if self.goodbye != Goodbye::Said || reply.sequence != self.sequence {
                return Err(self.nonsense("a goodbye that nobody said was answered"));
            }
            self.goodbye = Goodbye::Answered;
            return Ok(());
        }
        let verify = self.part.read_back.is_some();
        let waiting = self
            .slots
            .get(reply.tag)
            .filter(|slot| slot.stage == Stage::Reply && slot.sequence == reply.sequence);
        let Some((slot, block)) = waiting.and_then(|slot| {
            let block = slot.block.as_ref().map(|block| (block.offset, block.len));
            Some((slot, block?))
        }) else {
            return Err(self.nonsense("a request that nobody made was answered"));
        };
        if reply.status != Status::Ok {
            return Err(self.refused(&reply, block));
        }
        record.latency(now.saturating_sub(slot.began));
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
        slot.in_flight = slot.in_flight.saturating_sub(1);
        slot.stage = Stage::Settle;
        let (Some(block), Some(read_back)) = (&slot.block, &self.part.read_back) else {
            return Ok(());
        };
        let (sent, start) = block.buffer.place();
        let at = u64::from(index) * self.part.block;
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

    fn refused(&self, reply: &Reply, (offset, len): (u64, u32)) -> Failure {
        let peer = self.line.peer();
        let block = format!("the block of {len} bytes at {offset}");
        match reply.status {
            Status::BadCrc => {
                let summary = format!("{block} has another checksum at {peer} than here");
                Failure::new(Code::DataMismatch, Owner::Remote, summary)
                    .because(format!("CRC-32C there: {:#010x}", reply.value))
            }
            Status::OutOfRange | Status::NoSpace => {
                let summary =
                    format!("{block} lies beyond what {peer} holds: raise memory.size there");
                Failure::new(Code::Length, Owner::Config, summary).turn("memory.size")
            }
            status => self.nonsense(&format!("{block} was refused as {}", status.name())),
        }
    }

    fn nonsense(&self, what: &str) -> Failure {
        let summary = format!("{} does not keep to the protocol: {what}", self.line.peer());
        Failure::new(Code::InvalidRequest, Owner::Remote, summary)
    }
}
