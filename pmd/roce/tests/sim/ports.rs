//! Ports that go down and come up, and addresses that move: no queue pair fails by that alone.

use core::time::Duration;
use std::net::Ipv4Addr;

use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::Gid;
use pmd_roce::port::PortState;
use pmd_roce::qp::attr::{AddressVector, ModifyQpError, QpAttr};
use pmd_roce::qp::state::{AttrMask, QpState};
use pmd_roce::work::{Datagram, SendFlags, SendOp, WcStatus};
use pmd_sim::{Path, QpPlan, World};

use crate::harness::{End, PATHS, Pair, pattern};

const OK: WcStatus = WcStatus::Success;
const NONE: Gid = Gid([0; 16]);

fn gid(last: u8) -> Gid {
    Ipv4Addr::new(10, 0, 9, last).into()
}

/// Takes `end` from RESET to RTR toward `peer`, by this address vector.
fn aim(world: &mut World, end: End, peer: End, av: AddressVector) -> Result<(), ModifyQpError> {
    world.to_init(end.side)?;
    let (attr, mask) = end.side.rtr_attr(av, peer.side.qpn, peer.side.plan.sq_psn);
    world.modify_qp(end.host(), end.side.qpn, &attr, mask)
}

/// Gives a connection another address vector, the way the state table has for it: SQD, and back.
fn aim_again(world: &mut World, end: End, av: AddressVector) {
    end.set_state(world, QpState::Sqd).unwrap();
    world.run_for(Duration::from_millis(1));
    let attr = QpAttr { av, ..QpAttr::new(QpState::Sqd) };
    world.modify_qp(end.host(), end.side.qpn, &attr, AttrMask::AV).unwrap();
    end.set_state(world, QpState::Rts).unwrap();
}

/// S3-17, S0-49, P22: a port goes down under traffic and comes up again within the retry budget. The
/// events say so, no queue pair notices beyond its counters, and the same run takes as long as before.
/// Memory needs no port.
#[test]
fn s3_17_a_port_that_comes_back_fails_nothing() {
    for path in PATHS {
        let mut pair = Pair::new(1, path, QpPlan::rc());
        let mut took = Vec::new();
        for round in 0..3 {
            let start = pair.world.now();
            let Pair { world, a, b, .. } = &mut pair;
            for id in 0..50 {
                b.recv(world, id, 0, 4096);
                a.post(world, id, SendOp::Send, 0, 4096);
            }
            if round == 1 {
                world.run_for(Duration::from_micros(1));
                world.set_port(a.host(), false);
                world.set_port(a.host(), false);
                assert_eq!(world.engine(a.host()).port_state(1), Some(PortState::Down));
                assert_eq!(a.events(world), [AsyncEvent::PortErr(1)], "{path:?}");
                world.run_for(Duration::from_millis(200));
                assert_eq!((a.state(world), b.state(world)), (QpState::Rts, QpState::Rts));
                let done = a.poll(world).len();
                assert_eq!(done == 50, path == Path::Shared, "{path:?}: {done}");
                world.set_port(a.host(), true);
                assert_eq!(a.events(world), [AsyncEvent::PortActive(1)]);
                let rest = a.wait(world, 50 - done);
                assert!(rest.iter().all(|wc| wc.status == OK));
            } else {
                assert!(a.wait(world, 50).iter().all(|wc| wc.status == OK));
            }
            assert!(b.wait(world, 50).iter().all(|wc| wc.status == OK));
            took.push(world.now().since(start));
            // What was sent once too often is still on its way.
            world.run_for(Duration::from_millis(1));
        }
        let counters = pair.a.counters(&pair.world);
        assert_eq!(counters.link_downed, 1);
        assert_eq!(counters.port_xmit_discards > 0, path == Path::Packets);
        assert_eq!(counters.local_ack_timeout_err > 0, path == Path::Packets);
        assert!(took[2].mul_f64(0.9) < took[0], "S0-49: {path:?} {took:?}");
    }
}

/// P22: the port goes down, the address of index 3 moves to 5, the port comes up. What lived through it
/// goes on with the address that it has. What died is rebuilt by RESET: its old index names nothing any
/// more, and the address is found at its new one.
#[test]
fn p22_an_address_moves_while_the_port_is_down() {
    let mut world = World::new(2);
    let ours = gid(1);
    let table = |at: usize| {
        let mut table = vec![NONE; 6];
        (table[0], table[at]) = (gid(100), ours);
        table
    };
    let a = world.add_host_with("a", |config| config.gids = table(3));
    let b = world.add_host_with("b", |config| config.gids = vec![gid(2)]);
    let hasty = QpPlan { timeout: 8, retry_cnt: 3, ..QpPlan::rc() };
    let mut ends = [QpPlan::rc(), hasty]
        .map(|plan| [End::new(&mut world, a, plan), End::new(&mut world, b, QpPlan::rc())]);
    let there = AddressVector { sgid_index: 3, ..AddressVector::to(gid(2)) };
    let back = AddressVector::to(ours);
    for [near, far] in ends {
        aim(&mut world, near, far, there).unwrap();
        aim(&mut world, far, near, back).unwrap();
        world.to_rts(near.side).unwrap();
        world.to_rts(far.side).unwrap();
    }
    world.set_port(a, false);
    for [near, far] in ends {
        near.write(&world, 0, &pattern(7, 3000));
        near.post(&mut world, 1, SendOp::Write(far.mr.at(0)), 0, 3000);
    }
    let [[patient, _], [hasty, _]] = ends;
    world.run_for(Duration::from_millis(100));
    assert_eq!(hasty.statuses(&mut world, 1), [(1, WcStatus::RetryExc)]);
    assert_eq!(patient.state(&world), QpState::Rts, "PORT_ERR alone fails nothing");
    world.set_gids(a, &table(5)).unwrap();
    world.set_gids(a, &table(5)).unwrap();
    world.set_port(a, true);
    let events = patient.events(&mut world);
    let expected = [AsyncEvent::PortErr(1), AsyncEvent::GidChange(1), AsyncEvent::PortActive(1)];
    assert_eq!(events, expected);
    assert_eq!(patient.statuses(&mut world, 1), [(1, OK)], "with the address that it has");
    for end in &mut ends[1] {
        end.side.plan.sq_psn = end.side.plan.sq_psn.plus(0x1000);
        end.set_state(&mut world, QpState::Reset).unwrap();
    }
    let [hasty, far] = ends[1];
    let refused = aim(&mut world, hasty, far, there).unwrap_err();
    assert!(refused.to_string().contains("vacant"), "{refused}");
    hasty.set_state(&mut world, QpState::Reset).unwrap();
    let (port, sgid_index) = world.engine(a).find_gid(ours).unwrap();
    assert_eq!((port, sgid_index), (1, 5));
    aim(&mut world, hasty, far, AddressVector { sgid_index, ..there }).unwrap();
    aim(&mut world, far, hasty, back).unwrap();
    world.to_rts(hasty.side).unwrap();
    world.to_rts(far.side).unwrap();
    hasty.post(&mut world, 2, SendOp::Write(far.mr.at(0)), 0, 3000);
    assert_eq!(hasty.statuses(&mut world, 1), [(2, OK)]);
    assert_eq!(far.bytes(&world, 0, 3000), pattern(7, 3000));
}

/// P22, S2-23: an address is replaced by another one. A connection that is given the new one by SQD to
/// SQD, at both ends, goes on where it was: no PSN is skipped and no request is lost.
#[test]
fn p22_a_living_connection_gets_another_address() {
    let mut pair = Pair::new(3, Path::Packets, QpPlan::rc());
    let Pair { world, a, b, .. } = &mut pair;
    for id in 0..4 {
        b.recv(world, 50 + id, 4096 * id, 4096);
    }
    a.write(world, 0, &pattern(3, 3000));
    a.post(world, 1, SendOp::Send, 0, 3000);
    assert_eq!(a.statuses(world, 1), [(1, OK)]);
    let there = AddressVector::to(world.gid(b.host()));
    world.set_gids(a.host(), &[gid(1)]).unwrap();
    assert_eq!(a.events(world), [AsyncEvent::GidChange(1)]);
    aim_again(world, *b, AddressVector::to(gid(1)));
    a.set_state(world, QpState::Sqd).unwrap();
    a.post(world, 2, SendOp::Send, 0, 3000);
    aim_again(world, *a, there);
    assert_eq!(a.statuses(world, 1), [(2, OK)]);
    b.post(world, 9, SendOp::Write(a.mr.at(8192)), 0, 3000);
    assert_eq!(b.statuses(world, 3), [(50, OK), (51, OK), (9, OK)]);
    assert_eq!(b.bytes(world, 4096, 3000), pattern(3, 3000));
    let (near, far) = (a.counters(world), b.counters(world));
    assert_eq!((near.retransmits, far.out_of_sequence, far.duplicate_request), (0, 0, 0));
}

/// An address handle keeps the source that its index meant when it was made; datagrams are taken for the
/// addresses that the port has now.
#[test]
fn p22_datagrams_and_a_new_table() {
    let mut world = World::new(4);
    let (a, b) = (world.add_host("a"), world.add_host("b"));
    let plan = QpPlan { qkey: 5, ..QpPlan::of(pmd_roce::qp::state::Transport::Ud) };
    let [near, far] = [a, b].map(|host| {
        let end = End::new(&mut world, host, plan);
        world.to_init(end.side).unwrap();
        for state in [QpState::Rtr, QpState::Rts] {
            let mask = pmd_roce::qp::state::masks(plan.transport, end.state(&world), state);
            let attr = QpAttr::new(state);
            world.modify_qp(host, end.side.qpn, &attr, mask.unwrap().required).unwrap();
        }
        end
    });
    let (old, to) = (world.gid(a), world.gid(b));
    let ah = world.create_ah(a, &AddressVector::to(to)).unwrap();
    world.set_gids(a, &[]).unwrap();
    world.set_gids(b, &[gid(2)]).unwrap();
    world.record_frames();
    let send = |world: &mut World, ah| {
        let data = pmd_roce::work::Data::Sges(&[]);
        let to = Some(Datagram { ah, qpn: far.side.qpn, qkey: 5 });
        near.post_wr(world, 1, SendOp::Send, data, SendFlags::SIGNALED, to).unwrap();
        assert_eq!(near.statuses(world, 1), [(1, OK)]);
        world.run_for(Duration::from_micros(50));
    };
    far.recv(&mut world, 50, 0, 64);
    send(&mut world, ah);
    assert_eq!(world.frames()[0].flow.src, old);
    assert_eq!(far.poll(&mut world), [], "the network knows nobody by that address");
    assert!(world.create_ah(a, &AddressVector::to(gid(2))).is_err(), "there is no address");
    world.set_gids(a, &[gid(1)]).unwrap();
    let ah = world.create_ah(a, &AddressVector::to(gid(2))).unwrap();
    send(&mut world, ah);
    assert_eq!(world.frames()[1].flow.src, gid(1));
    assert_eq!(far.statuses(&mut world, 1), [(50, OK)]);
}
