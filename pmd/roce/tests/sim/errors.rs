//! Faults of the consumer on either side: what each end is told, the same on both paths.

use core::time::Duration;

use pmd_roce::engine::{PostRecvError, PostSendError};
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Lkey, Rkey};
use pmd_roce::qp::state::QpState;
use pmd_roce::work::{Access, Data, RemoteAddr, SendFlags, SendOp, Sge, WcStatus};
use pmd_sim::{HostId, QpPlan, World, connect::PD};

use crate::harness::{ALL, End, PATHS, Pair, outcomes, pattern};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;

/// One way to break a rule, and what must come of it.
struct Case {
    name: &'static str,
    /// What the responder's queue pair allows.
    access: Access,
    max_dest_rd_atomic: u8,
    op: fn(&End, &World) -> SendOp,
    len: u32,
    requester: WcStatus,
    /// How the responder's two receives end; none completes while its queue pair lives.
    responder: &'static [WcStatus],
    event: Option<fn(&End) -> AsyncEvent>,
}

const ALLOWED: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn access_err(end: &End) -> AsyncEvent {
    AsyncEvent::QpAccessErr(end.side.qpn)
}

fn req_err(end: &End) -> AsyncEvent {
    AsyncEvent::QpReqErr(end.side.qpn)
}

const BOTH: &[WcStatus] = &[FLUSHED, FLUSHED];

const RULE: Case = Case {
    name: "",
    access: ALLOWED,
    max_dest_rd_atomic: 16,
    op: |_, _| SendOp::Send,
    len: 64,
    requester: WcStatus::RemAccess,
    responder: BOTH,
    event: Some(access_err),
};

/// E-06, E-26 (IBTA 1.4, table 58).
const CASES: &[Case] = &[
    Case {
        name: "WRITE where the queue pair forbids it",
        access: Access::REMOTE_READ,
        op: |b, _| SendOp::Write(b.mr.at(0)),
        requester: WcStatus::RemInvReq,
        event: Some(req_err),
        ..RULE
    },
    Case {
        name: "READ where the queue pair forbids it",
        access: Access::REMOTE_WRITE,
        op: |b, _| SendOp::Read(b.mr.at(0)),
        requester: WcStatus::RemInvReq,
        event: Some(req_err),
        ..RULE
    },
    Case {
        name: "atomic where the queue pair forbids it",
        access: Access::REMOTE_WRITE,
        op: |b, _| SendOp::FetchAdd { at: b.mr.at(0), add: 1 },
        len: 8,
        requester: WcStatus::RemInvReq,
        event: Some(req_err),
        ..RULE
    },
    Case {
        name: "READ where none may be outstanding",
        max_dest_rd_atomic: 0,
        op: |b, _| SendOp::Read(b.mr.at(0)),
        requester: WcStatus::RemInvReq,
        ..RULE
    },
    Case {
        name: "misaligned atomic",
        op: |b, _| SendOp::FetchAdd { at: b.mr.at(4), add: 1 },
        len: 8,
        requester: WcStatus::RemInvReq,
        ..RULE
    },
    Case {
        name: "unknown rkey",
        op: |b, _| SendOp::Write(RemoteAddr { rkey: Rkey(!b.mr.rkey.0), ..b.mr.at(0) }),
        ..RULE
    },
    Case { name: "beyond the end", op: |b, _| SendOp::Write(b.mr.at(b.mr.len - 63)), ..RULE },
    Case {
        name: "READ before the start",
        op: |b, _| SendOp::Read(RemoteAddr { addr: b.mr.addr - 1, ..b.mr.at(0) }),
        ..RULE
    },
    Case {
        name: "atomic on a region without the right",
        op: |b, w| SendOp::FetchAdd { at: read_only(b, w), add: 1 },
        len: 8,
        ..RULE
    },
    Case {
        name: "WRITE to a region without the right",
        op: |b, w| SendOp::Write(read_only(b, w)),
        ..RULE
    },
    Case {
        name: "SEND longer than the receive",
        len: 65,
        requester: WcStatus::RemInvReq,
        responder: &[WcStatus::LocLen, FLUSHED],
        event: None,
        ..RULE
    },
];

/// A region of the responder that peers may only read.
fn read_only(b: &End, world: &World) -> RemoteAddr {
    world.memory_mut(b.host()).register(PD, 64, Access::REMOTE_READ).at(0)
}

/// S0-11, S4-04, S4-07 to S4-11: statuses, events and states at both ends. The first request in
/// front of the fault ends well, what is behind it is flushed.
#[test]
fn s4_10_faults_of_the_requester() {
    for case in CASES {
        for path in PATHS {
            let name = format!("{}, {path:?}", case.name);
            let (access, max_dest_rd_atomic) = (case.access, case.max_dest_rd_atomic);
            let responder = QpPlan { access, max_dest_rd_atomic, ..QpPlan::rc() };
            let mut pair = Pair::with(1, path, QpPlan::rc(), responder);
            let Pair { world, a, b, .. } = &mut pair;
            for id in 50..53 {
                b.recv(world, id, 4096, 64);
            }
            a.post(world, 1, SendOp::Send, 0, 64);
            let op = (case.op)(b, world);
            a.post(world, 2, op, 0, case.len);
            a.post(world, 3, SendOp::Send, 0, 64);
            let done = a.statuses(world, 3);
            assert_eq!(done, [(1, OK), (2, case.requester), (3, FLUSHED)], "{name}");
            let mut received = vec![OK];
            received.extend(case.responder);
            let got: Vec<_> = b.statuses(world, 3).into_iter().map(|(_, status)| status).collect();
            assert_eq!(got, received, "{name}");
            assert_eq!(
                (a.state(world), b.state(world)),
                (QpState::Error, QpState::Error),
                "{name}"
            );
            assert_eq!(b.events(world), Vec::from_iter(case.event.map(|event| event(b))), "{name}");
            assert_eq!(a.events(world), [], "{name}: the completion says it all");
            let (near, far) = (a.counters(world), b.counters(world));
            let expected = match case.requester {
                WcStatus::RemAccess => (0, 1),
                _ => (1, 0),
            };
            let count = (near.req_remote_invalid_request, near.req_remote_access_errors);
            assert_eq!(count, expected, "{name}");
            let count = (far.resp_remote_invalid_request, far.resp_remote_access_errors);
            assert_eq!(count, expected, "{name}");
        }
    }
}

/// Status 11: the responder's receive names memory that is not there.
#[test]
fn s4_09_a_bad_receive_is_the_responders_fault() {
    for path in PATHS {
        let mut pair = Pair::new(2, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        let bad = Sge { lkey: Lkey(!b.mr.lkey.0), ..b.mr.sge(0, 4096) };
        b.try_recv(world, 50, &[bad]).unwrap();
        b.recv(world, 51, 0, 4096);
        a.post(world, 1, SendOp::Send, 0, 1000);
        a.post(world, 2, SendOp::Send, 0, 1000);
        assert_eq!(a.statuses(world, 2), [(1, WcStatus::RemOp), (2, FLUSHED)], "{path:?}");
        assert_eq!(b.statuses(world, 2), [(50, WcStatus::LocProt), (51, FLUSHED)]);
        assert_eq!((a.state(world), b.state(world)), (QpState::Error, QpState::Error));
    }
}

/// A local element that is not registered for its use fails its request in its turn, on either path
/// and for every operation; the peer notices nothing.
#[test]
fn s4_04_local_protection_errors_wait_their_turn() {
    type Request = fn(&End) -> (SendOp, u32);
    let ops: [Request; 4] = [
        |_| (SendOp::Send, 2000),
        |b| (SendOp::Write(b.mr.at(0)), 2000),
        |b| (SendOp::Read(b.mr.at(0)), 2000),
        |b| (SendOp::FetchAdd { at: b.mr.at(0), add: 1 }, 8),
    ];
    for path in PATHS {
        for op in ops {
            let mut pair = Pair::new(3, path, QpPlan::rc());
            let Pair { world, a, b, .. } = &mut pair;
            for id in 50..53 {
                b.recv(world, id, 8192, 4096);
            }
            let (op, len) = op(b);
            a.post(world, 1, SendOp::Send, 0, 3000);
            let bad = Sge { lkey: Lkey(!a.mr.lkey.0), ..a.mr.sge(0, len) };
            a.try_post(world, 2, op, &[bad]).unwrap();
            a.post(world, 3, SendOp::Send, 0, 16);
            let done = a.statuses(world, 3);
            let expected = [(1, OK), (2, WcStatus::LocProt), (3, FLUSHED)];
            assert_eq!(done, expected, "{op:?} {path:?}");
            assert_eq!(b.statuses(world, 1), [(50, OK)]);
            assert_eq!(b.state(world), QpState::Rts);
            assert_eq!(b.bytes(world, 0, 8), [0; 8]);
        }
    }
}

/// S0-12, S4-01 to S4-03, S4-05, S4-06: Error flushes what is posted and whatever is posted later,
/// each exactly once and in order, for as long as the consumer posts.
#[test]
fn s4_03_error_flushes_now_and_later() {
    for path in PATHS {
        let mut pair = Pair::new(4, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        for id in 0..5 {
            a.recv(world, 50 + id, 0, 16);
            // Unsignalled requests are flushed as well.
            let sges = [a.mr.sge(0, 16)];
            a.post_wr(world, id, SendOp::Send, Data::Sges(&sges), SendFlags::empty(), None)
                .unwrap();
        }
        a.set_state(world, QpState::Error).unwrap();
        let flushed = |range: core::ops::Range<u64>| range.map(|id| (id, FLUSHED));
        let all: Vec<_> = flushed(0..5).chain(flushed(50..55)).collect();
        assert_eq!(outcomes(&a.poll(world)), all, "{path:?}");
        for round in 0..3 {
            a.post(world, 100 + round, SendOp::Write(b.mr.at(0)), 0, 16);
            a.recv(world, 200 + round, 0, 16);
            let late = a.statuses(world, 2);
            assert_eq!(late, [(100 + round, FLUSHED), (200 + round, FLUSHED)]);
        }
        assert_eq!(b.bytes(world, 0, 16), [0; 16]);
        assert_eq!(b.state(world), QpState::Rts);
    }
}

/// S1-67, S2-16, S2-18, S2-19, S4-21: out of Error leads RESET alone; then the same queue pair
/// carries data again. RESET leaves queues empty and attributes as at creation.
#[test]
fn s1_67_error_reset_and_back_to_rts() {
    for path in PATHS {
        let mut pair = Pair::new(5, path, QpPlan::rc());
        let fresh = pair.world.engine(pair.a.host()).query_qp(pair.a.side.qpn).unwrap().init;
        for round in 0..3 {
            let Pair { world, a, b, .. } = &mut pair;
            a.write(world, 0, &pattern(round, 3000));
            b.recv(world, 50, 0, 4096);
            a.post(world, 1, SendOp::Send, 0, 3000);
            a.post(world, 2, SendOp::Write(b.mr.at(8192)), 0, 3000);
            assert_eq!(a.statuses(world, 2), [(1, OK), (2, OK)], "{path:?} round {round}");
            assert_eq!(b.statuses(world, 1), [(50, OK)]);
            assert_eq!(b.bytes(world, 0, 3000), pattern(round, 3000));
            assert_eq!(b.bytes(world, 8192, 3000), pattern(round, 3000));
            let bad = RemoteAddr { rkey: Rkey(!b.mr.rkey.0), ..b.mr.at(0) };
            a.recv(world, 60, 0, 16);
            a.post(world, 3, SendOp::Write(bad), 0, 8);
            assert_eq!(a.statuses(world, 2), [(3, WcStatus::RemAccess), (60, FLUSHED)]);
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                a.set_state(world, state).expect_err("only RESET leads out of Error");
            }
            a.recv(world, 61, 0, 16);
            a.set_state(world, QpState::Reset).unwrap();
            let view = world.engine(a.host()).query_qp(a.side.qpn).unwrap();
            assert_eq!((view.send_outstanding, view.recv_outstanding), (0, 0));
            assert_eq!(view.init, fresh, "resources are kept");
            assert_eq!((view.attr.sq_psn.value(), view.attr.dest_qpn.value()), (0, 0));
            assert_eq!(view.attr.access, Access::empty());
            assert_eq!(outcomes(&a.poll(world)), [], "RESET forgets without completions");
            world.run_for(Duration::from_millis(1));
            pair.reconnect();
            pair.b.poll(&mut pair.world);
            pair.b.events(&mut pair.world);
        }
    }
}

/// S4-12: the error of one queue pair changes nothing for its siblings on the same device, domain
/// and completion queue.
#[test]
fn s4_12_siblings_are_unaffected() {
    for path in PATHS {
        let mut world = World::new(6);
        let (near, far) = (world.add_host("a"), world.add_host("b"));
        let connect = |world: &mut World, plan: QpPlan, from: HostId, to: HostId| {
            let pair = [End::new(world, from, plan), End::new(world, to, QpPlan::rc())];
            world.connect(pair[0].side, pair[1].side, path).unwrap();
            pair
        };
        let cq = world.create_cq(near, 256);
        let plan = QpPlan { cqs: Some((cq, cq)), ..QpPlan::rc() };
        let pairs: Vec<_> = (0..4).map(|_| connect(&mut world, plan, near, far)).collect();
        let mut statuses = vec![Vec::new(); 4];
        for round in 0..20 {
            for [a, b] in &pairs {
                b.recv(&mut world, round, 0, 64);
                let at = if round == 7 && a.side.qpn == pairs[1][0].side.qpn {
                    RemoteAddr { rkey: Rkey(!b.mr.rkey.0), ..b.mr.at(0) }
                } else {
                    b.mr.at(64)
                };
                a.post(&mut world, round, SendOp::Write(at), 0, 64);
                a.post(&mut world, 100 + round, SendOp::Send, 0, 64);
            }
            world.run_for(Duration::from_millis(1));
        }
        while let Some(completion) = world.poll_cq(near, cq) {
            let index = pairs.iter().position(|[a, _]| a.side.qpn == completion.qpn).unwrap();
            statuses[index].push(completion.status);
        }
        for (index, statuses) in statuses.iter().enumerate() {
            assert_eq!(statuses.len(), 40);
            let good = statuses.iter().take_while(|status| **status == OK).count();
            assert_eq!(good, if index == 1 { 14 } else { 40 }, "{path:?} {index}");
            assert!(statuses[good..].iter().skip(1).all(|status| *status == FLUSHED));
        }
    }
}

/// S1-63, S1-08, E-10: what a transport lacks is refused at post; the wire sees nothing.
#[test]
fn s1_63_uc_refuses_a_read() {
    let uc = QpPlan::of(pmd_roce::qp::state::Transport::Uc);
    for path in PATHS {
        let mut pair = Pair::new(7, path, uc);
        let Pair { world, a, b, .. } = &mut pair;
        world.record_frames();
        for op in [SendOp::Read(b.mr.at(0)), SendOp::FetchAdd { at: b.mr.at(0), add: 1 }] {
            let refused = a.try_post(world, 1, op, &[a.mr.sge(0, 8)]);
            assert!(matches!(refused, Err(PostSendError::Operation(_))));
        }
        world.run_for(Duration::from_millis(1));
        assert!(world.frames().is_empty());
        assert_eq!(a.poll(world), []);
        a.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 8);
        assert_eq!(a.statuses(world, 1), [(2, OK)], "and the queue pair is well");
    }
}

/// A WRITE that is refused leaves every byte of the target alone, also where only its last packet
/// would go too far.
#[test]
fn s4_08_a_refused_write_changes_nothing() {
    for path in PATHS {
        let mut pair = Pair::new(8, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        let target = world.register(b.host(), PD, 4000, ALL);
        a.write(world, 0, &[0xff; 5000]);
        a.post(world, 1, SendOp::Write(target.at(0)), 0, 4001);
        assert_eq!(a.statuses(world, 1), [(1, WcStatus::RemAccess)], "{path:?}");
        let memory = world.memory(b.host());
        assert_eq!(memory.bytes(target.addr, 4000).unwrap(), [0; 4000]);
    }
}

/// S1-39 to S1-41, S1-64, S1-71, S2-10: a datagram with the wrong Q_Key is dropped in silence and
/// counted.
#[test]
fn s1_64_wrong_qkey_is_dropped_and_counted() {
    use pmd_roce::work::Datagram;
    for path in PATHS {
        let plan = QpPlan { qkey: 0x2222, ..QpPlan::of(pmd_roce::qp::state::Transport::Ud) };
        let mut pair = Pair::new(9, path, plan);
        let Pair { world, a, b, .. } = &mut pair;
        let av = world.address(a.host(), b.host(), path);
        let ah = world.create_ah(a.host(), &av).unwrap();
        b.recv(world, 50, 0, 4096);
        let to = |qkey| Some(Datagram { ah, qpn: b.side.qpn, qkey });
        let sges = [a.mr.sge(0, 100)];
        let flags = SendFlags::SIGNALED;
        a.post_wr(world, 1, SendOp::Send, Data::Sges(&sges), flags, to(0x1111)).unwrap();
        assert_eq!(a.statuses(world, 1), [(1, OK)], "{path:?}");
        world.run_for(Duration::from_millis(10));
        assert_eq!(b.poll(world), []);
        assert_eq!(b.counters(world).qkey_viol, 1);
        // S1-42, E-14: the top bit stands for the queue pair's own.
        a.post_wr(world, 2, SendOp::Send, Data::Sges(&sges), flags, to(0x8000_0000)).unwrap();
        let got = b.wait(world, 1)[0];
        assert_eq!((got.wr_id.0, got.byte_len, got.src_qpn), (50, 140, a.side.qpn));
        assert_eq!(b.counters(world).qkey_viol, 1);
    }
}

/// S4-21, S4-12: one queue pair falls and comes back by RESET, again and again, while its siblings on the
/// same device, domain and completion queue have messages in flight all the time.
#[test]
fn s4_21_recovery_leaves_siblings_alone() {
    for path in PATHS {
        let mut world = World::new(21);
        let (near, far) = (world.add_host("a"), world.add_host("b"));
        let cq = world.create_cq(near, 4096);
        let plan = QpPlan { cqs: Some((cq, cq)), ..QpPlan::rc() };
        let mut pairs: Vec<_> = (0..3)
            .map(|_| {
                let pair =
                    [End::new(&mut world, near, plan), End::new(&mut world, far, QpPlan::rc())];
                world.connect(pair[0].side, pair[1].side, path).unwrap();
                pair
            })
            .collect();
        let mut posted = 0;
        let mut statuses = vec![Vec::new(); 3];
        for round in 0..6 {
            for id in posted..posted + 20 {
                for [a, b] in &pairs[1..] {
                    b.recv(&mut world, id, 0, 2000);
                    a.post(&mut world, id, SendOp::Send, 0, 2000);
                }
            }
            posted += 20;
            let [a, b] = &mut pairs[0];
            let bad = RemoteAddr { rkey: Rkey(!b.mr.rkey.0), ..b.mr.at(0) };
            a.post(&mut world, round, SendOp::Write(b.mr.at(0)), 0, 2000);
            a.post(&mut world, round, SendOp::Write(bad), 0, 8);
            world.run_for(Duration::from_micros(30));
            assert_eq!(a.state(&world), QpState::Error, "{path:?} round {round}");
            for end in [&mut *a, &mut *b] {
                end.side.plan.sq_psn = end.side.plan.sq_psn.plus(0x1000);
                end.set_state(&mut world, QpState::Reset).unwrap();
            }
            world.connect(a.side, b.side, path).unwrap();
        }
        world.run_for(Duration::from_millis(1));
        while let Some(wc) = world.poll_cq(near, cq) {
            let index = pairs.iter().position(|[a, _]| a.side.qpn == wc.qpn).unwrap();
            statuses[index].push(wc.status);
        }
        assert_eq!(statuses[0], [OK, WcStatus::RemAccess].repeat(6), "{path:?}");
        for sibling in &statuses[1..] {
            assert_eq!(*sibling, vec![OK; 120], "{path:?}");
        }
        let events = pairs[1][0].events(&mut world);
        assert_eq!(events, [], "nothing of it was an event at the requester");
    }
}

/// A queue pair may be made without room for any request: each that is posted finds it full.
#[test]
fn a_queue_without_room_is_full() {
    for path in PATHS {
        let mut plan = QpPlan::rc();
        (plan.cap.max_send_wr, plan.cap.max_recv_wr) = (0, 0);
        let mut pair = Pair::with(1, path, plan, plan);
        let Pair { world, a, .. } = &mut pair;
        let sges = [a.mr.sge(0, 8)];
        for _ in 0..2 {
            assert_eq!(a.try_post(world, 1, SendOp::Send, &sges), Err(PostSendError::Full));
            assert_eq!(a.try_recv(world, 2, &sges), Err(PostRecvError::Full));
        }
    }
}
