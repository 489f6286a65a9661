//! The headers a frame has on the network, made from its flow.

use std::net::{IpAddr, Ipv6Addr};

use crate::wire::{Flow, ROCE_PORT};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const UDP_PROTOCOL: u8 = 17;

/// Ethernet, IP and UDP headers of one frame.
#[derive(Debug)]
pub(super) struct Headers {
    bytes: [u8; ETHERNET + IPV6 + UDP],
    len: usize,
}

impl Headers {
    /// As the frame leaves or left its sender: DF set, checksums right, and made-up but constant
    /// Ethernet addresses. Payloads are shorter than 64 KiB, as datagrams are.
    pub(super) fn new(flow: &Flow, ip_id: u16, payload: &[u8]) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a datagram is shorter than 64 KiB")]
        let udp_len = (UDP + payload.len()) as u16;
        let mut bytes = [0; ETHERNET + IPV6 + UDP];
        bytes[..6].copy_from_slice(&mac(flow.dst));
        bytes[6..12].copy_from_slice(&mac(flow.src));
        let udp_at = match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes[12..ETHERNET].copy_from_slice(&[0x08, 0x00]);
                let ip = &mut bytes[ETHERNET..ETHERNET + IPV4];
                ip[0] = 0x45;
                ip[1] = flow.traffic_class;
                ip[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
                ip[4..6].copy_from_slice(&ip_id.to_be_bytes());
                // Don't fragment.
                ip[6] = 0x40;
                ip[8] = flow.hop_limit;
                ip[9] = UDP_PROTOCOL;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                let checksum = fold(sum(ip));
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
                ETHERNET + IPV4
            }
            (src, dst) => {
                bytes[12..ETHERNET].copy_from_slice(&[0x86, 0xdd]);
                let ip = &mut bytes[ETHERNET..ETHERNET + IPV6];
                ip[0] = 0x60 | flow.traffic_class >> 4;
                ip[1] = flow.traffic_class << 4;
                ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
                ip[6] = UDP_PROTOCOL;
                ip[7] = flow.hop_limit;
                ip[8..24].copy_from_slice(&v6(src).octets());
                ip[24..40].copy_from_slice(&v6(dst).octets());
                ETHERNET + IPV6
            }
        };
        let addresses = if udp_at == ETHERNET + IPV4 { 8 } else { 32 };
        let mut total = sum(&bytes[udp_at - addresses..udp_at]);
        total += u64::from(UDP_PROTOCOL) + u64::from(udp_len);
        let udp = &mut bytes[udp_at..udp_at + UDP];
        udp[..2].copy_from_slice(&flow.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        // 0 would mean that there is none (RFC 768).
        let checksum = match fold(total + sum(udp) + sum(payload)) {
            0 => 0xffff,
            checksum => checksum,
        };
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        Self { bytes, len: udp_at + UDP }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// A locally administered address that shows the IP address, or the group's real one (RFC 1112,
/// RFC 2464).
fn mac(address: IpAddr) -> [u8; 6] {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            if v4.is_multicast() { [1, 0, 0x5e, b & 0x7f, c, d] } else { [2, 0, a, b, c, d] }
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            if v6.is_multicast() { [0x33, 0x33, a, b, c, d] } else { [2, 6, a, b, c, d] }
        }
    }
}

/// Sum of big-endian 16-bit words, the last padded with zero.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + last
}

/// The internet checksum of a sum (RFC 1071).
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    let sum = sum as u16;
    !sum
}
