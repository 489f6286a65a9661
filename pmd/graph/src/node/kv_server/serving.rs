//! One connection of a client, as the server serves it.

use std::collections::VecDeque;

use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::{Endpoint, Local, LocalKey, Op, Settled, SubmitError, Token};

use super::ranges::Range;
use super::table::{Put, Table};
use crate::edge::{Change, Line, Patience};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::kv::{MORE_REQUESTS, Operation, REPLY_BYTES, REQUEST_BYTES, Reply, Request, Status};
use crate::node::Record;
use crate::node::outbox::Outbox;

/// Marks the token of a reply; receives have none.
const REPLY: u64 = 1 << 32;

/// The message buffers of one connection: those that requests come into, then those that replies leave from.
#[derive(Clone, Debug)]
pub(super) struct Buffers {
    pub(super) messages: Extent,
    pub(super) depth: u32,
    /// Bytes from one to the next.
    pub(super) stride: u32,
    /// Bytes of the longest request.
    pub(super) longest: u32,
}

impl Buffers {
    /// Posts the receive of this number.
    pub(super) fn post(
        &self,
        endpoint: &mut dyn Endpoint,
        key: LocalKey,
        number: u32,
    ) -> Result<(), SubmitError> {
        endpoint.submit(Op::Recv { into: self.receive(key, number) }, Token(u64::from(number)))
    }

    fn receive(&self, key: LocalKey, number: u32) -> Local {
        self.messages.local(key, self.place(number), self.longest)
    }

    fn place(&self, number: u32) -> u64 {
        u64::from(number) * u64::from(self.stride)
    }

    /// Requests that can be under way.
    pub(super) fn requests(&self) -> u32 {
        self.depth + MORE_REQUESTS
    }

    fn replies(&self) -> Extent {
        let half = self.place(self.requests());
        // The second half is there: the buffers were made as two of them.
        self.messages.part(half, half).unwrap_or_else(|| self.messages.clone())
    }
}

/// A connected client.
pub(super) struct Serving {
    line: Line,
    key: LocalKey,
    buffers: Buffers,
    range: Range,
    outbox: Outbox,
    /// Buffers that a reply can leave from.
    free: Vec<u32>,
    /// Receives with a request that was not answered yet, and its length.
    arrived: VecDeque<(u32, u32)>,
    patience: Patience,
    settled: Vec<Settled>,
}

impl Serving {
    pub(super) fn new(
        line: Line,
        key: LocalKey,
        buffers: Buffers,
        range: Range,
        patience: Patience,
    ) -> Self {
        let caps = line.caps();
        Self {
            outbox: Outbox::new(buffers.replies(), key, buffers.stride, &line),
            free: (0..buffers.requests()).rev().collect(),
            arrived: VecDeque::with_capacity(buffers.requests() as usize),
            patience,
            settled: Vec::with_capacity((caps.depth + caps.recv_depth) as usize),
            line,
            key,
            buffers,
            range,
        }
    }

    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    pub(super) fn has_left(&self) -> bool {
        self.line.peer_left()
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        let silent = self.patience.next_timeout().filter(|_| self.line.is_up());
        silent.into_iter().chain(self.line.next_timeout()).min()
    }

    /// Answers what was asked. `reply` has room for the longest one. Returns how much was found.
    pub(super) fn run(
        &mut self,
        now: u64,
        table: &mut Table,
        reply: &mut [u8],
        record: &mut Record,
    ) -> Result<usize, Failure> {
        let found = self.line.poll(now, &mut self.settled)?;
        for settled in self.settled.drain(..) {
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is the number")]
            let number = settled.token.0 as u32;
            if settled.token.0 < REPLY {
                self.patience.heard(now);
                self.arrived.push_back((number, settled.len));
            } else {
                self.free.push(number);
            }
        }
        self.hear(now, record)?;
        if !self.line.is_up() {
            return Ok(found);
        }
        // A client that does not work keeps its place from nobody.
        self.patience.check(now, self.line.peer())?;
        let mut answered = 0;
        while !self.arrived.is_empty() && self.outbox.clear(now, &mut self.line)? {
            // Without a free buffer, the answers before have not left yet.
            let Some(number) = self.free.pop() else { break };
            if let Some((receive, len)) = self.arrived.pop_front() {
                let length = self.answer(now, receive, len, table, reply, record)?;
                let token = Token(REPLY | u64::from(number));
                self.outbox.send(now, &mut self.line, number, &reply[..length], token)?;
                answered += 1;
            }
        }
        if self.arrived.is_empty() {
            self.outbox.clear(now, &mut self.line)?;
        }
        self.line.doorbell();
        Ok(found + answered)
    }

    /// Hears what has become of a connection that broke. The client asks again for what was not answered.
    fn hear(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        while let Some(change) = self.line.change() {
            match change {
                Change::Broken | Change::PeerGone => {}
                Change::Renewed => {
                    self.outbox.reset();
                    self.arrived.clear();
                    self.free.clear();
                    self.free.extend((0..self.buffers.requests()).rev());
                    for number in 0..self.buffers.requests() {
                        let receive = Token(u64::from(number));
                        let into = self.buffers.receive(self.key, number);
                        self.line.submit(now, Op::Recv { into }, receive)?;
                    }
                }
                Change::Resumed { .. } => self.patience.heard(now),
                Change::Recovered { took_ns } => record.recovered(took_ns),
            }
        }
        Ok(())
    }

    /// Does what the request in this receive asks for, and posts the receive again. Returns the length of the reply.
    fn answer(
        &mut self,
        now: u64,
        receive: u32,
        len: u32,
        table: &mut Table,
        reply: &mut [u8],
        record: &mut Record,
    ) -> Result<usize, Failure> {
        let at = self.buffers.place(receive);
        let mut head = [0; REQUEST_BYTES];
        let carried = REQUEST_BYTES.min(len as usize);
        self.buffers.messages.read_at(at, &mut head[..carried])?;
        let request = Request::decode(&head[..carried], len as usize).map_err(|error| {
            let summary = format!("{} does not keep to the protocol: {error}", self.line.peer());
            Failure::new(Code::InvalidRequest, Owner::Remote, summary)
        })?;
        let about_a_key = request.operation != Operation::KeepAlive;
        let (status, found) = if !about_a_key || self.range.holds(request.key) {
            self.execute(&request, at + REQUEST_BYTES as u64, table, &mut reply[REPLY_BYTES..])?
        } else {
            (Status::OutOfRange, 0)
        };
        // A connection that fails says why when it is polled.
        let into = self.buffers.receive(self.key, receive);
        self.line.submit(now, Op::Recv { into }, Token(u64::from(receive)))?;
        match status {
            _ if !about_a_key => {}
            Status::Ok | Status::NotFound => {
                record.message(now, u64::from(request.len.max(found)));
            }
            Status::Full | Status::OutOfRange | Status::TooLong => record.error(),
        }
        let Request { operation, tag, .. } = request;
        let answer = Reply { operation, status, len: found, tag };
        reply[..REPLY_BYTES].copy_from_slice(&answer.encode());
        Ok(REPLY_BYTES + found as usize)
    }

    /// Returns how it ended, and the length of the value that was found.
    fn execute(
        &self,
        request: &Request,
        value_at: u64,
        table: &mut Table,
        value: &mut [u8],
    ) -> Result<(Status, u32), Failure> {
        let owner = self.range.owner;
        Ok(match request.operation {
            Operation::KeepAlive => (Status::Ok, 0),
            Operation::Get => match table.get(request.key, owner, value)? {
                Some(len) => (Status::Ok, len),
                None => (Status::NotFound, 0),
            },
            Operation::Put if request.len as usize > value.len() => (Status::TooLong, 0),
            Operation::Put => {
                let from = &self.buffers.messages;
                match table.put(request.key, owner, from, value_at, request.len)? {
                    Put::Kept => (Status::Ok, 0),
                    Put::Full => (Status::Full, 0),
                }
            }
        })
    }
}
