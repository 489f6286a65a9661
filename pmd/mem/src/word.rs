//! Sixty-four bits that two sides share: the traits rings are generic over, and their kinds in shared memory.
//!
//! Model checkers cannot see mapped memory, so whatever has to be modelled is written against [`Load`] and [`Store`].

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::anchor::Anchor;
use crate::copy;
use crate::segment::{AccessError, Segment};
use crate::span::Bytes;

/// A word that can be read; the other side may change it at any moment.
pub trait Load {
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
}

/// A word that this side writes.
pub trait Store: Load {
    /// As [`AtomicU64::store`].
    fn store(&self, value: u64, order: Ordering);
}

impl Load for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }
}

impl Store for AtomicU64 {
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
}

impl<T: Load + ?Sized> Load for &T {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        (**self).load(order)
    }
}

impl<T: Store + ?Sized> Store for &T {
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        (**self).store(value, order);
    }
}

impl<T: Load + ?Sized> Load for Arc<T> {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        (**self).load(order)
    }
}

impl<T: Store + ?Sized> Store for Arc<T> {
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        (**self).store(value, order);
    }
}

#[cfg(loom)]
impl Load for loom::sync::atomic::AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }
}

#[cfg(loom)]
impl Store for loom::sync::atomic::AtomicU64 {
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
}

/// A word in memory that this process may write; keeps its segment mapped.
#[derive(Clone, Debug)]
pub struct Word(Anchor<AtomicU64>);

impl Word {
    /// The eight bytes at `offset` of a writable segment.
    pub fn new(segment: &Arc<Segment>, offset: u64) -> Result<Self, AccessError> {
        if !segment.is_writable() {
            return Err(AccessError::ReadOnly);
        }
        Anchor::one(segment, offset).map(Self)
    }

    /// The atomic itself.
    #[inline]
    pub fn atomic(&self) -> &AtomicU64 {
        &self.0
    }
}

impl Load for Word {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
}

impl Store for Word {
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

/// A word that a peer writes, usually mapped read-only; keeps its segment mapped.
#[derive(Clone, Debug)]
pub struct PeerWord(Anchor<AtomicU64>);

impl PeerWord {
    /// The eight bytes at `offset` of a segment.
    pub fn new(segment: &Arc<Segment>, offset: u64) -> Result<Self, AccessError> {
        Anchor::one(segment, offset).map(Self)
    }
}

impl Load for PeerWord {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
}

/// Words in a row that this process may write; keeps their segment mapped.
#[derive(Clone, Debug)]
pub struct Words(Anchor<[AtomicU64]>);

impl Words {
    /// `count` words from `offset` (a multiple of 8) of a writable segment.
    pub fn new(segment: &Arc<Segment>, offset: u64, count: usize) -> Result<Self, AccessError> {
        if !segment.is_writable() {
            return Err(AccessError::ReadOnly);
        }
        Anchor::many(segment, offset, count).map(Self)
    }

    /// The word with this index.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn at(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }

    /// Copies bytes into the words behind the one with this index, the last one in part, and returns that one. `None`, and nothing
    /// is copied, where they do not fit.
    #[inline(always)]
    #[must_use = "nothing was copied where this is none"]
    pub fn copy_behind(&self, index: usize, from: Bytes<'_>) -> Option<&AtomicU64> {
        let (word, to) = self.behind(index, from.len())?;
        // SAFETY: so many bytes lie there, in a segment that is writable and stays mapped as long as `self`.
        unsafe { from.copy_to_raw(to) };
        Some(word)
    }

    /// As [`Self::copy_behind`], of bytes at hand.
    #[inline(always)]
    #[must_use = "nothing was copied where this is none"]
    pub fn write_behind(&self, index: usize, from: &[u8]) -> Option<&AtomicU64> {
        let (word, to) = self.behind(index, from.len())?;
        // SAFETY: so many bytes lie there, in a segment that is writable and stays mapped as long as `self`.
        unsafe { copy::copy(to, from.as_ptr(), from.len()) };
        Some(word)
    }

    /// The word with this index, and where `len` bytes lie behind it.
    #[inline(always)]
    fn behind(&self, index: usize, len: usize) -> Option<(&AtomicU64, *mut u8)> {
        let (word, rest) = self.0.get(index..)?.split_first()?;
        (len <= size_of_val(rest))
            .then(|| (word, self.0.as_ptr().wrapping_add(index + 1).cast::<u8>().cast_mut()))
    }

    /// Words to be filled from the front: at most `count` from the one with this index on.
    #[inline(always)]
    pub fn room(&self, index: usize, count: usize) -> Room<'_> {
        let rest = self.0.get(index..).unwrap_or(&[]);
        Room(&rest[..count.min(rest.len())])
    }
}

/// Words in a row that this process may write, from the next one on that is to be filled.
#[derive(Debug)]
pub struct Room<'a>(&'a [AtomicU64]);

impl<'a> Room<'a> {
    /// Copies at most 64 bytes into the words behind the next one, the last of them in part, and goes on behind
    /// these; returns the one that was left out. `None`, and nothing is copied, where they are more, or do not fit.
    #[inline(always)]
    #[must_use = "nothing was copied where this is none"]
    pub fn put(&mut self, from: Bytes<'_>) -> Option<&'a AtomicU64> {
        if from.len() > copy::SMALL {
            return None;
        }
        let (filled, rest) = self.0.split_at_checked(1 + from.len().div_ceil(8))?;
        let (word, behind) = filled.split_first()?;
        // SAFETY: so many bytes lie there, in a segment that is writable and stays mapped as long as it is borrowed.
        unsafe { from.copy_small_to_raw(behind.as_ptr().cast::<u8>().cast_mut()) };
        self.0 = rest;
        Some(word)
    }

    /// Words that are left.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is left.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Words in a row that a peer writes, usually mapped read-only; keeps their segment mapped.
#[derive(Clone, Debug)]
pub struct PeerWords(Anchor<[AtomicU64]>);

impl PeerWords {
    /// `count` words from `offset` (a multiple of 8) of a segment.
    pub fn new(segment: &Arc<Segment>, offset: u64, count: usize) -> Result<Self, AccessError> {
        Anchor::many(segment, offset, count).map(Self)
    }

    /// Loads the word with this index.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn load(&self, index: usize, order: Ordering) -> u64 {
        self.0[index].load(order)
    }

    /// The word with this index, to be loaded again and again.
    #[inline]
    pub fn word(&self, index: usize) -> Option<PeerWordRef<'_>> {
        self.0.get(index).map(PeerWordRef)
    }

    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> &[AtomicU64] {
        &self.0
    }

    /// Copies the bytes of the words from this index on to `to`; `skip` of them come before. False, and nothing is copied, where
    /// there are not as many, or `to` is read-only.
    #[inline(always)]
    #[must_use = "nothing was copied where this is false"]
    pub fn copy_to(&self, index: usize, skip: usize, to: Bytes<'_>) -> bool {
        let there = self.0.len().checked_sub(index).and_then(|words| (words * 8).checked_sub(skip));
        let fits = to.is_writable() && there.is_some_and(|there| to.len() <= there);
        if fits {
            let from = self.0.as_ptr().wrapping_add(index).cast::<u8>().wrapping_add(skip);
            // SAFETY: so many bytes lie behind the word, in a segment that stays mapped as long as `self`.
            unsafe { to.copy_from_raw(from) };
        }
        fits
    }
}

/// One of the words that a peer writes, as long as these are held.
#[derive(Clone, Copy, Debug)]
pub struct PeerWordRef<'a>(&'a AtomicU64);

impl PeerWordRef<'_> {
    /// Has it brought near, as [`prefetch`](crate::prefetch()) does.
    #[inline]
    pub fn prefetch(&self) {
        crate::prefetch(self.0);
    }
}

impl Load for PeerWordRef<'_> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Span;

    /// Each put goes behind a word of its own, and none beyond what was asked for.
    #[test]
    fn room_is_filled_from_the_front() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let own = Words::new(&segment, 64, 6).unwrap();
        let span = Span::new(&segment, 1024, 64).unwrap();
        let bytes = |at, len| span.bytes(at, len).unwrap();
        segment.write_at(1024, b"spinning wire").unwrap();
        let mut room = own.room(1, 4);
        assert!(core::ptr::eq(room.put(bytes(0, 5)).unwrap(), own.at(1)));
        assert!(room.put(bytes(0, 9)).is_none(), "two words are left, and one is the header's");
        assert!(core::ptr::eq(room.put(bytes(5, 8)).unwrap(), own.at(3)));
        assert!(room.put(bytes(0, 0)).is_none());
        assert!(segment.eq_at(80, b"spinn\0\0\0").unwrap());
        assert!(segment.eq_at(96, b"ing wire").unwrap());
        assert!(own.room(5, 4).put(bytes(0, 1)).is_none(), "no more than there are");
        assert!(own.room(7, 1).put(bytes(0, 0)).is_none());
    }

    #[test]
    fn words_in_a_row_are_shared_and_bounds_checked() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let (own, peer) =
            (Words::new(&segment, 64, 4).unwrap(), PeerWords::new(&segment, 72, 3).unwrap());
        own.at(2).store(7, Ordering::Release);
        assert_eq!(peer.load(1, Ordering::Acquire), 7);
        assert_eq!(peer.word(1).unwrap().load(Ordering::Acquire), 7);
        assert!(peer.word(3).is_none());
        assert!(Words::new(&segment, 4072, 4).is_err());

        // Bytes 64 .. 96 and 72 .. 96 are those of the words.
        let span = Span::new(&segment, 1024, 64).unwrap();
        let bytes = |at, len| span.bytes(at, len).unwrap();
        segment.write_at(1024, b"spinning wire").unwrap();
        let word = own.copy_behind(0, bytes(0, 13)).unwrap();
        assert!(core::ptr::eq(word, own.at(0)));
        assert!(segment.eq_at(72, b"spinning wire").unwrap());
        assert!(own.copy_behind(1, bytes(0, 16)).is_some());
        assert!(own.copy_behind(3, bytes(0, 0)).is_some());
        assert!(own.copy_behind(1, bytes(0, 17)).is_none());
        assert!(own.copy_behind(4, bytes(0, 0)).is_none());
        assert!(own.write_behind(0, b"wire").is_some());
        assert!(segment.eq_at(72, b"wire").unwrap());
        assert!(own.write_behind(2, &[0; 8]).is_some() && own.write_behind(2, &[0; 9]).is_none());
        assert!(own.write_behind(4, &[]).is_none());
        assert!(own.copy_behind(1, bytes(0, 16)).is_some());
        assert!(peer.copy_to(1, 4, bytes(32, 9)));
        assert!(segment.eq_at(1024 + 32, b"ning wire").unwrap());
        assert!(peer.copy_to(2, 3, bytes(32, 5)) && peer.copy_to(2, 8, bytes(32, 0)));
        assert!(!peer.copy_to(2, 3, bytes(32, 6)) && !peer.copy_to(2, 9, bytes(32, 0)));
        assert!(!peer.copy_to(4, 0, bytes(32, 0)));
        assert!(PeerWords::new(&segment, 4, 1).is_err());
    }
}
