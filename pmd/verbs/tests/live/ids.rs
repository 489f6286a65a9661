//! Connections and lookups through ids and channels, as a program with `rdma_cm` makes them.

use std::time::Duration;

use pmd_verbs::cm::{
    Established, EventKind, IdState, LocalQp, PortSpace, Request, UDP_QKEY, advance,
};
use pmd_verbs::roce::ids::{Gid, Psn, Qpn, WrId};
use pmd_verbs::roce::qp::state::{QpState, Transport};
use pmd_verbs::{Data, Qp, Rc, RecvWr, Ud, WcStatus, WorkRequest};

use crate::id_support::{
    PORT, Side, completions, connected, event, name, params, post_receive, request, send,
};

/// S0-26, S0-27, S0-33, S0-37, S2-20, S2-21, S1-24, S1-25: each side's steps in their order. The id moves its queue
/// pair, receives are there before anything can come, private data arrives as it was given, and PSNs fit crosswise.
#[test]
fn s0_26_s0_27_both_sides_go_their_steps_and_data_flows() {
    let sides = [Side::new(|_| {}), Side::new(|_| {})];
    let listener = sides[1].channel.create_id(PortSpace::Tcp);
    listener.bind(sides[1].at(PORT)).unwrap();
    listener.listen(1).unwrap();

    let active = sides[0].channel.create_id(PortSpace::Tcp);
    active.resolve_addr(sides[1].at(PORT)).unwrap();
    assert_eq!(name(&sides, 0), "ADDR_RESOLVED");
    let client = sides[0].qp::<Rc>(&active);
    post_receive(&sides[0], &client, 10);
    active.resolve_route().unwrap();
    assert_eq!(name(&sides, 0), "ROUTE_RESOLVED");
    let mut wanted = params(b"hello");
    (wanted.param.responder_resources, wanted.param.initiator_depth) = (3, 9);
    active.connect(&wanted).unwrap();
    assert_eq!((active.state(), client.state()), (IdState::Connecting, QpState::Init));

    let (passive, asked) = request(&sides);
    assert_eq!((asked.id(), asked.private_data()), (listener.number(), &b"hello"[..]));
    assert_eq!(asked.private_field().len(), 56);
    let EventKind::ConnectRequest(Request::Connection(terms)) = asked.kind() else { panic!() };
    assert_eq!((terms.responder_resources, terms.initiator_depth), (9, 3));
    assert_eq!(passive.view().peer, active.view().local);
    drop(asked);
    let server = sides[1].qp::<Rc>(&passive);
    post_receive(&sides[1], &server, 11);
    let mut offered = params(b"welcome");
    (offered.param.responder_resources, offered.param.initiator_depth) = (4, 2);
    passive.accept(&offered).unwrap();
    assert_eq!(server.state(), QpState::Rts);

    let established = event(&sides, 0);
    assert_eq!(established.private_data(), b"welcome");
    let EventKind::Established(Established::Connection(agreed), Some(_)) = established.kind()
    else {
        panic!("{established:?}")
    };
    assert_eq!((agreed.max_rd_atomic, agreed.max_dest_rd_atomic), (4, 2));
    assert_eq!(agreed.min_rnr_timer, 12);
    drop(established);
    assert_eq!(name(&sides, 1), "ESTABLISHED");
    let views = [client.query().attr, server.query().attr];
    for [mine, theirs] in [[&views[0], &views[1]], [&views[1], &views[0]]] {
        assert_eq!(mine.sq_psn, theirs.rq_psn);
        assert_eq!(mine.max_rd_atomic, theirs.max_dest_rd_atomic);
    }

    send(&client, 20, b"there");
    send(&server, 21, b"and back");
    let ends = completions(&sides, 4);
    assert_eq!(ends.iter().map(|end| end.wr_id.0).collect::<Vec<_>>(), [10, 11, 20, 21]);
    assert!(ends.iter().all(|end| end.status == WcStatus::Success), "{ends:?}");
    assert_eq!(sides[1].text(0, 5), b"there");
    assert_eq!(sides[0].text(0, 8), b"and back");

    active.disconnect().unwrap();
    assert_eq!(client.state(), QpState::Error);
    assert_eq!(name(&sides, 1), "DISCONNECTED");
    assert_eq!(server.state(), QpState::Error);
    assert_eq!(name(&sides, 0), "DISCONNECTED");
    passive.disconnect().unwrap();
    assert_eq!([name(&sides, 0), name(&sides, 1)], ["TIMEWAIT_EXIT"; 2]);
    assert_eq!([active.state(), passive.state()], [IdState::Over; 2]);
    assert!(sides.iter().all(|side| side.channel.unacknowledged().is_empty()));
    for id in [active, passive, listener] {
        id.destroy().unwrap();
    }
    let left = sides.each_ref().map(|side| side.agent.command(|cm, _| cm.connections()));
    assert_eq!(left, [0, 0]);
}

/// S0-28, S1-26: the program owns its queue pairs, and moves them by the terms that it is told. Data that comes before the
/// peer's word establishes the connection as well.
#[test]
fn s0_28_the_program_owns_its_queue_pairs() {
    let sides = [Side::new(|_| {}), Side::new(|_| {})];
    let qps: [Qp<Rc>; 2] = sides.each_ref().map(|side| side.pd.create_qp(&side.options()).unwrap());
    let local = |side: usize| {
        let qp = LocalQp { qpn: qps[side].number(), psn: Psn::new(0xff_fffe), srq: false };
        let mut params = params(&[]);
        params.qp = Some(qp);
        params
    };
    let listener = sides[1].listen(PortSpace::Tcp);
    let active = sides[0].toward(PortSpace::Tcp, &sides[1]);
    active.connect(&local(0)).unwrap();
    let (passive, _) = request(&sides);
    let terms = passive.negotiate(&local(1)).unwrap();
    assert_eq!(terms.dest_qpn, qps[0].number());
    advance(&qps[1], &terms, QpState::Init).unwrap();
    post_receive(&sides[1], &qps[1], 1);
    advance(&qps[1], &terms, QpState::Rtr).unwrap();
    passive.accept(&local(1)).unwrap();

    let response = event(&sides, 0);
    let EventKind::ConnectResponse(terms, _) = *response.kind() else { panic!("{response:?}") };
    drop(response);
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        advance(&qps[0], &terms, to).unwrap();
    }
    // Its first message overtakes its word.
    send(&qps[0], 2, b"early");
    let early = event(&sides, 1);
    assert!(matches!(early.kind(), EventKind::Established(_, None)), "{early:?}");
    drop(early);
    active.establish(&[]).unwrap();
    let ends = completions(&sides, 2);
    assert!(ends.iter().all(|end| end.status == WcStatus::Success), "{ends:?}");
    assert_eq!(sides[1].text(0, 5), b"early");
    assert_eq!([active.state(), passive.state()], [IdState::Connected; 2]);
    drop((active, listener));
    assert_eq!(name(&sides, 1), "DISCONNECTED");
}

/// S0-29: on a datagram service, to connect is to look up where it is.
#[test]
fn s0_29_datagram_services_are_looked_up() {
    let sides = [Side::new(|_| {}), Side::new(|_| {})];
    let listener = sides[1].listen(PortSpace::Udp);
    let asking = sides[0].toward(PortSpace::Udp, &sides[1]);
    let client = sides[0].qp::<Ud>(&asking);
    asking.connect(&params(b"who?")).unwrap();
    let (asked, event_of_it) = request(&sides);
    assert_eq!(event_of_it.private_data(), b"who?");
    drop(event_of_it);
    let server = sides[1].qp::<Ud>(&asked);
    let sges = [sides[1].mr.sge(0, 128)];
    server.post_recv(&RecvWr { wr_id: WrId(1), sges: &sges }).unwrap();
    asked.accept(&params(b"me")).unwrap();

    let found = event(&sides, 0);
    assert_eq!(found.private_data(), b"me");
    let EventKind::Established(Established::Datagrams { av, qpn, qkey }, _) = *found.kind() else {
        panic!("{found:?}")
    };
    drop(found);
    assert_eq!((qpn, qkey), (server.number(), UDP_QKEY));
    let ah = sides[0].pd.create_ah(&av).unwrap();
    let to = WorkRequest::send_to(Data::Inline(&[b"datagram"]), &ah, qpn, qkey).id(2);
    client.post_send(&to).unwrap();
    let ends = completions(&sides, 2);
    assert_eq!(ends[0].byte_len, 40 + 8);
    assert_eq!(sides[1].text(40, 8), b"datagram");
    drop(listener);

    // S0-40: who refuses is not reached, and says why in its status.
    let nobody = sides[0].toward(PortSpace::Udp, &sides[1]);
    nobody.connect(&params(&[])).unwrap();
    let refused = event(&sides, 0);
    assert_eq!((refused.name(), refused.status()), ("RDMA_CM_EVENT_UNREACHABLE", 1));
    assert!(refused.kind().to_string().contains("nobody listens"), "{}", refused.kind());
}

/// An id's queue pair joins a group, and what is sent there comes to it.
#[test]
fn a_group_is_joined_through_an_id() {
    let sides = [Side::new(|_| {}), Side::new(|_| {})];
    let id = sides[0].channel.create_id(PortSpace::Udp);
    id.bind(sides[0].at(0)).unwrap();
    let qp = sides[0].qp::<Ud>(&id);
    let group = Gid::from(std::net::IpAddr::from([239, 1, 7, 4]));
    id.join_multicast(group).unwrap();
    let joined = event(&sides, 0);
    let EventKind::MulticastJoin(member) = *joined.kind() else { panic!("{joined:?}") };
    drop(joined);
    assert_eq!((member.group, member.qpn, member.qkey), (group, Qpn::MULTICAST, UDP_QKEY));
    assert_eq!(member.av.dgid, group);
    id.leave_multicast(group).unwrap();
    assert!(id.leave_multicast(group).is_err());
    drop(qp);
    // A connection's queue pair has no groups, and says so.
    let stream = sides[0].channel.create_id(PortSpace::Tcp);
    let _qp = sides[0].qp::<Rc>(&stream);
    stream.join_multicast(group).unwrap();
    let refused = event(&sides, 0);
    assert!(matches!(refused.kind(), EventKind::MulticastError(..)), "{refused:?}");
}

/// S0-33: nobody else gets the number of a queue pair before its timewait is over, although program and id have left.
#[test]
fn s0_33_a_number_is_not_used_again_before_timewait_is_over() {
    let sides = [Side::new(|_| {}), Side::new(|_| {})];
    let ([active, passive], [client, server]) = connected(&sides);
    let number = client.number();
    drop((active, client));
    let cx = sides[0].agent.context();
    assert!(cx.query_qp(number).is_some(), "kept for timewait");
    assert_eq!(name(&sides, 1), "DISCONNECTED");
    // The other order: first the queue pair, then the id.
    let other = server.number();
    passive.destroy_qp();
    drop(server);
    assert!(sides[1].agent.context().query_qp(other).is_some());
    assert_eq!(name(&sides, 1), "TIMEWAIT_EXIT");
    assert!(sides[1].agent.context().query_qp(other).is_none());
    drop(passive);
    let start = std::time::Instant::now();
    while cx.query_qp(number).is_some() {
        cx.progress(cx.device().now());
        assert!(sides[0].channel.poll().is_none(), "nobody wants to know");
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    let left = sides.each_ref().map(|side| side.agent.command(|cm, _| cm.connections()));
    assert_eq!(left, [0, 0]);
}

/// S0-34, S0-35: events that are held are counted and named, and an id is not destroyed while one of it is.
#[test]
fn s0_34_s0_35_who_holds_an_event_is_named() {
    let sides = [Side::new(|_| {}), Side::new(|_| {})];
    let id = sides[0].channel.create_id(PortSpace::Tcp);
    id.resolve_addr(sides[1].at(PORT)).unwrap();
    let held = event(&sides, 0);
    let listed = sides[0].channel.unacknowledged();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name, listed[0].id), ("RDMA_CM_EVENT_ADDR_RESOLVED", id.number()));
    assert!(sides[1].channel.unacknowledged().is_empty());
    let other = sides[0].agent.create_channel().unwrap();
    assert!(id.migrate(&other).unwrap_err().to_string().contains("ADDR_RESOLVED"));
    let stays = id.destroy().unwrap_err();
    let text = stays.to_string();
    assert!(
        text.contains("RDMA_CM_EVENT_ADDR_RESOLVED") && text.contains("drop it first"),
        "{text}"
    );
    held.acknowledge();
    assert!(sides[0].channel.unacknowledged().is_empty());
    stays.id.destroy().unwrap();
}

/// What was not taken moves with its id, and what comes later goes to the new channel.
#[test]
fn an_id_moves_to_another_channel_with_its_events() {
    let sides = [Side::new(|_| {}), Side::new(|_| {})];
    let other = sides[0].agent.create_channel().unwrap();
    let id = sides[0].channel.create_id(PortSpace::Tcp);
    id.resolve_addr(sides[1].at(PORT)).unwrap();
    id.migrate(&other).unwrap();
    assert!(sides[0].channel.poll().is_none());
    assert_eq!(other.poll().unwrap().name(), "RDMA_CM_EVENT_ADDR_RESOLVED");
    id.resolve_route().unwrap();
    let wanted = "ROUTE_RESOLVED";
    assert_eq!(other.outcome(&id, wanted, Duration::ZERO).unwrap(), EventKind::RouteResolved);
}

/// A channel's descriptor is readable when something has come over the wire, so that a program can sleep.
#[test]
fn a_program_sleeps_until_something_happens() {
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let side = Side::new(|_| {});
        let listener = side.listen(PortSpace::Tcp);
        tell.send(side.at(PORT)).unwrap();
        let limit = Duration::from_secs(20);
        let (id, _) = side.channel.request(&listener, limit).unwrap();
        let _qp = side.qp::<Rc>(&id);
        let (_, data) = side.channel.accept(&id, &params(b"b"), limit).unwrap();
        assert_eq!(data.without_padding(), b"");
        let wanted = "DISCONNECTED";
        let end = side.channel.outcome(&id, wanted, limit).unwrap();
        assert!(matches!(end, EventKind::Disconnected(_)), "{end}");
    });
    let side = Side::new(|_| {});
    let limit = Duration::from_secs(20);
    let id = side.channel.open(PortSpace::Tcp, told.recv().unwrap(), limit).unwrap();
    let qp = side.qp::<Rc>(&id);
    let (what, data) = side.channel.connect(&id, &params(&[]), limit).unwrap();
    assert_eq!(data.without_padding(), b"b");
    assert!(matches!(what, Established::Connection(terms) if terms.transport == Transport::Rc));
    assert_eq!(qp.state(), QpState::Rts);
    side.channel.disconnect(&id, limit).unwrap();
    server.join().unwrap();
}
