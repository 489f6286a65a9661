//! The receiving half of a link: records as they arrive, and their bytes.

use std::sync::Arc;

use pmd_mem::{PeerWords, Segment, Word};

use super::link::RING_AT;
use super::reach::{MemoryFault, Own, Reach, Sge};
use super::record::{Body, Garbage, HEADER, Header, PIECE, Piece, Record, plain_len, plain_size};
use super::ring;

/// Taking records from a peer.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) reader: ring::Reader<PeerWords, Word>,
    /// The segment that the peer writes.
    pub(crate) segment: Arc<Segment>,
    /// Largest record in bytes.
    pub(crate) largest: u64,
    pub(crate) reach: Arc<Reach>,
    pub(crate) own: Arc<Own>,
}

/// A record that lies in the ring.
#[derive(Debug)]
pub(crate) struct Lying {
    pub(crate) record: Record,
    pub(crate) size: u64,
    bytes: Bytes,
}

#[derive(Clone, Copy, Debug)]
enum Bytes {
    None,
    /// From this byte of the peer's segment on.
    Inline(u64),
    /// In the peer's memory: so many pieces from this byte of the ring on.
    Pull(u64, u8),
}

/// The payload of an arriving record, in the ring or still in the sender's memory.
#[derive(Debug)]
pub struct Payload<'a> {
    inbound: &'a Inbound,
    len: u32,
    bytes: Bytes,
}

impl Inbound {
    /// The next record, checked: its header is a copy that the peer cannot change any more.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Lying>, Garbage> {
        let Some((at, first)) = self.reader.next()? else { return Ok(None) };
        match self.plain(at, first) {
            Some(lying) => Ok(Some(lying)),
            None => self.decode(at, first).map(Some),
        }
    }

    /// The usual record, by the shortest way; `None` for what is rare or wrong.
    #[inline]
    fn plain(&self, at: u64, first: u64) -> Option<Lying> {
        let size = plain_size(plain_len(first)?);
        self.reader.check(at, size, self.largest).ok()?;
        let record = Record::from_plain(first, self.reader.word(at + 8))?;
        Some(Lying { record, size, bytes: Bytes::Inline(RING_AT + at + HEADER) })
    }

    /// Any record.
    #[inline(never)]
    fn decode(&self, at: u64, first: u64) -> Result<Lying, Garbage> {
        let word = |i: u64| self.reader.word(at + i * 8);
        self.reader.check(at, HEADER, self.largest)?;
        let second = word(1);
        let words = Header::words(first, second);
        self.reader.check(at, words as u64 * 8, self.largest)?;
        let header = Header::decode(std::array::from_fn(|i| match i {
            0 => first,
            1 => second,
            _ if i < words => word(i as u64),
            _ => 0,
        }))?;
        let (record, size) = (header.record, header.size());
        self.reader.check(at, size, self.largest)?;

        let body_at = at + record.header_bytes();
        let bytes = match header.body {
            Body::None => Bytes::None,
            Body::Inline => Bytes::Inline(RING_AT + body_at),
            Body::Pull(count) => {
                let total: u64 = (0..count).map(|i| u64::from(self.piece(body_at, i).len)).sum();
                if total != u64::from(record.len) {
                    return Err(Garbage::Pieces);
                }
                Bytes::Pull(body_at, count)
            }
        };
        Ok(Lying { record, size, bytes })
    }

    #[inline]
    pub(crate) const fn payload(&self, lying: &Lying) -> Payload<'_> {
        Payload { inbound: self, len: lying.record.len, bytes: lying.bytes }
    }

    /// A piece of a checked record. The peer may have changed it since: whoever uses it checks where it leads.
    fn piece(&self, body_at: u64, index: u8) -> Piece {
        let word = |i: u64| self.reader.word(body_at + u64::from(index) * PIECE + i * 8);
        Piece::decode([word(0), word(1), word(2)])
    }
}

impl Payload<'_> {
    /// Whether the bytes are still in the sender's memory, where they may change meanwhile.
    #[inline]
    pub const fn is_borrowed(&self) -> bool {
        matches!(self.bytes, Bytes::Pull(..))
    }

    /// Copies message bytes `offset ..` into one local element, at its start: `min(sge.len, len - offset)` of them.
    ///
    /// # Errors
    /// [`MemoryFault::Local`] for the element, [`MemoryFault::NotYet`] for the sender's memory, and [`MemoryFault::Remote`] when
    /// it is no longer there. Some bytes may have been copied.
    #[inline]
    pub fn copy_to(&mut self, pd: u32, offset: u32, sge: &Sge) -> Result<(), MemoryFault> {
        let len = u64::from(self.len.saturating_sub(offset).min(sge.len));
        let Some((to, to_offset)) = self.inbound.own.local(pd, sge, len, true)? else {
            return Ok(());
        };
        match self.bytes {
            // A record without bytes here: those of a WRITE with immediate are in place.
            Bytes::None => Ok(()),
            Bytes::Inline(at) => self
                .inbound
                .segment
                .copy_to(at + u64::from(offset), &to.segment, to_offset, len)
                .map_err(|_| MemoryFault::Local),
            Bytes::Pull(body_at, count) => {
                self.pull((body_at, count), offset.into(), (&to.segment, to_offset), len)
            }
        }
    }

    #[inline(never)]
    fn pull(
        &self,
        (body_at, count): (u64, u8),
        mut skip: u64,
        (to, mut to_offset): (&Segment, u64),
        mut len: u64,
    ) -> Result<(), MemoryFault> {
        for piece in (0..count).map(|i| self.inbound.piece(body_at, i)) {
            let piece_len = u64::from(piece.len);
            if skip >= piece_len {
                skip -= piece_len;
                continue;
            }
            if len == 0 {
                break;
            }
            let part = len.min(piece_len - skip);
            let addr = piece.addr.checked_add(skip).ok_or(MemoryFault::Remote)?;
            if let Some((from, from_offset)) =
                self.inbound.reach.source(piece.lkey, piece.pd, addr, part)?
            {
                from.copy_to(from_offset, to, to_offset, part).map_err(|_| MemoryFault::Local)?;
            }
            skip = 0;
            to_offset += part;
            len -= part;
        }
        Ok(())
    }
}
