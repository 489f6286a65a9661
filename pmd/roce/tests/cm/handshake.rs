//! Connections as they should be: who says what, and what is agreed.

use core::time::Duration;

use pmd_roce::cm::message::{Message, RequestPath};
use pmd_roce::cm::{
    Accept, AnswerError, CmEvent, CmState, ConnParam, Connect, ConnectError, Disconnection,
    PeerAddress, PortSpace, PrivateData, RejectReason, Route, ServiceId,
};
use pmd_roce::ids::{Gid, PathMtu, Psn, Qpn};
use pmd_roce::qp::state::{QpState, Transport, check};
use pmd_roce::work::Access;

use super::pair::{Pair, SERVICE, SOURCE_PORT, Side, accept, qp};

/// S0-26, S0-27: the order of events on both sides, and the messages that they come from.
#[test]
fn s0_26_a_connection_from_request_to_timewait() {
    let mut pair = Pair::new(1);
    pair.listen();
    let [client, server] = pair.established();
    pair.client.disconnect(pair.now, client, b"bye").unwrap();
    pair.settle();
    let CmEvent::Disconnected(id, Disconnection::ByPeer(data)) = pair.event(Side::Server) else {
        panic!("the server is told")
    };
    assert_eq!((id, data.without_padding(), data.as_bytes().len()), (server, &b"bye"[..], 220));
    let event = pair.event(Side::Client);
    assert!(matches!(event, CmEvent::Disconnected(id, Disconnection::Answered(_)) if id == client));
    pair.assert_states(client, server, CmState::Timewait);
    assert_eq!(pair.told(), ["c REQ", "s REP", "c RTU", "c DREQ", "s DREP"]);
    pair.run(Duration::from_secs(1));
    for (side, id, qpn) in [(Side::Client, client, 0x11), (Side::Server, server, 0x22)] {
        // S0-33: each side's queue pair number is free then.
        assert_eq!(pair.event(side), CmEvent::TimewaitExit(id, Qpn::new(qpn)));
    }
    pair.assert_states(client, server, CmState::Idle);
    pair.assert_nothing_left(client, server);
}

/// S0-27: what the passive side is told of a request. S0-36: private data of its exact size.
#[test]
fn s0_27_a_request_tells_who_asks_for_what() {
    let mut pair = Pair::new(2);
    pair.listen();
    let param = ConnParam {
        responder_resources: 3,
        initiator_depth: 5,
        flow_control: false,
        retry_count: 6,
        rnr_retry_count: 4,
        ..ConnParam::DEFAULT
    };
    let request = pair.request(b"hello");
    pair.client.connect(pair.now, &Connect { param, ..request }).unwrap();
    pair.settle();
    let (_, request) = pair.requested();
    assert_eq!(request.service, SERVICE);
    assert_eq!(request.peer, Some(PeerAddress { ip: [10, 77, 0, 3].into(), port: SOURCE_PORT }));
    assert_eq!((request.route.source, request.route.destination), (pair.gids[1], pair.gids[0]));
    // S0-37: as seen from the other side.
    assert_eq!((request.responder_resources, request.initiator_depth), (5, 3));
    assert_eq!((request.retry_count, request.rnr_retry_count), (6, 4));
    assert!(!request.flow_control && !request.srq);
    assert_eq!(request.path_mtu, PathMtu::B1024);
    assert_eq!(request.private_data.as_bytes().len(), 56);
    assert_eq!(request.private_data.without_padding(), b"hello");
}

/// S0-36, S0-38 and E-07: what does not fit is refused before anything is sent.
#[test]
fn s0_36_s0_38_values_out_of_range_are_refused_and_nothing_is_sent() {
    let mut pair = Pair::new(3);
    pair.listen();
    let long = [1; 57];
    let request = pair.request(&long);
    let refused = pair.client.connect(pair.now, &request).unwrap_err();
    assert_eq!(refused.to_string(), "57 bytes of private data: REQ has room for 56");
    let request = pair.request(&[]);
    let with = |param| Connect { param, ..request };
    for (field, param) in [
        ("retry_count", ConnParam { retry_count: 8, ..ConnParam::DEFAULT }),
        ("rnr_retry_count", ConnParam { rnr_retry_count: 8, ..ConnParam::DEFAULT }),
        ("min_rnr_timer", ConnParam { min_rnr_timer: 32, ..ConnParam::DEFAULT }),
        ("ack_timeout", ConnParam { ack_timeout: Some(32), ..ConnParam::DEFAULT }),
        ("responder_resources", ConnParam { responder_resources: 129, ..ConnParam::DEFAULT }),
        ("initiator_depth", ConnParam { initiator_depth: 129, ..ConnParam::DEFAULT }),
    ] {
        match pair.client.connect(pair.now, &with(param)) {
            Err(ConnectError::Value { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{other:?}"),
        }
    }
    let udp = ServiceId::new(PortSpace::Udp, 1);
    let to_udp = Connect { service: udp, ..request };
    let refused = pair.client.connect(pair.now, &to_udp);
    assert_eq!(refused, Err(ConnectError::Datagrams(udp)));
    let ud = Connect { transport: Transport::Ud, ..request };
    assert_eq!(pair.client.connect(pair.now, &ud), Err(ConnectError::Transport(Transport::Ud)));
    let nowhere = Route::between(pair.gids[0], Gid::default());
    let nowhere = Connect { route: nowhere, ..request };
    assert!(matches!(pair.client.connect(pair.now, &nowhere), Err(ConnectError::Route(_))));
    let mixed = Route::between(pair.gids[0], Gid([0xfd; 16]));
    let mixed = Connect { route: mixed, ..request };
    assert!(matches!(pair.client.connect(pair.now, &mixed), Err(ConnectError::Route(_))));
    assert_eq!((pair.client.connections(), pair.client.poll_transmit()), (0, None));

    pair.client.connect(pair.now, &request).unwrap();
    pair.settle();
    let (server, _) = pair.requested();
    for (room, refused) in [
        (196, pair.server.accept(pair.now, server, &accept(&[1; 197])).unwrap_err()),
        (148, pair.server.reject(server, RejectReason::CONSUMER, &[1; 149]).unwrap_err()),
        (220, pair.server.disconnect(pair.now, server, &[1; 221]).unwrap_err()),
        (224, pair.server.establish(server, &[1; 225]).unwrap_err()),
    ] {
        let AnswerError::PrivateData(too_long) = refused else { panic!("{refused:?}") };
        assert_eq!((too_long.max, too_long.len), (room, room + 1));
    }
    assert_eq!(pair.server.poll_transmit(), None);
    pair.server.accept(pair.now, server, &accept(&[1; 196])).unwrap();
    pair.settle();
    let CmEvent::Reply(_, _, data) = pair.event(Side::Client) else { panic!("a reply") };
    assert_eq!(data.as_bytes(), [1; 196]);
}

/// S0-37: what one side serves bounds what the other may have outstanding. S1-24: each side's first PSN
/// is the one that the other expects. S2-21: the attributes lead from RESET to RTS.
#[test]
fn s0_37_s1_24_s2_21_both_sides_agree_on_the_queue_pairs() {
    let mut pair = Pair::new(4);
    pair.listen();
    let param = ConnParam {
        responder_resources: 8,
        initiator_depth: 2,
        retry_count: 5,
        rnr_retry_count: 3,
        ..ConnParam::DEFAULT
    };
    let request = pair.request(&[]);
    let route = Route { traffic_class: 0x68, hop_limit: 9, ..request.route };
    let request = Connect { param, route, ..request };
    let client = pair.client.connect(pair.now, &request).unwrap();
    pair.settle();
    let (server, _) = pair.requested();
    let param = ConnParam {
        responder_resources: 6,
        initiator_depth: 4,
        retry_count: 1,
        rnr_retry_count: 2,
        min_rnr_timer: 20,
        ..ConnParam::DEFAULT
    };
    let answer = Accept { qp: qp(0x22, 0x222), param, private_data: &[] };
    let passive = pair.server.negotiate(server, &answer).unwrap();
    pair.server.accept(pair.now, server, &answer).unwrap();
    pair.settle();
    let CmEvent::Reply(id, active, _) = pair.event(Side::Client) else { panic!("a reply") };
    assert_eq!(id, client);
    assert_eq!((active.max_rd_atomic, active.max_dest_rd_atomic), (2, 4));
    assert_eq!((passive.max_rd_atomic, passive.max_dest_rd_atomic), (4, 2));
    assert_eq!((active.sq_psn, active.rq_psn), (passive.rq_psn, passive.sq_psn));
    assert_eq!((active.sq_psn, active.rq_psn), (Psn::new(0x222), Psn::new(0x111)));
    assert_eq!((active.dest_qpn, passive.dest_qpn), (Qpn::new(0x22), Qpn::new(0x11)));
    // The request's retries count for both; each side's RNR retries for the other one.
    assert_eq!((active.retry_cnt, passive.retry_cnt), (5, 5));
    assert_eq!((active.rnr_retry, passive.rnr_retry), (2, 3));
    assert_eq!((active.min_rnr_timer, passive.min_rnr_timer), (12, 20));
    assert_eq!((active.timeout, passive.timeout), (17, 17));
    for (end, remote) in [(&active, pair.gids[1]), (&passive, pair.gids[0])] {
        assert_eq!((end.av.dgid, end.av.traffic_class, end.av.hop_limit), (remote, 0x68, 9));
        // Both derive the same UDP source port from it.
        assert_eq!(end.av.flow_label, (u32::from(SOURCE_PORT) * 31 + 7471) & 0xf_ffff);
        for (from, to) in [
            (QpState::Reset, QpState::Init),
            (QpState::Init, QpState::Rtr),
            (QpState::Rtr, QpState::Rts),
        ] {
            let (attr, mask) = end.step(to).unwrap();
            assert_eq!(check(Transport::Rc, from, to, mask), Ok(()));
            assert_eq!(attr.state, to);
        }
        let (attr, _) = end.step(QpState::Init).unwrap();
        assert!(attr.access.contains(Access::REMOTE_READ | Access::REMOTE_WRITE));
        assert_eq!(end.step(QpState::Sqd), None);
    }
}

/// Who serves no READ grants no right to it.
#[test]
fn without_responder_resources_there_is_no_right_to_read() {
    let mut pair = Pair::new(5);
    pair.listen();
    let param = ConnParam { responder_resources: 0, ..ConnParam::DEFAULT };
    let request = pair.request(&[]);
    let request = Connect { param, ..request };
    pair.client.connect(pair.now, &request).unwrap();
    pair.settle();
    let (server, _) = pair.requested();
    pair.server.accept(pair.now, server, &accept(&[])).unwrap();
    pair.settle();
    let CmEvent::Reply(_, active, _) = pair.event(Side::Client) else { panic!("a reply") };
    let (attr, _) = active.step(QpState::Init).unwrap();
    assert_eq!(attr.access, Access::REMOTE_WRITE);
    assert_eq!((active.max_rd_atomic, active.max_dest_rd_atomic), (16, 0));
}

/// P04: ports of different MTU meet at the smaller one, whichever side has it.
#[test]
fn p04_the_smaller_mtu_wins() {
    for (client, server) in [(PathMtu::B4096, PathMtu::B1024), (PathMtu::B1024, PathMtu::B4096)] {
        let mut pair = Pair::with(6, |c| c.mtu = client, |s| s.mtu = server);
        pair.listen();
        pair.connect();
        pair.settle();
        let (id, request) = pair.requested();
        assert_eq!(request.path_mtu, PathMtu::B1024);
        pair.server.accept(pair.now, id, &accept(&[])).unwrap();
        pair.settle();
        let CmEvent::Reply(_, negotiated, _) = pair.event(Side::Client) else { panic!("a reply") };
        assert_eq!(negotiated.path_mtu, PathMtu::B1024);
        let told = pair.told();
        if client > server {
            assert_eq!(told, ["c REQ", "s REJ", "c REQ", "s REP"]);
        } else {
            assert_eq!(told, ["c REQ", "s REP"]);
        }
    }
}

/// S0-31, P25: who refuses says why, in words, and may add data.
#[test]
fn s0_31_p25_reject_reasons_reach_the_other_side() {
    let mut pair = Pair::new(7);
    let client = pair.connect();
    pair.settle();
    let CmEvent::Rejected(id, rejection) = pair.event(Side::Client) else { panic!("a rejection") };
    assert_eq!(id, client);
    assert_eq!(rejection.reason.to_string(), "invalid service id: nobody listens there (8)");
    assert_eq!(pair.client.state(client), Some(CmState::Idle));
    pair.client.destroy(pair.now, client).unwrap();

    pair.listen();
    let client = pair.connect();
    pair.settle();
    let (server, _) = pair.requested();
    pair.server.reject(server, RejectReason::CONSUMER, b"no").unwrap();
    pair.settle();
    let CmEvent::Rejected(_, rejection) = pair.event(Side::Client) else { panic!("a rejection") };
    assert_eq!(rejection.reason, RejectReason(28));
    assert_eq!(rejection.private_data.without_padding(), b"no");
    assert_eq!(rejection.private_data.as_bytes().len(), 148);
    let again = pair.server.accept(pair.now, server, &accept(&[]));
    assert_eq!(again, Err(AnswerError::State(CmState::Idle)));
    pair.assert_nothing_left(client, server);

    // The active side may find that it does not like the reply.
    let client = pair.connect();
    pair.settle();
    let (server, _) = pair.requested();
    pair.server.accept(pair.now, server, &accept(&[])).unwrap();
    pair.settle();
    pair.event(Side::Client);
    pair.client.reject(client, RejectReason::CONSUMER, &[]).unwrap();
    pair.settle();
    assert!(matches!(pair.event(Side::Server), CmEvent::Rejected(id, _) if id == server));
    pair.assert_nothing_left(client, server);
}

/// S1-26: a lost RTU does no harm: packets say the same, and so does the REP's second copy.
#[test]
fn s1_26_a_lost_rtu_is_made_good() {
    for packets_arrive in [false, true] {
        let mut pair = Pair::new(8);
        pair.listen();
        let client = pair.connect();
        pair.settle();
        let (server, _) = pair.requested();
        pair.server.accept(pair.now, server, &accept(&[])).unwrap();
        pair.settle();
        pair.event(Side::Client);
        let mut lost = false;
        pair.passes = Box::new(move |_, message| {
            !matches!(message, Message::Rtu(_)) || core::mem::replace(&mut lost, true)
        });
        pair.client.establish(client, b"ready").unwrap();
        pair.settle();
        pair.no_event(Side::Server);
        if packets_arrive {
            pair.server.communication_established(server).unwrap();
            assert_eq!(pair.event(Side::Server), CmEvent::Established(server, None));
        } else {
            pair.run(Duration::from_secs(5));
            let CmEvent::Established(id, Some(data)) = pair.event(Side::Server) else {
                panic!("established")
            };
            assert_eq!((id, data.without_padding()), (server, &b"ready"[..]));
            assert_eq!(pair.told(), ["c REQ", "s REP", "c RTU", "s REP", "c RTU"]);
        }
        pair.run(Duration::from_secs(300));
        pair.no_event(Side::Server);
        pair.no_event(Side::Client);
        pair.assert_states(client, server, CmState::Established);
        pair.assert_nothing_left(client, server);
    }
}

/// Either side may end a connection, and both may at once.
#[test]
fn both_sides_disconnect_at_once() {
    let mut pair = Pair::new(9);
    pair.listen();
    let [client, server] = pair.established();
    pair.client.disconnect(pair.now, client, &[]).unwrap();
    pair.server.disconnect(pair.now, server, &[]).unwrap();
    pair.settle();
    for (side, id) in [(Side::Client, client), (Side::Server, server)] {
        let event = pair.event(side);
        let by_peer =
            matches!(event, CmEvent::Disconnected(of, Disconnection::ByPeer(_)) if of == id);
        assert!(by_peer, "{event:?}");
        pair.no_event(side);
    }
    pair.assert_states(client, server, CmState::Timewait);
    assert_eq!(pair.told()[3..], ["c DREQ", "s DREQ", "c DREP", "s DREP"]);
    // Once more is no mistake.
    pair.client.disconnect(pair.now, client, &[]).unwrap();
    pair.assert_nothing_left(client, server);
}

/// Connections over IPv6, of unreliable queue pairs, and of services without IP addresses.
#[test]
fn s0_28_s0_45_ipv6_uc_and_services_without_ports() {
    let mut pair = Pair::new(10);
    pair.gids =
        ["fd77::3", "fd77::2"].map(|ip| Gid::from(ip.parse::<core::net::IpAddr>().unwrap()));
    pair.listen();
    let request = pair.request(&[]);
    let request = Connect { transport: Transport::Uc, ..request };
    pair.client.connect(pair.now, &request).unwrap();
    pair.settle();
    let (server, request) = pair.requested();
    assert_eq!(request.transport, Transport::Uc);
    assert_eq!(request.peer.unwrap().ip, "fd77::3".parse::<core::net::IpAddr>().unwrap());
    let negotiated = pair.server.negotiate(server, &accept(&[])).unwrap();
    let (_, mask) = negotiated.step(QpState::Rts).unwrap();
    assert_eq!(check(Transport::Uc, QpState::Rtr, QpState::Rts, mask), Ok(()));

    let service = ServiceId::new(PortSpace::Ib, 9);
    pair.listen_for(service);
    let request = pair.request(&[5; 92]);
    let request = Connect { service, qp: qp(0x12, 1), ..request };
    pair.client.connect(pair.now, &request).unwrap();
    pair.settle();
    let (_, request) = pair.requested();
    assert_eq!((request.peer, request.private_data.as_bytes()), (None, &[5; 92][..]));
    assert_eq!(request.route.flow_label, 0);
}

/// The bytes of a request are those that Linux would send.
#[test]
fn a_request_fills_the_fields_of_roce() {
    let mut pair = Pair::new(11);
    pair.connect();
    let mad = pair.client.poll_transmit().unwrap().mad;
    let (tid, Message::Req(req)) = Message::parse(&mad).unwrap() else { panic!("a REQ") };
    assert_eq!(tid, 2 << 32 | u64::from(req.local_comm_id.swap_bytes()));
    let path = req.primary;
    assert_eq!((path.local_lid, path.remote_lid), (RequestPath::NO_LID, RequestPath::NO_LID));
    assert_eq!((path.local_gid, path.remote_gid), (pair.gids[0], pair.gids[1]));
    assert_eq!((path.hop_limit, path.subnet_local, path.sl, path.packet_rate), (64, false, 0, 0));
    assert_eq!((req.alternate, req.local_qkey, req.pkey.0), (None, 0, 0xffff));
    assert_eq!((req.remote_response_timeout, req.local_response_timeout), (20, 20));
}

/// P25, S0-36, E-07: private data of every length that a message has room for arrives at that length, with nothing but zeros
/// behind it; one byte more is refused before anything is sent, by the numbers of both.
#[test]
fn p25_private_data_of_every_length_arrives_at_its_length() {
    let bytes: Vec<u8> = (0..=255).map(|at: u8| at | 1).collect();
    let exact = |data: &PrivateData, len: usize, field: usize, what: &str| {
        assert_eq!(data.as_bytes().len(), field, "{what}");
        assert_eq!(data.without_padding(), &bytes[..len], "{what} of {len} bytes");
    };
    let mut pair = Pair::new(9);
    pair.listen();
    for len in 0..=220 {
        let [ask, reply, rtu] = [56, 196, 220].map(|room| len.min(room));
        let client = pair.client.connect(pair.now, &pair.request(&bytes[..ask])).unwrap();
        pair.settle();
        let (server, request) = pair.requested();
        exact(&request.private_data, ask, 56, "REQ");
        pair.server.accept(pair.now, server, &accept(&bytes[..reply])).unwrap();
        pair.settle();
        let CmEvent::Reply(_, _, data) = pair.event(Side::Client) else { panic!("a reply") };
        exact(&data, reply, 196, "REP");
        pair.client.establish(client, &bytes[..rtu]).unwrap();
        pair.settle();
        let CmEvent::Established(_, Some(data)) = pair.event(Side::Server) else {
            panic!("an RTU")
        };
        exact(&data, rtu, 224, "RTU");
        pair.client.disconnect(pair.now, client, &bytes[..len]).unwrap();
        pair.settle();
        let CmEvent::Disconnected(_, Disconnection::ByPeer(data)) = pair.event(Side::Server) else {
            panic!("a DREQ")
        };
        exact(&data, len, 220, "DREQ");
        pair.run(Duration::from_secs(5));
        for side in [Side::Client, Side::Server] {
            while pair.cm(side).poll_event().is_some() {}
        }
        pair.assert_nothing_left(client, server);
    }
    for len in 0..=148 {
        let client = pair.connect();
        pair.settle();
        let (server, _) = pair.requested();
        pair.server.reject(server, RejectReason::CONSUMER, &bytes[..len]).unwrap();
        pair.settle();
        let CmEvent::Rejected(_, rejection) = pair.event(Side::Client) else { panic!("a REJ") };
        exact(&rejection.private_data, len, 148, "REJ");
        pair.assert_nothing_left(client, server);
    }

    let refused = pair.client.connect(pair.now, &pair.request(&bytes[..57])).unwrap_err();
    assert_eq!(refused.to_string(), "57 bytes of private data: REQ has room for 56");
    assert_eq!(pair.client.poll_transmit(), None);
    let client = pair.connect();
    pair.settle();
    let (server, _) = pair.requested();
    let refused = pair.server.accept(pair.now, server, &accept(&bytes[..197])).unwrap_err();
    assert_eq!(refused.to_string(), "197 bytes of private data: REP has room for 196");
    let refused = pair.server.reject(server, RejectReason::CONSUMER, &bytes[..149]).unwrap_err();
    assert_eq!(refused.to_string(), "149 bytes of private data: REJ has room for 148");
    assert_eq!(pair.server.poll_transmit(), None);
    pair.server.accept(pair.now, server, &accept(&[])).unwrap();
    pair.settle();
    let refused = pair.client.establish(client, &bytes[..225]).unwrap_err();
    assert_eq!(refused.to_string(), "225 bytes of private data: RTU has room for 224");
    assert_eq!(pair.client.poll_transmit(), None);
    pair.client.establish(client, &bytes[..224]).unwrap();
    pair.settle();
    let refused = pair.client.disconnect(pair.now, client, &bytes[..221]).unwrap_err();
    assert_eq!(refused.to_string(), "221 bytes of private data: DREQ has room for 220");
    assert_eq!(pair.client.poll_transmit(), None);
}
