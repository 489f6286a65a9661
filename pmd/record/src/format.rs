//! The file: a head of fixed size, then parts, each with its length.
//!
//! The head is the magic, the version, how the record ended and why; it is written over in place when the
//! record ends, which needs no room on a full disk. A part is its kind, the number of its engine, its
//! length and its bytes: whole inputs only. So whatever is cut off, all parts before it can be read. Head and parts have
//! a CRC-32 each, so that a file that was damaged is told from a run that comes out differently.

use crate::limits::MAX_PART;

/// Begins every record.
pub const MAGIC: [u8; 8] = *b"SPINREC\n";
/// The version of the format.
pub(crate) const VERSION: u32 = 2;
/// Bytes of the head.
pub(crate) const HEAD: usize = 512;
/// Bytes before those of a part.
pub(crate) const PART_HEAD: usize = 16;
/// Bytes of a checksum, at the end of the head.
const SUM: usize = 4;

/// How a record ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did not: its process was killed, or runs still.
    Open,
    /// With its run.
    Complete,
    /// Before its run, which went on: the reason.
    Cut(String),
}

impl Ending {
    pub(crate) fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        let (code, reason) = match self {
            Self::Open => (0u8, ""),
            Self::Complete => (1, ""),
            Self::Cut(reason) => (2, reason.as_str()),
        };
        let room = HEAD - 16 - SUM;
        let mut len = reason.len().min(room);
        while !reason.is_char_boundary(len) {
            len -= 1;
        }
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12] = code;
        head[14..16].copy_from_slice(&u16::try_from(len).unwrap_or(0).to_le_bytes());
        head[16..16 + len].copy_from_slice(&reason.as_bytes()[..len]);
        let sum = crc32fast::hash(&head[..HEAD - SUM]);
        head[HEAD - SUM..].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// Reads a head.
    pub(crate) fn of(head: &[u8; HEAD]) -> Result<Self, &'static str> {
        if head[..8] != MAGIC {
            return Err("it does not begin as one");
        }
        if head[8..12] != VERSION.to_le_bytes() {
            return Err("it is of another version of the format: use the program that wrote it");
        }
        if head[HEAD - SUM..] != crc32fast::hash(&head[..HEAD - SUM]).to_le_bytes() {
            return Err("its head is damaged");
        }
        let len = usize::from(u16::from_le_bytes([head[14], head[15]]));
        match head[12] {
            0 => Ok(Self::Open),
            1 => Ok(Self::Complete),
            2 => {
                let reason = head[16..].get(..len).ok_or("its head is damaged")?;
                Ok(Self::Cut(String::from_utf8_lossy(reason).into_owned()))
            }
            _ => Err("its head is damaged"),
        }
    }
}

/// What a part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Words about the run.
    Note = 1,
    /// A new engine: its name and its configuration.
    Begin = 2,
    /// Inputs of an engine.
    Inputs = 3,
    /// The end of an engine, with its sums.
    End = 4,
}

/// What stands before the bytes of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartHead {
    pub(crate) kind: Kind,
    pub(crate) engine: u32,
    pub(crate) len: usize,
    /// The CRC-32 of all of this and of the bytes.
    pub(crate) sum: u32,
}

impl PartHead {
    /// That of these bytes.
    pub(crate) fn new(kind: Kind, engine: u32, bytes: &[u8]) -> Self {
        let head = Self { kind, engine, len: bytes.len(), sum: 0 };
        Self { sum: head.sum_with(bytes), ..head }
    }

    /// Whether it and `bytes` are what was written.
    pub(crate) fn is_of(&self, bytes: &[u8]) -> bool {
        self.sum == self.sum_with(bytes)
    }

    fn sum_with(self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.bytes()[..PART_HEAD - SUM]);
        hasher.update(bytes);
        hasher.finalize()
    }

    pub(crate) fn bytes(self) -> [u8; PART_HEAD] {
        let mut bytes = [0; PART_HEAD];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.engine.to_le_bytes());
        bytes[8..12].copy_from_slice(&u32::try_from(self.len).unwrap_or(u32::MAX).to_le_bytes());
        bytes[12..].copy_from_slice(&self.sum.to_le_bytes());
        bytes
    }

    pub(crate) fn of(bytes: [u8; PART_HEAD]) -> Option<Self> {
        let [kind, 0, 0, 0, a, b, c, d, e, f, g, h, i, j, k, l] = bytes else { return None };
        let kinds = [Kind::Note, Kind::Begin, Kind::Inputs, Kind::End];
        let kind = kinds.into_iter().find(|known| *known as u8 == kind)?;
        let len = usize::try_from(u32::from_le_bytes([e, f, g, h])).ok()?;
        let engine = u32::from_le_bytes([a, b, c, d]);
        let sum = u32::from_le_bytes([i, j, k, l]);
        (len <= MAX_PART).then_some(Self { kind, engine, len, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_ended_is_found_again() {
        let long = "ä".repeat(400);
        for ending in [Ending::Open, Ending::Complete, Ending::Cut("no room".into())] {
            assert_eq!(Ending::of(&ending.head()), Ok(ending));
        }
        let Ok(Ending::Cut(kept)) = Ending::of(&Ending::Cut(long).head()) else { panic!() };
        assert_eq!(kept, "ä".repeat(246));
        for (at, byte) in [(0, b'x'), (8, 9), (12, 3), (13, 1), (100, 1), (HEAD - 1, 1)] {
            let mut head = Ending::Open.head();
            head[at] ^= byte;
            assert!(Ending::of(&head).is_err(), "byte {at}");
        }
    }

    #[test]
    fn parts_are_told_apart_and_not_too_long() {
        let head = PartHead::new(Kind::Inputs, 7, &[5; 300]);
        assert!(head.is_of(&[5; 300]) && !head.is_of(&[4; 300]));
        assert!(!PartHead { engine: 6, ..head }.is_of(&[5; 300]));
        assert_eq!(PartHead::of(head.bytes()), Some(head));
        for (at, byte) in [(0, 0), (0, 5), (1, 1), (11, 0xff)] {
            let mut bytes = head.bytes();
            bytes[at] = byte;
            assert_eq!(PartHead::of(bytes), None);
        }
    }
}
