//! Plain SENDs as they lie at the front of a ring, for whoever takes the usual ones one after the other.
//!
//! What messages from one queue pair to another have in common is looked up once, and no record is made of a header: who waits for
//! a message knows all of it but the length. Whatever is special about one is not shown: [`Inbound::next`] has the rules for all.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use pmd_mem::{Access, Key, KeyCache, Known};

use super::link::index;
use super::links::Links;
use super::page::LINE;
use super::payload::{Inbound, Payload};
use super::reach::Sge;
use super::record::{Piece, Record, TwoWords, is_pull};
use super::short::{self, Short};

/// Takes what arrives on a link.
pub trait Take {
    /// The plain SEND at the front, with its bytes behind it, if it is alone there and wanted; whether it was taken. If not, it comes by
    /// one of the other ways.
    fn alone(&mut self, arrivals: &mut Arrivals<'_>) -> bool;

    /// Plain SENDs: takes as many from the front as it likes, at most `budget`; returns how many.
    fn run(&mut self, links: &Links, arrivals: &mut Arrivals<'_>, budget: usize) -> usize;

    /// The record at the front, whatever it is; with the links to answer it. False: it stays, and comes again.
    fn record(&mut self, links: &mut Links, record: &Record, payload: &mut Payload<'_>) -> bool;
}

/// How far behind the front of a ring a message is looked at before its turn. What is further may still be in the writer's hands.
const NEAR_BYTES: u64 = 256;

/// Takes records one by one.
pub(super) struct Each<F>(pub(super) F);

impl<F: FnMut(&mut Links, &Record, &mut Payload<'_>) -> bool> Take for Each<F> {
    fn alone(&mut self, _: &mut Arrivals<'_>) -> bool {
        false
    }

    fn run(&mut self, _: &Links, _: &mut Arrivals<'_>, _: usize) -> usize {
        0
    }

    fn record(&mut self, links: &mut Links, record: &Record, payload: &mut Payload<'_>) -> bool {
        self.0(links, record, payload)
    }
}

/// The front of a ring.
#[derive(Debug)]
pub struct Arrivals<'a>(&'a mut Inbound);

impl Inbound {
    /// The front of the ring.
    #[inline(always)]
    pub(super) const fn arrivals(&mut self) -> Arrivals<'_> {
        Arrivals(self)
    }

    /// Whether a plain message with its bytes behind it is at the front, and as far as its line shows nothing behind that. What is in
    /// the next line is left alone: the sender may be writing there.
    #[inline(always)]
    pub(super) fn is_alone(&self) -> bool {
        let (at, word) = self.reader.peek();
        let Some(len) = short::len(word) else { return false };
        let end = at + short::size(len);
        end.is_multiple_of(LINE) || self.reader.around(end) == 0
    }
}

impl Arrivals<'_> {
    /// The queue pair that the message at the front is for, and whether its bytes are borrowed; if that is a plain one.
    #[inline(always)]
    pub fn front(&self) -> Option<(u32, bool)> {
        let (_, word) = self.0.reader.peek();
        if short::len(word).is_some() {
            Some((self.0.ends.receiver(word), false))
        } else if is_pull(word) {
            Some((TwoWords { first: word, second: 0 }.dst(), true))
        } else {
            None
        }
    }

    /// The receiver of a message some way behind the front, if all between are as long as the first of them: a guess. What the sender
    /// may just be writing is left alone.
    #[inline(always)]
    pub fn coming(&self) -> Option<u32> {
        let Inbound { reader, ends, .. } = &*self.0;
        let (at, word) = reader.peek();
        let size = short::size(short::len(word)?);
        let word = reader.around(at + if size <= NEAR_BYTES / 8 { 8 * size } else { 2 * size });
        short::len(word).map(|_| ends.receiver(word))
    }

    /// Takes the message at the front, if it is the short one with this number from `src` to `dst`, a queue pair of the domain `pd`,
    /// and its bytes can be copied to the start of a local element by a key that is known.
    #[inline(always)]
    pub fn take(&mut self, dst: u32, src: u32, pd: u32, seq: u32, into: &Sge) -> Option<Plain> {
        let Inbound { reader, ends, keys, .. } = &mut *self.0;
        let (words, at, tail) = reader.split();
        let [word, bytes @ ..] = words.as_slice().get(index(at)..)? else { return None };
        let (len, solicited) = ends.short(dst, src)?.read(word.load(Ordering::Acquire), seq)?;
        if len > into.len {
            return None;
        }
        let place = keys.find(Key(into.lkey), pd, into.addr, len.into(), Access::LOCAL_WRITE)?;
        place.copy_from_words(bytes).then(|| {
            *tail += short::size(len.into());
            Plain { len, solicited }
        })
    }

    /// The messages from `src` to `dst`, a queue pair of the domain `pd`, into memory of one key. `None`: the key is not known yet,
    /// or does not allow it; or the link is not the one between these two.
    #[inline(always)]
    pub fn messages<const BORROWED: bool>(
        &mut self,
        dst: u32,
        src: u32,
        pd: u32,
        lkey: u32,
    ) -> Option<Messages<'_, BORROWED>> {
        let Inbound { reader, ends, sources, keys, .. } = &mut *self.0;
        let short = ends.short(dst, src)?;
        let into = keys.known(Key(lkey), pd).filter(|known| known.allows(Access::LOCAL_WRITE))?;
        let (words, at, tail) = reader.split();
        let words = words.as_slice().get(index(at)..)?;
        // What is not short has no such length, and is nothing that a header is compared with.
        let len = short::len_field(words.first()?.load(Ordering::Relaxed));
        let same = Same { header: short.with(0, len), len };
        Some(Messages { words, rest: words, tail, short, same, into, lkey, dst, src, sources })
    }
}

/// What messages of one length without anything rare about them have in common.
#[derive(Clone, Copy, Debug)]
struct Same {
    /// Their header, but for the number.
    header: u64,
    len: u32,
}

impl Same {
    /// What is to be expected after the message with this header and number, and whether that asks for an event.
    #[inline(never)]
    fn of(short: Short, word: u64, seq: u32) -> Option<(Self, bool)> {
        let (len, solicited) = short.read(word, seq)?;
        Some((Self { header: short.with(0, len), len }, solicited))
    }
}

/// The plain messages from one queue pair to another, with their bytes behind them or borrowed. Keys that were found stay good as
/// long as it lives, since the lcore has announced itself for that time.
pub struct Messages<'a, const BORROWED: bool> {
    /// From the front to the end of the lap.
    words: &'a [AtomicU64],
    /// From behind the message that was copied last.
    rest: &'a [AtomicU64],
    /// The position of the front.
    tail: &'a mut u64,
    /// What all short headers say.
    short: Short,
    /// What is expected of the next one: the length of the last, which asked for no event.
    same: Same,
    /// The memory that is filled.
    into: Known<'a>,
    lkey: u32,
    dst: u32,
    src: u32,
    sources: &'a KeyCache,
}

/// What there is to say of a plain message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Message bytes.
    pub len: u32,
    /// The sender asks for a solicited event.
    pub solicited: bool,
}

impl<const BORROWED: bool> Messages<'_, BORROWED> {
    /// Copies the message at the front to the start of a local element. `None`: it is not the one with this number, there is no room
    /// for it, or something else is in the way; what was copied then does not count.
    #[inline(always)]
    pub fn copy(&mut self, seq: u32, into: &Sge) -> Option<Plain> {
        if into.lkey != self.lkey {
            return None;
        }
        if BORROWED { self.pull(seq, into) } else { self.copy_short(seq, into) }
    }

    #[inline(always)]
    fn copy_short(&mut self, seq: u32, into: &Sge) -> Option<Plain> {
        let word = self.words.first()?.load(Ordering::Acquire);
        // Where the next header lies follows from the length. A length that is not taken from this header lets the processor go
        // on to the next ones while the lines of all of them are on their way, instead of waiting for one after the other.
        let mut solicited = false;
        if word != self.same.header | u64::from(seq) {
            (self.same, solicited) = Same::of(self.short, word, seq)?;
        }
        let len = self.same.len;
        let (message, rest) = self.words.split_at_checked(short::words(len))?;
        self.rest = rest;
        if len > into.len {
            return None;
        }
        let place = self.into.find(into.addr, len.into(), Access::empty())?;
        place.copy_from_words(message.get(1..)?).then_some(Plain { len, solicited })
    }

    #[inline(always)]
    fn pull(&mut self, seq: u32, into: &Sge) -> Option<Plain> {
        let [first, second, a, b, c, rest @ ..] = self.words else { return None };
        self.rest = rest;
        let first = first.load(Ordering::Acquire);
        let [second, a, b, c] = [second, a, b, c].map(|word| word.load(Ordering::Relaxed));
        let header = TwoWords { first, second };
        let is_it = is_pull(first)
            && (header.dst(), header.src(), header.seq()) == (self.dst, self.src, seq)
            && header.is_usual();
        let (piece, len) = (Piece::decode([a, b, c]), header.len());
        if !is_it || piece.len != len || len > into.len {
            return None;
        }
        let Piece { lkey, pd, addr, .. } = piece;
        let from = self.sources.find(Key(lkey), pd, addr, len.into(), Access::empty())?;
        let place = self.into.find(into.addr, len.into(), Access::empty())?;
        from.copy_to(place).ok()?;
        Some(Plain { len, solicited: header.is_solicited() })
    }

    /// Takes the message that was copied last out of the ring.
    #[inline(always)]
    pub fn advance(&mut self) {
        *self.tail += (self.words.len() - self.rest.len()) as u64 * 8;
        self.words = self.rest;
    }
}

impl<const BORROWED: bool> fmt::Debug for Messages<'_, BORROWED> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages")
            .field("dst", &self.dst)
            .field("src", &self.src)
            .finish_non_exhaustive()
    }
}
