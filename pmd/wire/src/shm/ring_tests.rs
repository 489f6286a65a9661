//! The ring against a model, against garbage, and (under `--cfg loom`) against every interleaving.

use super::*;

/// An entry of these tests: a first word that is no padding and not zero, then words that repeat a number.
fn first_word(number: u64, size: u64) -> u64 {
    1 << 56 | number << 32 | size
}

fn write<M: WordsMut, C: Load>(
    writer: &mut Writer<M, C>,
    number: u64,
    size: u64,
) -> Result<u64, NoRoom> {
    let at = writer.reserve(size, 0)?;
    for word in 1..size / 8 {
        writer.put(at + word * 8, number);
    }
    Ok(writer.commit(at, first_word(number, size), size))
}

/// Takes one entry, checks that all of it is there, and returns its number and size.
fn read<M: Words, C: Store>(reader: &mut Reader<M, C>) -> Option<(u64, u64)> {
    let (at, word) = reader.next().expect("no garbage")?;
    let (number, size) = (word >> 32 & 0xff_ffff, word & 0xffff_ffff);
    assert_eq!(word, first_word(number, size), "a whole header");
    reader.check(at, size, size).expect("ends in the ring");
    for word in 1..size / 8 {
        assert_eq!(reader.word(at + word * 8), number, "the payload of {number} is visible");
    }
    reader.advance(size);
    Some((number, size))
}

#[cfg(not(loom))]
mod plain {
    use core::sync::atomic::AtomicU64;
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Debug)]
    struct Memory(Arc<[AtomicU64]>);

    impl Memory {
        fn new(bytes: usize) -> Self {
            Self((0..bytes / 8).map(|_| AtomicU64::new(0)).collect())
        }
    }

    impl Words for Memory {
        fn load(&self, at: u64, order: Ordering) -> u64 {
            self.0[usize::try_from(at).unwrap() / 8].load(order)
        }
    }

    impl WordsMut for Memory {
        fn store(&self, at: u64, value: u64, order: Ordering) {
            self.0[usize::try_from(at).unwrap() / 8].store(value, order);
        }
    }

    type Side = Arc<AtomicU64>;

    fn ring(bytes: usize) -> (Writer<Memory, Side>, Reader<Memory, Side>, Memory, Side) {
        let (words, consumed) = (Memory::new(bytes), Side::default());
        let writer = Writer::new(words.clone(), consumed.clone(), bytes as u64);
        let reader = Reader::new(words.clone(), consumed.clone(), bytes as u64);
        (writer, reader, words, consumed)
    }

    #[test]
    fn nothing_is_visible_before_it_is_published() {
        let (mut writer, mut reader, ..) = ring(256);
        write(&mut writer, 1, 24).unwrap();
        write(&mut writer, 2, 8).unwrap();
        assert_eq!(read(&mut reader), None);
        assert!(writer.publish());
        assert!(!writer.publish());
        assert_eq!(read(&mut reader), Some((1, 24)));
        assert_eq!(read(&mut reader), Some((2, 8)));
        assert_eq!(read(&mut reader), None);
        assert_eq!(writer.taken(), Ok(0), "the reader reports by burst");
        assert!(reader.report());
        assert!(!reader.report());
        assert_eq!(writer.taken(), Ok(32));
    }

    /// Pseudo-random sizes, batches and bursts over many laps of a small ring: all entries arrive, once, in order, whole.
    #[test]
    fn every_lap_delivers_everything_in_order() {
        for seed in 1..=40_u64 {
            let mut state = seed;
            let mut dice = move |sides: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % sides
            };
            let (mut writer, mut reader, ..) = ring(64 << dice(3));
            let (mut sent, mut received) = (0, 0);
            let mut sizes = std::collections::VecDeque::new();
            let largest = writer.capacity() / 2 / 8;
            while received < 400 {
                for _ in 0..dice(4) {
                    let size = (1 + dice(largest)) * 8;
                    match write(&mut writer, sent, size) {
                        Ok(_) => {
                            sizes.push_back(size);
                            sent += 1;
                        }
                        Err(e) => assert_eq!(e, NoRoom::Full),
                    }
                }
                writer.publish();
                for _ in 0..dice(4) {
                    if let Some((number, size)) = read(&mut reader) {
                        assert_eq!(number, received);
                        assert_eq!(Some(size), sizes.pop_front());
                        received += 1;
                    }
                }
                reader.report();
            }
        }
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let (mut writer, mut reader, ..) = ring(64);
        for number in 0..7 {
            write(&mut writer, number, 8).unwrap();
        }
        // Eight more would leave no room for the zero that ends the batch.
        assert_eq!(write(&mut writer, 7, 8), Err(NoRoom::Full));
        writer.publish();
        for number in 0..7 {
            assert_eq!(read(&mut reader), Some((number, 8)));
        }
        assert_eq!(write(&mut writer, 7, 8), Err(NoRoom::Full));
        reader.report();
        assert_eq!(write(&mut writer, 7, 32), Ok(96), "a padding of 8, and 32 at the start");
        writer.publish();
        assert_eq!(read(&mut reader), Some((7, 32)));
        assert_eq!(read(&mut reader), None);
    }

    #[test]
    fn what_is_kept_free_serves_others() {
        let (mut writer, mut reader, ..) = ring(256);
        let mut sent = 0;
        while writer.reserve(16, 64).is_ok() {
            write(&mut writer, sent, 16).unwrap();
            sent += 1;
        }
        assert_eq!(sent, (256 - 64 - 8) / 16);
        for _ in 0..4 {
            write(&mut writer, sent, 16).unwrap();
            sent += 1;
        }
        assert_eq!(write(&mut writer, sent, 16), Err(NoRoom::Full));
        writer.publish();
        for number in 0..sent {
            assert_eq!(read(&mut reader), Some((number, 16)));
        }
    }

    #[test]
    fn a_lying_reader_is_named() {
        let (mut writer, _, _, consumed) = ring(64);
        write(&mut writer, 0, 32).unwrap();
        consumed.store(40, Ordering::Relaxed);
        assert_eq!(writer.taken(), Err(Garbage::Consumed { claimed: 40, from: 0, to: 32 }));
        consumed.store(32, Ordering::Relaxed);
        assert_eq!(writer.taken(), Ok(32));
        consumed.store(24, Ordering::Relaxed);
        assert_eq!(writer.peek_taken(), Err(Garbage::Consumed { claimed: 24, from: 32, to: 32 }));
        assert_eq!(writer.reserve(32, 0), Ok(32));
        writer.commit(32, 1 << 56, 32);
        assert_eq!(
            writer.reserve(32, 0),
            Err(NoRoom::Broken(Garbage::Consumed { claimed: 24, from: 32, to: 64 })),
            "not Full: waiting would never end"
        );
    }

    #[test]
    fn a_lying_writer_is_named() {
        let (_, mut reader, words, _) = ring(64);
        for (word, garbage) in [
            (pad_word(0), Garbage::Pad(0)),
            (pad_word(64), Garbage::Pad(64)),
            (pad_word(u32::MAX), Garbage::Pad(u32::MAX)),
        ] {
            words.store(0, word, Ordering::Relaxed);
            assert_eq!(reader.next(), Err(garbage));
        }
        // A padding that fills the whole ring would send the reader round for ever.
        words.store(0, pad_word(56), Ordering::Relaxed);
        assert_eq!(reader.next(), Err(Garbage::Pad(56)));
        assert_eq!(reader.check(48, 24, 64), Err(Garbage::Size { size: 24, at: 48, ring: 64 }));
        assert_eq!(reader.check(0, 24, 16), Err(Garbage::Size { size: 24, at: 0, ring: 64 }));
        assert_eq!(reader.check(48, 16, 16), Ok(()));
    }

    #[test]
    fn two_threads_over_many_laps() {
        const ENTRIES: u64 = 20_000;
        let (mut writer, mut reader, ..) = ring(1024);
        let sender = std::thread::spawn(move || {
            let mut number = 0;
            while number < ENTRIES {
                for _ in 0..5 {
                    if number < ENTRIES
                        && write(&mut writer, number & 0xff_ffff, 8 + number % 7 * 8).is_ok()
                    {
                        number += 1;
                    }
                }
                if !writer.publish() {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < ENTRIES {
            match read(&mut reader) {
                Some((number, size)) => {
                    assert_eq!((number, size), (expected, 8 + expected % 7 * 8));
                    expected += 1;
                }
                None => std::thread::yield_now(),
            }
            if expected % 16 == 0 {
                reader.report();
            }
        }
        sender.join().unwrap();
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p pmd-wire --release --lib ring`
#[cfg(loom)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    /// Eight words, with a fault that a model can plant.
    #[derive(Clone)]
    struct Memory(Arc<[Place; 8]>, Fault);

    /// A word. What is read or written without an order of its own must be ordered by something else: loom reports a reader
    /// and a writer that are there at once.
    struct Place {
        word: AtomicU64,
        plain: UnsafeCell<()>,
    }

    impl Place {
        fn new() -> Self {
            Self { word: AtomicU64::new(0), plain: UnsafeCell::new(()) }
        }
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        RelaxedPublication,
        NoTerminator,
    }

    impl Words for Memory {
        fn load(&self, at: u64, order: Ordering) -> u64 {
            let Place { word, plain } = &self.0[at as usize / 8];
            if order == Ordering::Relaxed {
                plain.with(|_| ());
            }
            word.load(order)
        }
    }

    impl WordsMut for Memory {
        fn store(&self, at: u64, value: u64, order: Ordering) {
            let Place { word, plain } = &self.0[at as usize / 8];
            if order == Ordering::Relaxed {
                plain.with_mut(|_| ());
            }
            match self.1 {
                Fault::NoTerminator if value == 0 => {}
                Fault::RelaxedPublication => word.store(value, Ordering::Relaxed),
                _ => word.store(value, order),
            }
        }
    }

    /// The reader's index, as an Arc that the ring's traits know.
    struct Index(Arc<AtomicU64>);

    impl Load for Index {
        fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }
    }

    impl Store for Index {
        fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }
    }

    /// Two batches that wrap, with a padding, while the reader takes them: sizes 24, 24, 24 in a ring of 64.
    fn wraps(fault: Fault) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let words = Memory(Arc::new(std::array::from_fn(|_| Place::new())), fault);
            let consumed = Arc::new(AtomicU64::new(0));
            let mut writer = Writer::new(words.clone(), Index(consumed.clone()), 64);
            let sender = loom::thread::spawn(move || {
                let mut sent = 0;
                for number in 1..=3 {
                    while write(&mut writer, number, 24) == Err(NoRoom::Full) {
                        writer.publish();
                        loom::thread::yield_now();
                    }
                    sent += 1;
                    if number != 1 {
                        writer.publish();
                    }
                }
                sent
            });
            let mut reader = Reader::new(words, Index(consumed), 64);
            let mut expected = 1;
            while expected <= 3 {
                match read(&mut reader) {
                    Some((number, size)) => {
                        assert_eq!((number, size), (expected, 24));
                        expected += 1;
                    }
                    None => loom::thread::yield_now(),
                }
                reader.report();
            }
            assert!(reader.next().unwrap().is_none(), "nothing was left over");
            assert_eq!(sender.join().unwrap(), 3);
            assert!(reader.next().unwrap().is_none(), "nothing was left over");
        });
    }

    #[test]
    fn every_interleaving_delivers_whole_records() {
        wraps(Fault::None);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_relaxed_publication_is_found() {
        wraps(Fault::RelaxedPublication);
    }

    #[test]
    #[should_panic(expected = "nothing was left over")]
    fn a_missing_terminator_is_found() {
        wraps(Fault::NoTerminator);
    }
}
