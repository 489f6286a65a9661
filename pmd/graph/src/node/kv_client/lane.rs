//! One connection of a client to its server, and the keys that only this connection touches.
//!
//! Requests of a connection take effect in their order, so that what a GET must find is known when it is sent: the value
//! of the last PUT before it. On a connection that broke and came back, those without a reply are sent again in that order;
//! a GET among them may also find what a later PUT had put before the break.

use std::collections::VecDeque;
use std::time::Duration;

use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::endpoint::{Endpoint, LocalKey, Op, Settled, Token};

use super::draw::Draw;
use crate::edge::{Change, Dial, Line, Peer, Pulse};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::kv::{
    MORE_REQUESTS, Opened, Operation, REPLY_BYTES, REQUEST_BYTES, Reply, Request, Status,
};
use crate::node::Record;
use crate::node::outbox::Outbox;
use crate::node::pattern::Pattern;

/// Marks the token of a request; receives have none.
const REQUEST: u64 = 1 << 32;

/// What a connection owns, before and after it is made.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The node's name.
    pub(super) node: String,
    /// How long the server may be silent.
    pub(super) keep_alive: Duration,
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
        for number in 0..self.requests() {
            let into = self.receive(key, number);
            endpoint.submit(Op::Recv { into }, Token(number.into()))?;
        }
        Ok(())
    }

    /// Requests that can be under way.
    fn requests(&self) -> u32 {
        self.depth + MORE_REQUESTS
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
    /// The last one that a GET may find; the same where it was sent once.
    newest: u32,
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
        newest: 0,
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
    asked: Asked,
    pulse: Pulse,
    /// The server's process is gone, and can be dialled again.
    gone: bool,
    settled: Vec<Settled>,
}

/// What is asked of the server: it outlives a connection that breaks.
pub(super) struct Asked {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that are sent again, in their order.
    again: VecDeque<u32>,
    /// Puts of each key so far.
    generations: Vec<u32>,
    sequence: u32,
    /// The next key to be put, or read, in order.
    cursor: u32,
    /// The number of the range that the server keeps the keys in.
    range: u64,
}

impl Asked {
    fn new(depth: u32, keys: u32, range: u64) -> Self {
        Self {
            slots: vec![Slot::FREE; depth as usize],
            free: (0..depth).rev().collect(),
            again: VecDeque::with_capacity(depth as usize),
            generations: vec![0; keys as usize],
            sequence: 0,
            cursor: 0,
            range,
        }
    }

    /// Requests without a reply.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.iter().filter(|slot| slot.unanswered).count()
    }

    /// Nothing is under way on the new connection: what was not answered is to be sent again, the rest is done.
    fn ask_again(&mut self) {
        self.again.clear();
        self.free.clear();
        for (number, slot) in (0..).zip(&mut self.slots) {
            slot.unsettled = false;
            if slot.unanswered {
                // A later PUT may have been executed before.
                slot.newest = self.generations[slot.key as usize];
                self.again.push_back(number);
            } else {
                self.free.push(number);
            }
        }
        let (slots, last) = (&self.slots, self.sequence);
        let age = |number: &u32| last.wrapping_sub(slots[*number as usize].sequence);
        self.again.make_contiguous().sort_unstable_by_key(|number| std::cmp::Reverse(age(number)));
    }
}

impl Lane {
    /// A lane of a client with what the server `granted`, and what was asked over the connection before.
    pub(super) fn new(
        part: Part,
        mut line: Line,
        granted: &Opened,
        before: Option<Asked>,
    ) -> Result<Self, Failure> {
        let key = line.endpoint().register(part.messages.region())?;
        let depth = granted.depth.clamp(1, part.depth);
        let fresh = || Asked::new(depth, part.keys, granted.range);
        let mut asked = before.unwrap_or_else(fresh);
        if asked.slots.len() > depth as usize {
            let (peer, had) = (line.peer(), asked.slots.len());
            let summary = format!("{peer} has come back with less room than it had");
            return Err(Failure::new(Code::Length, Owner::Config, summary)
                .because(format!("{had} requests in flight before, {depth} now")));
        }
        let has_put = asked.generations.iter().any(|puts| *puts > 0);
        if asked.range != granted.range && has_put && part.verify {
            let summary = format!("{} was started again, and has lost what it kept", line.peer());
            return Err(Failure::new(Code::DataMismatch, Owner::Remote, summary)
                .because("its table ends with its process")
                .turn(format!("node.{}.verify", part.node)));
        }
        asked.range = granted.range;
        let half = part.place(part.requests());
        let short = || Failure::local("a connection has too little memory");
        let requests = part.messages.part(half, half).ok_or_else(short)?;
        let caps = line.caps();
        Ok(Self {
            outbox: Outbox::new(requests, key, part.stride, &line),
            asked,
            pulse: Pulse::new(part.keep_alive),
            gone: false,
            settled: Vec::with_capacity((caps.depth + caps.recv_depth) as usize),
            part,
            line,
            key,
            base: granted.first,
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
        self.asked.free.len() == self.asked.slots.len()
    }

    /// Whether one more request can be begun.
    pub(super) fn has_room(&self) -> bool {
        let (free, again) = (&self.asked.free, &self.asked.again);
        !free.is_empty() && again.is_empty() && self.outbox.is_clear() && self.line.is_up()
    }

    pub(super) fn doorbell(&mut self) {
        self.line.doorbell();
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        let pulse = self.pulse.next_timeout().filter(|_| self.line.is_up());
        pulse.into_iter().chain(self.line.next_timeout()).min()
    }

    /// Requests without a reply.
    pub(super) fn in_flight(&self) -> usize {
        self.asked.in_flight()
    }

    /// Whether the server's process is gone: [`redial`](Self::redial).
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Dials the server again, with what is still asked of it.
    pub(super) fn redial(self) -> Option<(Dial, Part, Asked)> {
        Some((self.line.redial()?, self.part, self.asked))
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
        self.asked.cursor = 0;
    }

    /// Begins requests for key after key, as far as there is room. Returns whether all keys have had theirs.
    pub(super) fn sweep(
        &mut self,
        now: u64,
        operation: Operation,
        desk: &mut Desk,
    ) -> Result<bool, Failure> {
        while self.asked.cursor < self.part.keys && self.has_room() {
            self.begin(now, operation, self.asked.cursor, desk)?;
            self.asked.cursor += 1;
        }
        Ok(self.asked.cursor == self.part.keys)
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
            } else if let Some(slot) = self.asked.slots.get_mut(number as usize) {
                slot.unsettled = false;
                if !slot.unanswered {
                    self.asked.free.push(number);
                }
            }
        }
        self.settled = settled;
        self.hear(now, record)?;
        self.outbox.clear(now, &mut self.line)?;
        self.ask_again(now, desk)?;
        self.keep_alive(now, desk)?;
        Ok(found)
    }

    /// Hears what has become of a connection that broke.
    pub(super) fn hear(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        while let Some(change) = self.line.change() {
            match change {
                Change::Broken => {}
                Change::Renewed => {
                    for number in 0..self.part.requests() {
                        let into = self.part.receive(self.key, number);
                        self.line.submit(now, Op::Recv { into }, Token(number.into()))?;
                    }
                }
                Change::Resumed { .. } => {
                    self.outbox.reset();
                    self.asked.ask_again();
                    self.pulse.heard(now);
                }
                Change::Recovered { took_ns } => record.recovered(took_ns),
                Change::PeerGone => self.gone = true,
            }
        }
        Ok(())
    }

    /// Sends again what was not answered, as far as there is room.
    fn ask_again(&mut self, now: u64, desk: &mut Desk) -> Result<(), Failure> {
        while self.outbox.is_clear()
            && self.line.is_up()
            && let Some(number) = self.asked.again.pop_front()
        {
            self.asked.slots[number as usize].unsettled = true;
            self.send(now, number, desk)?;
        }
        Ok(())
    }

    /// Asks a silent server for a sign of life, and gives it up when none comes.
    fn keep_alive(&mut self, now: u64, desk: &mut Desk) -> Result<(), Failure> {
        if !self.line.is_up() {
            return Ok(());
        }
        if self.pulse.is_due(now) && self.outbox.is_clear() {
            let number = self.part.depth;
            let request =
                Request { operation: Operation::KeepAlive, len: 0, tag: number.into(), key: 0 };
            let message = &mut desk.message[..REQUEST_BYTES];
            message.copy_from_slice(&request.encode());
            let token = Token(REQUEST | u64::from(number));
            self.outbox.send(now, &mut self.line, number, message, token)?;
            self.pulse.asked(now);
        }
        self.pulse.check(now, &self.part.node, self.line.peer())
    }

    fn begin(
        &mut self,
        now: u64,
        operation: Operation,
        key: u32,
        desk: &mut Desk,
    ) -> Result<(), Failure> {
        let (Some(number), Some(generation)) =
            (self.asked.free.pop(), self.asked.generations.get_mut(key as usize))
        else {
            return Ok(());
        };
        if operation == Operation::Put {
            *generation = generation.wrapping_add(1);
        }
        self.asked.sequence = self.asked.sequence.wrapping_add(1);
        self.asked.slots[number as usize] = Slot {
            sequence: self.asked.sequence,
            operation,
            key,
            generation: *generation,
            newest: *generation,
            sent: now,
            unanswered: true,
            unsettled: true,
        };
        self.send(now, number, desk)
    }

    /// Sends the request of a slot.
    fn send(&mut self, now: u64, number: u32, desk: &mut Desk) -> Result<(), Failure> {
        let Slot { sequence, operation, key, generation, .. } = self.asked.slots[number as usize];
        let len = if operation == Operation::Put { self.part.value } else { 0 };
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
        self.pulse.heard(now);
        if reply.operation == Operation::KeepAlive {
            return Ok(());
        }
        let asked = self.asked.slots.get_mut(number as usize).filter(|slot| {
            slot.unanswered && slot.sequence == sequence && slot.operation == reply.operation
        });
        let Some(slot) = asked else {
            return Err(self.nonsense("a request that nobody made was answered"));
        };
        slot.unanswered = false;
        let slot = *slot;
        if !slot.unsettled {
            self.asked.free.push(number);
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

    /// Whether the value is the one that was put last, or may be.
    fn compare(&self, slot: &Slot, value: &[u8], expected: &mut [u8]) -> Result<(), Failure> {
        let name = self.part.first + u64::from(slot.key);
        let differs = |what: String| {
            let summary = format!("key {name} differs at {}: {what}", self.line.peer());
            Err(Failure::new(Code::DataMismatch, Owner::Remote, summary))
        };
        if slot.newest == 0 {
            return differs(format!("{} bytes were found, and none put", value.len()));
        }
        if value.len() != expected.len() {
            let (found, put) = (value.len(), expected.len());
            return differs(format!("{found} bytes were found, and {put} put"));
        }
        // Rarely more than one.
        for later in (1..=slot.newest.wrapping_sub(slot.generation)).rev() {
            self.part.fill(slot.key, slot.generation.wrapping_add(later), expected);
            if value == expected {
                return Ok(());
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests without a reply are sent again in the order in which they were made, also where their numbers begin anew; a GET
    /// among them may find what was put since. What was answered makes room.
    #[test]
    fn what_was_not_answered_is_asked_again_in_its_order() {
        let mut asked = Asked::new(4, 2, 7);
        let slot = |sequence, operation, key, generation, unanswered| Slot {
            sequence,
            operation,
            key,
            generation,
            newest: generation,
            sent: 0,
            unanswered,
            unsettled: true,
        };
        asked.slots = vec![
            slot(1, Operation::Put, 1, 3, true),
            slot(u32::MAX, Operation::Get, 1, 2, true),
            slot(u32::MAX - 1, Operation::Put, 0, 1, false),
            slot(0, Operation::Get, 0, 1, true),
        ];
        asked.free.clear();
        (asked.sequence, asked.generations) = (1, vec![1, 3]);
        asked.ask_again();
        assert_eq!(asked.again, [1, 3, 0]);
        assert_eq!((asked.free.as_slice(), asked.in_flight()), (&[2][..], 3));
        let may_find = |number: usize| (asked.slots[number].generation, asked.slots[number].newest);
        assert_eq!([may_find(1), may_find(3)], [(2, 3), (1, 1)]);
        assert!(asked.slots.iter().all(|slot| !slot.unsettled));
    }
}
