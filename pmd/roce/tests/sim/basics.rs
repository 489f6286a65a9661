//! Every operation, on both paths.

use pmd_roce::ids::PathMtu;
use pmd_roce::wire::bth::BthView;
use pmd_roce::work::{Data, Imm, SendFlags, SendOp, WcOpcode, WcStatus};
use pmd_sim::{Path, QpPlan, World};

use crate::harness::{ALL, End, PATHS, Pair, pattern};

const OK: WcStatus = WcStatus::Success;

#[test]
fn a_send_fills_a_receive() {
    for path in PATHS {
        for len in [0usize, 1, 1024, 1025, 10_000] {
            let mut pair = Pair::new(1, path, QpPlan::rc());
            let Pair { world, a, b, .. } = &mut pair;
            let sent = pattern(len as u8, len);
            a.write(world, 100, &sent);
            b.recv(world, 7, 64, 20_000);
            a.post(world, 1, SendOp::SendImm(Imm([1, 2, 3, 4])), 100, len as u32);
            let done = a.wait(world, 1);
            assert_eq!((done[0].wr_id.0, done[0].status, done[0].opcode), (1, OK, WcOpcode::Send));
            let got = b.wait(world, 1)[0];
            assert_eq!((got.wr_id.0, got.status, got.opcode), (7, OK, WcOpcode::Recv), "{path:?}");
            assert_eq!((got.byte_len as usize, got.imm()), (len, Some(Imm([1, 2, 3, 4]))));
            assert_eq!(b.bytes(world, 64, len), sent);
            assert_eq!(b.bytes(world, 64 + len as u64, 8), [0; 8], "nothing behind the message");
        }
    }
}

#[test]
fn writes_reads_and_atomics() {
    for path in PATHS {
        let mut pair = Pair::new(2, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        let sent = pattern(9, 5000);
        a.write(world, 0, &sent);
        b.write(world, 8192, &7u64.to_ne_bytes());
        b.recv(world, 50, 0, 0);
        a.post(world, 1, SendOp::Write(b.mr.at(16)), 0, 5000);
        a.post(world, 2, SendOp::Read(b.mr.at(17)), 10_000, 4000);
        a.post(world, 3, SendOp::FetchAdd { at: b.mr.at(8192), add: 5 }, 20_000, 8);
        a.post(
            world,
            4,
            SendOp::CompareSwap { at: b.mr.at(8192), compare: 12, swap: 99 },
            20_008,
            8,
        );
        a.post(world, 5, SendOp::WriteImm(b.mr.at(9000), Imm([9; 4])), 0, 10);
        let done = a.statuses(world, 5);
        assert_eq!(done, (1..=5).map(|id| (id, OK)).collect::<Vec<_>>(), "{path:?}");
        assert_eq!(b.bytes(world, 16, 5000), sent);
        assert_eq!(a.bytes(world, 10_000, 4000), sent[1..4001]);
        assert_eq!(a.bytes(world, 20_000, 8), 7u64.to_ne_bytes());
        assert_eq!(a.bytes(world, 20_008, 8), 12u64.to_ne_bytes());
        assert_eq!(b.bytes(world, 8192, 8), 99u64.to_ne_bytes());
        let got = b.wait(world, 1)[0];
        assert_eq!((got.opcode, got.byte_len), (WcOpcode::RecvWriteImm, 10));
        assert_eq!((got.wr_id.0, got.imm()), (50, Some(Imm([9; 4]))));
        assert_eq!(b.bytes(world, 9000, 10), sent[..10]);
    }
}

/// S1-51, S1-53, P07: inline and registered memory give the same bytes, completions and order, and
/// an inline buffer is the caller's again at once.
#[test]
fn s1_53_inline_equals_dma() {
    for path in PATHS {
        let run = |inline: bool| {
            let mut pair = Pair::new(3, path, QpPlan::rc());
            let Pair { world, a, b, .. } = &mut pair;
            b.recv(world, 70, 0, 64);
            b.recv(world, 71, 64, 64);
            let mut buffer = pattern(1, 96);
            a.write(world, 0, &buffer);
            for (id, op) in [
                (1, SendOp::Send),
                (2, SendOp::Write(b.mr.at(1000))),
                (3, SendOp::SendImm(Imm([5; 4]))),
            ] {
                let flags = SendFlags::SIGNALED;
                let sges = [a.mr.sge(0, 10), a.mr.sge(20, 12), a.mr.sge(40, 8)];
                let pieces = [&buffer[0..10], &buffer[20..32], &buffer[40..48]];
                let data = if inline { Data::Inline(&pieces) } else { Data::Sges(&sges) };
                a.post_wr(world, id, op, data, flags, None).unwrap();
            }
            if inline {
                // Neither the stack buffer nor the region matters any more.
                buffer.fill(0xee);
                a.write(world, 0, &buffer);
            }
            let sent = a.wait(world, 3);
            let got = b.wait(world, 2);
            (sent, got, b.bytes(world, 0, 1100))
        };
        let (inline, dma) = (run(true), run(false));
        assert_eq!(inline, dma, "{path:?}");
        assert_eq!(inline.1[0].byte_len, 30);
        assert_eq!(inline.2[..10], pattern(1, 10));
    }
}

#[test]
fn a_host_talks_to_itself() {
    for path in PATHS {
        let mut world = World::new(4);
        let host = world.add_host("a");
        let (a, b) =
            (End::new(&mut world, host, QpPlan::rc()), End::new(&mut world, host, QpPlan::rc()));
        world.connect(a.side, b.side, path).unwrap();
        let other = world.register(host, b.side.plan.pd, 4096, ALL);
        b.recv(&mut world, 9, 0, 2000);
        a.write(&world, 0, &pattern(3, 2000));
        a.post(&mut world, 1, SendOp::Send, 0, 2000);
        a.post(&mut world, 2, SendOp::Write(other.at(5)), 0, 2000);
        assert_eq!(a.statuses(&mut world, 2), [(1, OK), (2, OK)], "{path:?}");
        assert_eq!(b.statuses(&mut world, 1), [(9, OK)]);
        assert_eq!(b.bytes(&world, 0, 2000), pattern(3, 2000));
        assert_eq!(world.memory(host).bytes(other.addr + 5, 2000).unwrap(), pattern(3, 2000));
    }
}

/// S1-27: the last packet of a message asks for an acknowledgement, and one in 64 before it; the others
/// are acknowledged along with it.
#[test]
fn s1_27_not_every_packet_asks() {
    let mut pair = Pair::new(4, Path::Packets, QpPlan { path_mtu: PathMtu::B256, ..QpPlan::rc() });
    let Pair { world, a, b, .. } = &mut pair;
    world.record_frames();
    a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 200 * 256);
    a.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 256);
    assert_eq!(a.statuses(world, 2), [(1, OK), (2, OK)]);
    let requests = world.frames().iter().filter(|frame| frame.from == a.host());
    let bths = requests.map(|frame| BthView::new_checked(&frame.payload).unwrap());
    let asking: Vec<_> =
        (0..).zip(bths).filter(|(_, bth)| bth.ack_req()).map(|(at, _)| at).collect();
    assert_eq!(asking, [63, 127, 191, 199, 200]);
    let acks = world.frames().iter().filter(|frame| frame.from == b.host()).count();
    assert!((1..=5).contains(&acks), "{acks}");
}
