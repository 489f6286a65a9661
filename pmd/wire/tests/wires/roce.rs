//! RoCEv2 frames for tests, built and checked independently of the crate under test.
//!
//! Layouts: IBTA Annex A17, 9.2 (BTH).

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a panic is a failure, and lengths are small"
)]

use std::net::IpAddr;

use pmd_wire::{Flow, RxFrame, RxVerdict, Wire};

pub(crate) const SEND_ONLY: u8 = 0x04;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn flow(src: IpAddr, dst: IpAddr) -> Flow {
    Flow { src, dst, src_port: 4791, traffic_class: 0, hop_limit: 64 }
}

/// Fills `frame` with a BTH, a payload that depends on `psn`, and a valid ICRC.
pub(crate) fn fill(flow: &Flow, ip_id: u16, opcode: u8, qpn: u32, psn: u32, frame: &mut [u8]) {
    let len = frame.len();
    assert!(len >= 16 && len.is_multiple_of(4), "BTH and ICRC, padded to words");
    frame[..4].copy_from_slice(&[opcode, 0x40, 0xff, 0xff]);
    frame[4..8].copy_from_slice(&qpn.to_be_bytes());
    frame[8..12].copy_from_slice(&psn.to_be_bytes());
    for (at, byte) in frame[12..len - 4].iter_mut().enumerate() {
        *byte = (psn as usize * 7 + at) as u8;
    }
    let crc = icrc(flow, ip_id, &frame[..len - 4]);
    frame[len - 4..].copy_from_slice(&crc.to_le_bytes());
}

/// The ICRC over the masked headers and everything up to the ICRC.
pub(crate) fn icrc(flow: &Flow, ip_id: u16, covered: &[u8]) -> u32 {
    let mut input = vec![0xff_u8; 8];
    let udp_len = (8 + covered.len() + 4) as u16;
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            input.extend([0x45, 0xff]);
            input.extend((20 + udp_len).to_be_bytes());
            input.extend(ip_id.to_be_bytes());
            input.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
            input.extend(src.octets());
            input.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            input.extend([0x6f, 0xff, 0xff, 0xff]);
            input.extend(udp_len.to_be_bytes());
            input.extend([17, 0xff]);
            input.extend(src.octets());
            input.extend(dst.octets());
        }
        _ => panic!("mixed families"),
    }
    input.extend(flow.src_port.to_be_bytes());
    input.extend(4791_u16.to_be_bytes());
    input.extend(udp_len.to_be_bytes());
    input.extend([0xff, 0xff]);
    input.extend(covered);
    input[8 + if flow.src.is_ipv4() { 20 } else { 40 } + 8 + 4] = 0xff;
    crc32fast::hash(&input)
}

pub(crate) fn is_intact(flow: &Flow, ip_id: u16, frame: &[u8]) -> bool {
    frame.len() >= 16 && {
        let (covered, crc) = frame.split_at(frame.len() - 4);
        icrc(flow, ip_id, covered).to_le_bytes() == crc
    }
}

pub(crate) fn psn_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[8..12].try_into().unwrap()) & 0xff_ffff
}

/// Queues a SEND ONLY with the wire's own source port.
pub(crate) fn send(wire: &mut impl Wire, flow: &Flow, qpn: u32, psn: u32, len: usize) -> bool {
    let flow = Flow { src_port: wire.source_port(flow.src_port), ..*flow };
    wire.send(&flow, qpn, len, &mut |id, frame| fill(&flow, id, SEND_ONLY, qpn, psn, frame))
}

/// A frame as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) flow: Flow,
    pub(crate) ip_id: u16,
    pub(crate) payload: Vec<u8>,
}

impl Got {
    pub(crate) fn of(frame: &RxFrame<'_>) -> Self {
        Self { flow: frame.flow, ip_id: frame.ip_id.value(), payload: frame.payload.to_vec() }
    }

    pub(crate) fn psn(&self) -> u32 {
        psn_of(&self.payload)
    }

    /// Whether the ICRC fits the identification that the wire supposed.
    pub(crate) fn is_intact(&self) -> bool {
        is_intact(&self.flow, self.ip_id, &self.payload)
    }
}

/// The verdict of a receiver that accepts what is intact.
pub(crate) fn accept(frame: &RxFrame<'_>) -> RxVerdict {
    if is_intact(&frame.flow, frame.ip_id.value(), frame.payload) {
        let ip_id = if frame.flow.src.is_ipv4() { frame.ip_id.value() } else { 0 };
        RxVerdict { ip_id, dropped: None, rest: 0 }
    } else {
        RxVerdict { ip_id: 0, dropped: Some("icrc"), rest: 0 }
    }
}

/// Receives until `count` frames have come or two seconds have passed.
pub(crate) fn receive(wire: &mut impl Wire, count: usize) -> Vec<Got> {
    let mut got = Vec::new();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
    while got.len() < count && std::time::Instant::now() < deadline {
        let burst = wire.rx_burst(0, &mut |frame| {
            got.push(Got::of(&frame));
            accept(&frame)
        });
        if burst == 0 {
            std::thread::yield_now();
        }
    }
    got
}
