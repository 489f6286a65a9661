//! Sixty-four bits that two sides share: the traits rings are generic over, and their kinds in shared memory.
//!
//! Model checkers cannot see mapped memory, so whatever has to be modelled is written against [`Load`] and [`Store`].

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::anchor::Anchor;
use crate::segment::{AccessError, Segment};

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

    /// Asks for the cache line of the word with this index, to write it soon. Where there is no such word, or no such
    /// instruction, nothing happens.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        if let Some(word) = self.0.get(index) {
            line::prefetch(word);
        }
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
}

mod line {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    use core::arch::asm;
    use core::sync::atomic::AtomicU64;

    /// Has the cache own the line of a word.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn prefetch(word: &AtomicU64) {
        // SAFETY: a hint that reads and writes nothing. Processors that do not know it do nothing.
        unsafe {
            asm!("prefetchw [{}]", in(reg) word.as_ptr(), options(nostack, preserves_flags, readonly));
        };
    }

    #[cfg(target_arch = "aarch64")]
    #[inline]
    pub(super) fn prefetch(word: &AtomicU64) {
        // SAFETY: a hint that reads and writes nothing.
        unsafe {
            asm!("prfm pstl1keep, [{}]", in(reg) word.as_ptr(), options(nostack, preserves_flags, readonly));
        };
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    #[inline]
    pub(super) const fn prefetch(_word: &AtomicU64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_a_row_are_shared_and_bounds_checked() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let (own, peer) =
            (Words::new(&segment, 64, 4).unwrap(), PeerWords::new(&segment, 72, 3).unwrap());
        own.at(2).store(7, Ordering::Release);
        assert_eq!(peer.load(1, Ordering::Acquire), 7);
        assert!(Words::new(&segment, 4072, 4).is_err());
        assert!(PeerWords::new(&segment, 4, 1).is_err());
    }
}
