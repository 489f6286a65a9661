//! One peer device, as the control thread knows it: its connection, what it exported, the links to it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use arrayvec::ArrayVec;
use pmd_mem::{MapAccess, Mapping, MemoryTable, PeerTable, Region, Segment};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use super::Refusal;
use super::fdpass::{self, FDS_MAX, PeerCred, Received};
use super::fence::{Watch, Who};
use super::handshake::{Expected, Hello, MESSAGE_MAX, Message};
use super::limits::{CONTROL_BACKLOG, CONTROL_BURST, QPS_MAX, REGION_BYTES_MAX, REGIONS_MAX};
use super::link::{Bell, Link, LinkFault, Parts, PeerInfo, ring_bytes};
use super::mailbox::{Event, Mailbox, NoSlot};
use super::page::page_bytes;
use super::port::{AttachError, Fd, PeerName, Shared, gid, lock};
use super::reach::{Own, PeerRegion, put};

/// Somebody who waits for a link.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) lcore: u8,
    pub(super) peer: PeerName,
    pub(super) until: Instant,
    pub(super) reply: SyncSender<Result<u32, AttachError>>,
}

impl Waiter {
    pub(super) fn answer(self, answer: Result<u32, AttachError>) {
        // Who stopped waiting needs no answer.
        self.reply.try_send(answer).unwrap_or_default();
    }
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Of itself, or by our decision.
    Fault(LinkFault),
    /// This side refuses the peer, and says so.
    Unfit(Refusal),
    /// The peer refused this side.
    Refused(Refusal),
}

/// What came of listening to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It introduced itself; there may be more.
    Hello,
    /// All it has said so far.
    All,
    /// A burst; there may be more.
    Burst,
}

/// A link in the making, or made: this lcore, that lcore.
#[derive(Debug)]
struct Pair {
    local: u8,
    remote: u8,
    /// What this side writes.
    mine: Arc<Region>,
    id: Option<u32>,
}

/// What the peer let us see of it.
#[derive(Debug)]
struct Exports {
    table: PeerTable,
    pages: Vec<Arc<Segment>>,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) key: u64,
    socket: Arc<OwnedFd>,
    cred: PeerCred,
    process: Option<OwnedFd>,
    /// The prefix that this side called; `None`: the peer called.
    pub(super) dialed: Option<u8>,
    pub(super) hello: Option<Box<Hello>>,
    exports: Option<Exports>,
    regions: Vec<Option<PeerRegion>>,
    pairs: Vec<Pair>,
    pub(super) waiters: Vec<Waiter>,
    backlog: VecDeque<(Message, Vec<Fd>)>,
    /// Until when it must have introduced itself and exported.
    pub(super) greeting_until: Instant,
    gone: Arc<AtomicBool>,
}

type Fds = ArrayVec<OwnedFd, FDS_MAX>;

impl Peer {
    pub(super) fn new(
        key: u64,
        socket: OwnedFd,
        dialed: Option<u8>,
        greeting_until: Instant,
    ) -> io::Result<Self> {
        let cred = fdpass::peer_cred(&socket)?;
        // A process that is gone already, or is not visible from here, is noticed by the socket's end.
        let process = i32::try_from(cred.pid)
            .ok()
            .and_then(Pid::from_raw)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self {
            key,
            socket: Arc::new(socket),
            cred,
            process,
            dialed,
            hello: None,
            exports: None,
            regions: Vec::new(),
            pairs: Vec::new(),
            waiters: Vec::new(),
            backlog: VecDeque::new(),
            greeting_until,
            gone: Arc::default(),
        })
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) const fn process(&self) -> Option<&OwnedFd> {
        self.process.as_ref()
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Whether it has introduced itself and exported.
    pub(super) const fn is_ready(&self) -> bool {
        self.exports.is_some()
    }

    /// The prefix it has, or should have.
    pub(super) fn prefix(&self) -> Option<u8> {
        self.hello.as_ref().map(|hello| hello.prefix).or(self.dialed)
    }

    // Talking ---------------------------------------------------------------------------------

    pub(super) fn say(&mut self, message: Message, fds: Vec<Fd>) -> Result<(), End> {
        if self.backlog.len() >= CONTROL_BACKLOG {
            return Err(End::Fault(LinkFault::Deaf));
        }
        self.backlog.push_back((message, fds));
        self.flush()
    }

    /// Sends what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), End> {
        while let Some((message, fds)) = self.backlog.front() {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send(&self.socket, &message.encode(), &fds) {
                Ok(true) => drop(self.backlog.pop_front()),
                Ok(false) => break,
                // What it said last, and whether its process died, is found by reading.
                Err(_) => {
                    self.backlog.clear();
                    break;
                }
            }
        }
        Ok(())
    }

    /// Introduces this side.
    pub(super) fn introduce(&mut self, shared: &Shared) -> Result<(), End> {
        let wants = self.waiters.first().and_then(|waiter| waiter.peer.nonce);
        self.say(Message::Hello(Box::new(Hello { wants, ..shared.hello.clone() })), Vec::new())
    }

    /// The peer's next message, if there is one.
    pub(super) fn hear(&mut self) -> Result<Option<(Message, Fds)>, End> {
        let mut bytes = [0; MESSAGE_MAX];
        match fdpass::receive(&self.socket, &mut bytes) {
            Ok(Received::Message(len, fds)) => match Message::decode(&bytes[..len]) {
                Some(message) => Ok(Some((message, fds))),
                None => Err(End::Unfit(Refusal::Nonsense)),
            },
            Ok(Received::Nothing) => Ok(None),
            // No goodbye: whatever it was, that process cannot be counted on any more.
            Ok(Received::HangUp) => Err(End::Fault(LinkFault::Dead)),
            Err(_) => Err(End::Unfit(Refusal::Nonsense)),
        }
    }

    /// Reads and acts, a burst of messages at most. Stops after a valid Hello: whether two connections cross is for the caller to
    /// find out.
    pub(super) fn listen(&mut self, shared: &Shared) -> Result<Heard, End> {
        for _ in 0..CONTROL_BURST {
            let Some((message, fds)) = self.hear()? else { return Ok(Heard::All) };
            if let Message::Hello(hello) = message {
                if self.hello.is_some() {
                    return Err(End::Unfit(Refusal::Nonsense));
                }
                let expected = Expected { prefix: self.dialed, ..Expected::default() };
                hello.check(&shared.hello, self.cred.uid, &expected).map_err(End::Unfit)?;
                self.hello = Some(hello);
                return Ok(Heard::Hello);
            }
            self.act(shared, message, &fds)?;
        }
        Ok(Heard::Burst)
    }

    /// Exports what this device has, after both sides have introduced themselves.
    pub(super) fn export_all(&mut self, shared: &Shared) -> Result<(), End> {
        let mut fds = vec![Fd::Region(Arc::clone(&shared.table_region))];
        fds.extend(shared.pages.iter().map(|page| Fd::Region(Arc::clone(page))));
        let (table_bytes, page_bytes) = (shared.table_region.len(), shared.pages[0].len());
        self.say(Message::Exports { table_bytes, page_bytes }, fds)?;
        let ids: Vec<u32> = lock(&shared.regions).keys().copied().collect();
        ids.into_iter().try_for_each(|id| self.export(shared, id))
    }

    /// Exports a region, if it is one for peers.
    pub(super) fn export(&mut self, shared: &Shared, id: u32) -> Result<(), End> {
        if self.hello.is_none() {
            return Ok(());
        }
        let Some(exported) = lock(&shared.regions).get(&id).cloned() else { return Ok(()) };
        let Some((fd, writable)) = exported.fd else {
            return self.say(Message::Private { id }, Vec::new());
        };
        self.say(Message::Region { id, bytes: exported.segment.len(), writable }, vec![fd])
    }

    pub(super) fn retire(&mut self, id: u32) -> Result<(), End> {
        if self.hello.is_some() { self.say(Message::Retire { id }, Vec::new()) } else { Ok(()) }
    }

    fn act(&mut self, shared: &Shared, message: Message, fds: &Fds) -> Result<(), End> {
        let nonsense = Err(End::Unfit(Refusal::Nonsense));
        match (message, self.exports.is_some()) {
            (Message::Refuse(refusal), _) => Err(End::Refused(refusal)),
            (Message::Bye, _) => Err(End::Fault(LinkFault::Closed)),
            (Message::Exports { table_bytes, page_bytes }, false) if self.hello.is_some() => {
                self.take_exports(shared, table_bytes, page_bytes, fds)?;
                self.attach_waiting(shared)
            }
            (Message::Region { id, bytes, writable }, true)
                if id < REGIONS_MAX && bytes <= REGION_BYTES_MAX =>
            {
                let Some(fd) = fds.first() else { return nonsense };
                let access = if writable { MapAccess::ReadWrite } else { MapAccess::Read };
                let segment = import(fd, access, bytes)?;
                self.mapped(shared, id, Some(&PeerRegion::Mapped(segment)));
                Ok(())
            }
            (Message::Retire { id }, true) if id < REGIONS_MAX => {
                self.mapped(shared, id, None);
                Ok(())
            }
            (Message::Private { id }, true) if id < REGIONS_MAX => {
                self.mapped(shared, id, Some(&PeerRegion::Private));
                Ok(())
            }
            (Message::Wake { lcore }, true) => {
                let Some(mailbox) = shared.mailboxes().get(usize::from(lcore)) else {
                    return nonsense;
                };
                mailbox.ring();
                Ok(())
            }
            (Message::Attach { from, to, bytes }, true) => {
                let Some(fd) = fds.first() else { return nonsense };
                self.attached(shared, from, to, fd, bytes)
            }
            (Message::Decline { from, to, refusal }, true) => {
                self.pairs
                    .retain(|pair| pair.id.is_some() || (pair.local, pair.remote) != (from, to));
                self.answer(from, to, Err(AttachError::Refused { pid: self.cred.pid, refusal }));
                Ok(())
            }
            _ => nonsense,
        }
    }

    // What the peer exports -------------------------------------------------------------------

    fn take_exports(
        &mut self,
        shared: &Shared,
        table_bytes: u64,
        each_page: u64,
        fds: &Fds,
    ) -> Result<(), End> {
        let unfit = |_| End::Unfit(Refusal::Export);
        let lcores = self.hello.as_ref().map_or(0, |hello| usize::from(hello.lcores));
        let fits = table_bytes
            <= MemoryTable::bytes(pmd_mem::limits::TABLE_ENTRIES_MAX).next_multiple_of(1 << 16)
            && each_page <= page_bytes(QPS_MAX).next_multiple_of(1 << 16)
            && fds.len() == lcores + 1;
        if !fits {
            return Err(End::Unfit(Refusal::Nonsense));
        }
        let table = PeerTable::import(&import(&fds[0], MapAccess::Read, table_bytes)?)
            .map_err(|_| End::Unfit(Refusal::Export))?;
        let mut pages = Vec::with_capacity(lcores);
        let who = Who::Peer { key: self.key, pid: self.cred.pid };
        for fd in &fds[1..] {
            let page = import(fd, MapAccess::Read, each_page)?;
            lock(&shared.watches).push(Watch::new(&page, who, &self.gone).map_err(unfit)?);
            pages.push(page);
        }
        self.exports = Some(Exports { table, pages });
        Ok(())
    }

    fn mapped(&mut self, shared: &Shared, id: u32, region: Option<&PeerRegion>) {
        put(&mut self.regions, id, region.cloned());
        for lcore in self.linked_lcores() {
            let region = region.cloned();
            shared.mailbox(lcore).post(Event::Mapped { key: self.key, id, region });
        }
    }

    /// The lcores of this device that have links to the peer, each once.
    fn linked_lcores(&self) -> Vec<u8> {
        let mut lcores: Vec<u8> =
            self.pairs.iter().filter(|pair| pair.id.is_some()).map(|pair| pair.local).collect();
        lcores.sort_unstable();
        lcores.dedup();
        lcores
    }

    // Links -----------------------------------------------------------------------------------

    /// Starts, or answers, what can be of the waiting attaches.
    pub(super) fn attach_waiting(&mut self, shared: &Shared) -> Result<(), End> {
        if self.exports.is_none() {
            return Ok(());
        }
        let waiters = core::mem::take(&mut self.waiters);
        for waiter in waiters {
            if let Err(refusal) = self.suits(shared, &waiter.peer) {
                waiter.answer(Err(AttachError::Unfit { pid: self.cred.pid, refusal }));
                continue;
            }
            let (local, remote) = (waiter.lcore, waiter.peer.lcore);
            match self.pairs.iter().find(|pair| (pair.local, pair.remote) == (local, remote)) {
                Some(Pair { id: Some(id), .. }) => waiter.answer(Ok(*id)),
                Some(_) => self.waiters.push(waiter),
                None => match shared.link_region() {
                    Ok(mine) => {
                        self.waiters.push(waiter);
                        self.offer(local, remote, mine)?;
                    }
                    Err(_) => {
                        let kind = io::ErrorKind::OutOfMemory;
                        waiter.answer(Err(AttachError::Io { step: "make a ring", kind }));
                    }
                },
            }
        }
        Ok(())
    }

    /// Whether this is whom somebody wants to reach.
    fn suits(&self, shared: &Shared, name: &PeerName) -> Result<(), Refusal> {
        let Some(hello) = &self.hello else { return Err(Refusal::Nonsense) };
        let expected = Expected {
            prefix: Some(name.prefix),
            nonce: name.nonce,
            address: name.address.map(gid),
        };
        // Whom the peer wanted was checked when it introduced itself.
        let hello = Hello { wants: None, ..(**hello).clone() };
        hello.check(&shared.hello, self.cred.uid, &expected)?;
        if name.lcore < hello.lcores { Ok(()) } else { Err(Refusal::Lcore(name.lcore)) }
    }

    /// Sends this side's half of a link.
    fn offer(&mut self, local: u8, remote: u8, mine: Arc<Region>) -> Result<(), End> {
        let bytes = mine.len();
        let fd = Fd::Region(Arc::clone(&mine));
        self.pairs.push(Pair { local, remote, mine, id: None });
        self.say(Message::Attach { from: local, to: remote, bytes }, vec![fd])
    }

    /// The peer's half of a link came.
    fn attached(
        &mut self,
        shared: &Shared,
        from: u8,
        to: u8,
        fd: &OwnedFd,
        bytes: u64,
    ) -> Result<(), End> {
        let lcores = self.hello.as_ref().map_or(0, |hello| hello.lcores);
        if from >= lcores || ring_bytes(bytes).is_none() {
            return Err(End::Unfit(Refusal::Nonsense));
        }
        let (local, remote) = (to, from);
        let known = self.pairs.iter().position(|pair| (pair.local, pair.remote) == (local, remote));
        if known.is_some_and(|at| self.pairs[at].id.is_some()) {
            return Err(End::Unfit(Refusal::Nonsense));
        }
        let theirs = import(fd, MapAccess::Read, bytes)?;
        let decline = |refusal| (Message::Decline { from, to, refusal }, Vec::new());
        let mailbox = shared.mailboxes().get(usize::from(local));
        let id = match mailbox.map_or(Err(NoSlot::Closed), Mailbox::allocate) {
            Ok(id) => id,
            Err(no_slot) => {
                self.pairs.retain(|pair| (pair.local, pair.remote) != (local, remote));
                let (error, refusal) = match no_slot {
                    NoSlot::Closed => (AttachError::NoSuchLcore(local), Refusal::Lcore(to)),
                    NoSlot::Full => (AttachError::Full, Refusal::Full),
                };
                self.answer(local, remote, Err(error));
                let (message, fds) = decline(refusal);
                return self.say(message, fds);
            }
        };
        let made = match known.map_or_else(|| shared.link_region().map(Some), |_| Ok(None)) {
            Ok(None) => Ok(()),
            Ok(Some(mine)) => self.offer(local, remote, mine),
            Err(_) => {
                shared.mailbox(local).release(id);
                let (message, fds) = decline(Refusal::Full);
                return self.say(message, fds);
            }
        };
        match made.and_then(|()| self.link(shared, local, remote, &theirs)) {
            Ok(link) => shared.mailbox(local).post(Event::Linked { id, link: Box::new(link) }),
            Err(end) => {
                shared.mailbox(local).release(id);
                return Err(end);
            }
        }
        if let Some(pair) =
            self.pairs.iter_mut().find(|pair| (pair.local, pair.remote) == (local, remote))
        {
            pair.id = Some(id);
        }
        self.answer(local, remote, Ok(id));
        Ok(())
    }

    fn link(
        &self,
        shared: &Shared,
        local: u8,
        remote: u8,
        theirs: &Arc<Segment>,
    ) -> Result<Link, End> {
        let nonsense = End::Unfit(Refusal::Nonsense);
        let (Some(hello), Some(exports)) = (&self.hello, &self.exports) else {
            return Err(nonsense);
        };
        let pair = self
            .pairs
            .iter()
            .find(|pair| (pair.local, pair.remote) == (local, remote))
            .ok_or(nonsense)?;
        let peer = PeerInfo {
            pid: self.cred.pid,
            prefix: hello.prefix,
            lcore: remote,
            nonce: hello.nonce,
        };
        Link::new(Parts {
            peer,
            here: (shared.prefix.prefix(), local),
            key: self.key,
            mine: pair.mine.segment(),
            theirs,
            page: exports.pages.get(usize::from(remote)).ok_or(nonsense)?,
            table: exports.table.clone(),
            regions: self.regions.clone(),
            bell: Bell::Outside(Arc::clone(&self.socket), remote),
            // Filled in by the lcore, which knows it.
            own: Arc::new(Own { table: Arc::clone(&shared.table), regions: Vec::new() }),
        })
        .map_err(|_| End::Unfit(Refusal::Export))
    }

    /// Answers all who wait for a link.
    fn answer(&mut self, local: u8, remote: u8, answer: Result<u32, AttachError>) {
        let (answered, waiting) = core::mem::take(&mut self.waiters)
            .into_iter()
            .partition(|waiter| (waiter.lcore, waiter.peer.lcore) == (local, remote));
        self.waiters = waiting;
        let answered: Vec<Waiter> = answered;
        answered.into_iter().for_each(|waiter| waiter.answer(answer));
    }

    // The end ---------------------------------------------------------------------------------

    /// Whether its process has ended, or it has hung up: there may still be something to hear.
    pub(super) fn has_left(&self) -> bool {
        let mut fds = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let hung_up = rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
        hung_up || self.process.as_ref().is_some_and(has_ended)
    }

    /// Ends the connection: tells the peer where it should know, this device's lcores, and who waits. What is left to watch is
    /// returned while the process lives.
    pub(super) fn end(mut self, shared: &Shared, end: End) -> Option<Departed> {
        let last_word = match end {
            End::Unfit(refusal) => Some(Message::Refuse(refusal)),
            End::Fault(LinkFault::Shutdown) => Some(Message::Bye),
            End::Fault(LinkFault::Garbage(_)) => Some(Message::Refuse(Refusal::Nonsense)),
            End::Fault(LinkFault::Stuck | LinkFault::Deaf) => Some(Message::Refuse(Refusal::Late)),
            End::Fault(_) | End::Refused(_) => None,
        };
        if let Some(message) = last_word {
            // A last word: whether it is heard does not matter.
            fdpass::send(&self.socket, &message.encode(), &[]).unwrap_or_default();
        }
        // Lcores hold the socket until their next turn: the peer need not wait for that.
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).unwrap_or_default();
        let pid = self.cred.pid;
        let (fault, answer) = match end {
            End::Fault(fault) => (fault, AttachError::Lost(fault)),
            End::Unfit(refusal) => {
                (LinkFault::Protocol(refusal), AttachError::Unfit { pid, refusal })
            }
            End::Refused(refusal) => {
                (LinkFault::GivenUp(refusal), AttachError::Refused { pid, refusal })
            }
        };
        for lcore in self.linked_lcores() {
            shared.mailbox(lcore).post(Event::Gone { key: self.key, fault });
        }
        for waiter in self.waiters.drain(..) {
            waiter.answer(Err(answer));
        }
        // A device of this very process that closed has let go of everything, or will be unmapped with us.
        let lives = pid != std::process::id()
            && self.process.as_ref().is_some_and(|process| !has_ended(process));
        let departed =
            Departed { key: self.key, process: self.process.take(), gone: Arc::clone(&self.gone) };
        if lives && self.exports.is_some() {
            return Some(departed);
        }
        departed.forget(shared);
        None
    }
}

/// A device whose connection ended while its process lives: it may still be copying.
#[derive(Debug)]
pub(super) struct Departed {
    pub(super) key: u64,
    process: Option<OwnedFd>,
    gone: Arc<AtomicBool>,
}

impl Departed {
    pub(super) const fn process(&self) -> Option<&OwnedFd> {
        self.process.as_ref()
    }

    /// Nobody waits for it any more.
    pub(super) fn forget(self, shared: &Shared) {
        self.gone.store(true, Ordering::Release);
        lock(&shared.watches)
            .retain(|watch| !matches!(watch.who, Who::Peer { key, .. } if key == self.key));
    }
}

/// Whether the process behind a pidfd has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn import(fd: &OwnedFd, access: MapAccess, bytes: u64) -> Result<Arc<Segment>, End> {
    Mapping::import(fd, access, bytes)
        .map(|mapping| Arc::clone(mapping.segment()))
        .map_err(|_| End::Unfit(Refusal::Export))
}
