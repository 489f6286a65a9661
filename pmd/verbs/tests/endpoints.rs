//! Two lcores of one process connect and move bytes, over every wire.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::endpoint::{
    Endpoint, EndpointEvent, EndpointOptions, Local, Op, Outcome, Pending, Remote, Replay, Rights,
    Settled, SubmitError, Token,
};
use pmd_verbs::{Context, Device, DeviceConfig, WireChoice};

const BYTES: u64 = 1 << 20;

fn region() -> Arc<Region> {
    let spec = RegionSpec {
        name: "test",
        len: BYTES,
        hugepages: Hugepages::None,
        numa: &Numa::default(),
        seal: Seal::Data,
    };
    Arc::new(Region::create(&spec).unwrap())
}

struct Pair {
    a: Box<dyn Endpoint>,
    b: Box<dyn Endpoint>,
    cxs: [Context; 2],
}

impl Pair {
    fn connect(wire: WireChoice, options: &EndpointOptions) -> Self {
        let device =
            Device::open(&DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() }).unwrap();
        let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
        let mut a = cxs[0].prepare(options).unwrap();
        let mut b = cxs[1].prepare(options).unwrap();
        assert_eq!(b.connect(&a.hello(b"asks")).unwrap(), b"asks");
        assert_eq!(a.connect(&b.hello(b"answers")).unwrap(), b"answers");
        Self { a: Box::new(a).into_endpoint(), b: Box::new(b).into_endpoint(), cxs }
    }

    /// Turns both lcores until `done`, and reports what settled at either side.
    fn run(
        &mut self,
        mut done: impl FnMut(&[Settled], &[Settled]) -> bool,
    ) -> (Vec<Settled>, Vec<Settled>) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
        while !done(&at_a, &at_b) {
            assert!(Instant::now() < deadline, "nothing moves: {at_a:?} {at_b:?}");
            for cx in &self.cxs {
                cx.progress(cx.device().now());
            }
            self.a.poll(&mut |settled| at_a.push(settled));
            self.b.poll(&mut |settled| at_b.push(settled));
        }
        (at_a, at_b)
    }
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + salt) * 7 + (i >> 8)).to_le_bytes()[0]).collect()
}

fn every_operation(wire: WireChoice, path: &str) {
    let mut pair = Pair::connect(wire, &EndpointOptions::default());
    assert_eq!(pair.a.path(), path);
    let (near, far) = (region(), region());
    let mine = pair.a.register(&near).unwrap();
    let theirs = pair.b.register(&far).unwrap();
    assert_eq!(pair.a.register(&near), Ok(mine));
    let rights = Rights { read: true, write: true, atomic: true };
    let exported = pair.b.export(theirs, 4096, BYTES - 4096, rights).unwrap();
    let remote = pair.a.import(&exported.0).unwrap();

    // SEND and SEND with immediate, of sizes that take every way through the wire.
    for (round, len) in [0_u32, 1, 200, 4096, 70_001].into_iter().enumerate() {
        near.write_at(0, &pattern(len as usize, round)).unwrap();
        pair.b
            .submit(Op::Recv { into: Local { key: theirs, offset: 0, len: 80_000 } }, Token(900))
            .unwrap();
        let imm = (round % 2 == 1).then_some([1, 2, 3, round.to_le_bytes()[0]]);
        pair.a
            .submit(Op::Send { from: Local { key: mine, offset: 0, len }, imm }, Token(1))
            .unwrap();
        let (sent, received) = pair.run(|a, b| a.len() == 1 && b.len() == 1);
        assert_eq!((sent[0].token, sent[0].outcome), (Token(1), Outcome::Done));
        let (token, outcome, replay) = (Token(900), Outcome::Done, Replay::Never);
        assert_eq!(received[0], Settled { token, outcome, len, imm, replay });
        assert!(far.eq_at(0, &pattern(len as usize, round)).unwrap());
    }

    // WRITE, then READ it back.
    let bytes = pattern(300_003, 11);
    near.write_at(0, &bytes).unwrap();
    let len = 300_003;
    let to = Remote { key: remote, offset: 123 };
    pair.a
        .submit(Op::Write { from: Local { key: mine, offset: 0, len }, to, imm: None }, Token(2))
        .unwrap();
    let into = Local { key: mine, offset: 400_000, len };
    pair.a.submit(Op::Read { into, from: to }, Token(3)).unwrap();
    let (done, _) = pair.run(|a, _| a.len() == 2);
    assert_eq!(
        done.iter().map(|s| (s.token, s.outcome)).collect::<Vec<_>>(),
        [(Token(2), Outcome::Done), (Token(3), Outcome::Done)]
    );
    assert!(far.eq_at(4096 + 123, &bytes).unwrap());
    assert!(near.eq_at(400_000, &bytes).unwrap());

    // Atomics.
    far.atomic_u64(4096).unwrap().store(40, std::sync::atomic::Ordering::Relaxed);
    let at = Remote { key: remote, offset: 0 };
    let into = Local { key: mine, offset: 8, len: 8 };
    pair.a.submit(Op::FetchAdd { into, at, add: 2 }, Token(4)).unwrap();
    let into = Local { key: mine, offset: 16, len: 8 };
    pair.a.submit(Op::CompareSwap { into, at, compare: 42, swap: 7 }, Token(5)).unwrap();
    let (done, _) = pair.run(|a, _| a.len() == 2);
    assert!(done.iter().all(|s| s.outcome == Outcome::Done), "{done:?}");
    let load = |region: &Region, offset| {
        region.atomic_u64(offset).unwrap().load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!((load(&near, 8), load(&near, 16), load(&far, 4096)), (40, 42, 7));

    // WRITE with immediate consumes a receive.
    pair.b.submit(Op::Recv { into: Local { key: theirs, offset: 0, len: 0 } }, Token(901)).unwrap();
    let from = Local { key: mine, offset: 0, len: 5 };
    pair.a.submit(Op::Write { from, to, imm: Some([9; 4]) }, Token(6)).unwrap();
    let (_, received) = pair.run(|a, b| a.len() == 1 && b.len() == 1);
    assert_eq!(
        (received[0].token, received[0].imm, received[0].len),
        (Token(901), Some([9; 4]), 5)
    );
}

#[test]
fn every_operation_over_udp() {
    every_operation(WireChoice::Udp, "packet");
}

#[test]
fn every_operation_over_shared_memory() {
    every_operation(WireChoice::Shm, "local");
}

#[test]
fn every_operation_over_the_automatic_wire() {
    every_operation(WireChoice::Auto, "local");
}

/// A message too long for its receive fails at both ends by name, and everything behind it flushes.
fn too_long_a_message(wire: WireChoice) {
    use pmd_verbs::WcStatus;
    let mut pair = Pair::connect(wire, &EndpointOptions::default());
    let (near, far) = (region(), region());
    let mine = pair.a.register(&near).unwrap();
    let theirs = pair.b.register(&far).unwrap();
    for token in 0..3 {
        pair.b
            .submit(Op::Recv { into: Local { key: theirs, offset: 0, len: 16 } }, Token(token))
            .unwrap();
        let from = Local { key: mine, offset: 0, len: 17 };
        pair.a.submit(Op::Send { from, imm: None }, Token(10 + token)).unwrap();
    }
    let (sent, received) = pair.run(|a, b| a.len() == 3 && b.len() == 3);
    let outcomes = |settled: &[Settled]| settled.iter().map(|s| s.outcome).collect::<Vec<_>>();
    let failed = Outcome::Failed;
    assert_eq!(outcomes(&sent), [failed(WcStatus::RemInvReq), Outcome::Flushed, Outcome::Flushed]);
    assert_eq!(outcomes(&received), [failed(WcStatus::LocLen), Outcome::Flushed, Outcome::Flushed]);
    let from = Local { key: mine, offset: 0, len: 1 };
    assert_eq!(pair.a.submit(Op::Send { from, imm: None }, Token(20)), Err(SubmitError::Degraded));
}

#[test]
fn too_long_a_message_over_udp() {
    too_long_a_message(WireChoice::Udp);
}

#[test]
fn too_long_a_message_over_shared_memory() {
    too_long_a_message(WireChoice::Shm);
}

#[test]
fn an_old_answer_does_not_connect() {
    let device = Device::open(&DeviceConfig { lcores: 2, ..DeviceConfig::default() }).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let options = EndpointOptions::default();
    let mut b = cxs[1].prepare(&options).unwrap();
    let old = cxs[0].prepare(&options).unwrap();
    b.connect(&old.hello(b"")).unwrap();
    let answer = b.hello(b"");
    let mut fresh = cxs[0].prepare(&options).unwrap();
    let error = fresh.connect(&answer).unwrap_err().to_string();
    assert!(error.contains("generation") && error.contains("old answer"), "{error}");
}

/// One lcore sends to both lcores of a peer: the kernel steers whole batches by their first frame, so
/// frames for the other lcore are handed over, and every message arrives.
#[test]
fn one_lcore_talks_to_two_over_udp() {
    let config = |lcores| DeviceConfig { wire: WireChoice::Udp, lcores, ..DeviceConfig::default() };
    let (one, two) = (Device::open(&config(1)).unwrap(), Device::open(&config(2)).unwrap());
    let near = one.context(0).unwrap();
    let far = [two.context(0).unwrap(), two.context(1).unwrap()];
    let options = EndpointOptions { depth: 128, recv_depth: 128, ..EndpointOptions::default() };
    let memory = region();
    let mut pairs: Vec<(Box<dyn Endpoint>, Box<dyn Endpoint>)> = far
        .iter()
        .map(|cx| {
            let mut a = near.prepare(&options).unwrap();
            let mut b = cx.prepare(&options).unwrap();
            let key = b.endpoint().register(&memory).unwrap();
            for token in 0..100 {
                let into = Local { key, offset: token * 64, len: 64 };
                b.endpoint().submit(Op::Recv { into }, Token(token)).unwrap();
            }
            b.connect(&a.hello(b"")).unwrap();
            a.connect(&b.hello(b"")).unwrap();
            (Box::new(a).into_endpoint(), Box::new(b).into_endpoint())
        })
        .collect();
    for token in 0..100 {
        for (a, _) in &mut pairs {
            a.submit(Op::SendInline { bytes: &[7; 32], imm: None }, Token(token)).unwrap();
        }
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut received = [0, 0];
    while received != [100, 100] {
        assert!(Instant::now() < deadline, "received {received:?}");
        for cx in [&near, &far[0], &far[1]] {
            cx.progress(cx.device().now());
        }
        for ((_, b), count) in pairs.iter_mut().zip(&mut received) {
            b.poll(&mut |settled| {
                assert_eq!((settled.outcome, settled.len), (Outcome::Done, 32));
                *count += 1;
            });
        }
    }
}

/// S3-22: what is being taken down hears of nothing any more, from the first step of its end on: the device fails while an
/// endpoint that was closed still waits for what it had in flight. Nobody is told of that in its name, what it had in flight
/// ends once, and its sibling, which lives, is told.
#[test]
fn s3_22_a_closed_endpoint_hears_of_nothing() {
    for wire in [WireChoice::Shm, WireChoice::Udp] {
        let device =
            Device::open(&DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() }).unwrap();
        let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
        let memory = region();
        let connected = || {
            let options = EndpointOptions::default();
            let mut ends = [0, 1].map(|side| cxs[side].prepare(&options).unwrap());
            let [near, far] = &mut ends;
            far.connect(&near.hello(b"asks")).unwrap();
            near.connect(&far.hello(b"answers")).unwrap();
            let mut ends = ends.map(|end| Box::new(end).into_endpoint());
            let key = ends[0].register(&memory).unwrap();
            let into = Local { key, offset: 0, len: 64 };
            for token in 0..4 {
                ends[0].submit(Op::Recv { into }, Token(token)).unwrap();
            }
            ends
        };
        let ([mut closing, _far], [mut sibling, _other]) = (connected(), connected());
        closing.close();
        // Before anything of it is settled: its queue pair, its queue and its device report that they failed.
        cxs[0].fail_device();
        assert_eq!(closing.event(), None, "{wire:?}: a handler runs on what is being taken down");
        assert!(matches!(sibling.event(), Some(EndpointEvent::Failed(_))), "{wire:?}");
        let (mut ended, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while ended.len() < 4 {
            assert!(Instant::now() < deadline, "{ended:?}");
            cxs[0].progress(device.now());
            closing.poll(&mut |settled| ended.push((settled.token.0, settled.outcome)));
        }
        ended.sort_by_key(|(token, _)| *token);
        assert_eq!(ended, [0, 1, 2, 3].map(|token| (token, Outcome::Flushed)), "{wire:?}");
        assert_eq!(closing.event(), None);
        assert!(closing.reconnect().is_none(), "nor does anything of it come back");
    }
}
