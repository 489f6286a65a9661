//! Which operation exists on which service type.

use std::fmt;

/// A service type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// An operation that a node posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND, with or without immediate.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// CMP_SWAP and FETCH_ADD.
    Atomic,
    /// Delivery to a group.
    Multicast,
    /// Being joined to one peer.
    Connection,
    /// Knowing that what was sent has come.
    Acknowledgement,
}

impl Transport {
    /// The transport of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Rc, Self::Uc, Self::Ud].into_iter().find(|transport| transport.name() == name)
    }

    /// The word that the config takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        }
    }

    /// Whether requests are acknowledged and sent again; only then there are retry fields.
    pub fn is_reliable(self) -> bool {
        self == Self::Rc
    }

    /// `None` where the operation exists; else why it does not.
    pub fn lacks(self, operation: Operation) -> Option<&'static str> {
        match (self, operation) {
            (_, Operation::Send)
            | (Self::Rc | Self::Uc, Operation::Write | Operation::Connection)
            | (Self::Rc, Operation::Read | Operation::Atomic | Operation::Acknowledgement)
            | (Self::Ud, Operation::Multicast) => None,
            (Self::Uc, Operation::Read | Operation::Atomic) => Some(
                "UC has no acknowledgements, so nothing can come back: it carries SEND and WRITE only",
            ),
            (Self::Uc | Self::Ud, Operation::Acknowledgement) => {
                Some("UC and UD send once, and nothing tells what was lost")
            }
            (Self::Ud, Operation::Connection) => {
                Some("UD sends single datagrams to anybody, and has no connections")
            }
            (Self::Ud, _) => {
                Some("UD carries single datagrams without remote memory access: SEND only")
            }
            (Self::Rc | Self::Uc, Operation::Multicast) => {
                Some("a connected queue pair has one peer: groups exist on UD only")
            }
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().to_uppercase())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Atomic => "an atomic",
            Self::Multicast => "multicast",
            Self::Connection => "a connection",
            Self::Acknowledgement => "acknowledgements",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1-01 to S1-03: what each service type carries.
    #[test]
    fn s1_09_operations_per_transport() {
        let carried = |transport: Transport| {
            [
                Operation::Send,
                Operation::Write,
                Operation::Read,
                Operation::Atomic,
                Operation::Multicast,
            ]
            .map(|operation| transport.lacks(operation).is_none())
        };
        assert_eq!(carried(Transport::Rc), [true, true, true, true, false]);
        assert_eq!(carried(Transport::Uc), [true, true, false, false, false]);
        assert_eq!(carried(Transport::Ud), [true, false, false, false, true]);
    }
}
