//! UD: address handles, Q_Keys, the GRH area, multicast groups.

use pmd_verbs::roce::engine::DestroyError;
use pmd_verbs::roce::ids::{Gid, Qpn};
use pmd_verbs::roce::qp::attr::AddressVector;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::roce::wire::grh::Grh;
use pmd_verbs::{
    Ah, Data, Imm, JoinGroupError, Qp, Receives, Sends, Ud, WcOpcode, WcStatus, WireChoice,
    WorkRequest,
};

use crate::support::{INTO, QKEY, World, ends, pattern};

on_every_wire!(
    s1_10_one_to_one_by_address_handles,
    b1_a_wrong_qkey_leaves_no_completion,
    b1_no_room_for_the_grh,
);

/// GRH bytes before every datagram.
const GRH: u32 = 40;

fn handle(world: &World, side: usize, peer: Qpn) -> Ah {
    let world_side = &world.sides[side];
    let av = world_side.cx.path_to(world_side.cx.device().gid(), peer).unwrap();
    world_side.pd.create_ah(&av).unwrap()
}

/// S1-03, S1-10, S1-40, S1-46: two queue pairs talk one to one, each by an address handle; the
/// length and the buffer include 40 bytes that tell where the datagram came from.
fn s1_10_one_to_one_by_address_handles(wire: WireChoice) {
    let world = World::new(wire);
    let qps = world.pair::<Ud>(|_, _| {});
    let handles = [0, 1].map(|side| handle(&world, side, qps[1 - side].number()));
    for round in 0..10 {
        let (from, to) = (round % 2, 1 - round % 2);
        let bytes = pattern(100 + round, round);
        world.sides[to].receive(&qps[to], 1, 0, 1000);
        let imm = (round > 4).then_some(Imm([9, 8, 7, 6]));
        let data = Data::Inline(&[&bytes]);
        let wr = match imm {
            None => WorkRequest::send_to(data, &handles[from], qps[to].number(), QKEY),
            Some(imm) => {
                WorkRequest::send_to_imm(data, &handles[from], qps[to].number(), QKEY, imm)
            }
        };
        qps[from].post_send(&wr.id(2)).unwrap();
        let mut wanted = [1, 1];
        wanted[from] = 1;
        let got = world.complete(wanted);
        assert_eq!(ends(&got[from]), [(2, WcStatus::Success)]);
        let received = got[to][0];
        assert_eq!((received.status, received.opcode), (WcStatus::Success, WcOpcode::Recv));
        assert_eq!(received.byte_len as usize, 40 + bytes.len());
        assert_eq!((received.src_qpn, received.grh()), (qps[from].number(), true));
        assert_eq!(received.imm(), imm);
        let area = world.sides[to].received(0, 40);
        let grh = Grh::parse(area.first_chunk::<40>().unwrap()).unwrap();
        let gid = world.sides[0].cx.device().gid();
        assert_eq!((grh.src, grh.dst), (gid, gid));
        assert_eq!(world.sides[to].received(40, bytes.len()), bytes);
    }
}

/// S2-09, B1, S1-41, S1-64, S2-10: a wrong Q_Key is dropped without a completion and counted; the right one
/// then arrives in the receive that is still there. S1-42: the top bit stands for the own Q_Key.
fn b1_a_wrong_qkey_leaves_no_completion(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Ud>(|side, attr| attr.qkey = [0x1111, 0x2222][side]);
    let to_b = handle(&world, 0, b.number());
    world.sides[1].receive(&b, 1, 0, 1000);
    let send = |wr: u64, qkey: u32| {
        let data = Data::Inline(&[b"datagram"]);
        a.post_send(&WorkRequest::send_to(data, &to_b, b.number(), qkey).id(wr)).unwrap();
    };
    send(2, 0x1111);
    let [sent, _] = world.complete([1, 0]);
    assert_eq!(ends(&sent), [(2, WcStatus::Success)], "a datagram is sent, that is all");
    world.until(|| world.sides[1].counter("qkey_viol") > 0);
    world.nothing_completes();
    // With the top bit set, a's own Q_Key goes out, which is wrong as well.
    send(3, 0x8000_2222);
    world.until(|| world.sides[1].counter("qkey_viol") > 1);
    assert_eq!(world.sides[1].counter("qkey_viol"), 2);
    send(4, 0x2222);
    let [sent, received] = world.complete([2, 1]);
    assert_eq!(ends(&sent), [(3, WcStatus::Success), (4, WcStatus::Success)]);
    assert_eq!(ends(&received), [(1, WcStatus::Success)]);
    assert_eq!(world.sides[1].counter("qkey_viol"), 2);
    // Both keys can be read back, to be compared.
    assert_eq!([&a, &b].map(|qp| qp.query().attr.qkey), [0x1111, 0x2222]);
}

/// B1, S1-46: a receive of the payload's size has no room for the 40 bytes: it ends with LOC_LEN,
/// and the queue pair goes on.
fn b1_no_room_for_the_grh(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Ud>(|_, _| {});
    let to_b = handle(&world, 0, b.number());
    world.sides[1].receive(&b, 1, 0, 4096);
    world.sides[1].receive(&b, 2, 8192, 4096 + GRH);
    let sges = [world.sides[0].sge(0, 4096)];
    for wr in [3, 4] {
        let wr = WorkRequest::send_to(Data::Sges(&sges), &to_b, b.number(), QKEY).id(wr);
        a.post_send(&wr).unwrap();
    }
    let [sent, received] = world.complete([2, 2]);
    assert_eq!(ends(&sent), [(3, WcStatus::Success), (4, WcStatus::Success)]);
    assert_eq!(ends(&received), [(1, WcStatus::LocLen), (2, WcStatus::Success)]);
    assert_eq!(received[1].byte_len, 4096 + GRH);
    assert_eq!(b.state(), QpState::Rts);
}

/// A group that no other run of this test uses at the same time.
fn group() -> Gid {
    let [a, b, ..] = std::process::id().to_le_bytes();
    Gid::from(std::net::Ipv4Addr::new(239, 77, a, b))
}

fn receive_all<T: Receives + Sends>(world: &World, qps: &[&Qp<T>]) {
    for (wr, qp) in (0..).zip(qps) {
        world.sides[1].receive(qp, wr, 1024 * wr, 1024);
    }
}

/// S1-43, B1: a datagram to a group reaches each member once, attached twice or not, and nobody
/// else; a member cannot be destroyed before it leaves; who left hears nothing.
#[test]
fn s1_43_a_group_reaches_its_members_once() {
    let world = World::new(WireChoice::Udp);
    let side = &world.sides[1];
    let [a, mut first] = world.pair::<Ud>(|_, _| {});
    let second = side.qp::<Ud>(|_| {});
    let outsider = side.qp::<Ud>(|_| {});
    for qp in [&second, &outsider] {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            crate::support::step(qp, &world.attr(1, a.number()), to);
        }
    }
    let to_group = world.sides[0].pd.create_ah(&AddressVector::to(group())).unwrap();
    let send = || {
        let data = Data::Inline(&[b"to all"]);
        let wr = WorkRequest::send_to(data, &to_group, Qpn::MULTICAST, QKEY).id(9);
        a.post_send(&wr).unwrap();
    };
    for qp in [&first, &second] {
        qp.attach_multicast(group()).unwrap();
        qp.attach_multicast(group()).unwrap();
    }
    receive_all(&world, &[&first, &second, &outsider]);
    send();
    let [_, received] = world.complete([1, 2]);
    assert_eq!(ends(&received), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    for at in [0, 1024] {
        assert_eq!(side.received(at + u64::from(GRH), 6), b"to all");
    }
    world.nothing_completes();

    // B1: a member is not destroyed, and still a member afterwards.
    let refused = first.destroy().unwrap_err();
    assert_eq!(refused.error, DestroyError::Attached(1).into());
    assert!(refused.to_string().contains("detach it first"), "{refused}");
    first = refused.object;
    receive_all(&world, &[&first, &second]);
    send();
    let [_, received] = world.complete([1, 2]);
    assert_eq!(ends(&received), [(0, WcStatus::Success), (1, WcStatus::Success)]);

    // Who left hears nothing, the other one still does.
    first.detach_multicast(group()).unwrap();
    assert!(matches!(first.detach_multicast(group()), Err(JoinGroupError::Device(_))));
    receive_all(&world, &[&first, &second]);
    send();
    let [_, received] = world.complete([1, 1]);
    assert_eq!(ends(&received), [(1, WcStatus::Success)]);
    world.nothing_completes();
    let number = first.number();
    first.destroy().unwrap();
    assert!(side.cx.query_qp(number).is_none());

    // With the last member the wire leaves, and by dropping a member, it can be joined again.
    drop(second);
    let again = side.qp::<Ud>(|_| {});
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        crate::support::step(&again, &world.attr(1, a.number()), to);
    }
    send();
    world.complete([1, 0]);
    world.nothing_completes();
    again.attach_multicast(group()).unwrap();
    side.receive(&again, 7, 0, 1024);
    send();
    let [_, received] = world.complete([1, 1]);
    assert_eq!(ends(&received), [(7, WcStatus::Success)]);
    assert_eq!(side.received(u64::from(GRH), 6), b"to all");
    assert_eq!(side.memory.eq_at(INTO + 46, &[0; 8]), Ok(true), "nothing behind the datagram");
}

/// Shared memory has no groups, and says so.
#[test]
fn s1_43_shared_memory_has_no_groups() {
    let world = World::new(WireChoice::Shm);
    let qp = world.sides[0].qp::<Ud>(|_| {});
    let error = qp.attach_multicast(group()).unwrap_err().to_string();
    assert!(error.contains("no multicast: use a udp wire"), "{error}");
    qp.destroy().unwrap();
}
