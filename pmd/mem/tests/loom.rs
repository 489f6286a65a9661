//! Every interleaving of the structures that two threads share, explored by loom:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p pmd-mem loom`.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::sync::atomic::Ordering;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use pmd_mem::{Announce, Busy, Cursor, Fence, IndexStack, Load, Store, snapshot};

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
fn loom_cursor_hands_over_whole_slots_in_order() {
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
}

/// The model is able to fail: with a relaxed publish loom finds the two sides at one slot.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_cursor_with_a_relaxed_publish_is_caught() {
    model(|| three_messages(|| Relaxed(AtomicU64::new(0))));
}

/// One initiator that copies while it sees a key valid, one owner that revokes it and frees the memory.
fn revoke_against_copy(announce: Announce) {
    let key = Arc::new(AtomicU64::new(1));
    let line = Arc::new(AtomicU64::new(0));
    let memory = Arc::new(UnsafeCell::new(0));
    let mut busy = Busy::new(line.clone());
    let initiator = {
        let (key, memory) = (key.clone(), memory.clone());
        thread::spawn(move || {
            let inside = busy.enter(announce);
            if key.load(Ordering::Acquire) == 1 {
                memory.with_mut(|at| {
                    // SAFETY: loom checks that nobody else is at it.
                    unsafe { *at = 1 };
                });
            }
            drop(inside);
        })
    };
    key.store(0, Ordering::Release);
    Fence::without_membarrier().wait(&[line], |_| true, || false).unwrap();
    memory.with_mut(|at| {
        // SAFETY: as above.
        unsafe { *at = 2 };
    });
    initiator.join().unwrap();
}

#[test]
fn loom_a_revoked_key_is_final_after_the_fence() {
    model(|| revoke_against_copy(Announce::FullFence));
}

/// Plain stores need the owner's membarrier, which loom does not have: without it both sides can miss each other.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_plain_announcements_without_membarrier_are_caught() {
    model(|| revoke_against_copy(Announce::Plain));
}

/// Two records of two words each; a reader gets one of them whole or tries again.
fn snapshot_of_two_words<W: Store + Send + Sync + 'static>(word: fn() -> W) {
    let sequence = Arc::new(word());
    let words = Arc::new([word(), word()]);
    let writer = {
        let (sequence, words) = (sequence.clone(), words.clone());
        thread::spawn(move || {
            snapshot::publish(&*sequence, &words[..], &[1, 1]);
            snapshot::publish(&*sequence, &words[..], &[2, 2]);
        })
    };
    let mut record = [9, 9];
    if snapshot::try_read(&*sequence, &words[..], &mut record) {
        assert_eq!(record[0], record[1], "torn record");
    }
    writer.join().unwrap();
    assert!(snapshot::try_read(&*sequence, &words[..], &mut record));
    assert_eq!(record, [2, 2]);
}

#[test]
fn loom_snapshots_are_read_whole() {
    model(|| snapshot_of_two_words(|| AtomicU64::new(0)));
}

#[test]
#[should_panic(expected = "torn record")]
fn loom_snapshots_with_relaxed_words_are_caught() {
    model(|| snapshot_of_two_words(|| Relaxed(AtomicU64::new(0))));
}

/// Two threads pop two of three indices each, use them exclusively, and put them back.
#[test]
fn loom_an_index_has_one_holder() {
    model(|| {
        let stack = Arc::new(IndexStack::full(3));
        let cells: Arc<Vec<UnsafeCell<u32>>> =
            Arc::new((0..3).map(|_| UnsafeCell::new(0)).collect());
        let work = move |stack: &IndexStack, cells: &[UnsafeCell<u32>]| {
            for _ in 0..2 {
                let mut held = [0; 2];
                let count = stack.pop(&mut held);
                for &index in &held[..count] {
                    cells[index as usize].with_mut(|at| {
                        // SAFETY: loom checks that nobody else holds the index.
                        unsafe { *at += 1 };
                    });
                }
                stack.push(&held[..count]);
            }
        };
        let other = {
            let (stack, cells) = (stack.clone(), cells.clone());
            thread::spawn(move || work(&stack, &cells))
        };
        work(&stack, &cells);
        other.join().unwrap();
        let mut all = [0; 3];
        assert_eq!(stack.pop(&mut all), 3);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

/// One thread pops twice while another pops two and puts the first back: the top is the same again, what lies below is not.
#[test]
fn loom_a_head_that_came_back_is_not_mistaken() {
    model(|| {
        let stack = Arc::new(IndexStack::full(3));
        let pop = |stack: &IndexStack| {
            let mut one = [0];
            (stack.pop(&mut one) == 1).then_some(one[0])
        };
        let other = {
            let stack = stack.clone();
            thread::spawn(move || {
                let (first, second) = (pop(&stack), pop(&stack));
                if let Some(first) = first {
                    stack.push(&[first]);
                }
                second
            })
        };
        let mut held: Vec<u32> = [pop(&stack), pop(&stack)].into_iter().flatten().collect();
        held.extend(other.join().unwrap());
        let count = held.len();
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len(), count, "an index has two holders");
    });
}
