//! Path MTU: negotiated where ends connect, and what becomes of a mismatch.

use std::time::{Duration, Instant};

use pmd_verbs::connect::{Hello, Nonce, PathWish};
use pmd_verbs::endpoint::{
    ConnectError, Endpoint, EndpointOptions, Local, Op, Outcome, Pending, Settled, Token,
};
use pmd_verbs::roce::ids::PathMtu;
use pmd_verbs::{Data, Device, DeviceConfig, Rc, WcStatus, WireChoice, WorkRequest};

use crate::support::{World, ends, pattern, region};

fn limited(mtu: PathMtu) -> EndpointOptions {
    EndpointOptions { mtu: Some(mtu), ..EndpointOptions::default() }
}

/// P04: each side asks for its own MTU, the smaller one is used, and messages of any length pass in
/// both directions.
#[test]
fn p04_the_smaller_mtu_is_negotiated() {
    let config = DeviceConfig { wire: WireChoice::Udp, lcores: 2, ..DeviceConfig::default() };
    let device = Device::open(&config).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let mut a = cxs[0].prepare(&limited(PathMtu::B4096)).unwrap();
    let mut b = cxs[1].prepare(&limited(PathMtu::B1024)).unwrap();
    assert_eq!(Hello::decode(&a.hello(b"")).unwrap().mtu, PathMtu::B4096);
    b.connect(&a.hello(b"")).unwrap();
    let answer = b.hello(b"");
    assert_eq!(Hello::decode(&answer).unwrap().mtu, PathMtu::B1024);
    a.connect(&answer).unwrap();
    let mut ends: [Box<dyn Endpoint>; 2] =
        [Box::new(a).into_endpoint(), Box::new(b).into_endpoint()];
    let memory = [region(128 << 10), region(128 << 10)];
    let keys = [0, 1].map(|at| ends[at].register(&memory[at]).unwrap());
    for (round, (from, len)) in
        [(0, 1024), (1, 1024), (0, 65_536), (1, 65_536)].into_iter().enumerate()
    {
        let to = 1 - from;
        memory[from].write_at(0, &pattern(len as usize, round)).unwrap();
        ends[to]
            .submit(Op::Recv { into: Local { key: keys[to], offset: 0, len } }, Token(1))
            .unwrap();
        let sent = Local { key: keys[from], offset: 0, len };
        ends[from].submit(Op::Send { from: sent, imm: None }, Token(2)).unwrap();
        let mut settled: Vec<Settled> = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while settled.len() < 2 {
            assert!(Instant::now() < deadline, "{settled:?}");
            for end in &mut ends {
                end.poll(&mut |one| settled.push(one));
            }
        }
        assert!(settled.iter().all(|one| one.outcome == Outcome::Done), "{settled:?}");
        assert!(memory[to].eq_at(0, &pattern(len as usize, round)).unwrap());
    }
}

/// P04: an answer that insists on more than this side takes is refused with both values.
#[test]
fn p04_a_forced_mismatch_is_refused_with_both_values() {
    let config = DeviceConfig { wire: WireChoice::Udp, lcores: 2, ..DeviceConfig::default() };
    let device = Device::open(&config).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let mut a = cxs[0].prepare(&limited(PathMtu::B1024)).unwrap();
    let mut b = cxs[1].prepare(&limited(PathMtu::B4096)).unwrap();
    b.connect(&a.hello(b"")).unwrap();
    let forced = Hello { mtu: PathMtu::B4096, ..Hello::decode(&b.hello(b"")).unwrap() };
    let error = a.connect(&forced.encode()).unwrap_err();
    let (ours, theirs) = ("1024".to_owned(), "4096".to_owned());
    assert_eq!(error, ConnectError::Mismatch { what: "path MTU", ours, theirs });
    assert_eq!(error.to_string(), "path MTU: this side has 1024, the peer 4096");
}

/// A process that sees another directory may hold the same prefix: whoever is found under it is not the peer. Shared memory
/// alone then fails and says why; otherwise packets are used.
#[test]
fn another_device_of_the_same_prefix_is_not_taken_for_the_peer() {
    for wire in [WireChoice::Shm, WireChoice::Auto] {
        let config = DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() };
        let device = Device::open(&config).unwrap();
        let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
        let a = cxs[0].prepare(&limited(PathMtu::B4096)).unwrap();
        let mut b = cxs[1].prepare(&limited(PathMtu::B4096)).unwrap();
        let ask = Hello::decode(&a.hello(b"")).unwrap();
        assert!(ask.nonce.is_some());
        let other = Hello { nonce: Some(Nonce([1; 16])), ..ask };
        let connected = b.connect(&other.encode());
        if wire == WireChoice::Auto {
            connected.unwrap();
            assert_eq!(Hello::decode(&b.hello(b"")).unwrap().path, PathWish::Packets);
            continue;
        }
        let error = connected.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("XDG_RUNTIME_DIR"), "{error}");
    }
}

/// P04: by hand, nothing keeps two sides from different values; the longer packets are refused, and
/// reading back both ends shows why.
#[test]
fn p04_a_mismatch_by_hand_is_seen_by_reading_back() {
    let world = World::new(WireChoice::Udp);
    let qps = world.pair::<Rc>(|side, attr| {
        attr.path_mtu = [PathMtu::B4096, PathMtu::B1024][side];
    });
    world.sides[1].receive(&qps[1], 1, 0, 8192);
    let sges = [world.sides[0].sge(0, 4096)];
    qps[0].post_send(&WorkRequest::send(Data::Sges(&sges)).id(2)).unwrap();
    let [sent, _] = world.complete([1, 1]);
    assert_eq!(ends(&sent), [(2, WcStatus::RemInvReq)]);
    let mtus = qps.each_ref().map(|qp| qp.query().attr.path_mtu);
    assert_eq!(mtus, [PathMtu::B4096, PathMtu::B1024]);
}
