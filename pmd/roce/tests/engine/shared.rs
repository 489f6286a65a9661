//! Shared receive queues, XRC, windows.

use pmd_roce::engine::{DestroyError, SrqInit};
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{CqId, Lkey, Qpn, Rkey, Srqn, WrId, XrcdId};
use pmd_roce::qp::attr::{CreateQpError, QpInit};
use pmd_roce::qp::state::{QpState, Transport};
use pmd_roce::work::{
    Access, Data, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus, WindowBind,
};

use crate::support::{
    self, DST, DST_ADDR, Host, PD, Pair, SHARED, SHARED_ADDR, Window, attr, element, pattern,
    send_wr,
};

fn srq(host: &mut Host, xrc: Option<(XrcdId, CqId)>) -> Srqn {
    host.engine.create_srq(&SrqInit { pd: PD, max_wr: 64, max_sge: 2, xrc }).unwrap()
}

fn post_srq(host: &mut Host, srqn: Srqn, wr_id: u64, at: u64, len: u32) {
    let sges = [Sge { addr: DST_ADDR + at, len, lkey: Lkey(DST) }];
    host.engine.post_srq_recv(srqn, &RecvWr { wr_id: WrId(wr_id), sges: &sges }).unwrap();
}

/// Runs frames between one host and another until both are at rest.
fn exchange(hosts: &mut [Host; 2]) {
    for _ in 0..1000 {
        hosts.iter_mut().for_each(Host::poll);
        if hosts.iter().all(|host| host.out.frames.is_empty()) {
            return;
        }
        for side in [0, 1] {
            while let Some(sent) = hosts[side].out.frames.pop_front() {
                hosts[1 - side].deliver(&sent);
            }
        }
    }
    panic!("no rest");
}

/// S1-47, S1-49: many queue pairs share one pool, first come first served; each finds its message whole. Empty means
/// RNR, and a receive ends it.
#[test]
fn s1_47_queue_pairs_share_a_pool() {
    let mut hosts = [Host::new(1), Host::new(2)];
    let srqn = srq(&mut hosts[1], None);
    let init = QpInit { srq: Some(srqn), ..support::init(Transport::Rc) };
    let pairs: Vec<_> = (0..4)
        .map(|_| (hosts[0].create(Transport::Rc), hosts[1].engine.create_qp(&init).unwrap()))
        .collect();
    for (a, b) in &pairs {
        hosts[0].bring_up(*a, &attr(2, *b));
        hosts[1].bring_up(*b, &attr(1, *a));
    }
    for wr in 0..7 {
        post_srq(&mut hosts[1], srqn, wr, 4000 * wr, 4000);
    }
    for (a, _) in &pairs {
        hosts[0].post(*a, 1, SendOp::Send, 3000);
        hosts[0].post(*a, 2, SendOp::Send, 3000);
    }
    exchange(&mut hosts);
    assert_eq!(hosts[1].engine.query_srq(srqn).unwrap().len, 0);
    assert_eq!(hosts[1].engine.counters().out_of_buffer, 1, "the eighth message");
    let received = hosts[1].completions();
    assert_eq!(received.len(), 7);
    let source: Vec<u8> = (0..3000).map(pattern).collect();
    for wc in &received {
        let at = usize::try_from(wc.wr_id.0).unwrap() * 4000;
        assert_eq!(hosts[1].mem.bytes(DST, at, 3000), source);
    }
    for (_, b) in &pairs {
        assert!(received.iter().filter(|wc| wc.qpn == *b).count() <= 2, "no more than sent");
    }
    post_srq(&mut hosts[1], srqn, 9, 0, 4000);
    let due = hosts[0].engine.poll_timeout().unwrap();
    hosts[0].pass(due);
    exchange(&mut hosts);
    assert_eq!(hosts[1].statuses(), [(9, WcStatus::Success)]);
    assert_eq!(hosts[0].completions().len(), 8);
    assert_eq!(hosts[1].engine.destroy_srq(srqn), Err(DestroyError::InUse(4)));
}

/// S1-48, E-16, P14: armed at 16, the event comes when 16 become 15, once; arming again lets it come again.
#[test]
fn s1_48_limit_fires_below_and_once() {
    let mut hosts = [Host::new(1), Host::new(2)];
    let srqn = srq(&mut hosts[1], None);
    let init = QpInit { srq: Some(srqn), ..support::init(Transport::Rc) };
    let (a, b) = (hosts[0].create(Transport::Rc), hosts[1].engine.create_qp(&init).unwrap());
    hosts[0].bring_up(a, &attr(2, b));
    hosts[1].bring_up(b, &attr(1, a));
    for wr in 0..20 {
        post_srq(&mut hosts[1], srqn, wr, 0, 64);
    }
    assert!(hosts[1].engine.arm_srq_limit(srqn, 65).is_err(), "more than the queue holds");
    hosts[1].engine.arm_srq_limit(srqn, 16).unwrap();
    let send = |hosts: &mut [Host; 2]| {
        hosts[0].post(a, 1, SendOp::Send, 8);
        exchange(hosts);
        hosts[1].events()
    };
    for left in (16..20).rev() {
        assert_eq!(send(&mut hosts), []);
        let view = hosts[1].engine.query_srq(srqn).unwrap();
        assert_eq!((view.len, view.limit), (left, 16));
    }
    assert_eq!(send(&mut hosts), [AsyncEvent::SrqLimitReached(srqn)]);
    let view = hosts[1].engine.query_srq(srqn).unwrap();
    assert_eq!((view.len, view.limit), (15, 0));
    assert_eq!(send(&mut hosts), []);
    hosts[1].engine.arm_srq_limit(srqn, 14).unwrap();
    assert_eq!(send(&mut hosts), [AsyncEvent::SrqLimitReached(srqn)]);
}

/// Only RC and UD take their receives from a shared queue; XRC has a way of its own.
#[test]
fn shared_queues_are_for_rc_and_ud() {
    let mut host = Host::new(1);
    let ordinary = srq(&mut host, None);
    let xrc = srq(&mut host, Some((XrcdId(1), CqId(3))));
    let mut create = |transport, srq, xrcd| {
        host.engine.create_qp(&QpInit { srq, xrcd, ..support::init(transport) }).map(drop)
    };
    for transport in [Transport::Uc, Transport::XrcIni] {
        let refused = create(transport, Some(ordinary), None);
        assert_eq!(refused, Err(CreateQpError::NoSuchSrq(Some(ordinary))));
    }
    assert_eq!(create(Transport::Rc, Some(xrc), None), Err(CreateQpError::NoSuchSrq(Some(xrc))));
    assert_eq!(create(Transport::XrcTgt, None, None), Err(CreateQpError::XrcDomain));
    assert_eq!(create(Transport::Rc, None, Some(XrcdId(1))), Err(CreateQpError::XrcDomain));
    assert_eq!(
        create(Transport::RawPacket, None, None),
        Err(CreateQpError::Transport(Transport::RawPacket))
    );
    create(Transport::Ud, Some(ordinary), None).unwrap();
    create(Transport::XrcTgt, None, Some(XrcdId(1))).unwrap();
}

/// S1-04, S1-07, E-09: one initiator and one target; each message names the queue it is for, and completes there.
#[test]
fn s1_04_one_target_delivers_to_many_queues() {
    let mut hosts = [Host::new(1), Host::new(2)];
    let domain = XrcdId(5);
    let queues = [10, 11].map(|cq| srq(&mut hosts[1], Some((domain, CqId(cq)))));
    let foreign = srq(&mut hosts[1], Some((XrcdId(6), CqId(12))));
    let target = QpInit { xrcd: Some(domain), ..support::init(Transport::XrcTgt) };
    let (a, b) = (hosts[0].create(Transport::XrcIni), hosts[1].engine.create_qp(&target).unwrap());
    hosts[0].bring_up(a, &attr(2, b));
    hosts[1].bring_up(b, &attr(1, a));
    for (at, srqn) in (0..).zip(queues) {
        post_srq(&mut hosts[1], srqn, 100 + at, 8192 * at, 4096);
        post_srq(&mut hosts[1], srqn, 200 + at, 8192 * at + 4096, 4096);
    }
    let send = |hosts: &mut [Host; 2], wr_id, op, len, srqn| {
        let sges = [element(&op, len)];
        let wr = SendWr { srqn: Some(srqn), ..send_wr(wr_id, op, &sges) };
        hosts[0].engine.post_send(a, &wr).unwrap();
    };
    send(&mut hosts, 1, SendOp::Send, 3000, queues[1]);
    send(&mut hosts, 2, SendOp::Send, 10, queues[0]);
    send(&mut hosts, 3, SendOp::Read(support::shared(0)), 2000, queues[0]);
    send(&mut hosts, 4, SendOp::Send, 20, queues[1]);
    exchange(&mut hosts);
    assert_eq!(hosts[0].statuses(), [1, 2, 3, 4].map(|wr| (wr, WcStatus::Success)));
    let got: Vec<_> = hosts[1].cqs.got.drain(..).map(|(cq, wc)| (cq.0, wc.wr_id.0)).collect();
    assert_eq!(got, [(11, 101), (10, 100), (11, 201)]);
    let source: Vec<u8> = (0..3000).map(pattern).collect();
    assert_eq!(hosts[1].mem.bytes(DST, 8192, 3000), source);
    // A queue of another domain is none of this target's.
    send(&mut hosts, 5, SendOp::Send, 20, foreign);
    exchange(&mut hosts);
    assert_eq!(hosts[0].statuses(), [(5, WcStatus::RemInvReq)]);
    assert_eq!(hosts[1].events(), [AsyncEvent::QpReqErr(b), AsyncEvent::LastWqeReached(b)]);
}

/// Windows: bound on the send queue before the SEND that announces them, good for one queue pair only, gone after the
/// peer's SEND with invalidate.
#[test]
fn a_window_lives_from_bind_to_invalidate() {
    let mut pair = Pair::rc();
    let [a, b] = pair.qpns;
    pair.hosts[1].mem.windows.push(Window { key: 0x40_00, pd: PD, bound: None });
    let bind = WindowBind {
        window: Rkey(0x40_00),
        new_key: Rkey(0x40_07),
        region: Lkey(SHARED),
        addr: SHARED_ADDR + 512,
        len: 1024,
        access: Access::REMOTE_WRITE,
    };
    let wr = SendWr { data: Data::Sges(&[]), ..send_wr(1, SendOp::BindWindow(bind), &[]) };
    pair.hosts[1].engine.post_send(b, &wr).unwrap();
    pair.hosts[0].post_recv(a, 2, 0, 64);
    pair.hosts[1].post(b, 3, SendOp::Send, 8);
    pair.settle();
    assert_eq!(pair.hosts[1].statuses(), [(1, WcStatus::Success), (3, WcStatus::Success)]);
    let window = |at: u64| RemoteAddr { addr: SHARED_ADDR + 512 + at, rkey: Rkey(0x40_07) };
    pair.hosts[0].post(a, 4, SendOp::Write(window(0)), 1024);
    pair.hosts[1].post_recv(b, 5, 0, 64);
    pair.hosts[0].post(a, 6, SendOp::SendInvalidate(Rkey(0x40_07)), 8);
    pair.settle();
    let source: Vec<u8> = (0..1024).map(pattern).collect();
    assert_eq!(pair.hosts[1].mem.bytes(SHARED, 512, 1024), source);
    assert_eq!(pair.hosts[1].completions()[0].invalidated(), Some(Rkey(0x40_07)));
    pair.hosts[0].completions();
    pair.hosts[0].post(a, 7, SendOp::Write(window(0)), 8);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(7, WcStatus::RemAccess)]);
}

/// S1-11, E-11: a thousand connections, one of them at work, end to end on one engine each.
#[test]
fn a_thousand_idle_queue_pairs() {
    let mut hosts = [1, 2].map(|last| Host::with(last, |config| config.max_qps = 1000));
    let mut init = support::init(Transport::Rc);
    (init.cap.max_send_wr, init.cap.max_recv_wr, init.cap.max_inline_data) = (2, 2, 0);
    let qpns: Vec<_> = (0..1000)
        .map(|_| [0, 1].map(|side: usize| hosts[side].engine.create_qp(&init).unwrap()))
        .collect();
    for [a, b] in &qpns {
        hosts[0].bring_up(*a, &attr(2, *b));
        hosts[1].bring_up(*b, &attr(1, *a));
    }
    assert_eq!(hosts[0].engine.create_qp(&init), Err(CreateQpError::TooMany { max: 1000 }));
    let [a, b] = qpns[567];
    hosts[1].post_recv(b, 1, 0, 64);
    hosts[0].post(a, 2, SendOp::Send, 64);
    exchange(&mut hosts);
    assert_eq!(hosts[0].statuses(), [(2, WcStatus::Success)]);
    assert_eq!(hosts[1].completions()[0].qpn, b);
    let memory: usize =
        qpns.iter().map(|[a, _]| hosts[0].engine.query_qp(*a).unwrap().memory_bytes).sum();
    assert!((1_000_000..4_000_000).contains(&memory), "{memory} bytes for 1000 of the smallest");
    let distinct: std::collections::BTreeSet<Qpn> = qpns.iter().flatten().copied().collect();
    assert_eq!(distinct.len(), 2000, "numbers are unique across engines of a host");
}

/// An unsignalled request leaves no completion when it succeeds, unless the queue pair was created to signal all.
#[test]
fn signalling() {
    for all in [false, true] {
        let mut hosts = [Host::new(1), Host::new(2)];
        let init = QpInit { sq_sig_all: all, ..support::init(Transport::Rc) };
        let qpns = [0, 1].map(|side: usize| hosts[side].engine.create_qp(&init).unwrap());
        for side in [0, 1] {
            let last = if side == 0 { 2 } else { 1 };
            hosts[side].bring_up(qpns[side], &attr(last, qpns[1 - side]));
        }
        let sges = [element(&SendOp::Send, 8)];
        let op = SendOp::Write(support::shared(0));
        let wr = SendWr { flags: SendFlags::empty(), ..send_wr(1, op, &sges) };
        hosts[0].engine.post_send(qpns[0], &wr).unwrap();
        hosts[0].post(qpns[0], 2, op, 8);
        exchange(&mut hosts);
        let expected: &[u64] = if all { &[1, 2] } else { &[2] };
        let got: Vec<_> = hosts[0].statuses().iter().map(|(wr, _)| *wr).collect();
        assert_eq!(got, expected);
        assert_eq!(hosts[0].state(qpns[0]), QpState::Rts);
    }
}
