//! The ICRC by what packets of one flow and one length have in common.
//!
//! Two thirds of the bytes that the ICRC of a small packet covers are IP and UDP headers, and those
//! differ between the packets of a flow by the length and the IPv4 identification alone. A CRC is
//! linear, so that the register after these headers is kept per flow and length, the identification
//! is added from a table, and so is what the masked congestion byte of the BTH makes of the result.

use crc32fast::Hasher;

use super::icrc::{self, IcrcHeader, LEN, POLYNOMIAL};
use crate::ids::Gid;

/// Flows times lengths that are kept: a peer's SENDs, ACKs and the edges of its messages.
const ENTRIES: usize = 64;

/// Byte of the BTH that the ICRC takes for ones.
const CONGESTION: usize = 4;
/// From the identification to the end of the UDP header.
const BYTES_AFTER_ID: usize = 14 + 8;

static LOW_ID: [u32; 256] = of_every_byte(BYTES_AFTER_ID);
static HIGH_ID: [u32; 256] = of_every_byte(BYTES_AFTER_ID + 1);

#[derive(Clone, Copy, Debug)]
struct Prefix {
    src: Gid,
    dst: Gid,
    src_port: u16,
    len: usize,
    is_ipv4: bool,
    /// CRC up to the end of the UDP header, the identification being 0.
    headers: u32,
    /// What the mask of an empty congestion byte changes.
    mask: u32,
}

/// Prefixes of the packets that were seen last, in one direction.
#[derive(Debug)]
pub(crate) struct IcrcPrefixes {
    entries: Box<[Prefix; ENTRIES]>,
}

impl IcrcPrefixes {
    pub(crate) fn new() -> Self {
        let nothing = Prefix {
            src: Gid([0; 16]),
            dst: Gid([0; 16]),
            src_port: 0,
            // No packet is that long, so that this fits none.
            len: usize::MAX,
            is_ipv4: false,
            headers: 0,
            mask: 0,
        };
        Self { entries: Box::new([nothing; ENTRIES]) }
    }

    /// As [`icrc::compute`].
    pub(crate) fn compute(&mut self, header: &IcrcHeader, packet: &[u8]) -> u32 {
        // Congestion marks are rare, and so are packets without a BTH.
        if packet.get(CONGESTION) != Some(&0) {
            return icrc::compute(header, packet);
        }
        let place =
            (packet.len() / 4 + 8 * usize::from(header.dst.0[15] ^ header.src.0[15])) % ENTRIES;
        let prefix = &mut self.entries[place];
        if !prefix.is_of(header, packet.len()) {
            *prefix = Prefix::of(header, packet);
        }
        let id = if prefix.is_ipv4 { of_id(header.ip_id) } else { 0 };
        crc(prefix.headers ^ id, packet) ^ prefix.mask
    }

    /// As [`icrc::seal`].
    pub(crate) fn seal(&mut self, header: &IcrcHeader, payload: &mut [u8]) {
        let (packet, icrc) = payload.split_last_chunk_mut::<LEN>().expect("room for the ICRC");
        *icrc = self.compute(header, packet).to_le_bytes();
    }
}

impl Prefix {
    /// That of this packet, whose congestion byte is empty.
    fn of(header: &IcrcHeader, packet: &[u8]) -> Self {
        let IcrcHeader { src, dst, src_port, .. } = *header;
        let first = IcrcHeader { ip_id: 0, ..*header };
        let headers = icrc::of_headers(&first, packet.len());
        let mask = icrc::compute(&first, packet) ^ crc(headers, packet);
        Self { src, dst, src_port, len: packet.len(), is_ipv4: dst.is_ipv4(), headers, mask }
    }

    fn is_of(&self, header: &IcrcHeader, len: usize) -> bool {
        self.len == len
            && self.src_port == header.src_port
            && self.dst == header.dst
            && self.src == header.src
    }
}

/// CRC of what `before` is the CRC of, followed by `bytes`.
fn crc(before: u32, bytes: &[u8]) -> u32 {
    let mut crc = Hasher::new_with_initial(before);
    crc.update(bytes);
    crc.finalize()
}

/// What an identification other than 0 changes.
fn of_id(ip_id: u16) -> u32 {
    let [high, low] = ip_id.to_be_bytes();
    LOW_ID[usize::from(low)] ^ HIGH_ID[usize::from(high)]
}

/// What a byte other than 0 changes, `bytes_after` bytes further on.
const fn of_every_byte(bytes_after: usize) -> [u32; 256] {
    let mut changes = [0; 256];
    let mut byte = 0;
    while byte < changes.len() {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 * (bytes_after + 1) {
            register = register >> 1 ^ POLYNOMIAL & (register & 1).wrapping_neg();
            bit += 1;
        }
        changes[byte] = register;
        byte += 1;
    }
    changes
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// The same as without memory, for flows, lengths and identifications in any order, and so many
    /// that they push each other out.
    #[test]
    fn what_is_kept_changes_nothing() {
        let v4 = |last| Gid::from(Ipv4Addr::new(10, 77, 0, last));
        let v6 = |last| Gid(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last).octets());
        let mut prefixes = IcrcPrefixes::new();
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let random = (seed >> 33).to_le_bytes();
            let [len, host, id, what, ..] = random;
            let (src, dst) = match host & 8 {
                0 => (v4(host % 8), v4(host % 4)),
                _ => (v6((host % 8).into()), v6((host % 4).into())),
            };
            let ip_id = if what < 128 { id.into() } else { u16::from_le_bytes([id, len]) };
            let header = IcrcHeader { src, dst, src_port: 4791 + u16::from(what % 2), ip_id };
            let mut packet = [0; 160];
            packet.iter_mut().zip(random.iter().cycle()).for_each(|(to, from)| *to = *from);
            packet[CONGESTION] = if what % 16 == 3 { 0x40 } else { 0 };
            let packet = &packet[..usize::from(len % 40) * 4];
            assert_eq!(
                prefixes.compute(&header, packet),
                icrc::compute(&header, packet),
                "{header:?} {}",
                packet.len()
            );
        }
    }
}
