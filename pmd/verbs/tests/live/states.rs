//! A queue pair's life as a program lives it.

use pmd_verbs::roce::engine::{PostSendError, QpView};
use pmd_verbs::roce::ids::{Lkey, PathMtu, Psn};
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::{AttrMask, QpState, Transport};
use pmd_verbs::{Data, Qp, Rc, Sge, Uc, WcStatus, WireChoice, WorkRequest};

use crate::support::{World, ends, go, mask, pattern, step};

on_every_wire!(
    s1_22_the_worked_example_is_read_back_step_by_step,
    s1_67_from_err_back_to_rts_and_data_flows,
    s2_15_sqe_stops_sending_and_not_receiving,
    s4_03_what_is_posted_in_err_is_flushed_too,
);

/// What changed between two queries, by name.
fn changes(before: &QpView, after: &QpView) -> Vec<&'static str> {
    let (a, b) = (&before.attr, &after.attr);
    let all = [
        ("qp_state", a.state != b.state),
        ("qp_access_flags", a.access != b.access),
        ("pkey_index", a.pkey_index != b.pkey_index),
        ("port_num", a.port != b.port),
        ("qkey", a.qkey != b.qkey),
        ("ah_attr", a.av != b.av),
        ("path_mtu", a.path_mtu != b.path_mtu),
        ("timeout", a.timeout != b.timeout),
        ("retry_cnt", a.retry_cnt != b.retry_cnt),
        ("rnr_retry", a.rnr_retry != b.rnr_retry),
        ("rq_psn", a.rq_psn != b.rq_psn),
        ("max_rd_atomic", a.max_rd_atomic != b.max_rd_atomic),
        ("min_rnr_timer", a.min_rnr_timer != b.min_rnr_timer),
        ("sq_psn", a.sq_psn != b.sq_psn),
        ("max_dest_rd_atomic", a.max_dest_rd_atomic != b.max_dest_rd_atomic),
        ("dest_qp_num", a.dest_qpn != b.dest_qpn),
    ];
    all.into_iter().filter_map(|(name, changed)| changed.then_some(name)).collect()
}

/// S1-22, S1-23, S2-03 to S2-05: bring-up with a query between the steps, which reads back what each
/// step set and nothing else; then the first bytes pass in both directions.
fn s1_22_the_worked_example_is_read_back_step_by_step(wire: WireChoice) {
    let world = World::new(wire);
    let qps = world.sides.each_ref().map(|side| side.qp::<Rc>(|_| {}));
    // What the peer announces must be what this side expects: a's 0x200000 and b's 0x100000.
    let attrs = [0, 1]
        .map(|side| QpAttr { path_mtu: PathMtu::B512, ..world.attr(side, qps[1 - side].number()) });
    assert_eq!((attrs[0].sq_psn, attrs[1].rq_psn), (Psn::new(0x20_0000), Psn::new(0x20_0000)));
    assert_eq!((attrs[1].sq_psn, attrs[0].rq_psn), (Psn::new(0x10_0000), Psn::new(0x10_0000)));
    let rtr = [
        "qp_state",
        "ah_attr",
        "path_mtu",
        "rq_psn",
        "min_rnr_timer",
        "max_dest_rd_atomic",
        "dest_qp_num",
    ];
    let rts = ["qp_state", "timeout", "retry_cnt", "rnr_retry", "max_rd_atomic", "sq_psn"];
    // P_Key index 0 and port 1 are the only ones, and those of a fresh queue pair.
    let steps: [(QpState, &[&str]); 3] = [
        (QpState::Init, &["qp_state", "qp_access_flags"]),
        (QpState::Rtr, &rtr),
        (QpState::Rts, &rts),
    ];
    for (to, sets) in steps {
        for (qp, attr) in qps.iter().zip(&attrs) {
            let before = qp.query();
            step(qp, attr, to);
            let after = qp.query();
            assert_eq!(after.attr.state, to);
            assert_eq!(changes(&before, &after), sets, "{to}");
        }
    }
    for (qp, attr) in qps.iter().zip(&attrs) {
        let wanted = QpAttr { state: QpState::Rts, cur_state: QpState::Rts, qkey: 0, ..*attr };
        assert_eq!(qp.query().attr, wanted);
    }
    for (from, to) in [(0, 1), (1, 0)] {
        let bytes = pattern(5000, from);
        world.sides[from].memory.write_at(0, &bytes).unwrap();
        world.sides[to].receive(&qps[to], 1, 0, 8192);
        let sges = [world.sides[from].sge(0, 5000)];
        qps[from].post_send(&WorkRequest::send(Data::Sges(&sges)).id(2)).unwrap();
        let got = world.complete([1, 1]);
        assert_eq!(ends(&got[to]), [(1, WcStatus::Success)]);
        assert_eq!(world.sides[to].received(0, 5000), bytes);
    }
}

fn exchange(world: &World, qps: &[Qp<Rc>; 2], text: &[u8]) {
    world.sides[1].receive(&qps[1], 1, 0, 64);
    qps[0].post_send(&WorkRequest::send(Data::Inline(&[text])).id(2)).unwrap();
    let [sent, received] = world.complete([1, 1]);
    assert_eq!(
        (ends(&sent), ends(&received)),
        (vec![(2, WcStatus::Success)], vec![(1, WcStatus::Success)])
    );
    assert_eq!(world.sides[1].received(0, text.len()), text);
}

/// S1-67, S1-20, S1-70, S2-16, S2-19, S4-21: ERR leads to RESET alone; from there the same queue
/// pair is brought up again, with other PSNs, and carries data again.
fn s1_67_from_err_back_to_rts_and_data_flows(wire: WireChoice) {
    let world = World::new(wire);
    let qps = world.pair::<Rc>(|_, _| {});
    exchange(&world, &qps, b"first life");
    let numbers = qps.each_ref().map(Qp::number);
    for round in 1..4 {
        for qp in &qps {
            go(qp, QpState::Error);
            for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
                let refused = qp.modify(&QpAttr::new(to), mask(Transport::Rc, to));
                assert!(refused.unwrap_err().to_string().contains("skips RESET"), "{to}");
            }
            go(qp, QpState::Reset);
        }
        let psns = [Psn::new(round * 0x1000), Psn::new(0xff_ffff)];
        world.connect(&qps, |side, attr| {
            (attr.sq_psn, attr.rq_psn) = (psns[side], psns[1 - side]);
        });
        exchange(&world, &qps, b"another life");
    }
    assert_eq!(qps.each_ref().map(Qp::number), numbers);
}

/// S2-15, E-23: a send that fails on UC takes the queue pair to SQE: what is behind it and what is
/// posted later is flushed, but it still receives; SQE -> RTS repairs it.
fn s2_15_sqe_stops_sending_and_not_receiving(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Uc>(|_, _| {});
    let nowhere = [Sge { addr: 64, len: 8, lkey: Lkey(0xffff_fff0) }];
    a.post_send(&WorkRequest::send(Data::Sges(&nowhere)).id(1)).unwrap();
    a.post_send(&WorkRequest::send(Data::Inline(&[b"behind"])).id(2)).unwrap();
    let [failed, _] = world.complete([2, 0]);
    assert_eq!(ends(&failed), [(1, WcStatus::LocProt), (2, WcStatus::WrFlush)]);
    assert_eq!(a.state(), QpState::Sqe);
    a.post_send(&WorkRequest::send(Data::Inline(&[b"later"])).id(3)).unwrap();
    world.sides[0].receive(&a, 4, 0, 64);
    b.post_send(&WorkRequest::send(Data::Inline(&[b"still heard"])).id(5)).unwrap();
    let [at_a, _] = world.complete([2, 1]);
    let mut at_a = ends(&at_a);
    at_a.sort_unstable_by_key(|(wr, _)| *wr);
    assert_eq!(at_a, [(3, WcStatus::WrFlush), (4, WcStatus::Success)]);
    assert_eq!(world.sides[0].received(0, 11), b"still heard");

    let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Sqe, ..QpAttr::new(QpState::Rts) };
    a.modify(&attr, AttrMask::STATE | AttrMask::CUR_STATE).unwrap();
    world.sides[1].receive(&b, 6, 0, 64);
    a.post_send(&WorkRequest::send(Data::Inline(&[b"repaired"])).id(7)).unwrap();
    let [sent, received] = world.complete([1, 1]);
    assert_eq!(
        (ends(&sent), ends(&received)),
        (vec![(7, WcStatus::Success)], vec![(6, WcStatus::Success)])
    );
}

/// S4-01 to S4-06, S0-12, S1-17: in ERR everything outstanding completes as flushed, in order per
/// queue, and so does whatever is posted then; before RTS a send is refused at once.
fn s4_03_what_is_posted_in_err_is_flushed_too(wire: WireChoice) {
    let world = World::new(wire);
    let [a, _b] = world.pair::<Rc>(|_, _| {});
    for wr in 0..3 {
        world.sides[0].receive(&a, wr, 0, 64);
        a.post_send(&WorkRequest::send(Data::Inline(&[b"never sent"])).id(10 + wr)).unwrap();
    }
    go(&a, QpState::Error);
    for wr in 3..5 {
        world.sides[0].receive(&a, wr, 0, 64);
        a.post_send(&WorkRequest::send(Data::Inline(&[b"never sent"])).id(10 + wr)).unwrap();
    }
    let [flushed, _] = world.complete([10, 0]);
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlush));
    let of = |from: u64, to: u64| -> Vec<u64> {
        flushed.iter().map(|wc| wc.wr_id.0).filter(|wr| (from..to).contains(wr)).collect()
    };
    assert_eq!((of(0, 10), of(10, 20)), ((0..5).collect(), (10..15).collect()));
    assert_eq!((a.query().send_outstanding, a.query().recv_outstanding), (0, 0));

    let fresh = world.sides[0].qp::<Rc>(|_| {});
    let refused = fresh.post_send(&WorkRequest::send(Data::Inline(&[b"too early"])));
    assert_eq!(refused, Err(PostSendError::NotReady(QpState::Reset)));
}
