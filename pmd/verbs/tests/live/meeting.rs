//! Endpoints whose queue pairs meet by the connection manager, and what two hellos can disagree on.

use std::rc::Rc;
use std::time::{Duration, Instant};

use pmd_verbs::cm::{ConnectParams, EventKind, LocalQp, PortSpace};
use pmd_verbs::connect::{Hello, PathWish, Ways};
use pmd_verbs::endpoint::{
    ConnectError, EndpointOptions, Local, MeetingPoint, Op, Outcome, Pending, QueuePairPending,
    Settled, Token,
};
use pmd_verbs::gid::RoceVersion;
use pmd_verbs::roce::ids::{Gid, Psn, Qpn};
use pmd_verbs::roce::qp::state::Transport;
use pmd_verbs::{Context, Device, DeviceConfig, WireChoice};

use crate::support::region;

struct Side {
    cx: Context,
    point: Rc<MeetingPoint>,
}

impl Side {
    fn new(wire: WireChoice) -> Self {
        let device = Device::open(&DeviceConfig { wire, ..DeviceConfig::default() }).unwrap();
        let cx = device.context(0).unwrap();
        Self { point: cx.open_meeting_point().unwrap(), cx }
    }

    fn prepare(&self, options: &EndpointOptions) -> QueuePairPending {
        self.cx.prepare_at(&self.point, options).unwrap()
    }
}

fn turn(sides: [&Side; 2]) {
    for side in sides {
        side.cx.progress(side.cx.device().now());
    }
}

/// Goes on with both until one of them is done or has failed.
fn meet(sides: [&Side; 2], both: [&mut QueuePairPending; 2]) -> [Result<bool, ConnectError>; 2] {
    let deadline = Instant::now() + Duration::from_secs(20);
    let [a, b] = both;
    loop {
        assert!(Instant::now() < deadline, "they do not meet");
        turn(sides);
        let met = [a.meet(), b.meet()];
        if met == [Ok(true), Ok(true)] || met.iter().any(Result::is_err) {
            return met;
        }
    }
}

fn meets_and_sends(wire: WireChoice, transport: Transport, path: &str) {
    let sides = [Side::new(wire), Side::new(wire)];
    let options = EndpointOptions {
        transport,
        rd_atomic: 4,
        retry_cnt: 5,
        managed: true,
        ..EndpointOptions::default()
    };
    let mut a = sides[0].prepare(&options);
    let mut b = sides[1].prepare(&EndpointOptions { retry_cnt: 2, rd_atomic: 9, ..options });
    let memory = [region(4096), region(4096)];
    let into = b.endpoint().register(&memory[1]).unwrap();
    assert_eq!(b.connect(&a.hello(b"asks")).unwrap(), b"asks");
    // It cannot be reached yet, and has its receive before it can.
    assert_eq!(b.meet(), Ok(false));
    let to = Local { key: into, offset: 0, len: 64 };
    b.endpoint().submit(Op::Recv { into: to }, Token(9)).unwrap();
    assert_eq!(a.connect(&b.hello(b"answers")).unwrap(), b"answers");
    assert_eq!(a.meet(), Ok(false));
    assert_eq!(meet([&sides[0], &sides[1]], [&mut a, &mut b]), [Ok(true), Ok(true)]);
    let (mut a, mut b) = (Box::new(a).into_endpoint(), Box::new(b).into_endpoint());
    assert_eq!((a.path(), b.path()), (path, path));
    let qps = [a.evidence().qp, b.evidence().qp];
    if transport == Transport::Rc {
        // Of the asking side, on both: that is how the manager negotiates.
        assert_eq!(qps.each_ref().map(|qp| qp.retry_cnt), [Some(5), Some(5)]);
    }
    assert_eq!(qps[0].sq_psn, qps[1].rq_psn);
    assert_eq!(qps[1].sq_psn, qps[0].rq_psn);
    let from = a.register(&memory[0]).unwrap();
    memory[0].write_at(0, b"met").unwrap();
    let from = Local { key: from, offset: 0, len: 3 };
    a.submit(Op::Send { from, imm: None }, Token(1)).unwrap();
    let (mut sent, mut came): (Vec<Settled>, Vec<Settled>) = Default::default();
    let deadline = Instant::now() + Duration::from_secs(20);
    while sent.is_empty() || came.is_empty() {
        assert!(Instant::now() < deadline, "nothing arrives");
        turn([&sides[0], &sides[1]]);
        a.poll(&mut |one| sent.push(one));
        b.poll(&mut |one| came.push(one));
    }
    assert_eq!((sent[0].outcome, came[0].outcome, came[0].len), (Outcome::Done, Outcome::Done, 3));
    assert!(memory[1].eq_at(0, b"met").unwrap());
}

/// S0-28, S0-37, S1-26: over packets and over shared memory, receives posted before the peer can send.
#[test]
fn s0_28_queue_pairs_of_endpoints_meet_by_the_connection_manager() {
    meets_and_sends(WireChoice::Udp, Transport::Rc, "packet");
    meets_and_sends(WireChoice::Auto, Transport::Rc, "local");
    meets_and_sends(WireChoice::Udp, Transport::Uc, "packet");
}

/// Somebody who has seen no hello is rejected, and in nobody's way.
#[test]
fn strangers_meet_nobody() {
    let sides = [Side::new(WireChoice::Udp), Side::new(WireChoice::Udp)];
    let options = EndpointOptions { managed: true, ..EndpointOptions::default() };
    let (mut a, mut b) = (sides[0].prepare(&options), sides[1].prepare(&options));
    b.connect(&a.hello(b"")).unwrap();
    let answer = b.hello(b"");
    let port = Hello::decode(&answer).unwrap().manager.unwrap();
    let stranger = Device::open(&DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() });
    let stranger = stranger.unwrap().context(0).unwrap();
    let agent = stranger.open_cm(|_| {}).unwrap();
    let channel = agent.create_channel().unwrap();
    let to = std::net::SocketAddr::new(sides[1].cx.device().gid().ip(), port);
    let id = channel.open(PortSpace::Tcp, to, Duration::from_secs(5)).unwrap();
    let qp = Some(LocalQp { qpn: Qpn::new(77), psn: Psn::new(1), srq: false });
    id.connect(&ConnectParams { qp, ..ConnectParams::with(&[7; 8]) }).unwrap();
    a.connect(&answer).unwrap();
    assert_eq!(meet([&sides[0], &sides[1]], [&mut a, &mut b]), [Ok(true), Ok(true)]);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < deadline, "the stranger is not answered");
        turn([&sides[0], &sides[1]]);
        b.meet().unwrap();
        if let Some(event) = channel.poll() {
            assert!(matches!(event.kind(), EventKind::Rejected(_)), "{event:?}");
            break;
        }
    }
}

fn refused(changed: impl FnOnce(Hello) -> Hello) -> String {
    let device = Device::open(&DeviceConfig { lcores: 2, ..DeviceConfig::default() }).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let options = EndpointOptions::default();
    let a = cxs[0].prepare(&options).unwrap();
    let mut b = cxs[1].prepare(&options).unwrap();
    let hello = changed(Hello::decode(&a.hello(b"")).unwrap());
    b.connect(&hello.encode()).unwrap_err().to_string()
}

/// What must agree is refused by the values of both sides.
#[test]
fn p25_a_mismatch_names_the_values_of_both_sides() {
    let six = Gid::from("2001:db8::7".parse::<std::net::IpAddr>().unwrap());
    let packets = PathWish::Packets;
    let error = refused(|hello| Hello { gid: six, path: packets, ..hello });
    assert!(error.starts_with("type of GID: this side has ::ffff:127."), "{error}");
    assert!(error.ends_with("the peer 2001:db8::7 (RoCE v2 over IPv6)"), "{error}");
    let error = refused(|hello| Hello { roce: RoceVersion::V1, path: packets, ..hello });
    assert!(error.ends_with("(RoCE v1)"), "{error}");
    let error = refused(|hello| Hello { ways: Ways::ROCE_V1, ..hello });
    let ours = "shared memory, RoCE v2 over IPv4";
    assert_eq!(error, format!("ways to be reached: this side has {ours}, the peer RoCE v1"));
    let error = refused(|hello| Hello { manager: Some(0), ..hello });
    assert_eq!(error, "connect: this side has oob, the peer cm");
    let error = refused(|hello| Hello { transport: Transport::Uc, ..hello });
    assert_eq!(error, "transport: this side has RC, the peer UC");
}

/// READs and atomics go down to what both sides take, and an answer that wants more than was offered is refused.
#[test]
fn s0_37_reads_and_atomics_are_negotiated_down() {
    let device = Device::open(&DeviceConfig { lcores: 2, ..DeviceConfig::default() }).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let limited = |rd_atomic| EndpointOptions { rd_atomic, ..EndpointOptions::default() };
    let mut a = cxs[0].prepare(&limited(4)).unwrap();
    let mut b = cxs[1].prepare(&limited(9)).unwrap();
    b.connect(&a.hello(b"")).unwrap();
    let answer = Hello::decode(&b.hello(b"")).unwrap();
    assert_eq!((answer.responder_resources, answer.initiator_depth), (4, 4));
    let greedy = Hello { initiator_depth: 9, ..answer };
    let error = a.connect(&greedy.encode()).unwrap_err().to_string();
    let expected = "READs and atomics served at a time: this side has 4, the peer 9 outstanding";
    assert_eq!(error, expected);
}

/// S0-41, S0-47, S1-24, S2-20: number, first PSN and address cross any channel that an app brings, here a line of text, with the
/// app's own bytes at their length; each end then sends to what the other has said, and expects what that begins with.
#[test]
fn s0_41_connection_data_crosses_any_channel() {
    let config = DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() };
    let device = Device::open(&DeviceConfig { lcores: 2, ..config }).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let as_text =
        |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let as_bytes = |text: String| -> Vec<u8> {
        let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digits).collect()
    };
    for own in [&b""[..], b"\0", b"what the app says\0\0", &[9; 4096]] {
        let options = EndpointOptions::default();
        let [mut a, mut b] = [0, 1].map(|at| cxs[at].prepare(&options).unwrap());
        let ask = as_bytes(as_text(a.hello(own)));
        assert_eq!(b.connect(&ask).unwrap(), own);
        let answer = as_bytes(as_text(b.hello(own)));
        assert_eq!(a.connect(&answer).unwrap(), own);
        let [ask, answer] = [&ask, &answer].map(|bytes| Hello::decode(bytes).unwrap());
        let [a, b] = [a, b].map(|pending| Box::new(pending).into_endpoint());
        for (end, ours, theirs) in [(&a, &ask, &answer), (&b, &answer, &ask)] {
            let qp = end.evidence().qp;
            assert_eq!((qp.qpn, qp.dest_qpn), (Some(ours.qpn.value()), Some(theirs.qpn.value())));
            assert_eq!((qp.sq_psn, qp.rq_psn), (Some(ours.psn.value()), Some(theirs.psn.value())));
            let gids = end.gids().unwrap();
            assert_eq!((gids.local, gids.remote), (ours.source(), theirs.source()));
            assert_eq!((ours.gid, ours.roce), (device.gid(), RoceVersion::V2));
            assert!(ours.gid_index.is_some(), "the address is listed while it is in use");
        }
        // An answer is for the ask that it answers, and for no later one.
        let mut later = cxs[0].prepare(&options).unwrap();
        let replayed = later.connect(&answer.encode()).unwrap_err().to_string();
        assert!(replayed.starts_with("generation: this side has 0x"), "{replayed}");
        assert!(replayed.ends_with(": an old answer"), "{replayed}");
    }
}
