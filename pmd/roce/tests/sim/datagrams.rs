//! Datagrams from many to many, against what was sent.

use core::time::Duration;

use pmd_roce::ids::{Gid, Qpn};
use pmd_roce::qp::state::Transport;
use pmd_roce::work::{
    AhId, Completion, Data, Datagram, Imm, SendFlags, SendOp, WcOpcode, WcStatus,
};
use pmd_sim::{Act, Fault, HostId, Path, QpPlan, Rng, World};

use crate::harness::{End, PATHS, seeds};

const QKEY: u32 = 0x1234;
/// Bytes of one receive: the GRH area and the largest datagram.
const RECEIVE: u32 = 40 + 4096;

struct Sent {
    from: Qpn,
    to: usize,
    bytes: Vec<u8>,
    imm: Option<Imm>,
    arrived: u32,
}

/// Three queue pairs on each of two hosts, which send to each other and among themselves.
struct Crowd {
    world: World,
    ends: Vec<End>,
    /// From a host to a host.
    handles: [[AhId; 2]; 2],
    sent: Vec<Sent>,
}

impl Crowd {
    fn new(seed: u64, path: Path) -> Self {
        let mut world = World::new(seed);
        let hosts = [world.add_host("a"), world.add_host("b")];
        let plan = QpPlan { qkey: QKEY, ..QpPlan::of(Transport::Ud) };
        let mut ends = Vec::new();
        for host in hosts.into_iter().cycle().take(6) {
            let end = End::new(&mut world, host, plan);
            world.to_init(end.side).unwrap();
            world.to_rtr(end.side, end.side, path).unwrap();
            world.to_rts(end.side).unwrap();
            ends.push(end);
        }
        let handles = hosts.map(|from| {
            hosts.map(|to| {
                let av = world.address(from, to, path);
                world.create_ah(from, &av).unwrap()
            })
        });
        Self { world, ends, handles, sent: Vec::new() }
    }

    fn send(&mut self, rng: &mut Rng) {
        let (from, to) = (rng.index(6), rng.index(6));
        let mut bytes = vec![0; rng.below(4097) as usize];
        rng.fill(&mut bytes);
        // The message says which it is.
        let imm = rng.chance(500_000).then(|| Imm((self.sent.len() as u32).to_be_bytes()));
        let (sender, receiver) = (self.ends[from], self.ends[to]);
        let ah = self.handles[sender.host().index()][receiver.host().index()];
        let to_qp = Some(Datagram { ah, qpn: receiver.side.qpn, qkey: QKEY });
        let at = 60_000 + 4096 * (self.sent.len() % 40) as u64;
        sender.write(&self.world, at, &bytes);
        let sges = [sender.mr.sge(at, bytes.len() as u32)];
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        let (id, flags) = (self.sent.len() as u64, SendFlags::SIGNALED);
        sender.post_wr(&mut self.world, id, op, Data::Sges(&sges), flags, to_qp).unwrap();
        self.sent.push(Sent { from: sender.side.qpn, to, bytes, imm, arrived: 0 });
    }

    /// Looks up which message a receive holds, and counts its arrival.
    fn receive(&mut self, end: usize, completion: &Completion) {
        assert_eq!(completion.status, WcStatus::Success);
        assert!(completion.grh());
        let at = u64::from(RECEIVE) * completion.wr_id.0;
        let held = self.ends[end].bytes(&self.world, at, completion.byte_len as usize);
        let (grh, bytes) = held.split_at(40);
        let message = self.sent.iter_mut().find(|sent| {
            let same_ends = sent.from == completion.src_qpn && sent.to == end;
            same_ends && sent.bytes == bytes && sent.imm == completion.imm()
        });
        message.expect("a message that somebody sent").arrived += 1;
        // S1-46: an IPv4 header in the last 20 bytes tells both addresses.
        let host_of = |qpn| self.ends.iter().find(|end| end.side.qpn == qpn).unwrap().host();
        let gid = |host: HostId| -> Gid { self.world.gid(host) };
        let source = gid(host_of(completion.src_qpn));
        assert_eq!(grh[32..36], source.0[12..]);
        assert_eq!(grh[36..40], gid(self.ends[end].host()).0[12..]);
        assert_eq!(grh[20], 0x45);
    }

    fn poll(&mut self) {
        for (index, end) in self.ends.clone().into_iter().enumerate() {
            for completion in end.poll(&mut self.world) {
                assert_eq!(completion.status, WcStatus::Success, "sending never fails");
                if completion.opcode == WcOpcode::Recv {
                    self.receive(index, &completion);
                    let id = completion.wr_id.0;
                    end.recv(&mut self.world, id, id * u64::from(RECEIVE), RECEIVE);
                }
            }
        }
    }
}

/// S1-03, S1-10, S1-40, S1-45: each datagram arrives whole at the queue pair it was for, and on a
/// network without faults exactly once, as shared memory always does it.
#[test]
fn s1_03_datagrams_arrive_whole() {
    for path in PATHS {
        for seed in seeds(200) {
            let mut rng = Rng::new(seed);
            let mut crowd = Crowd::new(seed, path);
            let faulty = path == Path::Packets && rng.chance(500_000);
            if faulty {
                for act in [Act::Drop, Act::Duplicate, Act::Reorder, Act::Corrupt] {
                    crowd.world.add_fault(Fault::random(act, 50_000));
                }
            }
            for end in crowd.ends.clone() {
                for id in 0..12 {
                    end.recv(&mut crowd.world, id, id * u64::from(RECEIVE), RECEIVE);
                }
            }
            for _ in 0..40 {
                crowd.send(&mut rng);
                for _ in 0..rng.below(20) {
                    crowd.world.step();
                }
                crowd.poll();
            }
            crowd.world.run_for(Duration::from_millis(5));
            crowd.poll();
            if !faulty {
                let dry: u64 = [0, 1]
                    .map(|host| crowd.world.counters(crowd.ends[host].host()).out_of_buffer)
                    .iter()
                    .sum();
                let arrived: u32 = crowd.sent.iter().map(|sent| sent.arrived).sum();
                assert_eq!(u64::from(arrived) + dry, 40, "{path:?} seed {seed}");
                assert!(crowd.sent.iter().all(|sent| sent.arrived <= 1));
                assert!(dry < 10);
            }
        }
    }
}

/// B1, S1-46: without room for the GRH area a receive ends with LOC_LEN; the queue pair lives on.
#[test]
fn s1_46_a_receive_needs_room_for_the_grh() {
    for path in PATHS {
        let mut crowd = Crowd::new(1, path);
        let mut rng = Rng::new(1);
        for end in crowd.ends.clone() {
            end.recv(&mut crowd.world, 0, 0, 39);
            for id in 1..12 {
                end.recv(&mut crowd.world, id, id * u64::from(RECEIVE), RECEIVE);
            }
        }
        for _ in 0..30 {
            crowd.send(&mut rng);
        }
        crowd.world.run_for(Duration::from_millis(1));
        let mut received = 0;
        for end in crowd.ends.clone() {
            for completion in end.poll(&mut crowd.world) {
                if completion.opcode == WcOpcode::Recv {
                    let is_short = completion.wr_id.0 == 0;
                    let expected = if is_short { WcStatus::LocLen } else { WcStatus::Success };
                    assert_eq!(completion.status, expected, "{path:?}");
                    received += 1;
                }
            }
        }
        assert_eq!(received, 30);
    }
}

/// A peer that takes nothing does not stop a sender of datagrams: what has no room is lost.
#[test]
fn s1_03_a_stalled_peer_stalls_nobody() {
    let mut crowd = Crowd::new(2, Path::Shared);
    let (sender, receiver) = (crowd.ends[0], crowd.ends[1]);
    crowd.world.pause(receiver.host(), Duration::from_secs(10));
    let ah = crowd.handles[0][1];
    let to = Some(Datagram { ah, qpn: receiver.side.qpn, qkey: QKEY });
    let mut done = 0;
    for id in 0..100 {
        let (sges, flags) = ([sender.mr.sge(0, 4096)], SendFlags::SIGNALED);
        sender.post_wr(&mut crowd.world, id, SendOp::Send, Data::Sges(&sges), flags, to).unwrap();
    }
    assert!(crowd.world.run_until(Duration::from_secs(1), |world| {
        done += sender.poll(world).len();
        done == 100
    }));
}
