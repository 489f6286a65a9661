//! What an lcore tells of all its queue pairs while it works.

use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Data, Qp, QpOptions, Rc, SrqOptions, Survey, WireChoice, WorkRequest};

use crate::support::{World, go, receive};

on_every_wire!(
    s2_24_every_queue_pair_is_told_of,
    a_queue_pair_that_ended_is_told_of_once,
    a_survey_goes_on_where_it_stopped,
    s2_26_shared_receive_queues_are_told_of,
);

fn taken(world: &World, side: usize) -> Survey {
    let mut survey = Survey::with_room(16, 8);
    assert!(world.sides[side].cx.survey(&mut survey, usize::MAX));
    survey
}

/// S2-24: number, peer, owner, path, state, queues and counters of each, without asking whoever holds it.
fn s2_24_every_queue_pair_is_told_of(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = &world.sides;
    let qps: [Qp<Rc>; 2] = [a, b].map(|side| {
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (&side.cq, &side.cq);
        let options = QpOptions { send_cq, recv_cq, srq: None, xrcd: None, cap, signal_all: true };
        side.cx.on_behalf(5).alloc_pd().create_qp(&options).unwrap()
    });
    world.connect(&qps, |_, _| {});
    qps[0].post_send(&WorkRequest::send(Data::Inline(&[]))).unwrap();
    world.until(|| taken(&world, 0).qps[0].stats.counters.rnr_nak_retry_err > 0);
    let survey = taken(&world, 0);
    let [told] = survey.qps[..] else { panic!("{survey:?}") };
    assert_eq!((told.qpn, told.peer), (qps[0].number(), qps[1].number()));
    assert_eq!((told.owner, told.peer_gid), (Some(5), a.cx.device().gid()));
    assert_eq!(told.shares_memory, wire == WireChoice::Shm);
    assert_eq!((told.stats.state, told.stats.starts), (QpState::Rts, 1));
    assert_eq!((told.send_used, told.send_depth, told.send_posted), (1, 64, 1));
    assert_eq!((told.recv_used, told.recv_depth, told.srq), (0, 32, None));
    assert!(told.dwell[QpState::Rts as usize] >= told.age && told.age.as_nanos() > 0);
    assert_eq!(survey.made[5], 1);
    let count = |name| survey.counters.iter().find(|(known, _)| *known == name).unwrap().1;
    assert!(count("rnr_nak_retry_err") >= told.stats.counters.rnr_nak_retry_err);
    assert_eq!(survey.wire.is_empty(), wire == WireChoice::Shm);
}

/// What is left of a queue pair says in which state its owner closed it, not that it was closed.
fn a_queue_pair_that_ended_is_told_of_once(wire: WireChoice) {
    let world = World::new(wire);
    world.sides[0].cx.remember_ended();
    let [closed, failed, again] = [0; 3].map(|_| world.pair::<Rc>(|_, _| {}));
    let numbers = [&closed, &failed, &again].map(|[qp, _]| qp.number());
    go(&closed[0], QpState::Error);
    go(&failed[0], QpState::Sqd);
    go(&failed[0], QpState::Error);
    go(&failed[0], QpState::Error);
    go(&again[0], QpState::Error);
    go(&again[0], QpState::Reset);
    drop((closed, failed, again));
    let survey = taken(&world, 0);
    assert!(survey.qps.is_empty() && survey.forgotten == 0);
    let told: Vec<_> = survey.ended.iter().map(|told| (told.qpn, told.stats.state)).collect();
    let states = [QpState::Rts, QpState::Sqd, QpState::Reset];
    let mut expected: Vec<_> = numbers.into_iter().zip(states).collect();
    expected.sort_by_key(|(qpn, _)| told.iter().position(|(other, _)| other == qpn));
    assert_eq!(told, expected);
    assert!(taken(&world, 0).ended.is_empty());
    // Who asks for nothing is told nothing.
    assert!(taken(&world, 1).ended.is_empty());
}

/// A few at a time, without allocation, and without room for all of them.
fn a_survey_goes_on_where_it_stopped(wire: WireChoice) {
    let world = World::new(wire);
    let cx = &world.sides[0].cx;
    let mut qps: Vec<Qp<Rc>> = (0..10).map(|_| world.sides[0].qp(|_| {})).collect();
    let numbers: Vec<_> = qps.iter().map(Qp::number).collect();
    let mut survey = Survey::with_room(7, 0);
    let counted = allocation_counter::measure(|| {
        assert!(!cx.survey(&mut survey, 4));
        assert!(!cx.survey(&mut survey, 4));
        assert!(cx.survey(&mut survey, 4));
    });
    assert_eq!(counted.count_total, 0);
    let told: Vec<_> = survey.qps.iter().map(|told| told.qpn).collect();
    assert_eq!((&told[..], survey.omitted), (&numbers[..7], 3));
    // With room for what was omitted; one that is destroyed meanwhile is left out.
    survey.renew();
    assert!(!cx.survey(&mut survey, 4));
    qps.remove(5);
    assert!(cx.survey(&mut survey, 100));
    assert_eq!((survey.qps.len(), survey.omitted), (9, 0));
}

fn s2_26_shared_receive_queues_are_told_of(wire: WireChoice) {
    let world = World::new(wire);
    let side = &world.sides[0];
    let options = |max_wr| SrqOptions { max_wr, max_sge: 1, xrc: None };
    let [first, second] = [8, 32].map(|max_wr| side.pd.create_srq(&options(max_wr)).unwrap());
    first.post_recv(&receive(1, &[side.sge(0, 64)])).unwrap();
    second.arm_limit(4).unwrap();
    let qp: Qp<Rc> = side.qp_on(&first);
    let survey = taken(&world, 0);
    let told: Vec<_> = survey
        .srqs
        .iter()
        .map(|(number, view)| (*number, view.len, view.depth, view.limit, view.users))
        .collect();
    assert_eq!(told, [(first.number(), 1, 8, 0, 1), (second.number(), 0, 32, 4, 0)]);
    assert_eq!((survey.qps[0].qpn, survey.qps[0].srq), (qp.number(), Some(first.number())));
}
