//! `block-client`: stores blocks in a target, reads them back, and compares every byte.

mod session;
mod slots;

use std::time::Duration;

use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::Endpoint;

use super::{Node, NodeContext, Record, Turn};
use crate::block::{BUFFER_BYTES, Open, Opened, PROTOCOL, Post};
use crate::edge::{Desertion, Dial, Dialing, Line, milliseconds};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::LOST_AFTER;
use crate::plan::demand::Queues;
use crate::stream::Inlet;
use session::{Before, Part, Session};

/// Work requests of a block on the send queue: the WRITE and the SEND that commits it; a READ follows when both are done.
pub(crate) const SENDS_PER_BLOCK: u64 = 2;
/// Requests beside those of the blocks: the goodbye, and a keep-alive.
pub(crate) const MORE_REQUESTS: u32 = 2;

/// Queues of one connection with `depth` blocks in flight, at the client: requests out, replies in.
pub(crate) const fn queues(depth: u64) -> Queues {
    let more = MORE_REQUESTS as u64;
    Queues { send: depth * SENDS_PER_BLOCK + more, receive: depth + more }
}

/// Bytes of message buffers for one connection.
pub(crate) const fn message_bytes(depth: u64) -> u64 {
    Post::bytes(depth + MORE_REQUESTS as u64)
}

/// Bytes from one buffer to the next, for blocks of so many bytes at most.
pub(crate) const fn stride(block: u64) -> u64 {
    match block.checked_next_multiple_of(BUFFER_BYTES) {
        Some(0) => BUFFER_BYTES,
        Some(stride) => stride,
        None => u64::MAX,
    }
}

pub(crate) struct BlockClient {
    name: String,
    inlet: Inlet,
    lanes: Vec<Lane>,
    /// What every connection asks for.
    open: Open,
    /// The lane that gets the next block.
    turn: usize,
    /// Told to stop: what is in flight ends, nothing begins.
    stopping: bool,
    desertion: Desertion,
    /// Told to stop before every connection was made.
    unconnected: Option<Failure>,
    /// Blocks that were on their way over connections that were given up.
    unfinished: usize,
}

/// One connection.
enum Lane {
    Dialing(Box<Dialed>),
    Up(Box<Session>),
    Over,
}

/// A connection being made.
struct Dialed {
    dial: Dial,
    part: Part,
    /// What was on its way over the connection before.
    before: Option<Before>,
}

impl Dialed {
    /// Blocks that are not done.
    fn in_flight(&self) -> usize {
        self.before.as_ref().map_or(0, Before::in_flight)
    }
}

impl BlockClient {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let settings = cx.settings();
        let depth = settings.count("depth");
        let verify = settings.flag("verify");
        let inlet = cx.inlet();
        // A lost sign of life would prove nothing; there, blocks are waited for instead.
        let reliable = cx.is_reliable();
        let keep_alive = if reliable { settings.time("keep_alive") } else { Duration::ZERO };
        let request_timeout =
            if reliable { settings.time("request_timeout") } else { Duration::ZERO };
        let dials = cx.dials(PROTOCOL, queues(depth))?;
        let stride = stride(cx.flow().block);
        let open = Open {
            session: pmd_mem::os_entropy(),
            bytes: inlet.length().unwrap_or(0),
            connections: u16::try_from(dials.len()).unwrap_or(u16::MAX),
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
            stride: u32::try_from(stride).unwrap_or(u32::MAX),
            keep_alive_ms: milliseconds(keep_alive),
            held: None,
            memory: Vec::new(),
        };
        let messages = cx.extent("messages");
        let read_back = verify.then(|| cx.extent_opt("read-back")).flatten();
        let lane = |(index, dial): (usize, Dial)| {
            let index = index as u64;
            let share = |extent: &Extent, bytes: u64| {
                let short = || Failure::local(format!("`{}` has too little memory", cx.name()));
                extent.part(index * bytes, bytes).ok_or_else(short)
            };
            let part = Part {
                node: cx.name().to_owned(),
                post: Post::new(share(&messages, message_bytes(depth))?),
                read_back: match &read_back {
                    Some(extent) => Some(share(extent, depth * stride)?),
                    None => None,
                },
                stride,
                // Over an unreliable transport nothing tells that a reply was lost.
                patience: (!reliable).then_some(LOST_AFTER),
                keep_alive,
                request_timeout,
            };
            Ok(Lane::Dialing(Box::new(Dialed { dial, part, before: None })))
        };
        let lanes = dials.into_iter().enumerate().map(lane);
        Ok(Box::new(Self {
            name: cx.name().to_owned(),
            inlet,
            lanes: lanes.collect::<Result<_, Failure>>()?,
            open,
            turn: 0,
            stopping: false,
            desertion: Desertion::default(),
            unconnected: None,
            unfinished: 0,
        }))
    }

    /// Goes on with connecting one lane. Returns whether something happened.
    fn connect(&mut self, index: usize, now: u64, record: &mut Record) -> Result<bool, Failure> {
        let Lane::Dialing(dialed) = &mut self.lanes[index] else { return Ok(false) };
        let Dialed { dial, part, before } = &mut **dialed;
        match dial.poll(now)? {
            Dialing::Waiting => Ok(false),
            Dialing::Reached(endpoint) => {
                let memory = part.equip(endpoint)?;
                let held = before.as_ref().map(Before::held);
                dial.ask(&Open { memory, held, ..self.open.clone() }.encode())?;
                Ok(true)
            }
            Dialing::Connected(answer, line) => {
                let mut session = open_session(part, &answer, line, before.take())?;
                // What it has to do again comes before anything new.
                session.hear(now, record)?;
                record.path(session.path());
                self.lanes[index] = Lane::Up(Box::new(session));
                Ok(true)
            }
        }
    }

    /// Spreads waiting blocks over the lanes that have a slot free.
    fn distribute(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let mut given = 0;
        let mut refusals = 0;
        while refusals < self.lanes.len() && self.inlet.has_block() {
            let index = self.turn;
            self.turn = (self.turn + 1) % self.lanes.len();
            match &mut self.lanes[index] {
                Lane::Up(session) if session.has_room() => {
                    let Some(block) = self.inlet.take() else { break };
                    record.begin(now);
                    session.begin(now, block)?;
                    refusals = 0;
                    given += 1;
                }
                _ => refusals += 1,
            }
        }
        Ok(given)
    }

    /// The target's process is gone: dials it again, where that is wished for.
    fn dial_again(&mut self, index: usize) {
        if let Lane::Up(session) = std::mem::replace(&mut self.lanes[index], Lane::Over)
            && let Some((dial, part, before)) = session.redial()
        {
            let before = Some(before);
            self.lanes[index] = Lane::Dialing(Box::new(Dialed { dial, part, before }));
        }
    }

    /// A target that leaves first takes no more blocks; those in flight still end.
    fn deserted(&mut self, now: u64, session: usize) {
        let Lane::Up(session) = &self.lanes[session] else { return };
        if !self.stopping && !self.desertion.is_noted() {
            self.desertion.note(now, session.peer());
            self.inlet.abandon();
        }
    }

    /// Gives up: the peers learn why, and every block in flight is an error.
    fn give_up(&mut self, failure: &Failure, record: &mut Record) {
        for lane in &mut self.lanes {
            match std::mem::replace(lane, Lane::Over) {
                Lane::Up(session) => {
                    self.unfinished += session.in_flight();
                    session.abort(&failure.verdict);
                }
                Lane::Dialing(dialed) => self.unfinished += dialed.in_flight(),
                Lane::Over => {}
            }
        }
        self.count_errors(record);
    }

    /// It ends with a failure: every block that was begun and is not done is an error.
    fn count_errors(&self, record: &mut Record) {
        (0..self.unfinished.max(1)).for_each(|_| record.error());
    }

    fn turn_of_lanes(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let mut work = 0;
        for index in 0..self.lanes.len() {
            match &mut self.lanes[index] {
                Lane::Up(session) => {
                    work += session.run(now, record)?;
                    if session.is_gone() {
                        self.dial_again(index);
                    } else if session.peer_left() {
                        self.deserted(now, index);
                    }
                }
                Lane::Dialing(_) => {
                    work += usize::from(self.connect(index, now, record)?);
                }
                Lane::Over => {}
            }
        }
        work += self.distribute(now, record)?;
        let drained = self.stopping || self.desertion.is_noted() || self.inlet.is_drained();
        for lane in &mut self.lanes {
            let over = match lane {
                Lane::Up(session) if drained => session.finish(now)?,
                Lane::Up(session) => {
                    session.doorbell();
                    false
                }
                Lane::Dialing(_) => self.stopping,
                Lane::Over => false,
            };
            if over {
                work += 1;
                match std::mem::replace(lane, Lane::Over) {
                    Lane::Up(session) => session.leave(),
                    Lane::Dialing(dialed) => {
                        self.unfinished += dialed.in_flight();
                        let failure = dialed.dial.leave();
                        self.unconnected.get_or_insert(failure);
                    }
                    Lane::Over => {}
                }
            }
        }
        Ok(work)
    }
}

impl Node for BlockClient {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let work = match self.turn_of_lanes(now, record) {
            Ok(work) => work,
            Err(failure) => {
                self.give_up(&failure, record);
                return Err(failure);
            }
        };
        if self.lanes.iter().all(|lane| matches!(lane, Lane::Over)) {
            let ended = match self.unconnected.take() {
                Some(failure) => Err(failure),
                None => self.desertion.settle(now, self.stopping),
            };
            if ended.is_err() {
                self.count_errors(record);
            }
            return ended;
        }
        Ok(Turn::Worked(work))
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.inlet.abandon();
    }

    fn next_timeout(&self) -> Option<u64> {
        let timeouts = self.lanes.iter().filter_map(|lane| match lane {
            Lane::Dialing(dialed) => dialed.dial.next_timeout(),
            Lane::Up(session) => session.next_timeout(),
            Lane::Over => None,
        });
        timeouts.chain(self.desertion.next_timeout()).min()
    }
}

impl std::fmt::Debug for BlockClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Takes what the target granted.
fn open_session(
    part: &Part,
    answer: &[u8],
    mut line: Line,
    before: Option<Before>,
) -> Result<Session, Failure> {
    let opened = Opened::decode(answer).map_err(|error| {
        let summary = format!("{} answered no grant: {error}", line.peer());
        Failure::new(Code::InvalidRequest, Owner::Remote, summary)
    })?;
    let endpoint: &mut dyn Endpoint = line.endpoint();
    let storage = endpoint.import(&opened.memory)?;
    Session::new(part.clone(), line, storage, &opened, before)
}

/// A wait in nanoseconds.
pub(crate) fn nanoseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
}
