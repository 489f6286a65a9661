//! A record on its way into the ring.

use super::limits::INLINE_MAX;
use super::link::{Outbound, RING_AT};
use super::links::Source;
use super::reach::{Elements, MemoryFault, Own};
use super::record::{Body, Header, Piece, Record};
use super::ring::NoRoom;

/// A record whose bytes are where they should be, and how they will travel.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    header: Header,
    bytes: Payload<'a>,
}

#[derive(Debug)]
enum Payload<'a> {
    None,
    Slice(&'a [u8]),
    Copy(Elements<'a>),
    Pull(Elements<'a>),
}

/// Why a record is not in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPushed {
    /// Its bytes are not registered for this, are not as many as it says, or can travel in no way.
    Fault,
    NoRoom(NoRoom),
}

impl From<MemoryFault> for NotPushed {
    fn from(_: MemoryFault) -> Self {
        Self::Fault
    }
}

impl<'a> Outgoing<'a> {
    /// Checks the payload and chooses its way. `is_inside`: the peer is an lcore of this device, and reaches all of its memory.
    pub(crate) fn new(
        own: &'a Own,
        pd: u32,
        record: &Record,
        payload: Source<'a>,
        is_datagram: bool,
        is_inside: bool,
    ) -> Result<Self, NotPushed> {
        let len = u64::from(record.len);
        let has_bytes = len > 0 && record.kind.is_send();
        let (body, bytes) = match payload {
            _ if !has_bytes => (Body::None, Payload::None),
            Source::Inline(bytes) if bytes.len() as u64 == len => {
                (Body::Inline, Payload::Slice(bytes))
            }
            Source::Inline(_) => return Err(NotPushed::Fault),
            Source::Sges(sges) => {
                let elements = Elements::new(own, pd, sges, false)?;
                if elements.total != len {
                    return Err(NotPushed::Fault);
                }
                let can_pull = is_inside || elements.exported;
                if record.len <= INLINE_MAX || is_datagram || !can_pull {
                    (Body::Inline, Payload::Copy(elements))
                } else {
                    // At most SGES_MAX.
                    let count =
                        u8::try_from(elements.pieces().count()).map_err(|_| NotPushed::Fault)?;
                    (Body::Pull(count), Payload::Pull(elements))
                }
            }
        };
        Ok(Self { header: Header { record: *record, body }, bytes })
    }

    /// Writes it behind what is in the ring already, and returns the position after it.
    pub(crate) fn append(self, out: &mut Outbound) -> Result<u64, NotPushed> {
        let size = self.header.size();
        if size > out.largest {
            return Err(NotPushed::Fault);
        }
        // Nothing is lost if what follows fails: room that is not committed is reserved again.
        let keep = if self.header.record.kind.is_answer() { 0 } else { out.reserve };
        let at = out.writer.reserve(size, keep).map_err(NotPushed::NoRoom)?;
        let words = self.header.encode();
        let body_at = at + self.header.record.header_bytes();
        let mut word_at = at + 8;
        for word in &words[1..] {
            if word_at == body_at {
                break;
            }
            out.writer.put(word_at, *word);
            word_at += 8;
        }
        match self.bytes {
            Payload::None => {}
            Payload::Slice(bytes) => {
                out.segment.write_at(RING_AT + body_at, bytes).map_err(|_| NotPushed::Fault)?;
            }
            Payload::Copy(elements) => {
                let mut to = RING_AT + body_at;
                elements.each(|segment, offset, len| {
                    let at = to;
                    to += len;
                    segment.copy_to(offset, &out.segment, at, len)
                })?;
            }
            Payload::Pull(elements) => {
                let words = elements.pieces().flat_map(|piece| Piece::encode(&piece));
                for (at, word) in (body_at..).step_by(8).zip(words) {
                    out.writer.put(at, word);
                }
            }
        }
        Ok(out.writer.commit(at, words[0], size))
    }
}
