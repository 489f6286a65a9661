//! The end that sends back.

use std::collections::VecDeque;

use pmd_observe::Code;
use pmd_verbs::endpoint::{Endpoint, EndpointOptions, LocalKey, Op, Settled, Token};

use super::{PROTOCOL, QUEUES};
use crate::edge::{Acceptor, Admission, Change, Greeting, Host, Line, Refusal};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::PINGPONG_BUFFERS;
use crate::node::clientele::Strangers;
use crate::node::{Node, NodeContext, Record, Turn};

/// Marks the token of a message that is sent back; receives have none.
const PONG: u64 = 1 << 32;

struct Responder {
    acceptor: Acceptor,
    court: Court,
    stopping: bool,
}

/// Everybody who plays.
struct Court {
    name: String,
    size: u32,
    options: EndpointOptions,
    messages: Extent,
    /// By key; each has its own part of the messages.
    players: Vec<Option<Player>>,
    listens: bool,
    here_left: usize,
    serve_left: Option<u64>,
    failed: Option<Failure>,
    errors: u64,
    strangers: Strangers,
}

struct Player {
    here: bool,
    key: LocalKey,
    line: Option<Line>,
    /// Receives whose message is to be sent back, with its length.
    owed: VecDeque<(u64, u32)>,
    /// Lengths of what is being sent back, by receive.
    settled: Vec<Settled>,
}

pub(super) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
    let acceptor = cx.acceptor(PROTOCOL)?.reconnecting();
    let settings = cx.settings();
    let messages = cx.extent("messages");
    let size = settings.size("size").get();
    let parts = messages.len() / (size * u64::from(PINGPONG_BUFFERS));
    let court = Court {
        name: cx.name().to_owned(),
        size: u32::try_from(size).unwrap_or(u32::MAX),
        options: cx.options(cx.transport(), QUEUES),
        messages,
        players: (0..parts).map(|_| None).collect(),
        listens: cx.listens(),
        here_left: cx.clients(),
        serve_left: settings.count_opt("serve"),
        failed: None,
        errors: 0,
        strangers: Strangers::default(),
    };
    Ok(Box::new(Responder { acceptor, court, stopping: false }))
}

impl Node for Responder {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = self.acceptor.poll(now, &mut self.court);
        work += self.court.run(now, record);
        for _ in 0..std::mem::take(&mut self.court.errors) {
            record.error();
        }
        if self.court.serve_left == Some(0) {
            self.acceptor.close();
        }
        let court = &mut self.court;
        let served = court.here_left == 0 && (!court.listens || court.serve_left == Some(0));
        let idle = court.players.iter().all(Option::is_none);
        let done = idle && (served || (self.stopping && self.acceptor.callers() == 0));
        match court.failed.take_if(|_| done) {
            Some(failure) => Err(failure),
            None if done => Ok(Turn::Done),
            None => Ok(Turn::Worked(work)),
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.acceptor.end();
        for player in self.court.players.iter_mut().flatten().filter(|player| !player.here) {
            if let Some(line) = &mut player.line {
                line.announce_end();
            }
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        let players = self.court.players.iter().flatten();
        let lines = players.filter_map(|player| player.line.as_ref()?.next_timeout());
        lines.chain(self.acceptor.next_timeout()).min()
    }
}

impl Court {
    fn run(&mut self, now: u64, record: &mut Record) -> usize {
        let mut work = 0;
        for key in 0..self.players.len() {
            let Some(player) = &mut self.players[key] else { continue };
            let part = Part { messages: &self.messages, key: key as u64, size: self.size };
            match player.run(now, part, record) {
                Ok(done) if player.line.as_ref().is_some_and(Line::peer_left) => {
                    work += done + 1;
                    self.release(key, None);
                }
                Ok(done) => work += done,
                Err(failure) => {
                    work += 1;
                    if let Some(line) = &mut player.line {
                        line.abort(&failure.verdict);
                    }
                    self.release(key, Some(failure));
                }
            }
        }
        work
    }

    fn release(&mut self, key: usize, failure: Option<Failure>) {
        let Some(player) = self.players.get_mut(key).and_then(Option::take) else { return };
        if player.here || player.line.is_some() {
            self.ended(player.here, failure);
        } else if let Some(failure) = failure {
            self.stranger(&failure);
        }
    }

    /// Somebody who did not become a client: who serves goes on waiting for one.
    fn stranger(&mut self, failure: &Failure) {
        self.errors += 1;
        self.strangers.note(&self.name, failure);
    }

    /// A client has ended. Who serves a number of clients misses each that is lost; who serves for ever goes on.
    fn ended(&mut self, here: bool, failure: Option<Failure>) {
        if here {
            self.here_left = self.here_left.saturating_sub(1);
        } else if let Some(left) = &mut self.serve_left {
            *left = left.saturating_sub(1);
        }
        let Some(failure) = failure else { return };
        self.errors += 1;
        if here || self.serve_left.is_some() {
            self.failed.get_or_insert(failure);
        } else {
            tracing::warn!("`{}` lost a client: {failure}", self.name);
        }
    }
}

impl Host for Court {
    fn admit(&mut self, ask: &Greeting<'_>, here: bool) -> Result<Admission, Refusal> {
        let size = ask.payload.try_into().map(u32::from_le_bytes).ok();
        if size != Some(self.size) {
            let (name, ours) = (&self.name, self.size);
            let theirs = size.map_or_else(|| "none".to_owned(), |size| size.to_string());
            let reason = format!("`size` of `{name}` is {ours}, that of the caller {theirs}");
            return Err(Refusal::new(Code::Length, reason));
        }
        let busy = || {
            let reason = format!("`{}` serves as many clients as it can", self.name);
            Refusal::new(Code::PeerNotReady, reason)
        };
        let key = self.players.iter().position(Option::is_none).ok_or_else(busy)?;
        let owed = VecDeque::with_capacity(PINGPONG_BUFFERS as usize);
        self.players[key] =
            Some(Player { here, key: LocalKey(0), line: None, owed, settled: Vec::new() });
        Ok(Admission { key, options: EndpointOptions { transport: ask.transport, ..self.options } })
    }

    fn equip(
        &mut self,
        key: usize,
        _ask: &Greeting<'_>,
        endpoint: &mut dyn Endpoint,
    ) -> Result<Vec<u8>, Refusal> {
        let part = Part { messages: &self.messages, key: key as u64, size: self.size };
        match (part.equip(endpoint), self.players.get_mut(key)) {
            (Ok(local), Some(Some(player))) => {
                player.key = local;
                Ok(Vec::new())
            }
            (Ok(_), _) => Err(Refusal::new(Code::PeerNotReady, "the caller has gone")),
            (Err(failure), _) => {
                let refusal = Refusal::from(&failure.verdict);
                self.release(key, Some(failure));
                Err(refusal)
            }
        }
    }

    fn connected(&mut self, key: usize, line: Line) {
        let Some(Some(player)) = self.players.get_mut(key) else { return };
        let caps = line.caps();
        player.settled = Vec::with_capacity((caps.depth + caps.recv_depth) as usize);
        player.line = Some(line);
    }

    fn lost(&mut self, key: Option<usize>, here: bool, why: Option<Failure>) {
        match (key, why) {
            (Some(key), why) => self.release(key, why),
            (None, why) if here => self.ended(true, why),
            // A stranger, or a client that was told why it may not come in: neither counts as served.
            (None, Some(why)) => self.stranger(&why),
            (None, None) => {}
        }
    }

    fn turned_away(&mut self, count: u64) {
        self.errors += count;
    }
}

/// One player's buffers.
#[derive(Clone, Copy)]
struct Part<'a> {
    messages: &'a Extent,
    key: u64,
    size: u32,
}

impl Part<'_> {
    fn place(self, number: u64) -> u64 {
        (self.key * u64::from(PINGPONG_BUFFERS) + number) * u64::from(self.size)
    }

    fn equip(self, endpoint: &mut dyn Endpoint) -> Result<LocalKey, Failure> {
        let key = endpoint.register(self.messages.region())?;
        for (token, op) in self.receives(key) {
            endpoint.submit(op, token)?;
        }
        Ok(key)
    }

    fn receives(self, key: LocalKey) -> impl Iterator<Item = (Token, Op<'static>)> {
        (0..u64::from(PINGPONG_BUFFERS)).map(move |number| {
            let into = self.messages.local(key, self.place(number), self.size);
            (Token(number), Op::Recv { into })
        })
    }
}

impl Player {
    fn run(&mut self, now: u64, part: Part<'_>, record: &mut Record) -> Result<usize, Failure> {
        let (key, Some(line)) = (self.key, &mut self.line) else { return Ok(0) };
        let found = line.poll(now, &mut self.settled)?;
        for settled in self.settled.drain(..) {
            let number = settled.token.0 & !PONG;
            if settled.token.0 < PONG {
                self.owed.push_back((number, settled.len));
                record.message(now, u64::from(settled.len));
            } else {
                // The message has left its buffer, which can take the next one.
                let into = part.messages.local(key, part.place(number), part.size);
                line.submit(now, Op::Recv { into }, Token(number))?;
            }
        }
        while let Some(change) = line.change() {
            match change {
                // Who asked asks again.
                Change::Broken => self.owed.clear(),
                Change::Renewed => {
                    for (token, op) in part.receives(key) {
                        line.submit(now, op, token)?;
                    }
                }
                Change::Recovered { took_ns } => record.recovered(took_ns),
                Change::Resumed { .. } | Change::PeerGone => {}
            }
        }
        while let Some((number, len)) = self.owed.front().copied() {
            let from = part.messages.local(key, part.place(number), len);
            if !line.submit(now, Op::Send { from, imm: None }, Token(PONG | number))? {
                break;
            }
            self.owed.pop_front();
        }
        line.doorbell();
        Ok(found)
    }
}
