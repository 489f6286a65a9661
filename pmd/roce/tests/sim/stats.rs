//! What a queue pair can tell of itself: counters of its own, round trips, waits, and time per state.

use core::time::Duration;

use pmd_roce::qp::state::QpState;
use pmd_roce::qp::stats::QpStats;
use pmd_roce::work::{SendOp, WcStatus};
use pmd_sim::{Act, Fault, Filter, Frames, Path, QpPlan, World};

use crate::harness::{End, PATHS, Pair};

const OK: WcStatus = WcStatus::Success;

fn stats(world: &World, end: &End) -> QpStats {
    world.engine(end.host()).query_qp_stats(end.side.qpn).unwrap()
}

/// S0-18 to S0-20, S2-25: the counters behind a status, by their kernel names, at both ends, and those of
/// a sibling stay where they are.
#[test]
fn s0_20_each_queue_pair_counts_for_itself() {
    for path in PATHS {
        let near = QpPlan { rnr_retry: 2, min_rnr_timer: 14, ..QpPlan::rc() };
        let mut pair = Pair::new(1, path, near);
        let Pair { world, a, b, .. } = &mut pair;
        let idle = [End::new(world, a.host(), near), End::new(world, b.host(), near)];
        world.connect(idle[0].side, idle[1].side, path).unwrap();
        a.post(world, 1, SendOp::Send, 0, 64);
        assert_eq!(a.statuses(world, 1), [(1, WcStatus::RnrRetryExc)], "{path:?}");
        let (here, there) = (stats(world, a).counters, stats(world, b).counters);
        assert_eq!((here.rnr_nak_retry_err, here.req_rnr_retries_exceeded), (3, 1));
        assert_eq!((here.local_ack_timeout_err, here.req_transport_retries_exceeded), (0, 0));
        assert_eq!(there.out_of_buffer, 3);
        for (end, own) in [(&*a, here), (&*b, there)] {
            let all: Vec<_> = end.counters(world).iter().collect();
            for (name, value) in own.iter() {
                assert!(
                    all.contains(&(name, value)),
                    "{name} of the engine is that of its one user"
                );
            }
        }
        for end in &idle {
            assert_eq!(stats(world, end).counters.iter().map(|(_, value)| value).sum::<u64>(), 0);
        }
        // What the peer asked to wait, but for the last time, when there was no other try.
        let wait = stats(world, a).rnr_wait;
        assert_eq!((wait.count(), wait.sum()), (2, Duration::from_micros(2 * 1280)), "{path:?}");
    }
}

/// S0-19: the counters behind a status 12, of the queue pair that got it.
#[test]
fn s0_19_silence_is_counted_where_it_was_met() {
    for path in PATHS {
        let plan = QpPlan { timeout: 8, retry_cnt: 3, ..QpPlan::rc() };
        let mut pair = Pair::new(2, path, plan);
        let Pair { world, a, b, .. } = &mut pair;
        world.partition(a.host(), b.host());
        world.pause(b.host(), Duration::from_secs(1));
        a.post(world, 1, SendOp::Send, 0, 64);
        assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)], "{path:?}");
        let here = stats(world, a).counters;
        assert_eq!((here.local_ack_timeout_err, here.req_transport_retries_exceeded), (4, 1));
        assert_eq!((here.rnr_nak_retry_err, here.out_of_buffer), (0, 0));
        assert_eq!(here.retransmits, if path == Path::Packets { 3 } else { 0 });
    }
}

/// The round trip from a packet to its ACK, none for a packet that was sent twice; shared memory has
/// neither.
#[test]
fn acknowledgements_are_timed() {
    for path in PATHS {
        let mut pair = Pair::new(3, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        world.wires_mut().latency = Duration::from_micros(100);
        for id in 0..20 {
            a.post(world, id, SendOp::Write(b.mr.at(0)), 0, 64);
            assert_eq!(a.statuses(world, 1), [(id, OK)]);
        }
        let trip = stats(world, a).ack_round_trip;
        if path == Path::Shared {
            assert_eq!(trip.count(), 0);
            continue;
        }
        assert_eq!(trip.count(), 20);
        let each = trip.sum() / 20;
        assert!(
            (Duration::from_micros(200)..Duration::from_micros(210)).contains(&each),
            "{each:?}"
        );
        assert!(trip.quantile(0.99).unwrap() <= trip.max() && trip.max() < 2 * each);
        // Its ACK is lost, and the one for the second try proves nothing.
        let lost = Filter { count: Some(1), ..Filter::of(Frames::Acks) };
        world.add_fault(Fault::new(Act::Drop, lost));
        a.post(world, 30, SendOp::Write(b.mr.at(0)), 0, 64);
        assert_eq!(a.statuses(world, 1), [(30, OK)]);
        assert_eq!(stats(world, a).ack_round_trip.count(), 20);
        assert_eq!(stats(world, a).counters.retransmits, 1);
    }
}

/// S2-24, S2-26, S2-28: how long a queue pair was in which state, over RESET too, and which one has been
/// in its state for longest.
#[test]
fn s2_28_time_per_state() {
    for path in PATHS {
        let mut pair = Pair::apart(4, path, QpPlan::rc(), QpPlan::rc());
        let ms = Duration::from_millis;
        let Pair { world, a, b, .. } = &mut pair;
        world.run_for(ms(1));
        world.to_init(a.side).unwrap();
        world.run_for(ms(2));
        world.to_rtr(a.side, b.side, path).unwrap();
        world.run_for(ms(3));
        world.to_rts(a.side).unwrap();
        world.run_for(ms(4));
        a.set_state(world, QpState::Sqd).unwrap();
        world.run_for(ms(5));
        a.set_state(world, QpState::Error).unwrap();
        world.run_for(ms(6));
        a.set_state(world, QpState::Reset).unwrap();
        world.run_for(ms(7));
        a.set_state(world, QpState::Reset).unwrap();
        let (now, stats) = (world.now(), stats(world, a));
        let dwell = QpState::ALL.map(|state| stats.dwell(state, now));
        assert_eq!(dwell, [ms(8), ms(2), ms(3), ms(4), ms(5), ms(0), ms(6)], "{path:?}");
        assert_eq!((stats.state, stats.age(now)), (QpState::Reset, ms(7)));
        assert_eq!(stats.starts, 1, "the second RESET led out of nowhere");
        let fresh = End::new(world, a.host(), QpPlan::rc());
        let engine = world.engine(a.host());
        let (first, next) = engine.queue_pair_from(0).unwrap();
        assert_eq!(first, a.side.qpn);
        let (second, next) = engine.queue_pair_from(next).unwrap();
        assert_eq!((second, engine.queue_pair_from(next)), (fresh.side.qpn, None));
        let mut listed: Vec<_> = world.engine(a.host()).queue_pairs().collect();
        listed.sort_by_key(|(_, _, since)| *since);
        let order: Vec<_> = listed.iter().map(|(qpn, state, _)| (*qpn, *state)).collect();
        assert_eq!(order, [a.side.qpn, fresh.side.qpn].map(|qpn| (qpn, QpState::Reset)));
    }
}
