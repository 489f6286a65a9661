//! A test double that keeps [`Endpoint`] honest: no keys on the wire, references of variable
//! length, completions by callback at the device's leisure, and failures without a cause, as a
//! DOCA device would have it. Two doubles live in one thread and share everything.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pmd_mem::Region;

use super::{
    Caps, Endpoint, EndpointEvent, Local, LocalKey, MemoryError, Op, Outcome, Remote, RemoteKey,
    RemoteRef, Replay, Rights, Settled, StatusDetail, SubmitError, Token,
};

/// What a reference of the double starts with; the rest is the region's name and the range.
const DESCRIPTOR: &[u8] = b"double-export/";

/// A receive waiting for a message, or a message waiting for a receive.
type Callback = Box<dyn FnOnce(Outcome) -> Settled>;

#[derive(Debug, Clone)]
struct Export {
    region: Arc<Region>,
    offset: u64,
    len: u64,
    rights: Rights,
}

/// A message under way.
struct Message {
    /// For the receive; none where a WRITE has brought them already.
    bytes: Vec<u8>,
    /// What the receive reports.
    len: u32,
    imm: Option<[u8; 4]>,
}

impl Message {
    fn of(bytes: Vec<u8>, imm: Option<[u8; 4]>) -> Self {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Self { bytes, len, imm }
    }
}

/// Which depth a settled operation gives back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Send,
    Recv,
}

/// One side as the other sees it.
#[derive(Default)]
struct Side {
    exports: Vec<Export>,
    receives: VecDeque<(Arc<Region>, Local, Token)>,
    /// Messages that found no receive yet, with their senders' callbacks.
    unexpected: VecDeque<(Message, Callback)>,
    settled: VecDeque<(Settled, Queue)>,
    in_flight: u32,
    failed: bool,
    event: Option<EndpointEvent>,
}

impl Side {
    fn settle(
        &mut self,
        queue: Queue,
        token: Token,
        outcome: Outcome,
        len: u32,
        imm: Option<[u8; 4]>,
    ) {
        // Who cannot tell what failed does not have it made again.
        let replay = if queue == Queue::Recv { Replay::Again } else { Replay::Never };
        self.settled.push_back((Settled { token, outcome, len, imm, replay }, queue));
    }

    /// Puts one message into one receive. Returns how the sender fares.
    fn deliver(&mut self, message: &Message) -> Outcome {
        let Some((region, into, token)) = self.receives.pop_front() else {
            unreachable!("the caller saw a receive")
        };
        let Message { bytes, len, imm } = message;
        let fits = bytes.len() <= into.len as usize && region.write_at(into.offset, bytes).is_ok();
        let outcome = if fits { Outcome::Done } else { Outcome::FailedCoarse };
        self.settle(Queue::Recv, token, outcome, *len, *imm);
        outcome
    }

    fn fail(&mut self, event: EndpointEvent) {
        if self.failed {
            return;
        }
        self.failed = true;
        self.event = Some(event);
        while let Some((_, _, token)) = self.receives.pop_front() {
            self.settle(Queue::Recv, token, Outcome::Flushed, 0, None);
        }
    }
}

/// One end of a [`double_pair`].
pub struct Double {
    sides: Rc<RefCell<[Side; 2]>>,
    me: usize,
    caps: Caps,
    regions: Vec<Arc<Region>>,
    imports: Vec<Export>,
}

impl std::fmt::Debug for Double {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Double")
            .field("side", &self.me)
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

/// Two connected doubles of the given depths.
pub fn double_pair(depth: u32, recv_depth: u32) -> (Double, Double) {
    let sides = Rc::new(RefCell::new([Side::default(), Side::default()]));
    let caps = Caps {
        write: true,
        read: true,
        atomics: true,
        max_message: 1 << 30,
        depth,
        recv_depth,
        inline: 64,
        status: StatusDetail::Coarse,
    };
    let end = |me| Double {
        sides: Rc::clone(&sides),
        me,
        caps,
        regions: Vec::new(),
        imports: Vec::new(),
    };
    (end(0), end(1))
}

impl Double {
    /// Breaks the connection as a dead peer would: both sides flush.
    pub fn break_connection(&mut self) {
        let mut sides = self.sides.borrow_mut();
        for side in sides.iter_mut() {
            side.fail(EndpointEvent::Failed("broken by the test"));
        }
        flush_unexpected(&mut sides);
    }

    fn region(&self, local: Local) -> Result<Arc<Region>, SubmitError> {
        let region = self.regions.get(local.key.0 as usize).ok_or(SubmitError::OutOfRange)?;
        let end = local.offset.checked_add(u64::from(local.len)).ok_or(SubmitError::OutOfRange)?;
        if end > region.len() { Err(SubmitError::OutOfRange) } else { Ok(Arc::clone(region)) }
    }

    fn remote(&self, remote: Remote, len: u32) -> Result<(Export, u64), SubmitError> {
        let export =
            self.imports.get(remote.key.0 as usize).ok_or(SubmitError::OutOfRange)?.clone();
        let end = remote.offset.checked_add(u64::from(len)).ok_or(SubmitError::OutOfRange)?;
        if end > export.len {
            return Err(SubmitError::OutOfRange);
        }
        let at = export.offset + remote.offset;
        Ok((export, at))
    }

    fn send(&self, message: Message, token: Token) {
        let sides = &mut *self.sides.borrow_mut();
        sides[self.me].in_flight += 1;
        let callback: Callback = Box::new(move |outcome| Settled {
            token,
            outcome,
            len: 0,
            imm: None,
            replay: Replay::Never,
        });
        sides[1 - self.me].unexpected.push_back((message, callback));
        meet(sides, 1 - self.me);
    }

    fn atomic(
        &self,
        into: Local,
        at: Remote,
        token: Token,
        act: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<(), SubmitError> {
        let region = self.region(into)?;
        let (export, offset) = self.remote(at, 8)?;
        self.one_sided(token, 8, export.rights.atomic, || {
            let before = export.region.atomic_u64(offset).map(act);
            before.is_ok_and(|before| region.write_at(into.offset, &before.to_ne_bytes()).is_ok())
        });
        Ok(())
    }

    fn one_sided(&self, token: Token, len: u32, allowed: bool, act: impl FnOnce() -> bool) {
        let mut sides = self.sides.borrow_mut();
        let done = allowed && act();
        let mine = &mut sides[self.me];
        mine.in_flight += 1;
        mine.settle(
            Queue::Send,
            token,
            if done { Outcome::Done } else { Outcome::FailedCoarse },
            len,
            None,
        );
        if !done {
            for side in sides.iter_mut() {
                side.fail(EndpointEvent::Failed("an operation on the peer's memory was refused"));
            }
            flush_unexpected(&mut sides);
        }
    }
}

/// Brings messages and receives of one side together, in order, as long as there are both.
fn meet(sides: &mut [Side; 2], to: usize) {
    while !sides[to].receives.is_empty()
        && let Some((message, callback)) = sides[to].unexpected.pop_front()
    {
        let outcome = sides[to].deliver(&message);
        sides[1 - to].settled.push_back((callback(outcome), Queue::Send));
        if outcome != Outcome::Done {
            sides[to].fail(EndpointEvent::Failed("a message did not fit its receive"));
            sides[1 - to].fail(EndpointEvent::Failed("a message did not fit the peer's receive"));
            flush_unexpected(sides);
        }
    }
}

/// Messages that will never meet a receive settle at their senders.
fn flush_unexpected(sides: &mut [Side; 2]) {
    for to in 0..2 {
        while let Some((_, callback)) = sides[to].unexpected.pop_front() {
            sides[1 - to].settled.push_back((callback(Outcome::Flushed), Queue::Send));
        }
    }
}

impl Endpoint for Double {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<LocalKey, MemoryError> {
        let index = self.regions.iter().position(|r| Arc::ptr_eq(r, region)).unwrap_or_else(|| {
            self.regions.push(Arc::clone(region));
            self.regions.len() - 1
        });
        Ok(LocalKey(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    fn export(
        &mut self,
        key: LocalKey,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteRef, MemoryError> {
        let region = self.regions.get(key.0 as usize).ok_or(MemoryError::UnknownKey)?;
        let size = region.len();
        let end = offset.saturating_add(len);
        if end > size {
            return Err(MemoryError::OutOfRange { offset, end, region: size });
        }
        let exports = &mut self.sides.borrow_mut()[self.me].exports;
        exports.push(Export { region: Arc::clone(region), offset, len, rights });
        Ok(RemoteRef([DESCRIPTOR, (exports.len() - 1).to_string().as_bytes()].concat().into()))
    }

    fn import(&mut self, bytes: &[u8]) -> Result<RemoteKey, MemoryError> {
        let malformed = |reason| MemoryError::Malformed { kind: "double", reason };
        let index =
            bytes.strip_prefix(DESCRIPTOR).ok_or_else(|| malformed("it does not start as one"))?;
        let index: usize = std::str::from_utf8(index)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| malformed("its name is no number"))?;
        let sides = self.sides.borrow();
        let export = sides[1 - self.me]
            .exports
            .get(index)
            .ok_or_else(|| malformed("the peer exported no such region"))?;
        self.imports.push(export.clone());
        Ok(RemoteKey(u32::try_from(self.imports.len() - 1).unwrap_or(u32::MAX)))
    }

    fn submit(&mut self, op: Op<'_>, token: Token) -> Result<(), SubmitError> {
        {
            let sides = self.sides.borrow();
            let mine = &sides[self.me];
            if mine.failed {
                return Err(SubmitError::Degraded);
            }
            let full = match op {
                Op::Recv { .. } => mine.receives.len() >= self.caps.recv_depth as usize,
                _ => mine.in_flight >= self.caps.depth,
            };
            if full {
                return Err(SubmitError::Full);
            }
        }
        match op {
            Op::Send { from, imm } => {
                let region = self.region(from)?;
                let mut bytes = vec![0; from.len as usize];
                region.read_at(from.offset, &mut bytes).map_err(|_| SubmitError::OutOfRange)?;
                self.send(Message::of(bytes, imm), token);
            }
            Op::SendInline { bytes, imm } => {
                if bytes.len() > self.caps.inline as usize {
                    return Err(SubmitError::TooLong { max: self.caps.inline });
                }
                self.send(Message::of(bytes.to_vec(), imm), token);
            }
            Op::Recv { into } => {
                let region = self.region(into)?;
                let sides = &mut *self.sides.borrow_mut();
                sides[self.me].receives.push_back((region, into, token));
                meet(sides, self.me);
            }
            Op::Write { from, to, imm } => {
                let region = self.region(from)?;
                let (export, at) = self.remote(to, from.len)?;
                let len = from.len;
                let copy = || region.copy_to(from.offset, &export.region, at, len.into()).is_ok();
                if imm.is_some() && export.rights.write && copy() {
                    self.send(Message { bytes: Vec::new(), len, imm }, token);
                } else {
                    self.one_sided(token, 0, export.rights.write && imm.is_none(), copy);
                }
            }
            Op::Read { into, from } => {
                let region = self.region(into)?;
                let (export, at) = self.remote(from, into.len)?;
                self.one_sided(token, into.len, export.rights.read, || {
                    export.region.copy_to(at, &region, into.offset, u64::from(into.len)).is_ok()
                });
            }
            Op::CompareSwap { into, at, compare, swap } => {
                self.atomic(into, at, token, |cell| {
                    cell.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                        .unwrap_or_else(|found| found)
                })?;
            }
            Op::FetchAdd { into, at, add } => {
                self.atomic(into, at, token, |cell| cell.fetch_add(add, Ordering::AcqRel))?;
            }
        }
        Ok(())
    }

    fn doorbell(&mut self) {}

    fn poll(&mut self, sink: &mut dyn FnMut(Settled)) -> usize {
        let mut count = 0;
        loop {
            let mut sides = self.sides.borrow_mut();
            let mine = &mut sides[self.me];
            let Some((settled, queue)) = mine.settled.pop_front() else {
                return count;
            };
            if queue == Queue::Send {
                mine.in_flight -= 1;
            }
            drop(sides);
            count += 1;
            sink(settled);
        }
    }

    fn in_flight(&self) -> usize {
        self.sides.borrow()[self.me].in_flight as usize
    }

    fn event(&mut self) -> Option<EndpointEvent> {
        self.sides.borrow_mut()[self.me].event.take()
    }

    fn close(&mut self) {
        let mut sides = self.sides.borrow_mut();
        sides[self.me].fail(EndpointEvent::Failed("closed"));
        sides[1 - self.me].fail(EndpointEvent::Failed("the peer closed"));
        flush_unexpected(&mut sides);
    }

    fn path(&self) -> &'static str {
        "double"
    }
}
