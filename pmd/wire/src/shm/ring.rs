//! The ring of one direction: how records become visible.
//!
//! One writer, one reader, no tail index. The writer fills a batch of records behind what is published and ends it with a zero
//! word; then it stores the *first* header of the batch, with release order. The reader finds the next header where the last
//! record ended: zero means that nothing more is published. So a whole batch costs one transfer of the line it begins in, and
//! what an earlier lap left in the ring is never taken for a header.
//!
//! Entries are multiples of eight bytes and never wrap: a PAD entry fills the end of the ring. Positions count bytes since the
//! ring was made. The reader reports its position once per burst; the writer looks at it when it runs out of room, and to learn
//! what has been taken.
//!
//! All words go through [`Words`], so that loom can model the protocol; payload bytes are copied between a reservation and its
//! publication by the caller.

use core::sync::atomic::{AtomicU64, Ordering};

use pmd_mem::{Bytes, Load, Room, Store};

use super::link::index;
use super::record::{Entry, Garbage, entry, pad_word};

/// The words of a ring as its reader sees them.
pub(crate) trait Words {
    /// The word at byte `at`, a multiple of eight below the capacity.
    fn load(&self, at: u64, order: Ordering) -> u64;
}

/// The words of a ring as its writer sees them.
pub(crate) trait WordsMut {
    /// Stores the word at byte `at`, a multiple of eight below the capacity.
    fn store(&self, at: u64, value: u64, order: Ordering);
}

/// Bytes that must stay free: the zero word that ends a batch.
const TERMINATOR: u64 = 8;

/// Why no room was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The reader has to catch up first.
    Full,
    /// The reader's index is nonsense.
    Broken(Garbage),
}

/// The writing side.
#[derive(Debug)]
pub(crate) struct Writer<M, C> {
    words: M,
    consumed: C,
    /// One less than the capacity.
    mask: u64,
    /// Where the next entry goes.
    head: u64,
    /// Where the unpublished batch begins; `head` when there is none.
    batch: u64,
    /// The first word of the batch, which is not in the ring yet.
    first: u64,
    /// The reader's index when it was last loaded: what it may not fall behind.
    seen: u64,
}

impl<M: WordsMut, C: Load> Writer<M, C> {
    /// A writer of a zeroed ring of `capacity` bytes, a power of two.
    pub(crate) fn new(words: M, consumed: C, capacity: u64) -> Self {
        debug_assert!(capacity.is_power_of_two() && capacity >= 64);
        Self { words, consumed, mask: capacity - 1, head: 0, batch: 0, first: 0, seen: 0 }
    }

    #[inline]
    const fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Finds room for an entry of `size` bytes, a multiple of eight, and returns where it lies in the ring; `keep` bytes stay free
    /// after it. The caller fills all but the first word, and then [commits](Self::commit) it.
    ///
    /// An entry and what stays free fit half the capacity, or there might never be room.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, size: u64, keep: u64) -> Result<u64, NoRoom> {
        debug_assert!(size.is_multiple_of(8) && size >= 8 && size + keep <= self.capacity() / 2);
        let at = self.head & self.mask;
        if at + size <= self.capacity() && self.has_room(size + keep + TERMINATOR) {
            return Ok(at);
        }
        self.reserve_anew(at, size, keep)
    }

    /// As [`Self::reserve`] where a look at the reader's index or the start of the ring is needed.
    #[cold]
    fn reserve_anew(&mut self, at: u64, size: u64, keep: u64) -> Result<u64, NoRoom> {
        let to_end = self.capacity() - at;
        let pad = if size > to_end { to_end } else { 0 };
        let bytes = pad + size + keep + TERMINATOR;
        if !self.has_room(bytes) {
            self.taken().map_err(NoRoom::Broken)?;
            if !self.has_room(bytes) {
                return Err(NoRoom::Full);
            }
        }
        if pad == 0 {
            return Ok(at);
        }
        // At most the capacity, which fits.
        let skip = u32::try_from(pad - 8).unwrap_or(u32::MAX);
        self.commit(at, pad_word(skip), pad);
        Ok(0)
    }

    /// Up to which position [`Self::place`] can lay entries one behind the other: to the end of the ring, or as far as is known to
    /// be free with `keep` bytes left.
    #[inline]
    pub(crate) fn until(&self, keep: u64) -> u64 {
        let end_of_lap = (self.head | self.mask) + 1;
        end_of_lap.min(self.seen + self.capacity() - keep - TERMINATOR)
    }

    /// As [`Self::reserve`], for an entry that ends before `until`.
    #[inline(always)]
    pub(crate) fn place(&self, size: u64, until: u64) -> Option<u64> {
        (self.head + size <= until).then_some(self.head & self.mask)
    }

    #[inline]
    fn has_room(&self, bytes: u64) -> bool {
        self.head + bytes - self.seen <= self.capacity()
    }

    /// Stores a word of the reserved entry, other than its first.
    #[inline]
    pub(crate) fn put(&self, at: u64, value: u64) {
        self.words.store(at, value, Ordering::Relaxed);
    }

    /// Adds the reserved entry of `size` bytes at `at` to the batch, and returns the position after it.
    #[inline(always)]
    pub(crate) fn commit(&mut self, at: u64, first_word: u64, size: u64) -> u64 {
        if self.has_unpublished() {
            // Nobody looks here before the batch is published.
            self.words.store(at, first_word, Ordering::Relaxed);
        } else {
            self.first = first_word;
        }
        self.advance(size)
    }

    #[inline(always)]
    fn advance(&mut self, size: u64) -> u64 {
        self.head += size;
        self.head
    }

    /// Whether a batch waits to be published.
    #[inline]
    pub(crate) const fn has_unpublished(&self) -> bool {
        self.batch != self.head
    }

    /// Makes the batch visible. Returns whether there was one.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if !self.has_unpublished() {
            return false;
        }
        self.words.store(self.head & self.mask, 0, Ordering::Relaxed);
        self.words.store(self.batch & self.mask, self.first, Ordering::Release);
        self.batch = self.head;
        true
    }

    /// Up to where the reader has taken entries, read anew.
    #[inline]
    pub(crate) fn taken(&mut self) -> Result<u64, Garbage> {
        self.seen = self.peek_taken()?;
        Ok(self.seen)
    }

    /// As [`Self::taken`], without remembering it.
    #[inline]
    pub(crate) fn peek_taken(&self) -> Result<u64, Garbage> {
        let claimed = self.consumed.load(Ordering::Acquire);
        if claimed < self.seen || claimed > self.head {
            return Err(Garbage::Consumed { claimed, from: self.seen, to: self.head });
        }
        Ok(claimed)
    }
}

impl<C: Load> Writer<pmd_mem::Words, C> {
    /// Adds an entry of `size` bytes at the [place](Self::place) `at` to the batch, and returns the position after it. `fill` puts
    /// its bytes where they belong and returns where the first word does; `None`: it has not.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        at: u64,
        first_word: u64,
        size: u64,
        fill: impl FnOnce(&pmd_mem::Words) -> Option<&AtomicU64>,
    ) -> Option<u64> {
        debug_assert_eq!(at, self.head & self.mask);
        let first = fill(&self.words)?;
        if self.batch == self.head {
            self.first = first_word;
        } else {
            // Nobody looks here before the batch is published.
            first.store(first_word, Ordering::Relaxed);
        }
        Some(self.advance(size))
    }
}

/// Entries that are added to a batch one behind the other, with nothing noted between them: what is stored meanwhile is what the
/// reader is to see, and hardly anything else. Stores wait for each other's lines in order, so that only then the lines which have
/// to come back from the reader are on their way together.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    room: Room<'a>,
}

impl<C: Load> Writer<pmd_mem::Words, C> {
    /// Has entries added from the next place on, up to [`until`](Self::until), to a batch that has begun.
    #[inline(always)]
    pub(crate) fn row<R>(&mut self, until: u64, fill: impl FnOnce(&mut Row<'_>) -> R) -> R {
        debug_assert!(self.has_unpublished(), "the first word of a batch is kept back");
        let words = index(until.saturating_sub(self.head));
        let room = self.words.room(index(self.head & self.mask), words);
        let end = self.head + 8 * room.len() as u64;
        let mut row = Row { room };
        let filled = fill(&mut row);
        self.head = end - 8 * row.room.len() as u64;
        filled
    }

    /// The position of the next entry.
    #[inline]
    pub(crate) const fn position(&self) -> u64 {
        self.head
    }
}

impl Row<'_> {
    /// Adds an entry of a word and a few bytes behind it. `None`: they are too many, or there is no room.
    #[inline(always)]
    pub(crate) fn append(&mut self, word: u64, bytes: Bytes<'_>) -> Option<()> {
        let first = self.room.put(bytes)?;
        // Nobody looks here before the batch is published.
        first.store(word, Ordering::Relaxed);
        Some(())
    }
}

/// The reading side.
#[derive(Debug)]
pub(crate) struct Reader<M, C> {
    words: M,
    consumed: C,
    capacity: u64,
    tail: u64,
    reported: u64,
}

impl<M: Words, C: Store> Reader<M, C> {
    /// A reader of a ring of `capacity` bytes, a power of two, at its beginning.
    pub(crate) fn new(words: M, consumed: C, capacity: u64) -> Self {
        debug_assert!(capacity.is_power_of_two() && capacity >= 64);
        Self { words, consumed, capacity, tail: 0, reported: 0 }
    }

    /// The next record: where it lies and its first word. Skips paddings.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u64, u64)>, Garbage> {
        let (at, word) = self.peek();
        match entry(word) {
            Entry::End => Ok(None),
            Entry::Record => Ok(Some((at, word))),
            Entry::Pad(skip) => self.next_lap(at, skip),
        }
    }

    /// Skips a padding of so many bytes behind its word.
    #[cold]
    fn next_lap(&mut self, at: u64, skip: u32) -> Result<Option<(u64, u64)>, Garbage> {
        let size = u64::from(skip) + 8;
        if at + size != self.capacity {
            return Err(Garbage::Pad(skip));
        }
        self.tail += size;
        let word = self.words.load(0, Ordering::Acquire);
        match entry(word) {
            Entry::End => Ok(None),
            Entry::Record => Ok(Some((0, word))),
            // It would fill all of the ring.
            Entry::Pad(skip) => Err(Garbage::Pad(skip)),
        }
    }

    /// Where the next entry lies, and what its first word says: anything, if there is none.
    #[inline(always)]
    pub(crate) fn peek(&self) -> (u64, u64) {
        let at = self.tail & (self.capacity - 1);
        (at, self.words.load(at, Ordering::Acquire))
    }

    /// The word at `at`, which may lie in the next lap.
    #[inline(always)]
    pub(crate) fn around(&self, at: u64) -> u64 {
        self.words.load(at & (self.capacity - 1), Ordering::Relaxed)
    }

    /// Whether there is something to take.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.peek().1 != 0
    }

    /// Checks that a record of `size` bytes at `at` is one that the ring can hold.
    #[inline]
    pub(crate) fn check(&self, at: u64, size: u64, largest: u64) -> Result<(), Garbage> {
        if size > largest || at + size > self.capacity {
            return Err(Garbage::Size { size, at, ring: self.capacity });
        }
        Ok(())
    }

    /// Takes the record of `size` bytes that [`Self::next`] showed.
    #[inline]
    pub(crate) fn advance(&mut self, size: u64) {
        self.tail += size;
    }

    /// Whether there is anything to report.
    #[inline]
    pub(crate) const fn has_unreported(&self) -> bool {
        self.tail != self.reported
    }

    /// Tells the writer what was taken. Returns whether it was anything.
    #[inline]
    pub(crate) fn report(&mut self) -> bool {
        let news = self.has_unreported();
        if news {
            self.consumed.store(self.tail, Ordering::Release);
            self.reported = self.tail;
        }
        news
    }

    /// The words themselves.
    #[inline]
    pub(crate) const fn words(&self) -> &M {
        &self.words
    }

    /// The words, where in them the next entry lies, and the position that moves as entries are taken.
    #[inline(always)]
    pub(crate) const fn split(&mut self) -> (&M, u64, &mut u64) {
        (&self.words, self.tail & (self.capacity - 1), &mut self.tail)
    }

    /// Loads a word of the shown record, other than its first.
    #[inline]
    pub(crate) fn word(&self, at: u64) -> u64 {
        self.words.load(at, Ordering::Relaxed)
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
