//! Operations in any order on two hosts in the simulator, with queue pairs of every transport, on
//! packets or on shared memory, under faults.
//!
//! Whatever happens: each request completes at most once and in order; once its queue pair is in
//! Error, each that asked for a completion has had it; a modify that is refused changes nothing;
//! and memory that was not granted stays as it was.
#![no_main]

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use pmd_roce::engine::SrqInit;
use pmd_roce::ids::{Psn, Qpn, Rkey, Srqn, WrId, XrcdId};
use pmd_roce::qp::attr::QpAttr;
use pmd_roce::qp::state::{AttrMask, QpState, Transport, masks};
use pmd_roce::work::{
    Access, AhId, Completion, Data, Datagram, Imm, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    WcOpcode, WcStatus, WindowBind,
};
use pmd_sim::connect::PD;
use pmd_sim::{Act, Fault, Filter, Frames, HostId, Mr, Path, QpPlan, QpSide, World};

#[derive(Arbitrary, Debug)]
struct Input {
    seed: u8,
    shared: bool,
    /// The first lane's completion queues hold no more.
    tight: Option<u8>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Send(Request),
    Recv { at: Place, len: u16 },
    Move { at: Place, to: u8, odd: u8, psn: u8 },
    Fault { act: u8, acks: bool, after: u8, every: u8, count: u8 },
    Run { micros: u16 },
    Pause { b: bool, micros: u16 },
    Port { b: bool, up: bool },
    KillHost { b: bool },
    KillCq(Place),
    Arm { b: bool, limit: u8 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Request {
    at: Place,
    kind: u8,
    len: u16,
    offset: u16,
    aim: Aim,
    flags: u8,
    inline: bool,
}

/// Memory of the peer that a request is about.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Aim {
    Granted,
    Private,
    NoKey,
    Window,
}

/// One end of one lane.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Place {
    lane: u8,
    b: bool,
}

const REGION: usize = 16 << 10;
const XRCD: XrcdId = XrcdId(7);
const SRQ_DEPTH: u32 = 64;
/// Transports of both ends of each lane, and whether the receives come from a shared queue.
const LANES: [(Transport, Transport, bool); 5] = [
    (Transport::Rc, Transport::Rc, false),
    (Transport::Rc, Transport::Rc, true),
    (Transport::Uc, Transport::Uc, false),
    (Transport::Ud, Transport::Ud, true),
    (Transport::XrcIni, Transport::XrcTgt, false),
];
const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Error,
];

/// A queue pair, and what was posted to it.
struct End {
    side: QpSide,
    ah: Option<AhId>,
    /// Name, and whether it asked for a completion; oldest first.
    sends: VecDeque<(u64, bool)>,
    /// Name, and the bytes it has room for; oldest first.
    receives: VecDeque<(u64, u32)>,
}

/// A host and everything on it.
struct Host {
    id: HostId,
    granted: Mr,
    private: Mr,
    window: Rkey,
    srq: Srqn,
    xrc_srq: Srqn,
    /// Receives in the shared queues.
    shared: BTreeMap<u64, u32>,
    is_dead: bool,
    ends: Vec<End>,
}

impl Host {
    fn new(world: &mut World, name: &str, input: &Input) -> Self {
        let id = world.add_host(name);
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let granted = world.register(id, PD, REGION, all | Access::LOCAL_WRITE | Access::MW_BIND);
        let private = world.register(id, PD, REGION, Access::LOCAL_WRITE);
        let window = world.memory_mut(id).alloc_window(PD);
        let xrc_cq = world.create_cq(id, 1024);
        let init = SrqInit { pd: PD, max_wr: SRQ_DEPTH, max_sge: 2, xrc: None };
        let srq = world.create_srq(id, &init).expect("room");
        let xrc = SrqInit { xrc: Some((XRCD, xrc_cq)), ..init };
        let xrc_srq = world.create_srq(id, &xrc).expect("room");
        let shared = BTreeMap::new();
        let mut host = Self {
            id,
            granted,
            private,
            window,
            srq,
            xrc_srq,
            shared,
            is_dead: false,
            ends: Vec::new(),
        };
        for (number, (a, b, has_srq)) in LANES.into_iter().enumerate() {
            let transport = if name == "a" { a } else { b };
            let cq = match input.tight.filter(|_| number == 0) {
                Some(depth) => world.create_cq(id, depth.into()),
                None if transport == Transport::XrcTgt => xrc_cq,
                None => world.create_cq(id, 1024),
            };
            let plan = QpPlan {
                cqs: Some((cq, cq)),
                srq: has_srq.then_some(srq),
                xrcd: (transport == Transport::XrcTgt).then_some(XRCD),
                qkey: 0x11,
                // A millisecond, three tries.
                timeout: 8,
                retry_cnt: 2,
                rnr_retry: 3,
                min_rnr_timer: 8,
                sq_psn: Psn::new(0xff_fff0),
                max_rd_atomic: 3,
                max_dest_rd_atomic: 3,
                ..QpPlan::of(transport)
            };
            let side = world.create_qp(id, plan).expect("a plan that fits");
            host.ends.push(End {
                side,
                ah: None,
                sends: VecDeque::new(),
                receives: VecDeque::new(),
            });
        }
        host
    }
}

/// The world and both hosts.
struct Bench {
    world: World,
    hosts: [Host; 2],
    path: Path,
    next_id: u64,
}

impl Bench {
    fn new(input: &Input) -> Self {
        let mut world = World::new(input.seed.into());
        let hosts = ["a", "b"].map(|name| Host::new(&mut world, name, input));
        let path = if input.shared { Path::Shared } else { Path::Packets };
        let mut bench = Self { world, hosts, path, next_id: 0 };
        for (lane, (transport, ..)) in LANES.into_iter().enumerate() {
            let (a, b) = (bench.end(0, lane).side, bench.end(1, lane).side);
            bench.world.connect(a, b, path).expect("RESET to RTS");
            for host in [0, 1] {
                if transport == Transport::Ud {
                    let (from, to) = (bench.hosts[host].id, bench.hosts[1 - host].id);
                    let av = bench.world.address(from, to, path);
                    let ah = bench.world.create_ah(from, &av).expect("room");
                    bench.end(host, lane).ah = Some(ah);
                }
            }
        }
        bench
    }

    fn end(&mut self, host: usize, lane: usize) -> &mut End {
        &mut self.hosts[host].ends[lane % LANES.len()]
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(request) => self.send(request),
            Step::Recv { at, len } => self.recv(at, len.into()),
            Step::Move { at, to, odd, psn } => self.modify(at, to, odd, psn),
            Step::Fault { act, acks, after, every, count } => {
                let act = match act % 5 {
                    0 => Act::Drop,
                    1 => Act::Delay(Duration::from_micros(300)),
                    2 => Act::Duplicate,
                    3 => Act::Reorder,
                    _ => Act::Corrupt,
                };
                let frames = if acks { Frames::Acks } else { Frames::All };
                let (after, every, count) = (after.into(), every.into(), Some(count.into()));
                let filter = Filter { after, every, count, ..Filter::of(frames) };
                self.world.add_fault(Fault::new(act, filter));
            }
            Step::Run { micros } => self.world.run_for(Duration::from_micros(micros.into())),
            Step::Pause { b, micros } => {
                let span = Duration::from_micros(micros.into());
                self.world.pause(self.hosts[usize::from(b)].id, span);
            }
            Step::Port { b, up } => self.world.set_port(self.hosts[usize::from(b)].id, up),
            Step::KillHost { b } => {
                let host = &mut self.hosts[usize::from(b)];
                if !std::mem::replace(&mut host.is_dead, true) {
                    self.world.kill_host(host.id);
                }
            }
            Step::KillCq(Place { lane, b }) => {
                let QpSide { host, send_cq, .. } = self.end(b.into(), lane.into()).side;
                self.world.kill_cq(host, send_cq);
            }
            Step::Arm { b, limit } => {
                let Host { id, srq, .. } = self.hosts[usize::from(b)];
                let limit = u32::from(limit);
                let armed = self.world.with_engine(id, |engine| engine.arm_srq_limit(srq, limit));
                assert_eq!(armed.is_ok(), limit <= SRQ_DEPTH);
            }
        }
        self.drain();
    }

    fn send(&mut self, request: Request) {
        let Request { at: Place { lane, b }, kind, len, offset, aim, flags, inline } = request;
        let (host, lane) = (usize::from(b), usize::from(lane) % LANES.len());
        self.next_id += 1;
        let id = self.next_id;
        let (own, peer) = (&self.hosts[host], &self.hosts[1 - host]);
        // Now and then beyond the end.
        let offset = u64::from(offset) % (REGION as u64 + 64);
        let at = match aim {
            Aim::Granted => peer.granted.at(offset),
            Aim::Private => peer.private.at(offset),
            Aim::NoKey => RemoteAddr { addr: peer.granted.addr, rkey: Rkey(0) },
            Aim::Window => RemoteAddr { addr: peer.granted.addr, rkey: peer.window },
        };
        let len = u32::from(len) % 9000;
        let imm = Imm([kind; 4]);
        let (op, len) = match kind % 10 {
            0 => (SendOp::Send, len),
            1 => (SendOp::SendImm(imm), len),
            2 => (SendOp::SendInvalidate(at.rkey), len),
            3 => (SendOp::Write(at), len),
            4 => (SendOp::WriteImm(at, imm), len),
            5 => (SendOp::Read(at), len),
            6 => (SendOp::CompareSwap { at, compare: 0, swap: 1 }, 8),
            7 => (SendOp::FetchAdd { at, add: 1 }, 8),
            8 => (SendOp::LocalInvalidate(own.window), 0),
            _ => {
                let Mr { addr, lkey: region, .. } = own.granted;
                let (window, new_key) = (own.window, own.window);
                let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
                let bind = WindowBind { window, new_key, region, addr, len: 64, access };
                (SendOp::BindWindow(bind), 0)
            }
        };
        let sges = [own.granted.sge(0, len)];
        let bytes = [0x77; 256];
        let pieces = [&bytes[..(len as usize).min(256)]];
        let flags = SendFlags::from_bits_truncate(flags.into());
        let QpSide { qpn, .. } = own.ends[lane].side;
        let far: Qpn = peer.ends[lane].side.qpn;
        let wr = SendWr {
            wr_id: WrId(id),
            op,
            data: if inline { Data::Inline(&pieces) } else { Data::Sges(&sges) },
            flags,
            to: own.ends[lane].ah.map(|ah| Datagram { ah, qpn: far, qkey: 0x11 }),
            srqn: Some(peer.xrc_srq),
        };
        if self.world.post_send(own.id, qpn, &wr).is_ok() {
            let asked = flags.contains(SendFlags::SIGNALED);
            self.end(host, lane).sends.push_back((id, asked));
        }
    }

    fn recv(&mut self, Place { lane, b }: Place, len: u32) {
        let (host, lane) = (usize::from(b), usize::from(lane) % LANES.len());
        self.next_id += 1;
        let id = self.next_id;
        let own = &self.hosts[host];
        let len = len % (REGION as u32 / 2);
        let sges = [own.granted.sge(0, len / 3), own.granted.sge(REGION as u64 / 2, len - len / 3)];
        let wr = RecvWr { wr_id: WrId(id), sges: &sges };
        let srqn = match LANES[lane] {
            (.., true) => Some(own.srq),
            (_, Transport::XrcTgt, _) => Some(own.xrc_srq),
            _ => None,
        };
        match srqn {
            Some(srqn) => {
                if self.world.post_srq_recv(own.id, srqn, &wr).is_ok() {
                    self.hosts[host].shared.insert(id, len);
                }
            }
            None => {
                if self.world.post_recv(own.id, own.ends[lane].side.qpn, &wr).is_ok() {
                    self.end(host, lane).receives.push_back((id, len));
                }
            }
        }
    }

    /// To any state, with the mask that the table asks for, but for one bit perhaps.
    fn modify(&mut self, Place { lane, b }: Place, to: u8, odd: u8, psn: u8) {
        let (host, lane) = (usize::from(b), usize::from(lane) % LANES.len());
        let (side, peer) = (self.end(host, lane).side, self.end(1 - host, lane).side);
        let to = STATES[usize::from(to) % STATES.len()];
        let Some(from) = self.world.state(side.host, side.qpn) else { return };
        let mask = masks(side.plan.transport, from, to).map_or(AttrMask::STATE, |m| m.required);
        let mask = mask ^ AttrMask::from_bits_truncate(1u32.checked_shl(odd.into()).unwrap_or(0));
        let av = self.world.address(side.host, peer.host, self.path);
        let psn = Psn::new(0xff_fff0 + u32::from(psn) / 8);
        let (rtr, _) = side.rtr_attr(av, peer.qpn, psn);
        let (rts, _) = side.rts_attr();
        let attr = QpAttr {
            state: to,
            cur_state: from,
            av: rtr.av,
            dest_qpn: rtr.dest_qpn,
            rq_psn: psn,
            path_mtu: rtr.path_mtu,
            min_rnr_timer: rtr.min_rnr_timer,
            max_dest_rd_atomic: rtr.max_dest_rd_atomic,
            access: side.plan.access,
            qkey: side.plan.qkey,
            ..rts
        };
        let before = self.world.engine(side.host).query_qp(side.qpn);
        match self.world.modify_qp(side.host, side.qpn, &attr, mask) {
            Err(_) => {
                let after = self.world.engine(side.host).query_qp(side.qpn);
                assert_eq!(after, before, "a modify that was refused");
            }
            Ok(()) if to == QpState::Reset && mask.contains(AttrMask::STATE) => {
                // Forgotten, and never to be heard of again.
                self.end(host, lane).sends.clear();
                self.end(host, lane).receives.clear();
            }
            Ok(()) => {}
        }
    }

    /// Takes all completions and crosses off what they are for.
    fn drain(&mut self) {
        for host in &mut self.hosts {
            let cqs: BTreeSet<_> = host.ends.iter().map(|end| end.side.send_cq).collect();
            for cq in cqs {
                while let Some(completion) = self.world.poll_cq(host.id, cq) {
                    cross_off(host, &completion);
                }
            }
            while self.world.poll_event(host.id).is_some() {}
        }
    }

    /// Everything ends in Error, and every account is closed.
    fn finish(&mut self) {
        for host in [0, 1] {
            for lane in 0..LANES.len() {
                let QpSide { host, qpn, .. } = self.end(host, lane).side;
                if self.world.state(host, qpn) != Some(QpState::Reset) {
                    self.world.set_state(host, qpn, QpState::Error).expect("from any state");
                }
            }
        }
        // What was posted in Error is flushed at the next turn, and a host may be paused until then.
        self.world.run_for(Duration::from_millis(100));
        self.drain();
        for host in self.hosts.iter().filter(|host| !host.is_dead) {
            for end in &host.ends {
                let QpSide { qpn, send_cq, .. } = end.side;
                let view = self.world.engine(host.id).query_qp(qpn).expect("it exists");
                assert_eq!((view.send_outstanding, view.recv_outstanding), (0, 0));
                if self.world.cqs(host.id).is_dead(send_cq) {
                    continue;
                }
                let open: Vec<_> = end.sends.iter().filter(|(_, asked)| *asked).collect();
                assert!(open.is_empty(), "sends {open:?} of {:?} never completed", end.side);
                assert!(end.receives.is_empty(), "{:?} of {:?}", end.receives, end.side);
            }
        }
        for host in &self.hosts {
            let memory = self.world.memory(host.id);
            let private = memory.bytes(host.private.addr, REGION).expect("registered");
            assert!(private.iter().all(|byte| *byte == 0), "private memory was written");
        }
    }
}

fn cross_off(host: &mut Host, completion: &Completion) {
    let Completion { wr_id: WrId(id), opcode, qpn, status, byte_len, .. } = *completion;
    let end = host.ends.iter_mut().find(|end| end.side.qpn == qpn).expect("of a queue pair");
    if matches!(opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm) {
        let first = end.receives.pop_front_if(|(first, _)| *first == id).map(|(_, room)| room);
        let Some(room) = first.or_else(|| host.shared.remove(&id)) else {
            panic!("out of turn or not outstanding: {completion:?}");
        };
        let filled = status == WcStatus::Success && opcode == WcOpcode::Recv;
        assert!(!filled || byte_len <= room, "{completion:?} has room for {room}");
        return;
    }
    loop {
        match end.sends.pop_front() {
            Some((first, asked)) if first == id => {
                assert!(asked || status != WcStatus::Success, "nobody asked: {completion:?}");
                return;
            }
            // Done, and nobody asked to be told.
            Some((_, false)) => {}
            other => panic!("{other:?} comes before {completion:?}"),
        }
    }
}

fuzz_target!(|input: Input| {
    let mut bench = Bench::new(&input);
    for step in input.steps.iter().take(48) {
        bench.step(*step);
    }
    bench.finish();
});
