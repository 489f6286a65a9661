//! Shared receive queues.

use pmd_verbs::roce::engine::ResourceError;
use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::{Data, Qp, Rc, Srq, SrqOptions, Ud, WcStatus, WireChoice, WorkRequest};

use crate::support::{INTO, QKEY, World, ends, receive};

on_every_wire!(
    s1_47_one_pool_serves_many_queue_pairs,
    s1_47_an_empty_pool_drops_datagrams,
    s1_48_the_limit_event_comes_once_and_is_armed_again,
);

fn srq(world: &World) -> Srq {
    world.sides[1].pd.create_srq(&SrqOptions { max_wr: 16, max_sge: 1, xrc: None }).unwrap()
}

fn post(world: &World, srq: &Srq, wr: u64) {
    srq.post_recv(&receive(wr, &[world.sides[1].sge(INTO + 64 * wr, 64)])).unwrap();
}

fn pair(world: &World, srq: &Srq) -> [Qp<Rc>; 2] {
    let qps = [world.sides[0].qp::<Rc>(|_| {}), world.sides[1].qp_on(srq)];
    world.connect(&qps, |_, attr| attr.min_rnr_timer = 1);
    qps
}

fn send(qp: &Qp<Rc>, wr: u64) {
    qp.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(wr)).unwrap();
}

/// S1-47, S1-49: receives go to whoever needs one, in the order they were posted; when the pool is
/// empty the sender is told to wait, and goes on when there is one again.
fn s1_47_one_pool_serves_many_queue_pairs(wire: WireChoice) {
    let world = World::new(wire);
    let srq = srq(&world);
    let pairs: Vec<_> = (0..4).map(|_| pair(&world, &srq)).collect();
    for wr in 0..8 {
        post(&world, &srq, wr);
    }
    assert_eq!(srq.outstanding(), 8);
    for (wr, [a, _]) in (10..).zip(pairs.iter().chain(&pairs)) {
        send(a, wr);
    }
    let [sent, received] = world.complete([8, 8]);
    assert!(sent.iter().chain(&received).all(|wc| wc.status == WcStatus::Success));
    let mut used: Vec<_> = received.iter().map(|wc| wc.wr_id.0).collect();
    used.sort_unstable();
    assert_eq!(used, (0..8).collect::<Vec<_>>());
    for [_, b] in &pairs {
        assert_eq!(
            received.iter().filter(|wc| wc.qpn == b.number()).count(),
            2,
            "no one goes short"
        );
    }
    assert_eq!(srq.outstanding(), 0);

    send(&pairs[2][0], 30);
    world.until(|| world.sides[0].counter("rnr_nak_retry_err") > 0);
    assert!(world.sides[1].counter("out_of_buffer") > 0);
    post(&world, &srq, 9);
    let [sent, received] = world.complete([1, 1]);
    assert_eq!(
        (ends(&sent), ends(&received)),
        (vec![(30, WcStatus::Success)], vec![(9, WcStatus::Success)])
    );
    assert_eq!(received[0].qpn, pairs[2][1].number());
}

/// S1-47: on UD nobody can be told to wait: the datagram is gone, and counted.
fn s1_47_an_empty_pool_drops_datagrams(wire: WireChoice) {
    let world = World::new(wire);
    let srq = srq(&world);
    let qps = [world.sides[0].qp::<Ud>(|_| {}), world.sides[1].qp_on(&srq)];
    world.connect(&qps, |_, _| {});
    let [a, b] = &qps;
    let cx = &world.sides[0].cx;
    let av = cx.path_to(cx.device().gid(), b.number()).unwrap();
    let ah = world.sides[0].pd.create_ah(&av).unwrap();
    let send = |wr: u64| {
        let data = Data::Inline(&[b"datagram"]);
        a.post_send(&WorkRequest::send_to(data, &ah, b.number(), QKEY).id(wr)).unwrap();
    };
    send(1);
    world.complete([1, 0]);
    world.until(|| world.sides[1].counter("out_of_buffer") == 1);
    world.nothing_completes();
    post(&world, &srq, 2);
    send(3);
    let [_, received] = world.complete([1, 1]);
    assert_eq!((ends(&received), received[0].byte_len), (vec![(2, WcStatus::Success)], 48));
}

/// S1-48, E-16: the event comes when fewer receives than the limit are left, not at the limit; once;
/// and again only when it is armed again.
fn s1_48_the_limit_event_comes_once_and_is_armed_again(wire: WireChoice) {
    let world = World::new(wire);
    let srq = srq(&world);
    let [a, _b] = pair(&world, &srq);
    for wr in 0..8 {
        post(&world, &srq, wr);
    }
    let too_many = srq.arm_limit(17);
    assert!(matches!(too_many, Err(ResourceError::Value { field: "srq_limit", .. })));
    srq.arm_limit(4).unwrap();
    let limit_events = |world: &World| {
        let mut count = 0;
        while let Some(event) = world.event(1) {
            if event == AsyncEvent::SrqLimitReached(srq.number()) {
                count += 1;
            }
        }
        count
    };
    let run = |messages: u64| {
        for wr in 0..messages {
            send(&a, 100 + wr);
        }
        let count = usize::try_from(messages).unwrap();
        world.complete([count, count]);
    };
    run(4);
    assert_eq!((srq.outstanding(), limit_events(&world)), (4, 0), "the limit itself is enough");
    run(1);
    assert_eq!((srq.outstanding(), limit_events(&world)), (3, 1));
    run(2);
    assert_eq!(limit_events(&world), 0, "one shot");
    for wr in 0..4 {
        post(&world, &srq, wr);
    }
    srq.arm_limit(5).unwrap();
    run(1);
    assert_eq!((srq.outstanding(), limit_events(&world)), (4, 1), "armed again");
}
