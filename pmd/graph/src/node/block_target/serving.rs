//! One connection of a client, as the target serves it.

use std::collections::VecDeque;

use pmd_block::{IoError, Kind, SubmitError as StoreError, Submitted};
use pmd_observe::Verdict;
use pmd_verbs::endpoint::{Endpoint, LocalKey, Op, Remote, RemoteKey, Settled, SubmitError, Token};

use super::vault::Vault;
use crate::block::{
    MESSAGE_BYTES, MESSAGE_LEN, Operation, Place, Reply, Request, Status, nonsense,
};
use crate::edge::{Change, Line, Patience};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::LEAVE_WAIT;
use crate::node::Record;
use crate::node::block_client::{MORE_REQUESTS, nanoseconds};

/// Marks the token of a reply, or of the WRITE before it; receives have none.
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

/// What a connection has of the store and of its memory.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    pub(super) place: Place,
    /// The client's part of the store.
    pub(super) start: u64,
    pub(super) capacity: u64,
    /// That part itself, or buffers.
    pub(super) memory: Extent,
    pub(super) key: LocalKey,
    /// Bytes from one buffer to the next, here and at the client.
    pub(super) stride: u64,
    /// The client's buffers.
    pub(super) client: Option<RemoteKey>,
}

/// A connected client.
pub(super) struct Serving {
    line: Line,
    /// Receives for requests, then copies of replies.
    messages: Extent,
    key: LocalKey,
    shelf: Shelf,
    depth: u32,
    /// Requests that are not answered yet, by tag, where the store takes its time.
    jobs: Box<[Job]>,
    /// Tags of jobs that the store has no room for.
    waiting: VecDeque<u32>,
    /// Jobs that the store has.
    at_store: u32,
    /// Answers that wait for room in the queue. With those at the store and before it, no more than the granted depth.
    answers: VecDeque<Answer>,
    committed: u64,
    goodbye: Goodbye,
    patience: Patience,
    settled: Vec<Settled>,
}

/// What the store does, or is to do, for a tag.
#[derive(Clone, Copy, Debug, Default)]
struct Job {
    request: Option<Request>,
    /// When it was first given to the store.
    since: u64,
    /// The connection broke since: nobody waits for the answer.
    stale: bool,
    /// What the tag is used for since; it waits until the store has done with the tag's buffer.
    next: Option<Request>,
}

impl Job {
    fn of(request: &Request, since: u64) -> Self {
        Self { request: Some(*request), since, ..Self::default() }
    }
}

/// A reply, and what goes before it.
struct Answer {
    reply: Reply,
    /// Where a range lies in the connection's memory that is to be written to the client, and its length.
    bytes: Option<(u64, u32)>,
}

/// How far the end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    Unsaid,
    Said,
    /// Answered, at this time.
    Answered(u64),
}

/// The store's name for a job.
fn token(key: usize, tag: u32) -> u64 {
    (key as u64) << 32 | u64::from(tag)
}

/// Which connection and tag the store names.
pub(super) fn names(token: u64) -> (usize, u32) {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a name")]
    ((token >> 32) as usize, token as u32)
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
    pub(super) fn new(
        line: Line,
        (messages, key): (Extent, LocalKey),
        shelf: Shelf,
        depth: u32,
        patience: Patience,
    ) -> Self {
        let (caps, requests) = (line.caps(), (depth + MORE_REQUESTS) as usize);
        Self {
            line,
            messages,
            key,
            shelf,
            depth,
            jobs: vec![Job::default(); requests].into_boxed_slice(),
            waiting: VecDeque::with_capacity(requests),
            at_store: 0,
            answers: VecDeque::with_capacity(requests),
            committed: 0,
            goodbye: Goodbye::Unsaid,
            patience,
            settled: Vec::with_capacity((caps.depth + caps.recv_depth) as usize),
        }
    }

    pub(super) fn announce_end(&mut self) {
        self.line.announce_end();
    }

    pub(super) fn abort(&mut self, verdict: &Verdict) {
        self.line.abort(verdict);
    }

    /// Requests that the store works on.
    pub(super) fn at_store(&self) -> u32 {
        self.at_store
    }

    /// Since when the store has, or is to have, the oldest request that is not answered.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.jobs.iter().filter(|job| job.request.is_some()).map(|job| job.since).min()
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        let leaving = match self.goodbye {
            Goodbye::Answered(since) => Some(since.saturating_add(leave_wait())),
            Goodbye::Unsaid | Goodbye::Said => None,
        };
        let silent = self.patience.next_timeout().filter(|_| self.line.is_up());
        leaving.into_iter().chain(silent).chain(self.line.next_timeout()).min()
    }

    /// Answers what was asked. `key` is the connection's name at the store, and `flips` are the bytes still to be flipped.
    pub(super) fn run(
        &mut self,
        now: u64,
        key: usize,
        vault: &mut Vault,
        flips: &mut Vec<u64>,
        record: &mut Record,
    ) -> Ended {
        match self.turn(now, key, vault, flips, record) {
            // Whatever ends the connection after a goodbye is the client leaving.
            Err(_) if self.goodbye != Goodbye::Unsaid => Ended::Well,
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
        key: usize,
        vault: &mut Vault,
        flips: &mut Vec<u64>,
        record: &mut Record,
    ) -> Result<usize, Failure> {
        let mut settled = std::mem::take(&mut self.settled);
        let found = self.line.poll(now, &mut settled)?;
        // Those that still find no room wait on.
        for _ in 0..self.waiting.len() {
            let Some(tag) = self.waiting.pop_front() else { break };
            let job = self.jobs.get_mut(tag as usize);
            let job = job.and_then(|job| Some((job.request.take()?, job.since)));
            if let Some((request, since)) = job {
                self.hand_over((now, since), key, &request, vault, record);
            }
        }
        for settled in settled.drain(..) {
            if settled.token.0 < REPLY {
                let request = self.take(now, settled)?;
                self.request(now, key, &request, vault, flips, record)?;
            }
        }
        self.settled = settled;
        self.hear(now, record)?;
        // A client that does not work keeps its place from nobody.
        if self.line.is_up() {
            self.patience.check(now, self.line.peer())?;
        }
        self.answer(now)?;
        self.line.doorbell();
        Ok(found)
    }

    /// Hears what has become of a connection that broke. The client asks again for what was not answered.
    fn hear(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        while let Some(change) = self.line.change() {
            match change {
                Change::Broken => self.forget(),
                Change::Renewed => {
                    for number in 0..self.depth + MORE_REQUESTS {
                        let at = u64::from(number) * u64::from(MESSAGE_LEN);
                        let into = self.messages.local(self.key, at, MESSAGE_LEN);
                        self.line.submit(now, Op::Recv { into }, Token(u64::from(number)))?;
                    }
                }
                Change::Resumed { .. } => self.patience.heard(now),
                Change::Recovered { took_ns } => record.recovered(took_ns),
                Change::PeerGone => {}
            }
        }
        Ok(())
    }

    /// Nobody waits for an answer any more: what the store has not begun is not begun.
    fn forget(&mut self) {
        self.answers.clear();
        for tag in self.waiting.drain(..) {
            self.jobs[tag as usize] = Job::default();
        }
        for job in &mut self.jobs {
            job.stale = job.request.is_some();
            job.next = None;
        }
        // Once it is answered, a client that leaves breaks the connection, too.
        if self.goodbye == Goodbye::Said {
            self.goodbye = Goodbye::Unsaid;
        }
    }

    /// Whether a client that said goodbye has closed its connection, or will not do so.
    fn has_left(&self, now: u64) -> bool {
        match self.goodbye {
            Goodbye::Unsaid => false,
            Goodbye::Said => self.line.peer_left(),
            Goodbye::Answered(since) => {
                self.line.peer_left() || now.saturating_sub(since) >= leave_wait()
            }
        }
    }

    /// Takes the request out of a receive, and posts the receive again.
    #[inline]
    fn take(&mut self, now: u64, settled: Settled) -> Result<Request, Failure> {
        self.patience.heard(now);
        let number = u32::try_from(settled.token.0).unwrap_or(u32::MAX);
        let mut bytes = [0; MESSAGE_BYTES];
        self.messages.read_at(u64::from(number) * u64::from(MESSAGE_LEN), &mut bytes)?;
        let into =
            self.messages.local(self.key, u64::from(number) * u64::from(MESSAGE_LEN), MESSAGE_LEN);
        self.line.submit(now, Op::Recv { into }, Token(u64::from(number)))?;
        let length = MESSAGE_BYTES.min(settled.len as usize);
        Request::decode(&bytes[..length]).map_err(|error| nonsense(&self.line, &error.to_string()))
    }

    /// Begins what a client asks for.
    pub(super) fn request(
        &mut self,
        now: u64,
        key: usize,
        request: &Request,
        vault: &mut Vault,
        flips: &mut Vec<u64>,
        record: &mut Record,
    ) -> Result<(), Failure> {
        let job = self.jobs.get_mut(request.tag as usize).filter(|job| job.stale);
        if let Some(job) = job.filter(|job| job.next.is_none()) {
            job.next = Some(*request);
            return Ok(());
        }
        if self.answers.len() + self.waiting.len() + self.at_store as usize == self.jobs.len() {
            return Err(nonsense(&self.line, "more requests are in flight than were granted"));
        }
        if request.operation == Operation::Bye {
            self.goodbye = Goodbye::Said;
        }
        if let Err((status, value)) = self.check(request) {
            self.refuse(now, request, status, value, record);
            return Ok(());
        }
        if request.operation == Operation::KeepAlive {
            // The store has nothing to do with it; how it does is what the client may ask for.
            let waits = self.oldest().map_or(0, |since| now.saturating_sub(since) / 1_000_000);
            self.give(now, request, (Status::Ok, waits), None);
            return Ok(());
        }
        if request.operation == Operation::Commit {
            let at = self.at(request);
            let len = u64::from(request.len);
            if let Some(expected) = request.crc32c {
                let found = self.shelf.memory.crc32c(at, len)?;
                if found != expected {
                    self.refuse(now, request, Status::BadCrc, u64::from(found), record);
                    return Ok(());
                }
            }
            flip(request, &self.shelf.memory, at, flips, record)?;
        }
        self.hand_over((now, now), key, request, vault, record);
        Ok(())
    }

    /// Whether the request makes sense, and stays where the client may go.
    #[inline]
    fn check(&self, request: &Request) -> Result<(), (Status, u64)> {
        let Request { operation, tag, offset, len, .. } = *request;
        let known = self.jobs.get(tag as usize);
        if known.is_none_or(|job| job.request.is_some()) {
            return Err((Status::Invalid, 0));
        }
        if matches!(operation, Operation::Flush | Operation::Bye | Operation::KeepAlive) {
            return Ok(());
        }
        let end = offset.checked_add(u64::from(len));
        if len == 0 || end.is_none_or(|end| end > self.shelf.capacity) {
            return Err((Status::OutOfRange, self.shelf.capacity));
        }
        let reads = operation == Operation::Read;
        let buffered = reads || self.shelf.place == Place::Buffers;
        let no_buffer = u64::from(len) > self.shelf.stride || tag >= self.depth;
        if (buffered && no_buffer) || (reads && self.shelf.client.is_none()) {
            return Err((Status::Invalid, 0));
        }
        Ok(())
    }

    /// Where the bytes of a request lie in the connection's memory.
    fn at(&self, request: &Request) -> u64 {
        match self.shelf.place {
            Place::Store => request.offset,
            Place::Buffers => u64::from(request.tag) * self.shelf.stride,
        }
    }

    /// Gives a request to the store, which it is waiting for since `since`.
    fn hand_over(
        &mut self,
        (now, since): (u64, u64),
        key: usize,
        request: &Request,
        vault: &mut Vault,
        record: &mut Record,
    ) {
        let (kind, at) = match request.operation {
            Operation::Commit => (Kind::Write, self.at(request)),
            Operation::Read => (Kind::Read, self.at(request)),
            Operation::Flush | Operation::Bye | Operation::KeepAlive => (Kind::Flush, 0),
        };
        let range = (self.shelf.start + request.offset, request.len);
        let name = token(key, request.tag);
        match vault.submit(kind, range, (&self.shelf.memory, at), name) {
            Ok(Submitted::Done) => self.finish(now, request, record),
            Ok(Submitted::Pending) => {
                self.jobs[request.tag as usize] = Job::of(request, since);
                self.at_store += 1;
            }
            Err(StoreError::Full) => {
                self.jobs[request.tag as usize] = Job::of(request, since);
                self.waiting.push_back(request.tag);
            }
            Err(StoreError::OutOfRange) => {
                self.refuse(now, request, Status::OutOfRange, self.shelf.capacity, record);
            }
            Err(StoreError::Misaligned { align }) => {
                self.refuse(now, request, Status::Misaligned, u64::from(align), record);
            }
        }
    }

    /// The store has ended a job. Returns what the tag was used for meanwhile, which is to be begun.
    pub(super) fn done(
        &mut self,
        now: u64,
        tag: u32,
        result: Result<(), IoError>,
        record: &mut Record,
    ) -> Option<Request> {
        let job = std::mem::take(self.jobs.get_mut(tag as usize)?);
        let request = job.request?;
        self.at_store -= 1;
        if job.stale {
            return job.next;
        }
        let errno = |errno: i32| u64::try_from(errno).unwrap_or(0);
        match result {
            Ok(()) => self.finish(now, &request, record),
            Err(error) => {
                tracing::warn!("{}: {error}", self.line.peer());
                let (status, value) = match error {
                    IoError::NoSpace { errno: number } => (Status::NoSpace, errno(number)),
                    IoError::Short { done } => (Status::Short, u64::from(done)),
                    IoError::Os { errno: number } => (Status::Io, errno(number)),
                };
                self.refuse(now, &request, status, value, record);
            }
        }
        None
    }

    /// A request was done.
    #[inline]
    fn finish(&mut self, now: u64, request: &Request, record: &mut Record) {
        let len = u64::from(request.len);
        let mut bytes = None;
        match request.operation {
            Operation::Commit => {
                self.committed += 1;
                record.message(now, len);
                if request.crc32c.is_some() {
                    record.verified(len);
                }
            }
            Operation::Read => {
                record.message(now, len);
                bytes = Some((self.at(request), request.len));
            }
            Operation::Flush | Operation::Bye | Operation::KeepAlive => {}
        }
        self.give(now, request, (Status::Ok, self.committed), bytes);
    }

    fn refuse(
        &mut self,
        now: u64,
        request: &Request,
        status: Status,
        value: u64,
        record: &mut Record,
    ) {
        record.error();
        self.give(now, request, (status, value), None);
    }

    #[inline]
    fn give(
        &mut self,
        now: u64,
        request: &Request,
        (status, value): (Status, u64),
        bytes: Option<(u64, u32)>,
    ) {
        if request.operation == Operation::Bye {
            self.goodbye = Goodbye::Answered(now);
        }
        let Request { operation, tag, sequence, .. } = *request;
        let reply = Reply { operation, tag, sequence, status, value };
        self.answers.push_back(Answer { reply, bytes });
    }

    /// Sends the answers that there is room for: a range, then its reply behind it.
    fn answer(&mut self, now: u64) -> Result<(), Failure> {
        while let Some(answer) = self.answers.front_mut() {
            let reply = &answer.reply;
            let token = Token(REPLY | u64::from(reply.tag));
            if let (Some((at, len)), Some(key)) = (answer.bytes, self.shelf.client) {
                let from = self.shelf.memory.local(self.shelf.key, at, len);
                let to = Remote { key, offset: u64::from(reply.tag) * self.shelf.stride };
                if !self.line.submit(now, Op::Write { from, to, imm: None }, token)? {
                    break;
                }
                answer.bytes = None;
            }
            let bytes = reply.encode();
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
            self.answers.pop_front();
        }
        Ok(())
    }
}

/// Flips the bytes of the range that a fault names, once each: after they were checked, before they can be read back.
fn flip(
    request: &Request,
    memory: &Extent,
    at: u64,
    flips: &mut Vec<u64>,
    record: &mut Record,
) -> Result<(), Failure> {
    let range = request.offset..request.offset + u64::from(request.len);
    while let Some(index) = flips.iter().position(|offset| range.contains(offset)) {
        let offset = flips.swap_remove(index);
        let place = at + (offset - request.offset);
        let mut byte = [0];
        memory.read_at(place, &mut byte)?;
        memory.write_at(place, &[!byte[0]])?;
        record.flipped(offset);
    }
    Ok(())
}

fn leave_wait() -> u64 {
    nanoseconds(LEAVE_WAIT)
}
