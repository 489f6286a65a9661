//! Silence, missing receives, and what the retry budget makes of them.

use core::time::Duration;

use pmd_roce::ids::{Instant, Psn};
use pmd_roce::qp::state::QpState;
use pmd_roce::work::{SendOp, WcStatus};
use pmd_sim::{Act, Fault, Filter, Frames, Path, QpPlan};

use crate::harness::{LONG, PATHS, Pair, ms_since, pattern};

const OK: WcStatus = WcStatus::Success;
const EXCEEDED: WcStatus = WcStatus::RetryExc;
const RNR_EXCEEDED: WcStatus = WcStatus::RnrRetryExc;
const FLUSHED: WcStatus = WcStatus::WrFlush;

/// Nobody answers: the link is dead, or the peer on the same machine does nothing.
fn silence(pair: &mut Pair) {
    match pair.path {
        Path::Packets => {
            pair.world.partition(pair.a.host(), pair.b.host());
        }
        Path::Shared => pair.world.pause(pair.b.host(), Duration::from_secs(3600)),
    }
}

/// S0-14, S0-19, S1-29, S1-30, S2-07, S3-11: nobody answers, so that each of 8 transmissions waits
/// 67.1 ms: 536.9 ms, then status 12 and Error; what is behind it is flushed.
#[test]
fn s0_14_silence_ends_in_status_12_after_the_budget() {
    for path in PATHS {
        let mut pair = Pair::new(1, path, QpPlan::rc());
        pair.b.recv(&mut pair.world, 50, 0, 4096);
        silence(&mut pair);
        let Pair { world, a, b, .. } = &mut pair;
        let start = world.now();
        a.post(world, 1, SendOp::Send, 0, 4096);
        a.post(world, 2, SendOp::Send, 0, 16);
        assert_eq!(a.statuses(world, 2), [(1, EXCEEDED), (2, FLUSHED)], "{path:?}");
        let elapsed = ms_since(world, start);
        assert!((536.87..537.5).contains(&elapsed), "{elapsed} ms");
        assert_eq!(a.state(world), QpState::Error);
        let (near, far) = (a.counters(world), b.counters(world));
        assert_eq!(near.local_ack_timeout_err, 8);
        assert_eq!(near.req_transport_retries_exceeded, 1);
        assert_eq!((near.rnr_nak_retry_err, far.out_of_buffer), (0, 0));
        assert_eq!(WcStatus::RetryExc.text(), "transport retry counter exceeded");
    }
}

/// S1-66, S1-33, P11 (b): every ACK is lost. The peer gets the message once and sees it again and
/// again; the sender sees nothing.
#[test]
fn s1_66_lost_acks_end_in_status_12() {
    let mut pair = Pair::new(2, Path::Packets, QpPlan::rc());
    let Pair { world, a, b, .. } = &mut pair;
    let lost = Fault::new(Act::Drop, Filter::of(Frames::Acks)).from(b.host());
    let acks = world.add_fault(lost);
    b.recv(world, 50, 0, 4096);
    b.recv(world, 51, 0, 4096);
    let start = world.now();
    a.post(world, 1, SendOp::Send, 0, 2048);
    assert_eq!(a.statuses(world, 1), [(1, EXCEEDED)]);
    let elapsed = ms_since(world, start);
    assert!((536.87..537.5).contains(&elapsed), "{elapsed} ms");
    assert_eq!(a.state(world), QpState::Error);
    let (near, far) = (a.counters(world), b.counters(world));
    assert_eq!(near.local_ack_timeout_err, 8);
    assert_eq!(near.retransmits, 2 * 7, "both packets, seven times");
    assert_eq!(far.duplicate_request, 2 * 7);
    assert!(world.hits(acks) >= 8);
    assert_eq!(b.statuses(world, 1), [(50, OK)], "delivered once");
    assert_eq!(b.state(world), QpState::Rts, "the peer knows of nothing");
}

/// S0-17, S2-22: a smaller timeout only fails earlier; each side has its own.
#[test]
fn s0_17_timeout_changes_only_the_time_to_failure() {
    for path in PATHS {
        let quick = QpPlan { timeout: 8, ..QpPlan::rc() };
        let mut pair = Pair::with(3, path, quick, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        b.recv(world, 50, 0, 4096);
        a.write(world, 0, &pattern(1, 4096));
        a.post(world, 1, SendOp::Send, 0, 4096);
        assert_eq!(a.statuses(world, 1), [(1, OK)], "a healthy path");
        assert_eq!(b.bytes(world, 0, 4096), pattern(1, 4096));
        silence(&mut pair);
        let Pair { world, a, .. } = &mut pair;
        let start = world.now();
        a.post(world, 2, SendOp::Send, 0, 4096);
        assert_eq!(a.statuses(world, 1), [(2, EXCEEDED)]);
        // 8 times 1.05 ms.
        let elapsed = ms_since(world, start);
        assert!((8.38..8.6).contains(&elapsed), "{path:?}: {elapsed} ms");
    }
}

/// S2-22: the two sides of a connection need not have the same reliability: each gives up by its own timeout and count.
#[test]
fn s2_22_each_side_retries_as_it_was_told() {
    for path in PATHS {
        let near = QpPlan { timeout: 8, retry_cnt: 1, ..QpPlan::rc() };
        let far = QpPlan { timeout: 9, retry_cnt: 4, ..QpPlan::rc() };
        // 2 times 1.05 ms, and 5 times 2.1 ms.
        for (sender, range) in [(0, 2.09..2.3), (1, 10.48..10.9)] {
            let mut pair = Pair::with(5, path, near, far);
            let Pair { world, a, b, .. } = &mut pair;
            let (from, to) = if sender == 0 { (*a, *b) } else { (*b, *a) };
            match path {
                Path::Packets => {
                    world.partition(from.host(), to.host());
                }
                Path::Shared => world.pause(to.host(), Duration::from_secs(3600)),
            }
            let start = world.now();
            from.post(world, 2, SendOp::Send, 0, 4096);
            assert_eq!(from.statuses(world, 1), [(2, EXCEEDED)]);
            let elapsed = ms_since(world, start);
            assert!(range.contains(&elapsed), "{path:?}, side {sender}: {elapsed} ms");
        }
    }
}

/// S1-31, S3-06: timeout 0 waits for ever, whatever `retry_cnt` says.
#[test]
fn s1_31_timeout_zero_never_gives_up() {
    for path in PATHS {
        let plan = QpPlan { timeout: 0, ..QpPlan::rc() };
        let mut pair = Pair::new(4, path, plan);
        silence(&mut pair);
        let Pair { world, a, b, .. } = &mut pair;
        b.recv(world, 50, 0, 16);
        a.post(world, 1, SendOp::Send, 0, 16);
        world.run_for(Duration::from_secs(3000));
        assert_eq!(a.poll(world), [], "{path:?}");
        assert_eq!(a.counters(world).local_ack_timeout_err, 0);
    }
}

/// P11 (e): a responder that is away for 400 ms is within a budget of 536.9 ms, 900 ms is not;
/// `timeout` 16 survives both. S3-10: a wider budget saves a slow responder.
#[test]
fn p11_a_paused_responder_against_the_budget() {
    for path in PATHS {
        for (timeout, away_ms, expected) in
            [(14, 400, OK), (14, 900, EXCEEDED), (16, 400, OK), (16, 900, OK)]
        {
            let plan = QpPlan { timeout, ..QpPlan::rc() };
            let mut pair = Pair::new(5, path, plan);
            let Pair { world, a, b, .. } = &mut pair;
            b.recv(world, 50, 0, 4096);
            world.pause(b.host(), Duration::from_millis(away_ms));
            a.post(world, 1, SendOp::Send, 0, 4096);
            assert_eq!(a.statuses(world, 1), [(1, expected)], "{path:?} {timeout} {away_ms}");
        }
    }
}

/// P11 (c), (d): a peer that is still in INIT, or expects another PSN, is silent.
#[test]
fn p11_a_peer_in_init_or_with_another_psn_is_silent() {
    for path in PATHS {
        let mut pair = Pair::apart(6, path, QpPlan::rc(), QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        world.to_init(b.side).unwrap();
        b.recv(world, 50, 0, 16);
        world.to_init(a.side).unwrap();
        world.to_rtr(a.side, b.side, path).unwrap();
        world.to_rts(a.side).unwrap();
        a.post(world, 1, SendOp::Send, 0, 16);
        assert_eq!(a.statuses(world, 1), [(1, EXCEEDED)], "INIT, {path:?}");
        assert_eq!(b.poll(world), []);

        // S1-24, S1-62, S1-69, S2-20: the two ends disagree, and both can be asked.
        let mut pair = Pair::apart(7, path, QpPlan::rc(), QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        let mut other = a.side;
        other.plan.sq_psn = Psn::new(0x1000);
        for side in [a.side, b.side] {
            world.to_init(side).unwrap();
        }
        b.recv(world, 50, 0, 16);
        world.to_rtr(a.side, b.side, path).unwrap();
        world.to_rtr(b.side, a.side, path).unwrap();
        world.to_rts(other).unwrap();
        world.to_rts(b.side).unwrap();
        a.post(world, 1, SendOp::Send, 0, 16);
        assert_eq!(a.statuses(world, 1), [(1, EXCEEDED)], "PSN, {path:?}");
        assert_eq!(b.poll(world), []);
        let near = world.engine(a.host()).query_qp(a.side.qpn).unwrap();
        let far = world.engine(b.host()).query_qp(b.side.qpn).unwrap();
        assert_eq!((near.attr.sq_psn, far.attr.rq_psn), (Psn::new(0x1000), Psn::new(0)));
    }
}

/// S0-15, S0-20, S0-24, S2-08, P12: no receive is posted. `rnr_retry` 3 makes four tries, each
/// followed by a wait of the responder's `min_rnr_timer`, then status 13.
#[test]
fn s0_15_no_receive_ends_in_status_13() {
    for path in PATHS {
        for rnr_retry in [0, 3] {
            // The responder asks for 0.64 ms.
            let plan = QpPlan { rnr_retry, min_rnr_timer: 12, ..QpPlan::rc() };
            let mut pair = Pair::new(8, path, plan);
            let Pair { world, a, b, .. } = &mut pair;
            let start = world.now();
            a.post(world, 1, SendOp::Send, 0, 4096);
            a.post(world, 2, SendOp::Send, 0, 16);
            assert_eq!(a.statuses(world, 2), [(1, RNR_EXCEEDED), (2, FLUSHED)], "{path:?}");
            let (elapsed, waited) = (ms_since(world, start), f64::from(rnr_retry) * 0.64);
            assert!((waited..waited + 0.1).contains(&elapsed), "{path:?}: {elapsed} ms");
            let (near, far) = (a.counters(world), b.counters(world));
            assert_eq!(near.rnr_nak_retry_err, u64::from(rnr_retry) + 1);
            assert_eq!(near.req_rnr_retries_exceeded, 1);
            assert_eq!(far.out_of_buffer, u64::from(rnr_retry) + 1);
            assert_eq!((near.local_ack_timeout_err, near.req_transport_retries_exceeded), (0, 0));
            assert_eq!(a.state(world), QpState::Error);
            assert_eq!(b.state(world), QpState::Rts, "the responder is well");
            assert_eq!(WcStatus::RnrRetryExc.text(), "RNR retry counter exceeded");
        }
    }
}

/// P12, S2-08: with `rnr_retry` 7 the sender waits until a receive is there.
#[test]
fn p12_rnr_retry_seven_waits_for_the_receive() {
    for path in PATHS {
        let mut pair = Pair::new(9, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        a.write(world, 0, &pattern(1, 3000));
        a.post(world, 1, SendOp::Send, 0, 3000);
        a.post(world, 2, SendOp::Write(b.mr.at(8192)), 0, 3000);
        world.run_for(Duration::from_secs(2));
        assert_eq!(a.poll(world), [], "{path:?}");
        assert_eq!(b.bytes(world, 8192, 3000), [0; 3000], "what is behind it waits as well");
        let near = a.counters(world);
        assert!(near.rnr_nak_retry_err > 1000, "{}", near.rnr_nak_retry_err);
        b.recv(world, 50, 0, 4096);
        assert_eq!(a.statuses(world, 2), [(1, OK), (2, OK)]);
        assert_eq!(b.statuses(world, 1), [(50, OK)]);
        assert_eq!(b.bytes(world, 0, 3000), pattern(1, 3000));
        assert_eq!(b.bytes(world, 8192, 3000), pattern(1, 3000));
    }
}

/// E-05: on packets the wait is the responder's timer, however early the receive comes; shared
/// memory shows the receive, which then is waited for no longer.
#[test]
fn s0_15_the_wait_is_the_responders() {
    for path in PATHS {
        // 163.84 ms.
        let responder = QpPlan { min_rnr_timer: 28, ..QpPlan::rc() };
        let mut pair = Pair::with(10, path, QpPlan::rc(), responder);
        let Pair { world, a, b, .. } = &mut pair;
        let start = world.now();
        a.post(world, 1, SendOp::Send, 0, 16);
        world.run_for(Duration::from_millis(10));
        b.recv(world, 50, 0, 16);
        assert_eq!(a.statuses(world, 1), [(1, OK)]);
        let elapsed = ms_since(world, start);
        match path {
            Path::Packets => assert!((163.84..164.0).contains(&elapsed), "{elapsed} ms"),
            Path::Shared => assert!((10.0..10.01).contains(&elapsed), "{elapsed} ms"),
        }
        assert_eq!(a.counters(world).rnr_nak_retry_err, 1);
    }
}

/// P12: receives posted in INIT, before the peer can send: the RNR counter stays 0.
#[test]
fn p12_receives_posted_in_init_are_in_time() {
    for path in PATHS {
        let mut pair = Pair::apart(11, path, QpPlan::rc(), QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        for side in [a.side, b.side] {
            world.to_init(side).unwrap();
        }
        for id in 0..8 {
            b.recv(world, 50 + id, 0, 16);
        }
        for (from, to) in [(a.side, b.side), (b.side, a.side)] {
            world.to_rtr(from, to, path).unwrap();
            world.to_rts(from).unwrap();
        }
        for id in 0..8 {
            a.post(world, id, SendOp::Send, 0, 16);
        }
        a.wait(world, 8);
        assert_eq!(a.counters(world).rnr_nak_retry_err, 0, "{path:?}");
        assert_eq!(b.counters(world).out_of_buffer, 0);
    }
}

/// S1-26, S1-17: data that comes while the peer is in INIT is lost and recovered by retry; in RTR it
/// is taken, and tells the peer that the connection is established.
#[test]
fn s1_26_early_data_is_recovered() {
    for path in PATHS {
        let mut pair = Pair::apart(12, path, QpPlan::rc(), QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        world.to_init(a.side).unwrap();
        world.to_init(b.side).unwrap();
        b.recv(world, 50, 0, 16);
        world.to_rtr(a.side, b.side, path).unwrap();
        world.to_rts(a.side).unwrap();
        a.post(world, 1, SendOp::Send, 0, 16);
        world.run_for(Duration::from_millis(100));
        assert_eq!(a.poll(world), []);
        assert_eq!(a.counters(world).local_ack_timeout_err, 1, "{path:?}");
        world.to_rtr(b.side, a.side, path).unwrap();
        assert_eq!(a.statuses(world, 1), [(1, OK)]);
        assert_eq!(b.statuses(world, 1), [(50, OK)]);
        let event = pmd_roce::event::AsyncEvent::CommEst(b.side.qpn);
        assert_eq!(b.events(world), [event]);
        world.to_rts(b.side).unwrap();
    }
}

/// S0-23, S0-49: the link goes down in the middle of a run with `timeout` 8; the client ends with
/// status 12 in bounded time, and after it is up again the same run passes.
#[test]
fn s0_23_link_down_then_recovered() {
    for path in PATHS {
        let mut pair = Pair::new(13, path, QpPlan { timeout: 8, ..QpPlan::rc() });
        for round in 0..2 {
            for id in 0..100 {
                pair.b.recv(&mut pair.world, 500 + id, 0, 4096);
            }
            for id in 0..100 {
                pair.a.post(&mut pair.world, id, SendOp::Send, 0, 4096);
            }
            let mut done = pair.a.wait(&mut pair.world, 10);
            let cut = pair.world.now();
            if round == 0 {
                match path {
                    Path::Packets => pair.world.set_port(pair.b.host(), false),
                    Path::Shared => pair.world.pause(pair.b.host(), Duration::from_millis(20)),
                }
            }
            let rest = 100 - done.len();
            done.extend(pair.a.wait(&mut pair.world, rest));
            assert_eq!(done.len(), 100);
            let good = done.iter().take_while(|wc| wc.status == OK).count();
            if round == 0 {
                assert!((10..100).contains(&good), "{path:?}: {good}");
                assert_eq!(done[good].status, EXCEEDED);
                assert!(done[good + 1..].iter().all(|wc| wc.status == FLUSHED));
                assert!(ms_since(&pair.world, cut) < 9.0);
                pair.world.set_port(pair.b.host(), true);
                pair.world.run_for(Duration::from_millis(30));
                pair.reconnect();
                pair.a.poll(&mut pair.world);
                pair.b.poll(&mut pair.world);
            } else {
                assert_eq!(good, 100, "{path:?}: the same run passes");
            }
        }
    }
}

/// P15, S3-40: every ACK after the tenth is lost while 64 WRITEs are out. The first that nobody
/// answers ends with 12 at 537 ms, the rest with 5, each exactly once.
#[test]
fn p15_one_way_loss_fails_each_write_exactly_once() {
    let mut pair = Pair::new(14, Path::Packets, QpPlan::rc());
    let Pair { world, a, b, .. } = &mut pair;
    let acks = Filter { after: 10, ..Filter::of(Frames::Acks) };
    world.add_fault(Fault::new(Act::Drop, acks).from(b.host()));
    for id in 0..64 {
        a.post(world, id, SendOp::Write(b.mr.at(0)), 0, 64 << 10);
    }
    let mut last_progress = Instant(0);
    let mut done = Vec::new();
    assert!(world.run_until(LONG, |world| {
        let new = a.poll(world);
        if new.iter().any(|wc| wc.status == OK) {
            last_progress = world.now();
        }
        done.extend(new);
        done.len() >= 64
    }));
    assert!(done.iter().map(|wc| wc.wr_id.0).eq(0..64), "in order, exactly once");
    let good = done.iter().take_while(|wc| wc.status == OK).count();
    assert_eq!(done[good].status, EXCEEDED);
    assert!(done[good + 1..].iter().all(|wc| wc.status == FLUSHED));
    assert!(good < 63);
    let waited = ms_since(world, last_progress);
    assert!((536.8..538.0).contains(&waited), "{waited} ms");
    let view = world.engine(a.host()).query_qp(a.side.qpn).unwrap();
    assert_eq!(view.send_outstanding, 0);
}

/// P04: one side's packets are larger than the other's path MTU: refused as invalid. Packets that
/// the path swallows for their size: small messages pass, large ones meet silence.
#[test]
fn p04_mtu_trouble() {
    use pmd_roce::ids::PathMtu;
    let plan = |path_mtu| QpPlan { path_mtu, ..QpPlan::rc() };
    let (large, small) = (plan(PathMtu::B4096), plan(PathMtu::B1024));
    let mut pair = Pair::with(15, Path::Packets, large, small);
    let Pair { world, a, b, .. } = &mut pair;
    a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 1024);
    assert_eq!(a.statuses(world, 1), [(1, OK)], "fits either");
    a.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 64 << 10);
    assert_eq!(a.statuses(world, 1), [(2, WcStatus::RemInvReq)]);

    let mut pair = Pair::new(16, Path::Packets, large);
    let Pair { world, a, b, .. } = &mut pair;
    world.wires_mut().largest_payload = 1500 - 28;
    a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 1024);
    assert_eq!(a.statuses(world, 1), [(1, OK)]);
    a.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 64 << 10);
    assert_eq!(a.statuses(world, 1), [(2, EXCEEDED)]);

    // In shared memory there are no packets, and nothing to disagree on.
    let mut pair = Pair::with(17, Path::Shared, large, small);
    let Pair { world, a, b, .. } = &mut pair;
    a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 64 << 10);
    assert_eq!(a.statuses(world, 1), [(1, OK)]);
}
