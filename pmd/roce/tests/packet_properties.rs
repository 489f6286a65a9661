//! The parser against anything: what is written is read back, and nothing makes it panic.

use proptest::prelude::*;

use pmd_roce::ids::{Gid, Psn, Qpn, Rkey, Srqn};
use pmd_roce::wire::icrc::{self, IcrcHeader};
use pmd_roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, DropReason, HeaderSet, Headers, Ieth, ImmDt, Msn,
    Opcode, Packet, Pkey, Reth, Syndrome, XrcEth,
};

fn bth() -> impl Strategy<Value = Bth> {
    let opcode = proptest::sample::select(Opcode::ALL);
    let flags = any::<[bool; 5]>();
    (opcode, flags, any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
        |(opcode, [solicited, mig_req, fecn, becn, ack_req], pkey, dest_qp, psn)| Bth {
            opcode,
            solicited,
            mig_req,
            pkey: Pkey(pkey),
            fecn,
            becn,
            dest_qp: Qpn::new(dest_qp),
            ack_req,
            psn: Psn::new(psn),
        },
    )
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    any::<u8>().prop_filter_map("reserved", Syndrome::from_byte)
}

/// Headers that their opcode asks for.
fn headers() -> impl Strategy<Value = Headers> {
    (bth(), syndrome(), any::<[u64; 3]>(), any::<[u32; 3]>()).prop_map(
        |(bth, syndrome, [va, first, second], [key, number, len])| {
            let set = bth.opcode.headers();
            let rkey = Rkey(key);
            Headers {
                bth,
                xrceth: set
                    .contains(HeaderSet::XRCETH)
                    .then_some(XrcEth { srqn: Srqn(number >> 8) }),
                deth: set
                    .contains(HeaderSet::DETH)
                    .then_some(Deth { qkey: key, src_qp: Qpn::new(number) }),
                reth: set.contains(HeaderSet::RETH).then_some(Reth { va, rkey, dma_len: len }),
                atomic_eth: set.contains(HeaderSet::ATOMIC_ETH).then_some(AtomicEth {
                    va,
                    rkey,
                    swap_or_add: first,
                    compare: second,
                }),
                aeth: set
                    .contains(HeaderSet::AETH)
                    .then_some(Aeth { syndrome, msn: Msn::new(number) }),
                atomic_ack_eth: set
                    .contains(HeaderSet::ATOMIC_ACK_ETH)
                    .then_some(AtomicAckEth { original: first }),
                immdt: set.contains(HeaderSet::IMMDT).then_some(ImmDt(len.to_be_bytes())),
                ieth: set.contains(HeaderSet::IETH).then_some(Ieth { rkey }),
            }
        },
    )
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..80)
}

/// Over IPv4 or IPv6.
fn icrc_header() -> impl Strategy<Value = IcrcHeader> {
    (any::<bool>(), any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u16>(), any::<u16>()).prop_map(
        |(is_ipv4, mut src, mut dst, src_port, ip_id)| {
            if is_ipv4 {
                for gid in [&mut src, &mut dst] {
                    gid[..10].fill(0);
                    gid[10..12].fill(0xff);
                }
            } else {
                dst[0] = 0xfd;
            }
            IcrcHeader { src: Gid(src), dst: Gid(dst), src_port, ip_id }
        },
    )
}

/// A UDP payload with its ICRC.
fn sealed(header: &IcrcHeader, headers: Headers, payload: &[u8]) -> Vec<u8> {
    let packet = Packet { headers, payload };
    let mut bytes = vec![0xaa; packet.buffer_len() + icrc::LEN];
    packet.emit(&mut bytes);
    icrc::seal(header, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(headers in headers(), payload in payload()) {
        let packet = Packet { headers, payload: &payload };
        let mut bytes = vec![0xaa; packet.buffer_len()];
        packet.emit(&mut bytes);
        prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
        prop_assert!(bytes.len().is_multiple_of(4));
        let pad = &bytes[bytes.len() - (payload.len().next_multiple_of(4) - payload.len())..];
        prop_assert!(pad.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_is_read_is_written_back(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            let mut again = vec![0; packet.buffer_len()];
            packet.emit(&mut again);
            prop_assert_eq!(Packet::parse(&again), Ok(packet));
        }
    }

    #[test]
    fn random_packets_of_a_known_opcode_never_panic(
        opcode in proptest::sample::select(Opcode::ALL),
        mut bytes in proptest::collection::vec(any::<u8>(), 12..120),
    ) {
        bytes[0] = opcode.byte();
        bytes[1] &= 0xf0;
        let allowed = [DropReason::Truncated, DropReason::BadLength, DropReason::BadSyndrome];
        match Packet::parse(&bytes) {
            Ok(packet) => prop_assert_eq!(packet.headers.present(), opcode.headers()),
            Err(reason) => prop_assert!(allowed.contains(&reason), "{}", reason),
        }
    }

    /// Cut anywhere inside its headers, a packet is truncated; cut after them, it is only shorter.
    #[test]
    fn truncations_are_told(headers in headers(), payload in payload()) {
        let packet = Packet { headers, payload: &payload };
        let mut bytes = vec![0xaa; packet.buffer_len()];
        packet.emit(&mut bytes);
        let headers_len = headers.buffer_len(0);
        for len in 0..bytes.len() {
            let parsed = Packet::parse(&bytes[..len]);
            if len < headers_len {
                prop_assert_eq!(parsed, Err(DropReason::Truncated));
            } else if !len.is_multiple_of(4) {
                prop_assert_eq!(parsed, Err(DropReason::BadLength));
            }
        }
    }

    /// Every single flipped bit outside the masked byte is found: exactly where the identification
    /// is known or there is none, and up to the identification where it is not.
    #[test]
    fn single_bit_flips_are_found(
        header in icrc_header(),
        headers in headers(),
        payload in payload(),
    ) {
        let mut bytes = sealed(&header, headers, &payload);
        prop_assert!(icrc::verify(&header, &bytes));
        let guess = IcrcHeader { ip_id: !header.ip_id, ..header };
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let is_masked = bit / 8 == 4;
            prop_assert_eq!(icrc::verify(&header, &bytes), is_masked);
            if header.dst.is_ipv4() {
                let found = icrc::solve_ip_id(&guess, &bytes) == Some(header.ip_id);
                prop_assert_eq!(found, is_masked);
            } else {
                prop_assert_eq!(icrc::solve_ip_id(&guess, &bytes).is_some(), is_masked);
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// No datagram, however short or senseless, makes the ICRC code panic, and what is solved for
    /// is right.
    #[test]
    fn solved_identifications_verify(
        header in icrc_header(),
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        if let Some(ip_id) = icrc::solve_ip_id(&header, &bytes) {
            let solved = IcrcHeader { ip_id, ..header };
            prop_assert!(icrc::verify(&solved, &bytes));
        }
    }
}

#[test]
#[should_panic(expected = "headers of RC_WRITE_ONLY")]
fn a_packet_without_a_header_its_opcode_asks_for_is_a_programming_error() {
    let headers = Headers::new(Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(1), Psn::new(0)));
    headers.emit(0, &mut [0; 64]);
}

#[test]
fn names_of_drop_reasons_are_unique_and_snake_case() {
    let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    assert!(
        names.iter().all(|name| name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()))
    );
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(DropReason::Icrc.to_string(), "icrc");
}
