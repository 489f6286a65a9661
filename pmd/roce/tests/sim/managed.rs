//! Connections that the connection manager makes: over queue pair 1, through a network with faults, to
//! queue pairs that carry data.

use core::time::Duration;
use std::collections::BTreeMap;

use pmd_roce::cm::{
    Accept, CmEvent, CmState, ConnId, ConnParam, Connect, Listen, LocalQp, Negotiated, PortSpace,
    Route, ServiceId,
};
use pmd_roce::event::AsyncEvent;
use pmd_roce::gsi::{GSI_QKEY, ManagementDatagram};
use pmd_roce::ids::{Gid, PathMtu, Psn, Qpn, WrId};
use pmd_roce::limits::GSI_RECEIVES;
use pmd_roce::qp::attr::QpAttr;
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::sink::Flow;
use pmd_roce::wire::DropReason;
use pmd_roce::work::{Data, Datagram, RemoteAddr, SendFlags, SendOp, SendWr, WcStatus};
use pmd_sim::{Act, Fault, Filter, HostId, QpPlan, World};

use crate::harness::{End, LONG, outcomes, pattern, seeds};

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7471);

/// Two hosts with a manager each; the server listens.
struct Managed {
    world: World,
    client: HostId,
    server: HostId,
}

impl Managed {
    fn new(seed: u64) -> Self {
        Self::with(seed, [PathMtu::B4096; 2])
    }

    fn with(seed: u64, mtu: [PathMtu; 2]) -> Self {
        let mut world = World::new(seed);
        let [client, server] = [0, 1].map(|n: usize| {
            let gid = Gid::from(core::net::Ipv4Addr::new(10, 0, 0, n as u8 + 1));
            let host = world.add_host_with(["client", "server"][n], |config| {
                config.gids = vec![gid];
                config.mtu = mtu[n];
            });
            world.open_cm(host, |_| {});
            host
        });
        let listen = Listen { service: SERVICE, address: None, backlog: 64 };
        world.with_cm(server, |cm, _| cm.listen(listen)).unwrap();
        Self { world, client, server }
    }

    fn connect(&mut self, end: &End, psn: Psn) -> ConnId {
        let route = Route::between(self.world.gid(self.client), self.world.gid(self.server));
        let connect = Connect {
            service: SERVICE,
            source_port: 40_000,
            route,
            mtu: None,
            transport: Transport::Rc,
            qp: LocalQp { qpn: end.side.qpn, psn, srq: false },
            param: ConnParam { ack_timeout: Some(14), ..ConnParam::DEFAULT },
            private_data: &[],
        };
        self.world.with_cm(self.client, |cm, now| cm.connect(now, &connect)).unwrap()
    }

    /// Walks a queue pair to RTS as was agreed.
    fn walk(&mut self, end: &End, terms: &Negotiated) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = terms.step(to).unwrap();
            self.world.modify_qp(end.host(), end.side.qpn, &attr, mask).unwrap();
        }
    }

    /// The server's consumer accepts with a new queue pair, its receives posted before it can be reached.
    fn accept(&mut self, id: ConnId, psn: Psn) -> End {
        let end = End::new(&mut self.world, self.server, QpPlan::rc());
        let accept = Accept {
            qp: LocalQp { qpn: end.side.qpn, psn, srq: false },
            param: ConnParam::DEFAULT,
            private_data: &[],
        };
        let terms = self.world.with_cm(self.server, |cm, _| cm.negotiate(id, &accept)).unwrap();
        let (attr, mask) = terms.step(QpState::Init).unwrap();
        self.world.modify_qp(self.server, end.side.qpn, &attr, mask).unwrap();
        end.recv(&mut self.world, 1, 0, 4096);
        for to in [QpState::Rtr, QpState::Rts] {
            let (attr, mask) = terms.step(to).unwrap();
            self.world.modify_qp(self.server, end.side.qpn, &attr, mask).unwrap();
        }
        self.world.with_cm(self.server, |cm, now| cm.accept(now, id, &accept)).unwrap();
        end
    }

    fn event(&mut self, host: HostId) -> CmEvent {
        let mut event = None;
        self.world.run_until(Duration::from_secs(200), |world| {
            event = world.poll_cm_event(host);
            event.is_some()
        });
        event.expect("an event")
    }
}

/// S1-26, S2-21, S0-39: from RESET to data over nothing but the wire: the paths come out of the
/// messages, and both sides are ready before the first packet.
#[test]
fn s1_26_a_managed_connection_carries_data_both_ways() {
    let mut pair = Managed::with(1, [PathMtu::B4096, PathMtu::B1024]);
    let client = End::new(&mut pair.world, pair.client, QpPlan::rc());
    let connection = pair.connect(&client, Psn::new(0xff_ffff));
    let CmEvent::ConnectRequest(asked, request) = pair.event(pair.server) else {
        panic!("a request")
    };
    // P04: the client's port has 4096, the server's 1024.
    assert_eq!(request.path_mtu, PathMtu::B1024);
    let server = pair.accept(asked, Psn::new(5));
    let CmEvent::Reply(id, terms, _) = pair.event(pair.client) else { panic!("a reply") };
    assert_eq!((id, terms.path_mtu, terms.sq_psn), (connection, PathMtu::B1024, Psn::new(5)));
    pair.walk(&client, &terms);
    pair.world.with_cm(pair.client, |cm, _| cm.establish(id, &[])).unwrap();
    assert!(matches!(pair.event(pair.server), CmEvent::Established(id, Some(_)) if id == asked));
    let bytes = pattern(3, 3000);
    client.write(&pair.world, 0, &bytes);
    client.post(&mut pair.world, 2, SendOp::Send, 0, 3000);
    assert_eq!(server.statuses(&mut pair.world, 1), [(1, WcStatus::Success)]);
    assert_eq!(server.bytes(&pair.world, 0, 3000), bytes);
    assert_eq!(client.statuses(&mut pair.world, 1), [(2, WcStatus::Success)]);
    let to = RemoteAddr { addr: client.mr.addr + 8192, rkey: client.mr.rkey };
    server.post(&mut pair.world, 3, SendOp::Write(to), 0, 3000);
    assert_eq!(server.statuses(&mut pair.world, 1), [(3, WcStatus::Success)]);
    assert_eq!(client.bytes(&pair.world, 8192, 3000), bytes);
    server.post(&mut pair.world, 4, SendOp::Read(to), 16384, 3000);
    assert_eq!(server.statuses(&mut pair.world, 1), [(4, WcStatus::Success)]);
    // The end: the server's consumer learns of it by an event.
    pair.world.with_cm(pair.client, |cm, now| cm.disconnect(now, id, &[])).unwrap();
    assert!(matches!(pair.event(pair.server), CmEvent::Disconnected(id, _) if id == asked));
    assert!(matches!(pair.event(pair.client), CmEvent::Disconnected(..)));
    for (host, qpn) in [(pair.client, client.side.qpn), (pair.server, server.side.qpn)] {
        assert!(matches!(pair.event(host), CmEvent::TimewaitExit(_, free) if free == qpn));
    }
    assert_eq!(pair.world.counters(pair.server).drops.iter().sum::<u64>(), 0);
}

/// S1-26: where the RTU is lost, the first packet says the same, and the consumer passes it on.
#[test]
fn s1_26_data_that_comes_before_the_rtu_establishes() {
    let mut pair = Managed::new(2);
    let client = End::new(&mut pair.world, pair.client, QpPlan::rc());
    pair.connect(&client, Psn::new(1));
    let CmEvent::ConnectRequest(asked, _) = pair.event(pair.server) else { panic!("a request") };
    let server = pair.accept(asked, Psn::new(2));
    let CmEvent::Reply(id, terms, _) = pair.event(pair.client) else { panic!("a reply") };
    pair.walk(&client, &terms);
    // The RTU is never sent: it is as lost.
    client.post(&mut pair.world, 2, SendOp::Send, 0, 16);
    assert_eq!(server.statuses(&mut pair.world, 1), [(1, WcStatus::Success)]);
    let events = server.events(&mut pair.world);
    assert!(events.iter().all(|event| matches!(event, AsyncEvent::CommEst(_))), "{events:?}");
    pair.world.with_cm(pair.server, |cm, _| cm.communication_established(asked)).unwrap();
    assert_eq!(pair.event(pair.server), CmEvent::Established(asked, None));
    pair.world.with_cm(pair.client, |cm, _| cm.establish(id, &[])).unwrap();
    assert_eq!(client.statuses(&mut pair.world, 1), [(2, WcStatus::Success)]);
}

/// Twenty connections over a network that loses, doubles and delays a good part of everything: each
/// comes up, carries data and comes down, and nothing is left.
#[test]
fn connections_come_up_whatever_the_network_does() {
    for seed in seeds(6) {
        let mut pair = Managed::new(seed);
        let managed = Filter { qp: Some(Qpn::GSI), chance: 150_000, ..Filter::ALL };
        for act in [Act::Drop, Act::Duplicate, Act::Delay(Duration::from_millis(700))] {
            pair.world.add_fault(Fault::new(act, managed));
        }
        let mut waiting = BTreeMap::new();
        for n in 0..20 {
            let end = End::new(&mut pair.world, pair.client, QpPlan::rc());
            let psn = Psn::new(n * 7919);
            waiting.insert(pair.connect(&end, psn), end);
        }
        let all: Vec<_> = waiting.keys().copied().collect();
        let mut servers = Vec::new();
        let done = |pair: &mut Managed| {
            all.iter().all(|id| {
                pair.world.with_cm(pair.client, |cm, _| cm.state(*id)) == Some(CmState::Established)
            })
        };
        for _ in 0..2000 {
            let (client, server) = (pair.client, pair.server);
            pair.world.run_for(Duration::from_millis(100));
            while let Some(event) = pair.world.poll_cm_event(server) {
                match event {
                    CmEvent::ConnectRequest(id, _) => {
                        servers.push(pair.accept(id, Psn::new(servers.len() as u32)));
                    }
                    CmEvent::Established(..) => {}
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            while let Some(event) = pair.world.poll_cm_event(client) {
                let CmEvent::Reply(id, terms, _) = event else { panic!("seed {seed}: {event:?}") };
                let end = waiting[&id];
                pair.walk(&end, &terms);
                pair.world.with_cm(client, |cm, _| cm.establish(id, &[])).unwrap();
                end.post(&mut pair.world, 2, SendOp::Send, 0, 512);
            }
            if done(&mut pair) {
                break;
            }
        }
        assert!(done(&mut pair), "seed {seed}");
        assert_eq!(servers.len(), 20, "seed {seed}");
        for end in servers.iter().chain(waiting.values()) {
            let statuses = end.statuses(&mut pair.world, 1);
            assert_eq!(statuses[0].1, WcStatus::Success, "seed {seed}");
        }
        for id in &all {
            pair.world.with_cm(pair.client, |cm, now| cm.destroy(now, *id)).unwrap();
        }
        pair.world.run_for(LONG * 3);
        while let Some(event) = pair.world.poll_cm_event(pair.server) {
            match event {
                CmEvent::TimewaitExit(id, _) => {
                    pair.world.with_cm(pair.server, |cm, now| cm.destroy(now, id)).unwrap();
                }
                // The network can keep a second copy of a request for longer than timewait, 64 ms here: to the manager
                // it is a new one, for a queue pair of a connection that is over, and its consumer answers it as any.
                CmEvent::ConnectRequest(id, request) => {
                    let known = waiting.values().any(|end| end.side.qpn == request.remote_qpn);
                    assert!(known, "seed {seed}: {request:?}");
                    pair.world.with_cm(pair.server, |cm, now| cm.destroy(now, id)).unwrap();
                }
                _ => {}
            }
        }
        for host in [pair.client, pair.server] {
            assert_eq!(pair.world.with_cm(host, |cm, _| cm.connections()), 0, "seed {seed}");
        }
    }
}

/// What strangers send to queue pair 1 is dropped by the reason that it deserves, and changes nothing.
#[test]
fn strangers_cannot_hurt_queue_pair_1() {
    let mut world = World::new(3);
    let [stranger, victim] = ["stranger", "victim"].map(|name| world.add_host(name));
    let ud = QpPlan { qkey: 1, ..QpPlan::of(Transport::Ud) };
    let end = End::new(&mut world, stranger, ud);
    world.to_init(end.side).unwrap();
    for to in [QpState::Rtr, QpState::Rts] {
        let psn = if to == QpState::Rts { AttrMask::SQ_PSN } else { AttrMask::empty() };
        world.modify_qp(stranger, end.side.qpn, &QpAttr::new(to), AttrMask::STATE | psn).unwrap();
    }
    let av = world.address(stranger, victim, pmd_sim::Path::Packets);
    let ah = world.create_ah(stranger, &av).unwrap();
    let send = |world: &mut World, qkey, len| {
        let to = Some(Datagram { ah, qpn: Qpn::GSI, qkey });
        let wr = SendWr {
            wr_id: WrId(1),
            op: SendOp::Send,
            data: Data::Sges(&[end.mr.sge(0, len)]),
            flags: SendFlags::SIGNALED,
            to,
            srqn: None,
        };
        world.post_send(stranger, end.side.qpn, &wr).unwrap();
        assert_eq!(outcomes(&end.wait(world, 1)), [(1, WcStatus::Success)]);
        world.run_for(Duration::from_millis(1));
    };
    let drops = |world: &World, reason: DropReason| world.counters(victim).drops[reason as usize];
    send(&mut world, 7, 256);
    assert_eq!(drops(&world, DropReason::UnknownQp), 1, "it is not open");
    world.open_cm(victim, |_| {});
    send(&mut world, 7, 256);
    assert_eq!(drops(&world, DropReason::BadQkey), 1);
    assert_eq!(world.counters(victim).qkey_viol, 1);
    // A consumer cannot send the key of this interface: in its place goes the queue pair's own.
    send(&mut world, GSI_QKEY, 256);
    assert_eq!(drops(&world, DropReason::BadQkey), 2);
    assert_eq!(world.with_cm(victim, |cm, _| cm.counters().received), 0);

    // Another device's interface can, and sends nonsense of the right size, much of it at once.
    world.with_engine(stranger, |engine| engine.open_gsi()).unwrap();
    let (src, dst) = (world.gid(stranger), world.gid(victim));
    let flow = Flow { src, dst, src_port: 0, traffic_class: 0, hop_limit: 64 };
    let datagram = ManagementDatagram { flow, bytes: [0xee; 256] };
    world.pause(victim, Duration::from_millis(50));
    for _ in 0..20 {
        for _ in 0..100 {
            world.with_engine(stranger, |engine| engine.post_mad(&datagram)).unwrap();
        }
        world.run_for(Duration::from_millis(1));
    }
    world.run_for(Duration::from_millis(100));
    let counted = world.with_cm(victim, |cm, _| *cm.counters());
    let full = drops(&world, DropReason::NoReceive);
    assert_eq!((counted.malformed, counted.sent), (counted.received, 0));
    assert!(counted.received >= GSI_RECEIVES as u64, "{counted:?}");
    assert!(counted.received + full <= 2000, "{counted:?} {full}");
}
