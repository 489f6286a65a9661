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

/// Ops of the usual records: SENDs whose bytes follow, or the one piece where they lie.
const SEND_INLINE: u8 = SEND | BODY_INLINE << BODY_SHIFT;
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

/// Bytes of a plain record with so many bytes of payload behind its header.
#[inline]
pub(crate) const fn plain_size(payload: u64) -> u64 {
    HEADER + ((payload + 7) & !7)
}

/// The same header for one piece that says where the bytes lie.
#[inline]
pub(crate) const fn pulled([first, second]: [u64; 2]) -> [u64; 2] {
    [first ^ ((SEND_INLINE ^ SEND_PULL) as u64) << 56, second | 1]
}

/// Where the bytes of a plain record are, and how many follow its header, if this is the first word of one.
#[inline]
pub(crate) fn plain_body(first: u64) -> Option<(Body, u64)> {
    match op_of(first) {
        SEND_INLINE => Some((Body::Inline, low(first).into())),
        SEND_PULL => Some((Body::Pull(1), PIECE)),
        _ => None,
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
    /// Whether it is a SEND of some bytes that says nothing rare: with its bytes behind it, or one piece, it is *plain*.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::Send) && self.imm.is_none() && self.srqn.is_none() && self.len > 0
    }

    /// The header of a plain record whose bytes follow: what [`Header::encode`] says, in fewer steps.
    #[inline]
    pub(crate) fn plain_words(&self) -> [u64; 2] {
        let flags = if self.solicited { SOLICITED } else { 0 };
        [first_word(SEND_INLINE, self.dst, self.len), second_word(self.src, self.seq, flags, 0)]
    }

    /// Takes over what the words of a plain header say, of which the first was [looked at](plain_body). False where they say
    /// anything rare: then this record means nothing.
    ///
    /// Field by field, into a record that is there: a whole one would be moved through memory several times on its way.
    #[inline]
    pub(crate) fn set_plain(&mut self, first: u64, second: u64, body: Body) -> bool {
        let [.., flags, count] = second.to_be_bytes();
        self.kind = Kind::Send;
        self.dst = low(first >> 32) & LOW_24;
        self.src = low(second >> 40);
        self.seq = low(second >> 16) & LOW_24;
        self.len = low(first);
        self.imm = None;
        self.solicited = flags & SOLICITED != 0;
        self.srqn = None;
        self.len > 0 && flags & !SOLICITED == 0 && (body == Body::Inline || count == 1)
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
mod tests {
    use super::*;

    fn record(kind: Kind) -> Record {
        Record {
            kind,
            dst: 0x02_4001,
            src: 0x04_8002,
            seq: 0xff_fffe,
            len: 0,
            imm: None,
            solicited: false,
            srqn: None,
        }
    }

    fn datagram() -> Datagram {
        Datagram {
            qkey: 0x1111_1111,
            src: [1; 16],
            dst: std::array::from_fn(|i| i.to_le_bytes()[0]),
            src_port: 0xc001,
            traffic_class: 8,
            hop_limit: 64,
        }
    }

    #[test]
    fn headers_have_this_layout() {
        let header = Header {
            record: Record {
                len: 5,
                imm: Some([1, 2, 3, 4]),
                solicited: true,
                srqn: Some(9),
                ..record(Kind::Send)
            },
            body: Body::Inline,
        };
        let mut words = [0; HEADER_WORDS];
        words[..4].copy_from_slice(&[
            0x1102_4001_0000_0005,
            0x0480_02ff_fffe_0f00,
            0x0102_0304_0000_0000,
            9,
        ]);
        assert_eq!(header.encode(), words);
        assert_eq!(header.size(), 40);
        assert_eq!(Header::words(words[0], words[1]), 4);
        assert_eq!(Header::decode(words), Ok(header));
        assert_eq!(pad_word(24), 0xff00_0000_0000_0018);
        assert_eq!(entry(pad_word(24)), Entry::Pad(24));
        assert_eq!(entry(0), Entry::End);
        assert_eq!(entry(words[0]), Entry::Record);
    }

    #[test]
    fn every_kind_survives_the_ring() {
        let bodies = |header: Record| match header.kind {
            kind if kind.is_send() => [Body::Inline, Body::Pull(1), Body::Pull(16)].to_vec(),
            _ => vec![Body::None],
        };
        let kinds = [
            record(Kind::Send),
            Record { imm: Some([9, 8, 7, 6]), ..record(Kind::Send) },
            record(Kind::Datagram(datagram())),
            Record { imm: Some([1; 4]), ..record(Kind::Datagram(datagram())) },
            Record { srqn: Some(0), ..record(Kind::Send) },
            record(Kind::SendInvalidate(0)),
            record(Kind::SendInvalidate(0xdead_be00)),
            Record { imm: Some([0; 4]), ..record(Kind::WriteImm) },
            record(Kind::Nak { syndrome: 0x62 }),
            record(Kind::SourceFault),
            record(Kind::Violation { access: true, syndrome: 0x62 }),
            record(Kind::Violation { access: false, syndrome: 0x61 }),
            record(Kind::Starved),
        ];
        for base in kinds {
            for body in bodies(base) {
                let len = if body == Body::None { 0 } else { 17 };
                let header = Header { record: Record { len, ..base }, body };
                let words = header.encode();
                assert_eq!(
                    Header::words(words[0], words[1]) as u64 * 8,
                    header.record.header_bytes()
                );
                assert_eq!(Header::decode(words), Ok(header));
            }
        }
        // An empty SEND has no body, a WRITE with immediate a length without one.
        for (kind, imm, len) in [(Kind::Send, None, 0), (Kind::WriteImm, Some([0; 4]), 1 << 31)] {
            let header = Header { record: Record { imm, len, ..record(kind) }, body: Body::None };
            assert_eq!(Header::decode(header.encode()), Ok(header));
        }
    }

    /// The short way of the usual record says and understands what the long way does, and nothing else.
    #[test]
    fn both_ways_of_a_plain_record_agree() {
        let plain = |solicited, len| Record { solicited, len, ..record(Kind::Send) };
        for (solicited, len) in [(false, 1), (true, 8), (false, 255), (true, u32::MAX)] {
            for body in [Body::Inline, Body::Pull(1)] {
                let header = Header { record: plain(solicited, len), body };
                let words = header.encode();
                assert!(header.record.is_plain());
                let said = header.record.plain_words();
                let said = if body == Body::Inline { said } else { pulled(said) };
                assert_eq!(said, words[..2]);
                let (said, follow) = plain_body(words[0]).unwrap();
                assert_eq!((said, plain_size(follow)), (body, header.size()));
                let mut read = record(Kind::Starved);
                assert!(read.set_plain(words[0], words[1], said));
                assert_eq!(read, header.record);
            }
        }
        let mut understood = 0;
        for op in 0..=0xff_u8 {
            for flags in 0..=0xff_u8 {
                for (len, count) in [(0, 0), (8, 0), (8, 1), (8, 2), (0, 1)] {
                    let mut words = [0; HEADER_WORDS];
                    words[0] = first_word(op, 1, len);
                    words[1] = second_word(2, 3, flags, count);
                    let mut record = record(Kind::Starved);
                    if let Some((body, _)) = plain_body(words[0])
                        && record.set_plain(words[0], words[1], body)
                    {
                        understood += 1;
                        assert!(record.is_plain());
                        assert_eq!(Header::decode(words), Ok(Header { record, body }));
                    }
                }
            }
        }
        assert_eq!(understood, 2 * (3 + 1), "solicited or not; inline whatever the count");
    }

    /// Every op and flag byte: what is not written by this module is refused by name.
    #[test]
    fn garbage_is_refused_by_name() {
        let mut accepted = 0;
        for op in 1..=0xfe_u8 {
            for flags in 0..=0xff_u8 {
                for (len, count) in [(0, 0), (8, 0), (8, 1), (8, 16), (8, 17)] {
                    let mut words = [0; HEADER_WORDS];
                    words[0] = first_word(op, 1, len);
                    words[1] = u64::from(flags) << 8 | count;
                    words[2] = 0x55;
                    match Header::decode(words) {
                        Ok(header) => {
                            accepted += 1;
                            // What was accepted says the same when this side writes it: no two spellings of a size.
                            let again = header.encode();
                            assert_eq!(
                                Header::words(again[0], again[1]),
                                Header::words(words[0], words[1])
                            );
                            assert_eq!(header.encode()[0], words[0]);
                        }
                        Err(Garbage::Op(o)) => assert_eq!(o, op),
                        Err(Garbage::Flags { op: o, flags: f }) => assert_eq!((o, f), (op, flags)),
                        Err(Garbage::Pieces) => {
                            assert!(op >> 4 == BODY_PULL && !(1..=16).contains(&count));
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        }
        assert!(accepted > 0);
    }

    #[test]
    fn pieces_survive_the_ring() {
        let piece = Piece { lkey: 0x0102_0304, pd: 7, addr: u64::MAX - 3, len: u32::MAX };
        assert_eq!(Piece::decode(piece.encode()), piece);
        assert_eq!(u64::try_from(size_of_val(&piece.encode())).unwrap(), PIECE);
    }
}
