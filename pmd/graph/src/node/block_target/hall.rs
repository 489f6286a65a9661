//! The clients of a target, and what they share.

use std::collections::HashMap;
use std::time::Duration;

use pmd_block::Done;
use pmd_lcore::Doorbells;
use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::{Endpoint, EndpointOptions, LocalKey, Rights};
use pmd_verbs::roce::qp::state::Transport;

use super::serving::{self, Ended, Serving, Shelf};
use super::store::Store;
use super::vault::Vault;
use super::{message_bytes, queues};
use crate::block::{BUFFER_BYTES, Held, MESSAGE_BYTES, Open, Opened, Place as Lies};
use crate::edge::{Admission, Greeting, Host, Line, Patience, Refusal};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::{LISTEN_DEPTH, STORE_DEPTH_MAX};
use crate::node::block_client::MORE_REQUESTS;
use crate::node::clientele::Clientele;
use crate::node::deadline::{Deadline, Late};
use crate::node::{NodeContext, Record};
use crate::plan::demand::Queues;

pub(super) struct Hall {
    name: String,
    vault: Vault,
    /// What the store has done in this turn.
    done: Vec<Done>,
    messages: Messages,
    options: EndpointOptions,
    /// By key.
    places: Vec<Option<Place>>,
    /// By the session's own number.
    sessions: HashMap<u64, Session>,
    flips: Vec<u64>,
    /// How long a request may be at the store.
    deadline: Deadline,
    memory_size: u64,
    pub(super) clientele: Clientele,
}

/// A connection, admitted or made.
struct Place {
    session: u64,
    depth: u32,
    messages: Extent,
    /// The region of the messages, once it is registered.
    key: LocalKey,
    shelf: Shelf,
    /// How long the client is silent at most, in milliseconds.
    keep_alive_ms: u32,
    serving: Option<Serving>,
    closing: Option<Closing>,
}

/// A connection that has ended while the store still works on its requests: until then, its memory is nobody else's.
struct Closing {
    at_store: u32,
    /// Since when the store has the oldest of them.
    since: u64,
    failure: Option<Failure>,
}

/// A client: all its connections, and the part of the store that they share.
struct Session {
    /// Where its part of the store begins.
    start: u64,
    capacity: u64,
    here: bool,
    /// Connections that have not ended, those that are still to come included.
    left: u16,
    failed: bool,
    /// Whether any of its connections was made: a client that never got so far does not count as served.
    connected: bool,
}

/// Message buffers for connections: those of this process as large as they ask, a fixed number of places for others.
struct Messages {
    extent: Extent,
    store: Store,
}

impl Hall {
    pub(super) fn build(cx: &NodeContext<'_>) -> Result<Self, Failure> {
        let messages = cx.extent("messages");
        Ok(Self {
            name: cx.name().to_owned(),
            vault: Vault::build(cx)?,
            done: Vec::with_capacity(STORE_DEPTH_MAX),
            messages: Messages {
                store: Store::new(messages.len(), MESSAGE_BYTES as u64),
                extent: messages,
            },
            options: cx.options(Transport::Rc, Queues::default()),
            places: Vec::new(),
            sessions: HashMap::new(),
            flips: cx.flips().to_vec(),
            deadline: Deadline::new(store_timeout(cx)),
            memory_size: cx.memory_size(),
            clientele: Clientele::build(cx),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether nobody is connected, and nothing of those who were is left at the store.
    pub(super) fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    /// What the end comes to.
    pub(super) fn verdict(&mut self) -> Option<Failure> {
        self.clientele.take_failure().or_else(|| self.missed())
    }

    /// A fault that was asked for and did not happen: whoever looks for its effect would be misled.
    fn missed(&self) -> Option<Failure> {
        let name = &self.name;
        let summary = match self.flips.first() {
            Some(offset) => {
                format!("`{name}`: no client stored byte {offset}: nothing was flipped")
            }
            None if self.vault.has_missed_its_fault() => {
                format!("`{name}`: its store was not asked so often: it did not hang")
            }
            None => return None,
        };
        Some(Failure::new(Code::InvalidRequest, Owner::Config, summary))
    }

    /// Serves every client. Returns how much was done.
    ///
    /// # Errors
    /// When the store works for nobody any more.
    pub(super) fn run(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let mut work = self.hear_the_store(now, record)?;
        for key in 0..self.places.len() {
            let Some(place) = &mut self.places[key] else { continue };
            let Some(serving) = &mut place.serving else { continue };
            let (vault, flips) = (&mut self.vault, &mut self.flips);
            match serving.run(now, key, vault, flips, record) {
                Ended::Not(done) => work += done,
                Ended::Well => {
                    work += 1;
                    self.release(key, None);
                }
                Ended::Badly(failure) => {
                    work += 1;
                    self.release(key, Some(failure));
                }
            }
        }
        self.vault.start()?;
        match self.deadline.look(now, || oldest(&self.places)) {
            Late::Yes(waited) => Err(self.vault.stalls(waited)),
            Late::No | Late::Perhaps => Ok(work),
        }
    }

    /// Takes in what the store has done.
    fn hear_the_store(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let mut ended = std::mem::take(&mut self.done);
        self.vault.poll(&mut ended)?;
        let work = ended.len();
        for done in ended.drain(..) {
            let (key, tag) = serving::names(done.token);
            let Some(place) = self.places.get_mut(key).and_then(Option::as_mut) else { continue };
            if let Some(serving) = &mut place.serving {
                if let Some(request) = serving.done(now, tag, done.result, record) {
                    let (vault, flips) = (&mut self.vault, &mut self.flips);
                    serving.request(now, key, &request, vault, flips, record)?;
                }
            } else if let Some(closing) = &mut place.closing {
                closing.at_store -= 1;
                if closing.at_store == 0 {
                    let failure = closing.failure.take();
                    self.leave(key, failure);
                }
            }
        }
        self.done = ended;
        Ok(work)
    }

    /// Clients of other processes learn that this end will leave; those of this process are told to stop themselves.
    pub(super) fn announce_end(&mut self) {
        for place in self.places.iter_mut().flatten() {
            let here = self.sessions.get(&place.session).is_some_and(|session| session.here);
            if let Some(serving) = place.serving.as_mut().filter(|_| !here) {
                serving.announce_end();
            }
        }
    }

    /// Everybody learns why nothing goes on.
    pub(super) fn give_up(&mut self, failure: &Failure) {
        for place in self.places.iter_mut().flatten() {
            if let Some(serving) = &mut place.serving {
                serving.abort(&failure.verdict);
            }
        }
    }

    /// Ends a nap when the store has done something.
    pub(super) fn arm<'a>(&'a self, doorbells: &mut Doorbells<'a>) {
        self.vault.arm(doorbells);
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        let places = self.places.iter().flatten();
        let serving = places.filter_map(|place| place.serving.as_ref()?.next_timeout());
        // Nobody has to look while nothing is there.
        let store = self.deadline.next_timeout().filter(|_| oldest(&self.places).is_some());
        serving.chain(store).min()
    }

    /// A connection has ended; what it has at the store ends first.
    fn release(&mut self, key: usize, failure: Option<Failure>) {
        let Some(place) = &mut self.places[key] else { return };
        let serving = place.serving.take();
        let since = serving.as_ref().and_then(Serving::oldest).unwrap_or(u64::MAX);
        let at_store = serving.map_or(0, |serving| serving.at_store());
        if at_store > 0 {
            place.closing = Some(Closing { at_store, since, failure });
        } else {
            self.leave(key, failure);
        }
    }

    /// Nothing of a connection is left; the last of its client gives back what the client stored.
    fn leave(&mut self, key: usize, failure: Option<Failure>) {
        let Some(place) = self.places[key].take() else { return };
        self.messages.give_back(&place.messages);
        self.vault.give_memory_back(&place.shelf.memory);
        let Some(session) = self.sessions.get_mut(&place.session) else { return };
        session.left = session.left.saturating_sub(1);
        let (here, counts) = (session.here, session.here || session.connected);
        if failure.is_some() {
            // The client does not go on with its other connections.
            session.failed = true;
        }
        let others = self.places.iter().flatten().any(|other| other.session == place.session);
        // One of its connections may have come anew, beyond those that it announced.
        let ended = !others && (session.left == 0 || session.failed);
        if ended && let Some(session) = self.sessions.remove(&place.session) {
            self.vault.give_back(session.start, session.capacity);
            if counts {
                self.clientele.ended(here);
            }
        }
        if let Some(failure) = failure {
            self.clientele.lost(here, counts, failure);
        }
    }

    /// The part of the store that the session has, or now gets.
    fn admit_session(&mut self, open: &Open, here: bool) -> Result<(u64, u64), Refusal> {
        if let Some(session) = self.sessions.get(&open.session) {
            return Ok((session.start, session.capacity));
        }
        self.clientele.admit(here)?;
        let wanted = if open.bytes == 0 { self.vault.largest() } else { open.bytes };
        // A client with nothing to store still gets memory that can be exported.
        let capacity = wanted.max(1);
        let start = match open.held.filter(|held| held.store == self.vault.number()) {
            Some(Held { start, .. }) if self.vault.take_at(start, capacity) => start,
            Some(Held { start, .. }) => {
                let reason = format!(
                    "the {capacity} bytes from {start} of `{}`, where the client's blocks were, belong to another client",
                    self.name
                );
                return Err(Refusal::new(Code::PeerNotReady, reason));
            }
            None => self.vault.take(capacity).ok_or_else(|| self.full(open.bytes))?,
        };
        let left = open.connections.max(1);
        let session = Session { start, capacity, here, left, failed: false, connected: false };
        self.sessions.insert(open.session, session);
        Ok((start, capacity))
    }

    fn full(&self, wanted: u64) -> Refusal {
        let (name, left, size) = (&self.name, self.vault.largest(), self.memory_size);
        let fix = match self.vault.place() {
            Lies::Store => {
                format!("raise memory.size there (it is {size} bytes) or the capacity of `{name}`")
            }
            Lies::Buffers => format!("raise the size of `{name}`"),
        };
        let reason =
            format!("{wanted} bytes are to be stored, and `{name}` has room for {left}: {fix}");
        Refusal::new(Code::Length, reason)
    }

    /// Memory for the bytes of one connection.
    fn shelf(&mut self, open: &Open, part: (u64, u64), depth: u32) -> Result<Shelf, Refusal> {
        let stride = u64::from(open.stride);
        let buffers = stride.saturating_mul(u64::from(depth));
        let place = self.vault.place();
        if place == Lies::Buffers && (stride == 0 || !stride.is_multiple_of(BUFFER_BYTES)) {
            let reason = format!("a stride of {stride} bytes is no multiple of {BUFFER_BYTES}");
            return Err(Refusal::new(Code::InvalidRequest, reason));
        }
        let Some(memory) = self.vault.take_memory(part, buffers) else {
            let (name, left) = (&self.name, self.vault.free_buffers());
            let reason = format!(
                "{depth} blocks of {stride} bytes are to be in flight, and `{name}` has {left} bytes of buffers left: raise the buffers of `{name}`, or lower depth or block"
            );
            return Err(Refusal::new(Code::Length, reason));
        };
        let (key, client) = (LocalKey(0), None);
        Ok(Shelf { place, start: part.0, capacity: part.1, memory, key, stride, client })
    }

    fn place(&mut self, place: Place) -> usize {
        let free = self.places.iter().position(Option::is_none);
        let key = free.unwrap_or(self.places.len());
        if key == self.places.len() {
            self.places.push(None);
        }
        self.places[key] = Some(place);
        key
    }

    /// Registers memory, posts a receive for every request, and exports what the client writes to.
    fn export(
        &mut self,
        key: usize,
        ask: &Greeting<'_>,
        endpoint: &mut dyn Endpoint,
    ) -> Result<Vec<u8>, Failure> {
        let gone = || Failure::local("the connection is gone");
        let place = self.places.get_mut(key).and_then(Option::as_mut).ok_or_else(gone)?;
        place.key = endpoint.register(place.messages.region())?;
        for number in 0..place.depth + MORE_REQUESTS {
            serving::post_receive(endpoint, place.key, &place.messages, number)?;
        }
        let shelf = &mut place.shelf;
        shelf.key = endpoint.register(self.vault.memory().region())?;
        let reads = shelf.place == Lies::Store;
        let rights = Rights { read: reads, write: true, atomic: false };
        let memory =
            endpoint.export(shelf.key, shelf.memory.offset(), shelf.memory.len(), rights)?;
        // It was understood when the client was admitted.
        let open = Open::decode(ask.payload).map_err(|error| Failure::local(error.to_string()))?;
        if !open.memory.is_empty() {
            shelf.client = Some(endpoint.import(&open.memory)?);
        }
        let opened = Opened {
            capacity: shelf.capacity,
            place: shelf.place,
            depth: place.depth,
            held: Held { store: self.vault.number(), start: shelf.start },
            memory: memory.0.into_vec(),
        };
        Ok(opened.encode())
    }
}

/// Since when the store has the oldest request of all.
fn oldest(places: &[Option<Place>]) -> Option<u64> {
    let places = places.iter().flatten();
    let since = places.filter_map(|place| match (&place.serving, &place.closing) {
        (Some(serving), _) => serving.oldest(),
        (None, closing) => closing.as_ref().map(|closing| closing.since),
    });
    since.min()
}

/// A store in memory has done everything at once.
fn store_timeout(cx: &NodeContext<'_>) -> Duration {
    cx.settings().time_opt("store_timeout").unwrap_or(Duration::ZERO)
}

impl Host for Hall {
    fn admit(&mut self, ask: &Greeting<'_>, here: bool) -> Result<Admission, Refusal> {
        let open = Open::decode(ask.payload)
            .map_err(|error| Refusal::new(Code::InvalidRequest, format!("not opened: {error}")))?;
        let most = if here { u64::from(u32::MAX - MORE_REQUESTS) } else { LISTEN_DEPTH };
        let depth = u64::from(open.depth).clamp(1, most);
        let Some(messages) = self.messages.take(message_bytes(depth)) else {
            let reason = format!("`{}` serves as many connections as it can", self.name);
            return Err(Refusal::new(Code::PeerNotReady, reason));
        };
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let admitted = self.admit_session(&open, here);
        let shelf = match admitted.and_then(|part| self.shelf(&open, part, depth)) {
            Ok(shelf) => shelf,
            Err(refusal) => {
                self.messages.give_back(&messages);
                self.forget_session(open.session);
                return Err(refusal);
            }
        };
        let key = self.place(Place {
            session: open.session,
            depth,
            messages,
            key: LocalKey(0),
            shelf,
            keep_alive_ms: open.keep_alive_ms,
            serving: None,
            closing: None,
        });
        let Queues { send, receive } = queues(u64::from(depth));
        let width = |entries| u32::try_from(entries).unwrap_or(u32::MAX);
        let options = EndpointOptions {
            transport: ask.transport,
            depth: width(send),
            recv_depth: width(receive),
            ..self.options
        };
        Ok(Admission { key, options })
    }

    fn equip(
        &mut self,
        key: usize,
        ask: &Greeting<'_>,
        endpoint: &mut dyn Endpoint,
    ) -> Result<Vec<u8>, Refusal> {
        let equipped = self.export(key, ask, endpoint);
        equipped.map_err(|failure| {
            let refusal = Refusal::from(&failure.verdict);
            self.release(key, Some(failure));
            refusal
        })
    }

    fn connected(&mut self, key: usize, line: Line) {
        let Some(Some(place)) = self.places.get_mut(key) else { return };
        let messages = (place.messages.clone(), place.key);
        let (shelf, patience) = (place.shelf.clone(), Patience::new(place.keep_alive_ms));
        place.serving = Some(Serving::new(line, messages, shelf, place.depth, patience));
        if let Some(session) = self.sessions.get_mut(&place.session) {
            session.connected = true;
        }
    }

    fn lost(&mut self, key: Option<usize>, here: bool, why: Option<Failure>) {
        match key {
            Some(key) => self.release(key, why),
            None => self.clientele.never_came(here, why),
        }
    }

    fn turned_away(&mut self, count: u64) {
        self.clientele.turned_away(count);
    }
}

impl Hall {
    /// A session none of whose connections was admitted.
    fn forget_session(&mut self, session: u64) {
        let connected = self.places.iter().flatten().any(|place| place.session == session);
        if !connected && let Some(session) = self.sessions.remove(&session) {
            self.vault.give_back(session.start, session.capacity);
        }
    }
}

impl Messages {
    fn take(&mut self, bytes: u64) -> Option<Extent> {
        let start = self.store.take(bytes)?;
        self.extent.part(start, bytes)
    }

    fn give_back(&mut self, messages: &Extent) {
        self.store.give_back(messages.offset() - self.extent.offset(), messages.len());
    }
}
