//! The receiving half of a link: records as they arrive, and their bytes.

use std::sync::Arc;

use pmd_mem::{Access, Key, KeyCache, PeerWords, Segment, Word};

use super::link::{RING_AT, index};
use super::reach::{MemoryFault, Own, Reach, Sge};
use super::record::{Body, Garbage, HEADER, Header, Kind, PIECE, Piece, Record, TwoWords, is_pull};
use super::ring;
use super::short::{self, Ends, SHORT};

/// Taking records from a peer.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) reader: ring::Reader<PeerWords, Word>,
    /// The segment that the peer writes.
    pub(crate) segment: Arc<Segment>,
    /// Largest record in bytes.
    pub(crate) largest: u64,
    /// Whose queue pairs short headers speak of.
    pub(crate) ends: Ends,
    pub(crate) reach: Arc<Reach>,
    /// The peer's keys that bytes were taken by before.
    pub(crate) sources: KeyCache,
    pub(crate) own: Arc<Own>,
    /// This device's keys of receives that were filled before.
    pub(crate) keys: KeyCache,
}

/// A record that lies in the ring.
#[derive(Debug)]
pub(crate) struct Lying {
    pub(crate) record: Record,
    pub(crate) size: u64,
    body: Body,
    /// Where the body begins in the ring.
    body_at: u64,
}

impl Lying {
    /// Room for records to come.
    pub(crate) const NOTHING: Self = Self {
        record: Record {
            kind: Kind::Starved,
            dst: 0,
            src: 0,
            seq: 0,
            len: 0,
            imm: None,
            solicited: false,
            srqn: None,
        },
        size: 0,
        body: Body::None,
        body_at: 0,
    };
}

/// The payload of an arriving record, in the ring or still in the sender's memory.
#[derive(Debug)]
pub struct Payload<'a> {
    inbound: &'a mut Inbound,
    lying: &'a Lying,
}

impl Inbound {
    /// Puts the next record into `lying`, checked: its header is a copy that the peer cannot change any more. False: there is none.
    #[inline(always)]
    pub(crate) fn next(&mut self, lying: &mut Lying) -> Result<bool, Garbage> {
        let Some((at, first)) = self.reader.next()? else { return Ok(false) };
        if let Some(len) = short::len(first) {
            lying.size = short::size(len);
            self.reader.check(at, lying.size, self.largest)?;
            lying.body = Body::Inline;
            lying.body_at = at + SHORT;
            self.ends.decode(first, &mut lying.record);
        } else if !(is_pull(first) && self.pull_of_one(at, first, lying)) {
            *lying = self.decode(at, first)?;
        }
        Ok(true)
    }

    /// The usual record whose bytes lie elsewhere; false for what is rare or wrong.
    #[inline]
    fn pull_of_one(&self, at: u64, first: u64, lying: &mut Lying) -> bool {
        const SIZE: u64 = HEADER + PIECE;

        if self.reader.check(at, SIZE, self.largest).is_err() {
            return false;
        }
        lying.size = SIZE;
        lying.body = Body::Pull(1);
        lying.body_at = at + HEADER;
        TwoWords { first, second: self.reader.word(at + 8) }.decode(&mut lying.record)
            && self.piece(at + HEADER, 0).len == lying.record.len
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
        if let Body::Pull(count) = header.body {
            let total: u64 = (0..count).map(|i| u64::from(self.piece(body_at, i).len)).sum();
            if total != u64::from(record.len) {
                return Err(Garbage::Pieces);
            }
        }
        Ok(Lying { record, size, body: header.body, body_at })
    }

    #[inline]
    pub(crate) const fn payload<'a>(&'a mut self, lying: &'a Lying) -> Payload<'a> {
        Payload { inbound: self, lying }
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
        matches!(self.lying.body, Body::Pull(_))
    }

    /// Copies message bytes `offset ..` into one local element, at its start: `min(sge.len, len - offset)` of them.
    ///
    /// # Errors
    /// [`MemoryFault::Local`] for the element, [`MemoryFault::NotYet`] for the sender's memory, and [`MemoryFault::Remote`] when
    /// it is no longer there. Some bytes may have been copied.
    #[inline]
    pub fn copy_to(&mut self, pd: u32, offset: u32, sge: &Sge) -> Result<(), MemoryFault> {
        let len = u64::from(self.lying.record.len.saturating_sub(offset).min(sge.len));
        let offset = u64::from(offset);
        let inbound = &*self.inbound;
        if let Some(to) = inbound.keys.find(Key(sge.lkey), pd, sge.addr, len, Access::LOCAL_WRITE)
            && len > 0
        {
            match self.lying.body {
                Body::Inline => {
                    // At most the length of a record.
                    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
                    if inbound.reader.words().copy_to(index(self.lying.body_at), skip, to) {
                        return Ok(());
                    }
                }
                Body::Pull(1) => {
                    let Piece { lkey, pd, addr, .. } = inbound.piece(self.lying.body_at, 0);
                    let addr = addr.wrapping_add(offset);
                    if let Some(from) =
                        inbound.sources.find(Key(lkey), pd, addr, len, Access::empty())
                    {
                        return from.copy_to(to).map_err(|_| MemoryFault::Local);
                    }
                }
                Body::Pull(_) | Body::None => {}
            }
        }
        self.copy_any(pd, offset, sge, len)
    }

    /// As [`Self::copy_to`], of any bytes and by keys that are not known yet.
    #[inline(never)]
    fn copy_any(&mut self, pd: u32, offset: u64, sge: &Sge, len: u64) -> Result<(), MemoryFault> {
        let inbound = &mut *self.inbound;
        inbound.own.remember(&mut inbound.keys, sge.lkey);
        let body_at = self.lying.body_at;
        if let Body::Pull(_) = self.lying.body {
            let lkey = inbound.piece(body_at, 0).lkey;
            inbound.reach.remember(&mut inbound.sources, lkey);
        }
        let Some((to, to_offset)) = self.inbound.own.local(pd, sge, len, true)? else {
            return Ok(());
        };
        match self.lying.body {
            // A record without bytes here: those of a WRITE with immediate are in place.
            Body::None => Ok(()),
            Body::Inline => self
                .inbound
                .segment
                .copy_to(RING_AT + body_at + offset, &to.segment, to_offset, len)
                .map_err(|_| MemoryFault::Local),
            Body::Pull(count) => self.pull((body_at, count), offset, (&to.segment, to_offset), len),
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
