//! One connection of a client to its server, and the keys that only this connection touches.
//!
//! Requests of a connection take effect in their order, so that what a GET must find is known when it is sent: the value
//! of the last PUT before it.

use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::endpoint::{Endpoint, LocalKey, Op, Settled, Token};

use super::draw::Draw;
use crate::edge::{Line, Peer};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::kv::{Operation, REPLY_BYTES, REQUEST_BYTES, Reply, Request, Status};
use crate::node::Record;
use crate::node::outbox::Outbox;
use crate::node::pattern::Pattern;

/// Marks the token of a request; receives have none.
const REQUEST: u64 = 1 << 32;

/// What a connection owns, before and after it is made.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Receives for replies, then buffers that requests leave from.
    pub(super) messages: Extent,
    /// Requests in flight.
    pub(super) depth: u32,
    /// Bytes from one buffer to the next.
    pub(super) stride: u32,
    /// Bytes of every value.
    pub(super) value: u32,
    /// Its keys: the first, counted from the first of the client, and how many.
    pub(super) first: u64,
    pub(super) keys: u32,
    pub(super) draw: Draw,
    /// Mixed into every value.
    pub(super) seed: u64,
    /// Whether what comes back is compared.
    pub(super) verify: bool,
}

impl Part {
    /// Registers the memory and posts a receive for every reply.
    pub(super) fn equip(&self, endpoint: &mut dyn Endpoint) -> Result<(), Failure> {
        let key = endpoint.register(self.messages.region())?;
        for number in 0..self.depth {
            let into = self.receive(key, number);
            endpoint.submit(Op::Recv { into }, Token(number.into()))?;
        }
        Ok(())
    }

    fn place(&self, number: u32) -> u64 {
        u64::from(number) * u64::from(self.stride)
    }

    fn receive(&self, key: LocalKey, number: u32) -> pmd_verbs::endpoint::Local {
        let longest = u32::try_from(REPLY_BYTES).unwrap_or(u32::MAX).saturating_add(self.value);
        self.messages.local(key, self.place(number), longest)
    }

    /// Writes the value that a key has in a generation.
    fn fill(&self, key: u32, generation: u32, value: &mut [u8]) {
        let key = self.first.wrapping_add(key.into());
        let seed = self.seed ^ key.rotate_left(32) ^ u64::from(generation);
        Pattern { seed }.fill(0, value);
    }
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Tells its reply from one to an earlier request.
    sequence: u32,
    operation: Operation,
    key: u32,
    /// How often the key has been put, this request included; 0: never.
    generation: u32,
    sent: u64,
    /// The reply has not come.
    unanswered: bool,
    /// The device still reads the request.
    unsettled: bool,
}

impl Slot {
    const FREE: Self = Self {
        sequence: 0,
        operation: Operation::Get,
        key: 0,
        generation: 0,
        sent: 0,
        unanswered: false,
        unsettled: false,
    };
}

/// Where messages are made and looked at, shared by all lanes of a client.
#[derive(Debug)]
pub(super) struct Desk {
    message: Vec<u8>,
    expected: Vec<u8>,
}

impl Desk {
    /// For values of `value` bytes.
    pub(super) fn new(value: u32) -> Self {
        let value = value as usize;
        Self { message: vec![0; REQUEST_BYTES + value], expected: vec![0; value] }
    }
}

/// A connection over which requests travel.
pub(super) struct Lane {
    part: Part,
    line: Line,
    /// The region of the messages.
    key: LocalKey,
    /// The client's first key at the server.
    base: u64,
    outbox: Outbox,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Puts of each key so far.
    generations: Vec<u32>,
    sequence: u32,
    /// The next key to be put, or read, in order.
    cursor: u32,
    settled: Vec<Settled>,
}

impl Lane {
    /// A lane of a client whose keys begin at `base`, with `depth` requests in flight.
    pub(super) fn new(part: Part, mut line: Line, base: u64, depth: u32) -> Result<Self, Failure> {
        let key = line.endpoint().register(part.messages.region())?;
        let depth = depth.clamp(1, part.depth);
        let half = part.place(part.depth);
        let short = || Failure::local("a connection has too little memory");
        let requests = part.messages.part(half, half).ok_or_else(short)?;
        let caps = line.caps();
        Ok(Self {
            outbox: Outbox::new(requests, key, part.stride, &line),
            slots: vec![Slot::FREE; depth as usize],
            free: (0..depth).rev().collect(),
            generations: vec![0; part.keys as usize],
            sequence: 0,
            cursor: 0,
            settled: Vec::with_capacity((caps.depth + caps.recv_depth) as usize),
            part,
            line,
            key,
            base,
        })
    }

    pub(super) fn peer(&self) -> &Peer {
        self.line.peer()
    }

    /// Whether the server has said goodbye.
    pub(super) fn peer_left(&self) -> bool {
        self.line.peer_left()
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Whether one more request can be begun.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() && self.outbox.is_clear() && self.line.is_up()
    }

    pub(super) fn doorbell(&mut self) {
        self.line.doorbell();
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.line.next_timeout()
    }

    /// Ends the connection, all done.
    pub(super) fn leave(self) {
        self.line.leave();
    }

    /// Ends the connection and tells the server why.
    pub(super) fn abort(mut self, verdict: &Verdict) {
        self.line.abort(verdict);
    }

    /// Goes through the keys from the first one.
    pub(super) fn rewind(&mut self) {
        self.cursor = 0;
    }

    /// Begins requests for key after key, as far as there is room. Returns whether all keys have had theirs.
    pub(super) fn sweep(
        &mut self,
        now: u64,
        operation: Operation,
        desk: &mut Desk,
    ) -> Result<bool, Failure> {
        while self.cursor < self.part.keys && self.has_room() {
            self.begin(now, operation, self.cursor, desk)?;
            self.cursor += 1;
        }
        Ok(self.cursor == self.part.keys)
    }

    /// Begins up to `most` requests of those that are drawn, as far as there is room. Returns how many.
    pub(super) fn load(&mut self, now: u64, most: u64, desk: &mut Desk) -> Result<u64, Failure> {
        let mut begun = 0;
        while begun < most && self.has_room() {
            let (operation, key) = self.part.draw.next();
            self.begin(now, operation, key, desk)?;
            begun += 1;
        }
        Ok(begun)
    }

    /// Takes in what was done. `measured`: requests are counted. Returns how much was found.
    pub(super) fn run(
        &mut self,
        now: u64,
        measured: bool,
        desk: &mut Desk,
        record: &mut Record,
    ) -> Result<usize, Failure> {
        let mut settled = std::mem::take(&mut self.settled);
        let found = self.line.poll(now, &mut settled)?;
        for settled in settled.drain(..) {
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is the number")]
            let number = settled.token.0 as u32;
            if settled.token.0 < REQUEST {
                self.reply(now, number, settled.len, measured, desk, record)?;
            } else if let Some(slot) = self.slots.get_mut(number as usize) {
                slot.unsettled = false;
                if !slot.unanswered {
                    self.free.push(number);
                }
            }
        }
        self.settled = settled;
        self.outbox.clear(now, &mut self.line)?;
        Ok(found)
    }

    fn begin(
        &mut self,
        now: u64,
        operation: Operation,
        key: u32,
        desk: &mut Desk,
    ) -> Result<(), Failure> {
        let (Some(number), Some(generation)) =
            (self.free.pop(), self.generations.get_mut(key as usize))
        else {
            return Ok(());
        };
        let len = match operation {
            Operation::Get => 0,
            Operation::Put => {
                *generation = generation.wrapping_add(1);
                self.part.value
            }
        };
        let generation = *generation;
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let (unanswered, unsettled) = (true, true);
        self.slots[number as usize] =
            Slot { sequence, operation, key, generation, sent: now, unanswered, unsettled };
        let request = Request {
            operation,
            len,
            tag: u64::from(sequence) << 32 | u64::from(number),
            key: self.base.wrapping_add(self.part.first).wrapping_add(key.into()),
        };
        let message = &mut desk.message[..REQUEST_BYTES + len as usize];
        message[..REQUEST_BYTES].copy_from_slice(&request.encode());
        self.part.fill(key, generation, &mut message[REQUEST_BYTES..]);
        let token = Token(REQUEST | u64::from(number));
        self.outbox.send(now, &mut self.line, number, message, token)
    }

    /// A reply came into the receive of this number.
    fn reply(
        &mut self,
        now: u64,
        receive: u32,
        len: u32,
        measured: bool,
        desk: &mut Desk,
        record: &mut Record,
    ) -> Result<(), Failure> {
        let message = &mut desk.message[..REPLY_BYTES + self.part.value as usize];
        let carried = message.len().min(len as usize);
        let message = &mut message[..carried];
        self.part.messages.read_at(self.part.place(receive), message)?;
        let into = self.part.receive(self.key, receive);
        self.line.submit(now, Op::Recv { into }, Token(receive.into()))?;
        let reply = Reply::decode(message, len as usize)
            .map_err(|error| self.nonsense(&error.to_string()))?;
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of a tag")]
        let (sequence, number) = ((reply.tag >> 32) as u32, reply.tag as u32);
        let asked = self.slots.get_mut(number as usize).filter(|slot| {
            slot.unanswered && slot.sequence == sequence && slot.operation == reply.operation
        });
        let Some(slot) = asked else {
            return Err(self.nonsense("a request that nobody made was answered"));
        };
        slot.unanswered = false;
        let slot = *slot;
        if !slot.unsettled {
            self.free.push(number);
        }
        let value = &message[REPLY_BYTES.min(carried)..];
        match (reply.status, slot.operation) {
            (Status::Ok, Operation::Put) => {}
            (Status::Ok, Operation::Get) if self.part.verify => {
                self.compare(&slot, value, &mut desk.expected)?;
                record.verified(value.len() as u64);
            }
            (Status::NotFound, Operation::Get) if slot.generation == 0 || !self.part.verify => {}
            (Status::Ok, Operation::Get) => {}
            (status, _) => return Err(self.refused(&slot, status)),
        }
        if measured {
            let moved = value.len().max(self.carried(&slot));
            record.latency(now.saturating_sub(slot.sent));
            record.message(now, moved as u64);
        }
        Ok(())
    }

    /// Bytes of the value that a request carried.
    fn carried(&self, slot: &Slot) -> usize {
        if slot.operation == Operation::Put { self.part.value as usize } else { 0 }
    }

    /// Whether the value is the one that was put last.
    fn compare(&self, slot: &Slot, value: &[u8], expected: &mut [u8]) -> Result<(), Failure> {
        let name = self.part.first + u64::from(slot.key);
        let differs = |what: String| {
            let summary = format!("key {name} differs at {}: {what}", self.line.peer());
            Err(Failure::new(Code::DataMismatch, Owner::Remote, summary))
        };
        if slot.generation == 0 {
            return differs(format!("{} bytes were found, and none put", value.len()));
        }
        if value.len() != expected.len() {
            let (found, put) = (value.len(), expected.len());
            return differs(format!("{found} bytes were found, and {put} put"));
        }
        self.part.fill(slot.key, slot.generation, expected);
        let Some(at) = value.iter().zip(&*expected).position(|(found, put)| found != put) else {
            return Ok(());
        };
        let (put, found) = (expected[at], value[at]);
        differs(format!("byte {at} of its value was put as {put:#04x}, and is {found:#04x}"))
    }

    fn refused(&self, slot: &Slot, status: Status) -> Failure {
        let (peer, name) = (self.line.peer(), self.part.first + u64::from(slot.key));
        match status {
            Status::Full => {
                let summary =
                    format!("{peer} keeps as many keys as it has room for: raise its `capacity`");
                Failure::new(Code::Length, Owner::Config, summary)
                    .because(format!("it refused key {name}"))
            }
            Status::NotFound => {
                let times = slot.generation;
                let summary = format!("{peer} has lost key {name}, which was put {times} times");
                Failure::new(Code::DataMismatch, Owner::Remote, summary)
            }
            status => self.nonsense(&format!("key {name} was answered as {}", status.name())),
        }
    }

    fn nonsense(&self, what: &str) -> Failure {
        let summary = format!("{} does not keep to the protocol: {what}", self.line.peer());
        Failure::new(Code::InvalidRequest, Owner::Remote, summary)
    }

    pub(super) fn path(&self) -> &'static str {
        self.line.path()
    }
}
