//! The straight way to one queue pair of a peer: for the usual operations, one after the other.
//!
//! Which link it is, what its ring has room for, and where the regions of its keys lie is looked up once for all of them. So an
//! operation checks what only it can be wrong about, and does its copy. Whatever is special about one is refused, with nothing
//! done: the methods of [`Links`] have the rules for everything, and come this way themselves where they can.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use pmd_mem::{Access, Announce, Bytes, Key, KeyCache, Known, Load, PeerWord, PeerWordRef, Words};

use super::limits::{INLINE_MAX, RECORD_DIVISOR, RING_BYTES_MIN};
use super::link::{Outbound, Waker, index};
use super::links::{Links, found_mut};
use super::page;
use super::reach::{Own, Sge};
use super::record::{HEADER, Kind, PIECE, Piece, Record};
use super::ring;
use super::short::{self, SEQ_MASK, Short};

/// Two queue pairs that are connected, and the protection domain of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// This lcore's.
    pub qpn: u32,
    /// Its domain.
    pub pd: u32,
    /// The peer's.
    pub peer: u32,
    /// The domain of that one, from its page.
    pub peer_pd: u32,
}

/// An open way. Keys that it found stay good as long as it lives, since the lcore has announced itself until the next
/// [`Links::publish`].
pub struct Straight<'a> {
    pair: Pair,
    own: &'a Own,
    keys: &'a KeyCache,
    peer_keys: &'a KeyCache,
    /// The regions that were used last.
    here: Known<'a>,
    there: Known<'a>,
    writer: &'a mut ring::Writer<Words, PeerWord>,
    /// Up to where the ring takes messages.
    until: u64,
    /// What all short headers say.
    short: Short,
    /// Where the peer's page shows the queue pair, and its receives.
    shown: PeerWordRef<'a>,
    receives: PeerWordRef<'a>,
    waker: &'a Waker,
    announce: Announce,
    /// The peer is an lcore of this device, and reaches all of its memory.
    is_inside: bool,
}

/// A SEND of some bytes which is alone.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    /// What a glance at the peer's queue pair must find.
    pub seen: u64,
    /// Its number.
    pub seq: u32,
    /// A solicited event is asked for.
    pub solicited: bool,
    /// Its bytes.
    pub from: Sge,
    /// To be visible now, instead of after [`Links::publish`].
    pub now: bool,
}

impl Links {
    /// Appends a short SEND from a queue pair of this lcore to its peer, by a key that is known; returns the position after it. As
    /// [`Straight::send`], for one message alone: nothing is looked up that it does not need. `None`: nothing has happened.
    #[inline(always)]
    pub fn send_alone(&mut self, id: u32, pair: Pair, message: &Alone) -> Option<u64> {
        let Alone { seen, seq, solicited, from, now } = *message;
        self.busy.enter();
        let out = &mut found_mut(&mut self.slots, id)?.out;
        let word = out.ends.short(pair.peer, pair.qpn)?.word(seq, solicited, from.len)?;
        if out.page.glance(pair.peer) != seen {
            return None;
        }
        let len = from.len.into();
        let source = self.keys.find(Key(from.lkey), pair.pd, from.addr, len, Access::empty())?;
        let size = short::size(len);
        let writer = &mut out.writer;
        let at = writer.place(size, writer.until(out.reserve))?;
        let position = writer.append(at, word, size, |ring| ring.copy_behind(index(at), source))?;
        if now {
            writer.publish();
            out.waker.wake(self.busy.announce());
        } else if !core::mem::replace(&mut out.is_queued, true) {
            self.dirty.push(id);
        }
        Some(position)
    }

    /// Opens the way from a queue pair of this lcore to its peer. `None`: the link is down, or not the one between these two.
    #[inline(always)]
    pub fn straight(&mut self, id: u32, pair: Pair) -> Option<Straight<'_>> {
        self.busy.enter();
        let announce = self.busy.announce();
        let link = found_mut(&mut self.slots, id)?;
        let short = link.out.ends.short(pair.peer, pair.qpn)?;
        if !link.out.is_queued {
            link.out.is_queued = true;
            self.dirty.push(id);
        }
        let is_inside = link.key == 0;
        let until = link.out.writer.until(link.out.reserve);
        let Outbound { writer, keys: peer_keys, page, waker, .. } = &mut link.out;
        Some(Straight {
            pair,
            own: &self.own,
            keys: &self.keys,
            peer_keys,
            here: Known::NONE,
            there: Known::NONE,
            until,
            writer,
            short,
            shown: page.word(pair.peer)?,
            receives: page.receives(pair.peer)?,
            waker,
            announce,
            is_inside,
        })
    }
}

impl<'a> Straight<'a> {
    /// As [`Links::glance`], of the peer's queue pair.
    #[inline(always)]
    pub fn glance(&self) -> u64 {
        self.shown.load(Ordering::Acquire)
    }

    /// Receives that the peer's queue pair has posted, modulo 2^32, as long as it is the one that a later glance finds.
    #[inline(always)]
    pub fn posted(&self) -> u32 {
        page::posted(self.receives.load(Ordering::Acquire))
    }

    /// Appends a SEND of some bytes with nothing rare about it; returns the position after it. Visible after [`Links::publish`].
    #[inline(always)]
    pub fn send(&mut self, seq: u32, solicited: bool, from: Sge) -> Option<u64> {
        let source = self.here(from, Access::empty())?;
        let Some(word) = self.short.word(seq, solicited, from.len) else {
            let Self { pair, own, here, writer, until, is_inside, .. } = self;
            let can_pull = *is_inside || own.is_exported(here.region());
            return if can_pull {
                send_pull(writer, *until, *pair, (seq, solicited), from)
            } else {
                None
            };
        };
        self.append(word, from.len, |ring, at| ring.copy_behind(at, source))
    }

    /// As [`Self::send`], of short messages in a row, up to the first that is refused; returns how many. `says` tells of each what
    /// is to be sent and whether a solicited event is asked for, and `is_at` learns its number and position.
    #[inline(always)]
    pub fn send_row<T>(
        &mut self,
        first: u32,
        row: &mut [T],
        says: impl Fn(&T) -> Option<(Sge, bool)>,
        is_at: impl Fn(&mut T, u32, u64),
    ) -> usize {
        let mut seq = first;
        let mut row = row.iter_mut();
        if !self.writer.has_unpublished() {
            // The first word of a batch is kept back, unlike all others.
            let Some(each) = row.next() else { return 0 };
            let Some((sge, solicited)) = says(each) else { return 0 };
            let Some(position) = self.send(seq, solicited, sge) else { return 0 };
            is_at(each, seq, position);
            seq = next(seq);
        }
        let mut position = self.writer.position();
        let end = self.lay(seq, row.as_slice(), &says);
        // The messages learn of it once all of them are in the ring: see [`ring::Row`].
        while seq != end
            && let Some(each) = row.next()
        {
            position += says(each).map_or(0, |(sge, _)| short::size(sge.len.into()));
            is_at(each, seq, position);
            seq = next(seq);
        }
        (seq.wrapping_sub(first) & SEQ_MASK) as usize
    }

    /// Puts messages of one key into the ring, and nothing else anywhere; returns the number after the last of them. It calls
    /// nothing on its way, so that it needs no memory of its own.
    #[inline(always)]
    fn lay<T>(&mut self, first: u32, row: &[T], says: impl Fn(&T) -> Option<(Sge, bool)>) -> u32 {
        let Some((Sge { lkey, .. }, _)) = row.first().and_then(&says) else { return first };
        if !self.here.is_of(Key(lkey)) {
            let Some(found) = known(self.keys, lkey, self.pair.pd) else { return first };
            self.here = found;
        }
        let Self { here, writer, until, short, .. } = self;
        let (here, short) = (*here, *short);
        writer.row(*until, |entries| {
            let mut seq = first;
            for (sge, solicited) in row.iter().map_while(says) {
                if !here.is_of(Key(sge.lkey)) {
                    break;
                }
                let Some(word) = short.word(seq, solicited, sge.len) else { break };
                let source = here.find(sge.addr, sge.len.into(), Access::empty());
                if source.and_then(|source| entries.append(word, source)).is_none() {
                    break;
                }
                seq = next(seq);
            }
            seq
        })
    }

    /// As [`Self::send`], of bytes at hand: no more than fit a short record.
    #[inline(always)]
    pub fn send_inline(&mut self, seq: u32, solicited: bool, from: &[u8]) -> Option<u64> {
        let len = u32::try_from(from.len()).ok()?;
        let word = self.short.word(seq, solicited, len)?;
        self.append(word, len, |ring, at| ring.write_behind(at, from))
    }

    /// Appends a short record; `fill` puts its bytes behind a word of the ring, which it returns.
    #[inline(always)]
    fn append(
        &mut self,
        word: u64,
        len: u32,
        fill: impl FnOnce(&Words, usize) -> Option<&AtomicU64>,
    ) -> Option<u64> {
        /// The smallest ring takes it.
        const _: () = assert!(short::size(INLINE_MAX as u64) <= RING_BYTES_MIN / RECORD_DIVISOR);

        let size = short::size(len.into());
        let at = self.writer.place(size, self.until)?;
        self.writer.append(at, word, size, |ring| fill(ring, index(at)))
    }

    /// One-copy WRITE; the last word is stored last. False: nothing has happened.
    #[inline(always)]
    #[must_use = "nothing was written where this is false"]
    pub fn write(&mut self, from: Sge, addr: u64, rkey: u32) -> bool {
        let Some(source) = self.here(from, Access::empty()) else { return false };
        let target = self.there(rkey, addr, from.len.into(), Access::REMOTE_WRITE);
        let Some(target) = target else { return false };
        self.publish_before();
        source.copy_to(target).is_ok()
    }

    /// As [`Self::write`], of bytes at hand.
    #[inline(always)]
    #[must_use = "nothing was written where this is false"]
    pub fn write_inline(&mut self, from: &[u8], addr: u64, rkey: u32) -> bool {
        let target = self.there(rkey, addr, from.len() as u64, Access::REMOTE_WRITE);
        let Some(target) = target else { return false };
        self.publish_before();
        target.write(from).is_ok()
    }

    /// One-copy READ. False: nothing has happened.
    #[inline(always)]
    #[must_use = "nothing was read where this is false"]
    pub fn read(&mut self, into: Sge, addr: u64, rkey: u32) -> bool {
        let Some(target) = self.here(into, Access::LOCAL_WRITE) else { return false };
        match self.there(rkey, addr, into.len.into(), Access::REMOTE_READ) {
            Some(source) => source.copy_to(target).is_ok(),
            None => false,
        }
    }

    /// As [`Self::write`] or, where `READ` is set, [`Self::read`], of operations in a row: up to the first that is refused, and as
    /// long as a glance finds what was `seen`; returns how many. `places` tells of each where its bytes are here, and by which
    /// address and key at the peer. All that are done use the same two keys.
    #[inline(always)]
    pub fn copy_row<const READ: bool, T>(
        &mut self,
        row: &[T],
        seen: u64,
        places: impl Fn(&T) -> Option<(Sge, u64, u32)>,
    ) -> usize {
        let (local, remote) = if READ {
            (Access::LOCAL_WRITE, Access::REMOTE_READ)
        } else {
            (Access::empty(), Access::REMOTE_WRITE)
        };
        let Some((sge, addr, rkey)) = row.first().and_then(&places) else { return 0 };
        let is_known = self.here(sge, local).is_some()
            && self.there(rkey, addr, sge.len.into(), remote).is_some();
        if !is_known {
            return 0;
        }
        if !READ {
            self.publish_before();
        }
        let Self { here, there, shown, .. } = *self;
        let mut done = 0;
        for (Sge { addr: va, len, lkey }, addr, rkey) in row.iter().map_while(places) {
            let is_next = here.is_of(Key(lkey)) && there.is_of(Key(rkey));
            if !is_next || shown.load(Ordering::Acquire) != seen {
                break;
            }
            let here = here.find(va, len.into(), local);
            let Some((here, there)) = here.zip(there.find(addr, len.into(), remote)) else { break };
            let copied = if READ { there.copy_to(here) } else { here.copy_to(there) };
            if copied.is_err() {
                break;
            }
            done += 1;
        }
        done
    }

    /// As [`Links::fence`].
    #[inline]
    pub fn fence(&mut self) {
        fence(Ordering::SeqCst);
    }

    /// As [`Links::publish`], of what was sent this way alone.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.writer.publish() {
            self.waker.wake(self.announce);
        }
    }

    /// Whoever sees a WRITE finds the records before it.
    #[inline(always)]
    fn publish_before(&mut self) {
        if self.writer.has_unpublished() {
            self.publish();
            // The copy itself is not ordered by the publication.
            fence(Ordering::Release);
        }
    }

    /// The bytes of a local element, if its key is known and allows what is meant with them.
    #[inline(always)]
    fn here(&mut self, sge: Sge, rights: Access) -> Option<Bytes<'a>> {
        if !self.here.is_of(Key(sge.lkey)) {
            self.here = known(self.keys, sge.lkey, self.pair.pd)?;
        }
        self.here.find(sge.addr, sge.len.into(), rights)
    }

    /// The same of bytes at the peer.
    #[inline(always)]
    fn there(&mut self, rkey: u32, addr: u64, len: u64, rights: Access) -> Option<Bytes<'a>> {
        if !self.there.is_of(Key(rkey)) {
            self.there = known(self.peer_keys, rkey, self.pair.peer_pd)?;
        }
        self.there.find(addr, len, rights)
    }
}

/// The number of the message after this one.
#[inline(always)]
const fn next(seq: u32) -> u32 {
    (seq + 1) & SEQ_MASK
}

/// The bytes stay where they are until the peer takes them.
#[inline(never)]
fn send_pull(
    writer: &mut ring::Writer<Words, PeerWord>,
    until: u64,
    pair: Pair,
    (seq, solicited): (u32, bool),
    from: Sge,
) -> Option<u64> {
    const SIZE: u64 = HEADER + PIECE;

    let Sge { addr, len, lkey } = from;
    if len == 0 {
        return None;
    }
    let Pair { qpn: src, peer: dst, pd, .. } = pair;
    let kind = Kind::Send;
    let header = Record { kind, dst, src, seq, len, imm: None, solicited, srqn: None }.two_words();
    let [a, b, c] = Piece { lkey, pd, addr, len }.encode();
    let at = writer.place(SIZE, until)?;
    for (word_at, word) in (at + 8..).step_by(8).zip([header.second, a, b, c]) {
        writer.put(word_at, word);
    }
    Some(writer.commit(at, header.first, SIZE))
}

#[inline(always)]
fn known(keys: &KeyCache, key: u32, pd: u32) -> Option<Known<'_>> {
    keys.known(Key(key), pd)
}

impl fmt::Debug for Straight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Straight").field("pair", &self.pair).finish_non_exhaustive()
    }
}
