//! Datagram services: looked up, not connected.

use core::time::Duration;

use pmd_roce::cm::{
    AnswerError, CmDrop, CmEvent, ConnectError, Found, Listen, Lookup, LookupAnswer, LookupId,
    LookupRequest, Message, PeerAddress, PortSpace, PrivateData, Route, ServiceId, SidrStatus,
};
use pmd_roce::ids::Qpn;
use pmd_roce::sink::Flow;

use super::pair::{Pair, Side, ipv4};

const UDP: ServiceId = ServiceId::new(PortSpace::Udp, 7174);
/// Of `rdma_cm`'s datagram services.
const QKEY: u32 = 0x0123_4567;

fn ask(pair: &mut Pair, private_data: &[u8]) -> Result<LookupId, ConnectError> {
    let route = Route::between(pair.gids[0], pair.gids[1]);
    let lookup = Lookup { service: UDP, source_port: 41_000, route, private_data };
    pair.client.lookup(pair.now, &lookup)
}

fn asked(pair: &mut Pair) -> (LookupId, LookupRequest) {
    match pair.event(Side::Server) {
        CmEvent::LookupRequest(id, request) => (id, request),
        other => panic!("{other:?}"),
    }
}

const FOUND: LookupAnswer<'_> =
    LookupAnswer::Found { qpn: Qpn::new(0x22), qkey: QKEY, private_data: b"here" };

/// S0-29, S1-44: a lookup hands out queue pair and Q_Key; S0-36: 180 bytes there, 136 back.
#[test]
fn s0_29_s1_44_a_lookup_finds_queue_pair_and_qkey() {
    let mut pair = Pair::new(1);
    pair.listen_for(UDP);
    let refused = ask(&mut pair, &[1; 181]).unwrap_err();
    assert_eq!(refused.to_string(), "181 bytes of private data: SIDR REQ has room for 180");
    let lookup = ask(&mut pair, &[1; 180]).unwrap();
    pair.settle();
    let (question, request) = asked(&mut pair);
    assert_eq!((request.service, request.private_data.as_bytes()), (UDP, &[1; 180][..]));
    assert_eq!(request.peer, Some(PeerAddress { ip: [10, 77, 0, 3].into(), port: 41_000 }));
    let long = LookupAnswer::Found { qpn: Qpn::new(1), qkey: 1, private_data: &[1; 137] };
    let refused = pair.server.answer_lookup(pair.now, question, &long).unwrap_err();
    assert!(matches!(refused, AnswerError::PrivateData(_)), "{refused}");
    pair.server.answer_lookup(pair.now, question, &FOUND).unwrap();
    let twice = pair.server.answer_lookup(pair.now, question, &FOUND);
    assert_eq!(twice, Err(AnswerError::NoSuchConnection));
    pair.settle();
    let CmEvent::LookupReply(id, Ok(found)) = pair.event(Side::Client) else { panic!("a reply") };
    assert_eq!((id, found.qpn, found.qkey), (lookup, Qpn::new(0x22), QKEY));
    assert_eq!(found.private_data.without_padding(), b"here");
    assert_eq!(pair.told(), ["c SIDR REQ", "s SIDR REP"]);
    pair.run(Duration::from_secs(20));
    assert_eq!((pair.client.lookups(), pair.server.lookups()), (0, 0));
    assert_eq!((pair.client.poll_timeout(), pair.server.poll_timeout()), (None, None));
}

#[test]
fn a_refused_lookup_says_why() {
    let mut pair = Pair::new(2);
    let lookup = ask(&mut pair, &[]).unwrap();
    pair.settle();
    let nobody = CmEvent::LookupReply(lookup, Err(SidrStatus::UNSUPPORTED));
    assert_eq!(pair.event(Side::Client), nobody);
    assert_eq!(
        SidrStatus::UNSUPPORTED.to_string(),
        "service id not supported: nobody listens there (1)"
    );
    pair.listen_for(UDP);
    let lookup = ask(&mut pair, &[]).unwrap();
    pair.settle();
    let (question, _) = asked(&mut pair);
    let no = LookupAnswer::Refused { status: SidrStatus::NO_QP, private_data: &[] };
    pair.server.answer_lookup(pair.now, question, &no).unwrap();
    pair.settle();
    assert_eq!(pair.event(Side::Client), CmEvent::LookupReply(lookup, Err(SidrStatus::NO_QP)));
}

/// S0-30: nobody answers.
#[test]
fn s0_30_a_lookup_that_nobody_answers_ends() {
    let mut pair = Pair::with(3, |config| config.max_retries = 2, |_| {});
    pair.passes = Box::new(|_, _| false);
    let lookup = ask(&mut pair, &[]).unwrap();
    pair.run(Duration::from_secs(60));
    assert_eq!(pair.told(), ["c SIDR REQ"; 3]);
    assert_eq!(pair.event(Side::Client), CmEvent::LookupUnreachable(lookup));
    assert_eq!(pair.client.lookups(), 0);
    assert_eq!(pair.client.destroy_lookup(lookup), Err(AnswerError::NoSuchConnection));
}

/// The same question has the same answer, and asks the consumer once.
#[test]
fn a_lost_answer_is_given_again() {
    let mut pair = Pair::new(4);
    pair.listen_for(UDP);
    let mut lost = false;
    pair.passes = Box::new(move |_, message| {
        !matches!(message, Message::SidrRep(_)) || core::mem::replace(&mut lost, true)
    });
    let lookup = ask(&mut pair, &[]).unwrap();
    pair.run(Duration::from_secs(5));
    let (question, _) = asked(&mut pair);
    pair.server.answer_lookup(pair.now, question, &FOUND).unwrap();
    pair.run(Duration::from_secs(5));
    assert!(matches!(pair.event(Side::Client), CmEvent::LookupReply(id, Ok(_)) if id == lookup));
    pair.no_event(Side::Server);
    let told = ["c SIDR REQ", "c SIDR REQ", "s SIDR REP", "c SIDR REQ", "s SIDR REP"];
    assert_eq!(pair.told(), told);
}

/// Answers of strangers are none, and strangers who ask cannot fill the table.
#[test]
fn strangers_neither_answer_nor_crowd_out() {
    let mut pair = Pair::with(5, |_| {}, |server| server.lookups = 4);
    pair.server.listen(Listen { service: UDP, address: None, backlog: 2 }).unwrap();
    ask(&mut pair, &[]).unwrap();
    let question = pair.client.poll_transmit().unwrap().mad;
    let (tid, Message::SidrReq(req)) = Message::parse(&question).unwrap() else {
        panic!("a question")
    };
    let rep = pmd_roce::cm::message::SidrRep {
        request_id: req.request_id,
        status: SidrStatus::SUCCESS,
        qpn: Qpn::new(9),
        service: UDP,
        qkey: 1,
        private_data: PrivateData::EMPTY,
    };
    let elsewhere = Flow { src: ipv4(99), ..pair.flow(Side::Server) };
    let mad = Message::from(rep).emit(tid);
    assert_eq!(pair.client.handle_mad(pair.now, &elsewhere, &mad), Err(CmDrop::WrongPeer));
    let other = pmd_roce::cm::message::SidrRep { request_id: req.request_id ^ 0x1_0000, ..rep };
    let (mad, flow) = (Message::from(other).emit(tid), pair.flow(Side::Server));
    assert_eq!(pair.client.handle_mad(pair.now, &flow, &mad), Err(CmDrop::UnknownId));

    let flow = pair.flow(Side::Client);
    for n in 0..10 {
        let req = pmd_roce::cm::message::SidrReq { request_id: n, ..req };
        let taken = pair.server.handle_mad(pair.now, &flow, &Message::from(req).emit(1));
        assert_eq!(taken.is_ok(), n < 2, "{n}");
    }
    assert_eq!((pair.server.lookups(), pair.server.poll_transmit()), (2, None));
    let (first, _) = asked(&mut pair);
    pair.server.destroy_lookup(first).unwrap();
    assert_eq!(pair.server.lookups(), 1);
    let (second, _) = asked(&mut pair);
    pair.server.answer_lookup(pair.now, second, &FOUND).unwrap();
    let wrong_side = pair.client.answer_lookup(pair.now, second, &FOUND);
    assert_eq!(wrong_side, Err(AnswerError::NoSuchConnection));
    let found = Found { qpn: Qpn::new(0x22), qkey: QKEY, private_data: PrivateData::EMPTY };
    assert_ne!(found.qkey, 0);
}
