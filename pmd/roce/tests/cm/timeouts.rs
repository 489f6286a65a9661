//! Every state has an end, whatever the peer or the consumer does not do.

use core::time::Duration;

use pmd_roce::cm::message::Message;
use pmd_roce::cm::{AnswerError, Awaited, CmEvent, CmState, Disconnection, RejectReason};
use pmd_roce::ids::Qpn;

use super::pair::{Pair, Side, accept};

/// Lets nothing of this kind pass.
fn without(pair: &mut Pair, lost: fn(&Message) -> bool) {
    pair.passes = Box::new(move |_, message| !lost(message));
}

/// When messages of a name were sent, in milliseconds.
fn times(pair: &Pair, name: &str) -> Vec<u128> {
    pair.log.iter().filter(|(_, _, told)| *told == name).map(|(at, ..)| at.as_millis()).collect()
}

/// S0-30: a server that cannot be reached is told of, after as many tries as agreed, each in its time.
#[test]
fn s0_30_req_sent_ends_unreachable() {
    let mut pair = Pair::with(1, |config| config.max_retries = 3, |_| {});
    without(&mut pair, |message| matches!(message, Message::Req(_)));
    let client = pair.connect();
    pair.run(Duration::from_secs(60));
    // 2 x lifetime of 256 ms + response of 4096 ms.
    assert_eq!(times(&pair, "REQ"), [0, 4608, 9216, 13824]);
    let all: Vec<_> = pair.sent.iter().map(|(_, mad)| mad).collect();
    assert!(all.iter().all(|mad| *mad == all[0]), "sent again byte for byte");
    assert_eq!(pair.event(Side::Client), CmEvent::Unreachable(client, Awaited::Reply));
    assert_eq!(pair.client.state(client), Some(CmState::Idle));
    assert_eq!(pair.client.counters().resent, 3);
    pair.client.destroy(pair.now, client).unwrap();
    assert_eq!(pair.client.connections(), 0);
}

#[test]
fn rep_sent_ends_unreachable() {
    let mut pair = Pair::with(2, |config| config.max_retries = 2, |_| {});
    pair.listen();
    let client = pair.connect();
    pair.settle();
    let (server, _) = pair.requested();
    without(&mut pair, |message| matches!(message, Message::Rep(_) | Message::Rej(_)));
    pair.server.accept(pair.now, server, &accept(&[])).unwrap();
    pair.run(Duration::from_secs(60));
    assert_eq!(times(&pair, "REP"), [20, 4116, 8212]);
    assert_eq!(pair.event(Side::Server), CmEvent::Unreachable(server, Awaited::Rtu));
    assert_eq!(pair.event(Side::Client), CmEvent::Unreachable(client, Awaited::Reply));
    pair.assert_nothing_left(client, server);
}

/// A peer asks again while the consumer thinks: it is asked to wait, does, and the answer still counts.
#[test]
fn a_slow_consumer_has_the_peer_wait() {
    let mut pair = Pair::with(3, |config| config.max_retries = 2, |_| {});
    pair.listen();
    let client = pair.connect();
    pair.settle();
    let (server, _) = pair.requested();
    pair.run(Duration::from_secs(60));
    // One MRA, and no REQ while its 65.5 s last; 15 s would have been all otherwise.
    assert_eq!(pair.told(), ["c REQ", "c REQ", "s MRA"]);
    assert_eq!(pair.client.state(client), Some(CmState::MraReqRcvd));
    assert_eq!(pair.server.state(server), Some(CmState::MraReqSent));
    pair.server.accept(pair.now, server, &accept(&[])).unwrap();
    pair.settle();
    assert!(matches!(pair.event(Side::Client), CmEvent::Reply(id, ..) if id == client));
    // The same on the other side.
    pair.run(Duration::from_secs(30));
    assert_eq!(pair.told()[3..], ["s REP", "s REP", "c MRA"]);
    assert_eq!(pair.client.state(client), Some(CmState::MraRepSent));
    assert_eq!(pair.server.state(server), Some(CmState::MraRepRcvd));
    pair.client.establish(client, &[]).unwrap();
    pair.settle();
    pair.assert_states(client, server, CmState::Established);
    pair.event(Side::Server);
    pair.assert_nothing_left(client, server);
}

/// A consumer that never answers ends its own request, on either side.
#[test]
fn a_consumer_that_never_answers_is_given_up() {
    let mut pair = Pair::with(4, |config| config.max_retries = 1, |_| {});
    pair.listen();
    let client = pair.connect();
    pair.settle();
    let (server, _) = pair.requested();
    pair.run(Duration::from_secs(300));
    assert_eq!(pair.event(Side::Server), CmEvent::Unreachable(server, Awaited::Consumer));
    let event = pair.event(Side::Client);
    let is_told = matches!(event, CmEvent::Rejected(id, why) if id == client && why.reason == RejectReason::TIMEOUT)
        || event == CmEvent::Unreachable(client, Awaited::Reply);
    assert!(is_told, "{event:?}");
    let late = pair.server.accept(pair.now, server, &accept(&[]));
    assert_eq!(late, Err(AnswerError::State(CmState::Idle)));
    pair.assert_nothing_left(client, server);

    let client = pair.connect();
    pair.settle();
    let (server, _) = pair.requested();
    pair.server.accept(pair.now, server, &accept(&[])).unwrap();
    pair.settle();
    pair.event(Side::Client);
    pair.run(Duration::from_secs(300));
    assert_eq!(pair.event(Side::Client), CmEvent::Unreachable(client, Awaited::Consumer));
    let event = pair.event(Side::Server);
    let is_told = matches!(event, CmEvent::Rejected(id, why) if id == server && why.reason == RejectReason::TIMEOUT)
        || event == CmEvent::Unreachable(server, Awaited::Rtu);
    assert!(is_told, "{event:?}");
    pair.assert_nothing_left(client, server);
}

/// S0-33: a disconnection that nobody answers ends, too, and timewait comes to its end.
#[test]
fn s0_33_dreq_sent_and_timewait_end() {
    let mut pair = Pair::with(5, |config| config.max_retries = 2, |_| {});
    pair.listen();
    let [client, server] = pair.established();
    without(&mut pair, |message| matches!(message, Message::Dreq(_)));
    let start = pair.now;
    pair.client.disconnect(pair.now, client, &[]).unwrap();
    pair.run(Duration::from_secs(60));
    assert_eq!(times(&pair, "DREQ").len(), 3);
    let unanswered = CmEvent::Disconnected(client, Disconnection::Unanswered);
    assert_eq!(pair.event(Side::Client), unanswered);
    assert_eq!(pair.event(Side::Client), CmEvent::TimewaitExit(client, Qpn::new(0x11)));
    assert!(pair.now > start);
    // The other side knows nothing of it: its packets tell it.
    assert_eq!(pair.server.state(server), Some(CmState::Established));
    // When it wants to disconnect, nobody knows the connection, and that is an answer.
    pair.client.destroy(pair.now, client).unwrap();
    pair.passes = Box::new(|_, _| true);
    pair.server.disconnect(pair.now, server, &[]).unwrap();
    pair.settle();
    let event = pair.event(Side::Server);
    assert!(matches!(event, CmEvent::Disconnected(_, Disconnection::Answered(_))), "{event:?}");
    pair.assert_nothing_left(client, server);
}

/// S0-33: timewait lasts as long as packets can be under way: 2^(17 - 8) ms.
#[test]
fn s0_33_a_number_is_not_free_before_timewait_is_over() {
    let mut pair = Pair::new(6);
    pair.listen();
    let [client, server] = pair.established();
    pair.client.disconnect(pair.now, client, &[]).unwrap();
    pair.settle();
    pair.event(Side::Client);
    pair.event(Side::Server);
    pair.run(Duration::from_millis(480));
    pair.no_event(Side::Client);
    pair.run(Duration::from_millis(20));
    assert!(matches!(pair.event(Side::Client), CmEvent::TimewaitExit(..)));
    assert!(matches!(pair.event(Side::Server), CmEvent::TimewaitExit(..)));
    pair.assert_nothing_left(client, server);
}

/// Whenever a consumer leaves, its peer is told, and nothing stays behind on either side.
#[test]
fn destroying_ends_a_connection_in_every_state() {
    for side in [Side::Client, Side::Server] {
        for step in 0..4 {
            let mut pair = Pair::with(7, |c| c.max_retries = 2, |s| s.max_retries = 2);
            pair.listen();
            let client = pair.connect();
            pair.settle();
            let (server, _) = pair.requested();
            if step > 0 {
                pair.server.accept(pair.now, server, &accept(&[])).unwrap();
                pair.settle();
                pair.event(Side::Client);
            }
            if step > 1 {
                pair.client.establish(client, &[]).unwrap();
                pair.settle();
                pair.event(Side::Server);
            }
            if step > 2 {
                pair.client.disconnect(pair.now, client, &[]).unwrap();
            }
            let (id, other, other_id) = match side {
                Side::Client => (client, Side::Server, server),
                Side::Server => (server, Side::Client, client),
            };
            let now = pair.now;
            pair.cm(side).destroy(now, id).unwrap();
            assert_eq!(pair.cm(side).state(id), None);
            assert_eq!(pair.cm(side).destroy(now, id), Err(AnswerError::NoSuchConnection));
            pair.settle();
            let told = pair.event(other);
            assert_eq!(told.connection(), Some(other_id), "{side:?} {step}");
            match (step, told) {
                (0 | 1, CmEvent::Rejected(_, why)) => {
                    let expected = match (side, step) {
                        (Side::Client, 0) => RejectReason::TIMEOUT,
                        _ => RejectReason::CONSUMER,
                    };
                    assert_eq!(why.reason, expected, "{side:?} {step}");
                }
                (2 | 3, CmEvent::Disconnected(..)) => {}
                (_, event) => panic!("{side:?} {step}: {event:?}"),
            }
            while pair.cm(other).poll_event().is_some() {}
            let left = pair.cm(other).state(other_id);
            assert!(matches!(left, Some(CmState::Idle | CmState::Timewait)), "{left:?}");
            pair.cm(other).destroy(now, other_id).unwrap();
            pair.assert_nothing_left(client, server);
        }
    }
}
