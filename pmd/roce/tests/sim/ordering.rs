//! What shared memory must not show: stores out of order, memory taken back, half a message.

use core::time::Duration;

use pmd_roce::event::AsyncEvent;
use pmd_roce::qp::state::QpState;
use pmd_roce::work::{SendOp, WcStatus};
use pmd_sim::{Path, QpPlan, limits};

use crate::harness::{End, LONG, Pair, pattern};

const OK: WcStatus = WcStatus::Success;

fn pair(seed: u64) -> Pair {
    Pair::new(seed, Path::Shared, QpPlan::rc())
}

/// A WRITE's completion says that the bytes are where everybody sees them.
#[test]
fn s1_01_a_completed_write_is_visible() {
    for seed in 0..200 {
        let mut pair = pair(seed);
        let Pair { world, a, b, .. } = &mut pair;
        a.write(world, 0, &pattern(seed as u8 | 1, 500));
        a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 500);
        let done = world.run_until(LONG, |world| !a.poll(world).is_empty());
        assert!(done);
        assert_eq!(b.bytes(world, 0, 500), pattern(seed as u8 | 1, 500));
    }
}

/// One fence serves all WRITEs of a poll, a poll without WRITE needs none, and a READ after a WRITE
/// has one before it. (The simulator checks the last at every READ.)
#[test]
fn s1_01_one_fence_per_poll() {
    let mut pair = pair(1);
    let Pair { world, a, b, .. } = &mut pair;
    for id in 0..50 {
        a.post(world, id, SendOp::Write(b.mr.at(0)), 0, 64);
    }
    a.wait(world, 50);
    assert_eq!(world.fences(a.host()), 1);
    b.recv(world, 50, 0, 64);
    a.post(world, 60, SendOp::Send, 0, 64);
    a.post(world, 61, SendOp::Read(b.mr.at(0)), 0, 64);
    a.wait(world, 2);
    assert_eq!(world.fences(a.host()), 1);
    a.post(world, 62, SendOp::Write(b.mr.at(0)), 0, 64);
    a.post(world, 63, SendOp::Read(b.mr.at(0)), 0, 64);
    a.wait(world, 2);
    assert_eq!(world.fences(a.host()), 2, "before the READ, and then no other");
}

/// Whoever sees a WRITE finds the SEND that came before it. (The simulator checks at each direct
/// operation that no message of its queue pair is still unpublished.)
#[test]
fn s1_01_a_write_never_overtakes_its_send() {
    for seed in 0..100 {
        let mut pair = pair(seed);
        let Pair { world, a, b, .. } = &mut pair;
        for id in 0..20 {
            b.recv(world, 100 + id, 4096 + 64 * id, 64);
        }
        let mut received = 0;
        for id in 0..20u8 {
            a.write(world, u64::from(id) * 8, &[id + 1; 8]);
            a.post(world, id.into(), SendOp::Send, u64::from(id) * 8, 8);
            a.post(world, 50 + u64::from(id), SendOp::Write(b.mr.at(0)), u64::from(id) * 8, 8);
        }
        // Whenever the word is seen, one poll of the receiver brings all messages up to it.
        while received < 20 {
            world.step();
            let seen = usize::from(b.bytes(world, 0, 1)[0]);
            world.poll_host(b.host());
            received += b.poll(world).len();
            assert!(received >= seen, "seed {seed}: WRITE {seen} before its SEND");
        }
    }
}

/// A message that the receiver copies straight out of the sender's memory does not count when the
/// sender has given up meanwhile: its consumer has the buffer back and may have changed it.
#[test]
fn s4_06_a_message_that_was_taken_back_is_not_delivered() {
    for len in [limits::RECORD_INLINE as u32, 8192] {
        let mut pair = pair(3);
        let Pair { world, a, b, .. } = &mut pair;
        b.recv(world, 50, 0, 8192);
        a.write(world, 0, &pattern(1, 8192));
        world.pause(b.host(), Duration::from_secs(2));
        a.post(world, 1, SendOp::Send, 0, len);
        assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
        a.write(world, 0, &[0xee; 8192]);
        world.run_for(Duration::from_secs(3));
        let got = b.poll(world);
        if len == 8192 {
            assert_eq!(got, [], "the bytes are gone");
            let view = world.engine(b.host()).query_qp(b.side.qpn).unwrap();
            assert_eq!(view.recv_outstanding, 1, "the receive waits for another message");
        } else {
            assert_eq!((got.len(), got[0].status), (1, OK), "copied when it was sent");
            assert_eq!(b.bytes(world, 0, len as usize), pattern(1, len as usize));
        }
        assert_eq!(b.state(world), QpState::Rts);
    }
}

/// Memory that is deregistered under a message in flight: the sender's own fault, status 4.
#[test]
fn s4_04_deregistered_under_a_message() {
    let mut pair = pair(4);
    let Pair { world, a, b, .. } = &mut pair;
    b.recv(world, 50, 0, 8192);
    world.pause(b.host(), Duration::from_millis(1));
    a.post(world, 1, SendOp::Send, 0, 8192);
    world.run_for(Duration::from_micros(10));
    assert!(world.memory_mut(a.host()).deregister(a.mr.lkey));
    assert_eq!(a.statuses(world, 1), [(1, WcStatus::LocProt)]);
    assert_eq!(a.state(world), QpState::Error);
    assert_eq!((b.poll(world), b.state(world)), (Vec::new(), QpState::Rts));
}

/// The first use of a region waits for its mapping, and nothing else goes wrong meanwhile.
#[test]
fn s1_01_mappings_come_late() {
    let mut pair = pair(5);
    let Pair { world, a, b, .. } = &mut pair;
    world.set_map_delay(Duration::from_millis(3));
    b.recv(world, 50, 0, 8192);
    a.write(world, 0, &pattern(2, 8192));
    a.post(world, 1, SendOp::Send, 0, 8192);
    a.post(world, 2, SendOp::Write(b.mr.at(16_384)), 0, 8192);
    a.post(world, 3, SendOp::Read(b.mr.at(16_384)), 32_768, 8192);
    let start = world.now();
    assert_eq!(a.statuses(world, 3), [(1, OK), (2, OK), (3, OK)]);
    assert!(world.now().since(start) >= Duration::from_millis(3));
    assert_eq!(b.bytes(world, 0, 8192), pattern(2, 8192));
    assert_eq!(a.bytes(world, 32_768, 8192), pattern(2, 8192));
    assert_eq!(a.counters(world).local_ack_timeout_err, 0);
}

/// The peer dies: status 12 and flush at once, long before the retry budget, and an idle connection
/// is told by an event.
#[test]
fn s3_40_peer_death_ends_it_at_once() {
    let mut pair = pair(6);
    let Pair { world, a, b, .. } = &mut pair;
    let idle = [
        End::new(world, a.host(), QpPlan::rc()),
        End::new(world, b.host(), QpPlan { timeout: 0, ..QpPlan::rc() }),
    ];
    world.connect(idle[0].side, idle[1].side, Path::Shared).unwrap();
    idle[0].recv(world, 70, 0, 64);
    b.recv(world, 50, 0, 8192);
    a.recv(world, 51, 0, 64);
    world.kill_host(b.host());
    let start = world.now();
    a.post(world, 1, SendOp::Send, 0, 8192);
    a.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 8);
    let done = a.statuses(world, 3);
    let flushed = WcStatus::WrFlush;
    assert_eq!(done, [(1, WcStatus::RetryExc), (2, flushed), (51, flushed)]);
    assert!(world.now().since(start) <= 2 * limits::DEATH_NOTICE);
    assert_eq!(idle[0].statuses(world, 1), [(70, flushed)]);
    assert_eq!(a.events(world), [AsyncEvent::QpFatal(idle[0].side.qpn)]);
    assert_eq!(a.counters(world).req_transport_retries_exceeded, 1);
}

/// A target in RESET, INIT or Error is never written: the WRITE meets silence.
#[test]
fn s1_13_a_target_that_does_not_listen_is_not_written() {
    for state in [QpState::Reset, QpState::Error] {
        let mut pair = pair(7);
        let Pair { world, a, b, .. } = &mut pair;
        b.set_state(world, state).unwrap();
        a.write(world, 0, &[0xff; 64]);
        a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 64);
        assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
        assert_eq!(b.bytes(world, 0, 64), [0; 64]);
        assert_eq!(a.counters(world).local_ack_timeout_err, 8);
    }
}

/// A destroyed queue pair is absent: what is on its way to it comes back, and its sender gives up.
#[test]
fn s1_13_a_destroyed_target_is_silence() {
    let mut pair = pair(8);
    let Pair { world, a, b, .. } = &mut pair;
    b.recv(world, 50, 0, 64);
    world.pause(b.host(), Duration::from_micros(50));
    a.post(world, 1, SendOp::Send, 0, 64);
    world.run_for(Duration::from_micros(10));
    world.destroy_qp(b.host(), b.side.qpn).unwrap();
    assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
    assert_eq!(a.counters(world).packet_seq_err, 1, "the peer said that it takes nothing");
}

/// Rings that are full in both directions drain: answers have room of their own.
#[test]
fn s4_06_full_rings_do_not_lock_each_other() {
    let mut pair = pair(9);
    let Pair { world, a, b, .. } = &mut pair;
    // More than a ring holds in each direction, and no receive for any of it yet.
    let plan = QpPlan { min_rnr_timer: 1, ..QpPlan::rc() };
    let srq = |world: &mut pmd_sim::World, host| {
        let init = pmd_roce::engine::SrqInit { pd: plan.pd, max_wr: 4096, max_sge: 1, xrc: None };
        world.create_srq(host, &init).unwrap()
    };
    let queues = [srq(world, a.host()), srq(world, b.host())];
    let mut ends = Vec::new();
    for _ in 0..8 {
        let near = End::new(world, a.host(), QpPlan { srq: Some(queues[0]), ..plan });
        let far = End::new(world, b.host(), QpPlan { srq: Some(queues[1]), ..plan });
        world.connect(near.side, far.side, Path::Shared).unwrap();
        ends.extend([near, far]);
    }
    for end in &ends {
        for id in 0..128 {
            end.post(world, id, SendOp::Send, 0, 200);
        }
    }
    world.run_for(Duration::from_millis(2));
    for (host, srqn) in [(a.host(), queues[0]), (b.host(), queues[1])] {
        let mr = world.register(host, plan.pd, 4096, crate::harness::ALL);
        for id in 0..1024 {
            let sges = &[mr.sge(0, 256)];
            let wr = pmd_roce::work::RecvWr { wr_id: pmd_roce::ids::WrId(1000 + id), sges };
            world.post_srq_recv(host, srqn, &wr).unwrap();
        }
    }
    for end in &ends {
        let done = end.statuses(world, 256);
        assert!(done.iter().all(|(_, status)| *status == OK));
    }
}

/// A target that is connected to somebody else takes nothing, however well the rest fits.
#[test]
fn s1_13_a_target_with_another_peer_is_silence() {
    let mut pair = pair(10);
    let Pair { world, a, b, .. } = &mut pair;
    let third = End::new(world, a.host(), QpPlan::rc());
    b.set_state(world, QpState::Reset).unwrap();
    world.connect(third.side, b.side, Path::Shared).unwrap();
    a.write(world, 0, &[0xff; 64]);
    a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 64);
    assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
    assert_eq!(b.bytes(world, 0, 64), [0; 64]);
    third.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 64);
    assert_eq!(third.statuses(world, 1), [(2, OK)]);
}

/// A message without a receive stays out of the ring, where it would block all others.
#[test]
fn s1_47_without_a_credit_nothing_enters_the_ring() {
    let mut pair = pair(11);
    let Pair { world, a, b, .. } = &mut pair;
    a.post(world, 1, SendOp::Send, 0, 256);
    world.run_for(Duration::from_millis(5));
    let questions = a.counters(world).rnr_nak_retry_err;
    assert!((7..=9).contains(&questions), "one every 0.64 ms: {questions}");
    assert!(world.ring_bytes(a.host()) <= 16 * (questions + 1), "questions only");
    b.recv(world, 50, 0, 256);
    assert_eq!(a.statuses(world, 1), [(1, OK)]);
}

/// A run of messages ends where the receives do, however many wait behind.
#[test]
fn s1_47_a_run_ends_with_the_receives() {
    let mut pair = pair(11);
    let Pair { world, a, b, .. } = &mut pair;
    for id in 0..2 {
        b.recv(world, 50 + id, 0, 256);
    }
    for id in 0..6 {
        a.post(world, id, SendOp::Send, 0, 16);
    }
    world.run_for(Duration::from_micros(100));
    assert_eq!(a.poll(world).len(), 2);
    assert_eq!(world.ring_bytes(a.host()), 2 * 32 + 16, "two messages and a question");
    for id in 2..6 {
        b.recv(world, 50 + id, 0, 256);
    }
    assert_eq!(a.statuses(world, 4), [2, 3, 4, 5].map(|id| (id, OK)));
    assert_eq!(b.counters(world).out_of_sequence, 0);
}

/// An atomic that overtook a message is not executed again when the message is sent again.
#[test]
fn s1_32_an_atomic_is_executed_once() {
    let mut pair = pair(12);
    let Pair { world, a, b, path } = &mut pair;
    b.recv(world, 50, 4096, 64);
    world.pause(b.host(), Duration::from_micros(100));
    a.post(world, 1, SendOp::Send, 0, 64);
    a.post(world, 2, SendOp::FetchAdd { at: b.mr.at(0), add: 1 }, 64, 8);
    world.run_for(Duration::from_micros(10));
    assert_eq!(b.bytes(world, 0, 8), 1u64.to_ne_bytes(), "executed past the message");
    // The target comes back before anybody notices, and needs the message again.
    b.set_state(world, QpState::Reset).unwrap();
    world.to_init(b.side).unwrap();
    b.recv(world, 51, 4096, 64);
    world.run_for(Duration::from_micros(500));
    assert_eq!((a.poll(world), a.counters(world).packet_seq_err), (Vec::new(), 1));
    world.to_rtr(b.side, a.side, *path).unwrap();
    assert_eq!(a.statuses(world, 2), [(1, OK), (2, OK)]);
    assert_eq!(b.statuses(world, 1), [(51, OK)]);
    assert_eq!(b.bytes(world, 0, 8), 1u64.to_ne_bytes());
    assert_eq!(a.bytes(world, 64, 8), 0u64.to_ne_bytes());
}

/// The deadline belongs to the queue pair: traffic of others does not move it.
#[test]
fn s0_14_a_busy_sibling_does_not_hide_silence() {
    let mut pair = Pair::new(13, Path::Shared, QpPlan { timeout: 8, ..QpPlan::rc() });
    let Pair { world, a, b, .. } = &mut pair;
    let third = world.add_host("c");
    let busy = [End::new(world, a.host(), QpPlan::rc()), End::new(world, third, QpPlan::rc())];
    world.connect(busy[0].side, busy[1].side, Path::Shared).unwrap();
    b.recv(world, 50, 0, 64);
    world.pause(b.host(), Duration::from_secs(1));
    let start = world.now();
    a.post(world, 1, SendOp::Send, 0, 64);
    let mut done = Vec::new();
    while done.is_empty() {
        busy[0].post(world, 9, SendOp::Write(busy[1].mr.at(0)), 0, 64);
        busy[0].wait(world, 1);
        world.run_for(Duration::from_micros(20));
        done = a.poll(world);
        assert!(world.now().since(start) < Duration::from_millis(9));
    }
    assert_eq!(done[0].status, WcStatus::RetryExc);
    assert!(world.now().since(start) >= Duration::from_micros(8 * 1048));
}

/// A peer that takes message after message, each just within the timeout, is never late.
#[test]
fn s0_14_progress_restarts_the_deadline() {
    let mut pair =
        Pair::new(14, Path::Shared, QpPlan { timeout: 10, retry_cnt: 0, ..QpPlan::rc() });
    let Pair { world, a, b, .. } = &mut pair;
    // Each message comes from a region of its own, which is mapped after 3 ms; 4.19 ms are allowed.
    world.set_map_delay(Duration::from_millis(3));
    for id in 0..6 {
        b.recv(world, 50 + id, 0, 8192);
        let region = world.register(a.host(), a.side.plan.pd, 8192, crate::harness::ALL);
        a.try_post(world, id, SendOp::Send, &[region.sge(0, 8192)]).unwrap();
    }
    let done = a.statuses(world, 6);
    assert_eq!(done, (0..6).map(|id| (id, OK)).collect::<Vec<_>>());
    assert_eq!(a.counters(world).local_ack_timeout_err, 0);
    assert!(world.now().0 > 18_000_000);
}
