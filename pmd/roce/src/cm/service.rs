//! Service ids: how a message names whom it is for, the RDMA ports of IP (IBTA annex A11).

use core::fmt;

/// A name space of ports, as `enum rdma_port_space`; the value is the protocol's byte in a service id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortSpace {
    /// Connections over reliable queue pairs.
    Tcp = 0x06,
    /// Datagrams: a connection is no more than to look up the peer's queue pair.
    Udp = 0x11,
    /// Any transport, without an IP address in the request.
    Ib = 0x3f,
}

impl PortSpace {
    /// The name that `rdma_cm` uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "RDMA_PS_TCP",
            Self::Udp => "RDMA_PS_UDP",
            Self::Ib => "RDMA_PS_IB",
        }
    }
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a request is for; two are the same only in all 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

impl ServiceId {
    const PREFIX: u64 = 0x0100_0000;

    /// A port of a port space.
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self(Self::PREFIX | (space as u64) << 16 | port as u64)
    }

    /// Port space and port; `None` for services of other kinds.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let spaces = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];
        #[expect(clippy::cast_possible_truncation, reason = "the low 16 bits are meant")]
        let port = self.0 as u16;
        let space = spaces.into_iter().find(|space| Self::new(*space, port) == self)?;
        Some((space, port))
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{space} port {port}"),
            None => write!(f, "service {:#018x}", self.0),
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S0-29: connections and datagrams have services of their own.
    #[test]
    fn s0_29_service_ids_are_those_of_linux() {
        // cm-reject, nvme-rdma, udaddy.
        for (id, space, port) in [
            (0x0106_1d2f, PortSpace::Tcp, 7471),
            (0x0106_1144, PortSpace::Tcp, 4420),
            (0x0111_1c06, PortSpace::Udp, 7174),
            (0x013f_1c06, PortSpace::Ib, 7174),
        ] {
            assert_eq!(ServiceId::new(space, port), ServiceId(id));
            assert_eq!(ServiceId(id).port(), Some((space, port)));
        }
        assert_eq!(ServiceId(0x0107_1d2f).port(), None);
        assert_eq!(ServiceId(0x1_0106_1d2f).port(), None);
        assert_eq!(ServiceId(0x0106_1d2f).to_string(), "RDMA_PS_TCP port 7471");
    }
}
