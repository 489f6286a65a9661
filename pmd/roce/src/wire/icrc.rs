//! Invariant CRC: the four bytes that end every packet, over all that no router changes (IBTA
//! annex A17.3.3).
//!
//! It is the Ethernet CRC-32 over eight bytes of ones, the IP and UDP headers with their variable
//! fields set to ones, the BTH with its congestion byte set to ones, and the rest of the packet. It
//! is stored little-endian.
//!
//! The IPv4 identification is covered, yet a UDP socket does not show it. [`solve_ip_id`] finds the
//! one that fits: a CRC is linear, so that the difference between the CRC received and the CRC of a
//! guess depends on nothing but the difference of the two identifications and on how many bytes
//! follow them.

use crc32fast::Hasher;

use super::grh::{IPV4_DONT_FRAGMENT, IPV4_FIRST_BYTE, IPV4_LEN, PROTOCOL_UDP};
use super::{Bth, be, udp};
use crate::ids::Gid;

/// Bytes of the ICRC on the wire.
pub const LEN: usize = 4;

/// What the ICRC covers outside the UDP payload. Lengths follow from the payload; an IPv4 header
/// has no options and forbids fragments, an IPv6 header has no extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcHeader {
    /// Sender.
    pub src: Gid,
    /// Receiver; says whether the packet is IPv4 or IPv6.
    pub dst: Gid,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 identification; without meaning for IPv6.
    pub ip_id: u16,
}

const V4_HEADERS: usize = IPV4_LEN as usize + udp::HEADER_LEN;
const V6_HEADERS: usize = 40 + udp::HEADER_LEN;

/// CRC-32 of eight bytes of ones, the stand-in for the local route header.
const CRC_OF_LRH: u32 = 0x2144_df1c;

/// The ICRC of a packet, BTH to pad.
pub fn compute(header: &IcrcHeader, packet: &[u8]) -> u32 {
    let (bth, rest) = packet.split_at(packet.len().min(Bth::LEN));
    let mut masked = [0; Bth::LEN];
    let masked = &mut masked[..bth.len()];
    masked.copy_from_slice(bth);
    if let Some(congestion) = masked.get_mut(4) {
        *congestion = 0xff;
    }
    let mut crc = Hasher::new_with_initial(of_headers(header, packet.len()));
    crc.update(masked);
    crc.update(rest);
    crc.finalize()
}

/// CRC up to the end of the UDP header, before a packet of `len` bytes.
pub(super) fn of_headers(header: &IcrcHeader, len: usize) -> u32 {
    let udp_len = u16::try_from(udp::HEADER_LEN + len + LEN).unwrap_or(u16::MAX);
    let mut crc = Hasher::new_with_initial(CRC_OF_LRH);
    if header.dst.is_ipv4() {
        let mut head = [0xff; V4_HEADERS];
        head[0] = IPV4_FIRST_BYTE;
        be::put_u16(&mut head, 2, udp_len.saturating_add(IPV4_LEN));
        be::put_u16(&mut head, 4, header.ip_id);
        be::put_u16(&mut head, 6, IPV4_DONT_FRAGMENT);
        head[9] = PROTOCOL_UDP;
        head[12..16].copy_from_slice(&header.src.0[12..]);
        head[16..20].copy_from_slice(&header.dst.0[12..]);
        put_udp(&mut head[IPV4_LEN.into()..], header.src_port, udp_len);
        crc.update(&head);
    } else {
        let mut head = [0xff; V6_HEADERS];
        head[0] = 0x6f;
        be::put_u16(&mut head, 4, udp_len);
        head[6] = PROTOCOL_UDP;
        head[8..24].copy_from_slice(&header.src.0);
        head[24..40].copy_from_slice(&header.dst.0);
        put_udp(&mut head[40..], header.src_port, udp_len);
        crc.update(&head);
    }
    crc.finalize()
}

/// Writes the UDP header over bytes of ones and leaves the masked checksum as it is.
fn put_udp(out: &mut [u8], src_port: u16, udp_len: u16) {
    out[..2].copy_from_slice(&src_port.to_be_bytes());
    out[2..4].copy_from_slice(&udp::PORT.to_be_bytes());
    out[4..6].copy_from_slice(&udp_len.to_be_bytes());
}

/// Writes the ICRC into the last four bytes of a UDP payload.
///
/// # Panics
/// When there are less than four bytes.
pub fn seal(header: &IcrcHeader, payload: &mut [u8]) {
    let at = payload.len().checked_sub(LEN).expect("room for the ICRC");
    let icrc = compute(header, &payload[..at]);
    payload[at..].copy_from_slice(&icrc.to_le_bytes());
}

/// Whether the last four bytes of a UDP payload are its ICRC.
pub fn verify(header: &IcrcHeader, payload: &[u8]) -> bool {
    difference(header, payload) == Some(0)
}

/// The identification of an IPv4 packet whose last four bytes are its ICRC, `header.ip_id` being a
/// guess: exactly one fits an intact packet, and one in 2^16 damaged packets finds one by chance.
/// `None`: damaged. IPv6 has none; there the answer is the guess, or `None` when damaged.
pub fn solve_ip_id(header: &IcrcHeader, payload: &[u8]) -> Option<u16> {
    let difference = difference(header, payload)?;
    if !header.dst.is_ipv4() {
        return (difference == 0).then_some(header.ip_id);
    }
    solve_difference(difference, payload.len()).map(|id| header.ip_id ^ id)
}

/// What the identification of an IPv4 packet differs by from the one that its ICRC was computed
/// with, which came out different by `difference`.
pub(crate) fn solve_difference(difference: u32, payload_len: usize) -> Option<u16> {
    if difference == 0 {
        return Some(0);
    }
    // To the CRC register, the two bytes and what follows them are a sum in the low bits and then
    // as many steps. Undoing the steps must leave two bytes, the first of them lowest.
    let bytes_after = V4_HEADERS - 6 + payload_len - LEN;
    let undone = undo_bytes(difference, 2 + bytes_after)?;
    u16::try_from(undone).ok().map(u16::swap_bytes)
}

/// Received ICRC less the computed one; `None` when the payload is too short for one.
fn difference(header: &IcrcHeader, payload: &[u8]) -> Option<u32> {
    let (packet, icrc) = payload.split_last_chunk()?;
    Some(compute(header, packet) ^ u32::from_le_bytes(*icrc))
}

/// The CRC polynomial without x^32. Bit 31 is x^0, as in every reflected CRC.
pub(super) const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;

/// Product modulo the CRC polynomial.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut a_times_x_i, mut i) = (0, a, 0);
    while i < 32 {
        // All ones where b has x^i, so that the time does not depend on the numbers.
        let has_x_i = ((b << i).cast_signed() >> 31).cast_unsigned();
        product ^= a_times_x_i & has_x_i;
        let overflows = (a_times_x_i & 1).wrapping_neg();
        a_times_x_i = a_times_x_i >> 1 ^ POLYNOMIAL & overflows;
        i += 1;
    }
    product
}

/// `base` to the power 0, 1, 2, … 255.
const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = multiply(powers[i - 1], base);
        i += 1;
    }
    powers
}

/// x^-8, which undoes one byte. A step of the register shifts right and then, if a one fell out,
/// adds the polynomial, whose bit 31 is set: that bit tells how to step back.
const BYTE_BACK: u32 = {
    let (mut register, mut bit) = (ONE, 0);
    while bit < 8 {
        register =
            if register & ONE == 0 { register << 1 } else { (register ^ POLYNOMIAL) << 1 | 1 };
        bit += 1;
    }
    register
};
const UP_TO_255_BYTES_BACK: [u32; 256] = powers(BYTE_BACK);
const BYTES_BACK_256: u32 = multiply(UP_TO_255_BYTES_BACK[255], BYTE_BACK);
static LOW: [u32; 256] = UP_TO_255_BYTES_BACK;
static HIGH: [u32; 256] = powers(BYTES_BACK_256);

/// The CRC register that `bytes` bytes of zero turn into `register`. `None` beyond 64 KiB, which no
/// datagram reaches.
fn undo_bytes(register: u32, bytes: usize) -> Option<u32> {
    let high = HIGH.get(bytes / 256)?;
    Some(multiply(multiply(register, *high), LOW[bytes % 256]))
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use super::*;

    /// rc-send frame 7, an ACK over IPv4.
    const V4_ACK: [u8; 20] = [
        0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x00, 0x7c, 0x03, 0xc3, 0x1f, 0x00, 0x00,
        0x01, 0xb6, 0x01, 0x84, 0x6c,
    ];
    /// An ACK of rping over IPv6.
    const V6_ACK: [u8; 20] = [
        0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x00, 0x44, 0xdb, 0x7d, 0x1f, 0x00, 0x00,
        0x01, 0x08, 0x4c, 0x35, 0x18,
    ];

    fn v4() -> IcrcHeader {
        IcrcHeader {
            src: Gid::from(Ipv4Addr::new(10, 77, 0, 2)),
            dst: Gid::from(Ipv4Addr::new(10, 77, 0, 3)),
            src_port: 0xf860,
            ip_id: 0xd1e7,
        }
    }

    fn v6() -> IcrcHeader {
        let gid = |ip: &str| Gid::from(ip.parse::<IpAddr>().unwrap());
        IcrcHeader { src: gid("fd77::2"), dst: gid("fd77::3"), src_port: 0xfe4d, ip_id: 0 }
    }

    #[test]
    fn golden_bytes_over_ipv4() {
        assert_eq!(CRC_OF_LRH, crc32fast::hash(&[0xff; 8]));
        assert_eq!(compute(&v4(), &V4_ACK[..16]), 0x6c84_01b6);
        assert!(verify(&v4(), &V4_ACK));
        let mut sealed = V4_ACK;
        sealed[16..].fill(0);
        seal(&v4(), &mut sealed);
        assert_eq!(sealed, V4_ACK);
    }

    #[test]
    fn golden_bytes_over_ipv6() {
        assert_eq!(compute(&v6(), &V6_ACK[..16]), 0x1835_4c08);
        assert!(verify(&v6(), &V6_ACK));
    }

    #[test]
    fn the_one_identification_that_fits_is_found_from_any_guess() {
        for guess in [0, 1, 0xd1e6, 0xd1e7, 0xffff] {
            assert_eq!(solve_ip_id(&IcrcHeader { ip_id: guess, ..v4() }, &V4_ACK), Some(0xd1e7));
        }
    }

    /// By exhaustion: what is found verifies, and nothing else does.
    #[test]
    fn exactly_one_identification_fits() {
        let fits = |ip_id: &u16| verify(&IcrcHeader { ip_id: *ip_id, ..v4() }, &V4_ACK);
        assert!((0..=u16::MAX).filter(fits).eq([0xd1e7]));
    }

    #[test]
    fn identification_is_found_at_every_length() {
        let mut payload: Vec<u8> = (0..70_000_u32).map(|i| (i & 0xff) as u8).collect();
        for len in (4..1200_u16).chain([4096 + 48, 9000, 65_507]) {
            let header = IcrcHeader { ip_id: len ^ 0x5aa5, ..v4() };
            let payload = &mut payload[..len.into()];
            seal(&header, payload);
            let guess = IcrcHeader { ip_id: 0, ..header };
            assert_eq!(solve_ip_id(&guess, payload), Some(header.ip_id), "{len}");
        }
        assert_eq!(solve_ip_id(&v4(), &payload), None);
    }

    #[test]
    fn too_short_for_an_icrc() {
        for len in 0..4 {
            assert!(!verify(&v4(), &V4_ACK[..len]));
            assert_eq!(solve_ip_id(&v4(), &V4_ACK[..len]), None);
        }
    }

    /// Every bit but the eight of the congestion byte is covered.
    #[test]
    fn every_single_bit_flip_is_detected() {
        for bit in 0..V4_ACK.len() * 8 {
            let flipped = |mut bytes: [u8; 20]| {
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            };
            let is_masked = bit / 8 == 4;
            assert_eq!(verify(&v4(), &flipped(V4_ACK)), is_masked, "bit {bit}");
            assert_eq!(verify(&v6(), &flipped(V6_ACK)), is_masked, "bit {bit}");
            assert_eq!(solve_ip_id(&v6(), &flipped(V6_ACK)).is_some(), is_masked, "bit {bit}");
            // Where the identification is unknown, a flip is at worst taken for another one.
            let solved = solve_ip_id(&v4(), &flipped(V4_ACK));
            assert_eq!(solved == Some(0xd1e7), is_masked, "bit {bit}");
        }
    }

    #[test]
    fn every_covered_header_field_matters() {
        let other = Gid::from(Ipv4Addr::new(10, 77, 0, 4));
        assert!(!verify(&IcrcHeader { src: other, ..v4() }, &V4_ACK));
        assert!(!verify(&IcrcHeader { dst: other, ..v4() }, &V4_ACK));
        assert!(!verify(&IcrcHeader { src_port: 0xf861, ..v4() }, &V4_ACK));
        assert!(!verify(&IcrcHeader { ip_id: 0xd1e6, ..v4() }, &V4_ACK));
    }
}
