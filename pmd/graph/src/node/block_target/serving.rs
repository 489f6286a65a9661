//! One connection of a client, as the target serves it.

use std::collections::VecDeque;

use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::{Endpoint, LocalKey, Op, Settled, SubmitError, Token};

use crate::block::{MESSAGE_BYTES, MESSAGE_LEN, Operation, Reply, Request, Status};
use crate::edge::Line;
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::LEAVE_WAIT;
use crate::node::Record;
use crate::node::block_client::MORE_REQUESTS;

/// Marks the token of a reply; receives have none.
const REPLY: u64 = 1 << 32;

/// How a turn of a connection ended.
pub(super) enum Ended {
    /// It goes on; so much was done.
    Not(usize),
    /// The client said goodbye, and left.
    Well,
    /// The client is lost.
    Badly(Failure),
}

/// A connected client.
pub(super) struct Serving {
    line: Line,
    key: LocalKey,
    /// Receives for requests, then copies of replies.
    messages: Extent,
    /// Replies that wait for room in the queue.
    replies: VecDeque<Reply>,
    committed: u64,
    /// When the client said goodbye.
    goodbye: Option<u64>,
    settled: Vec<Settled>,
}

/// Posts the receive of this number.
pub(super) fn post_receive(
    endpoint: &mut dyn Endpoint,
    key: LocalKey,
    messages: &Extent,
    number: u32,
) -> Result<(), SubmitError> {
    let at = u64::from(number) * u64::from(MESSAGE_LEN);
    let into = messages.local(key, at, MESSAGE_LEN);
    endpoint.submit(Op::Recv { into }, Token(u64::from(number)))
}

impl Serving {
    pub(super) fn new(line: Line, key: LocalKey, messages: Extent, depth: u32) -> Self {
        let (caps, requests) = (line.caps(), (depth + MORE_REQUESTS) as usize);
        Self {
            line,
            key,
            messages,
            replies: VecDeque::with_capacity(requests),
            committed: 0,
            goodbye: None,
            settled: Vec::with_capacity((caps.depth + caps.recv_depth) as usize),
        }
    }

    pub(super) fn announce_end(&mut self) {
        self.line.announce_end();
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        let leaving = self.goodbye.map(|since| since.saturating_add(leave_wait()));
        leaving.or_else(|| self.line.next_timeout())
    }

    /// Answers what was asked. `stored` is the client's part of the store, and `flips` the bytes still to be flipped.
    pub(super) fn run(
        &mut self,
        now: u64,
        stored: &Extent,
        flips: &mut Vec<u64>,
        record: &mut Record,
    ) -> Ended {
        match self.turn(now, stored, flips, record) {
            // Whatever ends the connection after a goodbye is the client leaving.
            Err(_) if self.goodbye.is_some() => Ended::Well,
            Err(failure) => {
                self.line.abort(&failure.verdict);
                Ended::Badly(failure)
            }
            Ok(_) if self.has_left(now) => Ended::Well,
            Ok(found) => Ended::Not(found),
        }
    }

    fn turn(
        &mut self,
        now: u64,
        stored: &Extent,
        flips: &mut Vec<u64>,
        record: &mut Record,
    ) -> Result<usize, Failure> {
        let mut settled = std::mem::take(&mut self.settled);
        let found = self.line.poll(now, &mut settled)?;
        for settled in settled.drain(..) {
            if settled.token.0 < REPLY {
                self.request(now, settled, stored, flips, record)?;
            }
        }
        self.settled = settled;
        self.reply(now)?;
        self.line.doorbell();
        Ok(found)
    }

    /// Whether a client that said goodbye has closed its connection, or will not do so.
    fn has_left(&self, now: u64) -> bool {
        let late = |since| now.saturating_sub(since) >= leave_wait();
        self.goodbye.is_some_and(|since| self.line.peer_left() || late(since))
    }

    /// A request came into a receive.
    fn request(
        &mut self,
        now: u64,
        settled: Settled,
        stored: &Extent,
        flips: &mut Vec<u64>,
        record: &mut Record,
    ) -> Result<(), Failure> {
        let Ok(number) = u32::try_from(settled.token.0) else { return Ok(()) };
        let mut bytes = [0; MESSAGE_BYTES];
        self.messages.read_at(u64::from(number) * u64::from(MESSAGE_LEN), &mut bytes)?;
        if self.line.is_up() {
            match post_receive(self.line.endpoint(), self.key, &self.messages, number) {
                // A connection that fails says why when it is polled.
                Ok(()) | Err(SubmitError::Degraded) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let length = MESSAGE_BYTES.min(settled.len as usize);
        let request = Request::decode(&bytes[..length]).map_err(|error| {
            let summary = format!("{} does not keep to the protocol: {error}", self.line.peer());
            Failure::new(Code::InvalidRequest, Owner::Remote, summary)
        })?;
        let (status, value) = match request.operation {
            Operation::Bye => {
                self.goodbye = Some(now);
                (Status::Ok, self.committed)
            }
            Operation::Commit => commit(&request, stored)?,
        };
        if request.operation == Operation::Commit && status == Status::Ok {
            let len = u64::from(request.len);
            self.committed += 1;
            record.message(now, len);
            if request.crc32c.is_some() {
                record.verified(len);
            }
            flip(&request, stored, flips)?;
        }
        if status != Status::Ok {
            record.error();
        }
        let value = if status == Status::Ok { self.committed } else { value };
        let Request { operation, tag, sequence, .. } = request;
        if self.replies.len() < self.replies.capacity() {
            self.replies.push_back(Reply { operation, tag, sequence, status, value });
        }
        Ok(())
    }

    /// Sends the replies that there is room for.
    fn reply(&mut self, now: u64) -> Result<(), Failure> {
        while let Some(reply) = self.replies.front() {
            let bytes = reply.encode();
            let token = Token(REPLY | u64::from(reply.tag));
            let sent = if self.line.caps().inline >= MESSAGE_LEN {
                self.line.submit(now, Op::SendInline { bytes: &bytes, imm: None }, token)?
            } else {
                // A client reuses a tag only after its reply came, when the copy is no longer needed.
                let copies = self.messages.len() / 2;
                let at = u64::from(reply.tag) * u64::from(MESSAGE_LEN);
                let at = copies + at % copies;
                self.messages.write_at(at, &bytes)?;
                let from = self.messages.local(self.key, at, MESSAGE_LEN);
                self.line.submit(now, Op::Send { from, imm: None }, token)?
            };
            if !sent {
                break;
            }
            self.replies.pop_front();
        }
        Ok(())
    }
}

/// Checks what a client says it has written.
fn commit(request: &Request, stored: &Extent) -> Result<(Status, u64), Failure> {
    let end = request.offset.checked_add(u64::from(request.len));
    if request.len == 0 || end.is_none_or(|end| end > stored.len()) {
        return Ok((Status::OutOfRange, stored.len()));
    }
    if let Some(expected) = request.crc32c {
        let found = stored.crc32c(request.offset, u64::from(request.len))?;
        if found != expected {
            return Ok((Status::BadCrc, u64::from(found)));
        }
    }
    Ok((Status::Ok, 0))
}

/// Flips the bytes of the range that a fault names, once each: after they were committed, before they can be read back.
fn flip(request: &Request, stored: &Extent, flips: &mut Vec<u64>) -> Result<(), Failure> {
    let range = request.offset..request.offset + u64::from(request.len);
    while let Some(index) = flips.iter().position(|offset| range.contains(offset)) {
        let offset = flips.swap_remove(index);
        let mut byte = [0];
        stored.read_at(offset, &mut byte)?;
        stored.write_at(offset, &[!byte[0]])?;
    }
    Ok(())
}

fn leave_wait() -> u64 {
    u64::try_from(LEAVE_WAIT.as_nanos()).unwrap_or(u64::MAX)
}
