//! What a loop of one lcore works with: its objects, its clock, and the control thread's signals.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use arrayvec::ArrayVec;
use pmd_lcore::Clock;
use pmd_observe::why::{End, FaultHits};
use pmd_verbs::roce::ids::Instant;
use pmd_verbs::{Completion, Device, WcStatus};

use super::ends::Ends;
use super::failure::Failure;
use super::inbox::NEWS_ID;
use super::limits::{EVENT_SLEEP, POLL_BATCH, SLOWEST_MIB, STALL};
use super::params::Params;
use super::pulse::Pulse;
use super::service::Flavour;

/// `rnr_retry` that waits without end.
const RNR_RETRY_FOREVER: u8 = 7;

/// What the control thread wants, in the order in which it wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(super) enum Signal {
    /// Wait for the other end.
    Wait = 0,
    /// Post.
    Go = 1,
    /// Post no more, and come to an end.
    Cut = 2,
    /// The other end is done: come to an end.
    Stop = 3,
    /// Leave at once.
    Abort = 4,
}

/// What control thread and lcores share: single words, read by one, written by the other.
#[derive(Debug, Default)]
pub(super) struct Shared {
    signal: AtomicU32,
    /// Messages that completed in the step that runs.
    pub(super) done: AtomicU64,
}

impl Shared {
    /// Wants this, or what it wanted already where that comes later; [`Signal::Wait`] begins anew.
    pub(super) fn set(&self, signal: Signal) {
        match signal {
            Signal::Wait => self.signal.store(signal as u32, Ordering::Release),
            later => {
                self.signal.fetch_max(later as u32, Ordering::AcqRel);
            }
        }
    }

    /// Whether it has come so far.
    #[inline]
    pub(super) fn is(&self, signal: Signal) -> bool {
        self.signal.load(Ordering::Acquire) >= signal as u32
    }
}

/// The time, in nanoseconds as the device counts them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticker {
    clock: Clock,
    base: u64,
}

impl Ticker {
    pub(super) fn new(clock: Clock, device: &Device) -> Self {
        Self { clock, base: clock.now().saturating_sub(device.now().0) }
    }

    #[inline]
    pub(super) fn now(&self) -> Instant {
        Instant(self.clock.now().saturating_sub(self.base))
    }
}

/// One lcore at work.
#[derive(Debug)]
pub(super) struct Desk<'a, T: Flavour> {
    pub(super) ends: &'a Ends<T>,
    pub(super) params: &'a Params,
    /// Which lcore of its end.
    pub(super) lcore: u32,
    pub(super) server: bool,
    pub(super) ticker: Ticker,
    pub(super) shared: Arc<Shared>,
    /// Other lcores want this CPU too.
    pub(super) cpu_shared: bool,
    /// What it tells of itself.
    pub(super) pulse: &'a Pulse,
    /// Bytes of a message in the step that runs.
    pub(super) size: Cell<u32>,
    /// How often each of this end's flips has changed a byte.
    pub(super) flipped: RefCell<Vec<u64>>,
}

/// An lcore that found nothing to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    armed: bool,
}

impl<T: Flavour> Desk<'_, T> {
    /// One turn of the device.
    #[inline]
    pub(super) fn turn(&self, now: Instant) -> usize {
        let work = self.ends.cx.progress(now);
        self.beat(now, 1, work);
        work
    }

    /// So many turns up to `now`, made without [`Desk::turn`], found work.
    #[inline]
    pub(super) fn beat(&self, now: Instant, turns: u64, work: usize) {
        let step = || (self.shared.done.load(Ordering::Relaxed), self.size.get());
        self.pulse.beat(now, turns, work, step);
    }

    /// What it knows of itself and of one of its queue pairs.
    pub(super) fn end(&self, wanted: Option<u32>) -> End {
        let now = self.ticker.now();
        self.beat(now, 0, 0);
        let gap = self.pulse.gap();
        let mut end = self.ends.evidence(wanted);
        let hits = self.flipped.borrow();
        let flips = self.params.flips.iter().zip(&*hits);
        let own = flips
            .filter(|(flip, _)| flip.side == self.side())
            .map(|(flip, hits)| FaultHits { rule: flip.to_string(), hits: *hits });
        end.faults.extend(own);
        End { gap_ns: Some(gap.ns), gap_age_ns: Some(now.0.saturating_sub(gap.ended)), ..end }
    }

    /// This end's side of patterns.
    pub(super) const fn side(&self) -> u8 {
        self.server as u8
    }

    /// Takes what has completed on the sending side; news apart, how many.
    ///
    /// # Errors
    /// A request that ended in error.
    pub(super) fn completions(&self) -> Result<u64, Failure> {
        let mut done = 0;
        loop {
            let mut batch = ArrayVec::<Completion, POLL_BATCH>::new();
            let count = self.ends.send_cq.poll_batch(&mut batch);
            for completion in &batch {
                if completion.status != WcStatus::Success {
                    return Err(Failure::of(completion));
                }
                done += u64::from(completion.wr_id.0 != NEWS_ID);
            }
            if count < POLL_BATCH {
                return Ok(done);
            }
        }
    }

    /// Whether a reliable connection on which nothing has moved for `still` never will again.
    pub(super) fn is_stalled(&self, still: Duration) -> bool {
        if still <= STALL {
            return false;
        }
        // A peer that says "not ready" is alive: what runs out is no timer.
        let waits = self.params.rnr_retry == RNR_RETRY_FOREVER
            && self.ends.counters().get("rnr_nak_retry_err").is_some_and(|count| count > 0);
        let own = self.params.budget().unwrap_or_default() + self.params.pause.unwrap_or_default();
        waits || still > STALL + own + SLOWEST_MIB * (self.params.largest() >> 20)
    }

    pub(super) fn is(&self, signal: Signal) -> bool {
        self.shared.is(signal)
    }

    /// After a turn without work.
    ///
    /// # Errors
    /// When the system cannot wait.
    #[inline]
    pub(super) fn rest(&self, rest: &mut Rest) -> Result<(), Failure> {
        if let Some(channel) = &self.ends.channel {
            if rest.armed {
                self.pulse.nap(EVENT_SLEEP);
                channel.borrow_mut().wait(EVENT_SLEEP).map_err(Failure::device)?;
            } else {
                // What came before the queues were armed does not fire: they are polled once more.
                self.ends.send_cq.arm(false);
                self.ends.recv_cq.arm(false);
            }
            rest.armed = !rest.armed;
        } else if self.cpu_shared {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_never_taken_back() {
        let shared = Shared::default();
        shared.set(Signal::Stop);
        shared.set(Signal::Cut);
        assert!(shared.is(Signal::Stop) && !shared.is(Signal::Abort));
        shared.set(Signal::Wait);
        assert!(!shared.is(Signal::Go));
    }
}
