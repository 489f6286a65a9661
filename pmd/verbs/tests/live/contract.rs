//! What every endpoint promises, whatever is under it: the double and queue pairs over each wire run
//! the same test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd_mem::Region;
use pmd_verbs::endpoint::{
    Endpoint, EndpointEvent, EndpointOptions, Local, LocalKey, Op, Outcome, Pending, Remote,
    RemoteKey, Rights, Settled, SubmitError, Token, double_pair,
};
use pmd_verbs::{Device, DeviceConfig, WireChoice};

use crate::support::{pattern, region};

on_every_wire!(queue_pairs_keep_the_contract, s3_39_a_failed_device_leaves_nothing_in_limbo);

/// Operations and receives of either side: not what a queue would be rounded up to.
const DEPTH: u32 = 9;

fn queue_pairs_keep_the_contract(wire: WireChoice) {
    let config = DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() };
    let device = Device::open(&config).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let options = EndpointOptions { depth: DEPTH, recv_depth: DEPTH, ..EndpointOptions::default() };
    contract(&mut || {
        let mut a = cxs[0].prepare(&options).unwrap();
        let mut b = cxs[1].prepare(&options).unwrap();
        b.connect(&a.hello(b"")).unwrap();
        a.connect(&b.hello(b"")).unwrap();
        [Box::new(a).into_endpoint(), Box::new(b).into_endpoint()]
    });
}

/// S3-16, S3-20, S3-39: the device fails with work in flight: the endpoint says so once, takes nothing any
/// more, and everything that it had accepted settles although no completion can come.
fn s3_39_a_failed_device_leaves_nothing_in_limbo(wire: WireChoice) {
    let config = DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() };
    let device = Device::open(&config).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let options = EndpointOptions { depth: DEPTH, recv_depth: DEPTH, ..EndpointOptions::default() };
    let mut a = cxs[0].prepare(&options).unwrap();
    let mut b = cxs[1].prepare(&options).unwrap();
    b.connect(&a.hello(b"")).unwrap();
    a.connect(&b.hello(b"")).unwrap();
    let mut ends = Ends::new([Box::new(a).into_endpoint(), Box::new(b).into_endpoint()]);
    for _ in 0..3 {
        ends.submit(0, Op::Recv { into: ends.local(0, 0, 64) }).unwrap();
        // No receive waits for it, so that it is in flight.
        ends.submit(0, Op::SendInline { bytes: b"nobody", imm: None }).unwrap();
    }
    ends.poll();
    assert_eq!(ends.settled[0].len(), 0);
    cxs[0].fail_device();
    let refused = ends.submit(0, Op::SendInline { bytes: b"late", imm: None });
    assert_eq!(refused, Err(SubmitError::Degraded));
    assert_eq!(ends.ends[0].event(), Some(EndpointEvent::Failed("the device failed")));
    assert_eq!(ends.ends[0].event(), None, "once");
    ends.settle();
    assert!(ends.settled[0].values().all(|one| one.outcome == Outcome::Flushed));
}

#[test]
fn doubles_keep_the_contract() {
    contract(&mut || {
        let (a, b) = double_pair(DEPTH, DEPTH);
        [Box::new(a), Box::new(b)]
    });
}

/// Two ends, what was accepted at each and what has settled.
struct Ends {
    ends: [Box<dyn Endpoint>; 2],
    memory: [Arc<Region>; 2],
    keys: [LocalKey; 2],
    accepted: [u64; 2],
    settled: [BTreeMap<u64, Settled>; 2],
}

impl Ends {
    fn new(mut ends: [Box<dyn Endpoint>; 2]) -> Self {
        let memory = [region(64 << 10), region(64 << 10)];
        let keys = [0, 1].map(|at| ends[at].register(&memory[at]).unwrap());
        Self { ends, memory, keys, accepted: [0; 2], settled: [BTreeMap::new(), BTreeMap::new()] }
    }

    fn local(&self, side: usize, offset: u64, len: u32) -> Local {
        Local { key: self.keys[side], offset, len }
    }

    /// Submits under the next token; a refused operation uses none.
    fn submit(&mut self, side: usize, op: Op<'_>) -> Result<u64, SubmitError> {
        let token = self.accepted[side];
        self.ends[side].submit(op, Token(token))?;
        self.accepted[side] += 1;
        Ok(token)
    }

    fn poll(&mut self) {
        for (end, settled) in self.ends.iter_mut().zip(&mut self.settled) {
            end.doorbell();
            end.poll(&mut |one| {
                assert!(settled.insert(one.token.0, one).is_none(), "{one:?} settled twice");
            });
        }
    }

    /// Polls until everything accepted has settled.
    fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.settled.each_ref().map(|settled| settled.len() as u64) != self.accepted {
            assert!(Instant::now() < deadline, "{:?} of {:?}", self.settled, self.accepted);
            self.poll();
        }
        for (settled, accepted) in self.settled.iter().zip(self.accepted) {
            assert!(settled.keys().copied().eq(0..accepted), "tokens nobody submitted");
        }
    }

    fn outcome(&self, side: usize, token: u64) -> Outcome {
        self.settled[side][&token].outcome
    }

    fn export(&mut self, rights: Rights) -> RemoteKey {
        let exported = self.ends[1].export(self.keys[1], 4096, 8192, rights).unwrap();
        self.ends[0].import(&exported.0).unwrap()
    }
}

fn contract(connect: &mut dyn FnMut() -> [Box<dyn Endpoint>; 2]) {
    every_operation_settles_once(&mut Ends::new(connect()));
    a_full_queue_refuses_and_takes_again(&mut Ends::new(connect()));
    closing_flushes_everything(&mut Ends::new(connect()));
    ranges_are_checked_before_anything_happens(&mut Ends::new(connect()));
    a_failure_degrades_and_says_so(&mut Ends::new(connect()));
}

fn every_operation_settles_once(ends: &mut Ends) {
    let all = Rights { read: true, write: true, atomic: true };
    let remote = ends.export(all);
    ends.memory[0].write_at(0, &pattern(1000, 1)).unwrap();
    // A message and a WRITE that tells of itself, each into the receive that was posted for it.
    let receives: Vec<u64> = [0, 1024, 2048]
        .map(|at| ends.submit(1, Op::Recv { into: ends.local(1, at, 1024) }).unwrap())
        .into();
    let send = ends.submit(0, Op::Send { from: ends.local(0, 0, 1000), imm: None }).unwrap();
    let inline =
        ends.submit(0, Op::SendInline { bytes: b"inline", imm: Some([1, 2, 3, 4]) }).unwrap();
    let to = Remote { key: remote, offset: 8 };
    let from = ends.local(0, 0, 500);
    let write = ends.submit(0, Op::Write { from, to, imm: Some([5; 4]) }).unwrap();
    ends.settle();
    for token in [send, inline, write] {
        let Settled { outcome, len, imm, .. } = ends.settled[0][&token];
        assert_eq!((outcome, len, imm), (Outcome::Done, 0, None), "what only sends has no length");
    }
    let received: Vec<_> =
        receives.iter().map(|token| &ends.settled[1][token]).map(|s| (s.len, s.imm)).collect();
    assert_eq!(received, [(1000, None), (6, Some([1, 2, 3, 4])), (500, Some([5; 4]))]);
    assert!(ends.memory[1].eq_at(0, &pattern(1000, 1)).unwrap());
    assert!(ends.memory[1].eq_at(1024, b"inline").unwrap());
    assert!(ends.memory[1].eq_at(4096 + 8, &pattern(1000, 1)[..500]).unwrap());

    // What was written is read back, and counted on.
    let read = ends.submit(0, Op::Read { into: ends.local(0, 4096, 500), from: to }).unwrap();
    let at = Remote { key: remote, offset: 1024 };
    let add = ends.submit(0, Op::FetchAdd { into: ends.local(0, 8192, 8), at, add: 41 }).unwrap();
    let into = ends.local(0, 8200, 8);
    let swap = ends.submit(0, Op::CompareSwap { into, at, compare: 41, swap: 7 }).unwrap();
    ends.settle();
    let lengths = [read, add, swap].map(|token| ends.settled[0][&token].len);
    assert_eq!(lengths, [500, 8, 8]);
    assert!(ends.memory[0].eq_at(4096, &pattern(1000, 1)[..500]).unwrap());
    assert!(
        ends.memory[0].eq_at(8192, &[0_u64.to_ne_bytes(), 41_u64.to_ne_bytes()].concat()).unwrap()
    );
    assert!(ends.memory[1].eq_at(4096 + 1024, &7_u64.to_ne_bytes()).unwrap());
    assert_eq!(ends.ends[0].failure(), None);
}

fn a_full_queue_refuses_and_takes_again(ends: &mut Ends) {
    let into = ends.local(1, 0, 64);
    let mut receives = 0;
    while ends.submit(1, Op::Recv { into }).is_ok() {
        receives += 1;
        assert!(receives <= 64, "a queue has an end");
    }
    assert_eq!(ends.submit(1, Op::Recv { into }), Err(SubmitError::Full));
    assert_eq!(receives, ends.ends[1].caps().recv_depth);
    let mut sends = 0;
    while ends.submit(0, Op::SendInline { bytes: b"x", imm: None }).is_ok() {
        sends += 1;
        assert!(sends <= 64, "a queue has an end");
    }
    assert_eq!(ends.submit(0, Op::SendInline { bytes: b"x", imm: None }), Err(SubmitError::Full));
    assert_eq!(sends, ends.ends[0].caps().depth);
    // As many messages as receives: all settle, refused ones never do, and there is room again.
    for _ in sends..receives {
        ends.poll();
        ends.submit(0, Op::SendInline { bytes: b"x", imm: None }).unwrap();
    }
    for _ in receives..sends {
        ends.poll();
        ends.submit(1, Op::Recv { into }).unwrap();
    }
    ends.settle();
    ends.submit(1, Op::Recv { into }).unwrap();
    ends.submit(0, Op::SendInline { bytes: b"again", imm: None }).unwrap();
    ends.settle();
    assert!(ends.settled.iter().flatten().all(|(_, one)| one.outcome == Outcome::Done));
}

fn closing_flushes_everything(ends: &mut Ends) {
    let receive = ends.submit(0, Op::Recv { into: ends.local(0, 0, 64) }).unwrap();
    // No receive waits for it, so that it is in flight.
    let send = ends.submit(0, Op::SendInline { bytes: b"nobody", imm: None }).unwrap();
    ends.poll();
    ends.ends[0].close();
    ends.ends[0].close();
    ends.settle();
    assert_eq!(
        (ends.outcome(0, receive), ends.outcome(0, send)),
        (Outcome::Flushed, Outcome::Flushed)
    );
    let refused = ends.submit(0, Op::SendInline { bytes: b"late", imm: None });
    assert_eq!(refused, Err(SubmitError::Degraded));
    assert_eq!(ends.submit(0, Op::Recv { into: ends.local(0, 0, 64) }), Err(SubmitError::Degraded));
}

fn ranges_are_checked_before_anything_happens(ends: &mut Ends) {
    let rights = Rights { read: true, write: true, atomic: false };
    let remote = ends.export(rights);
    let beyond = ends.local(0, (64 << 10) - 4, 8);
    let inside = ends.local(0, 0, 8);
    let strange = Local { key: LocalKey(77), ..inside };
    let to = Remote { key: remote, offset: 0 };
    let refused = [
        Op::Send { from: beyond, imm: None },
        Op::Send { from: strange, imm: None },
        Op::Send { from: Local { offset: u64::MAX, ..inside }, imm: None },
        Op::Recv { into: beyond },
        Op::Write { from: beyond, to, imm: None },
        Op::Write { from: inside, to: Remote { offset: 8192 - 4, ..to }, imm: None },
        Op::Read { into: inside, from: Remote { offset: u64::MAX, ..to } },
        Op::Read { into: inside, from: Remote { key: RemoteKey(77), ..to } },
    ];
    for op in refused {
        assert_eq!(ends.submit(0, op), Err(SubmitError::OutOfRange), "{op:?}");
    }
    let long = vec![0; ends.ends[0].caps().inline as usize + 1];
    let too_long = ends.submit(0, Op::SendInline { bytes: &long, imm: None });
    assert_eq!(too_long, Err(SubmitError::TooLong { max: ends.ends[0].caps().inline }));
    assert!(ends.ends[1].export(ends.keys[1], 0, 1 << 40, rights).is_err());
    assert!(ends.ends[1].export(LocalKey(77), 0, 1, rights).is_err());
    assert!(ends.ends[0].import(b"no reference").is_err());
    assert!(ends.ends[0].import(&[]).is_err());
    ends.settle();
    assert_eq!(ends.accepted, [0, 0]);
}

fn a_failure_degrades_and_says_so(ends: &mut Ends) {
    let remote = ends.export(Rights { read: true, ..Rights::default() });
    let from = ends.local(0, 0, 8);
    let to = Remote { key: remote, offset: 0 };
    let write = ends.submit(0, Op::Write { from, to, imm: None }).unwrap();
    ends.settle();
    let failed = matches!(ends.outcome(0, write), Outcome::Failed(_) | Outcome::FailedCoarse);
    assert!(failed, "{:?}", ends.settled[0]);
    assert!(ends.memory[1].eq_at(4096, &[0; 8]).unwrap(), "nothing was written");
    let refused = ends.submit(0, Op::Write { from, to, imm: None });
    assert_eq!(refused, Err(SubmitError::Degraded));
    // The side whose memory it was is told.
    let deadline = Instant::now() + Duration::from_secs(20);
    let event = loop {
        ends.poll();
        match ends.ends[1].event() {
            Some(event) => break event,
            None => assert!(Instant::now() < deadline, "no event"),
        }
    };
    assert!(matches!(event, EndpointEvent::Failed(_)), "{event:?}");
}
