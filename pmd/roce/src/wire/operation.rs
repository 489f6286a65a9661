//! Operations: what a packet does, and what that implies for the rest of the packet (IBTA 1.4,
//! table 35).

use core::fmt;

use bitflags::bitflags;

use super::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth, XrcEth};

/// Where a packet stands in its message or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// More packets follow.
    First,
    /// Neither first nor last.
    Middle,
    /// Ends what a first packet began.
    Last,
    /// All of it.
    Only,
}

/// How many payload bytes a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// Exactly the path MTU.
    Full,
    /// 1 to path MTU.
    Rest,
    /// 0 to path MTU.
    UpToMtu,
    /// None at all.
    Empty,
    /// The 16 reserved bytes of a CNP.
    Reserved16,
}

impl PayloadRule {
    /// Whether `len` bytes, pad not counted, obey the rule on a path of `mtu` bytes.
    pub const fn admits(self, len: usize, mtu: usize) -> bool {
        match self {
            Self::Full => len == mtu,
            Self::Rest => 1 <= len && len <= mtu,
            Self::UpToMtu => len <= mtu,
            Self::Empty => len == 0,
            Self::Reserved16 => len == 16,
        }
    }
}

bitflags! {
    /// The extended headers of a packet. They follow the BTH in the order of these bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct HeaderSet: u8 {
        /// Shared receive queue of an XRC request, 4 bytes.
        const XRCETH = 1;
        /// Q_Key and source of a datagram, 8 bytes.
        const DETH = 2;
        /// Remote address, key and length, 16 bytes.
        const RETH = 4;
        /// Remote address and operands of an atomic, 28 bytes.
        const ATOMIC_ETH = 8;
        /// Syndrome and MSN of a response, 4 bytes.
        const AETH = 16;
        /// Original value of an atomic, 8 bytes.
        const ATOMIC_ACK_ETH = 32;
        /// Immediate data, 4 bytes.
        const IMMDT = 64;
        /// Key to invalidate, 4 bytes.
        const IETH = 128;
    }
}

impl HeaderSet {
    /// Bytes of these headers on the wire.
    pub const fn wire_len(self) -> usize {
        const LENGTHS: [usize; 8] = [
            XrcEth::LEN,
            Deth::LEN,
            Reth::LEN,
            AtomicEth::LEN,
            Aeth::LEN,
            AtomicAckEth::LEN,
            ImmDt::LEN,
            Ieth::LEN,
        ];
        let (mut len, mut bit) = (0, 0);
        while bit < LENGTHS.len() {
            if self.bits() >> bit & 1 == 1 {
                len += LENGTHS[bit];
            }
            bit += 1;
        }
        len
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident $name:literal = $bits:literal, $position:ident, $payload:ident, $headers:expr;)*) => {
        /// What a packet does: the low five bits of the opcode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[$doc])* $variant = $bits,)*
            /// The only packet of its class.
            Cnp = 0x20,
        }

        impl Operation {
            /// All operations that share the numbering of RC.
            pub const ALL: [Self; 23] = [$(Self::$variant),*];

            /// The operation of the low five bits of an opcode that is not a CNP's.
            pub(super) const fn of(byte: u8) -> Option<Self> {
                match byte & 0x1f {
                    $($bits => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Short name, as scripts and rules use it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Cnp => "CNP",
                }
            }

            /// Where the packet stands in its message or response.
            pub const fn position(self) -> Position {
                match self {
                    $(Self::$variant => Position::$position,)*
                    Self::Cnp => Position::Only,
                }
            }

            /// What payload the packet carries.
            pub const fn payload_rule(self) -> PayloadRule {
                match self {
                    $(Self::$variant => PayloadRule::$payload,)*
                    Self::Cnp => PayloadRule::Reserved16,
                }
            }

            /// Extended headers on RC.
            pub(super) const fn rc_headers(self) -> HeaderSet {
                match self {
                    $(Self::$variant => $headers,)*
                    Self::Cnp => HeaderSet::empty(),
                }
            }
        }
    };
}

const NONE: HeaderSet = HeaderSet::empty();
const RETH_IMMDT: HeaderSet = HeaderSet::RETH.union(HeaderSet::IMMDT);
const AETH_ATOMIC: HeaderSet = HeaderSet::AETH.union(HeaderSet::ATOMIC_ACK_ETH);

operations! {
    /// Begins a SEND of several packets.
    SendFirst "SEND_FIRST" = 0x00, First, Full, NONE;
    /// Continues a SEND.
    SendMiddle "SEND_MIDDLE" = 0x01, Middle, Full, NONE;
    /// Ends a SEND.
    SendLast "SEND_LAST" = 0x02, Last, Rest, NONE;
    /// Ends a SEND, with immediate data.
    SendLastImm "SEND_LAST_IMM" = 0x03, Last, Rest, HeaderSet::IMMDT;
    /// A whole SEND.
    SendOnly "SEND_ONLY" = 0x04, Only, UpToMtu, NONE;
    /// A whole SEND, with immediate data.
    SendOnlyImm "SEND_ONLY_IMM" = 0x05, Only, UpToMtu, HeaderSet::IMMDT;
    /// Begins a WRITE of several packets.
    WriteFirst "WRITE_FIRST" = 0x06, First, Full, HeaderSet::RETH;
    /// Continues a WRITE.
    WriteMiddle "WRITE_MIDDLE" = 0x07, Middle, Full, NONE;
    /// Ends a WRITE.
    WriteLast "WRITE_LAST" = 0x08, Last, Rest, NONE;
    /// Ends a WRITE, with immediate data.
    WriteLastImm "WRITE_LAST_IMM" = 0x09, Last, Rest, HeaderSet::IMMDT;
    /// A whole WRITE.
    WriteOnly "WRITE_ONLY" = 0x0a, Only, UpToMtu, HeaderSet::RETH;
    /// A whole WRITE, with immediate data.
    WriteOnlyImm "WRITE_ONLY_IMM" = 0x0b, Only, UpToMtu, RETH_IMMDT;
    /// Asks for remote memory.
    ReadRequest "READ_REQUEST" = 0x0c, Only, Empty, HeaderSet::RETH;
    /// Begins an answer of several packets.
    ReadResponseFirst "READ_RESPONSE_FIRST" = 0x0d, First, Full, HeaderSet::AETH;
    /// Continues an answer; carries no AETH.
    ReadResponseMiddle "READ_RESPONSE_MIDDLE" = 0x0e, Middle, Full, NONE;
    /// Ends an answer.
    ReadResponseLast "READ_RESPONSE_LAST" = 0x0f, Last, Rest, HeaderSet::AETH;
    /// A whole answer.
    ReadResponseOnly "READ_RESPONSE_ONLY" = 0x10, Only, UpToMtu, HeaderSet::AETH;
    /// ACK, NAK or RNR NAK, by its syndrome.
    Acknowledge "ACKNOWLEDGE" = 0x11, Only, Empty, HeaderSet::AETH;
    /// Answer to an atomic.
    AtomicAcknowledge "ATOMIC_ACKNOWLEDGE" = 0x12, Only, Empty, AETH_ATOMIC;
    /// Compare and swap.
    CmpSwap "CMP_SWAP" = 0x13, Only, Empty, HeaderSet::ATOMIC_ETH;
    /// Fetch and add.
    FetchAdd "FETCH_ADD" = 0x14, Only, Empty, HeaderSet::ATOMIC_ETH;
    /// Ends a SEND and invalidates a key of the receiver.
    SendLastInv "SEND_LAST_INV" = 0x16, Last, Rest, HeaderSet::IETH;
    /// A whole SEND that invalidates a key of the receiver.
    SendOnlyInv "SEND_ONLY_INV" = 0x17, Only, UpToMtu, HeaderSet::IETH;
}

impl Operation {
    /// The operation with this short name. Case does not matter, nor whether words are joined by
    /// `_`, `-` or a space.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| same_name(operation.name(), name))
    }

    /// Whether the packet begins a message or response.
    pub const fn starts_message(self) -> bool {
        matches!(self.position(), Position::First | Position::Only)
    }

    /// Whether the packet ends a message or response.
    pub const fn ends_message(self) -> bool {
        matches!(self.position(), Position::Last | Position::Only)
    }

    /// Whether a requester sends it.
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Self::Cnp)
    }

    /// Whether a responder sends it.
    pub const fn is_response(self) -> bool {
        matches!(self, Self::Acknowledge | Self::AtomicAcknowledge) || self.is_read_response()
    }

    /// Whether it is part of a SEND.
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImm
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendLastInv
                | Self::SendOnlyInv
        )
    }

    /// Whether it is part of a WRITE.
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Whether it is part of the answer to a READ.
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whether a name was given as we write it, but for case and for what joins its words.
pub(super) fn same_name(known: &str, given: &str) -> bool {
    known.len() == given.len()
        && known.bytes().zip(given.bytes()).all(|(known, given)| {
            known.eq_ignore_ascii_case(&given) || (known == b'_' && matches!(given, b'-' | b' '))
        })
}
