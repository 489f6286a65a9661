//! `kv-server`: keeps small values under keys, and answers many small requests.

mod ranges;
mod serving;
mod table;

use std::collections::HashMap;

use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::{Endpoint, EndpointOptions, LocalKey};
use pmd_verbs::roce::qp::state::Transport;

use super::clientele::Clientele;
use super::{Node, NodeContext, Record, Turn};
use crate::config::units::Size;
use crate::edge::{Acceptor, Admission, Greeting, Host, Line, Patience, Refusal};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::kv::{self, Open, Opened, PROTOCOL, REPLY_BYTES, REQUEST_BYTES};
use ranges::{Range, Ranges};
use serving::{Buffers, Serving};
use table::Table;

pub(crate) use table::table_bytes;

pub(crate) struct KvServer {
    acceptor: Acceptor,
    hall: Hall,
    table: Table,
    /// The reply that is being made.
    reply: Vec<u8>,
    stopping: bool,
}

/// The clients.
struct Hall {
    name: String,
    options: EndpointOptions,
    messages: Extent,
    depth: u32,
    /// Bytes of the longest value that is kept.
    value: u32,
    /// By key; each has its own part of the messages.
    places: Vec<Option<Place>>,
    /// By the session's own number.
    sessions: HashMap<u64, Session>,
    ranges: Ranges,
    /// Of this process: with a range's owner, what tells the range from those of any other process.
    number: u64,
    clientele: Clientele,
}

/// A connection, admitted or made.
struct Place {
    session: u64,
    buffers: Buffers,
    key: LocalKey,
    /// How long the client is silent at most, in milliseconds.
    keep_alive_ms: u32,
    serving: Option<Serving>,
}

/// A client: all its connections, and the keys that they share.
struct Session {
    range: Range,
    here: bool,
    /// Connections that have not ended, those that are still to come included.
    left: u16,
    failed: bool,
    /// Whether any of its connections was made: a client that never got so far does not count as served.
    connected: bool,
}

impl KvServer {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let acceptor = cx.acceptor(PROTOCOL)?.reconnecting();
        let settings = cx.settings();
        let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (depth, value) = (settings.count("depth"), settings.size("value"));
        let messages = cx.extent("messages");
        let places = messages.len() / kv::message_bytes(depth, value.get());
        let (memory, capacity) = (cx.extent("table"), settings.count("capacity"));
        let table = Table::new(memory, capacity, value.get(), cx.flips().to_vec());
        let hall = Hall {
            name: cx.name().to_owned(),
            options: cx.options(Transport::Rc, kv::queues(depth)),
            messages,
            depth: narrow(depth),
            value: narrow(value.get()),
            places: (0..places).map(|_| None).collect(),
            sessions: HashMap::new(),
            ranges: Ranges::default(),
            number: pmd_mem::os_entropy(),
            clientele: Clientele::build(cx),
        };
        let reply = vec![0; REPLY_BYTES + hall.value as usize];
        Ok(Box::new(Self { acceptor, hall, table, reply, stopping: false }))
    }

    /// A fault that was asked for and did not happen: whoever looks for its effect would be misled.
    fn unflipped(&self) -> Option<Failure> {
        let (offset, name) = (self.table.unflipped()?, &self.hall.name);
        let summary = format!("`{name}`: no client put byte {offset}: nothing was flipped");
        Some(Failure::new(Code::InvalidRequest, Owner::Config, summary))
    }

    fn is_done(&self) -> bool {
        let idle = self.hall.places.iter().all(Option::is_none);
        if self.stopping {
            return idle && self.acceptor.callers() == 0;
        }
        self.hall.clientele.has_served_all() && idle
    }
}

impl Node for KvServer {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = self.acceptor.poll(now, &mut self.hall);
        work += self.hall.run(now, &mut self.table, &mut self.reply, record);
        for offset in self.table.flipped() {
            record.flipped(offset);
        }
        for _ in 0..self.hall.clientele.take_errors() {
            record.error();
        }
        if self.hall.clientele.serves_no_more() {
            self.acceptor.close();
        }
        if !self.is_done() {
            return Ok(Turn::Worked(work));
        }
        match self.hall.clientele.take_failure().or_else(|| self.unflipped()) {
            Some(failure) => Err(failure),
            None => Ok(Turn::Done),
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.acceptor.end();
        self.hall.announce_end();
    }

    fn next_timeout(&self) -> Option<u64> {
        let places = self.hall.places.iter().flatten();
        let serving = places.filter_map(|place| place.serving.as_ref()?.next_timeout());
        serving.chain(self.acceptor.next_timeout()).min()
    }
}

impl Hall {
    /// Serves every client. Returns how much was done.
    fn run(&mut self, now: u64, table: &mut Table, reply: &mut [u8], record: &mut Record) -> usize {
        let mut work = 0;
        for key in 0..self.places.len() {
            let Some(place) = &mut self.places[key] else { continue };
            let Some(serving) = &mut place.serving else { continue };
            match serving.run(now, table, reply, record) {
                Ok(_) if serving.has_left() => {
                    work += 1;
                    self.release(key, None);
                }
                Ok(done) => work += done,
                Err(failure) => {
                    work += 1;
                    serving.line().abort(&failure.verdict);
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
                serving.line().announce_end();
            }
        }
    }

    /// A connection has ended; with the last of its client, the client's keys belong to nobody.
    fn release(&mut self, key: usize, failure: Option<Failure>) {
        let Some(place) = self.places.get_mut(key).and_then(Option::take) else { return };
        let Some(session) = self.sessions.get_mut(&place.session) else { return };
        session.left = session.left.saturating_sub(1);
        // A client whose connection was lost does not go on with the others.
        session.failed |= failure.is_some();
        let (here, counts) = (session.here, session.here || session.connected);
        let others = self.places.iter().flatten().any(|other| other.session == place.session);
        // One of another process that has no connection any more has ended, whatever it announced.
        let ended = !others && (session.left == 0 || session.failed || !here);
        if ended && let Some(session) = self.sessions.remove(&place.session) {
            self.ranges.give_back(&session.range);
            if counts {
                self.clientele.ended(here);
            }
        }
        if let Some(failure) = failure {
            self.clientele.lost(here, counts, failure);
        }
    }

    fn admit_session(&mut self, open: &Open, here: bool) -> Result<(), Refusal> {
        if self.sessions.contains_key(&open.session) {
            return Ok(());
        }
        let name = &self.name;
        self.clientele.admit(here)?;
        let wanted = open.keys;
        let range = self.ranges.take(wanted).ok_or_else(|| {
            let reason = format!("`{name}` has no range of {wanted} keys left");
            Refusal::new(Code::Length, reason)
        })?;
        let left = open.connections.max(1);
        let session = Session { range, here, left, failed: false, connected: false };
        self.sessions.insert(open.session, session);
        Ok(())
    }

    /// Registers memory, posts a receive for every request, and says which keys are the client's.
    fn grant(&mut self, key: usize, endpoint: &mut dyn Endpoint) -> Result<Opened, Failure> {
        let gone = || Failure::local("the connection is gone");
        let place = self.places.get_mut(key).and_then(Option::as_mut).ok_or_else(gone)?;
        let session = self.sessions.get(&place.session).ok_or_else(gone)?;
        place.key = endpoint.register(place.buffers.messages.region())?;
        for number in 0..place.buffers.requests() {
            place.buffers.post(endpoint, place.key, number)?;
        }
        let range = self.number.wrapping_add(session.range.owner.into());
        Ok(Opened { first: session.range.first, depth: place.buffers.depth, range })
    }
}

impl Host for Hall {
    fn admit(&mut self, ask: &Greeting<'_>, here: bool) -> Result<Admission, Refusal> {
        let open = Open::decode(ask.payload)
            .map_err(|error| Refusal::new(Code::InvalidRequest, format!("not opened: {error}")))?;
        let (name, most) = (&self.name, self.value);
        if open.value > most {
            let (asked, most) = (open.value, Size::bytes(most.into()));
            let reason = format!(
                "values of {asked} bytes are to be kept, and `{name}` takes up to {most}: raise the `value` of `{name}`"
            );
            return Err(Refusal::new(Code::Length, reason));
        }
        let Some(key) = self.places.iter().position(Option::is_none) else {
            let (name, places) = (&self.name, self.places.len());
            let reason = format!("`{name}` has room for {places} connections, and all are taken");
            return Err(Refusal::new(Code::PeerNotReady, reason));
        };
        let depth = open.depth.clamp(1, self.depth);
        let bytes = kv::message_bytes(self.depth.into(), self.value.into());
        let Some(messages) = self.messages.part(key as u64 * bytes, bytes) else {
            return Err(Refusal::new(Code::PeerNotReady, "no memory for another connection"));
        };
        self.admit_session(&open, here)?;
        let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let buffers = Buffers {
            messages,
            depth,
            stride: narrow(kv::stride(self.value.into())),
            longest: narrow(REQUEST_BYTES as u64 + u64::from(self.value)),
        };
        let requests = buffers.requests();
        self.places[key] = Some(Place {
            session: open.session,
            buffers,
            key: LocalKey(0),
            keep_alive_ms: open.keep_alive_ms,
            serving: None,
        });
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
        match self.grant(key, endpoint) {
            Ok(opened) => Ok(opened.encode().to_vec()),
            Err(failure) => {
                let refusal = Refusal::from(&failure.verdict);
                self.release(key, Some(failure));
                Err(refusal)
            }
        }
    }

    fn connected(&mut self, key: usize, line: Line) {
        let Some(Some(place)) = self.places.get_mut(key) else { return };
        let Some(session) = self.sessions.get_mut(&place.session) else { return };
        session.connected = true;
        let buffers = place.buffers.clone();
        let patience = Patience::new(place.keep_alive_ms);
        place.serving = Some(Serving::new(line, place.key, buffers, session.range, patience));
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

impl std::fmt::Debug for KvServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvServer").field("name", &self.hall.name).finish_non_exhaustive()
    }
}
