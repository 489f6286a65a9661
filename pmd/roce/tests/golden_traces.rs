//! Every frame that Soft-RoCE put on the wire: read, checked and written again.

mod trace;

use pmd_roce::ids::{Gid, PathMtu, Qpn};
use pmd_roce::wire::grh::Grh;
use pmd_roce::wire::icrc::{self, IcrcHeader};
use pmd_roce::wire::{HeaderSet, Opcode, Packet, Pkey, TransportClass, udp};

use trace::{Frame, frames, traces};

/// All frames, each with the name of its trace.
fn all_frames() -> Vec<(String, Frame)> {
    traces()
        .iter()
        .flat_map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            frames(path).into_iter().map(move |frame| (name.clone(), frame))
        })
        .collect()
}

fn icrc_header(frame: &Frame) -> IcrcHeader {
    IcrcHeader {
        src: Gid::from(frame.src),
        dst: Gid::from(frame.dst),
        src_port: frame.src_port,
        ip_id: frame.ip_id,
    }
}

fn parse(frame: &Frame) -> Packet<'_> {
    let packet = &frame.payload[..frame.payload.len() - icrc::LEN];
    Packet::parse(packet).unwrap_or_else(|reason| panic!("frame {}: {reason}", frame.number))
}

#[test]
fn all_traces_are_here() {
    assert_eq!(traces().len(), 22);
    assert_eq!(all_frames().len(), 462);
}

#[test]
fn every_icrc_matches_and_every_identification_is_found() {
    for (name, frame) in all_frames() {
        let header = icrc_header(&frame);
        assert!(icrc::verify(&header, &frame.payload), "{name} {}", frame.number);
        let guess = IcrcHeader { ip_id: 0, ..header };
        assert!(!icrc::verify(&guess, &frame.payload), "{name} {}", frame.number);
        assert_eq!(icrc::solve_ip_id(&guess, &frame.payload), Some(frame.ip_id));
    }
}

/// S1-34 to S1-38, S1-65: shape of messages, and the same bytes when written again.
#[test]
fn s1_65_every_packet_is_read_and_written_again() {
    for (name, frame) in all_frames() {
        let packet = parse(&frame);
        let mtu = if name.ends_with("mtu4096") { PathMtu::B4096 } else { PathMtu::B1024 };
        assert!(packet.obeys_payload_rule(mtu), "{name} {}", frame.number);
        assert_eq!(packet.headers.present(), packet.headers.bth.opcode.headers());
        assert_eq!(packet.headers.bth.pkey, Pkey::DEFAULT);
        let mut again = vec![0xaa; frame.payload.len()];
        assert_eq!(packet.buffer_len(), frame.payload.len() - icrc::LEN);
        packet.emit(&mut again);
        icrc::seal(&icrc_header(&frame), &mut again);
        assert_eq!(again, frame.payload, "{name} {}", frame.number);
    }
}

/// Every opcode that a trace can show is in one.
#[test]
fn the_traces_show_these_opcodes() {
    let frames = all_frames();
    let mut seen: Vec<_> =
        frames.iter().map(|(_, frame)| parse(frame).headers.bth.opcode.byte()).collect();
    seen.sort_unstable();
    seen.dedup();
    let expected: Vec<_> = (0..=0x14).chain([0x20, 0x21, 0x22, 0x64]).collect();
    assert_eq!(seen, expected);
}

#[test]
fn the_grh_area_holds_the_ipv4_header_as_it_was() {
    for (name, frame) in all_frames() {
        let grh = Grh {
            src: Gid::from(frame.src),
            dst: Gid::from(frame.dst),
            traffic_class: frame.traffic_class,
            hop_limit: frame.hop_limit,
            ip_id: frame.ip_id,
            udp_len: Grh::udp_len_of(frame.payload.len()),
        };
        let mut area = [0xaa; Grh::LEN];
        grh.emit(&mut area);
        assert_eq!(area[20..], frame.ip_header, "{name} {}", frame.number);
        assert_eq!(Grh::parse(&area), Some(grh));
    }
}

#[test]
fn source_ports_follow_the_formulas() {
    for (name, frame) in all_frames() {
        let headers = parse(&frame).headers;
        match headers.bth.opcode.class() {
            TransportClass::Ud => {
                let sender = headers.deth.unwrap().src_qp;
                assert_eq!(frame.src_port, udp::source_port_of_sender(sender), "{name}");
            }
            // Those without the connection manager have a path without a flow label.
            _ if name.contains("pingpong") || name.starts_with("perftest") => {
                let qpn = Qpn::new(0x11);
                assert_eq!(frame.src_port, udp::source_port_of_pair(qpn, qpn), "{name}");
            }
            _ => assert!(frame.src_port >= 0xc000),
        }
    }
}

/// S1-37: a MIDDLE carries nothing but payload, also between READ RESPONSE FIRST and LAST.
#[test]
fn s1_37_middles_have_no_extended_header() {
    let middles =
        [Opcode::RC_SEND_MIDDLE, Opcode::RC_WRITE_MIDDLE, Opcode::RC_READ_RESPONSE_MIDDLE];
    for opcode in middles {
        let frames = all_frames();
        let headers = frames.iter().map(|(_, frame)| parse(frame).headers);
        let mut of_opcode = headers.filter(|headers| headers.bth.opcode == opcode).peekable();
        assert!(of_opcode.peek().is_some());
        assert!(of_opcode.all(|headers| headers.present() == HeaderSet::empty()));
    }
}
