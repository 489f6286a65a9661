//! The 40 bytes before the payload in a datagram's receive buffer: a GRH's place, filled with what
//! RoCEv2 has instead (IBTA annex A17.4.5.1). IPv6: the header. IPv4: 20 bytes of zero, the header.

use super::{be, udp};
use crate::ids::Gid;

/// Where a datagram came from, as its receiver can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Sender.
    pub src: Gid,
    /// Receiver, or a multicast group. IPv4 or IPv6 for both.
    pub dst: Gid,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 identification.
    pub ip_id: u16,
    /// Bytes of the UDP datagram, its header included.
    pub udp_len: u16,
}

/// IPv4 header of 5 words, at its place in the area.
mod at {
    pub(super) const V4: usize = 20;
    pub(super) const V4_LEN: usize = V4 + 2;
    pub(super) const V4_ID: usize = V4 + 4;
    pub(super) const V4_FLAGS: usize = V4 + 6;
    pub(super) const V4_CHECKSUM: usize = V4 + 10;
}

pub(super) const IPV4_LEN: u16 = 20;
pub(super) const IPV4_FIRST_BYTE: u8 = 0x45;
pub(super) const IPV4_DONT_FRAGMENT: u16 = 0x4000;
pub(super) const PROTOCOL_UDP: u8 = 17;

impl Grh {
    /// Bytes in the receive buffer.
    pub const LEN: usize = 40;

    /// Reads the area, as a receiver does to find whom to answer. `None` when it holds neither an
    /// IPv6 nor an intact IPv4 header of a UDP datagram.
    pub fn parse(area: &[u8; Self::LEN]) -> Option<Self> {
        if area[0] >> 4 == 6 && area[6] == PROTOCOL_UDP {
            let (mut src, mut dst) = (Gid::default(), Gid::default());
            src.0.copy_from_slice(&area[8..24]);
            dst.0.copy_from_slice(&area[24..40]);
            // No IPv6 header bears an IPv4 address: an answer would go to another host.
            return (!src.is_ipv4() && !dst.is_ipv4()).then(|| Self {
                src,
                dst,
                traffic_class: area[0] << 4 | area[1] >> 4,
                hop_limit: area[7],
                ip_id: 0,
                udp_len: be::u16(area, 4),
            });
        }
        let udp_len = be::u16(area, at::V4_LEN).checked_sub(IPV4_LEN)?;
        let is_intact = area[at::V4] == IPV4_FIRST_BYTE
            && area[29] == PROTOCOL_UDP
            && ones_complement_sum(area) == 0xffff;
        is_intact.then(|| Self {
            src: mapped(be::u32(area, 32)),
            dst: mapped(be::u32(area, 36)),
            traffic_class: area[21],
            hop_limit: area[28],
            ip_id: be::u16(area, at::V4_ID),
            udp_len,
        })
    }

    /// Writes the area.
    pub fn emit(&self, area: &mut [u8; Self::LEN]) {
        *area = [0; Self::LEN];
        if !self.dst.is_ipv4() {
            area[0] = 0x60 | self.traffic_class >> 4;
            area[1] = self.traffic_class << 4;
            be::put_u16(area, 4, self.udp_len);
            area[6] = PROTOCOL_UDP;
            area[7] = self.hop_limit;
            area[8..24].copy_from_slice(&self.src.0);
            area[24..40].copy_from_slice(&self.dst.0);
            return;
        }
        area[at::V4] = IPV4_FIRST_BYTE;
        area[21] = self.traffic_class;
        be::put_u16(area, at::V4_LEN, self.udp_len.saturating_add(IPV4_LEN));
        be::put_u16(area, at::V4_ID, self.ip_id);
        be::put_u16(area, at::V4_FLAGS, IPV4_DONT_FRAGMENT);
        area[28] = self.hop_limit;
        area[29] = PROTOCOL_UDP;
        area[32..36].copy_from_slice(&self.src.0[12..]);
        area[36..40].copy_from_slice(&self.dst.0[12..]);
        be::put_u16(area, at::V4_CHECKSUM, !ones_complement_sum(area));
    }

    /// Bytes of a UDP datagram that carries `payload` bytes, BTH to ICRC.
    pub fn udp_len_of(payload: usize) -> u16 {
        u16::try_from(udp::HEADER_LEN + payload).unwrap_or(u16::MAX)
    }
}

fn mapped(ipv4: u32) -> Gid {
    Gid::from(core::net::Ipv4Addr::from(ipv4))
}

/// The Internet checksum before its complement; the zeros before an IPv4 header add nothing.
fn ones_complement_sum(area: &[u8; Grh::LEN]) -> u16 {
    let sum: u32 = (0..Grh::LEN).step_by(2).map(|at| u32::from(be::u16(area, at))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded + (folded >> 16)) & 0xffff) as u16
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    /// S1-46: an IPv4 header as Soft-RoCE sent it in rc-send frame 7, behind 20 bytes of zero.
    #[test]
    fn s1_46_ipv4_header_fills_the_second_half() {
        let mut golden = [0; 40];
        golden[20..].copy_from_slice(&[
            0x45, 0x00, 0x00, 0x30, 0xd1, 0xe7, 0x40, 0x00, 0x40, 0x11, 0x54, 0x37, 0x0a, 0x4d,
            0x00, 0x02, 0x0a, 0x4d, 0x00, 0x03,
        ]);
        let grh = Grh {
            src: Gid::from(Ipv4Addr::new(10, 77, 0, 2)),
            dst: Gid::from(Ipv4Addr::new(10, 77, 0, 3)),
            traffic_class: 0,
            hop_limit: 64,
            ip_id: 0xd1e7,
            udp_len: Grh::udp_len_of(20),
        };
        let mut area = [0xaa; 40];
        grh.emit(&mut area);
        assert_eq!(area, golden);
        assert_eq!(Grh::parse(&area), Some(grh));
        for at in 20..40 {
            let mut damaged = golden;
            damaged[at] ^= 1;
            assert_eq!(Grh::parse(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn ipv6_header_fills_the_area() {
        let ip = |last| Gid::from(IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last)));
        let grh = Grh {
            src: ip(2),
            dst: ip(3),
            traffic_class: 0xb9,
            hop_limit: 63,
            ip_id: 0,
            udp_len: 28,
        };
        let mut area = [0xaa; 40];
        grh.emit(&mut area);
        assert_eq!(area[..8], [0x6b, 0x90, 0x00, 0x00, 0x00, 0x1c, 0x11, 0x3f]);
        assert_eq!(area[8..24], ip(2).0);
        assert_eq!(area[24..], ip(3).0);
        assert_eq!(Grh::parse(&area), Some(grh));
        assert_eq!(Grh::parse(&[0; 40]), None);
        for address in [8, 24] {
            let mut mapped = area;
            mapped[address..][..16].copy_from_slice(&Gid::from(Ipv4Addr::LOCALHOST).0);
            assert_eq!(Grh::parse(&mapped), None);
        }
    }
}
