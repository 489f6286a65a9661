//! Many connections over a network that loses, doubles and reorders: both sides always come to the same
//! end, and nothing is left.

use core::time::Duration;
use std::collections::BTreeMap;

use pmd_roce::cm::{
    Accept, CmEvent, CmState, ConnId, ConnParam, Connect, Disconnection, LocalQp, Negotiated,
};
use pmd_roce::ids::{Psn, Qpn};

use super::pair::{Faults, Pair, Side, qp};

/// What a side knows of a connection, by its own queue pair.
#[derive(Default)]
struct Book {
    negotiated: BTreeMap<ConnId, Negotiated>,
    established: Vec<ConnId>,
    ended: BTreeMap<ConnId, &'static str>,
    left_timewait: Vec<ConnId>,
}

struct Consumers {
    books: [Book; 2],
    next_qpn: u32,
}

impl Consumers {
    /// Answers all events as a consumer does.
    fn answer(&mut self, pair: &mut Pair) {
        for side in [Side::Client, Side::Server] {
            while let Some(event) = pair.cm(side).poll_event() {
                self.answer_one(pair, side, &event);
            }
        }
    }

    fn answer_one(&mut self, pair: &mut Pair, side: Side, event: &CmEvent) {
        let now = pair.now;
        let book = &mut self.books[side as usize];
        match event {
            CmEvent::ConnectRequest(id, _) => {
                if pair.rng.chance(100_000) {
                    pair.server.destroy(now, *id).unwrap();
                    return;
                }
                self.next_qpn += 1;
                let psn = Psn::new(pair.rng.bits32());
                let qp = LocalQp { qpn: Qpn::new(self.next_qpn), psn, srq: false };
                let param = ConnParam {
                    responder_resources: pair.rng.below(20) as u8,
                    initiator_depth: pair.rng.below(20) as u8,
                    ..ConnParam::DEFAULT
                };
                let accept = Accept { qp, param, private_data: &[] };
                let terms = pair.server.negotiate(*id, &accept).unwrap();
                pair.server.accept(now, *id, &accept).unwrap();
                assert!(book.negotiated.insert(*id, terms).is_none());
            }
            CmEvent::Reply(id, terms, _) => {
                assert!(book.negotiated.insert(*id, *terms).is_none());
                pair.client.establish(*id, &[]).unwrap();
                book.established.push(*id);
            }
            CmEvent::Established(id, _) => book.established.push(*id),
            CmEvent::Rejected(id, _) => assert!(book.ended.insert(*id, "rejected").is_none()),
            CmEvent::Unreachable(id, _) => assert!(book.ended.insert(*id, "unreachable").is_none()),
            CmEvent::Disconnected(id, how) => {
                let how = match how {
                    Disconnection::ByPeer(_) => "by peer",
                    Disconnection::Answered(_) => "answered",
                    Disconnection::Unanswered => "unanswered",
                };
                assert!(book.ended.insert(*id, how).is_none());
            }
            CmEvent::TimewaitExit(id, _) => {
                assert!(book.ended.contains_key(id));
                book.left_timewait.push(*id);
            }
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, pair: &mut Pair, time: Duration) {
        let until = pair.now.after(time);
        while pair.step(until) {
            self.answer(pair);
        }
        pair.now = until;
        self.answer(pair);
    }
}

#[test]
fn both_sides_agree_whatever_the_network_does() {
    let mut established = 0;
    let mut unreachable = 0;
    for seed in 0..60 {
        let mut pair = Pair::new(seed);
        pair.listen();
        pair.faults = Faults {
            loss: pair.rng.below(400_000) as u32,
            duplication: pair.rng.below(400_000) as u32,
            delay: Duration::from_millis(pair.rng.below(8000)),
        };
        let mut consumers = Consumers { books: Default::default(), next_qpn: 0x100 };
        let mut clients = Vec::new();
        for n in 0..6 {
            let request = pair.request(&[]);
            let psn = pair.rng.bits32();
            let param = ConnParam {
                responder_resources: pair.rng.below(20) as u8,
                initiator_depth: pair.rng.below(20) as u8,
                ..ConnParam::DEFAULT
            };
            let request = Connect { qp: qp(0x11 + n, psn), param, ..request };
            clients.push(pair.client.connect(pair.now, &request).unwrap());
            let pause = Duration::from_millis(pair.rng.below(3000));
            consumers.run(&mut pair, pause);
        }
        consumers.run(&mut pair, Duration::from_secs(400));
        // Nobody waits any more, and whoever got through agrees with the other side.
        for id in &clients {
            let state = pair.client.state(*id).unwrap();
            let settled = [CmState::Established, CmState::Idle, CmState::Timewait];
            assert!(settled.contains(&state), "seed {seed}: {state}");
        }
        let [client, server] = &consumers.books;
        for (id, terms) in &client.negotiated {
            let far = server
                .negotiated
                .values()
                .find(|far| far.dest_qpn == qpn_of(*id, &clients) && far.rq_psn == terms.sq_psn);
            let far = far.unwrap_or_else(|| panic!("seed {seed}: {terms:?}"));
            assert_eq!((far.sq_psn, far.path_mtu), (terms.rq_psn, terms.path_mtu));
            assert!(far.max_rd_atomic <= terms.max_dest_rd_atomic, "seed {seed}");
            assert!(terms.max_rd_atomic <= far.max_dest_rd_atomic, "seed {seed}");
        }
        for id in &client.established {
            established += usize::from(pair.client.state(*id) == Some(CmState::Established));
        }
        unreachable += client.ended.values().filter(|how| **how == "unreachable").count();
        let open: Vec<_> = consumers.books[1].established.clone();
        for id in clients.iter().copied() {
            if pair.client.state(id) == Some(CmState::Established) {
                pair.client.disconnect(pair.now, id, &[]).unwrap();
            }
        }
        for id in open {
            if pair.rng.chance(300_000) && pair.server.state(id) == Some(CmState::Established) {
                pair.server.disconnect(pair.now, id, &[]).unwrap();
            }
        }
        consumers.run(&mut pair, Duration::from_secs(400));
        let servers: Vec<_> = consumers.books[1].negotiated.keys().copied().collect();
        let all = clients.iter().map(|id| (Side::Client, *id));
        for (side, id) in all.chain(servers.into_iter().map(|id| (Side::Server, id))) {
            let now = pair.now;
            if pair.cm(side).state(id).is_some() {
                pair.cm(side).destroy(now, id).unwrap();
            }
        }
        consumers.run(&mut pair, Duration::from_secs(400));
        let left = (pair.client.connections(), pair.server.connections());
        assert_eq!(left, (0, 0), "seed {seed}");
        assert_eq!((pair.client.poll_timeout(), pair.server.poll_timeout()), (None, None));
    }
    // The faults are such that both come to pass.
    assert!(established > 200, "{established} established");
    assert!(unreachable < 30, "{unreachable} unreachable");
}

/// Queue pair n belongs to the nth request.
fn qpn_of(id: ConnId, clients: &[ConnId]) -> Qpn {
    let n = clients.iter().position(|client| *client == id).unwrap();
    Qpn::new(0x11 + n as u32)
}

/// The same seed is the same story.
#[test]
fn a_seed_names_a_story() {
    let story = |seed| {
        let mut pair = Pair::new(seed);
        pair.listen();
        pair.faults = Faults { loss: 300_000, duplication: 300_000, delay: Duration::from_secs(5) };
        let mut consumers = Consumers { books: Default::default(), next_qpn: 0x100 };
        pair.connect();
        consumers.run(&mut pair, Duration::from_secs(100));
        pair.log
    };
    assert_eq!(story(3), story(3));
    assert_ne!(story(3), story(4));
}
