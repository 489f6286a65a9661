//! Asynchronous events: who holds one keeps its object; and failures of what queue pairs share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pmd_verbs::roce::engine::{DestroyError, PostSendError};
use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{
    Data, EVENT_PATIENCE, PortState, Qp, Rc, Retired, SrqOptions, StaysBecause, WcStatus,
    WireChoice, WorkRequest,
};

use crate::support::{World, ends, go, step};

on_every_wire!(
    p20_a_held_event_keeps_its_object,
    s4_18_an_end_waits_for_the_last_wqe,
    s4_14_a_failed_queue_takes_its_queue_pairs,
    s3_39_a_failed_device_refuses_everything,
    s3_17_a_port_comes_and_goes,
    s0_18_a_queue_pair_tells_of_itself,
);

fn send(qp: &Qp<Rc>, wr: u64) -> Result<(), PostSendError> {
    qp.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(wr))
}

/// P20: destroying a queue pair waits for the thread that deals with an event about it; whoever waits too
/// long is told which event it is, and keeps the object. Events about an object that is gone are not
/// handed out.
fn p20_a_held_event_keeps_its_object(wire: WireChoice) {
    let world = World::new(wire);
    let options = SrqOptions { max_wr: 4, max_sge: 1, xrc: None };
    let srq = world.sides[1].pd.create_srq(&options).unwrap();
    let cx = &world.sides[1].cx;
    let [qp, other] = [0, 1].map(|_| {
        let qp: Qp<Rc> = world.sides[1].qp_on(&srq);
        step(&qp, &world.attr(1, qp.number()), QpState::Init);
        go(&qp, QpState::Error);
        qp
    });
    let last = AsyncEvent::LastWqeReached(qp.number());
    let held = cx.get_event().unwrap();
    assert_eq!(held.kind(), last);
    let stays = qp.destroy().unwrap_err();
    let StaysBecause::Event(unacknowledged) = stays.error else { panic!("{}", stays.error) };
    assert_eq!(unacknowledged.event, last);
    assert!(unacknowledged.age >= EVENT_PATIENCE);
    assert!(stays.to_string().contains("QP_LAST_WQE_REACHED on queue pair"), "{stays}");
    let refused = srq.clone().destroy().unwrap_err();
    assert_eq!(refused.error, DestroyError::InUse(3).into(), "two queue pairs and this test");
    drop(refused);
    // Another thread deals with it while the end waits.
    let handled = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (held, handled) = (held, &handled);
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            handled.store(true, Ordering::Release);
            held.acknowledge();
        });
        stays.object.destroy().unwrap();
        assert!(handled.load(Ordering::Acquire), "not before the handler was done");
    });
    drop(other);
    assert_eq!(cx.poll_event(), None, "the other one's event went with it");
    srq.destroy().unwrap();
}

/// S4-18, P20: a queue pair on a shared receive queue ends after QP_LAST_WQE_REACHED. Where that never
/// comes, since somebody else took it, the wait is bounded and says so.
fn s4_18_an_end_waits_for_the_last_wqe(wire: WireChoice) {
    let world = World::new(wire);
    let options = SrqOptions { max_wr: 4, max_sge: 1, xrc: None };
    let srq = world.sides[1].pd.create_srq(&options).unwrap();
    let limit = Duration::from_millis(10);
    for told in [true, false] {
        let qps = [world.sides[0].qp::<Rc>(|_| {}), world.sides[1].qp_on(&srq)];
        world.connect(&qps, |_, _| {});
        let [a, b] = qps;
        send(&b, 1).unwrap();
        go(&b, QpState::Error);
        if !told {
            assert_eq!(world.event(1), Some(AsyncEvent::LastWqeReached(b.number())));
        }
        let expected = if told { Retired::Flushed } else { Retired::Untold };
        assert_eq!(b.retire(limit), Ok(expected));
        let [_, got] = world.complete([0, 1]);
        assert_eq!(ends(&got), [(1, WcStatus::WrFlush)]);
        b.destroy().unwrap();
        assert_eq!(
            a.retire(limit),
            Ok(Retired::Flushed),
            "without a shared queue, nothing to wait for"
        );
    }
    let fresh: Qp<Rc> = world.sides[0].qp(|_| {});
    assert!(fresh.retire(limit).is_err(), "RESET leads to INIT alone (E-12)");
}

/// S4-14, S4-15, E-27: a completion queue, then a shared receive queue fails under queue pairs.
fn s4_14_a_failed_queue_takes_its_queue_pairs(wire: WireChoice) {
    let world = World::new(wire);
    let [near, far] = &world.sides;
    let dead = near.cx.create_cq(16).unwrap();
    let [a, _b] = {
        let qps = [near.qp::<Rc>(|options| options.send_cq = &dead), far.qp(|_| {})];
        world.connect(&qps, |_, _| {});
        qps
    };
    near.receive(&a, 7, 0, 64);
    dead.fail();
    dead.fail();
    assert_eq!(a.state(), QpState::Error);
    assert!(matches!(world.event(0), Some(AsyncEvent::CqErr(_))));
    assert_eq!(world.event(0), Some(AsyncEvent::QpFatal(a.number())));
    assert_eq!(world.event(0), None);
    send(&a, 1).unwrap();
    let [got, _] = world.complete([1, 0]);
    assert_eq!(ends(&got), [(7, WcStatus::WrFlush)], "the other queue is whole");
    dead.poll(8, |completion| panic!("{completion:?}"));
    let options = SrqOptions { max_wr: 4, max_sge: 1, xrc: None };
    let srq = far.pd.create_srq(&options).unwrap();
    srq.reserve(2).unwrap();
    let qps = [near.qp::<Rc>(|_| {}), far.qp_on(&srq)];
    world.connect(&qps, |_, _| {});
    srq.fail();
    let view = srq.query().unwrap();
    assert!(view.failed && (view.users, view.reserve, view.depth) == (1, 2, 4), "{view:?}");
    let qpn = qps[1].number();
    let expected = [
        AsyncEvent::SrqErr(srq.number()),
        AsyncEvent::QpFatal(qpn),
        AsyncEvent::LastWqeReached(qpn),
    ];
    assert_eq!(expected.map(|_| world.event(1)), expected.map(Some));
}

/// S3-16, S3-39: the device fails with work in flight. Its queue pairs are in Error without completions,
/// the next request is refused at once, and the other lcore's part lives on.
fn s3_39_a_failed_device_refuses_everything(wire: WireChoice) {
    let world = World::new(wire);
    let [near, far] = &world.sides;
    let [a, b] = world.pair::<Rc>(|_, attr| attr.timeout = 8);
    for wr in 0..8 {
        send(&a, wr).unwrap();
    }
    near.cx.fail_device();
    assert_eq!(world.event(0), Some(AsyncEvent::DeviceFatal));
    assert_eq!((a.state(), send(&a, 9)), (QpState::Error, Err(PostSendError::DeviceFatal)));
    assert!(near.pd.create_srq(&SrqOptions { max_wr: 4, max_sge: 1, xrc: None }).is_err());
    assert_eq!(
        near.cx.queue_pairs().iter().map(|(_, state, _)| *state).collect::<Vec<_>>(),
        [QpState::Error]
    );
    send(&b, 1).unwrap();
    let [_, got] = world.complete([0, 1]);
    assert_eq!(ends(&got), [(1, WcStatus::RetryExc)], "the peer is silent for ever");
    far.cx.create_cq(4).unwrap();
}

/// S3-17: a port that goes down fails nothing, and memory does not need it.
fn s3_17_a_port_comes_and_goes(wire: WireChoice) {
    let world = World::new(wire);
    let [near, far] = &world.sides;
    let [a, b] = world.pair::<Rc>(|_, attr| attr.timeout = 12);
    near.cx.set_port(PortState::Down);
    far.receive(&b, 5, 0, 64);
    send(&a, 1).unwrap();
    (0..50).for_each(|_| {
        world.turn();
    });
    let uses_port = wire == WireChoice::Udp;
    assert_eq!(near.counter("port_xmit_discards") > 0, uses_port);
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
    near.cx.set_port(PortState::Active);
    let [sent, received] = world.complete([1, 1]);
    let ends = (ends(&sent), ends(&received));
    assert_eq!(ends, (vec![(1, WcStatus::Success)], vec![(5, WcStatus::Success)]));
    assert_eq!(world.event(0), Some(AsyncEvent::PortErr(1)));
    assert_eq!(world.event(0), Some(AsyncEvent::PortActive(1)));
}

/// S0-18, S2-24: counters and times of one queue pair.
fn s0_18_a_queue_pair_tells_of_itself(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Rc>(|_, attr| (attr.rnr_retry, attr.min_rnr_timer) = (1, 1));
    send(&a, 1).unwrap();
    let [sent, _] = world.complete([1, 0]);
    assert_eq!(ends(&sent), [(1, WcStatus::RnrRetryExc)]);
    let (near, far) = (a.stats(), b.stats());
    assert_eq!((near.counters.rnr_nak_retry_err, near.counters.req_rnr_retries_exceeded), (2, 1));
    assert_eq!((near.rnr_wait.count(), far.counters.out_of_buffer), (1, 2));
    let now = world.sides[0].cx.device().now();
    assert_eq!(near.state, QpState::Error);
    assert!(near.dwell(QpState::Rts, now) > Duration::ZERO);
    assert_eq!(near.dwell(QpState::Sqd, now), Duration::ZERO);
}
