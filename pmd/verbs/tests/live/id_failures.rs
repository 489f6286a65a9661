//! S0-40: each way in which an id can fail, with the event, the status and the words that tell of it.

use std::net::SocketAddr;
use std::time::Duration;

use pmd_verbs::cm::{
    CmFailure, ConnParam, Connect, EventKind, IdError, IdState, LocalQp, PortSpace, RejectReason,
    Route, ServiceId, Unreached,
};
use pmd_verbs::roce::ids::{Psn, Qpn};
use pmd_verbs::roce::port::PortState;
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::{AttrMask, QpState, Transport};
use pmd_verbs::{Rc, Ud};

use crate::id_support::{PORT, Side, connected, event, hasty, name, params, request};

fn pair() -> [Side; 2] {
    [Side::new(|_| {}), Side::new(|_| {})]
}

/// Who gives up soon.
fn hasty_pair() -> [Side; 2] {
    [Side::new(hasty), Side::new(hasty)]
}

#[test]
fn s0_40_an_address_that_cannot_be_reached_from_here() {
    let sides = pair();
    for (to, status) in [("[::1]:1", -99), ("239.0.0.1:1", -22), ("0.0.0.0:1", -22)] {
        let id = sides[0].channel.create_id(PortSpace::Tcp);
        id.resolve_addr(to.parse().unwrap()).unwrap();
        let failed = event(&sides, 0);
        assert_eq!((failed.name(), failed.status()), ("RDMA_CM_EVENT_ADDR_ERROR", status), "{to}");
        assert_eq!(id.state(), IdState::Idle);
    }
    let far: SocketAddr = "198.51.100.7:1".parse().unwrap();
    let failed = sides[0].channel.open(PortSpace::Tcp, far, Duration::ZERO).unwrap_err();
    // From a loopback address there is no way to others.
    assert!(failed.to_string().contains("no route from"), "{failed}");
}

#[test]
fn s0_40_a_port_that_is_down_leads_nowhere() {
    let sides = pair();
    let id = sides[0].channel.create_id(PortSpace::Tcp);
    id.resolve_addr(sides[1].at(PORT)).unwrap();
    assert_eq!(name(&sides, 0), "ADDR_RESOLVED");
    sides[0].agent.context().set_port(PortState::Down);
    id.resolve_route().unwrap();
    let failed = event(&sides, 0);
    assert_eq!((failed.name(), failed.status()), ("RDMA_CM_EVENT_ROUTE_ERROR", -19));
    drop(failed);
    sides[0].agent.context().set_port(PortState::Active);
    id.resolve_route().unwrap();
    assert_eq!(name(&sides, 0), "ROUTE_RESOLVED");
}

/// S0-30: nobody is there, which is known after all retries.
#[test]
fn s0_30_a_server_that_is_not_there_is_unreachable() {
    let sides = hasty_pair();
    let nobody: SocketAddr = "127.255.77.1:7471".parse().unwrap();
    let id = sides[0].channel.open(PortSpace::Tcp, nobody, Duration::ZERO).unwrap();
    let _qp = sides[0].qp::<Rc>(&id);
    id.connect(&params(&[])).unwrap();
    let failed = event(&sides, 0);
    assert_eq!((failed.name(), failed.status()), ("RDMA_CM_EVENT_UNREACHABLE", -110));
    assert!(failed.kind().to_string().contains("does not answer"), "{}", failed.kind());
    let asking = sides[0].channel.open(PortSpace::Udp, nobody, Duration::ZERO).unwrap();
    asking.connect(&params(&[])).unwrap();
    let failed = event(&sides, 0);
    assert_eq!(*failed.kind(), EventKind::Unreachable(Unreached::LookupSilence));
}

/// S0-31: requests that wait when their listener goes are refused, whether it knows of them yet or not, and whoever
/// was accepted before stays connected.
#[test]
fn s0_31_requests_that_wait_go_with_their_listener() {
    for told in [false, true] {
        let sides = pair();
        let listener = sides[1].listen(PortSpace::Tcp);
        let first = sides[0].toward(PortSpace::Tcp, &sides[1]);
        let _client = sides[0].qp::<Rc>(&first);
        first.connect(&params(&[])).unwrap();
        let (accepted, _) = request(&sides);
        let _server = sides[1].qp::<Rc>(&accepted);
        accepted.accept(&params(&[])).unwrap();
        assert_eq!(name(&sides, 0), "ESTABLISHED");
        assert_eq!(name(&sides, 1), "ESTABLISHED");
        let surplus: Vec<_> = (0..3).map(|_| sides[0].toward(PortSpace::Tcp, &sides[1])).collect();
        let _qps: Vec<_> = surplus.iter().map(|id| sides[0].qp::<Rc>(id)).collect();
        surplus.iter().for_each(|id| id.connect(&params(&[])).unwrap());
        if told {
            // Looks for an event of another id: the requests are on the channel now.
            let other = sides[1].channel.create_id(PortSpace::Tcp);
            let none = sides[1].channel.outcome(&other, "nothing", Duration::from_millis(20));
            assert!(matches!(none, Err(CmFailure::Late { .. })), "{none:?}");
        }
        drop(listener);
        for _ in &surplus {
            let refused = event(&sides, 0);
            assert_eq!(refused.name(), "RDMA_CM_EVENT_REJECTED", "{refused:?}");
        }
        assert_eq!((first.state(), accepted.state()), (IdState::Connected, IdState::Connected));
    }
}

/// S0-31, P25: the reason comes as status and in words; a consumer's with its data.
#[test]
fn s0_31_a_refusal_says_why() {
    let sides = pair();
    let id = sides[0].toward(PortSpace::Tcp, &sides[1]);
    let _qp = sides[0].qp::<Rc>(&id);
    id.connect(&params(&[])).unwrap();
    let refused = event(&sides, 0);
    assert_eq!((refused.name(), refused.status()), ("RDMA_CM_EVENT_REJECTED", 8));
    assert!(refused.kind().to_string().contains("nobody listens there"), "{}", refused.kind());
    drop((refused, id));

    let _listener = sides[1].listen(PortSpace::Tcp);
    let id = sides[0].toward(PortSpace::Tcp, &sides[1]);
    let _qp = sides[0].qp::<Rc>(&id);
    id.connect(&params(&[])).unwrap();
    let (asked, _) = request(&sides);
    assert!(matches!(asked.reject(&[1; 149]), Err(IdError::Answer(_))), "148 bytes at most");
    asked.reject(b"not today").unwrap();
    let refused = event(&sides, 0);
    assert_eq!((refused.status(), refused.private_data()), (28, &b"not today"[..]));
    let EventKind::Rejected(rejection) = refused.kind() else { panic!("{refused:?}") };
    assert_eq!(rejection.reason, RejectReason::CONSUMER);
    drop((refused, id));

    // Who does not even take the id of a request refuses it, too.
    let id = sides[0].toward(PortSpace::Tcp, &sides[1]);
    let _qp = sides[0].qp::<Rc>(&id);
    id.connect(&params(&[])).unwrap();
    drop(event(&sides, 1));
    assert_eq!(event(&sides, 0).status(), 28);
}

#[test]
fn s0_40_a_queue_pair_that_cannot_be_moved_ends_the_connection() {
    let sides = pair();
    let _listener = sides[1].listen(PortSpace::Tcp);
    let id = sides[0].toward(PortSpace::Tcp, &sides[1]);
    let client = sides[0].qp::<Rc>(&id);
    id.connect(&params(&[])).unwrap();
    let (asked, _) = request(&sides);
    let _server = sides[1].qp::<Rc>(&asked);
    client.modify(&QpAttr::new(QpState::Error), AttrMask::STATE).unwrap();
    asked.accept(&params(&[])).unwrap();
    let failed = event(&sides, 0);
    assert_eq!((failed.name(), failed.status()), ("RDMA_CM_EVENT_CONNECT_ERROR", -22));
    assert!(failed.kind().to_string().contains("cannot be moved to RTS"), "{}", failed.kind());
    drop(failed);
    assert_eq!(event(&sides, 1).status(), 28, "and the peer is told");
}

/// A peer that stops after its request: who accepts it is told, and has nothing left of it.
#[test]
fn s0_40_a_peer_that_stops_after_its_request_is_unreachable() {
    let sides = hasty_pair();
    let _listener = sides[1].listen(PortSpace::Tcp);
    let qp = LocalQp { qpn: Qpn::new(0x1234), psn: Psn::new(1), srq: false };
    let here = sides[0].agent.context().device().gid();
    let connect = Connect {
        service: ServiceId::new(PortSpace::Tcp, PORT),
        source_port: 40_000,
        route: Route::between(here, sides[1].agent.context().device().gid()),
        mtu: None,
        transport: Transport::Rc,
        qp,
        param: ConnParam::DEFAULT,
        private_data: &[],
    };
    // Below ids: nobody takes what comes of it.
    sides[0].agent.command(|cm, now| cm.connect(now, &connect)).unwrap();
    let start = std::time::Instant::now();
    let mut asked = loop {
        sides[0].agent.context().progress(sides[0].agent.context().device().now());
        if let Some(event) = sides[1].channel.poll() {
            break event;
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    };
    let id = asked.take_id().unwrap();
    drop(asked);
    let server = sides[1].qp::<Rc>(&id);
    id.accept(&params(&[])).unwrap();
    let limit = Duration::from_secs(20);
    let gone = sides[1].channel.outcome(&id, "ESTABLISHED", limit).unwrap_err();
    assert!(gone.to_string().contains("status -110: the peer has gone since it asked"), "{gone}");
    assert_eq!(id.state(), IdState::Over);
    let number = server.number();
    drop((id, server));
    assert!(sides[1].agent.context().query_qp(number).is_none());
    assert_eq!(sides[1].agent.command(|cm, _| cm.connections()), 0);
}

/// The peer is gone without a word: the end is known once it does not answer any more.
#[test]
fn s0_40_a_peer_that_is_gone_is_disconnected_in_time() {
    let sides = hasty_pair();
    let ([active, _passive], [client, _]) = connected(&sides);
    let [here, _gone] = &sides;
    active.disconnect().unwrap();
    let limit = Duration::from_secs(20);
    let end = here.channel.outcome(&active, "DISCONNECTED", limit).unwrap();
    assert!(matches!(end, EventKind::Disconnected(_)), "{end}");
    assert_eq!(client.state(), QpState::Error);
}

#[test]
fn s0_40_a_device_that_fails_tells_all_ids() {
    let sides = pair();
    let ([active, passive], _) = connected(&sides);
    sides[0].agent.context().fail_device();
    assert_eq!(name(&sides, 0), "DEVICE_REMOVAL");
    assert!(matches!(active.disconnect(), Err(IdError::DeviceRemoved)));
    assert!(sides[0].channel.poll().is_none(), "told once");
    drop(passive);
}

/// S0-36: limits are checked before anything is sent, each by its name.
#[test]
fn s0_36_private_data_that_does_not_fit_is_refused() {
    let sides = pair();
    let tcp = sides[0].toward(PortSpace::Tcp, &sides[1]);
    let _qp = sides[0].qp::<Rc>(&tcp);
    let udp = sides[0].toward(PortSpace::Udp, &sides[1]);
    let sent = || sides[0].agent.command(|cm, _| cm.counters().sent);
    for (id, max) in [(&tcp, 56), (&udp, 180)] {
        let refused = id.connect(&params(&vec![7; max + 1])).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&format!("has room for {max}")), "{text}");
        assert_eq!((id.state(), sent()), (IdState::RouteResolved, 0));
    }
    let _listeners = [PortSpace::Tcp, PortSpace::Udp].map(|space| sides[1].listen(space));
    let mut answered = Vec::new();
    for (id, max) in [(&tcp, 56), (&udp, 180)] {
        let full = vec![7; max];
        id.connect(&params(&full)).unwrap();
        let (asked, event_of_it) = request(&sides);
        assert_eq!(event_of_it.private_data(), full);
        drop(event_of_it);
        let room = if max == 56 { 196 } else { 136 };
        let _qps = (max == 56).then(|| sides[1].qp::<Rc>(&asked));
        let _datagrams = (max == 180).then(|| sides[1].qp::<Ud>(&asked));
        let refused = asked.accept(&params(&vec![8; room + 1])).unwrap_err().to_string();
        assert!(refused.contains(&format!("has room for {room}")), "{refused}");
        asked.accept(&params(&vec![8; room])).unwrap();
        assert_eq!(event(&sides, 0).private_data(), vec![8; room]);
        if max == 56 {
            assert_eq!(name(&sides, 1), "ESTABLISHED");
        }
        answered.push(asked);
    }
}

/// S0-38: three bits, and no more.
#[test]
fn s0_38_retries_beyond_three_bits_are_refused() {
    let sides = pair();
    let id = sides[0].toward(PortSpace::Tcp, &sides[1]);
    let _qp = sides[0].qp::<Rc>(&id);
    for field in ["retry_count", "rnr_retry_count"] {
        let mut wrong = params(&[]);
        *(if field == "retry_count" {
            &mut wrong.param.retry_count
        } else {
            &mut wrong.param.rnr_retry_count
        }) = 8;
        let refused = id.connect(&wrong).unwrap_err().to_string();
        assert!(refused.contains(&format!("{field} = 8")), "{refused}");
    }
}

/// A command out of its order says where the id stands, and what comes first.
#[test]
fn commands_out_of_order_are_refused_by_name() {
    let sides = pair();
    let id = sides[0].channel.create_id(PortSpace::Tcp);
    for refused in [id.listen(1), id.resolve_route(), id.connect(&params(&[])), id.disconnect()] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("for an id that is new"), "{text}");
    }
    assert!(matches!(id.accept(&params(&[])), Err(IdError::State { operation: "accept", .. })));
    let elsewhere = "127.9.9.9:1".parse().unwrap();
    assert!(matches!(id.bind(elsewhere), Err(IdError::NoSuchAddress { .. })));
    let ready = sides[0].toward(PortSpace::Tcp, &sides[1]);
    assert!(matches!(ready.connect(&params(&[])), Err(IdError::NoQueuePair)));
    let wrong = ready.create_qp::<Ud>(&sides[0].pd, &sides[0].options()).unwrap_err();
    assert!(matches!(wrong, IdError::Service { .. }), "{wrong}");
    let _qp = sides[0].qp::<Rc>(&ready);
    let mut both = params(&[]);
    both.qp = Some(LocalQp { qpn: Qpn::new(9), psn: Psn::new(0), srq: false });
    assert!(matches!(ready.connect(&both), Err(IdError::HasQueuePair)));
}

/// A port of a name space belongs to one id.
#[test]
fn ports_are_given_out_once() {
    let sides = pair();
    let first = sides[0].listen(PortSpace::Tcp);
    let second = sides[0].channel.create_id(PortSpace::Tcp);
    assert!(matches!(second.bind(sides[0].at(PORT)), Err(IdError::PortInUse { port: PORT, .. })));
    let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
    assert!(matches!(second.bind(any), Err(IdError::PortInUse { .. })));
    sides[0].channel.create_id(PortSpace::Udp).bind(any).unwrap();
    second.bind(sides[0].at(0)).unwrap();
    assert!(second.view().local.unwrap().port() >= 32_768);
    drop(first);
    sides[0].channel.create_id(PortSpace::Tcp).bind(any).unwrap();
}

/// Every wait has an end, which says what it was for.
#[test]
fn a_wait_that_is_over_says_what_did_not_come() {
    let sides = pair();
    let listener = sides[1].listen(PortSpace::Tcp);
    let late = sides[1].channel.request(&listener, Duration::from_millis(5)).unwrap_err();
    assert!(matches!(late, CmFailure::Late { wanted: "CONNECT_REQUEST", .. }), "{late}");
}
