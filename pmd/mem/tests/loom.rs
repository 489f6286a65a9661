//! Every interleaving of the structures that two threads share, explored by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p pmd-mem --test loom`.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::sync::atomic::Ordering;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use pmd_mem::{Cursor, Load, Store};

/// A ring of two slots; loom reports a slot that both sides touch at once.
struct Ring<W> {
    produced: Arc<W>,
    consumed: Arc<W>,
    slots: Arc<[UnsafeCell<u64>; 2]>,
}

/// Sends 1, 2, 3 in batches of up to two through a ring of two slots, so that slots are reused.
fn three_messages<W: Store + Send + Sync + 'static>(word: fn() -> W) {
    let ring = Ring {
        produced: Arc::new(word()),
        consumed: Arc::new(word()),
        slots: Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]),
    };
    let slots = ring.slots.clone();
    let mut producer = Cursor::producer(ring.produced.clone(), ring.consumed.clone(), 2);
    let mut consumer = Cursor::consumer(ring.consumed, ring.produced, 2);
    let sender = thread::spawn(move || {
        let mut next = 1;
        while next <= 3 {
            let free = producer.available(1).unwrap();
            let batch = free.min(4 - next);
            for ahead in 0..batch {
                let slot = usize::try_from(producer.slot(ahead)).unwrap();
                slots[slot].with_mut(|at| {
                    // SAFETY: loom checks that nobody else is at the slot.
                    unsafe { *at = next };
                });
                next += 1;
            }
            producer.advance(batch);
            producer.publish();
            if batch == 0 {
                thread::yield_now();
            }
        }
    });
    let mut expected = 1;
    while expected <= 3 {
        let filled = consumer.available(1).unwrap();
        for ahead in 0..filled {
            let slot = usize::try_from(consumer.slot(ahead)).unwrap();
            let got = ring.slots[slot].with(|at| {
                // SAFETY: as above.
                unsafe { *at }
            });
            assert_eq!(got, expected);
            expected += 1;
        }
        consumer.advance(filled);
        consumer.publish();
        if filled == 0 {
            thread::yield_now();
        }
    }
    sender.join().unwrap();
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

#[test]
fn cursor_hands_over_whole_slots_in_order() {
    model(|| three_messages(|| AtomicU64::new(0)));
}

/// A position whose stores lost their release order: what the cursor would be with a `Relaxed` publish.
struct Relaxed(AtomicU64);

impl Load for Relaxed {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
}

impl Store for Relaxed {
    fn store(&self, value: u64, _: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn swap(&self, value: u64, _: Ordering) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }
}

/// The model is able to fail: with a relaxed publish loom finds the two sides at one slot.
#[test]
#[should_panic(expected = "Causality violation")]
fn cursor_with_a_relaxed_publish_is_caught() {
    model(|| three_messages(|| Relaxed(AtomicU64::new(0))));
}
