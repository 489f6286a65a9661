//! Frames with a right ICRC and anything in them, against queue pairs of every transport in every
//! state that listens. Nothing panics; the engine touches only what was posted or granted, and
//! completes each request at most once.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use pmd_roce::engine::{Engine, EngineConfig, SrqInit};
use pmd_roce::ids::{
    CqId, Gid, Instant, Lkey, PathMtu, PdId, Psn, Qpn, Rkey, Srqn, WrId, XrcdId,
};
use pmd_roce::local::Nobody;
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::qp::attr::{AddressVector, QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{AttrMask, QpState, Transport, masks};
use pmd_roce::sink::{CqSink, Flow, Frame, IpId, TxSink};
use pmd_roce::wire::icrc::{self, IcrcHeader};
use pmd_roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, HeaderSet, Headers, Ieth, ImmDt, Msn, Opcode, Reth,
    Syndrome, XrcEth,
};
use pmd_roce::work::{
    Access, Completion, CqOverrun, Data, Datagram, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    Sge, WcOpcode, WcStatus, WindowBind,
};

/// One frame, or something else that happens.
#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Likely(Likely),
    Raw(Raw<'a>),
    /// Microseconds pass.
    Wait(u16),
    /// The wire takes so many frames before the next step.
    Room(u8),
    PostRecv {
        qp: u8,
        len: u16,
    },
    PostSend {
        qp: u8,
        kind: u8,
        len: u16,
    },
}

/// A frame that makes sense to somebody: its headers are those of its opcode, and its numbers small.
#[derive(Arbitrary, Debug)]
struct Likely {
    to: u8,
    opcode: u8,
    psn: i8,
    flags: u8,
    key: u8,
    va: u16,
    /// Announced length, or a number for the headers that have none.
    len: u16,
    payload: u16,
    ipv6: bool,
}

/// Any bytes behind a destination that exists.
#[derive(Arbitrary, Debug)]
struct Raw<'a> {
    to: u8,
    psn: i8,
    opcode: u8,
    flags: u8,
    ack_req: u8,
    ipv6: bool,
    rest: &'a [u8],
}

const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);
const XRCD: XrcdId = XrcdId(1);
const PSN: u32 = 0xff_fff0;
const PEER: u32 = 0x11;
const QKEY: u32 = 0x11;
const GRANTED: usize = 4096;
/// A peer may do with it what the bits of the key say, as in [`Access`].
const KEYS: core::ops::Range<u32> = 0..16;

/// Memory that says who may touch what, and panics where the engine must have known.
#[derive(Debug)]
struct Grants {
    granted: Vec<u8>,
    /// Elements of posted requests, by key; true: the engine may write.
    elements: Vec<(Sge, bool)>,
    /// Queue pairs that allow nothing.
    closed: Qpn,
}

impl Grants {
    fn element(&self, pd: PdId, sge: &Sge, write: bool) {
        assert_eq!(pd, PD);
        let is_posted = |(posted, writable): &(Sge, bool)| posted == sge && (*writable || !write);
        assert!(self.elements.iter().any(is_posted), "{sge:?} was never posted for this");
    }

    fn range(&self, at: RemoteAddr, len: u64, rights: Access) -> Result<usize, MemoryFault> {
        if !KEYS.contains(&at.rkey.0) {
            return Err(MemoryFault::UnknownKey);
        }
        if !Access::from_bits_truncate(at.rkey.0).contains(rights) {
            return Err(MemoryFault::NoPermission);
        }
        match at.addr.checked_add(len) {
            Some(end) if end <= GRANTED as u64 => Ok(at.addr as usize),
            _ => Err(MemoryFault::OutOfBounds),
        }
    }
}

impl Memory for Grants {
    fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), MemoryFault> {
        self.element(pd, sge, write);
        Ok(())
    }

    fn gather(&self, pd: PdId, sge: &Sge, offset: u32, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.element(pd, sge, false);
        assert!(offset as usize + into.len() <= sge.len as usize, "reads beyond the element");
        into.fill(0x5a);
        Ok(())
    }

    fn scatter(
        &mut self,
        pd: PdId,
        sge: &Sge,
        offset: u32,
        from: &[u8],
    ) -> Result<(), MemoryFault> {
        self.element(pd, sge, true);
        assert!(offset as usize + from.len() <= sge.len as usize, "writes beyond the element");
        Ok(())
    }

    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(), MemoryFault> {
        assert_ne!(by.qpn, self.closed, "a queue pair that allows nothing asks for memory");
        if len == 0 { Ok(()) } else { self.range(at, len, rights).map(drop) }
    }

    fn read_remote(&self, by: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault> {
        assert_ne!(by.qpn, self.closed);
        let from = self.range(at, into.len() as u64, Access::REMOTE_READ)?;
        into.copy_from_slice(&self.granted[from..from + into.len()]);
        Ok(())
    }

    fn write_remote(&mut self, by: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault> {
        assert_ne!(by.qpn, self.closed);
        let to = self.range(at, from.len() as u64, Access::REMOTE_WRITE)?;
        self.granted[to..to + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        by: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        assert_ne!(by.qpn, self.closed);
        assert!(at.addr.is_multiple_of(8), "the engine checks alignment");
        let to = self.range(at, 8, Access::REMOTE_ATOMIC)?;
        let cell = self.granted[to..].first_chunk_mut::<8>().expect("eight bytes");
        let old = u64::from_ne_bytes(*cell);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == old => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd(add) => old.wrapping_add(add),
        };
        *cell = new.to_ne_bytes();
        Ok(old)
    }

    fn invalidate(&mut self, _: Asker, key: Rkey) -> Result<(), MemoryFault> {
        if KEYS.contains(&key.0) { Ok(()) } else { Err(MemoryFault::UnknownKey) }
    }

    fn bind(&mut self, _: Asker, _: &WindowBind) -> Result<(), MemoryFault> {
        Ok(())
    }
}

/// Requests that are posted and have not completed, receives with the bytes they have room for.
#[derive(Debug, Default)]
struct Open {
    sends: BTreeSet<u64>,
    receives: BTreeMap<u64, u32>,
}

impl CqSink for Open {
    fn push(&mut self, _: CqId, completion: Completion) -> Result<(), CqOverrun> {
        let WrId(id) = completion.wr_id;
        let is_receive = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
        let outstanding = match is_receive {
            true => self.receives.remove(&id),
            false => self.sends.remove(&id).then_some(0),
        };
        let Some(room) = outstanding else { panic!("{completion:?} was not outstanding") };
        let filled = completion.status == WcStatus::Success && completion.opcode == WcOpcode::Recv;
        assert!(!filled || completion.byte_len <= room, "{completion:?} has room for {room}");
        Ok(())
    }
}

/// A wire with room for some frames, all of which must be sealed.
struct Wire {
    room: usize,
}

impl TxSink for Wire {
    fn send(
        &mut self,
        flow: &Flow,
        _to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool {
        if self.room == 0 {
            return false;
        }
        self.room -= 1;
        let mut payload = vec![0; len];
        fill(7, &mut payload);
        let Flow { src, dst, src_port, .. } = *flow;
        assert!(icrc::verify(&IcrcHeader { src, dst, src_port, ip_id: 7 }, &payload));
        true
    }
}

fn own(ipv6: bool) -> Gid {
    if ipv6 { Gid(Ipv6Addr::LOCALHOST.octets()) } else { Gid::from(Ipv4Addr::new(10, 0, 0, 1)) }
}

fn peer(ipv6: bool) -> Gid {
    match ipv6 {
        true => Gid(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets()),
        false => Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
    }
}

fn group() -> Gid {
    Gid::from(Ipv4Addr::new(224, 0, 0, 9))
}

/// The engine, its queue pairs, and all it is lent.
struct Bench {
    engine: Engine,
    qpns: Vec<Qpn>,
    /// PSN after the last one toward each of them.
    next: Vec<Psn>,
    mem: Grants,
    open: Open,
    now: Instant,
    next_id: u64,
}

impl Bench {
    fn new() -> Self {
        let mut config = EngineConfig::new(1, 0, vec![own(false), own(true)]);
        config.mtu = PathMtu::B512;
        let mut engine = Engine::new(config);
        engine.open_gsi().expect("the device is alive");
        let shared = SrqInit { pd: PD, max_wr: 16, max_sge: 1, xrc: None };
        let srqn = engine.create_srq(&shared).expect("room");
        let xrc = SrqInit { xrc: Some((XRCD, CQ)), ..shared };
        let xrc_srqn = engine.create_srq(&xrc).expect("room");
        let mut bench = Self {
            engine,
            qpns: Vec::new(),
            next: vec![Psn::new(PSN); 10],
            mem: Grants { granted: vec![0; GRANTED], elements: Vec::new(), closed: Qpn::new(0) },
            open: Open::default(),
            now: Instant(1),
            next_id: 0,
        };
        use QpState::{Init, Rtr, Rts, Sqd};
        use Transport::{Rc, Uc, Ud, XrcIni, XrcTgt};
        for (transport, state, srq, ipv6) in [
            (Rc, Rts, None, false),
            (Rc, Rts, Some(srqn), false),
            (Rc, Rts, None, true),
            (Rc, Rtr, None, false),
            (Rc, Sqd, None, false),
            (Rc, Init, None, false),
            (Uc, Rts, None, false),
            (Ud, Rts, None, false),
            (XrcIni, Rts, None, false),
            (XrcTgt, Rtr, None, false),
        ] {
            let cap = QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            let init = QpInit {
                transport,
                pd: PD,
                send_cq: CQ,
                recv_cq: CQ,
                srq,
                xrcd: (transport == XrcTgt).then_some(XRCD),
                cap,
                sq_sig_all: true,
            };
            let qpn = bench.engine.create_qp(&init).expect("room");
            bench.qpns.push(qpn);
            bench.bring_up(qpn, transport, state, ipv6, Access::from_bits_truncate(0xe));
        }
        bench.mem.closed = bench.qpns[3];
        let ud = bench.qpns[7];
        bench.engine.attach_multicast(ud, group()).expect("room");
        for srqn in [srqn, xrc_srqn] {
            for _ in 0..3 {
                let (wr_id, sge) = bench.element(700, true);
                bench.engine.post_srq_recv(srqn, &RecvWr { wr_id, sges: &[sge] }).expect("room");
                bench.open.receives.insert(wr_id.0, sge.len);
            }
        }
        for qp in 0..10 {
            bench.post_recv(qp, 700);
            bench.post_recv(qp, 40);
            for kind in [0, 1, 2, 3, 4] {
                bench.post_send(qp, kind, 600);
            }
        }
        bench
    }

    fn bring_up(
        &mut self,
        qpn: Qpn,
        transport: Transport,
        state: QpState,
        ipv6: bool,
        access: Access,
    ) {
        let closed = transport == Transport::Rc && state == QpState::Rtr;
        let attr = QpAttr {
            access: if closed { Access::empty() } else { access },
            qkey: QKEY,
            av: AddressVector { sgid_index: u8::from(ipv6), ..AddressVector::to(peer(ipv6)) },
            path_mtu: PathMtu::B256,
            timeout: 4,
            retry_cnt: 2,
            rnr_retry: 2,
            min_rnr_timer: 1,
            sq_psn: Psn::new(PSN),
            rq_psn: Psn::new(PSN),
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            dest_qpn: Qpn::new(PEER),
            ..QpAttr::new(QpState::Init)
        };
        let path = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd];
        for edge in path.windows(2) {
            let mask = masks(transport, edge[0], edge[1]).expect("an edge").required;
            let attr = QpAttr { state: edge[1], ..attr };
            let (mem, open) = (&mut self.mem, &mut self.open);
            let mask = mask | AttrMask::STATE;
            self.engine.modify_qp(self.now, qpn, &attr, mask, mem, open).expect("a full mask");
            if edge[1] == state {
                break;
            }
        }
    }

    /// An element of its own, and a name for the request that has it.
    fn element(&mut self, len: u32, write: bool) -> (WrId, Sge) {
        self.next_id += 1;
        let sge = Sge { addr: self.next_id << 16, len, lkey: Lkey(0x1000) };
        self.mem.elements.push((sge, write));
        (WrId(self.next_id), sge)
    }

    fn post_recv(&mut self, qp: u8, len: u16) {
        let qpn = self.qpn(qp);
        let (wr_id, sge) = self.element(len.into(), true);
        if self.engine.post_recv(qpn, &RecvWr { wr_id, sges: &[sge] }).is_ok() {
            self.open.receives.insert(wr_id.0, len.into());
        }
    }

    fn post_send(&mut self, qp: u8, kind: u8, len: u16) {
        let qpn = self.qpn(qp);
        let at = RemoteAddr { addr: 0, rkey: Rkey(1) };
        let (op, len) = match kind % 6 {
            0 => (SendOp::Send, len.into()),
            1 => (SendOp::Write(at), len.into()),
            2 => (SendOp::Read(at), len.into()),
            3 => (SendOp::FetchAdd { at, add: 1 }, 8),
            4 => (SendOp::CompareSwap { at, compare: 0, swap: 1 }, 8),
            _ => (SendOp::SendInvalidate(Rkey(1)), len.into()),
        };
        let write = matches!(kind % 6, 2..=4);
        let (wr_id, sge) = self.element(len, write);
        let is_ud = qpn == self.qpns[7];
        let ah = is_ud.then(|| self.engine.create_ah(&AddressVector::to(peer(false))));
        let to = ah.and_then(Result::ok).map(|ah| Datagram { ah, qpn: Qpn::new(PEER), qkey: QKEY });
        let srqn = Some(Srqn(1));
        let sges = [sge];
        let wr =
            SendWr { wr_id, op, data: Data::Sges(&sges), flags: SendFlags::SIGNALED, to, srqn };
        if self.engine.post_send(qpn, &wr).is_ok() {
            self.open.sends.insert(wr_id.0);
        }
    }

    fn qpn(&self, number: u8) -> Qpn {
        self.qpns[usize::from(number) % self.qpns.len()]
    }

    fn likely(&mut self, frame: &Likely) {
        let Likely { to, opcode, psn, flags, key, va, len, payload, ipv6 } = *frame;
        let opcode = Opcode::ALL[usize::from(opcode) % Opcode::ALL.len()];
        let mut headers = Headers::new(Bth::new(opcode, self.destination(to), self.psn(to, psn)));
        headers.bth.ack_req = flags & 1 == 0;
        headers.bth.solicited = flags & 2 != 0;
        let (va, rkey) = (u64::from(va % 5000), Rkey(u32::from(key % 18)));
        let number = u64::from(len);
        let is_in = |header| opcode.headers().contains(header);
        headers.xrceth =
            is_in(HeaderSet::XRCETH).then_some(XrcEth { srqn: Srqn(u32::from(key % 4)) });
        let qkey = if flags & 4 == 0 { QKEY } else { number as u32 };
        headers.deth = is_in(HeaderSet::DETH).then_some(Deth { qkey, src_qp: Qpn::new(PEER) });
        headers.reth = is_in(HeaderSet::RETH).then_some(Reth { va, rkey, dma_len: len.into() });
        let va = if flags & 8 == 0 { va & !7 } else { va };
        let operands = AtomicEth { va, rkey, swap_or_add: number, compare: number % 3 };
        headers.atomic_eth = is_in(HeaderSet::ATOMIC_ETH).then_some(operands);
        let syndrome = Syndrome::from_byte(key).unwrap_or(Syndrome::ACK);
        let aeth = Aeth { syndrome, msn: Msn::new(len.into()) };
        headers.aeth = is_in(HeaderSet::AETH).then_some(aeth);
        headers.atomic_ack_eth =
            is_in(HeaderSet::ATOMIC_ACK_ETH).then_some(AtomicAckEth { original: number });
        headers.immdt = is_in(HeaderSet::IMMDT).then_some(ImmDt([key; 4]));
        headers.ieth = is_in(HeaderSet::IETH).then_some(Ieth { rkey });
        // Often a full packet.
        let payload = if payload >= 1 << 14 { 256 } else { usize::from(payload % 300) };
        let mut bytes = vec![0; headers.buffer_len(payload) + icrc::LEN];
        headers.emit(payload, &mut bytes).fill(key);
        self.hand_in(to, ipv6, bytes);
    }

    fn raw(&mut self, frame: &Raw<'_>) {
        let Raw { to, psn, opcode, flags, ack_req, ipv6, rest } = *frame;
        let mut bytes = vec![opcode, flags, 0xff, 0xff];
        bytes.extend(self.destination(to).value().to_be_bytes());
        bytes.extend(self.psn(to, psn).value().to_be_bytes());
        bytes[8] = ack_req;
        bytes.extend(rest.iter().take(1100));
        bytes.extend([0; icrc::LEN]);
        self.hand_in(to, ipv6, bytes);
    }

    fn destination(&self, to: u8) -> Qpn {
        if to == u8::MAX { Qpn::MULTICAST } else { self.qpn(to) }
    }

    /// Mostly the PSN that comes after the last one toward this queue pair, else one near the first.
    fn psn(&mut self, to: u8, choice: i8) -> Psn {
        let next = &mut self.next[usize::from(to) % self.qpns.len()];
        if choice < 0 {
            return Psn::new(PSN).plus((i32::from(choice) + 64).cast_unsigned());
        }
        let psn = *next;
        *next = psn.plus(1 + u32::from(choice > 100));
        psn
    }

    fn hand_in(&mut self, to: u8, ipv6: bool, mut payload: Vec<u8>) {
        let is_group = to == u8::MAX;
        let ipv6 = ipv6 && !is_group;
        let flow = Flow {
            src: peer(ipv6),
            dst: if is_group { group() } else { own(ipv6) },
            src_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
        };
        let Flow { src, dst, src_port, .. } = flow;
        icrc::seal(&IcrcHeader { src, dst, src_port, ip_id: 3 }, &mut payload);
        let frame = Frame { flow, ip_id: IpId::Exact(3), payload: &payload };
        self.engine.handle_frame(self.now, &frame, &mut self.mem, &mut self.open);
    }

    fn turn(&mut self, room: usize) {
        let mut wire = Wire { room };
        self.engine.handle_timeout(self.now, &mut self.mem, &mut self.open);
        let (mem, open) = (&mut self.mem, &mut self.open);
        self.engine.poll_transmit(self.now, mem, &mut wire, &mut Nobody, open);
        while self.engine.poll_event().is_some() {}
    }

    /// In Error, everything outstanding completes.
    fn end(mut self) {
        for qpn in self.qpns.clone() {
            let attr = QpAttr::new(QpState::Error);
            let (mem, open) = (&mut self.mem, &mut self.open);
            self.engine
                .modify_qp(self.now, qpn, &attr, AttrMask::STATE, mem, open)
                .expect("any state leads to Error");
            let view = self.engine.query_qp(qpn).expect("it exists");
            assert_eq!((view.send_outstanding, view.recv_outstanding), (0, 0));
        }
        assert!(self.open.sends.is_empty(), "{:?} never completed", self.open.sends);
    }
}

fuzz_target!(|steps: Vec<Step<'_>>| {
    let mut bench = Bench::new();
    let mut room = usize::MAX;
    bench.turn(room);
    for step in steps.iter().take(64) {
        match step {
            // Up to four alike, one after the other.
            Step::Likely(frame) => (0..=frame.flags >> 6).for_each(|_| bench.likely(frame)),
            Step::Raw(frame) => bench.raw(frame),
            Step::Wait(micros) => bench.now.0 += u64::from(*micros) * 1000,
            Step::Room(frames) => room = usize::from(*frames),
            Step::PostRecv { qp, len } => bench.post_recv(*qp, *len),
            Step::PostSend { qp, kind, len } => bench.post_send(*qp, *kind, *len),
        }
        bench.turn(std::mem::replace(&mut room, usize::MAX));
    }
    bench.end();
});
