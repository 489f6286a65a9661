//! The file: a head of fixed size, then parts, each with its length.
//!
//! The head is the magic, the version, how the record ended and why; it is written over in place when the
//! record ends, which needs no room on a full disk. A part is its kind, the number of its engine, its
//! length and its bytes: whole inputs only. So whatever is cut off, all parts before it can be read.

use crate::limits::MAX_PART;

/// Begins every record.
pub const MAGIC: [u8; 8] = *b"SPINREC\n";
/// The version of the format.
pub(crate) const VERSION: u32 = 1;
/// Bytes of the head.
pub(crate) const HEAD: usize = 512;
/// Bytes before those of a part.
pub(crate) const PART_HEAD: usize = 12;

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
        let room = HEAD - 16;
        let mut len = reason.len().min(room);
        while !reason.is_char_boundary(len) {
            len -= 1;
        }
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12] = code;
        head[14..16].copy_from_slice(&u16::try_from(len).unwrap_or(0).to_le_bytes());
        head[16..16 + len].copy_from_slice(&reason.as_bytes()[..len]);
        head
    }

    /// Reads a head.
    pub(crate) fn of(head: &[u8; HEAD]) -> Result<Self, &'static str> {
        if head[..8] != MAGIC {
            return Err("it does not begin as one");
        }
        if head[8..12] != VERSION.to_le_bytes() {
            return Err("it is of another version of the format");
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
}

impl PartHead {
    pub(crate) fn bytes(self) -> [u8; PART_HEAD] {
        let mut bytes = [0; PART_HEAD];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.engine.to_le_bytes());
        bytes[8..].copy_from_slice(&u32::try_from(self.len).unwrap_or(u32::MAX).to_le_bytes());
        bytes
    }

    pub(crate) fn of(bytes: [u8; PART_HEAD]) -> Option<Self> {
        let [kind, 0, 0, 0, a, b, c, d, e, f, g, h] = bytes else { return None };
        let kinds = [Kind::Note, Kind::Begin, Kind::Inputs, Kind::End];
        let kind = kinds.into_iter().find(|known| *known as u8 == kind)?;
        let len = usize::try_from(u32::from_le_bytes([e, f, g, h])).ok()?;
        let engine = u32::from_le_bytes([a, b, c, d]);
        (len <= MAX_PART).then_some(Self { kind, engine, len })
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
        assert_eq!(kept, "ä".repeat(248));
        for (at, byte) in [(0, b'x'), (8, 9), (12, 3)] {
            let mut head = Ending::Open.head();
            head[at] = byte;
            assert!(Ending::of(&head).is_err());
        }
    }

    #[test]
    fn parts_are_told_apart_and_not_too_long() {
        let head = PartHead { kind: Kind::Inputs, engine: 7, len: 300 };
        assert_eq!(PartHead::of(head.bytes()), Some(head));
        for (at, byte) in [(0, 0), (0, 5), (1, 1), (11, 0xff)] {
            let mut bytes = head.bytes();
            bytes[at] = byte;
            assert_eq!(PartHead::of(bytes), None);
        }
    }
}
