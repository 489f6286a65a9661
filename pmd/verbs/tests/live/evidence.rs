//! What two lcores tell of a connection that was made wrongly, and what the rules make of it: every world that looks the
//! same from outside, with real evidence of both ends.

use pmd_observe::why::{Evidence, Path, Peer, Symptom, diagnose};
use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::roce::ids::{PathMtu, Psn};
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{
    Access, Data, Device, DeviceConfig, Disturb, FaultText, Qp, Rc, RemoteAddr, Ud, WireChoice,
    WorkRequest, failed_request,
};

use crate::support::{BYTES, QKEY, World, step};

on_every_wire! {
    attributes_of_both_ends_fit_together,
    rights_that_a_queue_pair_or_region_lacks,
    receives_that_were_never_posted,
}

fn world(wire: WireChoice, fault: Option<&str>) -> World {
    let faults = fault.map(|text| FaultText::parse(text).unwrap().place(None, None));
    let disturb = Disturb { faults: faults.into_iter().collect(), ..Disturb::default() };
    let config = DeviceConfig { wire, lcores: 2, disturb, ..DeviceConfig::default() };
    World::of(&Device::open(&config).unwrap())
}

/// A budget of some 0.5 s: a thread that gets no core for a while must not look like a wire that went silent.
fn impatient(attr: &mut QpAttr) {
    (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 3);
}

/// The verdict of the first side on the first of its requests that failed.
fn judge(world: &World, qps: &[Qp<Rc>; 2], wr: &WorkRequest<'_, Rc>) -> Verdict {
    let [near, far] = &world.sides;
    let starts = [near.cx.evidence(qps[0].number()), far.cx.evidence(qps[1].number())];
    qps[0].post_send(wr).unwrap();
    let mut failed = None;
    world.until(|| {
        near.cq.poll(1, |completion| failed = Some(failed_request(&completion)));
        failed.is_some()
    });
    let [local, remote] = [0, 1].map(|side| {
        let now = world.sides[side].cx.evidence(qps[side].number());
        now.since(&starts[side])
    });
    let shares_memory = qps[0].query().attr.av.link.is_some();
    diagnose(&Evidence {
        symptom: Symptom::Completion(failed.unwrap()),
        local,
        remote: Some(remote),
        path: if shares_memory { Path::Local } else { Path::Packet },
        peer: Peer::Alive,
        ..Evidence::default()
    })
}

fn write(world: &World) -> WorkRequest<'static, Rc> {
    let mr = &world.sides[1].mr;
    WorkRequest::write(Data::Inline(&[b"message"]), RemoteAddr { addr: mr.addr(), rkey: mr.rkey() })
}

fn attributes_of_both_ends_fit_together(wire: WireChoice) {
    let world = world(wire, None);
    let qps = world.pair::<Rc>(|_, _| {});
    world.sides[1].receive(&qps[1], 1, 0, 64);
    let [a, b] = [0, 1].map(|side| world.sides[side].cx.evidence(qps[side].number()));
    assert_eq!((a.qp.qpn, a.qp.sq_psn), (b.qp.dest_qpn, b.qp.rq_psn));
    assert_eq!((a.qp.dest_qpn, a.qp.rq_psn), (b.qp.qpn, b.qp.sq_psn));
    assert_eq!((a.qp.timeout, a.qp.retry_cnt, a.qp.min_rnr_timer), (Some(14), Some(7), Some(12)));
    assert_eq!((a.qp.state.as_deref(), a.qp.gid_type.as_deref()), (Some("RTS"), Some("v2")));
    assert_eq!((a.qp.transport.as_deref(), a.qp.path_mig_state), (Some("RC"), None));
    assert_eq!(a.qp.access, Some((Access::REMOTE_WRITE | Access::REMOTE_READ).bits()));
    assert_eq!((a.receives.posted, b.receives.posted), (Some(0), Some(1)));
    assert_eq!((b.receives.waiting, b.completions), (Some(1), Some(0)));
    assert!(a.place.ends_with(", lcore 0") && b.place.ends_with(", lcore 1"), "{}", a.place);
    qps[0].post_send(&WorkRequest::send(Data::Inline(&[b"message"]))).unwrap();
    world.until(|| world.sides[1].cx.evidence(qps[1].number()).completions == Some(1));
    let now = world.sides[1].cx.evidence(qps[1].number()).since(&b);
    assert_eq!(now.receives.waiting, Some(0));
    assert!(now.after.since(&now.before).get("rx_bytes") >= Some(7), "{:?}", now.after);
    world.complete([1, 1]);
}

/// P11 (a) and (b), S0-19: status 12 with a wire that loses everything, and with one that loses the answers.
#[test]
fn p11_silence_on_the_way() {
    for (fault, code) in [("drop all", Code::LinkDead), ("drop acks", Code::AckPathLost)] {
        let world = world(WireChoice::Udp, Some(fault));
        let qps = world.pair::<Rc>(|_, attr| impatient(attr));
        let verdict = judge(&world, &qps, &write(&world));
        assert_eq!((verdict.code, verdict.owner), (code, Owner::Fabric), "{verdict}");
        let text = verdict.to_string();
        assert!(text.contains("local_ack_timeout_err=8"), "{verdict}");
        assert!(text.contains("req_transport_retries_exceeded=1"), "{verdict}");
        assert!(
            !text.contains("out_of_buffer") && !text.contains("rnr_nak_retry_err"),
            "{verdict}"
        );
        assert!(
            text.contains(&format!("fault on purpose at this end: `{fault}` hit ")),
            "{verdict}"
        );
    }
}

/// P11 (c) and (d), P04, S1-69: status 12, because the peer was brought up otherwise, or not at all.
#[test]
fn p11_silence_of_a_peer_that_was_made_wrongly() {
    let wrong_psn: fn(&mut QpAttr) = |attr| attr.rq_psn = Psn::new(0x30_0000);
    let wrong_mtu: fn(&mut QpAttr) = |attr| attr.path_mtu = PathMtu::B256;
    for (change, code) in [(wrong_psn, Code::PsnMismatch), (wrong_mtu, Code::MtuMismatch)] {
        let world = world(WireChoice::Udp, None);
        let qps = world.pair::<Rc>(|side, attr| {
            impatient(attr);
            if side == 1 {
                change(attr);
            }
        });
        let mr = &world.sides[1].mr;
        let at = RemoteAddr { addr: mr.addr(), rkey: mr.rkey() };
        let sges = [world.sides[0].sge(0, 4096)];
        let verdict = judge(&world, &qps, &WorkRequest::write(Data::Sges(&sges), at));
        assert_eq!((verdict.code, verdict.owner), (code, Owner::Config), "{verdict}");
    }
    let world = world(WireChoice::Udp, None);
    let qps: [Qp<Rc>; 2] = world.sides.each_ref().map(|side| side.qp(|_| {}));
    let mut attr = world.attr(0, qps[1].number());
    impatient(&mut attr);
    [QpState::Init, QpState::Rtr, QpState::Rts].iter().for_each(|to| step(&qps[0], &attr, *to));
    step(&qps[1], &world.attr(1, qps[0].number()), QpState::Init);
    let verdict = judge(&world, &qps, &write(&world));
    assert_eq!((verdict.code, verdict.owner), (Code::PeerNotReady, Owner::Remote), "{verdict}");
    assert!(verdict.summary.contains("is in INIT"), "{verdict}");
}

/// S0-11.
fn rights_that_a_queue_pair_or_region_lacks(wire: WireChoice) {
    let mut world = world(wire, None);
    let qps = world.pair::<Rc>(|_, attr| attr.access = Access::REMOTE_READ);
    let verdict = judge(&world, &qps, &write(&world));
    assert_eq!((verdict.code, verdict.owner), (Code::AccessQp, Owner::Remote), "{verdict}");
    let [_, far] = &mut world.sides;
    far.mr = far.pd.register(&far.memory, 0, BYTES, Access::REMOTE_READ).unwrap();
    let qps = world.pair::<Rc>(|_, _| {});
    let verdict = judge(&world, &qps, &write(&world));
    assert_eq!((verdict.code, verdict.owner), (Code::AccessMr, Owner::Local), "{verdict}");
}

/// S0-20 and S0-21: status 13 says that the peer is alive, and whether it ever posted a receive.
fn receives_that_were_never_posted(wire: WireChoice) {
    let world = world(wire, None);
    for (posts, code) in [(false, Code::NoReceives), (true, Code::RnrExhausted)] {
        let qps = world.pair::<Rc>(|_, attr| {
            attr.rnr_retry = 3;
            attr.min_rnr_timer = 1;
            // The answers are all that is to be waited for, however late they are looked at.
            attr.timeout = 18;
        });
        let send = WorkRequest::send(Data::Inline(&[b"message"]));
        if posts {
            world.sides[1].receive(&qps[1], 1, 0, 64);
            qps[0].post_send(&send).unwrap();
            world.complete([1, 1]);
        }
        let verdict = judge(&world, &qps, &send);
        assert_eq!((verdict.code, verdict.owner), (code, Owner::Remote), "{verdict}");
        let text = verdict.to_string();
        assert!(text.contains("rnr_nak_retry_err=4") && text.contains("out_of_buffer="), "{text}");
        assert!(text.contains("req_rnr_retries_exceeded=1"), "{text}");
        assert!(!text.contains("local_ack_timeout_err"), "{text}");
    }
}

/// S1-71 and B1: no completion tells, the peer's counter and both keys do.
#[test]
fn s1_71_datagrams_with_another_key() {
    let world = world(WireChoice::Udp, None);
    let qps = world.pair::<Ud>(|side, attr| attr.qkey = QKEY + u32::try_from(side).unwrap());
    let starts = [0, 1].map(|side| world.sides[side].cx.evidence(qps[side].number()));
    world.sides[1].receive(&qps[1], 1, 0, 128);
    let [near, far] = &world.sides;
    let path = near.cx.path_to(near.cx.device().gid(), qps[1].number()).unwrap();
    let to = near.pd.create_ah(&path).unwrap();
    let data = Data::Inline(&[b"datagram"]);
    qps[0].post_send(&WorkRequest::send_to(data, &to, qps[1].number(), QKEY)).unwrap();
    world.until(|| far.counter("qkey_viol") == 1);
    world.complete([1, 0]);
    let [local, remote] =
        [0, 1].map(|side| world.sides[side].cx.evidence(qps[side].number()).since(&starts[side]));
    let verdict = diagnose(&Evidence {
        symptom: Symptom::Lost { sent: 1, arrived: 0 },
        local,
        remote: Some(remote),
        ..Evidence::default()
    });
    assert_eq!((verdict.code, verdict.owner), (Code::QkeyMismatch, Owner::Config), "{verdict}");
    assert!(verdict.summary.contains("0x1111") && verdict.summary.contains("0x1112"), "{verdict}");
}
