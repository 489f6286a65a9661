//! The header that IP's connection manager puts before the consumer's private data of a request:
//! 36 bytes with the addresses that sockets would have (IBTA annex A11).

use core::net::IpAddr;

use crate::ids::Gid;

mod at {
    pub(super) const VERSION: usize = 0;
    pub(super) const IP_VERSION: usize = 1;
    pub(super) const SOURCE_PORT: usize = 2;
    pub(super) const SOURCE: usize = 4;
    pub(super) const DESTINATION: usize = 20;
}

/// Who asks whom. The destination's port is in the service id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Port of the one that asks.
    pub source_port: u16,
    /// Its address.
    pub source: IpAddr,
    /// The address that it asks; of the same family.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// Reads the header; `None` where its version, or that of its addresses, is not known.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let address = |at: usize| {
            let octets: &[u8; 16] = bytes[at..].first_chunk()?;
            match bytes[at::IP_VERSION] >> 4 {
                4 => Some(IpAddr::from(*octets.last_chunk::<4>()?)),
                6 => Some(IpAddr::from(*octets)),
                _ => None,
            }
        };
        if bytes[at::VERSION] != 0 {
            return None;
        }
        let port = [bytes[at::SOURCE_PORT], bytes[at::SOURCE_PORT + 1]];
        Some(Self {
            source_port: u16::from_be_bytes(port),
            source: address(at::SOURCE)?,
            destination: address(at::DESTINATION)?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = [0; Self::LEN];
        out[at::IP_VERSION] = if self.destination.is_ipv4() { 0x40 } else { 0x60 };
        out[at::SOURCE_PORT..at::SOURCE].copy_from_slice(&self.source_port.to_be_bytes());
        for (at, address) in [(at::SOURCE, self.source), (at::DESTINATION, self.destination)] {
            match address {
                IpAddr::V4(v4) => out[at + 12..at + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => out[at..at + 16].copy_from_slice(&v6.octets()),
            }
        }
    }

    /// Whether these are the addresses that the request came over. RoCE has no others, so that a request
    /// with others claims to come from somebody else.
    pub fn is_between(&self, source: Gid, destination: Gid) -> bool {
        Gid::from(self.source) == source && Gid::from(self.destination) == destination
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rping frame 3.
    const GOLDEN: [u8; 36] = [
        0x00, 0x40, 0xe0, 0x48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x4d, 0x00, 0x03, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x4d, 0x00, 0x02,
    ];

    #[test]
    fn golden_bytes_both_ways() {
        let header = IpHeader {
            source_port: 57416,
            source: [10, 77, 0, 3].into(),
            destination: [10, 77, 0, 2].into(),
        };
        assert_eq!(IpHeader::parse(&GOLDEN), Some(header));
        let mut out = [0xaa; 36];
        header.emit(&mut out);
        assert_eq!(out, GOLDEN);
        assert!(header.is_between(header.source.into(), header.destination.into()));
        assert!(!header.is_between(header.destination.into(), header.source.into()));
    }

    #[test]
    fn ipv6_fills_the_field_and_other_versions_are_refused() {
        let header = IpHeader {
            source_port: 1,
            source: "fd77::3".parse().unwrap(),
            destination: "fd77::2".parse().unwrap(),
        };
        let mut out = [0; 36];
        header.emit(&mut out);
        assert_eq!(out[1], 0x60);
        assert_eq!(IpHeader::parse(&out), Some(header));
        out[1] = 0x50;
        assert_eq!(IpHeader::parse(&out), None);
        (out[0], out[1]) = (1, 0x60);
        assert_eq!(IpHeader::parse(&out), None);
    }
}
