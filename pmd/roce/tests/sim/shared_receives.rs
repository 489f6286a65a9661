//! Shared receive queues and completion queues: running dry, running over, and who is told.

use core::time::Duration;

use pmd_roce::engine::SrqInit;
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Rkey, Srqn, WrId, XrcdId};
use pmd_roce::qp::state::{QpState, Transport};
use pmd_roce::wire::Operation;
use pmd_roce::work::{Completion, RecvWr, RemoteAddr, SendOp, WcStatus};
use pmd_sim::connect::PD;
use pmd_sim::{Act, Fault, Filter, Frames, HostId, Mr, Path, QpPlan, World};

use crate::harness::{End, LONG, PATHS, outcomes};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;

/// Several queue pairs of host `a`, each connected to one of host `b`, which share their receives.
struct Fan {
    world: World,
    far: HostId,
    /// Near and far end of each connection.
    pairs: Vec<[End; 2]>,
    srqn: Srqn,
    mr: Mr,
}

impl Fan {
    fn new(seed: u64, path: Path, count: usize, near: QpPlan, depth: u32) -> Self {
        let mut world = World::new(seed);
        let (a, b) = (world.add_host("a"), world.add_host("b"));
        let is_xrc = near.transport == Transport::XrcIni;
        let cq = world.create_cq(b, 1024);
        let xrc = is_xrc.then_some((XrcdId(1), cq));
        let init = SrqInit { pd: PD, max_wr: depth, max_sge: 1, xrc };
        let srqn = world.create_srq(b, &init).unwrap();
        let far = match is_xrc {
            true => QpPlan {
                transport: Transport::XrcTgt,
                xrcd: Some(XrcdId(1)),
                cqs: Some((cq, cq)),
                ..QpPlan::rc()
            },
            false => QpPlan { srq: Some(srqn), cqs: Some((cq, cq)), ..QpPlan::rc() },
        };
        let pairs = (0..count).map(|_| {
            let mut pair = [End::new(&mut world, a, near), End::new(&mut world, b, far)];
            pair[0].srqn = is_xrc.then_some(srqn);
            world.connect(pair[0].side, pair[1].side, path).unwrap();
            pair
        });
        let pairs = pairs.collect();
        let mr = world.register(b, PD, 1 << 20, crate::harness::ALL);
        Self { world, far: b, pairs, srqn, mr }
    }

    fn post(&mut self, ids: core::ops::Range<u64>) {
        for id in ids {
            let wr = RecvWr { wr_id: WrId(id), sges: &[self.mr.sge(id % 128 * 4096, 4096)] };
            self.world.post_srq_recv(self.far, self.srqn, &wr).unwrap();
        }
    }

    /// Receives that completed, of all queue pairs.
    fn received(&mut self) -> Vec<Completion> {
        let cq = self.pairs[0][1].side.recv_cq;
        core::iter::from_fn(|| self.world.poll_cq(self.far, cq)).collect()
    }

    fn left(&self) -> u32 {
        self.world.engine(self.far).query_srq(self.srqn).unwrap().len
    }
}

/// S1-47, S1-49, S1-50: an empty shared queue makes senders wait and try again; what is posted then
/// is used, each receive once.
#[test]
fn s1_47_an_empty_shared_queue_is_an_rnr() {
    for path in PATHS {
        for transport in [Transport::Rc, Transport::XrcIni] {
            let mut fan = Fan::new(1, path, 3, QpPlan::of(transport), 64);
            fan.post(0..2);
            for [a, _] in fan.pairs.clone() {
                for id in 0..4 {
                    a.post(&mut fan.world, id, SendOp::Send, 0, 3000);
                }
            }
            fan.world.run_for(Duration::from_millis(5));
            let first = fan.received();
            assert_eq!(outcomes(&first), [(0, OK), (1, OK)], "{path:?} {transport}");
            let far = *fan.world.counters(fan.far);
            assert!(far.out_of_buffer >= 3, "{}", far.out_of_buffer);
            let view = fan.world.engine(fan.far).query_srq(fan.srqn).unwrap();
            let dry = far.out_of_buffer;
            assert_eq!((far.srq_dry, view.dry), (dry, dry), "S1-50: the queue is what was short");
            fan.post(2..12);
            let mut rest = Vec::new();
            for [a, _] in fan.pairs.clone() {
                rest.extend(a.statuses(&mut fan.world, 4));
            }
            assert!(rest.iter().all(|(_, status)| *status == OK));
            let received = fan.received();
            let mut ids: Vec<_> = received.iter().map(|wc| wc.wr_id.0).collect();
            ids.sort_unstable();
            assert_eq!(ids, Vec::from_iter(2..12));
            let near = *fan.world.counters(fan.pairs[0][0].host());
            assert!(near.rnr_nak_retry_err >= 3);
            assert_eq!(near.local_ack_timeout_err, 0, "{path:?}: no silence");
            let far = *fan.world.counters(fan.far);
            // One answer per message that finds no receive, and no other word.
            assert!(path == Path::Packets || far.out_of_sequence == 0);
            assert_eq!(fan.left(), 0);
        }
    }
}

/// S1-47: with `rnr_retry` used up, status 13.
#[test]
fn s1_47_a_shared_queue_that_stays_empty_ends_in_13() {
    for path in PATHS {
        for transport in [Transport::Rc, Transport::XrcIni] {
            let near = QpPlan { rnr_retry: 2, ..QpPlan::of(transport) };
            let mut fan = Fan::new(2, path, 2, near, 64);
            let [a, b] = fan.pairs[0];
            a.post(&mut fan.world, 1, SendOp::Send, 0, 3000);
            a.post(&mut fan.world, 2, SendOp::Write(fan.mr.at(0)), 0, 16);
            let done = a.statuses(&mut fan.world, 2);
            assert_eq!(done, [(1, WcStatus::RnrRetryExc), (2, FLUSHED)], "{path:?} {transport}");
            assert_eq!(a.counters(&fan.world).rnr_nak_retry_err, 3);
            assert_eq!(b.counters(&fan.world).out_of_buffer, 3);
            assert_eq!(b.state(&fan.world), QpState::Rts);
        }
    }
}

/// S1-48, E-16, P14: the limit event comes once, when fewer than the limit are left, and not again
/// until it is armed again.
#[test]
fn s1_48_limit_event_is_one_shot() {
    for path in PATHS {
        let mut fan = Fan::new(3, path, 2, QpPlan::rc(), 64);
        fan.post(0..20);
        let (far, srqn) = (fan.far, fan.srqn);
        fan.world.with_engine(far, |engine| engine.arm_srq_limit(srqn, 16)).unwrap();
        let event = AsyncEvent::SrqLimitReached(srqn);
        let send = |fan: &mut Fan, count: u64| {
            let a = fan.pairs[0][0];
            for id in 0..count {
                a.post(&mut fan.world, id, SendOp::Send, 0, 16);
            }
            a.wait(&mut fan.world, count as usize);
            core::iter::from_fn(|| fan.world.poll_event(far)).collect::<Vec<_>>()
        };
        assert_eq!(send(&mut fan, 4), [], "{path:?}: 16 are left");
        assert_eq!(send(&mut fan, 1), [event], "15 are left");
        assert_eq!(send(&mut fan, 5), [], "one shot");
        fan.post(20..30);
        fan.world.with_engine(far, |engine| engine.arm_srq_limit(srqn, 16)).unwrap();
        assert_eq!(fan.left(), 20);
        assert_eq!(send(&mut fan, 5), [event], "armed again");
    }
}

/// S1-49, P14: eight senders and one shared queue that is refilled in small portions: none of them
/// gets more than twice its share, and none starves.
#[test]
fn s1_49_a_shared_queue_is_shared_fairly() {
    for path in PATHS {
        for transport in [Transport::Rc, Transport::XrcIni] {
            let near = QpPlan { min_rnr_timer: 1, ..QpPlan::of(transport) };
            let mut fan = Fan::new(4, path, 8, near, 64);
            for [a, _] in fan.pairs.clone() {
                for id in 0..100 {
                    a.post(&mut fan.world, id, SendOp::Send, 0, 256);
                }
            }
            let mut posted = 0;
            let mut received = Vec::new();
            while received.len() < 480 {
                fan.post(posted..posted + 4);
                posted += 4;
                let wanted = received.len() + 4;
                let done = fan.world.run_until(LONG, |world| {
                    let cq = fan.pairs[0][1].side.recv_cq;
                    received.extend(core::iter::from_fn(|| world.poll_cq(fan.far, cq)));
                    received.len() >= wanted
                });
                assert!(done);
            }
            for [_, b] in &fan.pairs {
                let share = received.iter().filter(|wc| wc.qpn == b.side.qpn).count();
                assert!((15..=120).contains(&share), "{path:?} {transport}: {share} of 480");
            }
        }
    }
}

/// P14: eight queue pairs have drunk a shared queue dry and its consumer posts nothing. A ninth connects,
/// and its first message finds one of the receives that are kept for newcomers; the second one waits with
/// all others.
#[test]
fn p14_a_newcomer_finds_a_receive() {
    for path in PATHS {
        for transport in [Transport::Rc, Transport::XrcIni] {
            let mut fan = Fan::new(9, path, 9, QpPlan::of(transport), 64);
            let (far, srqn) = (fan.far, fan.srqn);
            assert!(fan.world.with_engine(far, |engine| engine.reserve_srq(srqn, 65)).is_err());
            fan.world.with_engine(far, |engine| engine.reserve_srq(srqn, 2)).unwrap();
            fan.post(0..64);
            let [early @ .., [late, _]] = &fan.pairs.clone()[..] else { unreachable!() };
            for ids in [0..1, 1..12] {
                for [a, _] in early {
                    for id in ids.clone() {
                        a.post(&mut fan.world, id, SendOp::Send, 0, 64);
                    }
                }
                fan.world.run_for(Duration::from_millis(5));
            }
            assert_eq!((fan.received().len(), fan.left()), (62, 2), "{path:?} {transport}");
            late.post(&mut fan.world, 1, SendOp::Send, 0, 64);
            late.post(&mut fan.world, 2, SendOp::Send, 0, 64);
            assert_eq!(late.statuses(&mut fan.world, 1), [(1, OK)], "{path:?} {transport}");
            fan.world.run_for(Duration::from_millis(5));
            assert_eq!((fan.received().len(), fan.left()), (1, 1));
            fan.post(64..126);
            assert_eq!(late.statuses(&mut fan.world, 1), [(2, OK)]);
        }
    }
}

/// S4-17 for XRC, whose targets take receives of any shared queue of their domain: the same event, once.
#[test]
fn s4_17_an_xrc_target_says_so_too() {
    for path in PATHS {
        let mut fan = Fan::new(5, path, 2, QpPlan::of(Transport::XrcIni), 64);
        fan.post(0..4);
        let [[_, b], [other, _]] = fan.pairs[..] else { unreachable!() };
        b.set_state(&mut fan.world, QpState::Error).unwrap();
        b.set_state(&mut fan.world, QpState::Error).unwrap();
        assert_eq!(b.events(&mut fan.world), [AsyncEvent::LastWqeReached(b.side.qpn)], "{path:?}");
        other.post(&mut fan.world, 1, SendOp::Send, 0, 16);
        assert_eq!(other.statuses(&mut fan.world, 1), [(1, OK)]);
        assert_eq!((outcomes(&fan.received()), fan.left()), (vec![(0, OK)], 3));
    }
}

/// S4-16, S4-13: a shared queue that nothing can be fetched from is a local error of each queue pair that uses it (class A):
/// QP_FATAL here, flushed sends, and no word to the peer, which finds silence.
#[test]
fn s4_16_a_failed_fetch_is_a_local_error() {
    for path in PATHS {
        let near = QpPlan { timeout: 8, retry_cnt: 1, ..QpPlan::rc() };
        let mut fan = Fan::new(9, path, 1, near, 64);
        fan.post(0..4);
        let [a, b] = fan.pairs[0];
        b.post(&mut fan.world, 100, SendOp::Send, 0, 8);
        fan.world.kill_srq(fan.far, fan.srqn).unwrap();
        a.post(&mut fan.world, 1, SendOp::Send, 0, 64);
        assert_eq!(a.statuses(&mut fan.world, 1), [(1, WcStatus::RetryExc)], "{path:?}");
        assert_eq!(outcomes(&fan.received()), [(100, FLUSHED)], "{path:?}");
        let qpn = b.side.qpn;
        let expected = [
            AsyncEvent::SrqErr(fan.srqn),
            AsyncEvent::QpFatal(qpn),
            AsyncEvent::LastWqeReached(qpn),
        ];
        assert_eq!(b.events(&mut fan.world), expected, "{path:?}");
        assert_eq!(a.counters(&fan.world).rnr_nak_retry_err, 0, "it was not told to wait");
        assert_eq!(fan.left(), 4, "what nobody pulled stays");
    }
}

/// S4-17, S4-19, P20: a queue pair in Error takes no more from its shared queue and says so once;
/// what is in the queue stays for the others.
#[test]
fn s4_17_last_wqe_reached_and_the_queue_is_untouched() {
    for path in PATHS {
        let mut fan = Fan::new(5, path, 3, QpPlan::rc(), 64);
        fan.post(0..10);
        let [[a, b], [other, _], _] = fan.pairs[..] else { unreachable!() };
        b.set_state(&mut fan.world, QpState::Error).unwrap();
        assert_eq!(b.events(&mut fan.world), [AsyncEvent::LastWqeReached(b.side.qpn)], "{path:?}");
        assert_eq!((fan.received().len(), fan.left()), (0, 10));
        other.post(&mut fan.world, 1, SendOp::Send, 0, 16);
        assert_eq!(other.statuses(&mut fan.world, 1), [(1, OK)]);
        assert_eq!(outcomes(&fan.received()), [(0, OK)]);
        a.post(&mut fan.world, 2, SendOp::Send, 0, 16);
        assert_eq!(a.statuses(&mut fan.world, 1), [(2, WcStatus::RetryExc)], "Error is silence");
        assert_eq!(fan.left(), 9);
    }
}

/// S4-13, S4-14, E-27, P16: a completion queue that overruns takes all of its queue pairs with it:
/// QP_FATAL for each, CQ_ERR once, and no completion is made up. The others go on.
#[test]
fn p16_cq_overrun_fails_its_queue_pairs_only() {
    for path in PATHS {
        let mut world = World::new(6);
        let (a, b) = (world.add_host("a"), world.add_host("b"));
        let small = world.create_cq(a, 32);
        let plan = QpPlan { cqs: Some((small, small)), ..QpPlan::rc() };
        let mut pairs = Vec::new();
        for index in 0..5 {
            let near = if index < 4 { plan } else { QpPlan::rc() };
            let pair = [End::new(&mut world, a, near), End::new(&mut world, b, QpPlan::rc())];
            world.connect(pair[0].side, pair[1].side, path).unwrap();
            pairs.push(pair);
        }
        for [near, far] in &pairs {
            for id in 0..20 {
                near.post(&mut world, id, SendOp::Write(far.mr.at(0)), 0, 2000);
            }
        }
        // Nobody polls the small queue.
        assert_eq!(pairs[4][0].wait(&mut world, 20).len(), 20, "{path:?}");
        world.run_for(Duration::from_secs(1));
        let mut events: Vec<_> = core::iter::from_fn(|| world.poll_event(a)).collect();
        let is_fatal = |event: &AsyncEvent| matches!(event, AsyncEvent::QpFatal(_));
        let fatal: Vec<_> = events.extract_if(.., |event| is_fatal(event)).collect();
        assert_eq!(events, [AsyncEvent::CqErr(small)]);
        for [near, _] in &pairs[..4] {
            assert!(fatal.contains(&AsyncEvent::QpFatal(near.side.qpn)));
            assert_eq!(near.state(&world), QpState::Error);
            let view = world.engine(a).query_qp(near.side.qpn).unwrap();
            assert_eq!(view.send_outstanding, 0);
        }
        assert_eq!(fatal.len(), 4, "each exactly once");
        let kept: Vec<_> = core::iter::from_fn(|| world.poll_cq(a, small)).collect();
        assert_eq!(kept.len(), 32, "what was in the queue");
        assert!(kept.iter().all(|wc| wc.status == OK), "nothing is invented");
        assert_eq!(pairs[4][0].state(&world), QpState::Rts);
        assert!((1..=4).contains(&world.counters(a).cq_overruns), "at most one per queue pair");
    }
}

/// S4-20, in its eight steps. Three queue pairs share a queue; the first falls over its own request, the
/// second goes on, then the shared queue fails. S4-13, S4-15 to S4-19, P20.
///
/// The scenario has two receives pulled by the first queue pair. A device may pull ahead of what comes; this
/// one pulls a receive with the first packet of a message, and messages of a queue pair come one after the
/// other, so that it holds one at most. That each pulled receive is flushed, and no other, is what is asserted.
#[test]
fn s4_20_one_falls_then_the_shared_queue_fails() {
    for path in PATHS {
        let mut fan = Fan::new(7, path, 3, QpPlan::rc(), 64);
        fan.post(0..10);
        let far = fan.far;
        let [[a1, b1], [a2, b2], [_, b3]] = fan.pairs[..] else { unreachable!() };
        // A message whose end is not there yet has pulled a receive and fills it.
        let middle = Frames::Operation(Operation::SendMiddle);
        let lost = fan.world.add_fault(Fault::new(Act::Drop, Filter::of(middle)));
        fan.world.set_map_delay(LONG);
        a1.post(&mut fan.world, 1, SendOp::Send, 0, 4000);
        fan.world.run_for(Duration::from_micros(50));
        let view = fan.world.engine(far).query_qp(b1.side.qpn).unwrap();
        assert_eq!((view.recv_outstanding, fan.left()), (1, 9), "{path:?}");
        let bad = RemoteAddr { rkey: Rkey(!a1.mr.rkey.0), ..a1.mr.at(0) };
        b1.post(&mut fan.world, 100, SendOp::Write(bad), 0, 8);
        b1.post(&mut fan.world, 101, SendOp::Send, 0, 8);
        b1.post(&mut fan.world, 102, SendOp::Send, 0, 8);
        fan.world.run_for(Duration::from_micros(50));
        let access = WcStatus::RemAccess;
        let expected = [(100, access), (101, FLUSHED), (102, FLUSHED), (0, FLUSHED)];
        assert_eq!(
            outcomes(&fan.received()),
            expected,
            "{path:?}: first error, flushed sends, the pulled receive"
        );
        assert_eq!(b1.events(&mut fan.world), [AsyncEvent::LastWqeReached(b1.side.qpn)]);
        fan.world.end_fault(lost);
        fan.world.set_map_delay(Duration::ZERO);
        // The second one is as before, and so are the receives that nobody pulled.
        a2.post(&mut fan.world, 2, SendOp::Send, 0, 4000);
        assert_eq!(a2.statuses(&mut fan.world, 1), [(2, OK)], "{path:?}");
        assert_eq!((outcomes(&fan.received()), fan.left()), (vec![(1, OK)], 8));
        // Now the shared queue itself.
        b2.post(&mut fan.world, 200, SendOp::Send, 0, 8);
        fan.world.kill_srq(far, fan.srqn).unwrap();
        fan.world.kill_srq(far, fan.srqn).unwrap();
        assert_eq!(
            outcomes(&fan.received()),
            [(200, FLUSHED)],
            "flushed to the queue pair's own queue"
        );
        let events: Vec<_> = core::iter::from_fn(|| fan.world.poll_event(far)).collect();
        let fall =
            |b: End| [AsyncEvent::QpFatal(b.side.qpn), AsyncEvent::LastWqeReached(b.side.qpn)];
        let expected = [&[AsyncEvent::SrqErr(fan.srqn)], &fall(b2)[..], &fall(b3)].concat();
        assert_eq!(events, expected, "{path:?}: each once, and nothing more from the first");
        for b in [b1, b2, b3] {
            assert_eq!(b.state(&fan.world), QpState::Error);
        }
        assert_eq!(fan.left(), 8, "pulled and left make up what was posted");
    }
}

/// A shared queue of an XRC domain that failed: requests that name it are refused, on either path.
#[test]
fn s4_15_requests_for_a_failed_xrc_queue_are_refused() {
    for path in PATHS {
        let mut fan = Fan::new(8, path, 1, QpPlan::of(Transport::XrcIni), 64);
        fan.post(0..4);
        fan.world.kill_srq(fan.far, fan.srqn).unwrap();
        let [a, b] = fan.pairs[0];
        a.post(&mut fan.world, 1, SendOp::Send, 0, 64);
        assert_eq!(a.statuses(&mut fan.world, 1), [(1, WcStatus::RemInvReq)], "{path:?}");
        let events = b.events(&mut fan.world);
        let (fell, last) =
            (AsyncEvent::QpReqErr(b.side.qpn), AsyncEvent::LastWqeReached(b.side.qpn));
        assert_eq!(events, [AsyncEvent::SrqErr(fan.srqn), fell, last], "{path:?}");
    }
}
