//! The transition journal: what an lcore did, as another thread reads it.

use pmd_observe::journal::{Attr, By, Line, Record, Refusal};
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::{AttrMask, QpState, Transport};
use pmd_verbs::{Access, Data, Device, Rc, Ud, WireChoice, WorkRequest};

use crate::support::{World, go, mask, step};

on_every_wire!(s2_13_what_a_queue_pair_falls_into_by_itself_has_its_cause);

/// What is in the journal of a device, read by another thread.
fn read(device: &Device) -> Vec<Record> {
    let mut journal = device.journal();
    let reads = std::thread::spawn(move || {
        let mut records = Vec::new();
        journal.read(|line| match line {
            Line::Record(record) => records.push(*record),
            other => panic!("{other:?}"),
        });
        let mut again = 0;
        journal.read(|_| again += 1);
        assert_eq!(again, 0, "a reader reads everything once");
        records
    });
    reads.join().unwrap()
}

/// The records of one queue pair, as `from -> to`.
fn moves(records: &[Record], qpn: u32) -> Vec<(String, By, bool)> {
    let of = records.iter().filter(|record| record.qpn == qpn);
    of.map(|r| (format!("{} -> {}", r.from, r.to), r.cause.by, r.refused.is_some())).collect()
}

/// S2-12 to S2-14, P02: a record per attempt, refused or not, with both states, mask, attributes and result, from which
/// alone one sees which step was skipped and which attributes were missing or do not belong there.
#[test]
fn s2_14_the_journal_alone_tells_what_was_skipped_and_missing() {
    let world = World::new(WireChoice::Udp);
    let qp = world.sides[0].qp::<Rc>(|_| {});
    let attr = world.attr(0, world.sides[1].qp::<Rc>(|_| {}).number());
    let rtr = QpAttr { state: QpState::Rtr, ..attr };
    let full = mask(Transport::Rc, QpState::Rtr);
    qp.modify(&rtr, full).unwrap_err();
    step(&qp, &attr, QpState::Init);
    let wrong = (full - AttrMask::DEST_QPN - AttrMask::RQ_PSN) | AttrMask::SQ_PSN;
    qp.modify(&rtr, wrong).unwrap_err();
    let bad = QpAttr { min_rnr_timer: 77, ..rtr };
    qp.modify(&bad, full).unwrap_err();
    let mut elsewhere = rtr;
    elsewhere.av.sgid_index = 9;
    qp.modify(&elsewhere, full).unwrap_err();
    step(&qp, &attr, QpState::Rtr);
    step(&qp, &attr, QpState::Rts);
    go(&qp, QpState::Error);
    qp.modify(&QpAttr::new(QpState::Rts), AttrMask::STATE).unwrap_err();
    let records = read(qp.pd().context().device());
    let qpn = qp.number().value();
    let expected = [
        ("RESET -> RTR", true),
        ("RESET -> INIT", false),
        ("INIT -> RTR", true),
        ("INIT -> RTR", true),
        ("INIT -> RTR", true),
        ("INIT -> RTR", false),
        ("RTR -> RTS", false),
        ("RTS -> ERR", false),
        ("ERR -> RTS", true),
    ];
    assert_eq!(
        moves(&records, qpn),
        expected.map(|(edge, refused)| (edge.to_owned(), By::Modify, refused))
    );
    let own: Vec<&Record> = records.iter().filter(|record| record.qpn == qpn).collect();
    assert!(own.iter().all(|r| (&*r.device, r.lcore, &*r.transport) == ("soft0", 0, "RC")));
    assert!(own.windows(2).all(|two| two[0].at_us <= two[1].at_us));
    let year = 365 * 24 * 3600 * 1_000_000;
    assert!(own[0].at_us > 50 * year && own[0].at_us < 500 * year, "a time of this age");
    let refused = |at: usize| own[at].refused.clone().unwrap();
    let Refusal { skipped, reason, errno, .. } = refused(0);
    assert_eq!((skipped, errno), (vec!["INIT".to_owned()], "EINVAL".to_owned()));
    assert_eq!(reason, "RC RESET -> RTR: skips INIT; go RESET -> INIT -> RTR");
    let Refusal { missing, illegal, .. } = refused(2);
    assert_eq!(
        (missing, illegal),
        (vec!["rq_psn".to_owned(), "dest_qp_num".to_owned()], vec!["sq_psn".to_owned()])
    );
    assert_eq!(refused(3).reason, "min_rnr_timer = 77: a field of 5 bits");
    assert_eq!(own[3].attrs["min_rnr_timer"], Attr::Number(77));
    assert!(refused(4).reason.starts_with("ah_attr.grh.sgid_index = 9: "), "{:?}", refused(4));
    assert_eq!(refused(8).skipped, ["RESET", "INIT", "RTR"]);
    let given = &own[5].attrs;
    assert_eq!(own[5].mask, full.bits());
    assert_eq!(given["rq_psn"], Attr::Number(attr.rq_psn.value().into()));
    assert_eq!(given["dest_qp_num"], Attr::Number(attr.dest_qpn.value().into()));
    assert_eq!(given["path_mtu"], Attr::Number(1024));
    assert!(!given.contains_key("sq_psn"), "{given:?}");
    assert_eq!(own[6].attrs["sq_psn"], Attr::Number(attr.sq_psn.value().into()));
}

/// A key that lets others send is not written down.
#[test]
fn a_qkey_stays_secret() {
    let world = World::new(WireChoice::Udp);
    let qp = world.sides[0].qp::<Ud>(|_| {});
    step(&qp, &world.attr(0, qp.number()), QpState::Init);
    let records = read(qp.pd().context().device());
    assert_eq!(records[0].attrs["qkey"], Attr::Text("(not shown)".to_owned()));
    assert!(!format!("{records:?}").contains("4369"));
}

/// S2-13: a fall is written down with what caused it: a status at the requester, an event that the peer brought about at
/// the responder. A deliberate ERR is a call, and no fall.
fn s2_13_what_a_queue_pair_falls_into_by_itself_has_its_cause(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Rc>(|_, attr| (attr.rnr_retry, attr.min_rnr_timer) = (0, 1));
    a.post_send(&WorkRequest::send(Data::Inline(&[b"nobody waits"])).id(1)).unwrap();
    world.complete([1, 0]);
    let [c, d] = world.pair::<Rc>(|_, attr| attr.access = Access::REMOTE_READ);
    let to = world.sides[1].mr.remote(0);
    c.post_send(&WorkRequest::write(Data::Inline(&[b"forbidden"]), to).id(2)).unwrap();
    world.complete([1, 0]);
    world.until(|| d.state() == QpState::Error);
    world.turn();
    go(&b, QpState::Error);
    let records = read(a.pd().context().device());
    let last = |qpn: u32| records.iter().rfind(|record| record.qpn == qpn).unwrap();
    let fell = |qpn: u32| {
        let Record { from, to, cause, refused, .. } = last(qpn);
        assert_eq!((&**from, &**to, refused), ("RTS", "ERR", &None), "{:?}", last(qpn));
        (cause.by, cause.what.clone().unwrap_or_default(), cause.status)
    };
    let sent = "of a send request: RNR retry counter exceeded (13)";
    assert_eq!(fell(a.number().value()), (By::Completion, sent.to_owned(), Some(13)));
    let sent = "of a send request: remote invalid request error (9)";
    assert_eq!(fell(c.number().value()), (By::Completion, sent.to_owned(), Some(9)));
    assert_eq!(fell(d.number().value()), (By::Peer, "QP_REQ_ERR".to_owned(), None));
    assert_eq!(fell(b.number().value()), (By::Modify, String::new(), None));
    assert_eq!(last(d.number().value()).lcore, 1);
}
