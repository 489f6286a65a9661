//! The admission word: the one thing of an account that other threads read.
//!
//! The owner writes it and keeps a copy, so that the owner never loads it. It holds an *incarnation*, which counts how
//! often the account was opened, and whether it takes work. A thread that wants to submit takes a [`Stamp`] of it and
//! sends it along with its message: work that was meant for an earlier incarnation is refused by the owner.
//!
//! Closing comes before failing what is in flight, so that whoever learns of a failure finds the gate closed.

use std::fmt;

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

const CLOSED: u64 = 0;
const DEGRADED: u64 = 1;
const OPEN: u64 = 2;
const STATE: u64 = 3;

/// Why the gate gives no stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// A submission was posted in part; the account takes work again once that part has settled.
    #[error("the endpoint is degraded until what was posted in part has settled: try again later")]
    Degraded,
    /// The connection failed or was closed.
    #[error("the endpoint is closed and takes no work until it is opened again")]
    Closed,
}

/// That the gate was open, in which incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(u64);

/// The owner's half.
pub(crate) struct Gate {
    word: Arc<AtomicU64>,
    now: u64,
}

impl Gate {
    /// Open, in the first incarnation.
    pub(crate) fn new() -> Self {
        Self { word: Arc::new(AtomicU64::new(OPEN)), now: OPEN }
    }

    pub(crate) fn admission(&self) -> Admission {
        Admission { word: Arc::clone(&self.word) }
    }

    pub(crate) const fn incarnation(&self) -> u64 {
        self.now >> 2
    }

    pub(crate) const fn is_current(&self, stamp: Stamp) -> bool {
        stamp.0 == self.incarnation()
    }

    pub(crate) fn close(&mut self) {
        self.set(self.now & !STATE | CLOSED, Ordering::Release);
    }

    pub(crate) fn degrade(&mut self) {
        self.set(self.now & !STATE | DEGRADED, Ordering::Release);
    }

    /// Ends a degradation; a new stamp is not needed.
    pub(crate) fn restore(&mut self) {
        self.set(self.now & !STATE | OPEN, Ordering::Release);
    }

    /// Opens the next incarnation: stamps of earlier ones are void.
    pub(crate) fn reopen(&mut self) {
        self.reopen_with(Ordering::Release);
    }

    /// Release: who sees the gate open sees what was prepared before. The model hands in weaker orders, and must fail.
    fn reopen_with(&mut self, order: Ordering) {
        self.set((self.incarnation() + 1) << 2 | OPEN, order);
    }

    fn set(&mut self, word: u64, order: Ordering) {
        self.now = word;
        self.word.store(word, order);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("incarnation", &self.incarnation())
            .field("open", &(self.now & STATE == OPEN))
            .finish()
    }
}

/// Any other thread's view of an account.
#[derive(Clone)]
pub struct Admission {
    word: Arc<AtomicU64>,
}

impl Admission {
    /// A stamp for a submission, if the account takes work. One load.
    ///
    /// # Errors
    /// [`Refused`]: nothing needs to be sent to the owner.
    #[inline]
    pub fn stamp(&self) -> Result<Stamp, Refused> {
        // Acquire: what the owner did before it opened or closed is seen.
        let word = self.word.load(Ordering::Acquire);
        match word & STATE {
            OPEN => Ok(Stamp(word >> 2)),
            DEGRADED => Err(Refused::Degraded),
            _ => Err(Refused::Closed),
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Admission").field(&self.stamp()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn states_of_the_gate() {
        let mut gate = Gate::new();
        let admission = gate.admission();
        let first = admission.stamp().unwrap();
        assert!(gate.is_current(first));
        gate.degrade();
        assert_eq!(admission.stamp(), Err(Refused::Degraded));
        gate.restore();
        assert_eq!(admission.stamp(), Ok(first));
        gate.close();
        assert_eq!(admission.stamp(), Err(Refused::Closed));
        gate.reopen();
        let second = admission.stamp().unwrap();
        assert!(gate.is_current(second) && !gate.is_current(first));
    }
}

/// Every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p pmd-ledger --release --lib model`.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Mutex;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// An owner that fails its work, and a submitter that hears of it and tries again. `close_first` as it must be.
    fn who_hears_of_a_failure(close_first: bool) {
        loom::model(move || {
            let mut gate = Gate::new();
            let admission = gate.admission();
            let failed = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&failed);
            let submitter = thread::spawn(move || {
                if told.load(Ordering::Acquire) {
                    assert_eq!(admission.stamp(), Err(Refused::Closed), "the gate is still open");
                }
            });
            if close_first {
                gate.close();
            }
            failed.store(true, Ordering::Release);
            if !close_first {
                gate.close();
            }
            submitter.join().unwrap();
        });
    }

    /// S3-20: admission is closed before what is in flight fails.
    #[test]
    fn s3_20_who_hears_of_a_failure_finds_the_gate_closed() {
        who_hears_of_a_failure(true);
    }

    #[test]
    #[should_panic(expected = "the gate is still open")]
    fn failing_before_closing_is_caught() {
        who_hears_of_a_failure(false);
    }

    /// An owner that prepares a new connection and opens the gate, and a submitter that uses what was prepared.
    fn who_sees_it_open(order: Ordering) {
        loom::model(move || {
            let mut gate = Gate::new();
            let first = gate.admission().stamp().unwrap();
            gate.close();
            let admission = gate.admission();
            let prepared = Arc::new(AtomicU64::new(0));
            let used = Arc::clone(&prepared);
            let submitter = thread::spawn(move || {
                if let Ok(stamp) = admission.stamp() {
                    assert_ne!(stamp, first);
                    let seen = used.load(Ordering::Relaxed);
                    assert_eq!(seen, 7, "what was prepared is not seen");
                }
            });
            prepared.store(7, Ordering::Relaxed);
            gate.reopen_with(order);
            submitter.join().unwrap();
        });
    }

    #[test]
    fn who_sees_it_open_sees_what_was_prepared() {
        who_sees_it_open(Ordering::Release);
    }

    #[test]
    #[should_panic(expected = "what was prepared is not seen")]
    fn opening_with_a_relaxed_store_is_caught() {
        who_sees_it_open(Ordering::Relaxed);
    }

    /// A submitter that passed the gate, whose message arrives after the connection has failed and come back.
    fn a_message_that_arrives_late(checks_stamp: bool) {
        loom::model(move || {
            let mut gate = Gate::new();
            let admission = gate.admission();
            let mailbox = Arc::new(Mutex::new(None));
            let post = Arc::clone(&mailbox);
            let submitter = thread::spawn(move || {
                let stamp = admission.stamp();
                if let Ok(stamp) = stamp {
                    *post.lock().unwrap() = Some((stamp, stamp.0));
                }
            });
            gate.close();
            gate.reopen();
            let message = mailbox.lock().unwrap().take();
            if let Some((stamp, meant_for)) = message
                && (!checks_stamp || gate.is_current(stamp))
            {
                assert_eq!(meant_for, gate.incarnation(), "work of the old connection");
            }
            submitter.join().unwrap();
        });
    }

    /// S3-32: who passed the gate before the event is refused behind it.
    #[test]
    fn s3_32_a_message_of_an_earlier_incarnation_is_refused() {
        a_message_that_arrives_late(true);
    }

    #[test]
    #[should_panic(expected = "work of the old connection")]
    fn an_owner_that_does_not_look_at_the_stamp_is_caught() {
        a_message_that_arrives_late(false);
    }
}
