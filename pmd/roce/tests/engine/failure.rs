//! Error: one request fails, the rest is flushed, and it concerns one queue pair.

use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{CqId, Lkey, Qpn, Rkey};
use pmd_roce::qp::attr::QpInit;
use pmd_roce::qp::state::{QpState, Transport};
use pmd_roce::transition::Cause;
use pmd_roce::work::{Access, Imm, RemoteAddr, SendOp, SendWr, WcStatus};

use crate::support::{
    self, Fate, Host, Pair, RECV_CQ, SEND_CQ, TestCqs, attr, element, send_wr, shared,
};

const BAD_KEY: RemoteAddr = RemoteAddr { addr: 0, rkey: Rkey(0xdead) };

/// S0-11, E-06: a WRITE that the responder's queue pair does not allow ends with 9 at the requester and QP_REQ_ERR at the
/// responder.
#[test]
fn s0_11_write_without_remote_write() {
    let mut pair = Pair::connected(Transport::Rc, |attr| attr.access = Access::REMOTE_READ);
    let [a, b] = pair.qpns;
    pair.hosts[0].post(a, 1, SendOp::Write(shared(0)), 8);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(1, WcStatus::RemInvReq)]);
    assert_eq!(pair.hosts[0].state(a), QpState::Error);
    assert_eq!(pair.hosts[1].state(b), QpState::Error);
    assert_eq!(pair.hosts[1].events(), [AsyncEvent::QpReqErr(b)]);
    assert_eq!(pair.hosts[0].events(), []);
}

/// S2-13: what a queue pair falls into by itself is told once, with its cause; what a call asks for is its caller's to
/// know.
#[test]
fn s2_13_falls_are_told_with_their_cause() {
    let mut pair = Pair::connected(Transport::Rc, |attr| attr.access = Access::REMOTE_READ);
    let [a, b] = pair.qpns;
    assert_eq!(pair.hosts[0].transitions(), [], "bringing it up was asked for");
    pair.hosts[0].post(a, 1, SendOp::Write(shared(0)), 8);
    pair.settle();
    let told = [0, 1].map(|host| {
        let [fell] = pair.hosts[host].transitions()[..] else { panic!("one fall at each end") };
        assert_eq!(
            (fell.transport, fell.from, fell.to),
            (Transport::Rc, QpState::Rts, QpState::Error)
        );
        (fell.qpn, fell.cause)
    });
    let [status, event] = [Cause::Send(WcStatus::RemInvReq), Cause::Event(AsyncEvent::QpReqErr(b))];
    assert_eq!(told, [(a, status), (b, event)]);
    assert_eq!(pair.hosts[0].transitions(), []);
    assert_eq!(status.to_string(), "a send request failed: remote invalid request error (9)");
    assert_eq!(event.to_string(), "QP_REQ_ERR");
}

/// The error matrix from end to end (E-26, S4-07 to S4-10): what the requester's program does, its status, and the
/// responder's event.
#[test]
fn s4_08_error_matrix() {
    type Event = fn(Qpn) -> AsyncEvent;
    let misaligned = RemoteAddr { addr: shared(0).addr + 4, rkey: shared(0).rkey };
    let beyond = RemoteAddr { addr: shared(0).addr + (1 << 16) - 4, rkey: shared(0).rkey };
    let access: Event = AsyncEvent::QpAccessErr;
    let cases: [(SendOp, WcStatus, Option<Event>); 7] = [
        (SendOp::Write(BAD_KEY), WcStatus::RemAccess, Some(access)),
        (SendOp::Read(BAD_KEY), WcStatus::RemAccess, Some(access)),
        (SendOp::FetchAdd { at: BAD_KEY, add: 1 }, WcStatus::RemAccess, Some(access)),
        (SendOp::Write(beyond), WcStatus::RemAccess, Some(access)),
        (SendOp::Read(beyond), WcStatus::RemAccess, Some(access)),
        (SendOp::FetchAdd { at: misaligned, add: 1 }, WcStatus::RemInvReq, Some(access)),
        // Longer than the receive: the receive's own completion tells.
        (SendOp::Send, WcStatus::RemInvReq, None),
    ];
    for (op, status, event) in cases {
        let mut pair = Pair::rc();
        let [a, b] = pair.qpns;
        pair.hosts[1].post_recv(b, 7, 0, 4);
        pair.hosts[1].post_recv(b, 8, 0, 4);
        pair.hosts[0].post(a, 1, op, 8);
        pair.hosts[0].post(a, 2, SendOp::Send, 1);
        pair.settle();
        assert_eq!(pair.hosts[0].statuses(), [(1, status), (2, WcStatus::WrFlush)], "{op:?}");
        let first = if event.is_some() { WcStatus::WrFlush } else { WcStatus::LocLen };
        assert_eq!(pair.hosts[1].statuses(), [(7, first), (8, WcStatus::WrFlush)], "{op:?}");
        let expected: Vec<_> = event.iter().map(|event| event(b)).collect();
        assert_eq!(pair.hosts[1].events(), expected, "{op:?}");
        for side in [0, 1] {
            assert_eq!(pair.hosts[side].state(pair.qpns[side]), QpState::Error, "S4-09");
        }
    }
}

/// S4-01 to S4-06, S0-12, S1-18: everything posted before completes in order, per queue; everything posted later too, as
/// long as somebody posts.
#[test]
fn s4_02_every_request_completes_in_order() {
    let mut pair = Pair::rc();
    let [a, b] = pair.qpns;
    for wr in 0..10 {
        pair.hosts[0].post_recv(a, 100 + wr, 0, 64);
    }
    pair.hosts[1].post_recv(b, 50, 0, 64);
    pair.hosts[0].post(a, 0, SendOp::Send, 8);
    pair.hosts[0].post(a, 1, SendOp::Write(BAD_KEY), 8);
    for wr in 2..10 {
        pair.hosts[0].post(a, wr, SendOp::Send, 8);
    }
    pair.settle();
    let flushed = |range: std::ops::Range<u64>| range.map(|wr| (wr, WcStatus::WrFlush));
    let first = [(0, WcStatus::Success), (1, WcStatus::RemAccess)];
    let expected: Vec<_> =
        first.into_iter().chain(flushed(2..10)).chain(flushed(100..110)).collect();
    assert_eq!(pair.hosts[0].statuses(), expected);
    for round in 0..3 {
        pair.hosts[0].post(a, round, SendOp::Send, 8);
        pair.hosts[0].post_recv(a, 200 + round, 0, 64);
        pair.hosts[0].poll();
        let expected: Vec<_> =
            flushed(round..round + 1).chain(flushed(200 + round..201 + round)).collect();
        assert_eq!(pair.hosts[0].statuses(), expected);
        let view = pair.hosts[0].engine.query_qp(a).unwrap();
        assert_eq!((view.send_outstanding, view.recv_outstanding), (0, 0), "S4-05: quiesced");
    }
}

/// A receive that a message was filling when Error came is flushed first.
#[test]
fn s4_19_open_receive_is_flushed_first() {
    let mut pair = Pair::rc();
    let [a, b] = pair.qpns;
    pair.hosts[1].post_recv(b, 1, 0, 4096);
    pair.hosts[1].post_recv(b, 2, 0, 4096);
    pair.hosts[0].post(a, 3, SendOp::Send, 3000);
    pair.hosts[0].poll();
    let first = pair.hosts[0].out.frames.pop_front().unwrap();
    pair.hosts[1].deliver(&first);
    pair.hosts[1].go(b, QpState::Error);
    assert_eq!(pair.hosts[1].statuses(), [(1, WcStatus::WrFlush), (2, WcStatus::WrFlush)]);
}

/// S4-12, S4-21: Error concerns one queue pair; its siblings on the same completion queues see nothing of it.
#[test]
fn s4_12_siblings_go_on() {
    let mut hosts = [Host::new(1), Host::new(2)];
    let pairs: Vec<_> =
        (0..3).map(|_| [0, 1].map(|side: usize| hosts[side].create(Transport::Rc))).collect();
    for [a, b] in &pairs {
        hosts[0].bring_up(*a, &attr(2, *b));
        hosts[1].bring_up(*b, &attr(1, *a));
        hosts[1].post_recv(*b, 1, 0, 64);
    }
    hosts[0].post(pairs[0][0], 1, SendOp::Write(BAD_KEY), 8);
    for [a, _] in &pairs[1..] {
        hosts[0].post(*a, 2, SendOp::Send, 8);
    }
    for _ in 0..10 {
        hosts.iter_mut().for_each(Host::poll);
        for side in [0, 1] {
            while let Some(sent) = hosts[side].out.frames.pop_front() {
                hosts[1 - side].deliver(&sent);
            }
        }
    }
    let got: Vec<_> = hosts[0].completions().iter().map(|wc| (wc.qpn, wc.status)).collect();
    assert_eq!(
        got,
        [
            (pairs[0][0], WcStatus::RemAccess),
            (pairs[1][0], WcStatus::Success),
            (pairs[2][0], WcStatus::Success)
        ]
    );
    assert_eq!(hosts[0].state(pairs[1][0]), QpState::Rts);
}

/// S1-18, S1-20, S1-70: by hand to Error and out of it by RESET alone.
#[test]
fn s1_20_error_by_hand() {
    let mut pair = Pair::rc();
    let a = pair.qpns[0];
    pair.hosts[0].post_recv(a, 1, 0, 64);
    pair.hosts[0].post(a, 2, SendOp::Send, 8);
    pair.hosts[0].go(a, QpState::Error);
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::WrFlush), (1, WcStatus::WrFlush)]);
    pair.hosts[0].poll();
    assert!(pair.hosts[0].out.frames.is_empty(), "S1-13: nothing leaves in Error");
    assert_eq!(pair.hosts[0].events(), [], "no event for what was asked for");
}

/// S4-14, E-27, P16: a completion queue overruns: CQ_ERR, every queue pair on it is in Error with QP_FATAL, no
/// completion is made up; others go on.
#[test]
fn s4_14_completion_queue_overrun() {
    let mut host = Host::new(1);
    let on_lost: Vec<_> = (0..3).map(|_| host.create(Transport::Uc)).collect();
    let elsewhere = QpInit { send_cq: CqId(8), recv_cq: CqId(9), ..support::init(Transport::Uc) };
    let other = host.engine.create_qp(&elsewhere).unwrap();
    for qpn in on_lost.iter().chain([&other]) {
        host.bring_up(*qpn, &attr(2, Qpn::new(9)));
    }
    host.cqs = TestCqs { room: Some((SEND_CQ, 2)), ..TestCqs::default() };
    host.post_recv(on_lost[1], 77, 0, 64);
    for wr in 0..4 {
        host.post(on_lost[0], wr, SendOp::Send, 8);
    }
    host.post(other, 9, SendOp::Send, 8);
    host.poll();
    let got: Vec<_> = host.cqs.got.drain(..).map(|(cq, wc)| (cq, wc.wr_id.0, wc.status)).collect();
    // The receive is on another queue, which is whole: it is flushed there.
    assert_eq!(got.iter().filter(|(cq, ..)| *cq == SEND_CQ).count(), 2);
    assert!(got.contains(&(RECV_CQ, 77, WcStatus::WrFlush)));
    assert!(got.contains(&(CqId(8), 9, WcStatus::Success)));
    let events = host.events();
    assert_eq!(events[0], AsyncEvent::CqErr(SEND_CQ));
    assert_eq!(
        events[1..],
        on_lost.iter().map(|qpn| AsyncEvent::QpFatal(*qpn)).collect::<Vec<_>>()
    );
    for qpn in &on_lost {
        assert_eq!(host.state(*qpn), QpState::Error);
    }
    assert_eq!(host.state(other), QpState::Rts);
    assert_eq!(host.engine.counters().cq_overruns, 1);
    // Posted later: gone without a completion, and without a second event.
    host.post(on_lost[1], 5, SendOp::Send, 8);
    host.poll();
    assert_eq!((host.statuses(), host.events()), (vec![], vec![]));
    assert_eq!(host.engine.query_qp(on_lost[1]).unwrap().send_outstanding, 0);
    // RESET makes it new.
    host.cqs.room = None;
    host.go(on_lost[0], QpState::Reset);
    host.bring_up(on_lost[0], &attr(2, Qpn::new(9)));
    host.post(on_lost[0], 6, SendOp::Send, 8);
    host.poll();
    assert_eq!(host.statuses(), [(6, WcStatus::Success)]);
}

/// S2-15, E-23: a UD send that fails leaves the receive side at work, and SQE leads back to RTS.
#[test]
fn s2_15_sqe_receives_and_recovers() {
    let mut pair = Pair::connected(Transport::Ud, |_| {});
    let [a, b] = pair.qpns;
    let handles = [2, 1].map(|last: u8| {
        let side = usize::from(last == 1);
        let av = pmd_roce::qp::attr::AddressVector::to(support::gid(last));
        pair.hosts[side].engine.create_ah(&av).unwrap()
    });
    let post = |host: &mut Host, qpn, wr_id, ah, to, lkey| {
        let mut sge = element(&SendOp::Send, 8);
        sge.lkey = Lkey(lkey);
        let sges = [sge];
        let to = Some(pmd_roce::work::Datagram { ah, qpn: to, qkey: 0x1111 });
        let wr = SendWr { to, ..send_wr(wr_id, SendOp::Send, &sges) };
        host.engine.post_send(qpn, &wr).unwrap();
    };
    post(&mut pair.hosts[0], a, 1, handles[0], b, 0xbad);
    post(&mut pair.hosts[0], a, 2, handles[0], b, support::SRC);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(1, WcStatus::LocProt), (2, WcStatus::WrFlush)]);
    assert_eq!(pair.hosts[0].state(a), QpState::Sqe);
    pair.hosts[0].post_recv(a, 3, 0, 64);
    post(&mut pair.hosts[1], b, 4, handles[1], a, support::SRC);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(3, WcStatus::Success)]);
    pair.hosts[0].go(a, QpState::Rts);
    pair.hosts[1].post_recv(b, 5, 0, 64);
    post(&mut pair.hosts[0], a, 6, handles[0], b, support::SRC);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(6, WcStatus::Success)]);
}

/// S1-02, S1-72: on UC a lost packet loses its message whole, without a word; the others arrive.
#[test]
fn s1_02_uc_loses_messages_whole() {
    let mut pair = Pair::connected(Transport::Uc, |_| {});
    let [a, b] = pair.qpns;
    for (wr, number) in (0..4).zip(0u8..) {
        pair.hosts[1].post_recv(b, wr, 4096 * wr, 4096);
        pair.hosts[0].post(a, 10 + wr, SendOp::SendImm(Imm([0, 0, 0, number])), 3000);
    }
    let mut count = 0;
    pair.run(|_, _| {
        count += 1;
        // The middle of the second message.
        if count == 5 { Fate::Drop } else { Fate::Pass }
    });
    assert_eq!(pair.hosts[0].statuses(), [10, 11, 12, 13].map(|wr| (wr, WcStatus::Success)));
    let got: Vec<_> =
        pair.hosts[1].completions().iter().map(|wc| (wc.wr_id.0, wc.imm().unwrap().0[3])).collect();
    assert_eq!(got, [(0, 0), (1, 2), (2, 3)]);
    assert_eq!(pair.hosts[1].events(), []);
}
