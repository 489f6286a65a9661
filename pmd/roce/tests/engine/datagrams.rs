//! UD: address handles, Q_Keys, the GRH area, multicast.

use pmd_roce::engine::{DestroyError, PostSendError, ResourceError};
use pmd_roce::ids::{Gid, Qpn};
use pmd_roce::qp::attr::AddressVector;
use pmd_roce::qp::state::Transport;
use pmd_roce::wire::grh::Grh;
use pmd_roce::work::{AhId, Datagram, SendOp, WcStatus};

use crate::support::{self, DST, Host, Pair, Sent, attr, element, gid, group, pattern, send_wr};

fn ud_pair() -> Pair {
    Pair::connected(Transport::Ud, |_| {})
}

fn post(host: &mut Host, qpn: Qpn, wr_id: u64, to: Datagram, len: u32) {
    let sges = [element(&SendOp::Send, len)];
    let mut wr = send_wr(wr_id, SendOp::Send, &sges);
    wr.to = Some(to);
    host.engine.post_send(qpn, &wr).unwrap();
}

fn handle(host: &mut Host, dgid: Gid) -> AhId {
    host.engine.create_ah(&AddressVector::to(dgid)).unwrap()
}

/// S1-03, S1-10, S1-40, S1-46: one queue pair talks to another by address handle; 40 bytes tell where the datagram came
/// from, and the length includes them.
#[test]
fn s1_46_grh_area_tells_the_sender() {
    let mut pair = ud_pair();
    let [a, b] = pair.qpns;
    pair.hosts[1].post_recv(b, 1, 0, 4136);
    let ah = handle(&mut pair.hosts[0], gid(2));
    post(&mut pair.hosts[0], a, 2, Datagram { ah, qpn: b, qkey: 0x1111 }, 4096);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::Success)]);
    let wc = pair.hosts[1].completions()[0];
    assert_eq!((wc.status, wc.byte_len, wc.src_qpn, wc.grh()), (WcStatus::Success, 4136, a, true));
    let area = pair.hosts[1].mem.bytes(DST, 0, 40).first_chunk::<40>().unwrap();
    let grh = Grh::parse(area).unwrap();
    assert_eq!((grh.src, grh.dst, grh.hop_limit), (gid(1), gid(2), 64));
    // Headers 12 + 8, payload, ICRC, and UDP's own 8.
    assert_eq!(grh.udp_len, 8 + 20 + 4096 + 4);
    let payload: Vec<u8> = (0..4096).map(pattern).collect();
    assert_eq!(pair.hosts[1].mem.bytes(DST, 40, 4096), payload);
}

/// S1-41, S1-64, S1-71, S2-10, B1: a wrong Q_Key is dropped without a completion, and counted.
#[test]
fn s1_64_wrong_qkey_is_dropped_and_counted() {
    let mut pair = ud_pair();
    let [a, b] = pair.qpns;
    pair.hosts[1].post_recv(b, 1, 0, 1000);
    let ah = handle(&mut pair.hosts[0], gid(2));
    post(&mut pair.hosts[0], a, 2, Datagram { ah, qpn: b, qkey: 0x2222 }, 8);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::Success)], "the sender cannot know");
    assert_eq!(pair.hosts[1].statuses(), []);
    assert_eq!(pair.hosts[1].engine.counters().qkey_viol, 1);
    // S1-42: the top bit stands for the queue pair's own Q_Key.
    post(&mut pair.hosts[0], a, 3, Datagram { ah, qpn: b, qkey: 0xffff_0000 }, 8);
    pair.settle();
    assert_eq!(pair.hosts[1].statuses(), [(1, WcStatus::Success)]);
}

/// S1-45, E-15, B1: what exceeds the MTU is refused at post; a receive without room for the 40 bytes ends with LOC_LEN,
/// and the queue pair goes on.
#[test]
fn s1_45_length_limits() {
    let mut pair = ud_pair();
    let [a, b] = pair.qpns;
    let ah = handle(&mut pair.hosts[0], gid(2));
    let sges = [element(&SendOp::Send, 4097)];
    let mut wr = send_wr(1, SendOp::Send, &sges);
    wr.to = Some(Datagram { ah, qpn: b, qkey: 0x1111 });
    let refused = pair.hosts[0].engine.post_send(a, &wr);
    assert_eq!(refused, Err(PostSendError::TooLong { len: 4097, max: 4096 }));
    pair.hosts[1].post_recv(b, 2, 0, 4096);
    pair.hosts[1].post_recv(b, 3, 8192, 4136);
    for wr in [4, 5] {
        post(&mut pair.hosts[0], a, wr, Datagram { ah, qpn: b, qkey: 0x1111 }, 4096);
    }
    pair.settle();
    let statuses = pair.hosts[1].statuses();
    assert_eq!(statuses, [(2, WcStatus::LocLen), (3, WcStatus::Success)]);
}

/// S1-08, S1-63: what UD and UC lack is refused at post and never reaches the wire.
#[test]
fn s1_08_operations_a_transport_lacks() {
    let at = support::shared(0);
    let refused = |transport, op| {
        let mut host = Host::new(1);
        let qpn = host.create(transport);
        host.bring_up(qpn, &attr(2, Qpn::new(9)));
        let sges = [element(&op, 8)];
        let outcome = host.engine.post_send(qpn, &send_wr(1, op, &sges));
        let refused = matches!(outcome, Err(PostSendError::Operation(_)));
        host.poll();
        assert_eq!(host.out.frames.is_empty(), refused);
        refused
    };
    let read = SendOp::Read(at);
    let add = SendOp::FetchAdd { at, add: 1 };
    let swap = SendOp::CompareSwap { at, compare: 0, swap: 1 };
    for op in [read, add, swap] {
        assert!(refused(Transport::Uc, op) && refused(Transport::Ud, op), "{op:?}");
    }
    assert!(refused(Transport::Ud, SendOp::Write(at)));
    assert!(!refused(Transport::Uc, SendOp::Write(at)));
    assert!(!refused(Transport::Rc, swap));
}

/// A datagram names a handle that exists.
#[test]
fn datagrams_need_a_destination() {
    let mut pair = ud_pair();
    let a = pair.qpns[0];
    let sges = [element(&SendOp::Send, 8)];
    let mut wr = send_wr(1, SendOp::Send, &sges);
    let destination = |outcome| matches!(outcome, Err(PostSendError::Destination(_)));
    assert!(destination(pair.hosts[0].engine.post_send(a, &wr)));
    wr.to = Some(Datagram { ah: AhId(3), qpn: Qpn::new(9), qkey: 0 });
    assert!(destination(pair.hosts[0].engine.post_send(a, &wr)));
    let ah = handle(&mut pair.hosts[0], gid(2));
    wr.to = Some(Datagram { ah, qpn: Qpn::new(9), qkey: 0 });
    pair.hosts[0].engine.post_send(a, &wr).unwrap();
    pair.hosts[0].engine.destroy_ah(ah).unwrap();
    assert_eq!(pair.hosts[0].engine.destroy_ah(ah), Err(DestroyError::NotFound));
    pair.hosts[0].poll();
    assert_eq!(pair.hosts[0].statuses(), [(1, WcStatus::LocQpOp)], "destroyed before its turn");
}

/// S1-43, B1: a group's datagram goes to queue pair 0xffffff and to every member once, attached twice or not; a member
/// cannot be destroyed; who left hears nothing.
#[test]
fn s1_43_multicast_reaches_every_member_once() {
    let mut sender = Host::new(1);
    let from = sender.create(Transport::Ud);
    sender.bring_up(from, &attr(2, Qpn::new(0)));
    let ah = handle(&mut sender, group(7));
    let mut host = Host::new(2);
    let members: Vec<_> = (0..3).map(|_| host.create(Transport::Ud)).collect();
    for (at, qpn) in (0..).zip(&members) {
        host.bring_up(*qpn, &attr(1, Qpn::new(0)));
        host.post_recv(*qpn, at, 1000 * at, 1000);
    }
    for qpn in [members[0], members[0], members[1]] {
        host.engine.attach_multicast(qpn, group(7)).unwrap();
    }
    let send = |sender: &mut Host| -> Sent {
        post(sender, from, 9, Datagram { ah, qpn: Qpn::MULTICAST, qkey: 0x1111 }, 16);
        sender.poll();
        sender.out.frames.pop_front().unwrap()
    };
    let sent = send(&mut sender);
    assert_eq!(sent.flow.dst, group(7));
    assert_eq!(sent.packet().headers.bth.dest_qp.value(), 0xff_ffff);
    assert_eq!(host.deliver(&sent).dropped, None);
    assert_eq!(host.statuses(), [(0, WcStatus::Success), (1, WcStatus::Success)]);

    assert_eq!(host.engine.destroy_qp(members[0]), Err(DestroyError::Attached(1)));
    for qpn in [members[0], members[1]] {
        host.engine.detach_multicast(qpn, group(7)).unwrap();
    }
    assert_eq!(host.engine.detach_multicast(members[0], group(7)), Err(ResourceError::NotFound));
    let outcome = host.deliver(&send(&mut sender));
    assert_eq!(outcome.dropped.map(|reason| reason.name()), Some("unknown_qp"));
    host.engine.destroy_qp(members[0]).unwrap();
}

/// S1-01, S1-09: no multicast on a connection.
#[test]
fn s1_01_multicast_is_for_ud() {
    let mut host = Host::new(1);
    let qpn = host.create(Transport::Rc);
    let error = host.engine.attach_multicast(qpn, group(1)).unwrap_err();
    assert!(error.to_string().contains("multicast is for UD only"), "{error}");
}
