//! Small records that one thread publishes and anyone reads whole: counters, QP states, statistics.
//!
//! A sequence number is odd while the words change; a reader that saw it odd, or changed, tries again. Every word is stored
//! with release and loaded with acquire order, which orders the number around them without fences: on x86 plain moves.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::anchor::Anchor;
use crate::limits::SNAPSHOT_TRIES;
use crate::segment::{AccessError, Segment};
use crate::word::{Load, Store};

/// Bytes of a snapshot of `words` words.
pub const fn bytes(words: usize) -> u64 {
    (words as u64 + 1) * 8
}

/// Publishes `values` in `words`. There is one writer at a time.
pub fn publish<W: Store>(sequence: &W, words: &[W], values: &[u64]) {
    let next = sequence.load(Ordering::Relaxed) | 1;
    sequence.store(next, Ordering::Relaxed);
    for (word, value) in words.iter().zip(values) {
        word.store(*value, Ordering::Release);
    }
    sequence.store(next.wrapping_add(1), Ordering::Release);
}

/// One try to copy `words` out whole; false when the writer was at it.
pub fn try_read<W: Load>(sequence: &W, words: &[W], values: &mut [u64]) -> bool {
    let before = sequence.load(Ordering::Acquire);
    for (value, word) in values.iter_mut().zip(words) {
        *value = word.load(Ordering::Acquire);
    }
    before.is_multiple_of(2) && sequence.load(Ordering::Relaxed) == before
}

/// The writing side of a record of `N` words in a segment.
#[derive(Debug)]
pub struct SnapshotWriter<const N: usize> {
    sequence: Anchor<AtomicU64>,
    words: Anchor<[AtomicU64]>,
}

impl<const N: usize> SnapshotWriter<N> {
    /// A record at `offset` (a multiple of 8), [`bytes`] long. There must be one writer.
    pub fn new(segment: &Arc<Segment>, offset: u64) -> Result<Self, AccessError> {
        if !segment.is_writable() {
            return Err(AccessError::ReadOnly);
        }
        let (sequence, words) = at(segment, offset, N)?;
        Ok(Self { sequence, words })
    }

    /// Publishes a record: `N` + 2 plain stores.
    #[inline]
    pub fn publish(&mut self, values: &[u64; N]) {
        publish::<AtomicU64>(&self.sequence, &self.words, values);
    }
}

/// The reading side.
#[derive(Clone, Debug)]
pub struct SnapshotReader<const N: usize> {
    sequence: Anchor<AtomicU64>,
    words: Anchor<[AtomicU64]>,
}

impl<const N: usize> SnapshotReader<N> {
    /// The record at `offset` of a segment that may be mapped read-only.
    pub fn new(segment: &Arc<Segment>, offset: u64) -> Result<Self, AccessError> {
        let (sequence, words) = at(segment, offset, N)?;
        Ok(Self { sequence, words })
    }

    /// The record last published, whole; None when the writer kept changing it, or died half-way, for
    /// [`SNAPSHOT_TRIES`] tries.
    pub fn read(&self) -> Option<[u64; N]> {
        let mut values = [0; N];
        for _ in 0..SNAPSHOT_TRIES {
            if try_read::<AtomicU64>(&self.sequence, &self.words, &mut values) {
                return Some(values);
            }
            core::hint::spin_loop();
        }
        None
    }
}

type Parts = (Anchor<AtomicU64>, Anchor<[AtomicU64]>);

fn at(segment: &Arc<Segment>, offset: u64, words: usize) -> Result<Parts, AccessError> {
    let sequence = Anchor::one(segment, offset)?;
    Ok((sequence, Anchor::many(segment, offset + 8, words)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_the_record_last_published() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let mut writer = SnapshotWriter::<3>::new(&segment, 128).unwrap();
        let reader = SnapshotReader::<3>::new(&segment, 128).unwrap();
        assert_eq!(reader.read(), Some([0, 0, 0]));
        writer.publish(&[1, 2, 3]);
        assert_eq!(reader.read(), Some([1, 2, 3]));
        writer.publish(&[4, 5, 6]);
        assert_eq!(reader.read(), Some([4, 5, 6]));
        assert!(segment.eq_at(128 + bytes(3), &[0; 8]).unwrap());
    }

    #[test]
    fn a_writer_that_died_half_way_is_noticed_and_replaced() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        segment.write_at(0, &7_u64.to_ne_bytes()).unwrap();
        let reader = SnapshotReader::<2>::new(&segment, 0).unwrap();
        assert_eq!(reader.read(), None);
        SnapshotWriter::<2>::new(&segment, 0).unwrap().publish(&[8, 9]);
        assert_eq!(reader.read(), Some([8, 9]));
    }

    #[test]
    fn records_are_bounds_checked() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        assert!(SnapshotReader::<2>::new(&segment, 4096 - 24).is_ok());
        assert!(SnapshotReader::<2>::new(&segment, 4096 - 16).is_err());
        assert!(SnapshotReader::<2>::new(&segment, u64::MAX - 7).is_err());
        assert!(SnapshotReader::<2>::new(&segment, 12).is_err());
    }

    /// Every word carries the same number; a torn record would mix two.
    #[test]
    fn records_are_never_torn() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let mut writer = SnapshotWriter::<8>::new(&segment, 0).unwrap();
        let reader = SnapshotReader::<8>::new(&segment, 0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 1..=20_000 {
                    writer.publish(&[n; 8]);
                }
            });
            let mut last = 0;
            while last < 20_000 {
                if let Some(record) = reader.read() {
                    assert!(record.iter().all(|n| *n == record[0]), "{record:?}");
                    assert!(record[0] >= last);
                    last = record[0];
                }
            }
        });
    }
}
