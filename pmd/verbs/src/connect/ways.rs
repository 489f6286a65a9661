//! How a side can be reached, and whether two sides have a way in common.

use std::fmt;

use pmd_roce::ids::Gid;

use super::{Hello, PathWish};
use crate::endpoint::ConnectError;
use crate::gid::{GidForm, RoceVersion};

/// The ways in which the devices of a side can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways(u8);

/// Each way, and how it is called.
const NAMES: [(Ways, &str); 4] = [
    (Ways::SHARED_MEMORY, "shared memory"),
    (Ways::ROCE_V2_IPV4, "RoCE v2 over IPv4"),
    (Ways::ROCE_V2_IPV6, "RoCE v2 over IPv6"),
    (Ways::ROCE_V1, "RoCE v1"),
];

impl Ways {
    /// Memory that processes of one host and user share.
    pub const SHARED_MEMORY: Self = Self(1);
    /// Packets to an IPv4 address.
    pub const ROCE_V2_IPV4: Self = Self(2);
    /// Packets to an IPv6 address.
    pub const ROCE_V2_IPV6: Self = Self(4);
    /// Ethernet frames.
    pub const ROCE_V1: Self = Self(8);

    /// Packets from this GID.
    pub fn packets(gid: Gid, version: RoceVersion) -> Self {
        match (version, GidForm::of(gid)) {
            (RoceVersion::V1, _) => Self::ROCE_V1,
            (RoceVersion::V2, GidForm::Ipv4Mapped) => Self::ROCE_V2_IPV4,
            (RoceVersion::V2, GidForm::Ipv6 | GidForm::LinkLocal) => Self::ROCE_V2_IPV6,
        }
    }

    /// Of a device with this GID that wants to be reached like that.
    pub fn of(gid: Gid, version: RoceVersion, wish: PathWish) -> Self {
        let packets = Self::packets(gid, version);
        match wish {
            PathWish::Any => Self(packets.0 | Self::SHARED_MEMORY.0),
            PathWish::Packets => packets,
            PathWish::SharedMemory => Self::SHARED_MEMORY,
        }
    }

    /// Those of both.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    /// From a peer, which may know more of them.
    pub(super) const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = NAMES.iter().filter(|(way, _)| !self.common(*way).is_empty());
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "nothing that this side knows" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

impl Hello {
    /// Whether the two sides have a way to each other at all.
    ///
    /// # Errors
    /// [`ConnectError::Mismatch`] with the ways of both.
    pub(super) fn reaches(&self, peer: &Self) -> Result<(), ConnectError> {
        if !self.ways.common(peer.ways).is_empty() {
            return Ok(());
        }
        let [ours, theirs] = [self, peer].map(|side| side.ways.to_string());
        Err(ConnectError::Mismatch { what: "ways to be reached", ours, theirs })
    }

    /// Whether packets lead from one to the other: both GIDs must be of one kind.
    ///
    /// # Errors
    /// [`ConnectError::Mismatch`] with the GIDs of both.
    pub(super) fn sends_to(&self, peer: &Self) -> Result<(), ConnectError> {
        let kind = |side: &Self| Ways::packets(side.gid, side.roce);
        if kind(self) == kind(peer) {
            return Ok(());
        }
        let [ours, theirs] = [self, peer].map(|side| format!("{} ({})", side.gid, kind(side)));
        Err(ConnectError::Mismatch { what: "type of GID", ours, theirs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<std::net::IpAddr>().unwrap())
    }

    #[test]
    fn ways_are_named() {
        let of = |address, wish| Ways::of(gid(address), RoceVersion::V2, wish).to_string();
        assert_eq!(of("10.0.0.1", PathWish::Any), "shared memory, RoCE v2 over IPv4");
        assert_eq!(of("fd00::1", PathWish::Packets), "RoCE v2 over IPv6");
        assert_eq!(of("fe80::1", PathWish::SharedMemory), "shared memory");
        assert_eq!(Ways::packets(gid("10.0.0.1"), RoceVersion::V1), Ways::ROCE_V1);
        assert_eq!(Ways::from_bits(0x80).to_string(), "nothing that this side knows");
    }
}
