//! A peer that takes records slowly is not a silent one: queue pairs share a ring, and what waits in
//! it behind others' messages says nothing about the target. On packets nobody waits for anybody.

use core::time::Duration;

use pmd_roce::qp::state::QpState;
use pmd_roce::work::{SendOp, WcStatus};
use pmd_sim::{Path, QpPlan};

use crate::harness::{End, Pair, ms_since};

const OK: WcStatus = WcStatus::Success;

/// Eight times 1.05 ms, and the peer takes a record each millisecond.
const PLAN: QpPlan = QpPlan { timeout: 8, ..QpPlan::rc() };
const PACE: Duration = Duration::from_millis(1);

/// One more connection between the hosts of a pair.
fn another(pair: &mut Pair) -> (End, End) {
    let world = &mut pair.world;
    let ends = [pair.a.host(), pair.b.host()].map(|host| End::new(world, host, PLAN));
    world.connect(ends[0].side, ends[1].side, pair.path).unwrap();
    (ends[0], ends[1])
}

/// A pair whose first connection has so many messages in the ring, toward a peer that is slow.
fn slow(seed: u64, messages: u64) -> Pair {
    let mut pair = Pair::new(seed, Path::Shared, PLAN);
    pair.world.set_pace(pair.b.host(), PACE);
    fill(&mut pair.world, (pair.a, pair.b), messages);
    pair
}

fn fill(world: &mut pmd_sim::World, (from, to): (End, End), messages: u64) {
    for id in 0..messages {
        to.recv(world, 500 + id, 0, 256);
    }
    for id in 0..messages {
        from.post(world, id, SendOp::Send, 0, 256);
    }
}

/// S0-14, S3-10: a message lies in the ring for longer than its whole budget while the peer takes what
/// is before it. The peer was never silent, and no timeout is counted.
#[test]
fn a_message_behind_others_waits_longer_than_its_budget() {
    let mut pair = slow(1, 40);
    let (a, b) = another(&mut pair);
    let world = &mut pair.world;
    b.recv(world, 50, 0, 256);
    let start = world.now();
    a.post(world, 1, SendOp::Send, 0, 256);
    assert_eq!(a.statuses(world, 1), [(1, OK)]);
    assert!(ms_since(world, start) > 39.0, "{} ms", ms_since(world, start));
    assert_eq!(a.counters(world).local_ack_timeout_err, 0);
    assert_eq!(b.statuses(world, 1), [(50, OK)]);
    assert!(pair.a.wait(world, 40).iter().all(|done| done.status == OK));
}

/// The same where the ring has no room for the message, and where it is a question for a receive.
#[test]
fn a_full_ring_is_no_silence_either() {
    let mut pair = slow(2, 128);
    let crowd = another(&mut pair);
    let (a, b) = another(&mut pair);
    fill(&mut pair.world, crowd, 128);
    let world = &mut pair.world;
    let start = world.now();
    a.post(world, 1, SendOp::Send, 0, 256);
    world.run_for(Duration::from_millis(100));
    b.recv(world, 50, 0, 256);
    assert_eq!(a.statuses(world, 1), [(1, OK)]);
    assert!(ms_since(world, start) > 100.0, "{} ms", ms_since(world, start));
    assert_eq!(a.counters(world).local_ack_timeout_err, 0);
    assert!(pair.a.wait(world, 128).iter().all(|done| done.status == OK));
    assert!(crowd.0.wait(world, 128).iter().all(|done| done.status == OK));
}

/// S0-14: once the peer stands still, every message in the ring has its budget from then on.
#[test]
fn a_slow_peer_that_stops_ends_in_status_12_after_the_budget() {
    let mut pair = slow(3, 40);
    let (a, b) = another(&mut pair);
    let world = &mut pair.world;
    b.recv(world, 50, 0, 256);
    a.post(world, 1, SendOp::Send, 0, 256);
    world.run_for(Duration::from_millis(20));
    assert_eq!(a.poll(world), []);
    world.pause(b.host(), Duration::from_secs(3600));
    let start = world.now();
    assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
    // A deadline that was running when the peer stopped counts for nothing.
    let elapsed = ms_since(world, start);
    assert!((7.3..9.5).contains(&elapsed), "{elapsed} ms");
    assert_eq!(a.state(world), QpState::Error);
    assert_eq!(pair.a.state(world), QpState::Error, "as the other one's");
    assert_eq!(a.counters(world).req_transport_retries_exceeded, 2);
}

/// A target that is gone is silent, whatever its host does for others.
#[test]
fn a_target_that_is_gone_is_not_waited_for() {
    let mut pair = slow(4, 40);
    let (a, b) = another(&mut pair);
    let world = &mut pair.world;
    b.recv(world, 50, 0, 256);
    a.post(world, 1, SendOp::Send, 0, 256);
    b.set_state(world, QpState::Reset).unwrap();
    let start = world.now();
    assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
    let elapsed = ms_since(world, start);
    assert!((8.3..8.6).contains(&elapsed), "{elapsed} ms");
    assert_eq!(pair.a.state(world), QpState::Rts, "the other connection goes on");
}

/// A long message is one copy, during which the peer takes no record: it has time for its bytes, and not for ever.
#[test]
fn a_long_message_has_time_for_its_bytes() {
    const LONG: usize = 16 << 20;
    for (delay, expected) in [(10, OK), (60, WcStatus::RetryExc)] {
        // One ACK timeout of 1.05 ms is all that a short message has.
        let plan = QpPlan { timeout: 8, retry_cnt: 0, ..QpPlan::rc() };
        let mut pair = Pair::new(9, Path::Shared, plan);
        let Pair { world, a, b, .. } = &mut pair;
        let into = world.register(b.host(), b.side.plan.pd, LONG, crate::harness::ALL);
        let len = u32::try_from(LONG).unwrap();
        b.try_recv(world, 50, &[into.sge(0, len)]).unwrap();
        // The peer gets at the bytes of a region that it does not know yet only after so long.
        world.set_map_delay(Duration::from_millis(delay));
        let from = world.register(a.host(), a.side.plan.pd, LONG, crate::harness::ALL);
        a.try_post(world, 1, SendOp::Send, &[from.sge(0, len)]).unwrap();
        assert_eq!(a.statuses(world, 1), [(1, expected)], "{delay} ms");
        assert_eq!(a.counters(world).local_ack_timeout_err, u64::from(expected != OK));
    }
}
