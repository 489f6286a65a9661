//! The control thread of a port: it lets peers in, passes on what they export, and notices when they die.

use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use pmd_mem::{PeerTable, Segment};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Refusal;
use super::fdpass;
use super::fence::Held;
use super::limits::{
    CROSSING_PATIENCE, DEPARTED_MAX, GREETING_LIMIT, GREETINGS_MAX, LAST_WORDS, QUARANTINE_LOOK,
    RING_BYTES_MIN,
};
use super::link::{Bell, Link, LinkFault, Parts, PeerInfo, RING_AT};
use super::mailbox::{Event, NoSlot};
use super::peer::{Departed, End, Heard, Peer, Waiter};
use super::port::{AttachError, Command, PeerName, Shared, gid};
use super::reach::Own;

/// How long nobody is let in after the kernel had no descriptor for a newcomer.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Control {
    shared: Arc<Shared>,
    peers: Vec<Peer>,
    /// Attaches whose own call was refused because the peer's is on its way, and when to call again.
    crossed: Vec<(Instant, Waiter)>,
    departed: VecDeque<Departed>,
    held: Vec<Held>,
    /// Links between lcores of this device: from, to, number.
    inside: Vec<(u8, u8, u32)>,
    next_key: u64,
    no_accept_until: Option<Instant>,
}

/// What a ready descriptor is.
#[derive(Clone, Copy, Debug)]
enum Source {
    Wake,
    Listener,
    Socket(u64),
    Process(u64),
    Departed(u64),
}

impl Control {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            peers: Vec::new(),
            crossed: Vec::new(),
            departed: VecDeque::new(),
            held: Vec::new(),
            inside: Vec::new(),
            next_key: 1,
            no_accept_until: None,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            while let Some(command) = self.shared.next_command() {
                match command {
                    Command::Stop => return self.stop(),
                    other => self.command(other),
                }
            }
            self.let_go();
            self.expire(Instant::now());
            for source in self.wait() {
                self.serve(source);
            }
        }
    }

    fn stop(self) {
        let Self { shared, peers, crossed, departed, .. } = self;
        for peer in peers {
            if let Some(departed) = peer.end(&shared, End::Fault(LinkFault::Shutdown)) {
                departed.forget(&shared);
            }
        }
        for departed in departed {
            departed.forget(&shared);
        }
        for (_, waiter) in crossed {
            waiter.answer(Err(AttachError::Lost(LinkFault::Shutdown)));
        }
        while let Some(command) = shared.next_command() {
            if let Command::Attach { lcore, peer, until, reply } = command {
                Waiter { lcore, peer, until, reply }
                    .answer(Err(AttachError::Lost(LinkFault::Shutdown)));
            }
        }
    }

    // Waiting ---------------------------------------------------------------------------------

    /// Sleeps until something is ready, and says what.
    fn wait(&mut self) -> Vec<Source> {
        let now = Instant::now();
        let greeting = self.peers.iter().filter(|peer| !peer.is_ready()).count();
        if self.no_accept_until.is_some_and(|until| until <= now) {
            self.no_accept_until = None;
        }
        let mut sources = vec![Source::Wake];
        let mut fds = vec![PollFd::new(self.shared.wake(), PollFlags::IN)];
        let mut watch = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        if self.no_accept_until.is_none() && greeting < GREETINGS_MAX {
            watch(Source::Listener, self.shared.prefix.listener().as_fd(), PollFlags::IN);
        }
        for peer in &self.peers {
            let flags =
                if peer.has_backlog() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            watch(Source::Socket(peer.key), peer.socket().as_fd(), flags);
            if let Some(process) = peer.process() {
                watch(Source::Process(peer.key), process.as_fd(), PollFlags::IN);
            }
        }
        for departed in &self.departed {
            if let Some(process) = departed.process() {
                watch(Source::Departed(departed.key), process.as_fd(), PollFlags::IN);
            }
        }
        let timeout = self.deadline(now).map(|deadline| {
            let span = deadline.saturating_duration_since(now);
            Timespec {
                tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: span.subsec_nanos().into(),
            }
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => sources
                .into_iter()
                .zip(&fds)
                .filter(|(_, fd)| !fd.revents().is_empty())
                .map(|(source, _)| source)
                .collect(),
            Err(rustix::io::Errno::INTR) => Vec::new(),
            Err(_) => {
                // Only when the kernel has no memory: not a reason to spin.
                std::thread::sleep(ACCEPT_PAUSE);
                Vec::new()
            }
        }
    }

    /// When something has to be done even though nothing happens.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let waiters = self
            .peers
            .iter()
            .flat_map(|peer| &peer.waiters)
            .map(|waiter| waiter.until)
            .chain(self.crossed.iter().map(|(again, waiter)| waiter.until.min(*again)));
        let greetings =
            self.peers.iter().filter(|peer| !peer.is_ready()).map(|peer| peer.greeting_until);
        let look = (!self.held.is_empty()).then(|| now + QUARANTINE_LOOK);
        waiters.chain(greetings).chain(look).chain(self.no_accept_until).min()
    }

    fn serve(&mut self, source: Source) {
        match source {
            Source::Wake => {
                let mut count = [0; 8];
                // Another look at the commands follows in any case.
                rustix::io::read(self.shared.wake(), &mut count).unwrap_or_default();
            }
            Source::Listener => self.accept(),
            Source::Socket(key) => {
                self.hear(key);
            }
            Source::Process(key) => {
                // What it said before it died may tell more.
                self.hear_out(key);
                self.end(key, End::Fault(LinkFault::Dead));
            }
            Source::Departed(key) => {
                if let Some(at) = self.departed.iter().position(|departed| departed.key == key)
                    && let Some(departed) = self.departed.remove(at)
                {
                    departed.forget(&self.shared);
                }
            }
        }
    }

    // Time ------------------------------------------------------------------------------------

    fn expire(&mut self, now: Instant) {
        let late: Vec<u64> = self
            .peers
            .iter()
            .filter(|peer| !peer.is_ready() && peer.greeting_until <= now)
            .map(|peer| peer.key)
            .collect();
        for key in late {
            self.end(key, End::Unfit(Refusal::Late));
        }
        // The peer's call did not come after all.
        let (due, waiting): (Vec<_>, Vec<_>) =
            core::mem::take(&mut self.crossed).into_iter().partition(|(again, _)| *again <= now);
        self.crossed = waiting;
        for (_, waiter) in due {
            self.attach(waiter);
        }
        for waiters in self.peers.iter_mut().map(|peer| &mut peer.waiters) {
            let (expired, waiting): (Vec<_>, Vec<_>) =
                core::mem::take(waiters).into_iter().partition(|waiter| waiter.until <= now);
            *waiters = waiting;
            for waiter in expired {
                waiter.answer(Err(AttachError::Timeout));
            }
        }
    }

    /// Gives quarantined memory back whose users have left it.
    fn let_go(&mut self) {
        for held in core::mem::take(&mut self.held) {
            match held.release() {
                Ok(retired) => self.shared.table.reclaim(retired),
                Err(held) => self.held.push(held),
            }
        }
    }

    // Commands --------------------------------------------------------------------------------

    fn command(&mut self, command: Command) {
        match command {
            Command::Attach { lcore, peer, until, reply } => {
                self.attach(Waiter { lcore, peer, until, reply });
            }
            Command::Export { id } => self.for_each_peer(|peer, shared| peer.export(shared, id)),
            Command::Retire { id } => self.for_each_peer(|peer, _| peer.retire(id)),
            Command::Condemn { key, fault } => self.end(key, End::Fault(fault)),
            Command::Quarantine(held) => self.held.push(held),
            // The caller's.
            Command::Stop => {}
        }
    }

    fn for_each_peer(&mut self, mut act: impl FnMut(&mut Peer, &Shared) -> Result<(), End>) {
        let mut ends = Vec::new();
        for peer in &mut self.peers {
            if let Err(end) = act(peer, &self.shared) {
                ends.push((peer.key, end));
            }
        }
        for (key, end) in ends {
            self.end(key, end);
        }
    }

    fn attach(&mut self, waiter: Waiter) {
        let prefix = waiter.peer.prefix;
        if prefix == self.shared.prefix.prefix() {
            let answer = self.attach_inside(waiter.lcore, &waiter.peer);
            return waiter.answer(answer);
        }
        let key = match self.peers.iter_mut().find(|peer| peer.prefix() == Some(prefix)) {
            Some(peer) => {
                peer.waiters.push(waiter);
                peer.key
            }
            None => match self.dial(waiter) {
                Some(key) => key,
                None => return,
            },
        };
        self.with_peer(key, Peer::attach_waiting);
    }

    /// Calls a peer that is not connected.
    fn dial(&mut self, waiter: Waiter) -> Option<u64> {
        let prefix = waiter.peer.prefix;
        let failed = |step| move |e: std::io::Error| AttachError::Io { step, kind: e.kind() };
        let socket = self.shared.directory.connect(prefix).map_err(|e| match e.kind() {
            std::io::ErrorKind::ConnectionRefused => AttachError::Nobody(prefix),
            kind => AttachError::Io { step: "connect", kind },
        });
        let until = Instant::now() + GREETING_LIMIT;
        let peer = socket.and_then(|socket| {
            Peer::new(self.next_key, socket, Some(prefix), until)
                .map_err(failed("ask who the peer is"))
        });
        match peer {
            Ok(mut peer) => {
                self.next_key += 1;
                let key = peer.key;
                peer.waiters.push(waiter);
                self.peers.push(peer);
                self.with_peer(key, Peer::introduce);
                Some(key)
            }
            Err(error) => {
                waiter.answer(Err(error));
                None
            }
        }
    }

    /// Links two lcores of this device: no socket, no descriptor.
    fn attach_inside(&mut self, lcore: u8, peer: &PeerName) -> Result<u32, AttachError> {
        let pid = std::process::id();
        let unfit = |refusal| Err(AttachError::Unfit { pid, refusal });
        if peer.nonce.is_some_and(|nonce| nonce != self.shared.hello.nonce) {
            return unfit(Refusal::Nonce);
        }
        if peer.address.is_some_and(|address| !self.shared.hello.addresses.contains(&gid(address)))
        {
            return unfit(Refusal::Address);
        }
        if usize::from(peer.lcore) >= self.shared.pages.len() {
            return unfit(Refusal::Lcore(peer.lcore));
        }
        let (here, there) = (lcore, peer.lcore);
        if let Some((.., id)) =
            self.inside.iter().find(|(from, to, _)| (*from, *to) == (here, there))
        {
            return Ok(*id);
        }
        let failed = |kind| AttachError::Io { step: "link two lcores", kind };
        let bytes = RING_AT + self.shared.ring_bytes.max(RING_BYTES_MIN);
        let segment = || Segment::private(bytes).map(Arc::new).map_err(|e| failed(e.kind()));
        let table = || {
            PeerTable::import(self.shared.table_region.segment())
                .map_err(|_| failed(std::io::ErrorKind::InvalidData))
        };
        let (from_here, from_there) = if here == there {
            let one = segment()?;
            (Arc::clone(&one), one)
        } else {
            (segment()?, segment()?)
        };
        let link = |mine, theirs, local: u8, remote: u8| {
            Link::new(Parts {
                peer: PeerInfo {
                    pid,
                    prefix: self.shared.prefix.prefix(),
                    lcore: remote,
                    nonce: self.shared.hello.nonce,
                },
                here: (self.shared.prefix.prefix(), local),
                key: 0,
                mine,
                theirs,
                page: self.shared.pages[usize::from(remote)].segment(),
                table: table()?,
                // Filled in by the lcore, which knows them.
                regions: Vec::new(),
                bell: Bell::Inside(Arc::clone(&self.shared), remote),
                own: Arc::new(Own { table: Arc::clone(&self.shared.table), regions: Vec::new() }),
            })
            .map_err(|_| failed(std::io::ErrorKind::InvalidData))
        };
        let id = |lcore: u8| {
            self.shared.mailbox(lcore).allocate().map_err(|no_slot| match no_slot {
                NoSlot::Closed => AttachError::NoSuchLcore(lcore),
                NoSlot::Full => AttachError::Full,
            })
        };
        // Numbers last: nothing can fail after the last of them.
        let forth = link(&from_here, &from_there, here, there)?;
        let back = link(&from_there, &from_here, there, here)?;
        let mut made = vec![(here, there, id(here)?, forth)];
        if here != there {
            match id(there) {
                Ok(id) => made.push((there, here, id, back)),
                Err(e) => {
                    self.shared.mailbox(here).release(made[0].2);
                    return Err(e);
                }
            }
        }
        let answer = made[0].2;
        for (from, to, id, link) in made {
            self.inside.push((from, to, id));
            self.shared.mailbox(from).post(Event::Linked { id, link: Box::new(link) });
        }
        Ok(answer)
    }

    // Peers -----------------------------------------------------------------------------------

    fn accept(&mut self) {
        let listener: &OwnedFd = self.shared.prefix.listener();
        let until = Instant::now() + GREETING_LIMIT;
        let newcomer = fdpass::accept(listener).and_then(|socket| {
            socket.map(|socket| Peer::new(self.next_key, socket, None, until)).transpose()
        });
        match newcomer {
            Ok(Some(peer)) => {
                self.next_key += 1;
                self.peers.push(peer);
            }
            Ok(None) => {}
            Err(_) => self.no_accept_until = Some(Instant::now() + ACCEPT_PAUSE),
        }
    }

    /// Listens to a peer, and returns whether there may be more to hear.
    fn hear(&mut self, key: u64) -> bool {
        let Some(at) = self.peers.iter().position(|peer| peer.key == key) else { return false };
        let heard = self.peers[at].flush().and_then(|()| self.peers[at].listen(&self.shared));
        let more = heard == Ok(Heard::Burst);
        let done = match heard {
            Ok(Heard::Hello) => self.introduced(at),
            Ok(Heard::All | Heard::Burst) => Ok(()),
            Err(end) => Err(end),
        };
        if let Err(end) = done {
            self.end(key, end);
        }
        more
    }

    /// Listens to the last words of a peer that has left. A fork of it may hold the connection and go on talking: not for ever.
    fn hear_out(&mut self, key: u64) {
        for _ in 0..LAST_WORDS {
            if !self.hear(key) {
                break;
            }
        }
    }

    /// The peer at `at` has introduced itself, and is one to share memory with.
    fn introduced(&mut self, at: usize) -> Result<(), End> {
        let (key, prefix) = (self.peers[at].key, self.peers[at].prefix());
        if self.peers[at].dialed.is_none() {
            let other =
                self.peers.iter().position(|peer| peer.key != key && peer.prefix() == prefix);
            if let Some(other) = other {
                let mut waiters = self.settle_crossing(other, prefix)?;
                if let Some(peer) = self.peers.iter_mut().find(|peer| peer.key == key) {
                    peer.waiters.append(&mut waiters);
                }
            }
            self.adopt_crossed();
        }
        let shared = Arc::clone(&self.shared);
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.key == key) else { return Ok(()) };
        if peer.dialed.is_none() {
            peer.introduce(&shared)?;
        }
        peer.export_all(&shared)?;
        // What it said after its introduction.
        match peer.listen(&shared)? {
            Heard::Hello => Err(End::Unfit(Refusal::Nonsense)),
            Heard::All | Heard::Burst => Ok(()),
        }
    }

    /// There is another connection to or from the prefix that just called: one of the two has to go. Returns who waited on the
    /// one that went.
    fn settle_crossing(&mut self, other: usize, prefix: Option<u8>) -> Result<Vec<Waiter>, End> {
        let we_called = self.peers[other].dialed.is_some() && self.peers[other].hello.is_none();
        if !we_called {
            // A prefix has one holder: unless the old connection has ended, the newcomer lies.
            if !self.peers[other].has_left() {
                return Err(End::Unfit(Refusal::Crossed));
            }
            let key = self.peers[other].key;
            // What is left to hear tells why it ended.
            self.hear_out(key);
            self.end(key, End::Fault(LinkFault::Dead));
            return Ok(Vec::new());
        }
        // Both called at once: the call of the lower prefix stays.
        if Some(self.shared.prefix.prefix()) < prefix {
            return Err(End::Unfit(Refusal::Crossed));
        }
        let waiters = core::mem::take(&mut self.peers[other].waiters);
        let other_key = self.peers[other].key;
        self.end(other_key, End::Unfit(Refusal::Crossed));
        Ok(waiters)
    }

    /// Lets those whose call was refused wait on the peer's call, once it has come.
    fn adopt_crossed(&mut self) {
        for (again, waiter) in core::mem::take(&mut self.crossed) {
            let prefix = Some(waiter.peer.prefix);
            match self
                .peers
                .iter_mut()
                .find(|peer| peer.dialed.is_none() && peer.prefix() == prefix)
            {
                Some(peer) => {
                    let key = peer.key;
                    peer.waiters.push(waiter);
                    self.with_peer(key, Peer::attach_waiting);
                }
                None => self.crossed.push((again, waiter)),
            }
        }
    }

    fn with_peer(&mut self, key: u64, act: impl FnOnce(&mut Peer, &Shared) -> Result<(), End>) {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.key == key) else { return };
        if let Err(end) = act(peer, &self.shared) {
            self.end(key, end);
        }
    }

    fn end(&mut self, key: u64, end: End) {
        let Some(at) = self.peers.iter().position(|peer| peer.key == key) else { return };
        let mut peer = self.peers.remove(at);
        if end == End::Refused(Refusal::Crossed) {
            // The peer's own call is on its way, and serves those who wait as well.
            let again = Instant::now() + CROSSING_PATIENCE;
            self.crossed.extend(peer.waiters.drain(..).map(|waiter| (again, waiter)));
            self.adopt_crossed();
        }
        if let Some(departed) = peer.end(&self.shared, end) {
            self.departed.push_back(departed);
            if self.departed.len() > DEPARTED_MAX
                && let Some(oldest) = self.departed.pop_front()
            {
                oldest.forget(&self.shared);
            }
        }
    }
}
