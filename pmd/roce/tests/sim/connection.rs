//! Bringing connections up, and what both ends can be asked afterwards.

use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{PathMtu, Psn};
use pmd_roce::qp::attr::{ModifyQpError, QpAttr};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::work::{SendOp, WcStatus};
use pmd_sim::{QpPlan, World};

use crate::harness::{End, PATHS, Pair, pattern};

const OK: WcStatus = WcStatus::Success;

/// S1-22, S1-23, S1-25, S0-01: the worked example, read back after every step, and the PSNs that the
/// wire sees.
#[test]
fn s1_23_worked_example() {
    for path in PATHS {
        let plan = |sq_psn| QpPlan {
            sq_psn: Psn::new(sq_psn),
            path_mtu: PathMtu::B1024,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpPlan::rc()
        };
        let mut pair = Pair::apart(1, path, plan(0x20_0000), plan(0x10_0000));
        let Pair { world, a, b, .. } = &mut pair;
        world.record_frames();
        let (near, far) = (a.side, b.side);
        let attr = |world: &World, end: &End| {
            world.engine(end.host()).query_qp(end.side.qpn).unwrap().attr
        };
        for (side, end) in [(near, &*a), (far, &*b)] {
            assert_eq!(end.state(world), QpState::Reset);
            world.to_init(side).unwrap();
            assert_eq!(end.state(world), QpState::Init);
        }
        world.to_rtr(near, far, path).unwrap();
        world.to_rtr(far, near, path).unwrap();
        assert_eq!(attr(world, a).rq_psn, Psn::new(0x10_0000));
        assert_eq!(attr(world, b).rq_psn, Psn::new(0x20_0000));
        assert_eq!((attr(world, a).dest_qpn, attr(world, b).dest_qpn), (far.qpn, near.qpn));
        world.to_rts(near).unwrap();
        world.to_rts(far).unwrap();
        for (end, psn) in [(&*a, 0x20_0000), (&*b, 0x10_0000)] {
            let attr = attr(world, end);
            assert_eq!((attr.state, attr.sq_psn), (QpState::Rts, Psn::new(psn)));
            assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (14, 7, 7));
            assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
            assert_eq!((attr.min_rnr_timer, attr.path_mtu), (12, PathMtu::B1024));
        }
        for (from, to) in [(*a, *b), (*b, *a)] {
            to.recv(world, 50, 0, 4096);
            from.write(world, 8192, &pattern(7, 3000));
            from.post(world, 1, SendOp::Send, 8192, 3000);
            assert_eq!(from.statuses(world, 1), [(1, OK)]);
            assert_eq!(to.statuses(world, 1), [(50, OK)]);
            assert_eq!(to.bytes(world, 0, 3000), pattern(7, 3000));
        }
        // E-03: an ACK carries the PSN of what it acknowledges, not one of its sender's.
        let psn_of = |payload: &[u8]| u32::from_be_bytes([0, payload[9], payload[10], payload[11]]);
        let psns: Vec<_> = world.frames().iter().map(|frame| psn_of(&frame.payload)).collect();
        if path == pmd_sim::Path::Packets {
            let first = [0x20_0000, 0x20_0001, 0x20_0002, 0x20_0002];
            let second = [0x10_0000, 0x10_0001, 0x10_0002, 0x10_0002];
            assert_eq!(psns, [first, second].concat());
        } else {
            assert_eq!(psns, [0; 0], "shared memory has no packets");
        }
    }
}

/// S1-14, S1-15, S1-60, S1-61, S1-68: a skipped state or a missing attribute is refused by name, and
/// changes nothing, also where peers could see it.
#[test]
fn s1_61_refusals_change_nothing() {
    for path in PATHS {
        let mut pair = Pair::apart(2, path, QpPlan::rc(), QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        let av = world.address(a.host(), b.host(), path);
        let (attr, mask) = a.side.rtr_attr(av, b.side.qpn, Psn::new(0));
        let before = world.engine(a.host()).query_qp(a.side.qpn);
        let refused = world.modify_qp(a.host(), a.side.qpn, &attr, mask).unwrap_err();
        assert!(matches!(refused, ModifyQpError::Transition(_)), "{refused}");
        assert!(refused.to_string().contains("INIT"), "names what was skipped: {refused}");
        assert_eq!(world.engine(a.host()).query_qp(a.side.qpn), before);
        world.to_init(a.side).unwrap();
        let before = world.engine(a.host()).query_qp(a.side.qpn);
        let lacking = mask - AttrMask::DEST_QPN;
        let refused = world.modify_qp(a.host(), a.side.qpn, &attr, lacking).unwrap_err();
        assert!(refused.to_string().contains("DEST_QPN"), "{refused}");
        assert_eq!(world.engine(a.host()).query_qp(a.side.qpn), before);
        world.modify_qp(a.host(), a.side.qpn, &attr, mask).unwrap();
    }
}

/// S1-13, S2-23, E-31: in SQD what is posted waits, what was started is finished, and then the event
/// that was asked for comes; receiving goes on.
#[test]
fn s1_13_sqd_keeps_what_is_posted() {
    for path in PATHS {
        let mut pair = Pair::new(3, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        for id in 0..4 {
            b.recv(world, 50 + id, 0, 4096);
            a.recv(world, 60 + id, 0, 4096);
        }
        a.post(world, 1, SendOp::Send, 0, 4000);
        // The request starts with the next turn of its host.
        world.poll_host(a.host());
        let attr = QpAttr { sqd_notify: true, ..QpAttr::new(QpState::Sqd) };
        let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
        world.modify_qp(a.host(), a.side.qpn, &attr, mask).unwrap();
        assert_eq!(a.events(world), [], "{path:?}: one request is under way");
        a.post(world, 2, SendOp::Send, 0, 16);
        a.post(world, 3, SendOp::Write(b.mr.at(8192)), 0, 16);
        b.post(world, 9, SendOp::Send, 0, 16);
        assert_eq!(b.statuses(world, 2).len(), 2, "one sent, one received");
        world.run_for(core::time::Duration::from_millis(5));
        assert_eq!(a.events(world), [AsyncEvent::SqDrained(a.side.qpn)]);
        let done: Vec<_> = a.poll(world).iter().map(|wc| wc.wr_id.0).collect();
        assert_eq!(done.iter().filter(|id| **id == 1).count(), 1, "{path:?}: {done:?}");
        assert!(done.contains(&60) && done.len() == 2, "{done:?}");
        a.set_state(world, QpState::Rts).unwrap();
        assert_eq!(a.statuses(world, 2), [(2, OK), (3, OK)]);
    }
}

/// S1-72 on shared memory: UC loses what finds no receive or nobody, in silence, and its sender
/// never waits for more than the copy.
#[test]
fn s1_72_uc_without_receives_or_peer() {
    for path in PATHS {
        let plan = QpPlan::of(Transport::Uc);
        let mut pair = Pair::new(4, path, plan);
        let Pair { world, a, b, .. } = &mut pair;
        a.write(world, 0, &pattern(5, 4000));
        a.post(world, 1, SendOp::Send, 0, 4000);
        a.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 4000);
        assert_eq!(a.statuses(world, 2), [(1, OK), (2, OK)], "{path:?}");
        world.run_for(core::time::Duration::from_millis(1));
        assert_eq!((b.poll(world).len(), b.counters(world).out_of_buffer), (0, 1));
        assert_eq!(b.bytes(world, 0, 4000), pattern(5, 4000));
        b.recv(world, 50, 8192, 100);
        b.recv(world, 51, 8192, 4096);
        // Too long for the receive, which the next message then gets.
        a.post(world, 3, SendOp::Send, 0, 101);
        a.post(world, 4, SendOp::Send, 0, 100);
        assert_eq!(a.statuses(world, 2), [(3, OK), (4, OK)]);
        assert_eq!(b.statuses(world, 1), [(50, OK)]);
        // A forbidden WRITE is dropped; nobody falls.
        let bad = pmd_roce::work::RemoteAddr { addr: 0, ..b.mr.at(0) };
        a.post(world, 5, SendOp::Write(bad), 0, 100);
        assert_eq!(a.statuses(world, 1), [(5, OK)]);
        world.run_for(core::time::Duration::from_millis(1));
        assert_eq!((a.state(world), b.state(world)), (QpState::Rts, QpState::Rts));
        b.set_state(world, QpState::Error).unwrap();
        b.poll(world);
        a.post(world, 6, SendOp::Send, 0, 4000);
        a.post(world, 7, SendOp::Write(b.mr.at(0)), 8192, 4000);
        assert_eq!(a.statuses(world, 2), [(6, OK), (7, OK)], "{path:?}");
        world.run_for(core::time::Duration::from_millis(1));
        assert_eq!(
            b.bytes(world, 0, 4000),
            pattern(5, 4000),
            "a queue pair in Error is not written"
        );
        assert_eq!(b.poll(world), []);
    }
}

/// S1-30, S1-02, E-23: a local fault takes UC to SQE: sends are flushed, receiving goes on, and RTS
/// is the way back.
#[test]
fn s2_15_uc_falls_into_sqe_and_back() {
    for path in PATHS {
        let mut pair = Pair::new(5, path, QpPlan::of(Transport::Uc));
        let Pair { world, a, b, .. } = &mut pair;
        let bad = pmd_roce::work::Sge { lkey: pmd_roce::ids::Lkey(1), ..a.mr.sge(0, 3000) };
        a.try_post(world, 1, SendOp::Send, &[bad]).unwrap();
        a.post(world, 2, SendOp::Send, 0, 16);
        let flushed = WcStatus::WrFlush;
        assert_eq!(a.statuses(world, 2), [(1, WcStatus::LocProt), (2, flushed)], "{path:?}");
        assert_eq!(a.state(world), QpState::Sqe);
        a.recv(world, 60, 0, 64);
        b.post(world, 9, SendOp::Send, 0, 64);
        assert_eq!(a.statuses(world, 1), [(60, OK)], "receiving goes on");
        a.set_state(world, QpState::Rts).unwrap();
        b.recv(world, 50, 0, 64);
        a.post(world, 3, SendOp::Send, 0, 64);
        assert_eq!(a.statuses(world, 1), [(3, OK)]);
        assert_eq!(b.wait(world, 2).len(), 2);
    }
}
