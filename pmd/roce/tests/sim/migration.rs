//! Automatic path migration: two hosts with two ports each, and a connection that outlives one of them.

use core::time::Duration;
use std::net::Ipv4Addr;

use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::Gid;
use pmd_roce::qp::attr::{AddressVector, ModifyQpError, PathMigState, QpAttr};
use pmd_roce::qp::state::AttrMask;
use pmd_roce::wire::bth::BthView;
use pmd_roce::work::{SendOp, WcStatus};
use pmd_sim::{Act, Fault, Filter, HostId, Path, QpPlan, World};

use crate::harness::{End, PATHS, Pair, outcomes, pattern};

const OK: WcStatus = WcStatus::Success;
const BOTH: AttrMask = AttrMask::ALT_PATH.union(AttrMask::PATH_MIG_STATE);
/// 4 x 1.05 ms.
const HASTY: QpPlan = QpPlan { timeout: 8, retry_cnt: 3, ..QpPlan::rc() };

fn gid(host: u8, port: u8) -> Gid {
    Ipv4Addr::new(10, 0, port, host).into()
}

/// Two ends in RTS, on devices that can migrate.
fn pair(seed: u64, plan: QpPlan) -> Pair {
    let mut world = World::new(seed);
    let hosts: [HostId; 2] = [(1, "a"), (2, "b")].map(|(number, name)| {
        world.add_host_with(name, |config| {
            config.auto_path_mig = true;
            (config.gids, config.second_port) = (vec![gid(number, 1)], vec![gid(number, 2)]);
        })
    });
    let [a, b] = hosts.map(|host| End::new(&mut world, host, plan));
    let mut pair = Pair { world, a, b, path: Path::Packets };
    pair.connect();
    pair
}

/// The path over `port` of both hosts to host number `to`.
fn alternate(to: u8, port: u8) -> QpAttr {
    QpAttr {
        alt_av: AddressVector { port, ..AddressVector::to(gid(to, port)) },
        alt_port: port,
        alt_timeout: 10,
        path_mig_state: PathMigState::Rearm,
        ..QpAttr::new(pmd_roce::qp::state::QpState::Rts)
    }
}

fn modify(
    world: &mut World,
    end: &End,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<(), ModifyQpError> {
    world.modify_qp(end.host(), end.side.qpn, attr, AttrMask::STATE | mask)
}

fn attr(world: &World, end: &End) -> QpAttr {
    world.engine(end.host()).query_qp(end.side.qpn).unwrap().attr
}

fn states(pair: &Pair) -> [PathMigState; 2] {
    [&pair.a, &pair.b].map(|end| attr(&pair.world, end).path_mig_state)
}

/// Both ends load the path over `port` and ask for REARM; a message each way, and both are armed.
fn arm(pair: &mut Pair, port: u8) {
    let Pair { world, a, b, .. } = pair;
    modify(world, a, &alternate(2, port), BOTH).unwrap();
    modify(world, b, &alternate(1, port), BOTH).unwrap();
    exchange(pair);
    assert_eq!(states(pair), [PathMigState::Armed; 2]);
}

/// A WRITE each way.
fn exchange(pair: &mut Pair) {
    let Pair { world, a, b, .. } = pair;
    for (from, to) in [(*a, *b), (*b, *a)] {
        from.post(world, 1, SendOp::Write(to.mr.at(0)), 0, 64);
        assert_eq!(from.statuses(world, 1), [(1, OK)]);
    }
}

fn mig_reqs(world: &World) -> Vec<bool> {
    let bit = |payload: &[u8]| BthView::new_checked(payload).unwrap().mig_req();
    world.frames().iter().map(|frame| bit(&frame.payload)).collect()
}

/// S1-54, S1-56: off unless the device was made with it; asking for it otherwise is refused by name and
/// changes nothing. Values are checked as those of the first path are, and shared memory has one path.
#[test]
fn s1_56_off_by_default_and_checked() {
    for path in PATHS {
        let mut pair = Pair::new(1, path, QpPlan::rc());
        let Pair { world, a, .. } = &mut pair;
        assert!(!world.engine(a.host()).config().auto_path_mig);
        let before = attr(world, a);
        for mask in [AttrMask::ALT_PATH, AttrMask::PATH_MIG_STATE, BOTH] {
            let refused = modify(world, a, &alternate(2, 1), mask).unwrap_err();
            assert!(refused.to_string().contains("not supported"), "{refused}");
        }
        assert_eq!(attr(world, a), before);
    }
    let mut pair = pair(1, QpPlan::rc());
    let Pair { world, a, b, .. } = &mut pair;
    let good = alternate(2, 2);
    let armed = QpAttr { path_mig_state: PathMigState::Armed, ..good };
    let beyond = AddressVector { sgid_index: 1, ..good.alt_av };
    let cases = [
        (AttrMask::PATH_MIG_STATE, good, "needs an alternate path"),
        (BOTH, armed, "comes by itself"),
        (BOTH, QpAttr { alt_port: 1, ..good }, "alt_port_num"),
        (BOTH, QpAttr { alt_timeout: 32, ..good }, "alt_timeout"),
        (BOTH, QpAttr { alt_pkey_index: 1, ..good }, "alt_pkey_index"),
        (BOTH, QpAttr { alt_av: beyond, ..good }, "sgid_index = 1"),
    ];
    for (mask, given, word) in cases {
        let refused = modify(world, a, &given, mask).unwrap_err();
        assert!(refused.to_string().contains(word), "{word}: {refused}");
        assert_eq!(attr(world, a).path_mig_state, PathMigState::Migrated);
    }
    modify(world, a, &good, BOTH).unwrap();
    let view = attr(world, a);
    assert_eq!((view.alt_av, view.alt_port, view.alt_timeout), (good.alt_av, 2, 10));
    assert_eq!(view.path_mig_state, PathMigState::Rearm);
    b.post(world, 1, SendOp::Write(a.mr.at(0)), 0, 64);
    assert_eq!(b.statuses(world, 1), [(1, OK)], "MigReq of a peer without a plan changes nothing");
}

/// S1-55, S1-59, E-18: REARM becomes ARMED once the peer says that it is no longer MIGRATED, and the
/// MigReq bit of every packet tells the state of its sender.
#[test]
fn s1_55_both_ends_are_armed_by_each_other() {
    let mut pair = pair(2, QpPlan::rc());
    pair.world.record_frames();
    exchange(&mut pair);
    assert_eq!(mig_reqs(&pair.world), [true; 4], "a WRITE and an ACK, each way");
    modify(&mut pair.world, &pair.a, &alternate(2, 2), BOTH).unwrap();
    exchange(&mut pair);
    assert_eq!(mig_reqs(&pair.world)[4..], [false, true, true, false], "by the sender's own state");
    assert_eq!(states(&pair), [PathMigState::Rearm, PathMigState::Migrated]);
    modify(&mut pair.world, &pair.b, &alternate(1, 2), BOTH).unwrap();
    exchange(&mut pair);
    assert_eq!(states(&pair), [PathMigState::Armed; 2]);
    assert_eq!(mig_reqs(&pair.world)[8..], [false; 4]);
    assert_eq!((pair.a.events(&mut pair.world), pair.b.events(&mut pair.world)), (vec![], vec![]));
}

/// S1-55, S1-57: the first port fails under traffic in both directions. When the retries of the first path
/// have run out, both ends go on over the second one: every request succeeds once, PSNs go on without a
/// gap, and later the way back is open.
#[test]
fn s1_57_a_connection_outlives_its_port() {
    let mut pair = pair(3, HASTY);
    arm(&mut pair, 2);
    pair.world.record_frames();
    for from in [1, 2] {
        let Pair { world, a, b, .. } = &mut pair;
        a.write(world, 0, &pattern(from, 64 << 10));
        for id in 0..32 {
            b.recv(world, 100 + id, 2048 * id, 2048);
            a.post(world, id, SendOp::Send, 2048 * id, 2048);
            b.post(world, 200 + id, SendOp::Read(a.mr.at(2048 * id)), 100_000 + 2048 * id, 2048);
        }
        world.run_for(Duration::from_micros(3));
        let cut = world.now();
        world.set_port_of(a.host(), from, false);
        let done = a.statuses(world, 32);
        assert_eq!(done, (0..32).map(|id| (id, OK)).collect::<Vec<_>>());
        // One budget, by the timeout of the path that died, and then at once.
        let budget = Duration::from_millis(if from == 1 { 6 } else { 18 });
        assert!(world.now().since(cut) < budget, "{:?}", world.now().since(cut));
        let done = outcomes(&b.wait(world, 64));
        for base in [100, 200] {
            let own: Vec<_> = done.iter().filter(|(id, _)| id / 100 == base / 100).collect();
            assert_eq!(own.len(), 32, "each once");
            assert!(own.iter().all(|(_, status)| *status == OK));
        }
        assert_eq!(b.bytes(world, 0, 64 << 10), pattern(from, 64 << 10));
        assert_eq!(b.bytes(world, 100_000, 64 << 10), pattern(from, 64 << 10));
        let to = 3 - from;
        for (end, peer) in [(&*a, 2), (&*b, 1)] {
            let view = attr(world, end);
            assert_eq!((view.av.dgid, view.port, view.timeout), (gid(peer, to), to, 10));
            assert_eq!(view.path_mig_state, PathMigState::Migrated);
            assert_eq!(view.alt_av.dgid, Gid::default(), "S1-58: another one is to be loaded");
        }
        let migrated = |end: &End| AsyncEvent::PathMig(end.side.qpn);
        let at_a = [AsyncEvent::PortErr(from), migrated(a)];
        assert_eq!((a.events(world), b.events(world)), (at_a.to_vec(), vec![migrated(b)]));
        world.set_port_of(a.host(), from, true);
        assert_eq!(a.events(world), [AsyncEvent::PortActive(from)]);
        arm(&mut pair, from);
    }
    // Of the requests of `a`, each next PSN is at most one beyond all before it.
    let mut next = None;
    for frame in pair.world.frames().iter().filter(|frame| frame.from == pair.a.host()) {
        let bth = BthView::new_checked(&frame.payload).unwrap();
        if bth.opcode_byte() > 0x0b {
            continue;
        }
        let psn = bth.psn();
        let expected = *next.get_or_insert(psn);
        assert!(psn.since(expected) <= 0, "S1-57: no gap");
        if psn == expected {
            next = Some(psn.plus(1));
        }
    }
    assert_eq!(pair.a.counters(&pair.world).req_transport_retries_exceeded, 0);
}

/// S1-58: nothing migrates that is not armed, or whose alternate path is dead as well; the latter says so.
#[test]
fn s1_58_not_armed_or_nowhere_to_go() {
    // Loaded and asked for, but the peer never said a word.
    let mut pair = pair(4, HASTY);
    let Pair { world, a, b, .. } = &mut pair;
    modify(world, a, &alternate(2, 2), BOTH).unwrap();
    world.set_port_of(a.host(), 1, false);
    a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 64);
    assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
    assert_eq!(a.events(world), [AsyncEvent::PortErr(1)]);
    assert_eq!(attr(world, a).path_mig_state, PathMigState::Rearm);
    // Armed, and both ports down.
    let mut pair = self::pair(5, HASTY);
    arm(&mut pair, 2);
    let Pair { world, a, b, .. } = &mut pair;
    world.set_port_of(a.host(), 1, false);
    world.set_port_of(a.host(), 2, false);
    a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 64);
    assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
    let qpn = a.side.qpn;
    let expected = [AsyncEvent::PortErr(1), AsyncEvent::PortErr(2), AsyncEvent::PathMigErr(qpn)];
    assert_eq!(a.events(world), expected);
}

/// S1-55: the consumer can order the change, and the peer follows at the first packet. A peer that comes
/// by a path that this side has not loaded is not followed: PATH_MIG_ERR.
#[test]
fn s1_55_by_order_and_by_a_strange_path() {
    let mut pair = pair(6, HASTY);
    arm(&mut pair, 2);
    let Pair { world, a, b, .. } = &mut pair;
    let order = QpAttr { path_mig_state: PathMigState::Migrated, ..alternate(2, 2) };
    modify(world, a, &order, AttrMask::PATH_MIG_STATE).unwrap();
    assert_eq!(a.events(world), [AsyncEvent::PathMig(a.side.qpn)]);
    b.post(world, 5, SendOp::Write(a.mr.at(0)), 0, 64);
    a.post(world, 6, SendOp::Write(b.mr.at(0)), 0, 64);
    assert_eq!(a.statuses(world, 1), [(6, OK)]);
    assert_eq!(b.statuses(world, 1), [(5, OK)], "it had gone the old way and goes again");
    assert_eq!(b.events(world), [AsyncEvent::PathMig(b.side.qpn)]);
    // Now toward a third address of the peer, of which the peer knows nothing.
    let Pair { world, a, b, .. } = &mut self::pair(7, HASTY);
    world.set_gids(b.host(), &[gid(2, 1), gid(2, 9)]).unwrap();
    let strange = AddressVector { port: 2, ..AddressVector::to(gid(2, 9)) };
    modify(world, a, &QpAttr { alt_av: strange, ..alternate(2, 2) }, BOTH).unwrap();
    modify(world, b, &alternate(1, 2), BOTH).unwrap();
    for (from, to) in [(*a, *b), (*b, *a)] {
        from.post(world, 1, SendOp::Write(to.mr.at(0)), 0, 64);
        assert_eq!(from.statuses(world, 1), [(1, OK)]);
    }
    modify(world, a, &order, AttrMask::PATH_MIG_STATE).unwrap();
    b.events(world);
    a.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 64);
    assert_eq!(a.statuses(world, 1), [(2, WcStatus::RetryExc)]);
    assert_eq!(b.events(world), [AsyncEvent::PathMigErr(b.side.qpn)]);
    assert_eq!(attr(world, b).path_mig_state, PathMigState::Armed, "and stays where it is");
}

/// A path that loses a frame now and then is no dead path: retries that get through keep it.
#[test]
fn s1_57_loss_alone_is_no_reason_to_migrate() {
    let mut pair = pair(8, QpPlan { timeout: 4, retry_cnt: 7, ..QpPlan::rc() });
    arm(&mut pair, 2);
    let Pair { world, a, b, .. } = &mut pair;
    world.add_fault(Fault::new(Act::Drop, Filter { every: 5, ..Filter::ALL }));
    for id in 0..64 {
        a.post(world, id, SendOp::Write(b.mr.at(0)), 0, 2000);
    }
    assert!(a.wait(world, 64).iter().all(|wc| wc.status == OK));
    assert_eq!(states(&pair), [PathMigState::Armed; 2]);
    assert!(pair.a.counters(&pair.world).retransmits > 0);
}
