//! `block-target`: holds the blocks that clients write and read.

mod serving;
mod store;

use std::collections::HashMap;

use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::{Endpoint, EndpointOptions, LocalKey, Rights};
use pmd_verbs::roce::qp::state::Transport;

use super::{Node, NodeContext, Record, Turn};
use crate::block::{MESSAGE_BYTES, MESSAGE_LEN, Open, Opened, PROTOCOL};
use crate::edge::{Acceptor, Admission, Greeting, Host, Line, Refusal};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::LISTEN_DEPTH;
use crate::node::block_client::MORE_REQUESTS;
use crate::plan::demand::Queues;
use serving::{Ended, Serving};
use store::Store;

/// Parts of the store begin at multiples of this, so that what one client writes shares no page with another.
const PAGE: u64 = 4096;

/// Queues of one connection with `depth` requests in flight, at the target: replies out, requests in.
pub(crate) const fn queues(depth: u64) -> Queues {
    let requests = depth + MORE_REQUESTS as u64;
    Queues { send: requests, receive: requests }
}

/// Bytes of message buffers for one connection: a receive for every request, and a copy of every reply for devices that
/// cannot send inline.
pub(crate) const fn message_bytes(depth: u64) -> u64 {
    (depth + MORE_REQUESTS as u64) * 2 * MESSAGE_BYTES as u64
}

pub(crate) struct BlockTarget {
    acceptor: Acceptor,
    hall: Hall,
    stopping: bool,
}

/// The clients, and what they share.
struct Hall {
    name: String,
    store: Store,
    storage: Extent,
    messages: Messages,
    options: EndpointOptions,
    /// By key.
    places: Vec<Option<Place>>,
    /// By the session's own number.
    sessions: HashMap<u64, Session>,
    flips: Vec<u64>,
    memory_size: u64,
    listens: bool,
    /// Clients of this process that have not ended.
    here_left: usize,
    /// Clients of other processes that have not ended; `None`: for ever.
    serve_left: Option<u64>,
    /// Why the first client that counts was lost.
    failed: Option<Failure>,
    errors: u64,
}

/// A connection, admitted or made.
struct Place {
    session: u64,
    depth: u32,
    messages: Extent,
    /// The region of the messages, once it is registered.
    key: LocalKey,
    serving: Option<Serving>,
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

impl BlockTarget {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let acceptor = cx.acceptor(PROTOCOL)?;
        let storage = cx.extent("storage");
        let messages = cx.extent("messages");
        let hall = Hall {
            name: cx.name().to_owned(),
            store: Store::new(storage.len(), PAGE),
            storage,
            messages: Messages {
                store: Store::new(messages.len(), MESSAGE_BYTES as u64),
                extent: messages,
            },
            options: cx.options(Transport::Rc, Queues::default()),
            places: Vec::new(),
            sessions: HashMap::new(),
            flips: cx.flips().to_vec(),
            memory_size: cx.memory_size(),
            listens: cx.listens(),
            here_left: cx.clients(),
            serve_left: cx.settings().count_opt("serve"),
            failed: None,
            errors: 0,
        };
        Ok(Box::new(Self { acceptor, hall, stopping: false }))
    }

    fn is_done(&self) -> bool {
        let idle = self.acceptor.callers() == 0 && self.hall.is_empty();
        if self.stopping {
            return idle;
        }
        let served = !self.hall.listens || self.hall.serve_left == Some(0);
        served && self.hall.here_left == 0 && self.hall.is_empty()
    }
}

impl Node for BlockTarget {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = self.acceptor.poll(now, &mut self.hall);
        work += self.hall.run(now, record);
        for _ in 0..std::mem::take(&mut self.hall.errors) {
            record.error();
        }
        if self.hall.serve_left == Some(0) {
            self.acceptor.close();
        }
        if !self.is_done() {
            return Ok(Turn::Worked(work));
        }
        match self.hall.failed.take().or_else(|| self.hall.unflipped()) {
            Some(failure) => Err(failure),
            None => Ok(Turn::Done),
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.acceptor.close();
        self.hall.announce_end();
    }

    fn next_timeout(&self) -> Option<u64> {
        let places = self.hall.places.iter().flatten();
        let serving = places.filter_map(|place| place.serving.as_ref()?.next_timeout());
        serving.chain(self.acceptor.next_timeout()).min()
    }
}

impl Hall {
    /// A fault that was asked for and did not happen: whoever looks for its effect would be misled.
    fn unflipped(&self) -> Option<Failure> {
        let offset = self.flips.first()?;
        let name = &self.name;
        let summary = format!("`{name}`: no client stored byte {offset}: nothing was flipped");
        Some(Failure::new(Code::InvalidRequest, Owner::Config, summary))
    }

    fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    /// Serves every client. Returns how much was done.
    fn run(&mut self, now: u64, record: &mut Record) -> usize {
        let mut work = 0;
        for key in 0..self.places.len() {
            let Some(place) = &mut self.places[key] else { continue };
            let Some(serving) = &mut place.serving else { continue };
            let Some(session) = self.sessions.get(&place.session) else { continue };
            let Some(stored) = self.storage.part(session.start, session.capacity) else { continue };
            match serving.run(now, &stored, &mut self.flips, record) {
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
        work
    }

    /// Clients of other processes learn that this end will leave; those of this process are told to stop themselves.
    fn announce_end(&mut self) {
        for place in self.places.iter_mut().flatten() {
            let here = self.sessions.get(&place.session).is_some_and(|session| session.here);
            if let Some(serving) = place.serving.as_mut().filter(|_| !here) {
                serving.announce_end();
            }
        }
    }

    /// A connection has ended; the last of its client gives back what the client stored.
    fn release(&mut self, key: usize, failure: Option<Failure>) {
        let Some(place) = self.places[key].take() else { return };
        self.messages.give_back(&place.messages);
        let Some(session) = self.sessions.get_mut(&place.session) else { return };
        session.left = session.left.saturating_sub(1);
        let (here, counts) = (session.here, session.here || session.connected);
        if failure.is_some() {
            // The client does not go on with its other connections.
            session.failed = true;
        }
        let others = self.places.iter().flatten().any(|other| other.session == place.session);
        let ended = session.left == 0 || (session.failed && !others);
        if ended && let Some(session) = self.sessions.remove(&place.session) {
            self.store.give_back(session.start, session.capacity);
            if counts {
                self.ended(here);
            }
        }
        match failure {
            Some(failure) if counts => self.lost_client(here, failure),
            Some(failure) => self.turned_away(&failure),
            None => {}
        }
    }

    /// A client has ended, well or not.
    fn ended(&mut self, here: bool) {
        if here {
            self.here_left = self.here_left.saturating_sub(1);
        } else if let Some(left) = &mut self.serve_left {
            *left = left.saturating_sub(1);
        }
    }

    /// Who serves a number of clients misses each of them; who serves for ever goes on.
    fn lost_client(&mut self, here: bool, failure: Failure) {
        self.errors += 1;
        if here || self.serve_left.is_some() {
            self.failed.get_or_insert(failure);
        } else {
            tracing::warn!("`{}` lost a client: {failure}", self.name);
        }
    }

    /// Somebody who did not become a client: who serves goes on waiting for one.
    fn turned_away(&mut self, failure: &Failure) {
        self.errors += 1;
        tracing::warn!("`{}`: {failure}", self.name);
    }

    fn admit_session(&mut self, open: &Open, here: bool) -> Result<(), Refusal> {
        if self.sessions.contains_key(&open.session) {
            return Ok(());
        }
        if !here && self.serve_left == Some(0) {
            let reason = format!("`{}` has served all clients it was to serve", self.name);
            return Err(Refusal::new(Code::PeerNotReady, reason));
        }
        let wanted = if open.bytes == 0 { self.store.largest() } else { open.bytes };
        // A client with nothing to store still gets memory that can be exported.
        let Some(start) = self.store.take(wanted.max(1)) else {
            return Err(self.full(open.bytes));
        };
        let capacity = wanted.max(1);
        let left = open.connections.max(1);
        let session = Session { start, capacity, here, left, failed: false, connected: false };
        self.sessions.insert(open.session, session);
        Ok(())
    }

    fn full(&self, wanted: u64) -> Refusal {
        let (name, left, size) = (&self.name, self.store.largest(), self.memory_size);
        let reason = format!(
            "{wanted} bytes are to be stored, and `{name}` has room for {left}: raise memory.size there (it is {size} bytes) or the capacity of `{name}`"
        );
        Refusal::new(Code::Length, reason)
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
        if let Err(refusal) = self.admit_session(&open, here) {
            self.messages.give_back(&messages);
            return Err(refusal);
        }
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let key = self.place(Place {
            session: open.session,
            depth,
            messages,
            key: LocalKey(0),
            serving: None,
        });
        let requests = depth + MORE_REQUESTS;
        let options = EndpointOptions {
            transport: ask.transport,
            depth: requests,
            recv_depth: requests,
            ..self.options
        };
        Ok(Admission { key, options })
    }

    fn equip(
        &mut self,
        key: usize,
        _ask: &Greeting<'_>,
        endpoint: &mut dyn Endpoint,
    ) -> Result<Vec<u8>, Refusal> {
        let equipped = self.export(key, endpoint);
        equipped.map_err(|failure| {
            let refusal = Refusal::from(&failure.verdict);
            self.release(key, Some(failure));
            refusal
        })
    }

    fn connected(&mut self, key: usize, line: Line) {
        let Some(Some(place)) = self.places.get_mut(key) else { return };
        let (messages, depth) = (place.messages.clone(), place.depth);
        place.serving = Some(Serving::new(line, place.key, messages, depth));
        if let Some(session) = self.sessions.get_mut(&place.session) {
            session.connected = true;
        }
    }

    fn lost(&mut self, key: Option<usize>, here: bool, why: Option<Failure>) {
        match (key, why) {
            (Some(key), why) => self.release(key, why),
            (None, why) if here => {
                self.ended(true);
                if let Some(why) = why {
                    self.lost_client(true, why);
                }
            }
            // A stranger, or a client that was told why it may not come in: neither counts as served.
            (None, Some(why)) => self.turned_away(&why),
            (None, None) => {}
        }
    }
}

impl Hall {
    /// Registers memory, posts a receive for every request, and exports the client's part of the store.
    fn export(&mut self, key: usize, endpoint: &mut dyn Endpoint) -> Result<Vec<u8>, Failure> {
        let gone = || Failure::local("the connection is gone");
        let place = self.places.get_mut(key).and_then(Option::as_mut).ok_or_else(gone)?;
        let session = self.sessions.get(&place.session).ok_or_else(gone)?;
        place.key = endpoint.register(place.messages.region())?;
        for number in 0..place.depth + MORE_REQUESTS {
            serving::post_receive(endpoint, place.key, &place.messages, number)?;
        }
        let storage = endpoint.register(self.storage.region())?;
        let start = self.storage.offset() + session.start;
        let rights = Rights { read: true, write: true, atomic: false };
        let memory = endpoint.export(storage, start, session.capacity, rights)?;
        let opened =
            Opened { capacity: session.capacity, depth: place.depth, memory: memory.0.into_vec() };
        Ok(opened.encode())
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

impl std::fmt::Debug for BlockTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockTarget").field("name", &self.hall.name).finish_non_exhaustive()
    }
}

const _: () = assert!(MESSAGE_LEN as usize == MESSAGE_BYTES);
