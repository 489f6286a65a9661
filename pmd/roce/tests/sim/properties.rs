//! Operations against the model, from many seeds, with everything that a network can do to frames
//! and that scheduling can do to shared memory.

use core::time::Duration;

use pmd_roce::engine::SrqInit;
use pmd_roce::ids::{CqId, Instant, PathMtu, Psn, XrcdId};
use pmd_roce::limits::MAX_SRQ_WR;
use pmd_roce::qp::state::Transport;
use pmd_roce::work::{Completion, Data, RecvWr, SendFlags, Sge, WcOpcode, WcStatus};
use pmd_roce::{engine::PostSendError, ids::WrId};
use pmd_sim::{Act, Fault, HostId, Path, QpPlan, Rng, World, connect::PD};

use crate::harness::{End, PATHS, seeds};
use crate::model::{Kind, LONGEST, Message, Request, Script, TARGET, receive_slot, slot};

/// How a side is driven, and how far it is.
struct Driver {
    end: End,
    script: Script,
    posted: usize,
    /// Signalled requests in order, and how many of them have completed.
    signaled: Vec<usize>,
    completed: usize,
    receives_posted: usize,
    received: Vec<(usize, Completion)>,
    /// The shared queue that its receives are posted to, and where XRC completes them.
    srq: Option<pmd_roce::ids::Srqn>,
    recv_cq: CqId,
}

impl Driver {
    fn new(end: End, script: Script, srq: Option<pmd_roce::ids::Srqn>, recv_cq: CqId) -> Self {
        let is_signaled = |request: &Request| request.flags.contains(SendFlags::SIGNALED);
        let indices = script.requests.iter().enumerate();
        let signaled = indices.filter(|(_, r)| is_signaled(r)).map(|(index, _)| index).collect();
        let (posted, completed, receives_posted) = (0, 0, 0);
        let received = Vec::new();
        Self { end, script, posted, signaled, completed, receives_posted, received, srq, recv_cq }
    }

    /// Posts the next request if there is one and it fits.
    fn post_next(&mut self, world: &mut World, target: pmd_sim::Mr) {
        let Some(request) = self.script.requests.get(self.posted) else { return };
        let at = slot(self.posted);
        let len = request.bytes.len();
        if !request.kind.brings_data() {
            self.end.write(world, at, &request.bytes);
        }
        let mut edges = vec![0];
        edges.extend(&request.cuts);
        edges.push(len);
        let parts: Vec<_> = edges.windows(2).map(|edge| edge[0]..edge[1]).collect();
        let pieces: Vec<_> = parts.iter().map(|part| &request.bytes[part.clone()]).collect();
        let sge = |part: &core::ops::Range<usize>| -> Sge {
            self.end.mr.sge(at + part.start as u64, part.len() as u32)
        };
        let sges: Vec<_> = parts.iter().map(sge).collect();
        let data = if request.inline { Data::Inline(&pieces) } else { Data::Sges(&sges) };
        let op = request.op(target.at(0));
        let id = self.posted as u64;
        match self.end.post_wr(world, id, op, data, request.flags, None) {
            Ok(()) => {
                if request.inline {
                    // The caller's again at once.
                    self.end.write(world, at, &vec![0xdb; len]);
                }
                self.posted += 1;
            }
            Err(PostSendError::Full) => {}
            Err(other) => panic!("{op:?}: {other}"),
        }
    }

    fn post_receive(&mut self, world: &mut World, wanted: usize) {
        if self.receives_posted == wanted {
            return;
        }
        let at = receive_slot(self.receives_posted);
        let sges = [self.end.mr.sge(at, 1), self.end.mr.sge(at + 1, LONGEST as u32 - 1)];
        let wr = RecvWr { wr_id: WrId(self.receives_posted as u64), sges: &sges };
        let host = self.end.host();
        let posted = match self.srq {
            Some(srqn) => world.post_srq_recv(host, srqn, &wr),
            None => world.post_recv(host, self.end.side.qpn, &wr),
        };
        posted.expect("the queue has room for all of them");
        self.receives_posted += 1;
    }

    /// Checks each send completion as it comes; keeps the receives.
    fn poll(&mut self, world: &mut World) {
        let (host, send_cq) = (self.end.host(), self.end.side.send_cq);
        while let Some(completion) = world.poll_cq(host, send_cq) {
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            let index = *self.signaled.get(self.completed).expect("one completion per request");
            assert_eq!(completion.wr_id.0, index as u64, "in order, exactly once");
            let request = &self.script.requests[index];
            if request.kind.brings_data() {
                assert_eq!(completion.byte_len as usize, request.bytes.len());
                self.check_read(world, index);
            }
            self.completed += 1;
        }
        while let Some(completion) = world.poll_cq(host, self.recv_cq) {
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            let nth = self.received.len();
            assert_eq!(completion.wr_id.0, nth as u64, "receives are used in order");
            self.received.push((nth, completion));
        }
    }

    fn check_read(&self, world: &World, index: usize) {
        let expected = &self.script.requests[index].bytes;
        let got = self.end.bytes(world, slot(index), expected.len());
        assert_eq!(&got, expected, "request {index}: {:?}", self.script.requests[index].kind);
    }

    fn has_sent_all(&self, world: &World) -> bool {
        let view = world.engine(self.end.host()).query_qp(self.end.side.qpn).expect("exists");
        self.posted == self.script.requests.len() && view.send_outstanding == 0
    }

    /// What receive `nth` holds, as a message.
    fn message(&self, world: &World, nth: usize) -> Message {
        let completion = self.received[nth].1;
        let is_write = completion.opcode == WcOpcode::RecvWriteImm;
        let byte_len = completion.byte_len as usize;
        let len = if is_write { 0 } else { byte_len };
        let bytes = self.end.bytes(world, receive_slot(nth), len);
        Message { bytes, byte_len, imm: completion.imm(), is_write }
    }
}

/// Two hosts that talk to each other in both directions at once.
struct Talk {
    world: World,
    rng: Rng,
    path: Path,
    /// Frames arrive once at most, and in order.
    keeps_order: bool,
    sides: Vec<Driver>,
}

impl Talk {
    fn new(seed: u64, path: Path, transport: Transport) -> Self {
        let mut rng = Rng::new(seed ^ 0x7a1c);
        let mut world = World::new(seed);
        let hosts = [world.add_host("a"), world.add_host("b")];
        if path == Path::Shared {
            world.set_map_delay(Duration::from_nanos(rng.below(2) * rng.below(5000)));
        }
        let unreliable = transport == Transport::Uc;
        let shares = transport == Transport::XrcIni || !unreliable && rng.chance(300_000);
        let [a, b] = hosts.map(|host| {
            let plan = random_plan(&mut rng, transport);
            connection_end(&mut world, &mut rng, host, plan, shares)
        });
        let sides = connect(&mut world, path, transport, a, b, &mut rng, unreliable);
        Self { world, rng, path, keeps_order: true, sides }
    }

    /// Loss, duplication, reordering, corruption and a partition; or pauses of the hosts.
    fn trouble(&mut self) {
        let rng = &mut self.rng;
        if self.path == Path::Packets {
            self.keeps_order = rng.chance(300_000);
            for act in [Act::Drop, Act::Corrupt, Act::Duplicate, Act::Reorder] {
                if self.keeps_order && matches!(act, Act::Duplicate | Act::Reorder) {
                    break;
                }
                let parts = rng.below(2) * rng.below(30_000);
                self.world.add_fault(Fault::random(act, u32::try_from(parts).expect("few")));
            }
            if rng.chance(300_000) {
                let (from, to) = (HostPair::pick(rng, &self.sides), rng.below(100_000));
                let lost = Fault::new(Act::Drop, pmd_sim::Filter::ALL);
                let until = Instant(to + rng.below(2_000_000));
                self.world.add_fault(lost.from(from).between(Instant(to), until));
            }
        }
    }

    fn run(&mut self, finished: impl Fn(&Self) -> bool) {
        let limit = self.world.now().after(Duration::from_secs(5));
        let mut rounds_without_event = 0;
        while !finished(self) {
            rounds_without_event =
                if self.world.next_at().is_some() { 0 } else { rounds_without_event + 1 };
            assert!(rounds_without_event < 1000, "nothing will happen any more");
            for _ in 0..self.rng.below(12) {
                self.world.step();
            }
            if self.path == Path::Shared && self.rng.chance(2000) {
                let host = HostPair::pick(&mut self.rng, &self.sides);
                self.world.pause(host, Duration::from_nanos(self.rng.below(3_000_000)));
            }
            let targets = [self.sides[1].end.mr, self.sides[0].end.mr];
            let wanted = [1, 0].map(|peer: usize| self.sides[peer].script.messages.len());
            for (index, side) in self.sides.iter_mut().enumerate() {
                side.poll(&mut self.world);
                for _ in 0..self.rng.below(3) {
                    side.post_next(&mut self.world, targets[index]);
                }
                for _ in 0..self.rng.below(3) {
                    side.post_receive(&mut self.world, wanted[index]);
                }
            }
            assert!(self.world.now() < limit, "stuck");
        }
    }
}

/// Picks one of the two hosts.
struct HostPair;

impl HostPair {
    fn pick(rng: &mut Rng, sides: &[Driver]) -> HostId {
        sides[rng.index(2)].end.host()
    }
}

/// A plan with short timers, so that retries are many and the budget is some milliseconds.
fn random_plan(rng: &mut Rng, transport: Transport) -> QpPlan {
    let mut plan = QpPlan::of(transport);
    plan.cap.max_send_wr = 1 << rng.between(1, 5);
    plan.path_mtu = PathMtu::ALL[rng.index(3)];
    plan.timeout = 8;
    plan.min_rnr_timer = u8::try_from(rng.between(1, 12)).expect("a code");
    plan.max_rd_atomic = u8::try_from(rng.between(1, 8)).expect("few");
    // Half of them run through the end of the circle.
    let back = rng.bits32() % 60;
    plan.sq_psn =
        if rng.chance(500_000) { Psn::new(0).minus(back) } else { Psn::new(rng.bits32()) };
    plan
}

/// What one host brings into a talk.
struct HostSide {
    host: HostId,
    plan: QpPlan,
    srq: Option<pmd_roce::ids::Srqn>,
    recv_cq: CqId,
}

fn connection_end(
    world: &mut World,
    rng: &mut Rng,
    host: HostId,
    mut plan: QpPlan,
    shares: bool,
) -> HostSide {
    let (send_cq, recv_cq) = (world.create_cq(host, 256), world.create_cq(host, 256));
    plan.cqs = Some((send_cq, recv_cq));
    let is_xrc = plan.transport == Transport::XrcIni;
    let srq = shares.then(|| {
        let xrc = is_xrc.then_some((XrcdId(3), recv_cq));
        let max_wr = 64.min(MAX_SRQ_WR);
        let init = SrqInit { pd: PD, max_wr, max_sge: 2, xrc };
        world.create_srq(host, &init).expect("a shared queue")
    });
    if !is_xrc {
        plan.srq = srq;
    }
    plan.sq_sig_all = false;
    plan.max_dest_rd_atomic = u8::try_from(rng.between(8, 16)).expect("few");
    HostSide { host, plan, srq, recv_cq }
}

fn connect(
    world: &mut World,
    path: Path,
    transport: Transport,
    mut a: HostSide,
    mut b: HostSide,
    rng: &mut Rng,
    unreliable: bool,
) -> Vec<Driver> {
    // Both sides use the smaller MTU, as a connection manager would see to.
    let mtu = a.plan.path_mtu.min(b.plan.path_mtu);
    (a.plan.path_mtu, b.plan.path_mtu) = (mtu, mtu);
    let mut ends = [&a, &b].map(|side| End::new(world, side.host, side.plan));
    if transport == Transport::XrcIni {
        for (from, to) in [(0, &b), (1, &a)] {
            let plan = QpPlan { transport: Transport::XrcTgt, xrcd: Some(XrcdId(3)), ..to.plan };
            let target = End::new(world, to.host, plan);
            world.connect(ends[from].side, target.side, path).expect("RESET to RTS");
            ends[from].srqn = to.srq;
        }
    } else {
        world.connect(ends[0].side, ends[1].side, path).expect("RESET to RTS");
    }
    let sides = ends.into_iter().zip([a, b]);
    sides
        .map(|(end, host)| {
            Driver::new(end, Script::random(rng, unreliable), host.srq, host.recv_cq)
        })
        .collect()
}

/// Reliable transports: every request ends well, in order, exactly once, and memory and messages are
/// what one request after the other would have left.
fn reliable(transport: Transport) {
    for path in PATHS {
        for seed in seeds(1000) {
            let run = || {
                let mut talk = Talk::new(seed, path, transport);
                talk.trouble();
                talk.run(|talk| {
                    talk.sides.iter().zip([1, 0]).all(|(side, peer)| {
                        let expected: &Driver = &talk.sides[peer];
                        side.has_sent_all(&talk.world)
                            && side.completed == side.signaled.len()
                            && side.received.len() == expected.script.messages.len()
                    })
                });
                for (side, peer) in talk.sides.iter().zip([1, 0]) {
                    check_reliable(&talk.world, side, &talk.sides[peer]);
                }
            };
            labelled(run, || format!("{transport} {path:?} seed {seed}"));
        }
    }
}

fn check_reliable(world: &World, side: &Driver, peer: &Driver) {
    let target = peer.end.bytes(world, 0, TARGET.len());
    assert!(target == side.script.target, "the target's bytes are not the model's");
    for (nth, expected) in side.script.messages.iter().enumerate() {
        assert_eq!(&peer.message(world, nth), expected, "message {nth}");
    }
    let reads = side.script.requests.iter().enumerate();
    for (index, _) in reads.filter(|(_, request)| request.kind.brings_data()) {
        side.check_read(world, index);
    }
}

/// Runs one seed and says which when it fails.
fn labelled(run: impl FnOnce() + std::panic::UnwindSafe, label: impl FnOnce() -> String) {
    if let Err(panic) = std::panic::catch_unwind(run) {
        eprintln!("failed: {}", label());
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn rc_operations_equal_the_model() {
    reliable(Transport::Rc);
}

#[test]
fn xrc_operations_equal_the_model() {
    reliable(Transport::XrcIni);
}

/// S1-02, S1-72: what UC loses it loses as a whole, and what it delivers is intact and in order.
#[test]
fn s1_72_uc_loses_whole_messages_only() {
    for path in PATHS {
        for seed in seeds(1000) {
            let run = || {
                let mut talk = Talk::new(seed, path, Transport::Uc);
                talk.trouble();
                talk.run(|talk| talk.sides.iter().all(|side| side.has_sent_all(&talk.world)));
                talk.world.run_for(Duration::from_millis(10));
                for side in &mut talk.sides {
                    side.poll(&mut talk.world);
                    assert_eq!(side.completed, side.signaled.len());
                }
                for (side, peer) in talk.sides.iter().zip([1, 0]) {
                    check_unreliable(&talk, side, &talk.sides[peer]);
                }
            };
            labelled(run, || format!("UC {path:?} seed {seed}"));
        }
    }
}

fn check_unreliable(talk: &Talk, side: &Driver, peer: &Driver) {
    let world = &talk.world;
    let mut sent = side.script.messages.iter();
    for (nth, _) in &peer.received {
        if !talk.keeps_order {
            // UC takes whatever begins a message, whenever it comes.
            sent = side.script.messages.iter();
        }
        let got = peer.message(world, *nth);
        assert!(sent.any(|message| *message == got), "receive {nth} holds {got:?}");
    }
    let target = peer.end.bytes(world, 0, TARGET.len());
    let writes = |kind| matches!(kind, Kind::Write | Kind::WriteImm(_));
    for (at, byte) in target.iter().enumerate() {
        let from = |request: &Request| {
            writes(request.kind)
                && at >= request.at
                && request.bytes.get(at - request.at) == Some(byte)
        };
        assert!(*byte == 0 || side.script.requests.iter().any(from), "a byte nobody wrote");
    }
}
