//! The header of a small SEND, in one word.
//!
//! What a small message costs is the lines of the ring that pass from core to core, so the usual one says no more than it must.
//! Both sides of a link know which device and lcore is at either end: those bits of the two queue pair numbers are left out.
//!
//! ```text
//! 100 | solicited 1 | message length - 1  8 | receiving QPN's low 14 | sending QPN's low 14 | message number 24
//! ```
//!
//! The message follows, padded to eight bytes. The first byte is no op of a [long header](super::record), nor zero, nor PAD.

use super::limits::{INLINE_MAX, QPN_LCORE_SHIFT, QPN_PREFIX_SHIFT};
use super::record::{Kind, Record};

/// Bytes of the header.
pub(crate) const SHORT: u64 = 8;

/// Message numbers count on a circle.
pub(crate) const SEQ_MASK: u32 = 0xff_ffff;

const MARK: u64 = 0b100;
const MARK_SHIFT: u32 = 61;
const SOLICITED_SHIFT: u32 = 60;
const LEN_SHIFT: u32 = 52;
const DST_SHIFT: u32 = 38;
const SRC_SHIFT: u32 = 24;
/// Bits of a QPN below the lcore.
const QPN_LOW: u32 = (1 << QPN_LCORE_SHIFT) - 1;

const _: () = assert!(INLINE_MAX == 1 << (SOLICITED_SHIFT - LEN_SHIFT));
const _: () = assert!(SRC_SHIFT + QPN_LCORE_SHIFT == DST_SHIFT);
const _: () = assert!(DST_SHIFT + QPN_LCORE_SHIFT == LEN_SHIFT);

/// What the queue pair numbers at the two ends of one direction of a link begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    dst: u32,
    src: u32,
}

impl Ends {
    /// By the device prefix and lcore of the receiver and of the sender.
    pub(crate) fn new(receiver: (u8, u8), sender: (u8, u8)) -> Self {
        let begin = |(prefix, lcore): (u8, u8)| {
            u32::from(prefix) << QPN_PREFIX_SHIFT | u32::from(lcore) << QPN_LCORE_SHIFT
        };
        Self { dst: begin(receiver), src: begin(sender) }
    }

    /// The other direction.
    pub(crate) const fn reversed(self) -> Self {
        Self { dst: self.src, src: self.dst }
    }

    /// What all short headers between two queue pairs say; `None` where these are of other ends.
    #[inline(always)]
    pub(crate) const fn short(self, dst: u32, src: u32) -> Option<Short> {
        let (dst, src) = (dst ^ self.dst, src ^ self.src);
        if (dst | src) & !QPN_LOW != 0 {
            return None;
        }
        Some(Short(MARK << MARK_SHIFT | (dst as u64) << DST_SHIFT | (src as u64) << SRC_SHIFT))
    }

    /// The receiver that a word names which [is short](len).
    #[inline(always)]
    pub(crate) const fn receiver(self, word: u64) -> u32 {
        self.dst | (word >> DST_SHIFT) as u32 & QPN_LOW
    }

    /// Takes over what a word says that [is short](len): field by field, into a record that is there, since a whole one would be
    /// moved through memory several times on its way.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    pub(crate) const fn decode(self, word: u64, record: &mut Record) {
        record.kind = Kind::Send;
        record.dst = self.receiver(word);
        record.src = self.src | (word >> SRC_SHIFT) as u32 & QPN_LOW;
        record.seq = word as u32 & SEQ_MASK;
        record.len = (word >> LEN_SHIFT) as u8 as u32 + 1;
        record.imm = None;
        record.solicited = word >> SOLICITED_SHIFT & 1 != 0;
        record.srqn = None;
    }
}

/// The part of a short header that is the same for all messages from one queue pair to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short(u64);

impl Short {
    /// The header of a SEND of 1 to [`INLINE_MAX`] bytes that says nothing rare; `None` for other lengths. `seq` has 24 bits.
    #[inline(always)]
    pub(crate) const fn word(self, seq: u32, solicited: bool, len: u32) -> Option<u64> {
        let less = len.wrapping_sub(1);
        if less >= INLINE_MAX {
            return None;
        }
        Some(self.with(seq, len) | (solicited as u64) << SOLICITED_SHIFT)
    }

    /// The same of a length that is known to be one of these.
    #[inline(always)]
    pub(crate) const fn with(self, seq: u32, len: u32) -> u64 {
        self.0 | (len.wrapping_sub(1) as u64) << LEN_SHIFT | seq as u64
    }

    /// Message bytes, and whether a solicited event is asked for, where the word is the header of the message with this number.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "eight bits")]
    pub(crate) const fn read(self, word: u64, seq: u32) -> Option<(u32, bool)> {
        let rest = word ^ (self.0 | seq as u64);
        if rest & !(1 << SOLICITED_SHIFT | 0xff << LEN_SHIFT) != 0 {
            return None;
        }
        let rest = rest >> LEN_SHIFT;
        Some((rest as u8 as u32 + 1, rest >> (SOLICITED_SHIFT - LEN_SHIFT) != 0))
    }
}

/// Message bytes of the short header that this word is, if it is one.
#[inline(always)]
pub(crate) fn len(word: u64) -> Option<u64> {
    (word >> MARK_SHIFT == MARK).then_some(len_field(word).into())
}

/// The same of any word: a length where it is none.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "eight bits")]
pub(crate) const fn len_field(word: u64) -> u32 {
    (word >> LEN_SHIFT) as u8 as u32 + 1
}

/// The same in words.
#[inline(always)]
pub(crate) const fn words(len: u32) -> usize {
    2 + (len as usize - 1) / 8
}

/// Bytes in the ring of a short header with so many bytes behind it.
#[inline(always)]
pub(crate) const fn size(len: u64) -> u64 {
    SHORT + ((len + 7) & !7)
}

#[cfg(test)]
mod tests {
    use super::super::record::{Entry, entry};
    use super::*;

    fn record(len: u32) -> Record {
        Record {
            kind: Kind::Send,
            dst: 5 << QPN_PREFIX_SHIFT | 3 << QPN_LCORE_SHIFT | 0x3fff,
            src: 127 << QPN_PREFIX_SHIFT | 7 << QPN_LCORE_SHIFT | 0x2aaa,
            seq: 0xff_fffe,
            len,
            imm: None,
            solicited: false,
            srqn: None,
        }
    }

    fn encode(ends: Ends, record: &Record) -> Option<u64> {
        ends.short(record.dst, record.src)?.word(record.seq, record.solicited, record.len)
    }

    const RECEIVER: (u8, u8) = (5, 3);
    const SENDER: (u8, u8) = (127, 7);

    #[test]
    fn short_headers_have_this_layout() {
        let ends = Ends::new(RECEIVER, SENDER);
        let word = encode(ends, &record(5)).unwrap();
        assert_eq!(word, 0b100 << 61 | 4 << 52 | 0x3fff << 38 | 0x2aaa << 24 | 0xff_fffe);
        assert_eq!((len(word), size(5), size(8), size(9)), (Some(5), 16, 16, 24));
        assert!((1..=INLINE_MAX).all(|len| words(len) as u64 * 8 == size(len.into())));
    }

    #[test]
    fn small_messages_survive_the_ring() {
        let ends = Ends::new(RECEIVER, SENDER);
        for length in 1..=INLINE_MAX {
            for solicited in [false, true] {
                let sent = Record { solicited, ..record(length) };
                let word = encode(ends, &sent).unwrap();
                assert_eq!(entry(word), Entry::Record);
                assert_eq!(len(word), Some(length.into()));
                let mut taken = Record { imm: Some([1; 4]), srqn: Some(1), ..record(0) };
                ends.decode(word, &mut taken);
                assert_eq!(taken, sent);
                let short = ends.short(sent.dst, sent.src).unwrap();
                assert_eq!(short.read(word, sent.seq), Some((length, solicited)));
                let one_bit_off =
                    (0..64).filter(|bit| short.read(word ^ 1 << bit, sent.seq).is_some());
                assert!(
                    one_bit_off.eq(LEN_SHIFT..=SOLICITED_SHIFT),
                    "all the rest must be as expected"
                );
                assert_eq!(ends.receiver(word), sent.dst);
            }
        }
    }

    #[test]
    fn other_lengths_need_a_long_header() {
        let ends = Ends::new(RECEIVER, SENDER);
        for length in [0, INLINE_MAX + 1, u32::MAX] {
            assert_eq!(encode(ends, &record(length)), None);
        }
    }

    /// Queue pairs that the ends do not tell need a long header.
    #[test]
    fn strangers_are_named_in_full() {
        for (receiver, sender) in [
            ((4, 3), SENDER),
            ((5, 2), SENDER),
            (RECEIVER, (126, 7)),
            (RECEIVER, (127, 6)),
            (SENDER, RECEIVER),
        ] {
            assert_eq!(encode(Ends::new(receiver, sender), &record(8)), None);
        }
        assert!(encode(Ends::new(SENDER, RECEIVER).reversed(), &record(8)).is_some());
    }

    /// Of all first bytes, these alone are short headers; none of them is an op.
    #[test]
    fn a_short_header_is_nothing_else() {
        for first in 0..=0xff_u64 {
            let is_short = len(first << 56).is_some();
            assert_eq!(is_short, (0x80..0xa0).contains(&first));
            assert!(!is_short || entry(first << 56) == Entry::Record);
        }
    }
}
