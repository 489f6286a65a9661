//! Shared memory between hosts that stand for processes of one machine: one ring per direction,
//! published pages, direct access to the peer's memory. In plain memory, with the order of effects
//! that real memory gives: stores wait in a buffer until something drains it.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use pmd_roce::ids::{Instant, LinkId, PdId, Psn, Qpn};
use pmd_roce::local::{
    Arrived, LocalFault, LocalPeer, Pair, PublishedQp, Push, Record, RecordKind, Source, Target,
};
use pmd_roce::memory::{Asker, AtomicOp, Memory};
use pmd_roce::work::{Access, RemoteAddr, Sge};

use crate::host::HostId;
use crate::limits;
use crate::memory::{HostMemory, Shared};

/// The bytes of a record in a ring.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Inline(Vec<u8>),
    /// Still in the sender's memory.
    Pull {
        pd: PdId,
        sges: Vec<Sge>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) record: Record,
    pub(crate) payload: Payload,
    end: u64,
}

/// One direction of a link. Positions count bytes since the beginning.
#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Entry>,
    /// Written by the producer.
    pushed: u64,
    /// Visible to the consumer.
    published: u64,
    /// Taken by the consumer.
    taken: u64,
    /// What the producer can see of it.
    taken_shown: u64,
}

/// One end of a link.
#[derive(Debug)]
struct Link {
    peer: HostId,
    out: usize,
    inbound: usize,
    /// What the peer had taken when this host's turn began.
    sampled: u64,
    /// The same, once every record that was there by then is handed in.
    judged: u64,
    /// When a region of the peer that was asked for is mapped.
    mapped: BTreeMap<(Reach, u32), Instant>,
}

/// Why a region of the peer is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Remote,
    Source,
}

/// A direct WRITE on its way to memory.
#[derive(Debug)]
struct Store {
    peer: HostId,
    addr: u64,
    bytes: Vec<u8>,
}

/// What one host shares.
#[derive(Debug, Default)]
struct Sharing {
    links: Vec<Link>,
    shown: BTreeMap<Qpn, PublishedQp>,
    /// Changes of these pages, their receives apart.
    versions: u64,
    stores: Vec<Store>,
    /// Peers know that it is dead.
    gone: bool,
    /// Peers can see something new.
    changed: bool,
    fences: u64,
    /// It takes no more than one record in so long.
    pace: Duration,
    /// When it takes the next one.
    takes_at: Instant,
    /// Something will be possible then: a peer's memory is mapped, or a record can be taken.
    ready_at: Option<Instant>,
}

impl Sharing {
    fn be_ready(&mut self, at: Instant) {
        self.ready_at = Some(self.ready_at.map_or(at, |other| other.min(at)));
    }
}

/// All links of a world.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    hosts: Vec<Sharing>,
    rings: Vec<Ring>,
    /// How long the first access to a region of a peer waits for its mapping.
    pub(crate) map_delay: Duration,
}

impl Fabric {
    pub(crate) fn add_host(&mut self) {
        self.hosts.push(Sharing::default());
    }

    /// Connects two hosts, or a host with itself; returns the link as each end names it.
    pub(crate) fn link(&mut self, a: HostId, b: HostId) -> (LinkId, LinkId) {
        let ring = self.rings.len();
        self.rings.push(Ring::default());
        if a == b {
            let id = self.attach(a, b, ring, ring);
            return (id, id);
        }
        self.rings.push(Ring::default());
        (self.attach(a, b, ring, ring + 1), self.attach(b, a, ring + 1, ring))
    }

    fn attach(&mut self, host: HostId, peer: HostId, out: usize, inbound: usize) -> LinkId {
        let links = &mut self.hosts[host.0].links;
        links.push(Link { peer, out, inbound, sampled: 0, judged: 0, mapped: BTreeMap::new() });
        LinkId(u32::try_from(links.len() - 1).expect("fewer than 2^32 links"))
    }

    /// The newest link from one host to another.
    pub(crate) fn between(&self, host: HostId, peer: HostId) -> Option<LinkId> {
        let links = &self.hosts[host.0].links;
        let index = links.iter().rposition(|link| link.peer == peer)?;
        u32::try_from(index).ok().map(LinkId)
    }

    pub(crate) fn links(&self, host: HostId) -> impl Iterator<Item = (LinkId, HostId)> + use<'_> {
        let peers = self.hosts[host.0].links.iter().map(|link| link.peer);
        (0..).map(LinkId).zip(peers)
    }

    pub(crate) fn pushed(&self, host: HostId) -> u64 {
        self.hosts[host.0].links.iter().map(|link| self.rings[link.out].pushed).sum()
    }

    pub(crate) fn fences(&self, host: HostId) -> u64 {
        self.hosts[host.0].fences
    }

    /// Starts a turn: what peers have taken is read before their records are.
    pub(crate) fn sample(&mut self, host: HostId) {
        for link in &mut self.hosts[host.0].links {
            link.sampled = self.rings[link.out].taken_shown;
        }
    }

    /// No record is left: what the peer had taken before has all been answered for.
    pub(crate) fn drained(&mut self, host: HostId, link: LinkId) {
        let link = &mut self.hosts[host.0].links[link.0 as usize];
        link.judged = link.sampled;
    }

    /// The next record that is visible to this host.
    pub(crate) fn front(&self, host: HostId, link: LinkId) -> Option<&Entry> {
        let ring = &self.rings[self.hosts[host.0].links[link.0 as usize].inbound];
        ring.entries.front().filter(|entry| entry.end <= ring.published)
    }

    /// Takes it.
    pub(crate) fn take(&mut self, host: HostId, link: LinkId) -> Option<Entry> {
        self.front(host, link)?;
        let ring = &mut self.rings[self.hosts[host.0].links[link.0 as usize].inbound];
        let entry = ring.entries.pop_front()?;
        ring.taken = entry.end;
        Some(entry)
    }

    /// Leaves a record in its ring, to be taken again.
    pub(crate) fn put_back(&mut self, host: HostId, link: LinkId, entry: Entry) {
        let ring = &mut self.rings[self.hosts[host.0].links[link.0 as usize].inbound];
        ring.taken = entry.end - entry.size();
        ring.entries.push_front(entry);
    }

    /// Ends a turn: shows what this host has taken.
    pub(crate) fn show_taken(&mut self, host: HostId) {
        let sharing = &mut self.hosts[host.0];
        for link in &sharing.links {
            let ring = &mut self.rings[link.inbound];
            sharing.changed |= ring.taken_shown != ring.taken;
            ring.taken_shown = ring.taken;
        }
    }

    /// Whether peers can see something new since the last call.
    pub(crate) fn take_changed(&mut self, host: HostId) -> bool {
        core::mem::take(&mut self.hosts[host.0].changed)
    }

    pub(crate) fn set_pace(&mut self, host: HostId, pace: Duration) {
        self.hosts[host.0].pace = pace;
    }

    /// Whether a host can take a record now; if not, it will look again.
    pub(crate) fn may_take(&mut self, now: Instant, host: HostId) -> bool {
        let sharing = &mut self.hosts[host.0];
        let can = sharing.takes_at <= now;
        if !can {
            sharing.be_ready(sharing.takes_at);
        }
        can
    }

    /// A host has taken a record.
    pub(crate) fn rest(&mut self, now: Instant, host: HostId) {
        let sharing = &mut self.hosts[host.0];
        sharing.takes_at = now.after(sharing.pace);
    }

    /// When something that this host waits for will be possible.
    pub(crate) fn take_ready_at(&mut self, host: HostId) -> Option<Instant> {
        self.hosts[host.0].ready_at.take()
    }

    pub(crate) fn has_stores(&self, host: HostId) -> bool {
        !self.hosts[host.0].stores.is_empty()
    }

    /// Empties a host's store buffer into memory.
    pub(crate) fn drain_stores(&mut self, host: HostId, memory: &[RefCell<HostMemory>]) {
        for store in self.hosts[host.0].stores.drain(..) {
            let mut target = memory[store.peer.0].borrow_mut();
            // A region that went away meanwhile takes the bytes with it.
            if let Some(bytes) = target.bytes_mut(store.addr, store.bytes.len()) {
                bytes.copy_from_slice(&store.bytes);
            }
        }
    }

    /// Peers learn that a host is dead.
    pub(crate) fn bury(&mut self, host: HostId) {
        self.hosts[host.0].gone = true;
    }

    /// A queue pair at the other end of a link, as its page shows it.
    pub(crate) fn target(&self, host: HostId, link: LinkId, qpn: Qpn) -> Target {
        let peer = &self.hosts[self.hosts[host.0].links[link.0 as usize].peer.0];
        if peer.gone {
            return Target::Gone;
        }
        peer.shown.get(&qpn).map_or(Target::Absent, |page| Target::Qp(*page))
    }

    /// Whether a region of a link's peer is mapped here; asking for it starts the mapping.
    fn is_mapped(
        &mut self,
        now: Instant,
        host: HostId,
        link: LinkId,
        reach: Reach,
        key: u32,
    ) -> bool {
        if self.map_delay.is_zero() {
            return true;
        }
        let sharing = &mut self.hosts[host.0];
        let due = now.after(self.map_delay);
        let at = *sharing.links[link.0 as usize].mapped.entry((reach, key)).or_insert(due);
        if at > now {
            sharing.be_ready(at);
        }
        at <= now
    }

    /// The payload of a record that was taken.
    pub(crate) fn arrived<'a>(
        &mut self,
        now: Instant,
        host: HostId,
        link: LinkId,
        entry: &'a Entry,
        memory: &'a [RefCell<HostMemory>],
    ) -> ArrivedPayload<'a> {
        let sender = self.hosts[host.0].links[link.0 as usize].peer;
        let ready = match &entry.payload {
            Payload::Inline(_) => Ok(()),
            Payload::Pull { .. } if self.hosts[sender.0].gone => Err(LocalFault::Gone),
            Payload::Pull { sges, .. } => {
                let mapped = |sge: &Sge| self.is_mapped(now, host, link, Reach::Source, sge.lkey.0);
                if sges.iter().all(mapped) { Ok(()) } else { Err(LocalFault::NotYet) }
            }
        };
        let total = entry.record.len;
        let (own, sender) = (&memory[host.0], &memory[sender.0]);
        ArrivedPayload { payload: &entry.payload, total, own, sender, ready }
    }
}

impl Entry {
    /// Whether its bytes are still in the sender's memory.
    pub(crate) const fn is_borrowed(&self) -> bool {
        matches!(self.payload, Payload::Pull { .. })
    }

    const fn size(&self) -> u64 {
        match &self.payload {
            Payload::Inline(bytes) => record_size(bytes.len()),
            Payload::Pull { .. } => record_size(16),
        }
    }
}

/// Bytes a record takes in a ring.
const fn record_size(payload: usize) -> u64 {
    limits::RECORD_HEADER as u64 + payload.next_multiple_of(8) as u64
}

/// The payload of a record during its delivery.
#[derive(Debug)]
pub(crate) struct ArrivedPayload<'a> {
    payload: &'a Payload,
    total: u32,
    own: &'a RefCell<HostMemory>,
    sender: &'a RefCell<HostMemory>,
    ready: Result<(), LocalFault>,
}

impl Arrived for ArrivedPayload<'_> {
    fn copy_to(&mut self, pd: PdId, offset: u32, sge: &Sge) -> Result<(), LocalFault> {
        let len = sge.len.min(self.total - offset) as usize;
        if len == 0 {
            return Ok(());
        }
        self.ready?;
        let offset = offset as usize;
        let whole = match self.payload {
            Payload::Inline(bytes) => bytes[offset..offset + len].to_vec(),
            Payload::Pull { pd, sges } => {
                gather(*pd, sges, self.sender, offset, len).ok_or(LocalFault::RemoteAccess)?
            }
        };
        Shared(self.own).scatter(pd, sge, 0, &whole).map_err(|_| LocalFault::Local)
    }

    fn is_borrowed(&self) -> bool {
        matches!(self.payload, Payload::Pull { .. })
    }
}

/// Copies `len` bytes from byte `offset` of a list of elements.
fn gather(
    pd: PdId,
    sges: &[Sge],
    memory: &RefCell<HostMemory>,
    mut offset: usize,
    len: usize,
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut at = 0;
    for sge in sges {
        let size = sge.len as usize;
        if offset < size && at < len {
            let part = (size - offset).min(len - at);
            let from = u32::try_from(offset).ok()?;
            Shared(memory).gather(pd, sge, from, &mut bytes[at..at + part]).ok()?;
            at += part;
            offset = 0;
        } else {
            offset = offset.saturating_sub(size);
        }
    }
    Some(bytes)
}

/// A host's view of its links during a turn or a command.
#[derive(Debug)]
pub(crate) struct Peers<'a> {
    pub(crate) host: HostId,
    pub(crate) now: Instant,
    pub(crate) fabric: &'a mut Fabric,
    pub(crate) memory: &'a [RefCell<HostMemory>],
}

impl Peers<'_> {
    fn link(&self, link: LinkId) -> &Link {
        &self.fabric.hosts[self.host.0].links[link.0 as usize]
    }

    fn peer(&self, link: LinkId) -> &Sharing {
        &self.fabric.hosts[self.link(link).peer.0]
    }

    fn own(&self) -> &RefCell<HostMemory> {
        &self.memory[self.host.0]
    }

    /// The peer, once its memory behind this key can be reached.
    fn reach(
        &mut self,
        link: LinkId,
        (pd, qpn): (PdId, Qpn),
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<HostId, LocalFault> {
        if self.peer(link).gone {
            return Err(LocalFault::Gone);
        }
        let peer = self.link(link).peer;
        let by = Asker { pd, qpn };
        Shared(&self.memory[peer.0])
            .check_remote(by, at, len, rights)
            .map_err(|_| LocalFault::RemoteAccess)?;
        let key = at.rkey.0 >> 8;
        if len > 0 && !self.fabric.is_mapped(self.now, self.host, link, Reach::Remote, key) {
            return Err(LocalFault::NotYet);
        }
        Ok(peer)
    }

    /// Whoever sees a direct operation must be able to find the messages that were sent before it.
    fn publish_before_access(&mut self, link: LinkId) {
        let out = self.link(link).out;
        let ring = &mut self.fabric.rings[out];
        if ring.published != ring.pushed {
            ring.published = ring.pushed;
            self.fabric.hosts[self.host.0].changed = true;
            // Stores become visible in program order: data before the record that tells of it.
            self.fabric.drain_stores(self.host, self.memory);
        }
    }

    /// The bytes of a source, out of registered memory where they are there.
    fn bytes_of(&self, pd: PdId, source: Source<'_>) -> Result<Vec<u8>, LocalFault> {
        match source {
            Source::Inline(bytes) => Ok(bytes.to_vec()),
            Source::Sges(sges) => {
                let len = sges.iter().map(|sge| sge.len as usize).sum();
                gather(pd, sges, self.own(), 0, len).ok_or(LocalFault::Local)
            }
        }
    }
}

/// The way of one queue pair to its peer. Everything is done as [`Peers`] does it.
#[derive(Debug)]
pub(crate) struct Straight<'a> {
    peers: Peers<'a>,
    link: LinkId,
    pair: Pair,
}

impl Straight<'_> {
    fn push(&mut self, seq: Psn, solicited: bool, len: u32, from: Source<'_>) -> Option<u64> {
        if len == 0 {
            return None;
        }
        let Pair { qpn: src, peer: dst, pd, .. } = self.pair;
        let kind = RecordKind::Send;
        let record = Record { kind, dst, src, seq, len, imm: None, solicited, srqn: None };
        match self.peers.push(self.link, pd, &record, from) {
            Push::At(position) => Some(position),
            Push::Full | Push::LocalFault | Push::Gone => None,
        }
    }
}

impl pmd_roce::local::Straight for Straight<'_> {
    fn glance(&self) -> u64 {
        self.peers.peer(self.link).versions
    }

    fn posted(&self) -> u32 {
        match self.peers.target(self.link, self.pair.peer) {
            Target::Qp(page) => page.posted.unwrap_or(0),
            Target::Absent | Target::Gone => 0,
        }
    }

    fn send(&mut self, seq: Psn, solicited: bool, from: &Sge) -> Option<u64> {
        self.push(seq, solicited, from.len, Source::Sges(&[*from]))
    }

    fn send_inline(&mut self, seq: Psn, solicited: bool, from: &[u8]) -> Option<u64> {
        let len = u32::try_from(from.len()).expect("no longer than a message");
        self.push(seq, solicited, len, Source::Inline(from))
    }

    fn write(&mut self, from: &Sge, to: RemoteAddr) -> bool {
        let Pair { pd, peer, peer_pd, .. } = self.pair;
        from.len > 0
            && self.peers.write(self.link, pd, Source::Sges(&[*from]), (peer_pd, peer), to).is_ok()
    }

    fn write_inline(&mut self, from: &[u8], to: RemoteAddr) -> bool {
        let Pair { pd, peer, peer_pd, .. } = self.pair;
        !from.is_empty()
            && self.peers.write(self.link, pd, Source::Inline(from), (peer_pd, peer), to).is_ok()
    }

    fn read(&mut self, into: &Sge, from: RemoteAddr) -> bool {
        let Pair { pd, peer, peer_pd, .. } = self.pair;
        into.len > 0 && self.peers.read(self.link, pd, &[*into], (peer_pd, peer), from).is_ok()
    }

    fn fence(&mut self) {
        self.peers.fence();
    }

    fn publish(&mut self) {
        self.peers.publish_before_access(self.link);
    }
}

impl LocalPeer for Peers<'_> {
    type Straight<'a>
        = Straight<'a>
    where
        Self: 'a;

    fn straight(&mut self, link: LinkId, pair: Pair) -> Option<Straight<'_>> {
        if self.peer(link).gone {
            return None;
        }
        let Self { host, now, fabric, memory } = self;
        let peers = Peers { host: *host, now: *now, fabric, memory };
        Some(Straight { peers, link, pair })
    }

    fn target(&self, link: LinkId, qpn: Qpn) -> Target {
        self.fabric.target(self.host, link, qpn)
    }

    fn glance(&self, link: LinkId, _: Qpn) -> Option<u64> {
        let peer = self.peer(link);
        (!peer.gone).then_some(peer.versions)
    }

    fn write(
        &mut self,
        link: LinkId,
        pd: PdId,
        from: Source<'_>,
        target: (PdId, Qpn),
        to: RemoteAddr,
    ) -> Result<(), LocalFault> {
        let bytes = self.bytes_of(pd, from)?;
        let peer = self.reach(link, target, to, bytes.len() as u64, Access::REMOTE_WRITE)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.publish_before_access(link);
        let by = Asker { pd: target.0, qpn: target.1 };
        let addr = self.memory[peer.0]
            .borrow()
            .place(by, to, bytes.len() as u64, Access::REMOTE_WRITE)
            .map_err(|_| LocalFault::RemoteAccess)?;
        self.fabric.hosts[self.host.0].stores.push(Store { peer, addr, bytes });
        Ok(())
    }

    fn read(
        &mut self,
        link: LinkId,
        pd: PdId,
        into: &[Sge],
        target: (PdId, Qpn),
        from: RemoteAddr,
    ) -> Result<(), LocalFault> {
        // A load may be earlier than stores before it: two peers that each WRITE and then READ what the
        // other wrote would both find the old bytes.
        let stores = &self.fabric.hosts[self.host.0].stores;
        assert!(stores.is_empty(), "a READ after a direct WRITE without a fence between them");
        let len = into.iter().map(|sge| u64::from(sge.len)).sum();
        let peer = self.reach(link, target, from, len, Access::REMOTE_READ)?;
        if len == 0 {
            return Ok(());
        }
        let by = Asker { pd: target.0, qpn: target.1 };
        let addr = self.memory[peer.0]
            .borrow()
            .place(by, from, len, Access::REMOTE_READ)
            .map_err(|_| LocalFault::RemoteAccess)?;
        let len = usize::try_from(len).map_err(|_| LocalFault::RemoteAccess)?;
        let mut bytes = vec![0; len];
        let memory = self.memory[peer.0].borrow();
        bytes.copy_from_slice(memory.bytes(addr, len).ok_or(LocalFault::RemoteAccess)?);
        drop(memory);
        let mut rest = &bytes[..];
        for sge in into {
            let (part, after) = rest.split_at(sge.len as usize);
            Shared(self.own()).scatter(pd, sge, 0, part).map_err(|_| LocalFault::Local)?;
            rest = after;
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        link: LinkId,
        target: (PdId, Qpn),
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, LocalFault> {
        let peer = self.reach(link, target, at, 8, Access::REMOTE_ATOMIC)?;
        self.publish_before_access(link);
        // A locked instruction drains the store buffer.
        self.fabric.drain_stores(self.host, self.memory);
        let by = Asker { pd: target.0, qpn: target.1 };
        Shared(&self.memory[peer.0]).atomic_remote(by, at, op).map_err(|_| LocalFault::RemoteAccess)
    }

    fn push(&mut self, link: LinkId, pd: PdId, record: &Record, payload: Source<'_>) -> Push {
        if self.peer(link).gone {
            return Push::Gone;
        }
        let payload = match payload {
            Source::Sges(sges)
                if record.len as usize > limits::RECORD_INLINE
                    && !matches!(record.kind, RecordKind::Datagram(_)) =>
            {
                let own = Shared(self.own());
                if sges.iter().any(|sge| own.check_local(pd, sge, false).is_err()) {
                    return Push::LocalFault;
                }
                Payload::Pull { pd, sges: sges.to_vec() }
            }
            other => match self.bytes_of(pd, other) {
                Ok(bytes) => Payload::Inline(bytes),
                Err(_) => return Push::LocalFault,
            },
        };
        let out = self.link(link).out;
        let ring = &mut self.fabric.rings[out];
        let mut entry = Entry { record: *record, payload, end: 0 };
        let reserve = if record.kind.is_answer() { 0 } else { limits::RING_RESERVE as u64 };
        let room =
            (limits::RING_BYTES as u64 - reserve).saturating_sub(ring.pushed - ring.taken_shown);
        if entry.size() > room {
            return Push::Full;
        }
        ring.pushed += entry.size();
        entry.end = ring.pushed;
        ring.entries.push_back(entry);
        Push::At(ring.pushed)
    }

    fn consumed(&self, link: LinkId) -> u64 {
        self.link(link).judged
    }

    fn show(&mut self, qpn: Qpn, qp: Option<&PublishedQp>) {
        let sharing = &mut self.fabric.hosts[self.host.0];
        let before = match qp {
            Some(page) => sharing.shown.insert(qpn, *page),
            None => sharing.shown.remove(&qpn),
        };
        sharing.versions += 1;
        sharing.changed |= before.as_ref() != qp;
    }

    fn show_receives(&mut self, qpn: Qpn, rq_psn: Psn, posted: u32) {
        let sharing = &mut self.fabric.hosts[self.host.0];
        let page = sharing.shown.get_mut(&qpn).expect("the page is shown");
        assert_eq!(page.rq_psn, rq_psn, "the page is otherwise unchanged");
        sharing.changed |= page.posted.replace(posted) != Some(posted);
    }

    fn publish(&mut self) {
        let Fabric { hosts, rings, .. } = &mut *self.fabric;
        let sharing = &mut hosts[self.host.0];
        let mut visible = false;
        for link in &sharing.links {
            let ring = &mut rings[link.out];
            visible |= ring.published != ring.pushed;
            ring.published = ring.pushed;
        }
        sharing.changed |= visible;
        if visible {
            // Stores become visible in program order: data before the record that tells of it.
            self.fabric.drain_stores(self.host, self.memory);
        }
    }

    fn fence(&mut self) {
        self.fabric.hosts[self.host.0].fences += 1;
        self.fabric.drain_stores(self.host, self.memory);
    }
}
