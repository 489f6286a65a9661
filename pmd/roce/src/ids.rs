//! The numbers that name things, each a type of its own.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

/// A queue pair number: 24 bits, unique on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface, where connection management lives.
    pub const GSI: Self = Self(1);
    /// Destination of every multicast datagram (IBTA 1.4, 9.2.2 and 10.5.2).
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A packet sequence number: 24-bit serial arithmetic (IBTA 1.4, 9.7.2).
///
/// There is deliberately no `Ord`: order on a circle is the signed distance, [`Psn::since`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The PSN `packets` later, modulo 2^24.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The PSN `packets` earlier, modulo 2^24.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// Signed distance from `earlier` to `self`, in -2^23 ..= 2^23 - 1.
    ///
    /// Negative: `self` lies before `earlier`, a duplicate from a responder's view.
    pub const fn since(self, earlier: Self) -> i32 {
        // The 24-bit difference sits in the top of an i32, so that the sign bit is the circle's.
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(
    /// Names a memory region toward its own device.
    Lkey(u32), "{:#010x}"
);
number!(
    /// Names a memory region or window toward a peer; the low byte belongs to the consumer.
    Rkey(u32), "{:#010x}"
);
number!(
    /// The consumer's own name for a work request, returned in its completion.
    WrId(u64), "{}"
);
number!(
    /// A protection domain: queue pairs reach only memory of their own domain.
    PdId(u32), "{}"
);
number!(
    /// A completion queue.
    CqId(u32), "{}"
);
number!(
    /// A shared receive queue; 24 bits on the wire (XRCETH).
    Srqn(u32), "{}"
);
number!(
    /// An XRC domain, which ties target queue pairs to shared receive queues.
    XrcdId(u32), "{}"
);
number!(
    /// One lcore of a peer that shares memory with this one.
    LinkId(u32), "{}"
);

/// A port address: an IPv6 address, or an IPv4 address mapped into one (IBTA annex A17).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The address as IP sees it: v4-mapped GIDs are IPv4.
    pub fn ip(self) -> IpAddr {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => {
                Ipv4Addr::new(a, b, c, d).into()
            }
            octets => Ipv6Addr::from(octets).into(),
        }
    }

    /// Whether packets to this GID carry an IPv4 header.
    pub fn is_ipv4(self) -> bool {
        self.0.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
    }

    /// Whether this is a multicast group.
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(v4: Ipv4Addr) -> Self {
        Self(v4.to_ipv6_mapped().octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Payload bytes per packet, the five sizes of `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes: what fits an Ethernet MTU of 1500.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl PathMtu {
    /// All sizes, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> usize {
        self.bytes_u32() as usize
    }

    /// The same, in the type that counts message bytes.
    pub const fn bytes_u32(self) -> u32 {
        128 << self as u32
    }

    /// The size with this `enum ibv_mtu` value, 1 to 5.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u8 == code)
    }

    /// The size of exactly `bytes`.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest size whose packets, with every RoCEv2 header, fit a UDP payload of `bytes`.
    ///
    /// The widest packet is a WRITE with immediate on XRC: BTH 12, XRCETH 4, RETH 16, ImmDt 4, ICRC 4.
    pub fn largest_within(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + 40 <= bytes)
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// A point in time: nanoseconds since an origin that the caller chose. The engine never reads a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// `span` later, saturating.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time since `earlier`; zero where `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1-25: PSNs count modulo 2^24 and compare on a circle.
    #[test]
    fn s1_25_psn_is_serial_arithmetic() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).since(last), 1);
        assert_eq!(last.since(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), (1 << 23) - 1);
        assert_eq!(Psn::new(3).minus(5), Psn::new(0xff_fffe));
    }

    #[test]
    fn gid_of_an_ipv4_address_is_mapped() {
        let gid = Gid::from(Ipv4Addr::new(10, 77, 0, 3));
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 3]);
        assert!(gid.is_ipv4());
        assert_eq!(gid.ip(), IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3)));
        assert!(!Gid::from(IpAddr::V6(Ipv6Addr::LOCALHOST)).is_ipv4());
    }

    #[test]
    fn path_mtu_codes_and_bytes() {
        for mtu in PathMtu::ALL {
            assert_eq!(PathMtu::from_code(mtu as u8), Some(mtu));
            assert_eq!(PathMtu::from_bytes(mtu.bytes()), Some(mtu));
        }
        assert_eq!(PathMtu::from_code(0), None);
        assert_eq!(PathMtu::from_code(6), None);
        assert_eq!(PathMtu::largest_within(1472), Some(PathMtu::B1024));
        assert_eq!(PathMtu::largest_within(200), None);
    }
}
