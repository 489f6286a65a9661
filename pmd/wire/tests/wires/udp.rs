//! UDP wires on loopback: real sockets, no privilege.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a panic is a failure, and numbers are small"
)]

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use pmd_wire::limits::{BYTES_PER_NS, GATHER_NS};
use pmd_wire::udp::{self, BindError, LcoreBits, UdpOptions, UdpWire};
use pmd_wire::{Flow, IpId, JoinError, RxVerdict, Wire};

use crate::roce::{self, Got, flow, ip, receive, send};

/// A loopback address of this test run alone, so that runs side by side do not meet.
fn local(last: u8) -> IpAddr {
    let pid = std::process::id();
    IpAddr::from([127, 64 + (pid >> 8 & 0x7f) as u8, pid as u8, last])
}

fn bind(address: IpAddr) -> UdpWire {
    bind_with(address, &UdpOptions::default())
}

fn bind_with(address: IpAddr, options: &UdpOptions) -> UdpWire {
    udp::bind(address, options).unwrap().pop().unwrap()
}

fn psns(got: &[Got]) -> Vec<u32> {
    got.iter().map(Got::psn).collect()
}

/// Segments arrive as they were sent, with identifications 0, 1, 2 … that satisfy the ICRC.
#[test]
fn a_burst_travels_as_one_datagram_and_comes_apart_again() {
    let (a, b) = (local(1), local(2));
    let (mut from, mut to) = (bind(a), bind(b));
    assert!(from.segments_max() >= 64, "this kernel has UDP segmentation");
    for psn in 0..40 {
        assert!(send(&mut from, &flow(a, b), 0x11, psn, 80));
    }
    assert!(send(&mut from, &flow(a, b), 0x11, 40, 48), "the last may be shorter");
    assert_eq!(from.pending(), 41);
    from.flush(0);
    assert_eq!(from.pending(), 0);
    let got = receive(&mut to, 41);
    assert_eq!(psns(&got), (0..=40).collect::<Vec<_>>());
    assert!(got.iter().all(Got::is_intact));
    assert_eq!(got[40].ip_id, 40);
    assert_eq!(got[40].payload.len(), 48);
    assert_eq!(got[0].flow, flow(a, b), "addresses, port, class and hop limit");
    let sent = from.counters();
    assert_eq!((sent.tx_frames, sent.tx_bytes, sent.tx_datagrams), (41, 40 * 80 + 48, 1));
    let seen = to.counters();
    assert_eq!((seen.rx_frames, seen.rx_bytes, seen.rx_datagrams), (41, 40 * 80 + 48, 1));
}

/// The peer works on a full datagram while the next one is gathered.
#[test]
fn a_full_datagram_leaves_at_once() {
    let (a, b) = (local(40), local(41));
    let (mut from, mut to) = (bind(a), bind(b));
    let full = from.segments_max() as u32;
    for psn in 0..full + 1 {
        assert!(send(&mut from, &flow(a, b), 0x11, psn, 80));
    }
    assert_eq!(from.pending(), 1);
    assert_eq!(psns(&receive(&mut to, full as usize)), (0..full).collect::<Vec<_>>());
    from.flush(0);
    let got = receive(&mut to, 1);
    assert_eq!((got[0].psn(), got[0].ip_id), (full, 0));
}

/// A receiver that has taken all there is of a stream gives it some time, unless the sender waits.
#[test]
fn a_stream_gathers_for_a_while() {
    let (a, b) = (local(42), local(43));
    let (mut from, mut to) = (bind(a), bind(b));
    let mut burst = || {
        (0..15).for_each(|psn| assert!(send(&mut from, &flow(a, b), 0x11, psn, 4112)));
        from.flush(0);
    };
    let mut look =
        |now, rest| to.rx_burst(now, &mut |_| RxVerdict { ip_id: 0, dropped: None, rest });
    burst();
    assert_eq!(look(0, 1 << 20), 15);
    assert_eq!(look(1000, 0), 0, "it has caught up");
    burst();
    assert_eq!(look(1000 + GATHER_NS - 1, 0), 0, "more may come");
    assert_eq!(look(1000 + GATHER_NS, 100 * BYTES_PER_NS), 15);
    assert_eq!(look(200_000, 0), 0);
    burst();
    assert_eq!(look(200_099, 0), 0, "the rest may come");
    assert_eq!(look(200_100, 0), 15);
    assert_eq!(look(200_100, 0), 0);
    burst();
    assert_eq!(look(200_100, 0), 15, "nothing was to come");
}

#[test]
fn a_longer_frame_begins_a_datagram_and_order_is_kept() {
    let (a, b) = (local(3), local(4));
    let (mut from, mut to) = (bind(a), bind(b));
    // As a WRITE goes: FIRST with its RETH, then MIDDLEs, then a short LAST, then another WRITE.
    let lengths = [4128, 4112, 4112, 4112, 100, 4128, 4112, 20, 20];
    for (psn, len) in (0..).zip(lengths) {
        assert!(send(&mut from, &flow(a, b), 0x11, psn, len));
    }
    from.flush(0);
    let got = receive(&mut to, lengths.len());
    assert_eq!(got.iter().map(|g| g.payload.len()).collect::<Vec<_>>(), lengths);
    assert_eq!(psns(&got), (0..9).collect::<Vec<_>>());
    assert!(got.iter().all(Got::is_intact));
    assert_eq!(got.iter().map(|g| g.ip_id).collect::<Vec<_>>(), [0, 1, 0, 1, 2, 0, 1, 0, 1]);
}

#[test]
fn interleaved_flows_are_gathered_each_for_itself() {
    let (a, b, c) = (local(5), local(6), local(7));
    let (mut from, mut to_b, mut to_c) = (bind(a), bind(b), bind(c));
    let marked = Flow { traffic_class: 0x02, hop_limit: 3, ..flow(a, c) };
    for psn in 0..20 {
        assert!(send(&mut from, &flow(a, b), 1, psn, 80));
        assert!(send(&mut from, &marked, 2, psn, 80));
    }
    from.flush(0);
    assert_eq!(from.counters().tx_datagrams, 2);
    for (got, want) in [(receive(&mut to_b, 20), flow(a, b)), (receive(&mut to_c, 20), marked)] {
        assert_eq!(psns(&got), (0..20).collect::<Vec<_>>());
        assert!(got.iter().all(|g| g.flow == want && g.is_intact()), "{:?}", got[0].flow);
    }
}

#[test]
fn ipv6_needs_no_identification() {
    // ::1 is the only loopback address of IPv6, so the wire talks to itself.
    let mut wire = match udp::bind(ip("::1"), &UdpOptions::default()) {
        Ok(mut wires) => wires.pop().unwrap(),
        Err(BindError::InUse { .. }) => return busy_loopback(),
        Err(error) => panic!("{error}"),
    };
    let marked = Flow { traffic_class: 0xb8, hop_limit: 9, ..flow(ip("::1"), ip("::1")) };
    for psn in 0..5 {
        let len = if psn < 4 { 80 } else { 40 };
        assert!(wire.send(&marked, 7, len, &mut |id, frame| {
            assert_eq!(id, 0);
            roce::fill(&marked, id, roce::SEND_ONLY, 7, psn, frame);
        }));
    }
    wire.flush(0);
    let got = receive(&mut wire, 5);
    assert_eq!(psns(&got), [0, 1, 2, 3, 4]);
    assert!(got.iter().all(|g| g.flow == marked && g.is_intact()));
    assert_eq!(wire.counters().tx_datagrams, 1);

    // RoCE devices leave the UDP checksum out, over IPv6 as well.
    let device = UdpSocket::bind("[::1]:0").unwrap();
    leave_out_checksums(&device);
    let flow = Flow { src_port: device.local_addr().unwrap().port(), ..flow(ip("::1"), ip("::1")) };
    let mut frame = [0; 80];
    roce::fill(&flow, 0, roce::SEND_ONLY, 7, 9, &mut frame);
    device.send_to(&frame, "[::1]:4791").unwrap();
    let got = receive(&mut wire, 1);
    assert!(got[0].is_intact() && got[0].psn() == 9);
}

fn leave_out_checksums(socket: &UdpSocket) {
    let (on, len) = (1_i32, 4);
    let (fd, value) = (socket.as_raw_fd(), (&raw const on).cast());
    // SAFETY: `value` points to the four bytes of an int that lives through the call.
    let set =
        unsafe { libc::setsockopt(fd, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_TX, value, len) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Another run of this test has ::1 just now: then it must be refused, which is worth a check.
fn busy_loopback() {
    let error = UdpSocket::bind("[::1]:4791").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

/// Whoever looks learns which addresses are taken and by whom, without taking one itself.
#[test]
fn taken_addresses_are_seen_with_their_owner() {
    let (a, b, group) = (local(22), local(23), ip("239.77.0.9"));
    let mut wire = bind(a);
    wire.join(group).unwrap();
    let claims = udp::claims();
    let mine = claims.iter().filter(|claim| claim.address == a).collect::<Vec<_>>();
    assert_eq!(mine.len(), 1, "once, however many sockets there are");
    assert!(mine[0].covers(a) && !mine[0].covers(b));
    assert_eq!(mine[0].owner.as_ref().unwrap().pid, std::process::id());
    assert!(!claims.iter().any(|claim| claim.address == group), "groups belong to nobody");
    drop(wire);
    assert!(!udp::claims().iter().any(|claim| claim.address == a));
}

/// Frames that only grow never share a datagram; the queue is sent on the way when it fills up.
#[test]
fn more_datagrams_than_the_queue_holds_are_sent_in_order() {
    let (a, b) = (local(8), local(9));
    let (mut from, mut to) = (bind(a), bind(b));
    for psn in 0..200 {
        assert!(send(&mut from, &flow(a, b), 1, psn, 16 + 4 * psn as usize));
    }
    from.flush(0);
    let got = receive(&mut to, 200);
    assert_eq!(psns(&got), (0..200).collect::<Vec<_>>());
    assert_eq!((from.counters().tx_full, from.counters().tx_datagrams), (0, 200));
}

#[test]
fn without_segmentation_every_frame_leaves_alone() {
    let (a, b) = (local(10), local(11));
    let mut from = bind_with(a, &UdpOptions { gso: false, ..UdpOptions::default() });
    let mut to = bind(b);
    assert_eq!(from.segments_max(), 1);
    for psn in 0..20 {
        assert!(send(&mut from, &flow(a, b), 1, psn, 80));
    }
    from.flush(0);
    let got = receive(&mut to, 20);
    assert_eq!(psns(&got), (0..20).collect::<Vec<_>>());
    assert!(got.iter().all(|g| g.ip_id == 0 && g.is_intact()));
    assert_eq!(from.counters().tx_datagrams, 20);
}

/// A receiver sees the frames of a foreign sender, whatever their source port or shape.
#[test]
fn datagrams_of_strangers_are_handed_over_as_they_are() {
    let (a, b) = (local(12), local(13));
    let mut to = bind(b);
    let stranger = UdpSocket::bind(SocketAddr::new(a, 0)).unwrap();
    for payload in [&b""[..], b"x", &[7; 9000]] {
        stranger.send_to(payload, SocketAddr::new(b, 4791)).unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < 3 {
        to.rx_burst(0, &mut |frame| {
            assert_eq!(frame.flow.src_port, stranger.local_addr().unwrap().port());
            seen.push((frame.payload.len(), frame.ip_id));
            RxVerdict { ip_id: 0, dropped: Some("malformed"), rest: 0 }
        });
    }
    let first = IpId::Likely(0);
    assert_eq!(seen, [(0, first), (1, first), (9000, first)]);
}

#[test]
fn what_the_receive_buffer_cannot_hold_is_counted() {
    let (a, b) = (local(14), local(15));
    let mut to = bind_with(b, &UdpOptions { receive_buffer: 4096, ..UdpOptions::default() });
    assert!(to.receive_buffer() < 65_536, "{}", to.receive_buffer());
    let mut from = bind_with(a, &UdpOptions { gso: false, ..UdpOptions::default() });
    for psn in 0..100 {
        assert!(send(&mut from, &flow(a, b), 1, psn, 1024));
    }
    from.flush(0);
    let arrived = receive(&mut to, 1).len();
    // The count of drops travels with the next datagram that does arrive.
    for psn in 100..102 {
        assert!(send(&mut from, &flow(a, b), 1, psn, 1024));
        from.flush(0);
        assert_eq!(psns(&receive(&mut to, 1)), [psn]);
    }
    let counters = to.counters();
    assert!(arrived < 100 && counters.rx_overflow > 0, "{arrived} {counters:?}");
    assert_eq!(counters.rx_frames + counters.rx_overflow, 102);
    assert_eq!(from.counters().tx_frames, 102);
}

/// Each lcore gets the frames of its queue pairs; lcore 0 also connection management, multicast,
/// numbers of lcores that are not there, and what is no frame.
#[test]
fn the_destination_queue_pair_chooses_the_lcore() {
    let lcore = |n: u32| n << 14 | 0x2a_0005;
    steers(
        16,
        LcoreBits { shift: 14, width: 3 },
        &[(lcore(0), 0), (lcore(1), 1), (lcore(2), 2), (lcore(7), 0), (0x00_4001, 1)],
    );
    // Bits in which connection management and multicast would not be lcore 0's by themselves.
    steers(
        18,
        LcoreBits { shift: 0, width: 2 },
        &[(4, 0), (5, 1), (1, 0), (0xff_fffe, 2), (0xff_fffd, 1), (0xff_ffff, 0), (0x01_0001, 1)],
    );
    steers(
        20,
        LcoreBits { shift: 23, width: 1 },
        &[(0x7f_ffff, 0), (0x80_0000, 1), (0xff_ffff, 0)],
    );
}

/// Three or two lcores, and which of them gets a frame for each queue pair number.
fn steers(address: u8, bits: LcoreBits, table: &[(u32, usize)]) {
    let (a, b) = (local(address), local(address + 1));
    let lcores = 3.min(1 << bits.width);
    let options = UdpOptions { lcores, lcore_bits: bits, ..UdpOptions::default() };
    let mut lcores = udp::bind(b, &options).unwrap();
    let mut from = bind(a);
    for (psn, (qpn, _)) in (0..).zip(table) {
        // A frame of its own size travels alone, so each is chosen for by itself.
        assert!(send(&mut from, &flow(a, b), *qpn, psn, 16 + 4 * psn as usize));
        from.flush(0);
    }
    let stranger = UdpSocket::bind(SocketAddr::new(a, 0)).unwrap();
    stranger.send_to(b"short", SocketAddr::new(b, 4791)).unwrap();
    for (n, wire) in lcores.iter_mut().enumerate() {
        let want = (0..).zip(table).filter(|(_, (_, to))| *to == n).map(|(psn, _)| psn);
        let want: Vec<u32> = want.collect();
        let mut got = receive(wire, want.len() + usize::from(n == 0));
        if n == 0 {
            assert_eq!(got.pop().unwrap().payload, b"short");
        }
        assert_eq!(psns(&got), want, "lcore {n} by {bits:?}");
    }
}

/// Frames that the peer's lcores share no datagram of, so that its kernel gives each its own.
#[test]
fn frames_for_several_lcores_travel_apart() {
    let (a, b) = (local(42), local(43));
    let lcore_bits = LcoreBits { shift: 14, width: 3 };
    let options = UdpOptions { lcores: 2, lcore_bits, ..UdpOptions::default() };
    let mut lcores = udp::bind(b, &options).unwrap();
    let mut from = bind_with(a, &UdpOptions { lcore_bits, ..UdpOptions::default() });
    for psn in 0..40 {
        assert!(send(&mut from, &flow(a, b), (psn % 2) << 14 | 5, psn, 80));
    }
    from.flush(0);
    assert_eq!((from.counters().tx_frames, from.counters().tx_datagrams), (40, 2));
    for (wire, first) in lcores.iter_mut().zip(0..) {
        let got = receive(wire, 20);
        assert_eq!(psns(&got), (first..40).step_by(2).collect::<Vec<_>>());
        assert!(got.iter().all(Got::is_intact));
    }
}

#[test]
fn any_lcore_of_the_address_may_send() {
    let (a, b) = (local(28), local(29));
    let bits = LcoreBits { shift: 14, width: 3 };
    let options = UdpOptions { lcores: 2, lcore_bits: bits, ..UdpOptions::default() };
    let mut lcores = udp::bind(a, &options).unwrap();
    let mut to = bind(b);
    for (psn, wire) in (0..).zip(&mut lcores) {
        assert!(send(wire, &flow(a, b), 1, psn, 80));
        wire.flush(0);
    }
    let got = receive(&mut to, 2);
    assert!(got.iter().all(|g| g.flow == flow(a, b) && g.is_intact()));
}

/// Set in the process that [`a_second_process_is_refused_by_name`] starts.
const HOLD: &str = "PMD_WIRE_TEST_HOLD";

#[test]
fn a_second_process_is_refused_by_name() {
    if let Ok(address) = std::env::var(HOLD) {
        let bits = LcoreBits { shift: 14, width: 3 };
        let options = UdpOptions { lcores: 2, lcore_bits: bits, ..UdpOptions::default() };
        let wires = udp::bind(address.parse().unwrap(), &options).unwrap();
        println!("bound");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        drop(wires);
        return;
    }
    let address = local(30);
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "udp::a_second_process_is_refused_by_name", "--nocapture"])
        .env(HOLD, address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("bound")));

    // Even one that would share the port between lcores of its own.
    let bits = LcoreBits { shift: 14, width: 3 };
    for lcores in [1, 2] {
        let options = UdpOptions { lcores, lcore_bits: bits, ..UdpOptions::default() };
        let error = udp::bind(address, &options).unwrap_err();
        let text = error.to_string();
        let BindError::InUse { owner: Some(owner), free: Some(free), .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(owner.pid, holder.id());
        assert!(text.contains(&format!("process {} (", holder.id())), "{text}");
        assert!(text.contains(&format!("for instance {free}")), "{text}");
        assert!(free.is_loopback());
    }
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    bind(address);
}

#[test]
fn automatic_addresses_are_free_loopback_addresses() {
    let first = udp::bind_auto(&UdpOptions::default()).unwrap().pop().unwrap();
    let second = udp::bind_auto(&UdpOptions::default()).unwrap().pop().unwrap();
    assert_ne!(first.address(), second.address());
    for wire in [first, second] {
        assert!(wire.address().is_loopback() && wire.address().is_ipv4());
        assert_eq!((wire.interface().name.as_str(), wire.max_payload()), ("lo", 4160));
    }
}

#[test]
fn addresses_that_no_wire_can_have_are_refused() {
    let refused = |text: &str| udp::bind(ip(text), &UdpOptions::default()).unwrap_err();
    for text in ["0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "ff02::1"] {
        assert!(matches!(refused(text), BindError::NotOne(_)), "{text}");
    }
    for text in ["192.0.2.1", "2001:db8::1"] {
        let error = refused(text);
        assert!(matches!(error, BindError::NotLocal(_)), "{error:?}");
    }
    for (lcores, width) in [(0, 3), (2, 0), (9, 3), (2, 30)] {
        let lcore_bits = LcoreBits { shift: 14, width };
        let options = UdpOptions { lcores, lcore_bits, ..UdpOptions::default() };
        let error = udp::bind(local(31), &options).unwrap_err();
        assert!(matches!(error, BindError::Lcores { .. }), "{error:?}");
    }
}

#[test]
fn the_descriptor_tells_of_frames() {
    let (a, b) = (local(32), local(33));
    let (mut from, mut to) = (bind(a), bind(b));
    let readable = |wire: &UdpWire, seconds: i64| {
        let fd = wire.fd().unwrap();
        let mut set = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let wait = rustix::event::Timespec { tv_sec: seconds, tv_nsec: 0 };
        rustix::event::poll(&mut set, Some(&wait)).unwrap() == 1
    };
    assert!(!readable(&to, 0));
    assert!(send(&mut from, &flow(a, b), 1, 0, 80));
    from.flush(0);
    assert!(readable(&to, 2));
    assert_eq!(receive(&mut to, 1).len(), 1);
    assert!(!readable(&to, 0));
}

#[test]
fn members_of_a_group_hear_it_and_others_do_not() {
    let (a, b, c) = (local(34), local(35), local(36));
    let (mut from, mut member, mut other) = (bind(a), bind(b), bind(c));
    let pid = std::process::id();
    let group = IpAddr::from([239, 1, (pid >> 8) as u8, pid as u8]);
    member.join(group).unwrap();
    member.join(group).unwrap();
    from.join(group).unwrap();
    for psn in 0..3 {
        assert!(send(&mut from, &flow(a, group), 0xff_ffff, psn, 80));
    }
    from.flush(0);
    for wire in [&mut member, &mut from] {
        let got = receive(wire, 3);
        assert_eq!(psns(&got), [0, 1, 2], "{wire:?}");
        assert!(got.iter().all(|g| g.flow == flow(a, group) && g.is_intact()));
    }
    assert_eq!(other.rx_burst(0, &mut |_| panic!("not a member")), 0);
    member.leave(group).unwrap();
    assert!(send(&mut from, &flow(a, group), 0xff_ffff, 3, 80));
    from.flush(0);
    assert_eq!(receive(&mut from, 1).len(), 1);
    assert_eq!(member.rx_burst(0, &mut |_| panic!("left")), 0);
    assert!(matches!(member.leave(group), Err(JoinError::NotAMember(_))));
    for not in [ip("ff05::1"), a] {
        assert!(matches!(member.join(not), Err(JoinError::NotAGroup(..))));
    }
}
