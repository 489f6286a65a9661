//! Bounded mailboxes: many senders, one receiver, no system call.
//!
//! For the control plane and for the odd frame that reached the wrong lcore. Looking into an empty mailbox costs its
//! owner one load. A sender that is interrupted half-way holds up only the messages behind its own; nobody waits for
//! it, the mailbox merely looks empty.
//!
//! The scheme is the bounded queue of D. Vyukov (1024cores.net): each slot carries a sequence number that says
//! whose turn it is, so that a slot belongs to one thread at a time. The slot's mutex is therefore never contended;
//! it stands where that queue has unchecked memory, and makes a mistake here a panic rather than a torn message.

use std::fmt;
use std::sync::{Arc, PoisonError};

#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// A message that could not be sent, handed back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError<T> {
    /// As many messages wait as fit. The receiver is slow or stuck: try later, or give up.
    #[error("the mailbox is full: its lcore does not keep up")]
    Full(T),
    /// The receiver is gone, and nobody will read this.
    #[error("the mailbox is closed: its lcore has ended")]
    Closed(T),
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

/// A mailbox for at least `capacity` messages (the next power of two, 2 or more). All its memory is allocated here.
pub fn mailbox<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let capacity = capacity.max(2).next_power_of_two();
    let slot = |index| Slot { turn: AtomicUsize::new(index), message: Mutex::new(None) };
    let queue = Arc::new(Queue {
        tail: Tail(AtomicUsize::new(0)),
        slots: (0..capacity).map(slot).collect(),
        mask: capacity - 1,
        closed: AtomicBool::new(false),
    });
    (Sender { queue: Arc::clone(&queue) }, Receiver { queue, head: 0 })
}

struct Queue<T> {
    tail: Tail,
    slots: Box<[Slot<T>]>,
    mask: usize,
    closed: AtomicBool,
}

/// The next position to claim. On a cache line of its own: senders write it while the receiver reads what is beside.
#[repr(align(128))]
struct Tail(AtomicUsize);

struct Slot<T> {
    /// For the message at position `p`: `p` when the slot is free for it, `p + 1` when it is there to be read.
    turn: AtomicUsize,
    message: Mutex<Option<T>>,
}

impl<T> Slot<T> {
    fn replace(&self, message: Option<T>) -> Option<T> {
        let mut content = self.message.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *content, message)
    }
}

/// Makes the position the caller's, or tells which one the tail has reached instead.
fn claim(tail: &AtomicUsize, position: usize) -> Result<usize, usize> {
    tail.compare_exchange(position, position.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed)
}

/// The sending half; clone it for each sender.
pub struct Sender<T> {
    queue: Arc<Queue<T>>,
}

impl<T> Sender<T> {
    /// Puts `message` in the mailbox. Never blocks.
    ///
    /// Messages of one sender arrive in order. A success does not promise that the message is read: the receiver may
    /// end before.
    ///
    /// # Errors
    /// [`SendError`], with the message.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.send_claiming(message, claim)
    }

    /// Sends, where `claim` is [`claim`], or a wrong one that the model must find.
    fn send_claiming(
        &self,
        message: T,
        claim: impl Fn(&AtomicUsize, usize) -> Result<usize, usize>,
    ) -> Result<(), SendError<T>> {
        let queue = &*self.queue;
        if queue.closed.load(Ordering::Relaxed) {
            return Err(SendError::Closed(message));
        }
        let mut position = queue.tail.0.load(Ordering::Relaxed);
        let slot = loop {
            let slot = &queue.slots[position & queue.mask];
            // Acquire: the receiver has emptied the slot.
            let ahead = slot.turn.load(Ordering::Acquire).wrapping_sub(position);
            match ahead.cast_signed() {
                0 => match claim(&queue.tail.0, position) {
                    Ok(_) => break slot,
                    Err(reached) => position = reached,
                },
                // The slot still holds the message of one round before.
                ..0 => return Err(SendError::Full(message)),
                // Another sender took this position, and the load above shows at least its claim.
                _ => position = queue.tail.0.load(Ordering::Relaxed),
            }
        };
        slot.replace(Some(message));
        // Release: who sees the turn sees the message.
        slot.turn.store(position.wrapping_add(1), Ordering::Release);
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue) }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.queue.slots.len()).finish_non_exhaustive()
    }
}

/// The receiving half: the lcore's own.
pub struct Receiver<T> {
    queue: Arc<Queue<T>>,
    head: usize,
}

impl<T> Receiver<T> {
    /// The next message. One load where there is none.
    #[inline]
    pub fn receive(&mut self) -> Option<T> {
        let slot = &self.queue.slots[self.head & self.queue.mask];
        // Acquire: the message is there when its turn is.
        if slot.turn.load(Ordering::Acquire) != self.head.wrapping_add(1) {
            return None;
        }
        let message = slot.replace(None);
        assert!(message.is_some(), "a slot whose turn has come holds a message");
        // Release: the slot is empty when it is free. Its next turn is one round later.
        slot.turn.store(self.head.wrapping_add(self.queue.slots.len()), Ordering::Release);
        self.head = self.head.wrapping_add(1);
        message
    }

    /// Hands every waiting message to `take`, at most as many as the mailbox holds, and tells how many there were.
    #[inline]
    pub fn drain(&mut self, mut take: impl FnMut(T)) -> usize {
        let mut taken = 0;
        while taken < self.queue.slots.len() {
            let Some(message) = self.receive() else { break };
            take(message);
            taken += 1;
        }
        taken
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.queue.closed.store(true, Ordering::Relaxed);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("capacity", &self.queue.slots.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;
    use std::thread;

    use super::*;

    #[test]
    fn messages_arrive_in_order_over_many_rounds() {
        let (sender, mut receiver) = mailbox(4);
        assert_eq!(receiver.receive(), None);
        for round in 0..1000 {
            for message in 0..3 {
                sender.send((round, message)).unwrap();
            }
            let mut seen = Vec::new();
            assert_eq!(receiver.drain(|message| seen.push(message)), 3);
            assert_eq!(seen, [(round, 0), (round, 1), (round, 2)]);
        }
    }

    #[test]
    fn a_full_mailbox_hands_the_message_back() {
        let (sender, mut receiver) = mailbox(3);
        (0..4).for_each(|n| sender.send(n).unwrap());
        assert!(sender.send(4) == Err(SendError::Full(4)));
        assert_eq!(receiver.receive(), Some(0));
        sender.send(4).unwrap();
        let mut seen = Vec::new();
        receiver.drain(|message| seen.push(message));
        assert_eq!(seen, [1, 2, 3, 4]);
    }

    #[test]
    fn positions_wrap_around() {
        let (sender, mut receiver) = mailbox(2);
        // One round before the counter overflows.
        let start = usize::MAX - 1;
        sender.queue.tail.0.store(start, Ordering::Relaxed);
        sender.queue.slots[0].turn.store(start, Ordering::Relaxed);
        sender.queue.slots[1].turn.store(start + 1, Ordering::Relaxed);
        receiver.head = start;
        for n in 0..6 {
            sender.send(n).unwrap();
            sender.send(n + 100).unwrap();
            assert!(sender.send(0) == Err(SendError::Full(0)));
            assert_eq!(
                (receiver.receive(), receiver.receive(), receiver.receive()),
                (Some(n), Some(n + 100), None)
            );
        }
    }

    #[test]
    fn a_mailbox_without_receiver_is_closed() {
        let (sender, receiver) = mailbox(2);
        sender.send(1).unwrap();
        drop(receiver);
        let error = sender.send(2).unwrap_err();
        assert_eq!(error.to_string(), "the mailbox is closed: its lcore has ended");
        assert!(error == SendError::Closed(2));
    }

    #[test]
    fn unread_messages_are_dropped_with_the_mailbox() {
        let token = Rc::new(());
        let (sender, mut receiver) = mailbox(4);
        (0..3).for_each(|_| sender.send(Rc::clone(&token)).unwrap());
        assert!(receiver.receive().is_some());
        assert_eq!(Rc::strong_count(&token), 3);
        drop((sender, receiver));
        assert_eq!(Rc::strong_count(&token), 1);
    }

    #[test]
    fn two_threads_lose_and_double_nothing() {
        const EACH: u32 = 20_000;
        let (sender, mut receiver) = mailbox(8);
        let senders = [0, 1].map(|name| {
            let sender = sender.clone();
            thread::spawn(move || {
                for n in 0..EACH {
                    while sender.send((name, n)).is_err() {
                        thread::yield_now();
                    }
                }
            })
        });
        let mut next = [0, 0];
        while next != [EACH, EACH] {
            let taken = receiver.drain(|(name, n): (usize, u32)| {
                assert_eq!(n, next[name], "in order for each sender");
                next[name] += 1;
            });
            if taken == 0 {
                thread::yield_now();
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert_eq!(receiver.receive(), None);
    }
}

/// Every interleaving of small cases: `RUSTFLAGS="--cfg loom" cargo test --release -p pmd-lcore --lib model`.
#[cfg(all(test, loom))]
mod model {
    use loom::thread;

    use super::*;

    type Claim = fn(&AtomicUsize, usize) -> Result<usize, usize>;

    /// Two senders may both see the position free, and the later message replaces the earlier one.
    fn planted(tail: &AtomicUsize, position: usize) -> Result<usize, usize> {
        tail.store(position.wrapping_add(1), Ordering::Relaxed);
        Ok(position)
    }

    fn two_senders(claim: Claim) {
        loom::model(move || {
            let (sender, mut receiver) = mailbox(2);
            let other = sender.clone();
            let other = thread::spawn(move || other.send_claiming(10, claim).is_ok());
            let mut expected = vec![20];
            sender.send_claiming(20, claim).unwrap();
            let mut seen: Vec<u32> = receiver.receive().into_iter().collect();
            if other.join().unwrap() {
                expected.push(10);
            }
            receiver.drain(|message| seen.push(message));
            seen.sort_unstable();
            expected.sort_unstable();
            assert_eq!(seen, expected, "what was sent arrives exactly once");
        });
    }

    #[test]
    fn two_senders_lose_and_double_nothing() {
        two_senders(claim);
    }

    #[test]
    #[should_panic(expected = "what was sent arrives exactly once")]
    fn a_planted_lost_update_is_found() {
        two_senders(planted);
    }

    /// Yields before it sends again, as senders do. loom needs that too: it looks back from an access to the last one
    /// only, so that a thread's load hides from its store what others did before.
    #[test]
    fn a_slot_is_used_again_only_when_it_is_empty() {
        loom::model(|| {
            let (sender, mut receiver) = mailbox(2);
            let receiving = thread::spawn(move || {
                let first = receiver.receive();
                (first, receiver)
            });
            let send = |&n: &u32| {
                let first_try = sender.send(n).is_ok();
                first_try || {
                    thread::yield_now();
                    sender.send(n).is_ok()
                }
            };
            let sent: Vec<u32> = (0..3).filter(send).collect();
            let (first, mut receiver) = receiving.join().unwrap();
            let mut seen: Vec<u32> = first.into_iter().collect();
            receiver.drain(|message| seen.push(message));
            assert_eq!(seen, sent, "in order, and nothing lost");
            assert!(sent.len() >= 2, "the mailbox holds two");
        });
    }

    #[test]
    fn sending_races_with_the_end_of_the_receiver() {
        loom::model(|| {
            let (sender, receiver) = mailbox(2);
            let ending = thread::spawn(move || drop(receiver));
            let first = sender.send(1);
            assert!(!matches!(first, Err(SendError::Full(_))));
            ending.join().unwrap();
            assert!(matches!(sender.send(2), Err(SendError::Closed(2))));
        });
    }
}
