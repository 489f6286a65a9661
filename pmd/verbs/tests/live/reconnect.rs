//! A connection that broke comes back on the same queue pair, and nothing of before disturbs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd_mem::Region;
use pmd_verbs::endpoint::{
    Endpoint, EndpointOptions, Local, LocalKey, Op, Outcome, Pending, Reconnect, Remote, Replay,
    Rights, Settled, SubmitError, Token,
};
use pmd_verbs::ledger::recovery::Failure;
use pmd_verbs::{Context, Device, DeviceConfig, WireChoice};

use crate::support::{pattern, region};

on_every_wire!(
    p19_a_broken_connection_comes_back_on_its_queue_pair,
    s3_30_late_completions_change_nothing,
    s3_21_events_can_be_kept_from_failing_work,
);

const PATIENCE: Duration = Duration::from_secs(20);
const DEPTH: u32 = 8;

struct Pair {
    cxs: [Context; 2],
    ends: [Box<dyn Endpoint>; 2],
    memory: [Arc<Region>; 2],
    keys: [LocalKey; 2],
    settled: [BTreeMap<u64, Settled>; 2],
}

impl Pair {
    fn new(config: &DeviceConfig) -> Self {
        let device = Device::open(config).unwrap();
        let cxs = [0, 1].map(|lcore| device.context(lcore).unwrap());
        let options =
            EndpointOptions { depth: DEPTH, recv_depth: DEPTH, ..EndpointOptions::default() };
        let [mut a, mut b] = [0, 1].map(|side| cxs[side].prepare(&options).unwrap());
        b.connect(&a.hello(b"")).unwrap();
        a.connect(&b.hello(b"")).unwrap();
        let mut ends = [Box::new(a).into_endpoint(), Box::new(b).into_endpoint()];
        let memory = [region(64 << 10), region(64 << 10)];
        let keys = [0, 1].map(|side| ends[side].register(&memory[side]).unwrap());
        Self { cxs, ends, memory, keys, settled: [BTreeMap::new(), BTreeMap::new()] }
    }

    fn steps(&mut self, side: usize) -> &mut dyn Reconnect {
        self.ends[side].reconnect().unwrap()
    }

    fn turn(&mut self) {
        for side in [0, 1] {
            let settled = &mut self.settled[side];
            self.cxs[side].progress(self.cxs[side].device().now());
            self.ends[side].poll(&mut |one| {
                assert!(settled.insert(one.token.0, one).is_none(), "twice: {one:?}");
            });
        }
    }

    fn run(&mut self, done: impl Fn(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "nothing moves: {:?}", self.settled);
            self.turn();
        }
    }

    fn receive(&mut self, side: usize, token: u64) -> Result<(), SubmitError> {
        let into = Local { key: self.keys[side], offset: 4096, len: 64 };
        self.ends[side].submit(Op::Recv { into }, Token(token))
    }

    fn send(&mut self, side: usize, token: u64) -> Result<(), SubmitError> {
        self.ends[side].submit(Op::SendInline { bytes: b"message", imm: None }, Token(token))
    }

    /// Both sides to RESET and back, as their edges would do it.
    fn reconnect(&mut self) {
        for side in [0, 1] {
            self.steps(side).reset().unwrap();
            self.steps(side).refresh().unwrap();
            self.steps(side).init().unwrap();
            assert_eq!(self.send(side, 999), Err(SubmitError::Degraded), "in INIT");
            for token in 100..103 {
                self.receive(side, token).unwrap();
            }
        }
        let hellos = [0, 1].map(|side| self.steps(side).hello());
        for side in [0, 1] {
            self.steps(side).rtr(&hellos[1 - side]).unwrap();
        }
        for side in [0, 1] {
            self.steps(side).rts(&hellos[1 - side]).unwrap();
        }
    }

    /// What is done over the connection is right, in both directions.
    fn prove(&mut self) {
        for side in [0, 1] {
            self.send(side, 200).unwrap();
        }
        let met = |pair: &Self, side: usize| pair.settled[side].contains_key(&100);
        self.run(|pair| [0, 1].iter().all(|&side| met(pair, side)));
        for side in [0, 1] {
            let received = self.settled[side][&100];
            assert_eq!((received.outcome, received.len), (Outcome::Done, 7));
            assert!(self.memory[side].eq_at(4096, b"message").unwrap());
        }
    }
}

/// S2-18, S2-19, S2-20, S4-21, P12, P15, P19, S3-19, S3-40: requests without an answer end with 12, once each, what comes
/// after is refused; drained, RESET, INIT with receives, RTR, RTS, and what was exported is still there.
fn p19_a_broken_connection_comes_back_on_its_queue_pair(wire: WireChoice) {
    let mut pair = Pair::new(&DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() });
    let rights = Rights { write: true, ..Rights::default() };
    let exported = pair.ends[1].export(pair.keys[1], 0, 4096, rights).unwrap();
    let key = pair.ends[0].import(&exported.0).unwrap();
    let write = |pair: &mut Pair, token| {
        let from = Local { key: pair.keys[0], offset: 0, len: 4096 };
        let op = Op::Write { from, to: Remote { key, offset: 0 }, imm: None };
        pair.ends[0].submit(op, Token(token))
    };
    for token in 0..3 {
        pair.receive(0, 50 + token).unwrap();
        // Nobody has a receive for it: it is in flight.
        pair.send(0, token).unwrap();
    }
    write(&mut pair, 3).unwrap();
    pair.steps(0).set_error().unwrap();
    pair.steps(1).set_error().unwrap();
    assert_eq!(pair.steps(0).failure(), Failure::QueuePair);
    assert_eq!(pair.send(0, 7), Err(SubmitError::Degraded));
    assert_eq!(pair.receive(0, 8), Err(SubmitError::Degraded));
    pair.run(|pair| pair.steps(0).is_drained() && pair.steps(1).is_drained());
    let ended = &pair.settled[0];
    assert_eq!(ended.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 50, 51, 52]);
    assert!(ended.values().all(|one| one.outcome == Outcome::Flushed), "{ended:?}");
    let replay = |token: u64| ended[&token].replay;
    assert_eq!([0, 3, 50].map(replay), [Replay::Never, Replay::Again, Replay::Again]);

    for round in 0..3 {
        pair.settled.iter_mut().for_each(BTreeMap::clear);
        pair.reconnect();
        pair.prove();
        pair.memory[0].write_at(0, &pattern(4096, round)).unwrap();
        write(&mut pair, 300).unwrap();
        pair.run(|pair| pair.settled[0].contains_key(&300));
        assert_eq!(pair.settled[0][&300].outcome, Outcome::Done);
        assert!(pair.memory[1].eq_at(0, &pattern(4096, round)).unwrap());
        for side in [0, 1] {
            pair.steps(side).set_error().unwrap();
        }
        pair.run(|pair| pair.steps(0).is_drained() && pair.steps(1).is_drained());
    }
}

/// S3-30, S2-18: who does not wait for completions has everything end at once; those that come late, of the connection
/// before, settle nothing of the next one.
fn s3_30_late_completions_change_nothing(wire: WireChoice) {
    let mut pair = Pair::new(&DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() });
    for token in 0..3 {
        pair.receive(0, 50 + token).unwrap();
        pair.send(0, token).unwrap();
    }
    for side in [0, 1] {
        pair.steps(side).set_error().unwrap();
        // Their completions are in the queue, and nobody has taken them.
        pair.steps(side).abandon();
        assert!(pair.steps(side).is_drained());
    }
    pair.reconnect();
    // A turn settles what was abandoned, and meets the late completions.
    pair.turn();
    let ended: Vec<u64> = pair.settled[0].keys().copied().collect();
    assert_eq!(ended, [0, 1, 2, 50, 51, 52], "and none of 100, 101, 102");
    pair.prove();
}

/// S3-21: the switches, master and fail: with either off, an event fails no work by itself.
fn s3_21_events_can_be_kept_from_failing_work(wire: WireChoice) {
    for (events, fail) in [(true, true), (true, false), (false, true)] {
        let mut config = DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() };
        (config.switches.events, config.switches.fail) = (events, fail);
        let mut pair = Pair::new(&config);
        pair.send(0, 0).unwrap();
        pair.cxs[0].fail_device();
        let event = pair.ends[0].event();
        assert_eq!(event.is_some(), events && fail);
        pair.turn();
        assert_eq!(pair.settled[0].contains_key(&0), events && fail);
        assert_eq!(pair.send(0, 1), Err(SubmitError::Degraded), "the device itself refuses");
    }
}
