//! What comes from elsewhere, comes twice, or comes broken: bounded, named, and nothing of it stays.

use core::time::Duration;

use pmd_roce::cm::message::{Drep, Dreq, Message, Mra, Rej, RejectInfo, Rep, Req, Rtu};
use pmd_roce::cm::{
    CmDrop, CmEvent, CmState, Connect, Disconnection, Listen, ListenError, PrivateData,
    RejectReason, message::Answered,
};
use pmd_roce::ids::{PathMtu, Qpn};
use pmd_roce::sink::Flow;
use pmd_sim::Rng;

use super::pair::{Pair, SERVICE, Side, accept, ipv4, qp};

/// The last message of a kind that was sent.
fn last(pair: &Pair, name: &str) -> (u64, Message) {
    let messages = pair.sent.iter().map(|(_, mad)| Message::parse(mad).unwrap());
    messages.rev().find(|(_, message)| message.name() == name).expect(name)
}

/// A request that nothing of is wrong, as the client sends it.
fn sound_request(pair: &mut Pair) -> Req {
    pair.connect();
    let mad = pair.client.poll_transmit().unwrap().mad;
    let (_, Message::Req(req)) = Message::parse(&mad).unwrap() else { panic!("a REQ") };
    req
}

/// What the server answers at once.
fn answer(
    pair: &mut Pair,
    flow: &Flow,
    message: impl Into<Message>,
) -> (Result<(), CmDrop>, Option<Message>) {
    let outcome = pair.server.handle_mad(pair.now, flow, &message.into().emit(7));
    let answer = pair.server.poll_transmit().map(|transmit| {
        assert_eq!((transmit.route.source, transmit.route.destination), (flow.dst, flow.src));
        let (tid, message) = Message::parse(&transmit.mad).unwrap();
        assert_eq!(tid, 7);
        message
    });
    assert_eq!(pair.server.poll_transmit(), None);
    (outcome, answer)
}

/// S0-31: requests that cannot be granted are refused with the reason that the specification has for it,
/// and take no place.
#[test]
fn s0_31_requests_that_make_no_sense_are_refused_by_reason() {
    let mut pair = Pair::new(1);
    let req = sound_request(&mut pair);
    let flow = pair.flow(Side::Client);
    let (outcome, nobody) = answer(&mut pair, &flow, req);
    assert_eq!(outcome, Err(CmDrop::Refused));
    let Some(Message::Rej(rej)) = nobody else { panic!("a REJ") };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (0, req.local_comm_id));
    assert_eq!((rej.reason, rej.message), (RejectReason::INVALID_SERVICE_ID, Answered::Req));

    pair.listen();
    let elsewhere = ipv4(99);
    let path = |local_gid, remote_gid| pmd_roce::cm::message::RequestPath {
        local_gid,
        remote_gid,
        ..req.primary
    };
    let (client, server) = (flow.src, flow.dst);
    let header_of_another = {
        let mut field = req.private_data.as_bytes().to_vec();
        field[19] ^= 1;
        PrivateData::new(&field, 92, "REQ").unwrap()
    };
    let unknown_version = PrivateData::new(&[1; 92], 92, "REQ").unwrap();
    for (spoilt, reason, info) in [
        (Req { service_type: pmd_roce::cm::message::ServiceType::Rd, ..req }, 9, &[][..]),
        (Req { service_type: pmd_roce::cm::message::ServiceType::Xrc, ..req }, 9, &[]),
        (Req { primary: path(elsewhere, server), ..req }, 12, &server.0),
        (Req { primary: path(client, elsewhere), ..req }, 12, &server.0),
        (Req { path_mtu_code: 0, ..req }, 26, &[3]),
        (Req { path_mtu_code: 15, ..req }, 26, &[3]),
        (Req { path_mtu_code: PathMtu::B2048 as u8, ..req }, 26, &[3]),
        (Req { pkey: pmd_roce::wire::Pkey(0x8001), ..req }, 5, &[]),
        (Req { private_data: header_of_another, ..req }, 5, &[]),
        (Req { private_data: unknown_version, ..req }, 5, &[]),
    ] {
        let (outcome, rej) = answer(&mut pair, &flow, spoilt);
        assert_eq!(outcome, Err(CmDrop::Refused), "{reason}");
        let Some(Message::Rej(rej)) = rej else { panic!("a REJ for {reason}") };
        assert_eq!((rej.reason.0, rej.info.as_bytes()), (reason, info));
    }
    let nameless = answer(&mut pair, &flow, Req { local_comm_id: 0, ..req });
    assert!(matches!(nameless, (Err(CmDrop::Nonsense(_)), None)), "{nameless:?}");
    assert_eq!(pair.server.connections(), 0);
    assert_eq!(pair.server.counters().refused, 11);
    assert_eq!(answer(&mut pair, &flow, req), (Ok(()), None));
}

/// A connection hears its peer alone, by the names that both sides have given it.
#[test]
fn messages_of_strangers_change_nothing() {
    let mut pair = Pair::new(2);
    pair.listen();
    let [client, server] = pair.established();
    let elsewhere = Flow { src: ipv4(99), ..pair.flow(Side::Client) };
    let none = PrivateData::EMPTY;
    let (local, remote) = (client.0, server.0);
    let rej = |local_comm_id, remote_comm_id| Rej {
        local_comm_id,
        remote_comm_id,
        message: Answered::Other,
        reason: RejectReason::CONSUMER,
        info: RejectInfo::NONE,
        private_data: none,
    };
    let dreq = |local_comm_id, remote_comm_id, qpn| Dreq {
        local_comm_id,
        remote_comm_id,
        remote_qpn: Qpn::new(qpn),
        private_data: none,
    };
    let messages: [Message; 6] = [
        dreq(local, remote, 0x22).into(),
        rej(local, remote).into(),
        Rtu { local_comm_id: local, remote_comm_id: remote, private_data: none }.into(),
        Drep { local_comm_id: local, remote_comm_id: remote, private_data: none }.into(),
        Mra {
            local_comm_id: local,
            remote_comm_id: remote,
            message: Answered::Req,
            service_timeout: 31,
            private_data: none,
        }
        .into(),
        last(&pair, "REP").1,
    ];
    for message in messages {
        let message = match message {
            Message::Rep(rep) => Rep { remote_comm_id: remote, ..rep }.into(),
            other => other,
        };
        let (outcome, answer) = answer(&mut pair, &elsewhere, message);
        assert_eq!((outcome, answer), (Err(CmDrop::WrongPeer), None), "{}", message.name());
    }
    // From the right place, with a name or a queue pair that is not right.
    let flow = pair.flow(Side::Client);
    for message in [
        Message::from(dreq(local ^ 1, remote, 0x22)),
        dreq(local, remote, 0x23).into(),
        rej(local ^ 1, remote).into(),
        Rtu { local_comm_id: local ^ 1, remote_comm_id: remote, private_data: none }.into(),
        Drep { local_comm_id: local ^ 1, remote_comm_id: remote, private_data: none }.into(),
    ] {
        let outcome = answer(&mut pair, &flow, message);
        assert_eq!(outcome, (Err(CmDrop::UnknownId), None), "{}", message.name());
    }
    // A number that means nothing: only a DREQ is answered, since it is over here.
    let (outcome, drep) = answer(&mut pair, &elsewhere, dreq(5, remote ^ 0x8000, 1));
    assert_eq!(outcome, Err(CmDrop::UnknownId));
    let Some(Message::Drep(drep)) = drep else { panic!("a DREP") };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (remote ^ 0x8000, 5));
    // A stranger that claims to be the client's adapter with the client's queue pair.
    let (_, Message::Req(req)) = last(&pair, "REQ") else { panic!("a REQ") };
    let primary = pmd_roce::cm::message::RequestPath { local_gid: elsewhere.src, ..req.primary };
    let stolen = Req { primary, local_comm_id: 1, ..req };
    let (_, rej) = answer(&mut pair, &elsewhere, stolen);
    assert!(matches!(rej, Some(Message::Rej(_))), "the header names the client: {rej:?}");
    pair.assert_states(client, server, CmState::Established);
    pair.no_event(Side::Server);
}

/// Each message twice, in every state: the second copy changes nothing.
#[test]
fn every_message_may_come_twice() {
    let mut pair = Pair::new(3);
    pair.faults.duplication = 1_000_000;
    pair.listen();
    let [client, server] = pair.established();
    pair.client.disconnect(pair.now, client, &[]).unwrap();
    pair.settle();
    assert!(matches!(pair.event(Side::Server), CmEvent::Disconnected(..)));
    assert!(matches!(pair.event(Side::Client), CmEvent::Disconnected(..)));
    pair.no_event(Side::Server);
    pair.no_event(Side::Client);
    pair.assert_states(client, server, CmState::Timewait);
    assert!(pair.refused >= 5, "each of the five came twice");
    // A copy that comes late: of the REQ in timewait, and of all of them when all is forgotten.
    let all: Vec<_> = pair.sent.clone();
    let (flow, req) = (pair.flow(Side::Client), last(&pair, "REQ").1);
    let (outcome, rej) = answer(&mut pair, &flow, req);
    assert_eq!(outcome, Err(CmDrop::Refused));
    assert!(matches!(rej, Some(Message::Rej(rej)) if rej.reason == RejectReason::STALE));
    pair.server.destroy(pair.now, server).unwrap();
    pair.client.destroy(pair.now, client).unwrap();
    pair.run(Duration::from_secs(10));
    for (side, mad) in all {
        let (flow, now) = (pair.flow(side), pair.now);
        let receiver = pair.cm(side.other());
        let outcome = receiver.handle_mad(now, &flow, &mad);
        let (_, message) = Message::parse(&mad).unwrap();
        assert_eq!(outcome.is_ok(), matches!(message, Message::Req(_)), "{}", message.name());
    }
    assert_eq!((pair.client.connections(), pair.server.connections()), (0, 1));
}

/// A peer that has lost a connection, and uses its queue pair for another one.
#[test]
fn a_stale_connection_is_refused_and_ended() {
    let mut pair = Pair::with(4, |client| client.max_retries = 1, |server| server.max_retries = 1);
    pair.listen();
    let [_, server] = pair.established();
    // The client starts anew, with other communication ids and the same queue pair.
    let config = *pair.client.config();
    pair.client = pmd_roce::cm::Cm::new(pmd_roce::cm::CmConfig { seed: !config.seed, ..config });
    let client = pair.connect();
    pair.settle();
    let CmEvent::Rejected(id, why) = pair.event(Side::Client) else { panic!("a rejection") };
    assert_eq!((id, why.reason), (client, RejectReason::STALE));
    // S0-33: that queue pair may have packets under way.
    assert_eq!(pair.client.state(client), Some(CmState::Timewait));
    let event = pair.event(Side::Server);
    assert!(matches!(event, CmEvent::Disconnected(id, Disconnection::Answered(_)) if id == server));
    pair.run(Duration::from_secs(1));
    pair.client.destroy(pair.now, client).unwrap();
    let again = pair.connect();
    pair.settle();
    assert!(matches!(pair.event(Side::Server), CmEvent::TimewaitExit(..)));
    let (server, _) = pair.requested();
    pair.server.accept(pair.now, server, &accept(&[])).unwrap();
    pair.settle();
    assert!(matches!(pair.event(Side::Client), CmEvent::Reply(id, ..) if id == again));
}

/// A reply with a queue pair that this side has a connection with already.
#[test]
fn a_stale_reply_is_refused() {
    let mut pair = Pair::new(5);
    pair.listen();
    let [old, _] = pair.established();
    let request = pair.request(&[]);
    let request = Connect { qp: qp(0x12, 3), ..request };
    let new = pair.client.connect(pair.now, &request).unwrap();
    pair.settle();
    let (server, _) = pair.requested();
    // The same queue pair 0x22 again.
    pair.server.accept(pair.now, server, &accept(&[])).unwrap();
    pair.settle();
    let CmEvent::Rejected(id, why) = pair.event(Side::Server) else { panic!("a rejection") };
    assert_eq!((id, why.reason, why.message), (server, RejectReason::STALE, Answered::Rep));
    assert!(matches!(pair.event(Side::Client), CmEvent::Disconnected(id, _) if id == old));
    assert_eq!(pair.client.state(new), Some(CmState::ReqSent));
}

/// However many ask: the backlog bounds who waits, and the table who there is.
#[test]
fn requests_beyond_the_backlog_are_refused() {
    let mut pair = Pair::with(6, |_| {}, |server| server.connections = 4);
    let req = sound_request(&mut pair);
    let listen = Listen { service: SERVICE, address: Some(pair.gids[1]), backlog: 3 };
    let listener = pair.server.listen(listen).unwrap();
    let anywhere = Listen { address: None, ..listen };
    assert_eq!(pair.server.listen(anywhere), Err(ListenError::InUse(SERVICE)));
    let flow = pair.flow(Side::Client);
    let nth = |n: u32| Req { local_comm_id: n, local_qpn: Qpn::new(n), ..req };
    let refused = |(_, answer)| matches!(answer, Some(Message::Rej(rej)) if rej.reason == RejectReason::NO_RESOURCES);
    for n in 1..=3 {
        assert_eq!(answer(&mut pair, &flow, nth(n)), (Ok(()), None));
    }
    assert!(refused(answer(&mut pair, &flow, nth(4))));
    // One is answered, and its place in the backlog is free; the table's last place is taken then.
    let (first, _) = pair.requested();
    let one = pmd_roce::cm::Accept { qp: qp(0x31, 1), ..accept(&[]) };
    pair.server.accept(pair.now, first, &one).unwrap();
    pair.server.poll_transmit().unwrap();
    assert_eq!(answer(&mut pair, &flow, nth(4)), (Ok(()), None));
    assert!(refused(answer(&mut pair, &flow, nth(5))));
    // Who listens no more gets no more, and answers what waits.
    pair.server.unlisten(listener);
    let (_, rej) = answer(&mut pair, &flow, nth(6));
    assert!(matches!(rej, Some(Message::Rej(rej)) if rej.reason.0 == 8));
    let (second, _) = pair.requested();
    pair.server.reject(second, RejectReason::CONSUMER, &[]).unwrap();
}

/// Messages that nobody takes to the wire are bounded, whoever causes them.
#[test]
fn a_flood_of_questions_fills_no_memory() {
    let mut pair = Pair::new(7);
    let req = sound_request(&mut pair);
    let flow = pair.flow(Side::Client);
    for n in 0..3000 {
        let mad = Message::from(Req { local_comm_id: n + 1, ..req }).emit(1);
        assert_eq!(pair.server.handle_mad(pair.now, &flow, &mad), Err(CmDrop::Refused));
    }
    let waiting = core::iter::from_fn(|| pair.server.poll_transmit()).count();
    assert_eq!(waiting, pmd_roce::cm::limits::OUTBOX);
    assert_eq!(pair.server.counters().lost, 3000 - waiting as u64);
}

/// Messages of all kinds with any values, from the peer and from elsewhere, in every state.
#[test]
fn random_messages_leave_a_manager_sound() {
    let mut refused = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::with(seed, |c| c.connections = 8, |s| s.connections = 8);
        pair.listen();
        let [client, server] = pair.established();
        let ids = [0, client.0, server.0, client.0 ^ 1, server.0 ^ 1, rng.bits32()];
        let originals = pair.sent.clone();
        for _ in 0..60 {
            let side = if rng.chance(500_000) { Side::Client } else { Side::Server };
            let (_, mad) = &originals[rng.index(originals.len())];
            let mut mad = mad.clone();
            mad[17] = 0x10 + rng.below(10) as u8;
            for at in [24, 28] {
                if rng.chance(700_000) {
                    mad[at..at + 4].copy_from_slice(&ids[rng.index(ids.len())].to_be_bytes());
                }
            }
            for _ in 0..rng.below(4) {
                let at = rng.index(mad.len());
                mad[at] = rng.bits() as u8;
            }
            let len = if rng.chance(50_000) { rng.index(300) } else { 256 };
            mad.resize(len, 0);
            let mut flow = pair.flow(side);
            if rng.chance(200_000) {
                flow.src = ipv4(rng.bits() as u8);
            }
            let now = pair.now;
            pair.refused += u32::from(pair.cm(side.other()).handle_mad(now, &flow, &mad).is_err());
            // What it says goes to whoever it was, which is not the network of the two.
            for side in [Side::Client, Side::Server] {
                while pair.cm(side).poll_transmit().is_some() {}
            }
            if rng.chance(200_000) {
                pair.run(Duration::from_millis(rng.below(5000)));
            }
        }
        for side in [Side::Client, Side::Server] {
            let now = pair.now;
            let cm = pair.cm(side);
            while let Some(event) = cm.poll_event() {
                if let Some(id) = event.connection().filter(|id| cm.state(*id).is_some()) {
                    cm.destroy(now, id).unwrap();
                }
            }
        }
        for (side, id) in [(Side::Client, client), (Side::Server, server)] {
            let now = pair.now;
            if pair.cm(side).state(id).is_some() {
                pair.cm(side).destroy(now, id).unwrap();
            }
        }
        pair.passes = Box::new(|_, _| false);
        for side in [Side::Client, Side::Server] {
            for _ in 0..200 {
                while pair.cm(side).poll_transmit().is_some() {}
                let Some(next) = pair.cm(side).poll_timeout() else { break };
                pair.cm(side).handle_timeout(next);
            }
            assert_eq!(pair.cm(side).connections(), 0, "seed {seed} {side:?}");
            assert_eq!(pair.cm(side).poll_event(), None);
        }
        refused += pair.refused;
    }
    // Some of it makes sense, so that both ways are tried.
    assert!((1000..17_900).contains(&refused), "{refused} of 18000");
}
