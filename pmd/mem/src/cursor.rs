//! One side of a single-producer single-consumer ring.

use core::fmt;
use core::sync::atomic::Ordering;

use crate::word::{Load, Store};

/// The position of one side of a ring, with a cached copy of the other side's.
///
/// Positions count units (slots or bytes) for ever and are taken modulo the capacity only to index. A side works on its private
/// position and publishes it once per batch; it reads the other side's published position only when its cached copy does not
/// suffice. So both sides touch the shared lines once per batch. The positions may lie in shared memory (the own one writable,
/// the peer's mapped read-only) or on the heap; put them [`LINE_PAIR`](crate::limits::LINE_PAIR) bytes apart.
///
/// ```
/// use pmd_mem::Cursor;
/// use std::sync::atomic::AtomicU64;
/// let (produced, consumed) = (AtomicU64::new(0), AtomicU64::new(0));
/// let mut producer = Cursor::producer(&produced, &consumed, 8);
/// let mut consumer = Cursor::consumer(&consumed, &produced, 8);
/// assert_eq!(producer.available(3)?, 8);
/// // ... fill slots producer.slot(0) to producer.slot(2) ...
/// producer.advance(3);
/// producer.publish();
/// assert_eq!(consumer.available(1)?, 3);
/// # Ok::<(), pmd_mem::cursor::Corrupt>(())
/// ```
pub struct Cursor<M, P> {
    mine: M,
    peer: P,
    /// Where this side is, including what it has not published.
    position: u64,
    published: u64,
    /// The peer's position as last read.
    seen: u64,
    /// How far this side may run ahead of the peer: the capacity for a producer, 0 for a consumer.
    lead: u64,
    capacity: u64,
}

/// The other side published a position that cannot be: it is broken or hostile, and the ring is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer's ring position {peer:#x} is impossible with ours at {mine:#x} and {capacity} units between"
)]
pub struct Corrupt {
    /// Our position.
    pub mine: u64,
    /// The peer's.
    pub peer: u64,
    /// Units of the ring.
    pub capacity: u64,
}

impl<M: Store, P: Load> Cursor<M, P> {
    /// The producing side of an empty ring whose two positions are 0.
    ///
    /// # Panics
    /// When `capacity` is no power of two.
    pub fn producer(mine: M, peer: P, capacity: u64) -> Self {
        Self::new(mine, peer, capacity, capacity)
    }

    /// The consuming side of an empty ring whose two positions are 0.
    ///
    /// # Panics
    /// When `capacity` is no power of two.
    pub fn consumer(mine: M, peer: P, capacity: u64) -> Self {
        Self::new(mine, peer, capacity, 0)
    }

    fn new(mine: M, peer: P, capacity: u64, lead: u64) -> Self {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
        Self { mine, peer, position: 0, published: 0, seen: 0, lead, capacity }
    }

    /// Units that this side may use now: free ones for a producer, filled ones for a consumer. Looks at the peer's position only
    /// when fewer than `want` are known.
    #[inline]
    pub fn available(&mut self, want: u64) -> Result<u64, Corrupt> {
        let known = self.known();
        if known >= want { Ok(known) } else { self.refresh() }
    }

    fn refresh(&mut self) -> Result<u64, Corrupt> {
        // Acquire: the peer wrote (or read) the units before it published.
        let peer = self.peer.load(Ordering::Acquire);
        let available = self.lead.wrapping_add(peer).wrapping_sub(self.position);
        if available > self.capacity {
            return Err(Corrupt { mine: self.position, peer, capacity: self.capacity });
        }
        self.seen = peer;
        Ok(available)
    }

    #[inline]
    fn known(&self) -> u64 {
        self.lead.wrapping_add(self.seen).wrapping_sub(self.position)
    }

    /// Index of the unit `ahead` of the position, below the capacity.
    #[inline]
    pub fn slot(&self, ahead: u64) -> u64 {
        self.position.wrapping_add(ahead) & (self.capacity - 1)
    }

    /// Moves past `units` that were filled or used up; the peer does not see it before [`Self::publish`].
    ///
    /// # Panics
    /// When more than [`Self::available`] said.
    #[inline]
    pub fn advance(&mut self, units: u64) {
        assert!(units <= self.known(), "advanced {units} of {} units", self.known());
        self.position = self.position.wrapping_add(units);
    }

    /// Lets the peer see everything up to the position.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.position {
            self.published = self.position;
            // Release: the units were written (or read) before.
            self.mine.store(self.position, Ordering::Release);
        }
    }

    /// Units passed since the ring was made.
    #[inline]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Units of the ring.
    #[inline]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }
}

impl<M, P> fmt::Debug for Cursor<M, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("position", &self.position)
            .field("published", &self.published)
            .field("seen", &self.seen)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;

    type Side<'a> = Cursor<&'a AtomicU64, &'a AtomicU64>;

    fn ring<'a>(produced: &'a AtomicU64, consumed: &'a AtomicU64) -> [Side<'a>; 2] {
        [Cursor::producer(produced, consumed, 4), Cursor::consumer(consumed, produced, 4)]
    }

    #[test]
    fn a_batch_is_seen_when_it_is_published() {
        let (produced, consumed) = (AtomicU64::new(0), AtomicU64::new(0));
        let [mut producer, mut consumer] = ring(&produced, &consumed);
        assert_eq!(producer.available(1), Ok(4));
        producer.advance(3);
        assert_eq!(consumer.available(1), Ok(0));
        producer.publish();
        assert_eq!(consumer.available(1), Ok(3));
        assert_eq!(producer.available(2), Ok(1));
        consumer.advance(2);
        assert_eq!(producer.available(2), Ok(1));
        consumer.publish();
        assert_eq!(producer.available(2), Ok(3));
        assert_eq!((producer.slot(0), producer.slot(1), consumer.slot(0)), (3, 0, 2));
    }

    #[test]
    fn the_peer_is_only_read_when_needed() {
        let (produced, consumed) = (AtomicU64::new(0), AtomicU64::new(0));
        let [mut producer, _] = ring(&produced, &consumed);
        consumed.store(77, Ordering::Relaxed);
        assert_eq!(producer.available(4), Ok(4));
        producer.advance(4);
        assert_eq!(producer.available(1), Err(Corrupt { mine: 4, peer: 77, capacity: 4 }));
    }

    #[test]
    fn impossible_positions_are_contained() {
        for garbage in [5, u64::MAX, 1 << 63] {
            let (produced, consumed) = (AtomicU64::new(garbage), AtomicU64::new(garbage));
            let [mut producer, mut consumer] = ring(&produced, &consumed);
            assert_eq!(consumer.available(1), Err(Corrupt { mine: 0, peer: garbage, capacity: 4 }));
            producer.advance(0);
            assert_eq!(producer.available(5).is_err(), garbage != u64::MAX);
        }
    }

    #[test]
    fn positions_wrap_around() {
        let start = u64::MAX - 1;
        let (produced, consumed) = (AtomicU64::new(start), AtomicU64::new(start));
        let [mut producer, mut consumer] = ring(&produced, &consumed);
        (producer.position, producer.seen, producer.published) = (start, start, start);
        (consumer.position, consumer.seen, consumer.published) = (start, start, start);
        for _ in 0..3 {
            assert_eq!(producer.available(4), Ok(4));
            producer.advance(4);
            producer.publish();
            assert_eq!(consumer.available(4), Ok(4));
            consumer.advance(4);
            consumer.publish();
        }
        assert_eq!(produced.load(Ordering::Relaxed), start.wrapping_add(12));
    }

    #[test]
    #[should_panic(expected = "advanced 5 of 4 units")]
    fn advancing_too_far_is_a_bug() {
        let (produced, consumed) = (AtomicU64::new(0), AtomicU64::new(0));
        let [mut producer, _] = ring(&produced, &consumed);
        producer.advance(5);
    }
}
