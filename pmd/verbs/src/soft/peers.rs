//! The engine's view of peers on the same host, over the links of the shared-memory wire.

use std::os::fd::BorrowedFd;

use pmd_record::Recorded;
use pmd_roce::ids::{Gid, Instant, LinkId, PdId, Psn, Qpn, Rkey, Srqn};
use pmd_roce::limits::{QPN_GENERATION_BITS, QPN_INDEX_BITS, QPN_LCORE_BITS};
use pmd_roce::local::{
    Alone, DatagramRecord, Direct, LocalFault, LocalPeer, Outgoing, Pair, PublishedQp, Push,
    Record, RecordKind, Source, Target,
};
use pmd_roce::memory::AtomicOp;
use pmd_roce::qp::state::QpState;
use pmd_roce::sink::Flow;
use pmd_roce::work::{Access, Imm, RemoteAddr, Sge};
use pmd_wire::shm;

use super::cq::Cqs;
use super::memory::TableMemory;
use super::shm::Shm;
use super::taking::Taking;

/// Most elements of a work request: those of the engine fit.
const MAX_SGE: usize = pmd_roce::limits::MAX_SGE as usize;

/// Links of one lcore; none where the device shares no memory.
#[derive(Debug)]
pub(crate) struct Peers {
    links: Option<shm::Links>,
    port: Option<Shm>,
    lcore: u32,
    asleep: bool,
}

impl Peers {
    pub(crate) fn new(port: Option<&Shm>, lcore: u32) -> Self {
        let links = port.and_then(|port| port.links(lcore));
        Self { links, port: port.cloned(), lcore, asleep: false }
    }

    /// Finds the link to the lcore that owns a queue pair, making one where there is none. Not for
    /// the data path: it waits for the peer's control thread, bounded.
    pub(crate) fn attach(
        &mut self,
        gid: Gid,
        qpn: Qpn,
        nonce: Option<shm::Nonce>,
    ) -> Result<LinkId, String> {
        let port = self.port.as_ref().ok_or("this device shares no memory")?;
        let link = port.attach(self.lcore, gid, owner_of(qpn), nonce)?;
        // The link is there from the next turn on, and the caller uses it in this one.
        self.links.as_mut().map(shm::Links::turn);
        Ok(LinkId(link))
    }

    /// Whether any peer shares memory with this lcore.
    pub(crate) fn has_links(&self) -> bool {
        self.links.as_ref().is_some_and(|links| !links.active().is_empty())
    }

    /// Readable while there is news for this lcore that naps.
    pub(crate) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.links.as_ref().map(shm::Links::bell)
    }

    /// Has peers ring from now on, until the next turn. False: there is news already.
    pub(crate) fn sleep(&mut self) -> bool {
        let Some(links) = &mut self.links else { return true };
        self.asleep = links.sleep();
        self.asleep
    }

    #[inline(always)]
    fn answering(&mut self) -> Option<Answering<'_>> {
        self.links.as_mut().map(Answering)
    }

    /// Takes in what peers sent, and which of them died.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        engine: &mut Recorded,
        memory: &mut TableMemory,
        cqs: &mut Cqs,
    ) -> usize {
        let Some(links) = &mut self.links else { return 0 };
        if std::mem::take(&mut self.asleep) {
            links.wake();
        }
        let mut work = links.turn();
        while let Some(down) = links.next_down() {
            tracing::debug!("link to process {} is down: {}", down.peer.pid, down.fault);
            engine.handle_link_down(now, LinkId(down.link), cqs);
        }
        for at in 0.. {
            let Some(link) = links.active().get(at).copied() else { break };
            work +=
                links.rx_with(link, &mut Taking { now, link: LinkId(link), engine, memory, cqs });
        }
        work
    }
}

/// Process prefix and lcore, the top bits of a queue pair number.
fn owner_of(qpn: Qpn) -> (u32, u32) {
    let lcore_at = QPN_GENERATION_BITS + QPN_INDEX_BITS;
    let lcore = (qpn.value() >> lcore_at) & ((1 << QPN_LCORE_BITS) - 1);
    (qpn.value() >> (lcore_at + QPN_LCORE_BITS), lcore)
}

/// Links lent out while one of them delivers a record, to answer it.
pub(super) struct Answering<'a>(pub(super) &'a mut shm::Links);

#[inline(always)]
pub(super) fn element(sge: &Sge) -> shm::Sge {
    shm::Sge { addr: sge.addr, len: sge.len, lkey: sge.lkey.0 }
}

#[cold]
pub(super) fn fault(fault: shm::MemoryFault) -> LocalFault {
    match fault {
        shm::MemoryFault::Local => LocalFault::Local,
        // Memory that the peer keeps to itself cannot be reached from here, whatever its key grants.
        shm::MemoryFault::Remote | shm::MemoryFault::Private => LocalFault::RemoteAccess,
        shm::MemoryFault::NotYet => LocalFault::NotYet,
        shm::MemoryFault::Gone => LocalFault::Gone,
    }
}

#[inline(always)]
fn remote((pd, qpn): (PdId, Qpn), at: RemoteAddr) -> shm::Remote {
    shm::Remote { addr: at.addr, rkey: at.rkey.0, pd: pd.0, qpn: qpn.value() }
}

fn shown(qp: &PublishedQp) -> shm::ShownQp {
    shm::ShownQp {
        state: qp.state as u8,
        peer: qp.peer.value(),
        access: qp.access.bits(),
        pd: qp.pd.0,
        max_dest_rd_atomic: qp.max_dest_rd_atomic,
        min_rnr_timer: qp.min_rnr_timer,
        rq_psn: qp.rq_psn.value(),
        posted: qp.posted,
    }
}

fn published(qp: &shm::ShownQp) -> Option<PublishedQp> {
    Some(PublishedQp {
        state: QpState::ALL.into_iter().find(|state| *state as u8 == qp.state)?,
        peer: Qpn::new(qp.peer),
        access: Access::from_bits_truncate(qp.access),
        pd: PdId(qp.pd),
        max_dest_rd_atomic: qp.max_dest_rd_atomic,
        min_rnr_timer: qp.min_rnr_timer,
        rq_psn: Psn::new(qp.rq_psn),
        posted: qp.posted,
    })
}

#[inline(never)]
pub(super) fn target(links: &shm::Links, link: LinkId, qpn: Qpn) -> Target {
    match links.target(link.0, qpn.value()) {
        shm::Target::Qp(qp) => published(&qp).map_or(Target::Absent, Target::Qp),
        shm::Target::Absent => Target::Absent,
        shm::Target::Gone => Target::Gone,
    }
}

#[inline(always)]
fn to_wire(record: &Record) -> shm::Record {
    shm::Record {
        kind: match record.kind {
            RecordKind::Send => shm::Kind::Send,
            RecordKind::Datagram(DatagramRecord { qkey, flow }) => {
                shm::Kind::Datagram(shm::Datagram {
                    qkey,
                    src: flow.src.0,
                    dst: flow.dst.0,
                    src_port: flow.src_port,
                    traffic_class: flow.traffic_class,
                    hop_limit: flow.hop_limit,
                })
            }
            RecordKind::SendInvalidate(key) => shm::Kind::SendInvalidate(key.0),
            RecordKind::WriteImm => shm::Kind::WriteImm,
            RecordKind::Nak { syndrome } => shm::Kind::Nak { syndrome },
            RecordKind::SourceFault => shm::Kind::SourceFault,
            RecordKind::Violation { access, syndrome } => shm::Kind::Violation { access, syndrome },
            RecordKind::Starved => shm::Kind::Starved,
        },
        dst: record.dst.value(),
        src: record.src.value(),
        seq: record.seq.value(),
        len: record.len,
        imm: record.imm.map(|imm| imm.0),
        solicited: record.solicited,
        srqn: record.srqn.map(|srqn| srqn.0),
    }
}

pub(super) fn from_wire(record: &shm::Record) -> Record {
    Record {
        kind: match record.kind {
            shm::Kind::Send => RecordKind::Send,
            shm::Kind::Datagram(datagram) => RecordKind::Datagram(DatagramRecord {
                qkey: datagram.qkey,
                flow: Flow {
                    src: Gid(datagram.src),
                    dst: Gid(datagram.dst),
                    src_port: datagram.src_port,
                    traffic_class: datagram.traffic_class,
                    hop_limit: datagram.hop_limit,
                },
            }),
            shm::Kind::SendInvalidate(key) => RecordKind::SendInvalidate(Rkey(key)),
            shm::Kind::WriteImm => RecordKind::WriteImm,
            shm::Kind::Nak { syndrome } => RecordKind::Nak { syndrome },
            shm::Kind::SourceFault => RecordKind::SourceFault,
            shm::Kind::Violation { access, syndrome } => RecordKind::Violation { access, syndrome },
            shm::Kind::Starved => RecordKind::Starved,
        },
        dst: Qpn::new(record.dst),
        src: Qpn::new(record.src),
        seq: Psn::new(record.seq),
        len: record.len,
        imm: record.imm.map(Imm),
        solicited: record.solicited,
        srqn: record.srqn.map(Srqn),
    }
}

/// Has `act` use a source in the wire's own types.
#[inline(never)]
fn with_source<R>(source: Source<'_>, act: impl FnOnce(shm::Source<'_>) -> R) -> R {
    match source {
        Source::Inline(bytes) => act(shm::Source::Inline(bytes)),
        Source::Sges(sges) => with_elements(sges, |elements| act(shm::Source::Sges(elements))),
    }
}

#[inline(never)]
fn with_elements<R>(sges: &[Sge], act: impl FnOnce(&[shm::Sge]) -> R) -> R {
    let mut elements = [shm::Sge { addr: 0, len: 0, lkey: 0 }; MAX_SGE];
    let count = sges.len().min(MAX_SGE);
    for (to, from) in elements.iter_mut().zip(sges) {
        *to = element(from);
    }
    act(&elements[..count])
}

/// The way of one queue pair to its peer.
#[derive(Debug)]
pub(crate) struct Straight<'a>(shm::Straight<'a>);

impl<'a> Straight<'a> {
    #[inline(always)]
    fn open(links: &'a mut shm::Links, link: LinkId, pair: Pair) -> Option<Self> {
        links.straight(link.0, wire_pair(pair)).map(Self)
    }
}

#[inline(always)]
const fn wire_pair(pair: Pair) -> shm::Pair {
    shm::Pair {
        qpn: pair.qpn.value(),
        pd: pair.pd.0,
        peer: pair.peer.value(),
        peer_pd: pair.peer_pd.0,
    }
}

impl pmd_roce::local::Straight for Straight<'_> {
    #[inline(always)]
    fn glance(&self) -> u64 {
        self.0.glance()
    }

    #[inline(always)]
    fn posted(&self) -> u32 {
        self.0.posted()
    }

    #[inline(always)]
    fn send(&mut self, seq: Psn, solicited: bool, from: &Sge) -> Option<u64> {
        self.0.send(seq.value(), solicited, element(from))
    }

    #[inline(always)]
    fn send_row<T: Outgoing>(&mut self, first: Psn, row: &mut [T]) -> usize {
        let says = |each: &T| each.says().map(|(sge, solicited)| (element(sge), solicited));
        let is_at = |each: &mut T, seq, position| each.is_at(Psn::new(seq), position);
        self.0.send_row(first.value(), row, says, is_at)
    }

    #[inline(never)]
    fn send_inline(&mut self, seq: Psn, solicited: bool, from: &[u8]) -> Option<u64> {
        self.0.send_inline(seq.value(), solicited, from)
    }

    #[inline(always)]
    fn write(&mut self, from: &Sge, to: RemoteAddr) -> bool {
        self.0.write(element(from), to.addr, to.rkey.0)
    }

    #[inline(never)]
    fn write_inline(&mut self, from: &[u8], to: RemoteAddr) -> bool {
        self.0.write_inline(from, to.addr, to.rkey.0)
    }

    #[inline(always)]
    fn read(&mut self, into: &Sge, from: RemoteAddr) -> bool {
        self.0.read(element(into), from.addr, from.rkey.0)
    }

    #[inline(always)]
    fn copy_row<const READ: bool, T: Direct>(&mut self, row: &[T], seen: u64) -> usize {
        let places = |each: &T| {
            let (here, there) = each.places::<READ>()?;
            Some((element(here), there.addr, there.rkey.0))
        };
        self.0.copy_row::<READ, T>(row, seen, places)
    }

    #[inline]
    fn fence(&mut self) {
        self.0.fence();
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.0.publish();
    }
}

impl LocalPeer for Answering<'_> {
    type Straight<'a>
        = Straight<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn straight(&mut self, link: LinkId, pair: Pair) -> Option<Straight<'_>> {
        Straight::open(self.0, link, pair)
    }

    fn target(&self, link: LinkId, qpn: Qpn) -> Target {
        target(self.0, link, qpn)
    }

    #[inline(always)]
    fn glance(&self, link: LinkId, qpn: Qpn) -> Option<u64> {
        self.0.glance(link.0, qpn.value())
    }

    #[inline(always)]
    fn write(
        &mut self,
        link: LinkId,
        pd: PdId,
        from: Source<'_>,
        target: (PdId, Qpn),
        to: RemoteAddr,
    ) -> Result<(), LocalFault> {
        let to = remote(target, to);
        let outcome = match from {
            Source::Sges([only]) => {
                self.0.write(link.0, pd.0, shm::Source::Sges(&[element(only)]), &to)
            }
            other => with_source(other, |from| self.0.write(link.0, pd.0, from, &to)),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(found) => Err(fault(found)),
        }
    }

    #[inline(always)]
    fn read(
        &mut self,
        link: LinkId,
        pd: PdId,
        into: &[Sge],
        target: (PdId, Qpn),
        from: RemoteAddr,
    ) -> Result<(), LocalFault> {
        let from = remote(target, from);
        let outcome = match into {
            [only] => self.0.read(link.0, pd.0, &[element(only)], &from),
            several => with_elements(several, |into| self.0.read(link.0, pd.0, into, &from)),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(found) => Err(fault(found)),
        }
    }

    fn atomic(
        &mut self,
        link: LinkId,
        target: (PdId, Qpn),
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, LocalFault> {
        let op = match op {
            AtomicOp::CompareSwap { compare, swap } => shm::AtomicOp::CompareSwap { compare, swap },
            AtomicOp::FetchAdd(add) => shm::AtomicOp::FetchAdd(add),
        };
        self.0.atomic(link.0, &remote(target, at), op).map_err(fault)
    }

    #[inline(always)]
    fn push(&mut self, link: LinkId, pd: PdId, record: &Record, payload: Source<'_>) -> Push {
        let record = to_wire(record);
        let pushed = match payload {
            Source::Sges([only]) => {
                self.0.push(link.0, pd.0, &record, shm::Source::Sges(&[element(only)]))
            }
            other => with_source(other, |payload| self.0.push(link.0, pd.0, &record, payload)),
        };
        match pushed {
            shm::Push::At(position) => Push::At(position),
            shm::Push::Full => Push::Full,
            shm::Push::LocalFault => Push::LocalFault,
            shm::Push::Gone => Push::Gone,
        }
    }

    #[inline(always)]
    fn consumed(&self, link: LinkId) -> u64 {
        self.0.consumed(link.0)
    }

    fn show(&mut self, qpn: Qpn, qp: Option<&PublishedQp>) {
        // False says that the number lies outside the page: nobody can reach it by a link then.
        let shown = self.0.show(qpn.value(), qp.map(shown).as_ref());
        debug_assert!(shown, "the page has a slot for every queue pair of the engine");
    }

    #[inline]
    fn show_receives(&mut self, qpn: Qpn, rq_psn: Psn, posted: u32) {
        self.0.show_receives(qpn.value(), rq_psn.value(), posted);
    }

    #[inline]
    fn publish(&mut self) {
        self.0.publish();
    }

    #[inline]
    fn fence(&mut self) {
        self.0.fence();
    }
}

impl LocalPeer for Peers {
    type Straight<'a> = Straight<'a>;

    #[inline(always)]
    fn send_alone(&mut self, link: LinkId, pair: Pair, message: &Alone<'_>) -> Option<u64> {
        let Alone { seen, seq, solicited, from, now } = *message;
        let message = shm::Alone { seen, seq: seq.value(), solicited, from: element(from), now };
        self.links.as_mut()?.send_alone(link.0, wire_pair(pair), &message)
    }

    #[inline(always)]
    fn straight(&mut self, link: LinkId, pair: Pair) -> Option<Straight<'_>> {
        Straight::open(self.links.as_mut()?, link, pair)
    }

    #[inline(always)]
    fn expect(&self, link: LinkId, qpn: Qpn) {
        if let Some(links) = &self.links {
            links.expect(link.0, qpn.value());
        }
    }

    fn target(&self, link: LinkId, qpn: Qpn) -> Target {
        self.links.as_ref().map_or(Target::Gone, |links| target(links, link, qpn))
    }

    #[inline(always)]
    fn glance(&self, link: LinkId, qpn: Qpn) -> Option<u64> {
        self.links.as_ref()?.glance(link.0, qpn.value())
    }

    #[inline(always)]
    fn write(
        &mut self,
        link: LinkId,
        pd: PdId,
        from: Source<'_>,
        target: (PdId, Qpn),
        to: RemoteAddr,
    ) -> Result<(), LocalFault> {
        match self.answering() {
            Some(mut links) => links.write(link, pd, from, target, to),
            None => Err(LocalFault::Gone),
        }
    }

    #[inline(always)]
    fn read(
        &mut self,
        link: LinkId,
        pd: PdId,
        into: &[Sge],
        target: (PdId, Qpn),
        from: RemoteAddr,
    ) -> Result<(), LocalFault> {
        match self.answering() {
            Some(mut links) => links.read(link, pd, into, target, from),
            None => Err(LocalFault::Gone),
        }
    }

    fn atomic(
        &mut self,
        link: LinkId,
        target: (PdId, Qpn),
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, LocalFault> {
        self.answering()
            .map_or(Err(LocalFault::Gone), |mut links| links.atomic(link, target, at, op))
    }

    #[inline(always)]
    fn push(&mut self, link: LinkId, pd: PdId, record: &Record, payload: Source<'_>) -> Push {
        match self.answering() {
            Some(mut links) => links.push(link, pd, record, payload),
            None => Push::Gone,
        }
    }

    #[inline(always)]
    fn consumed(&self, link: LinkId) -> u64 {
        match &self.links {
            Some(links) => links.consumed(link.0),
            None => 0,
        }
    }

    fn show(&mut self, qpn: Qpn, qp: Option<&PublishedQp>) {
        if let Some(mut links) = self.answering() {
            links.show(qpn, qp);
        }
    }

    #[inline]
    fn show_receives(&mut self, qpn: Qpn, rq_psn: Psn, posted: u32) {
        if let Some(mut links) = self.answering() {
            links.show_receives(qpn, rq_psn, posted);
        }
    }

    #[inline]
    fn publish(&mut self) {
        if let Some(mut links) = self.answering() {
            links.publish();
        }
    }

    #[inline]
    fn fence(&mut self) {
        if let Some(mut links) = self.answering() {
            links.fence();
        }
    }
}
