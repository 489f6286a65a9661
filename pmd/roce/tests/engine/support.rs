//! Hosts of one engine each, with memory, completion queues and an outbox that tests look into.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use pmd_roce::engine::{Engine, EngineConfig};
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{CqId, Gid, Instant, Lkey, PathMtu, PdId, Psn, Qpn, Rkey, WrId};
use pmd_roce::local::Nobody;
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::qp::attr::{AddressVector, ModifyQpError, QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{self, AttrMask, QpState, Transport};
use pmd_roce::sink::{CqSink, Flow, Frame, FrameOutcome, IpId, TxSink};
use pmd_roce::wire::{Operation, Packet};
use pmd_roce::work::{
    Access, Completion, CqOverrun, Data, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
    WcStatus, WindowBind,
};

/// Everything a peer may ask for.
pub(crate) const ALL_REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Byte `at` of the pattern that sources are filled with.
#[expect(clippy::cast_possible_truncation, reason = "the low byte is meant")]
pub(crate) const fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(7) ^ (at >> 8)) as u8
}

/// A registered region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) key: u32,
    pub(crate) pd: PdId,
    pub(crate) addr: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) access: Access,
}

/// A type 2 window, bound or not.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) key: u32,
    pub(crate) pd: PdId,
    pub(crate) bound: Option<(Qpn, WindowBind)>,
}

/// Memory of one host.
#[derive(Debug, Default)]
pub(crate) struct TestMemory {
    pub(crate) regions: Vec<Region>,
    pub(crate) windows: Vec<Window>,
}

impl TestMemory {
    pub(crate) fn region(&self, key: u32) -> &Region {
        self.regions.iter().find(|region| region.key == key).unwrap()
    }

    /// Bytes at an offset of a region.
    pub(crate) fn bytes(&self, key: u32, at: usize, len: usize) -> &[u8] {
        &self.region(key).bytes[at..at + len]
    }

    fn find(
        &self,
        key: u32,
        pd: PdId,
        at: u64,
        len: u64,
        access: Access,
    ) -> Result<(usize, usize), MemoryFault> {
        let place = self.regions.iter().position(|region| region.key == key);
        let place = place.ok_or(MemoryFault::UnknownKey)?;
        let region = &self.regions[place];
        if region.pd != pd {
            return Err(MemoryFault::WrongDomain);
        }
        if !region.access.contains(access) {
            return Err(MemoryFault::NoPermission);
        }
        let offset = at.checked_sub(region.addr).ok_or(MemoryFault::OutOfBounds)?;
        match offset.checked_add(len) {
            Some(end) if end <= region.bytes.len() as u64 => {
                Ok((place, usize::try_from(offset).unwrap()))
            }
            _ => Err(MemoryFault::OutOfBounds),
        }
    }

    fn find_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        access: Access,
    ) -> Result<(usize, usize), MemoryFault> {
        let Some(window) = self.windows.iter().find(|window| window.key == at.rkey.0) else {
            return self.find(at.rkey.0, by.pd, at.addr, len, access);
        };
        let (qpn, bind) = window.bound.ok_or(MemoryFault::NoPermission)?;
        if qpn != by.qpn || window.pd != by.pd {
            return Err(MemoryFault::WrongDomain);
        }
        if !bind.access.contains(access) {
            return Err(MemoryFault::NoPermission);
        }
        if at.addr < bind.addr || at.addr + len > bind.addr + bind.len {
            return Err(MemoryFault::OutOfBounds);
        }
        self.find(bind.region.0, by.pd, at.addr, len, Access::empty())
    }
}

impl Memory for TestMemory {
    fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), MemoryFault> {
        if sge.len == 0 {
            return Ok(());
        }
        let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
        self.find(sge.lkey.0, pd, sge.addr, sge.len.into(), access).map(drop)
    }

    fn gather(&self, pd: PdId, sge: &Sge, at: u32, into: &mut [u8]) -> Result<(), MemoryFault> {
        let from = sge.addr + u64::from(at);
        let (place, offset) =
            self.find(sge.lkey.0, pd, from, into.len() as u64, Access::empty())?;
        into.copy_from_slice(&self.regions[place].bytes[offset..offset + into.len()]);
        Ok(())
    }

    fn scatter(&mut self, pd: PdId, sge: &Sge, at: u32, from: &[u8]) -> Result<(), MemoryFault> {
        let to = sge.addr + u64::from(at);
        let (place, offset) =
            self.find(sge.lkey.0, pd, to, from.len() as u64, Access::LOCAL_WRITE)?;
        self.regions[place].bytes[offset..offset + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(), MemoryFault> {
        if len == 0 { Ok(()) } else { self.find_remote(by, at, len, rights).map(drop) }
    }

    fn read_remote(&self, by: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault> {
        let (place, offset) = self.find_remote(by, at, into.len() as u64, Access::REMOTE_READ)?;
        into.copy_from_slice(&self.regions[place].bytes[offset..offset + into.len()]);
        Ok(())
    }

    fn write_remote(&mut self, by: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault> {
        let (place, offset) = self.find_remote(by, at, from.len() as u64, Access::REMOTE_WRITE)?;
        self.regions[place].bytes[offset..offset + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        by: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        let (place, offset) = self.find_remote(by, at, 8, Access::REMOTE_ATOMIC)?;
        let cell = self.regions[place].bytes[offset..].first_chunk_mut::<8>().unwrap();
        let original = u64::from_ne_bytes(*cell);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd(add) => original.wrapping_add(add),
        };
        *cell = new.to_ne_bytes();
        Ok(original)
    }

    fn invalidate(&mut self, by: Asker, key: Rkey) -> Result<(), MemoryFault> {
        if let Some(window) = self.windows.iter_mut().find(|window| window.key == key.0) {
            let (qpn, _) = window.bound.ok_or(MemoryFault::NoPermission)?;
            if qpn != by.qpn {
                return Err(MemoryFault::WrongDomain);
            }
            window.bound = None;
            return Ok(());
        }
        let place = self.regions.iter().position(|region| region.key == key.0);
        self.regions.remove(place.ok_or(MemoryFault::UnknownKey)?);
        Ok(())
    }

    fn bind(&mut self, by: Asker, bind: &WindowBind) -> Result<(), MemoryFault> {
        self.find(bind.region.0, by.pd, bind.addr, bind.len, Access::MW_BIND)?;
        let window = self.windows.iter_mut().find(|window| window.key == bind.window.0);
        let window = window.ok_or(MemoryFault::UnknownKey)?;
        window.key = bind.new_key.0;
        window.bound = Some((by.qpn, *bind));
        Ok(())
    }
}

/// Completion queues of a host: everything in one list, with an optional bound per queue.
#[derive(Debug, Default)]
pub(crate) struct TestCqs {
    pub(crate) got: VecDeque<(CqId, Completion)>,
    /// How many more completions a queue takes.
    pub(crate) room: Option<(CqId, usize)>,
}

impl CqSink for TestCqs {
    fn push(&mut self, cq: CqId, completion: Completion) -> Result<(), CqOverrun> {
        if let Some((bounded, room)) = &mut self.room
            && *bounded == cq
        {
            *room = room.checked_sub(1).ok_or(CqOverrun)?;
        }
        self.got.push_back((cq, completion));
        Ok(())
    }
}

/// A frame on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) flow: Flow,
    pub(crate) ip_id: u16,
    pub(crate) payload: Vec<u8>,
}

impl Sent {
    /// What it says; its ICRC is the receiver's business.
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.payload[..self.payload.len() - 4]).unwrap()
    }

    pub(crate) fn operation(&self) -> Operation {
        self.packet().headers.bth.opcode.operation()
    }

    pub(crate) fn psn(&self) -> u32 {
        self.packet().headers.bth.psn.value()
    }
}

/// Where frames wait to be delivered.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) frames: VecDeque<Sent>,
    /// Frames it takes before it is full.
    pub(crate) room: usize,
    pub(crate) ip_id: u16,
}

impl TxSink for Outbox {
    fn send(
        &mut self,
        flow: &Flow,
        _to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool {
        let Some(room) = self.room.checked_sub(1) else { return false };
        self.room = room;
        self.ip_id = self.ip_id.wrapping_add(1);
        let mut payload = vec![0xee; len];
        fill(self.ip_id, &mut payload);
        self.frames.push_back(Sent { flow: *flow, ip_id: self.ip_id, payload });
        true
    }
}

/// Local source: readable, filled with the pattern.
pub(crate) const SRC: u32 = 0x100;
pub(crate) const SRC_ADDR: u64 = 0x1_0000;
/// Local destination: writable, zero.
pub(crate) const DST: u32 = 0x200;
pub(crate) const DST_ADDR: u64 = 0x10_0000;
/// What peers may do anything with, filled with the pattern.
pub(crate) const SHARED: u32 = 0x300;
pub(crate) const SHARED_ADDR: u64 = 0x100_0000;
/// Bytes of each of them.
pub(crate) const REGION: usize = 1 << 16;

/// Protection domain of everything.
pub(crate) const PD: PdId = PdId(1);
/// Completion queue of send queues.
pub(crate) const SEND_CQ: CqId = CqId(1);
/// Completion queue of receive queues.
pub(crate) const RECV_CQ: CqId = CqId(2);

/// One engine with all it is lent.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) now: Instant,
    pub(crate) engine: Engine,
    pub(crate) mem: TestMemory,
    pub(crate) cqs: TestCqs,
    pub(crate) out: Outbox,
}

impl Host {
    /// The host with address 10.77.0.`last`, changed by `configure`.
    pub(crate) fn with(last: u8, configure: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut config = EngineConfig::new(last.into(), 0, vec![gid(last)]);
        config.mtu = PathMtu::B4096;
        configure(&mut config);
        let region = |key, addr, access, fill: fn(usize) -> u8| Region {
            key,
            pd: PD,
            addr,
            bytes: (0..REGION).map(fill).collect(),
            access,
        };
        let all = ALL_REMOTE | Access::LOCAL_WRITE | Access::MW_BIND;
        Self {
            now: Instant(0),
            engine: Engine::new(config),
            mem: TestMemory {
                regions: vec![
                    region(SRC, SRC_ADDR, Access::empty(), pattern),
                    region(DST, DST_ADDR, Access::LOCAL_WRITE, |_| 0),
                    region(SHARED, SHARED_ADDR, all, pattern),
                ],
                windows: Vec::new(),
            },
            cqs: TestCqs::default(),
            out: Outbox { frames: VecDeque::new(), room: usize::MAX, ip_id: 0 },
        }
    }

    pub(crate) fn new(last: u8) -> Self {
        Self::with(last, |_| {})
    }

    pub(crate) fn create(&mut self, transport: Transport) -> Qpn {
        self.engine.create_qp(&init(transport)).unwrap()
    }

    pub(crate) fn modify(
        &mut self,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyQpError> {
        self.engine.modify_qp(self.now, qpn, attr, mask, &mut self.mem, &mut self.cqs)
    }

    /// Walks one edge with exactly the required mask.
    pub(crate) fn step(&mut self, qpn: Qpn, attr: &QpAttr, to: QpState) {
        let view = self.engine.query_qp(qpn).unwrap();
        let edge = state::masks(view.init.transport, view.attr.state, to).unwrap();
        let attr = QpAttr { state: to, ..*attr };
        self.modify(qpn, &attr, edge.required | AttrMask::STATE).unwrap();
    }

    /// RESET, INIT, RTR, RTS.
    pub(crate) fn bring_up(&mut self, qpn: Qpn, attr: &QpAttr) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.step(qpn, attr, to);
        }
    }

    /// To a state that nothing but STATE is needed for.
    pub(crate) fn go(&mut self, qpn: Qpn, to: QpState) {
        self.modify(qpn, &QpAttr::new(to), AttrMask::STATE).unwrap();
    }

    pub(crate) fn state(&self, qpn: Qpn) -> QpState {
        self.engine.query_qp(qpn).unwrap().attr.state
    }

    /// Polls until nothing more is done.
    pub(crate) fn poll(&mut self) {
        loop {
            let (mem, out, cqs) = (&mut self.mem, &mut self.out, &mut self.cqs);
            if self.engine.poll_transmit(self.now, mem, out, &mut Nobody, cqs) == 0 {
                break;
            }
        }
    }

    pub(crate) fn deliver(&mut self, sent: &Sent) -> FrameOutcome {
        let ip_id = IpId::Exact(sent.ip_id);
        let frame = Frame { flow: sent.flow, ip_id, payload: &sent.payload };
        self.engine.handle_frame(self.now, &frame, &mut self.mem, &mut self.cqs)
    }

    /// Moves the clock and runs what is due.
    pub(crate) fn pass(&mut self, to: Instant) {
        self.now = to;
        self.engine.handle_timeout(self.now, &mut self.mem, &mut self.cqs);
    }

    /// All completions, as (work request, status).
    pub(crate) fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.completions().iter().map(|wc| (wc.wr_id.0, wc.status)).collect()
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        self.cqs.got.drain(..).map(|(_, completion)| completion).collect()
    }

    /// What queue pairs fell into by themselves.
    pub(crate) fn transitions(&mut self) -> Vec<pmd_roce::transition::Transition> {
        std::iter::from_fn(|| self.engine.poll_transition()).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    /// Posts a signalled request on `len` bytes of the source, or of the destination for what
    /// brings data.
    pub(crate) fn post(&mut self, qpn: Qpn, wr_id: u64, op: SendOp, len: u32) {
        self.engine.post_send(qpn, &send_wr(wr_id, op, &[element(&op, len)])).unwrap();
    }

    /// Posts a receive of `len` bytes at `at` in the destination.
    pub(crate) fn post_recv(&mut self, qpn: Qpn, wr_id: u64, at: u64, len: u32) {
        let sges = [Sge { addr: DST_ADDR + at, len, lkey: Lkey(DST) }];
        self.engine.post_recv(qpn, &RecvWr { wr_id: WrId(wr_id), sges: &sges }).unwrap();
    }
}

/// The element that [`Host::post`] uses.
pub(crate) fn element(op: &SendOp, len: u32) -> Sge {
    match op {
        SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            Sge { addr: DST_ADDR, len, lkey: Lkey(DST) }
        }
        _ => Sge { addr: SRC_ADDR, len, lkey: Lkey(SRC) },
    }
}

/// A signalled request.
pub(crate) fn send_wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id: WrId(wr_id),
        op,
        data: Data::Sges(sges),
        flags: SendFlags::SIGNALED,
        to: None,
        srqn: None,
    }
}

/// The peer's shared region, `at` bytes in.
pub(crate) fn shared(at: u64) -> RemoteAddr {
    RemoteAddr { addr: SHARED_ADDR + at, rkey: Rkey(SHARED) }
}

pub(crate) fn gid(last: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 77, 0, last))
}

/// The multicast group 239.0.0.`last`.
pub(crate) fn group(last: u8) -> Gid {
    Gid::from(Ipv4Addr::new(239, 0, 0, last))
}

pub(crate) fn init(transport: Transport) -> QpInit {
    let cap = QpCap {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 256,
    };
    QpInit {
        transport,
        pd: PD,
        send_cq: SEND_CQ,
        recv_cq: RECV_CQ,
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: false,
    }
}

/// Attributes for a connection with `peer` at 10.77.0.`last`.
pub(crate) fn attr(last: u8, peer: Qpn) -> QpAttr {
    QpAttr {
        access: ALL_REMOTE,
        qkey: 0x1111,
        av: AddressVector::to(gid(last)),
        path_mtu: PathMtu::B1024,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 12,
        sq_psn: Psn::new(0),
        rq_psn: Psn::new(0),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        dest_qpn: peer,
        ..QpAttr::new(QpState::Init)
    }
}

/// What becomes of a frame between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    Drop,
}

/// Two hosts, 10.77.0.1 and 10.77.0.2, and a network without delay.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) hosts: [Host; 2],
    pub(crate) qpns: [Qpn; 2],
}

impl Pair {
    /// A connected pair in RTS, attributes changed by `adjust`.
    pub(crate) fn connected(transport: Transport, adjust: impl Fn(&mut QpAttr)) -> Self {
        let mut hosts = [Host::new(1), Host::new(2)];
        let qpns = [0, 1].map(|side: usize| hosts[side].create(transport));
        let mut pair = Self { hosts, qpns };
        for side in [0, 1] {
            let attr = pair.attr(side, &adjust);
            pair.hosts[side].bring_up(pair.qpns[side], &attr);
        }
        pair
    }

    pub(crate) fn rc() -> Self {
        Self::connected(Transport::Rc, |_| {})
    }

    /// Attributes of one side.
    pub(crate) fn attr(&self, side: usize, adjust: &impl Fn(&mut QpAttr)) -> QpAttr {
        let last = if side == 0 { 2 } else { 1 };
        let mut attr = attr(last, self.qpns[1 - side]);
        adjust(&mut attr);
        attr
    }

    /// Moves frames, and the clock where there are none, until nothing is left to happen. Sides
    /// count from 0; `fate` gets the sending one.
    pub(crate) fn run(&mut self, mut fate: impl FnMut(usize, &Sent) -> Fate) {
        for _ in 0..100_000 {
            self.hosts.iter_mut().for_each(Host::poll);
            let mut moved = false;
            for side in [0, 1] {
                while let Some(sent) = self.hosts[side].out.frames.pop_front() {
                    moved = true;
                    if fate(side, &sent) == Fate::Pass {
                        self.hosts[1 - side].deliver(&sent);
                    }
                }
            }
            if moved {
                continue;
            }
            let next = self.hosts.iter_mut().filter_map(|host| host.engine.poll_timeout()).min();
            match next {
                None => return,
                Some(next) => self.hosts.iter_mut().for_each(|host| host.pass(next)),
            }
        }
        panic!("the pair does not come to rest");
    }

    /// Without losses.
    pub(crate) fn settle(&mut self) {
        self.run(|_, _| Fate::Pass);
    }
}
