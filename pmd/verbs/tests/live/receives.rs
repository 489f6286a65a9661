//! Receives: when they must be there, and what happens when they are not.

use pmd_verbs::roce::engine::PostRecvError;
use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Data, Rc, WcStatus, WireChoice, WorkRequest};

use crate::support::{World, ends, go, step};

on_every_wire!(
    p12_receives_posted_in_init_are_never_too_late,
    p12_without_a_receive_the_sender_waits_or_gives_up,
    s2_18_reset_forgets_receives,
);

/// P12, E-21: receives are taken from INIT on, so that a sender who starts as soon as it can finds
/// them: nobody is told to wait.
fn p12_receives_posted_in_init_are_never_too_late(wire: WireChoice) {
    let world = World::new(wire);
    let qps = world.sides.each_ref().map(|side| side.qp::<Rc>(|_| {}));
    let attrs = [0, 1].map(|side| world.attr(side, qps[1 - side].number()));
    let early = crate::support::receive(9, &[]);
    assert_eq!(qps[1].post_recv(&early), Err(PostRecvError::NotReady(QpState::Reset)));
    step(&qps[1], &attrs[1], QpState::Init);
    for wr in 0..8 {
        world.sides[1].receive(&qps[1], wr, 64 * wr, 64);
    }
    assert_eq!(qps[1].query().recv_outstanding, 8);
    // The sender is done first, and sends at once.
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        step(&qps[0], &attrs[0], to);
    }
    step(&qps[1], &attrs[1], QpState::Rtr);
    for wr in 0..8 {
        qps[0].post_send(&WorkRequest::send(Data::Inline(&[b"early"])).id(wr)).unwrap();
    }
    let [_, received] = world.complete([8, 8]);
    assert!(received.iter().all(|completion| completion.status == WcStatus::Success));
    assert_eq!(world.sides[0].counter("rnr_nak_retry_err"), 0);
    assert_eq!(world.sides[1].counter("out_of_buffer"), 0);
    // S1-18: what arrives in RTR says that the peer considers the connection established.
    assert_eq!(world.event(1), Some(AsyncEvent::CommEst(qps[1].number())));
}

/// P12, S0-15, S0-20, E-05: without a receive the sender is told to wait; as often as `rnr_retry`
/// says, then it gives up with status 13. With 7 it waits until the receive comes.
fn p12_without_a_receive_the_sender_waits_or_gives_up(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Rc>(|_, attr| {
        attr.rnr_retry = 2;
        attr.min_rnr_timer = 1;
    });
    a.post_send(&WorkRequest::send(Data::Inline(&[b"nobody waits"])).id(1)).unwrap();
    a.post_send(&WorkRequest::send(Data::Inline(&[b"behind it"])).id(2)).unwrap();
    let [sent, _] = world.complete([2, 0]);
    assert_eq!(ends(&sent), [(1, WcStatus::RnrRetryExc), (2, WcStatus::WrFlush)]);
    assert_eq!(a.state(), QpState::Error);
    assert_eq!(world.sides[0].counter("rnr_nak_retry_err"), 3);
    assert_eq!(world.sides[0].counter("req_rnr_retries_exceeded"), 1);
    assert!(world.sides[1].counter("out_of_buffer") > 0);
    assert_eq!(world.sides[0].counter("local_ack_timeout_err"), 0);
    assert_eq!(b.state(), QpState::Rts, "the responder is not to blame");

    let [a, b] = world.pair::<Rc>(|_, attr| {
        attr.rnr_retry = 7;
        attr.min_rnr_timer = 1;
    });
    a.post_send(&WorkRequest::send(Data::Inline(&[b"patient"])).id(3)).unwrap();
    let before = world.sides[0].counter("rnr_nak_retry_err");
    world.until(|| world.sides[0].counter("rnr_nak_retry_err") >= before + 10);
    world.sides[1].receive(&b, 4, 0, 64);
    let [sent, received] = world.complete([1, 1]);
    assert_eq!(
        (ends(&sent), ends(&received)),
        (vec![(3, WcStatus::Success)], vec![(4, WcStatus::Success)])
    );
}

/// S2-18, S1-67, P12: RESET forgets receives without completions, keeps the queue pair's number and
/// queues, and leaves everything else as new; brought up again, it needs its receives again.
fn s2_18_reset_forgets_receives(wire: WireChoice) {
    let world = World::new(wire);
    let qps = world.sides.each_ref().map(|side| side.qp::<Rc>(|_| {}));
    let fresh = qps[1].query();
    world.connect(&qps, |_, _| {});
    world.sides[1].receive(&qps[1], 1, 0, 64);
    for qp in &qps {
        go(qp, QpState::Error);
    }
    let [_, flushed] = world.complete([0, 1]);
    assert_eq!(ends(&flushed), [(1, WcStatus::WrFlush)]);
    for qp in &qps {
        go(qp, QpState::Reset);
    }
    let after = qps[1].query();
    assert_eq!((after.attr, after.recv_outstanding), (fresh.attr, 0));
    // Not even what was never flushed leaves a completion.
    world.connect(&qps, |_, _| {});
    world.sides[1].receive(&qps[1], 5, 0, 64);
    qps.iter().for_each(|qp| go(qp, QpState::Reset));
    assert_eq!(qps[1].query().recv_outstanding, 0);
    world.nothing_completes();
    world.connect(&qps, |_, attr| attr.min_rnr_timer = 1);
    qps[0].post_send(&WorkRequest::send(Data::Inline(&[b"again"])).id(2)).unwrap();
    world.until(|| world.sides[0].counter("rnr_nak_retry_err") > 0);
    world.sides[1].receive(&qps[1], 3, 0, 64);
    let [sent, received] = world.complete([1, 1]);
    assert_eq!(
        (ends(&sent), ends(&received)),
        (vec![(2, WcStatus::Success)], vec![(3, WcStatus::Success)])
    );
    assert_eq!(world.sides[1].received(0, 5), b"again");
}
