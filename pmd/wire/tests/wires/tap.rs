//! What a tap records, read back by decoders that are not ours.

#![expect(clippy::unwrap_used, reason = "tests: a panic is a failure")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pmd_wire::memory;
use pmd_wire::tap::{Capture, Tap};
use pmd_wire::udp::{UdpOptions, bind_auto};
use pmd_wire::{Flow, RxVerdict, Wire};

use crate::roce::{accept, flow, ip, is_intact, psn_of, receive, send};

/// 2026-01-01, so that a reader can tell the clock from a garbled one.
const EPOCH_NS: u64 = 1_767_225_600_000_000_000;

/// A file of this test, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        Self(std::env::temp_dir().join(format!("pmd-wire-{test}-{}.pcapng", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// A frame as read back.
#[derive(Debug)]
struct Record {
    interface: u32,
    time: Duration,
    outbound: bool,
    comment: Option<String>,
    ip_id: Option<u16>,
    flow: Flow,
    payload: Vec<u8>,
}

fn read(path: &Path) -> Vec<Record> {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut records = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        let mut comment = None;
        let mut direction = 0;
        for option in &packet.options {
            match option {
                EnhancedPacketOption::Comment(text) => comment = Some(text.to_string()),
                EnhancedPacketOption::Flags(flags) => direction = flags & 3,
                other => panic!("{other:?}"),
            }
        }
        let headers = PacketHeaders::from_ethernet_slice(&packet.data).unwrap();
        let Some(TransportHeader::Udp(udp)) = headers.transport else { panic!("no UDP") };
        let payload = headers.payload.slice();
        assert_eq!((udp.destination_port, usize::from(udp.length)), (4791, 8 + payload.len()));
        let (flow, ip_id) = match headers.net.unwrap() {
            NetHeaders::Ipv4(ip, _) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                assert_eq!(udp.checksum, udp.calc_checksum_ipv4(&ip, payload).unwrap());
                assert!(ip.dont_fragment && !ip.more_fragments);
                assert_eq!(usize::from(ip.total_len), 28 + payload.len());
                let flow = Flow {
                    src: ip.source.into(),
                    dst: ip.destination.into(),
                    src_port: udp.source_port,
                    traffic_class: ip.dscp.value() << 2 | ip.ecn.value(),
                    hop_limit: ip.time_to_live,
                };
                (flow, Some(ip.identification))
            }
            NetHeaders::Ipv6(ip, _) => {
                assert_eq!(udp.checksum, udp.calc_checksum_ipv6(&ip, payload).unwrap());
                assert_eq!(usize::from(ip.payload_length), 8 + payload.len());
                let flow = Flow {
                    src: ip.source.into(),
                    dst: ip.destination.into(),
                    src_port: udp.source_port,
                    traffic_class: ip.traffic_class,
                    hop_limit: ip.hop_limit,
                };
                (flow, None)
            }
            other => panic!("{other:?}"),
        };
        records.push(Record {
            interface: packet.interface_id,
            time: packet.timestamp,
            outbound: direction == 2,
            comment,
            ip_id,
            flow,
            payload: payload.to_vec(),
        });
    }
    records
}

#[test]
fn both_directions_are_recorded_with_headers_that_satisfy_the_icrc() {
    let file = Scratch::new("both");
    let capture = Capture::create(&file.0).unwrap();
    let (a, b) = (ip("10.0.0.1"), ip("10.0.0.2"));
    let (a_wire, b_wire) = memory::pair(a, b, 8);
    let mut a_tap = Tap::new(a_wire, &capture, "lc0", EPOCH_NS);
    let mut b_tap = Tap::new(b_wire, &capture, "lc1", EPOCH_NS);
    let there = Flow { traffic_class: 0x2a, hop_limit: 7, src_port: 50_001, ..flow(a, b) };
    a_tap.rx_burst(1_000_000_001, &mut |_| panic!("nothing was sent"));
    for psn in 0..3 {
        assert!(send(&mut a_tap, &there, 0x11, psn, 84));
    }
    a_tap.flush(1_000_000_002);
    let burst = b_tap.rx_burst(2_000_000_000, &mut |frame| match psn_of(frame.payload) {
        1 => RxVerdict { ip_id: 1, dropped: Some("psn in the future"), rest: 0 },
        _ => accept(&frame),
    });
    assert_eq!(burst, 3);
    drop((a_tap, b_tap));
    let captured = capture.finish().unwrap();
    assert_eq!((captured.frames, captured.bytes), (6, file.0.metadata().unwrap().len()));

    let records = read(&file.0);
    assert_eq!(records.len(), 6);
    for (n, record) in (0..).zip(&records) {
        let inbound = n >= 3;
        assert_eq!((record.interface, record.outbound), (u32::from(inbound), !inbound));
        assert_eq!(record.flow, there);
        assert_eq!(psn_of(&record.payload), n % 3);
        assert!(is_intact(&there, record.ip_id.unwrap(), &record.payload));
        let comment = (n == 4).then(|| "dropped: psn in the future".to_owned());
        assert_eq!(record.comment, comment);
        let since = if inbound { 2_000_000_000 } else { 1_000_000_001 };
        assert_eq!(record.time, Duration::from_nanos(EPOCH_NS + since));
    }
}

/// Two lcores of one address share a capture: what one sends the other is there once, and a second time where it is
/// dropped.
#[test]
fn a_frame_between_two_taps_of_one_address_is_there_once() {
    let file = Scratch::new("once");
    let capture = Capture::create(&file.0).unwrap();
    let (own, other) = (ip("10.0.0.1"), ip("10.0.0.2"));
    let (a_wire, b_wire) = memory::pair(own, own, 8);
    let mut a_tap = Tap::new(a_wire, &capture, "lc0", EPOCH_NS).beside(Some(own));
    let mut b_tap = Tap::new(b_wire, &capture, "lc1", EPOCH_NS).beside(Some(own));
    for psn in 0..2 {
        assert!(send(&mut a_tap, &flow(own, own), 0x11, psn, 84));
    }
    a_tap.flush(1);
    b_tap.rx_burst(2, &mut |frame| match psn_of(frame.payload) {
        1 => RxVerdict { ip_id: 1, dropped: Some("icrc"), rest: 0 },
        _ => accept(&frame),
    });
    drop((a_tap, b_tap));
    let records = read(&file.0);
    let seen = records.iter().map(|record| (record.outbound, psn_of(&record.payload)));
    assert_eq!(seen.collect::<Vec<_>>(), [(true, 0), (true, 1), (false, 1)]);
    // What comes from elsewhere is there when it arrives.
    let file = Scratch::new("elsewhere");
    let capture = Capture::create(&file.0).unwrap();
    let (mut far, near) = memory::pair(other, own, 8);
    let mut near = Tap::new(near, &capture, "lc0", EPOCH_NS).beside(Some(own));
    assert!(send(&mut far, &flow(other, own), 0x11, 7, 84));
    far.flush(1);
    near.rx_burst(2, &mut |frame| accept(&frame));
    drop(near);
    assert_eq!(read(&file.0).len(), 1);
}

/// A socket hides the identification, so what is recorded is what the receiver found.
#[test]
fn a_received_frame_is_recorded_with_the_identification_that_was_found() {
    let file = Scratch::new("found");
    let capture = Capture::create(&file.0).unwrap();
    let [mut from, to] = [(); 2].map(|()| bind_auto(&UdpOptions::default()).unwrap().remove(0));
    let there = flow(from.address(), to.address());
    let mut tap = Tap::new(to, &capture, "lc0", EPOCH_NS);
    for psn in 0..3 {
        assert!(send(&mut from, &there, 0x11, psn, 80));
    }
    from.flush(0);
    assert_eq!(receive(&mut tap, 3).len(), 3);
    drop(tap);
    let records = read(&file.0);
    let ids: Vec<_> = records.iter().map(|r| r.ip_id.unwrap()).collect();
    assert_eq!(ids, [0, 1, 2]);
    assert!(records.iter().zip(0..).all(|(r, id)| is_intact(&there, id, &r.payload)));
}

#[test]
fn ipv6_is_recorded_too() {
    let file = Scratch::new("six");
    let capture = Capture::create(&file.0).unwrap();
    let (a, b) = (ip("fd77::1"), ip("fd77::2"));
    let (a_wire, _b) = memory::pair(a, b, 8);
    let mut tap = Tap::new(a_wire, &capture, "lc0", EPOCH_NS);
    let there = Flow { traffic_class: 0xb9, hop_limit: 7, src_port: 50_001, ..flow(a, b) };
    assert!(send(&mut tap, &there, 0x11, 9, 80));
    drop(tap);
    let [record] = &read(&file.0)[..] else { panic!("one frame") };
    assert_eq!((record.flow, record.ip_id), (there, None));
    assert!(is_intact(&there, 0, &record.payload));
}

/// What is held is bounded: more frames than the buffer takes are written on the way.
#[test]
fn more_than_the_buffer_holds_is_recorded_whole() {
    let file = Scratch::new("bulk");
    let capture = Capture::create(&file.0).unwrap();
    let (a, b) = (ip("10.0.0.1"), ip("10.0.0.2"));
    let (a_wire, mut b_wire) = memory::pair(a, b, 100);
    let mut tap = Tap::new(a_wire, &capture, "lc0", EPOCH_NS);
    for psn in 0..1000 {
        assert!(send(&mut tap, &flow(a, b), 0x11, psn, 4112));
        tap.flush(0);
        b_wire.rx_burst(0, &mut |frame| accept(&frame));
    }
    drop(tap);
    let psns: Vec<_> = read(&file.0).iter().map(|r| psn_of(&r.payload)).collect();
    assert_eq!(psns, (0..1000).collect::<Vec<_>>());
}

/// Wireshark's dissector, which knows RoCEv2, finds nothing to complain about.
#[test]
fn tshark_decodes_every_frame() {
    let file = Scratch::new("tshark");
    let capture = Capture::create(&file.0).unwrap();
    for (a, b) in [("10.0.0.1", "10.0.0.2"), ("fd77::1", "fd77::2")] {
        let (a, b) = (ip(a), ip(b));
        let (a_wire, mut b_wire) = memory::pair(a, b, 8);
        let mut tap = Tap::new(a_wire, &capture, "lc0", EPOCH_NS);
        assert!(send(&mut tap, &flow(a, b), 0x11, 0x2a, 80));
        tap.flush(0);
        assert_eq!(receive(&mut b_wire, 1).len(), 1);
        assert!(send(&mut b_wire, &flow(b, a), 0x12, 0x2b, 1040));
        b_wire.flush(0);
        tap.rx_burst(5, &mut |_| RxVerdict {
            ip_id: 0,
            dropped: Some("no such queue pair"),
            rest: 0,
        });
    }
    capture.finish().unwrap();
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "ip.checksum.status",
        "udp.checksum.status",
        "frame.interface_name",
        "frame.packet_flags_direction",
        "frame.comment",
        "_ws.malformed",
    ];
    let output = Command::new("tshark")
        .args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields"])
        .args(fields.iter().flat_map(|field| ["-e", field]))
        .args(["-E", "separator=;", "-r"])
        .arg(&file.0)
        .output()
        .expect("this test needs tshark: apt-get install tshark");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let want = "4;0x000011;42;1;1;lc0;0x00000002;;\n\
         4;0x000012;43;1;1;lc0;0x00000001;dropped: no such queue pair;\n\
         4;0x000011;42;;1;lc0;0x00000002;;\n\
         4;0x000012;43;;1;lc0;0x00000001;dropped: no such queue pair;\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), want);
}
