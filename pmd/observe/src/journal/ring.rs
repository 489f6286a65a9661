//! A fixed ring of records: one writer, which never waits, and readers that notice what they missed.
//!
//! Every slot has a stamp that is odd while the slot is written (a sequence lock, of atomics alone). Whoever reads looks
//! at the stamp before and after: a record that was overwritten meanwhile is lost to it, and counted.

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

/// Words of a record that make a cache line with its stamp. The model checker tries all orders of fewer.
const FRONT: usize = if cfg!(loom) { 1 } else { 7 };
/// Words behind them, which most records do not have.
const REST: usize = if cfg!(loom) { 1 } else { 24 };
/// Most words of a record.
pub const WORDS: usize = FRONT + REST;

/// A record as the ring keeps it; what its bytes mean is the writer's business.
pub type Words = [u64; WORDS];

#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    /// `2 n + 2` once record `n` is whole, `2 n + 1` while it is written.
    stamp: AtomicU64,
    front: [AtomicU64; FRONT],
}

/// Slots lie side by side, so that short records in a row are cache lines in a row: a writer finds the next one fetched.
/// Long ones have the rest of their words elsewhere.
#[derive(Debug)]
struct Ring {
    slots: Box<[Slot]>,
    rests: Box<[[AtomicU64; REST]]>,
    /// Records written ever.
    written: AtomicU64,
}

/// A ring with room for so many records, a power of two of them at least, all of its memory taken now.
///
/// # Panics
/// For a ring without room.
pub fn ring(records: usize) -> (Writer, Reader) {
    assert!(records > 0, "a ring keeps at least one record");
    let records = records.next_power_of_two();
    let slot = || Slot { stamp: AtomicU64::new(0), front: words() };
    let slots = (0..records).map(|_| slot()).collect();
    let rests = (0..records).map(|_| words()).collect();
    let ring = Arc::new(Ring { slots, rests, written: AtomicU64::new(0) });
    (Writer { ring: Arc::clone(&ring) }, Reader { ring, next: 0 })
}

fn words<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

/// The one that writes.
#[derive(Debug)]
pub struct Writer {
    ring: Arc<Ring>,
}

impl Writer {
    /// Writes a record over the oldest one. Costs as many stores as it has words, and never waits: seven words and their
    /// stamp are one cache line. Words that it does not have are what an older record left there.
    pub fn push(&mut self, record: &[u64]) {
        self.push_with(record, true);
    }

    /// The model has a writer without fence, and must fail.
    #[inline]
    fn push_with(&mut self, record: &[u64], fenced: bool) {
        let number = self.ring.written.load(Ordering::Relaxed);
        let at = self.ring.at(number);
        let slot = &self.ring.slots[at];
        slot.stamp.store(2 * number + 1, Ordering::Relaxed);
        // Nobody sees a new word under an old stamp.
        if fenced {
            fence(Ordering::Release);
        }
        for (to, from) in slot.front.iter().zip(record) {
            to.store(*from, Ordering::Relaxed);
        }
        if let Some(rest) = record.get(FRONT..) {
            for (to, from) in self.ring.rests[at].iter().zip(rest) {
                to.store(*from, Ordering::Relaxed);
            }
        }
        slot.stamp.store(2 * number + 2, Ordering::Release);
        self.ring.written.store(number + 1, Ordering::Release);
    }
}

/// One that reads, from the oldest record that is left.
#[derive(Clone, Debug)]
pub struct Reader {
    ring: Arc<Ring>,
    next: u64,
}

/// What a reader finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next record.
    Record(Box<Words>),
    /// So many were overwritten before they were read.
    Lost(u64),
}

impl Reader {
    /// What comes next; `None` once everything was read.
    pub fn read(&mut self) -> Option<Read> {
        self.read_with(true)
    }

    /// The model has a reader that does not look at the stamp again, and must fail.
    #[inline]
    fn read_with(&mut self, looks_again: bool) -> Option<Read> {
        let written = self.ring.written.load(Ordering::Acquire);
        if self.next == written {
            return None;
        }
        let oldest = written.saturating_sub(self.ring.slots.len() as u64);
        if self.next < oldest {
            return Some(self.skip(oldest));
        }
        let at = self.ring.at(self.next);
        let slot = &self.ring.slots[at];
        let stamp = 2 * self.next + 2;
        if slot.stamp.load(Ordering::Acquire) != stamp {
            return Some(self.skip(self.next + 1));
        }
        let mut words = Box::new([0; WORDS]);
        let (front, rest) = words.split_at_mut(FRONT);
        for (to, from) in front.iter_mut().zip(&slot.front) {
            *to = from.load(Ordering::Relaxed);
        }
        for (to, from) in rest.iter_mut().zip(&self.ring.rests[at]) {
            *to = from.load(Ordering::Relaxed);
        }
        // No word is from after this look at the stamp.
        fence(Ordering::Acquire);
        if looks_again && slot.stamp.load(Ordering::Relaxed) != stamp {
            return Some(self.skip(self.next + 1));
        }
        self.next += 1;
        Some(Read::Record(words))
    }

    /// Leaves out what is older than the last `records`.
    pub fn forward(&mut self, records: u64) {
        let written = self.ring.written.load(Ordering::Acquire);
        self.next = self.next.max(written.saturating_sub(records));
    }

    fn skip(&mut self, to: u64) -> Read {
        let lost = to - self.next;
        self.next = to;
        Read::Lost(lost)
    }
}

impl Ring {
    /// Where a record is, among a power of two of them.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than there are slots")]
    fn at(&self, number: u64) -> usize {
        (number & (self.slots.len() as u64 - 1)) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn all(reader: &mut Reader) -> Vec<Read> {
        std::iter::from_fn(|| reader.read()).collect()
    }

    fn record(number: u64) -> Read {
        Read::Record(Box::new([number; WORDS]))
    }

    #[test]
    fn what_fits_is_read_in_order_and_once() {
        let (mut writer, mut reader) = ring(4);
        assert_eq!(all(&mut reader), []);
        (1..=3).for_each(|n| writer.push(&[n; WORDS]));
        assert_eq!(all(&mut reader), [record(1), record(2), record(3)]);
        writer.push(&[4; WORDS]);
        assert_eq!(all(&mut reader), [record(4)]);
        assert_eq!(all(&mut reader), []);
    }

    #[test]
    fn the_oldest_are_lost_and_counted() {
        let (mut writer, reader) = ring(4);
        let mut late = reader.clone();
        (1..=11).for_each(|n| writer.push(&[n; WORDS]));
        let left = [Read::Lost(7), record(8), record(9), record(10), record(11)];
        assert_eq!(all(&mut late), left);
    }

    #[test]
    fn a_reader_may_want_only_the_last_ones() {
        let (mut writer, mut reader) = ring(4);
        (1..=3).for_each(|n| writer.push(&[n; WORDS]));
        reader.forward(2);
        assert_eq!(all(&mut reader), [record(2), record(3)]);
        reader.forward(2);
        assert_eq!(all(&mut reader), [], "nothing is read twice");
    }

    /// A record is whole or counted as lost, however fast it is overwritten.
    #[test]
    fn no_record_is_torn_between_two_threads() {
        // The model below tries every order; this is to see it done.
        const WHOLE: u64 = 500;
        let (mut writer, mut reader) = ring(2);
        let enough = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&enough);
        let writes = std::thread::spawn(move || {
            let mut number = 0;
            while !until.load(Ordering::Relaxed) {
                number += 1;
                writer.push(&[number; WORDS]);
            }
            number
        });
        let (mut seen, mut whole) = (0, 0);
        while whole < WHOLE {
            match reader.read() {
                None => std::hint::spin_loop(),
                Some(Read::Lost(lost)) => seen += lost,
                Some(Read::Record(words)) => {
                    (seen, whole) = (seen + 1, whole + 1);
                    assert_eq!(*words, [seen; WORDS], "whole, and lost ones are counted exactly");
                }
            }
        }
        enough.store(true, Ordering::Relaxed);
        let written = writes.join().expect("the writer does not panic");
        let left: u64 = all(&mut reader)
            .iter()
            .map(|read| if let Read::Lost(lost) = read { *lost } else { 1 })
            .sum();
        assert_eq!(seen + left, written);
    }
}

/// Every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p pmd-observe --release --lib model`.
#[cfg(all(test, loom))]
mod model {
    use super::*;

    /// A writer whose second record overwrites the first, and a reader of both.
    fn a_record_is_overwritten(fenced: bool, looks_again: bool) {
        loom::model(move || {
            let (mut writer, mut reader) = ring(1);
            let reads = loom::thread::spawn(move || {
                let mut seen = 0;
                for _ in 0..2 {
                    match reader.read_with(looks_again) {
                        None => {}
                        Some(Read::Lost(lost)) => seen += lost,
                        Some(Read::Record(words)) => {
                            seen += 1;
                            assert_eq!(*words, [seen; WORDS], "a record is torn");
                        }
                    }
                }
                (reader, seen)
            });
            (1..=2).for_each(|number| writer.push_with(&[number; WORDS], fenced));
            let (mut reader, mut seen) = reads.join().unwrap();
            while let Some(read) = reader.read_with(looks_again) {
                seen += if let Read::Lost(lost) = read { lost } else { 1 };
            }
            assert_eq!(seen, 2, "what was lost is counted");
        });
    }

    /// S2-12: the journal's ring: a record is whole, or counted as lost.
    #[test]
    fn s2_12_a_record_is_whole_or_counted_as_lost() {
        a_record_is_overwritten(true, true);
    }

    #[test]
    #[should_panic(expected = "a record is torn")]
    fn a_writer_without_fence_is_caught() {
        a_record_is_overwritten(false, true);
    }

    #[test]
    #[should_panic(expected = "a record is torn")]
    fn a_reader_that_does_not_look_again_is_caught() {
        a_record_is_overwritten(true, false);
    }
}
