//! What travels in the ring of a link: records, and how their headers are laid out.
//!
//! A header is two 64-bit words, and two more where the record has something rare to say:
//!
//! ```text
//! word 0   op 8 | receiving QPN 24 | message length 32       stored last, with release order: it publishes the batch
//! word 1   sending QPN 24 | message number 24 | flags 8 | count or syndrome 8
//! word 2   immediate data or key to invalidate 32 | Q_Key 32                       only with EXTENDED
//! word 3   shared receive queue 24                                                 only with EXTENDED
//! word 4   source GID in two words, then the destination's                         only datagrams
//! word 8   UDP source port 16 | traffic class 8 | hop limit 8                      only datagrams
//! ```
//!
//! A [small SEND](super::short) that says nothing rare has another header, of one word.
//!
//! The payload follows, padded to eight bytes: the message itself, or up to sixteen [`Piece`]s that say where it lies in the
//! sender's memory. An op of 0 ends the batch; PAD skips to the start of the ring.
//!
//! The peer can write anything at any time into its ring, so a header is loaded once, checked, and used from the copy.

use super::limits::SGES_MAX;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A SEND of a connection.
    Send,
    /// A datagram.
    Datagram(Datagram),
    /// SEND with invalidate: the rkey to revoke.
    SendInvalidate(u32),
    /// A WRITE with immediate whose bytes are in place.
    WriteImm,
    /// Answer: the message was refused.
    Nak {
        /// As in an AETH.
        syndrome: u8,
    },
    /// Answer: the sender's memory was no longer there.
    SourceFault,
    /// The initiator broke a rule of the target.
    Violation {
        /// True: QP_ACCESS_ERR; false: QP_REQ_ERR.
        access: bool,
        /// The AETH syndrome that a responder would have answered with.
        syndrome: u8,
    },
    /// The initiator found no receive for its message.
    Starved,
}

/// What a datagram carries besides its bytes: what its receiver would see in packet headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Q_Key.
    pub qkey: u32,
    /// Source GID.
    pub src: [u8; 16],
    /// Destination GID.
    pub dst: [u8; 16],
    /// UDP source port.
    pub src_port: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// The header of one entry of a link's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it says.
    pub kind: Kind,
    /// Receiving queue pair, 24 bits.
    pub dst: u32,
    /// Sending queue pair, 24 bits.
    pub src: u32,
    /// Message number on the sending queue pair, 24 bits.
    pub seq: u32,
    /// Message bytes.
    pub len: u32,
    /// Immediate data.
    pub imm: Option<[u8; 4]>,
    /// The sender asks for a solicited event.
    pub solicited: bool,
    /// Shared receive queue, 24 bits; XRC only.
    pub srqn: Option<u32>,
}

/// Where the bytes of a record are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Nowhere: the record has no payload of its own.
    None,
    /// Behind the header.
    Inline,
    /// In the sender's memory; so many pieces behind the header.
    Pull(u8),
}

/// A piece of the sender's memory, by the sender's own key: 24 bytes behind the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) lkey: u32,
    pub(crate) pd: u32,
    pub(crate) addr: u64,
    pub(crate) len: u32,
}

/// A record as its header says it, checked for everything that the header alone can be wrong about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) record: Record,
    pub(crate) body: Body,
}

/// What the first word of an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The batch ends here.
    End,
    /// Skip so many bytes after this word.
    Pad(u32),
    /// A record.
    Record,
}

/// Why the bytes in a ring cannot be a record: the peer is broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// No such op.
    #[error("a record with op {0:#04x}")]
    Op(u8),
    /// Flags that do not exist or contradict the op.
    #[error("a record with flags {flags:#04x} and op {op:#04x}")]
    Flags {
        /// The op.
        op: u8,
        /// The flags.
        flags: u8,
    },
    /// It would not end inside the ring, or is longer than records may be.
    #[error("a record of {size} bytes at {at} of a ring of {ring}")]
    Size {
        /// Bytes it claims.
        size: u64,
        /// Where it begins.
        at: u64,
        /// Bytes of the ring.
        ring: u64,
    },
    /// The number of pieces is 0 or too large, or their lengths do not add up to the message.
    #[error("a record whose pieces do not make its message")]
    Pieces,
    /// A padding that does not end at the end of the ring.
    #[error("a padding of {0} bytes that does not end at the end of the ring")]
    Pad(u32),
    /// An index that runs backward, or ahead of what was written.
    #[error("consumed index {claimed} outside {from} ..= {to}")]
    Consumed {
        /// What the peer claims.
        claimed: u64,
        /// What it claimed before.
        from: u64,
        /// What there is.
        to: u64,
    },
}

const OP_END: u8 = 0;
const OP_PAD: u8 = 0xff;
const KIND_MASK: u8 = 0x0f;
const SEND: u8 = 1;
const SEND_INVALIDATE: u8 = 2;
const WRITE_IMM: u8 = 3;
const NAK: u8 = 4;
const VIOLATION: u8 = 5;
const SOURCE_FAULT: u8 = 6;
const STARVED: u8 = 7;
const DATAGRAM: u8 = 8;
/// Two bits: nothing, inline, pull. The fourth value is kept for payloads that the sender put into the posted receive itself.
const BODY_SHIFT: u8 = 4;
const BODY_NONE: u8 = 0;
const BODY_INLINE: u8 = 1;
const BODY_PULL: u8 = 2;

/// Op of the usual record beside the [short](super::short) one: a SEND whose bytes lie elsewhere.
const SEND_PULL: u8 = SEND | BODY_PULL << BODY_SHIFT;

const EXTENDED: u8 = 1;
const IMM: u8 = 2;
const SOLICITED: u8 = 4;
const SRQ: u8 = 8;
const ACCESS: u8 = 16;
const FLAGS: u8 = EXTENDED | IMM | SOLICITED | SRQ | ACCESS;

/// Bytes of a header without its extension.
pub(crate) const HEADER: u64 = 16;
/// Bytes of the extension.
const EXTENSION: u64 = 16;
/// Bytes of a datagram's addresses.
const ADDRESSES: u64 = 40;
/// Words of the longest header.
pub(crate) const HEADER_WORDS: usize = ((HEADER + EXTENSION + ADDRESSES) / 8) as usize;
/// Bytes of a piece.
pub(crate) const PIECE: u64 = 24;

const LOW_24: u32 = 0xff_ffff;

/// The word that skips `bytes` after itself.
pub(crate) fn pad_word(bytes: u32) -> u64 {
    first_word(OP_PAD, 0, bytes)
}

#[inline]
fn first_word(op: u8, dst: u32, len: u32) -> u64 {
    u64::from(op) << 56 | u64::from(dst & LOW_24) << 32 | u64::from(len)
}

#[inline]
fn second_word(src: u32, seq: u32, flags: u8, byte: u8) -> u64 {
    u64::from(src & LOW_24) << 40
        | u64::from(seq & LOW_24) << 16
        | u64::from(flags) << 8
        | u64::from(byte)
}

#[inline]
fn op_of(word: u64) -> u8 {
    word.to_be_bytes()[0]
}

/// The low 32 bits of a word.
#[inline]
fn low(word: u64) -> u32 {
    let [.., a, b, c, d] = word.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// What the first word says.
#[inline]
pub(crate) fn entry(word: u64) -> Entry {
    match op_of(word) {
        OP_END => Entry::End,
        OP_PAD => Entry::Pad(low(word)),
        _ => Entry::Record,
    }
}

/// Whether this is the first word of a SEND whose bytes lie elsewhere.
#[inline(always)]
pub(crate) fn is_pull(first: u64) -> bool {
    op_of(first) == SEND_PULL
}

/// The header of a plain record whose bytes lie in one piece elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TwoWords {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl TwoWords {
    #[inline(always)]
    pub(crate) fn dst(self) -> u32 {
        low(self.first >> 32) & LOW_24
    }

    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        low(self.first)
    }

    #[inline(always)]
    pub(crate) fn src(self) -> u32 {
        low(self.second >> 40)
    }

    #[inline(always)]
    pub(crate) fn seq(self) -> u32 {
        low(self.second >> 16) & LOW_24
    }

    #[inline(always)]
    fn flags(self) -> u8 {
        self.second.to_be_bytes()[6]
    }

    #[inline(always)]
    pub(crate) fn is_solicited(self) -> bool {
        self.flags() & SOLICITED != 0
    }

    /// Takes over what these words of a [pull](is_pull) say. False where that is anything rare: then the record means nothing.
    #[inline(always)]
    pub(crate) fn decode(self, record: &mut Record) -> bool {
        record.kind = Kind::Send;
        record.dst = self.dst();
        record.src = self.src();
        record.seq = self.seq();
        record.len = self.len();
        record.imm = None;
        record.solicited = self.is_solicited();
        record.srqn = None;
        self.is_usual()
    }

    /// Whether nothing rare is said in these words of a [pull](is_pull).
    #[inline(always)]
    pub(crate) fn is_usual(self) -> bool {
        let [.., count] = self.second.to_be_bytes();
        self.flags() & !SOLICITED == 0 && count == 1 && self.len() > 0
    }
}

impl Kind {
    /// Whether the record is a message with bytes of its own.
    pub(crate) const fn is_send(&self) -> bool {
        matches!(self, Self::Send | Self::Datagram(_) | Self::SendInvalidate(_))
    }

    /// Whether it is no message of the consumer.
    pub(crate) const fn is_answer(&self) -> bool {
        match self {
            Self::Send | Self::Datagram(_) | Self::SendInvalidate(_) | Self::WriteImm => false,
            Self::Nak { .. } | Self::SourceFault | Self::Violation { .. } | Self::Starved => true,
        }
    }
}

impl Datagram {
    fn encode(&self) -> [u64; 5] {
        let halves = |gid: &[u8; 16]| {
            let (high, low) = gid.split_at(8);
            let word = |half: &[u8]| half.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            [word(high), word(low)]
        };
        let ([a, b], [c, d]) = (halves(&self.src), halves(&self.dst));
        let rest = u64::from(self.src_port) << 16
            | u64::from(self.traffic_class) << 8
            | u64::from(self.hop_limit);
        [a, b, c, d, rest]
    }

    fn decode(qkey: u32, [a, b, c, d, rest]: [u64; 5]) -> Self {
        let gid = |high: u64, low: u64| (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        let [.., p, q, traffic_class, hop_limit] = rest.to_be_bytes();
        let src_port = u16::from_be_bytes([p, q]);
        Self { qkey, src: gid(a, b), dst: gid(c, d), src_port, traffic_class, hop_limit }
    }
}

impl Record {
    /// Whether it is a SEND of some bytes that says nothing rare.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::Send) && self.imm.is_none() && self.srqn.is_none() && self.len > 0
    }

    /// The header of a plain record as [`Header::encode`] says it, where its bytes lie in one piece elsewhere.
    #[inline]
    pub(crate) fn two_words(&self) -> TwoWords {
        let flags = if self.solicited { SOLICITED } else { 0 };
        TwoWords {
            first: first_word(SEND_PULL, self.dst, self.len),
            second: second_word(self.src, self.seq, flags, 1),
        }
    }

    #[inline]
    fn is_extended(&self) -> bool {
        self.imm.is_some()
            || self.srqn.is_some()
            || matches!(self.kind, Kind::SendInvalidate(_) | Kind::Datagram(_))
    }

    /// Bytes of its header, extension included.
    #[inline]
    pub(crate) fn header_bytes(&self) -> u64 {
        match self.kind {
            Kind::Datagram(_) => HEADER + EXTENSION + ADDRESSES,
            _ if self.is_extended() => HEADER + EXTENSION,
            _ => HEADER,
        }
    }
}

impl Header {
    /// Bytes in the ring, a multiple of eight.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.record.header_bytes() + self.body_bytes().next_multiple_of(8)
    }

    /// Bytes behind the header that are used.
    #[inline]
    pub(crate) fn body_bytes(&self) -> u64 {
        match self.body {
            Body::None => 0,
            Body::Inline => u64::from(self.record.len),
            Body::Pull(pieces) => u64::from(pieces) * PIECE,
        }
    }

    /// The header as words; as many of them count as [`Record::header_bytes`] says.
    #[inline]
    pub(crate) fn encode(&self) -> [u64; HEADER_WORDS] {
        let record = &self.record;
        let (kind, operand, byte) = match record.kind {
            Kind::Send => (SEND, 0, 0),
            Kind::Datagram(_) => (DATAGRAM, 0, 0),
            Kind::SendInvalidate(rkey) => (SEND_INVALIDATE, rkey, 0),
            Kind::WriteImm => (WRITE_IMM, 0, 0),
            Kind::Nak { syndrome } => (NAK, 0, syndrome),
            Kind::SourceFault => (SOURCE_FAULT, 0, 0),
            Kind::Violation { syndrome, .. } => (VIOLATION, 0, syndrome),
            Kind::Starved => (STARVED, 0, 0),
        };
        let (body, byte) = match self.body {
            Body::None => (BODY_NONE, byte),
            Body::Inline => (BODY_INLINE, byte),
            Body::Pull(pieces) => (BODY_PULL, pieces),
        };
        let mut flags = 0;
        for (flag, set) in [
            (EXTENDED, record.is_extended()),
            (IMM, record.imm.is_some()),
            (SOLICITED, record.solicited),
            (SRQ, record.srqn.is_some()),
            (ACCESS, matches!(record.kind, Kind::Violation { access: true, .. })),
        ] {
            if set {
                flags |= flag;
            }
        }
        let operand = record.imm.map_or(operand, u32::from_be_bytes);
        let (qkey, [a, b, c, d, e]) = match &record.kind {
            Kind::Datagram(datagram) => (datagram.qkey, datagram.encode()),
            _ => (0, [0; 5]),
        };
        [
            first_word(kind | body << BODY_SHIFT, record.dst, record.len),
            second_word(record.src, record.seq, flags, byte),
            u64::from(operand) << 32 | u64::from(qkey),
            u64::from(record.srqn.unwrap_or(0) & LOW_24),
            a,
            b,
            c,
            d,
            e,
        ]
    }

    /// Words of the header that begins with these two.
    pub(crate) fn words(first: u64, second: u64) -> usize {
        let is_extended = second.to_be_bytes()[6] & EXTENDED != 0;
        let bytes = match (op_of(first) & KIND_MASK, is_extended) {
            (DATAGRAM, true) => HEADER + EXTENSION + ADDRESSES,
            (_, true) => HEADER + EXTENSION,
            (_, false) => HEADER,
        };
        (bytes / 8) as usize
    }

    /// The meaning of header words; those beyond [`Header::words`] are ignored.
    #[inline]
    pub(crate) fn decode(words: [u64; HEADER_WORDS]) -> Result<Self, Garbage> {
        let op = op_of(words[0]);
        let [.., flags, byte] = words[1].to_be_bytes();
        let wrong_flags = Garbage::Flags { op, flags };
        if flags & !FLAGS != 0 {
            return Err(wrong_flags);
        }
        let has = |flag| flags & flag != 0;
        let (operand, qkey, srqn) = if has(EXTENDED) {
            (low(words[2] >> 32), low(words[2]), low(words[3]) & LOW_24)
        } else {
            (0, 0, 0)
        };

        let kind = match op & KIND_MASK {
            SEND => Kind::Send,
            DATAGRAM => {
                let [.., a, b, c, d, e] = words;
                Kind::Datagram(Datagram::decode(qkey, [a, b, c, d, e]))
            }
            SEND_INVALIDATE => Kind::SendInvalidate(operand),
            WRITE_IMM => Kind::WriteImm,
            NAK => Kind::Nak { syndrome: byte },
            SOURCE_FAULT => Kind::SourceFault,
            VIOLATION => Kind::Violation { access: has(ACCESS), syndrome: byte },
            STARVED => Kind::Starved,
            _ => return Err(Garbage::Op(op)),
        };
        let body = match op >> BODY_SHIFT {
            BODY_NONE => Body::None,
            BODY_INLINE => Body::Inline,
            BODY_PULL if (1..=SGES_MAX).contains(&usize::from(byte)) => Body::Pull(byte),
            BODY_PULL => return Err(Garbage::Pieces),
            _ => return Err(Garbage::Op(op)),
        };
        let len = low(words[0]);
        let is_send = kind.is_send();
        // Only a message has bytes, and a message with bytes has them somewhere.
        if is_send && (body == Body::None) != (len == 0) || !is_send && body != Body::None {
            return Err(Garbage::Op(op));
        }
        let invalidates = matches!(kind, Kind::SendInvalidate(_));
        if (has(IMM) || has(SRQ) || invalidates) && !has(EXTENDED)
            || has(IMM) && invalidates
            || has(IMM) && !matches!(kind, Kind::Send | Kind::Datagram(_) | Kind::WriteImm)
        {
            return Err(wrong_flags);
        }
        let record = Record {
            kind,
            dst: low(words[0] >> 32) & LOW_24,
            src: low(words[1] >> 40),
            seq: low(words[1] >> 16) & LOW_24,
            len,
            imm: has(IMM).then(|| operand.to_be_bytes()),
            solicited: has(SOLICITED),
            srqn: has(SRQ).then_some(srqn),
        };
        let header = Self { record, body };
        // An extension that says nothing would make the size of the record ambiguous.
        if record.is_extended() == has(EXTENDED) { Ok(header) } else { Err(wrong_flags) }
    }
}

impl Piece {
    #[inline]
    pub(crate) fn encode(&self) -> [u64; 3] {
        [u64::from(self.lkey) << 32 | u64::from(self.len), self.addr, u64::from(self.pd)]
    }

    #[inline]
    pub(crate) fn decode(words: [u64; 3]) -> Self {
        Self { lkey: low(words[0] >> 32), len: low(words[0]), addr: words[1], pd: low(words[2]) }
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
