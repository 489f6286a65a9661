//! What an lcore tells of itself while it works: how it spends its time, what it has done, and its queue pairs, to whoever
//! watches the measurement.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use pmd_graph::monitor::{Counts, Live, Seat, Surveyor, Teller};
use pmd_lcore::{Gap, Meter};
use pmd_verbs::Context;
use pmd_verbs::roce::ids::Instant;

use super::limits::TELL_EVERY;
use super::tally::Tally;

/// What an lcore needs for that, on the way to its thread.
#[derive(Debug)]
pub(super) struct Station {
    /// Its node's number, by which its queue pairs are known.
    pub(super) node: u32,
    pub(super) meter: Meter,
    pub(super) live: Arc<Live>,
    /// Where somebody watches.
    pub(super) seat: Option<Seat>,
}

impl Station {
    /// On the lcore's thread, for its part of the device.
    pub(super) fn begin(self, cx: &Context) -> Pulse {
        let Self { node: _, meter, live, seat } = self;
        let teller = seat.map(|seat| {
            cx.remember_ended();
            let cx = cx.clone();
            let tell: Surveyor = Box::new(move |survey, budget| cx.survey(survey, budget));
            seat.teller(vec![(0, tell)])
        });
        Pulse {
            meter: RefCell::new(meter),
            teller: RefCell::new(teller),
            live,
            counts: Cell::default(),
            due: Cell::new(0),
        }
    }
}

/// An lcore's pulse.
#[derive(Debug)]
pub(super) struct Pulse {
    meter: RefCell<Meter>,
    teller: RefCell<Option<Teller>>,
    live: Arc<Live>,
    /// Of the steps that are over.
    counts: Cell<Counts>,
    /// When others are told next, nanoseconds.
    due: Cell<u64>,
}

impl Pulse {
    /// So many loops up to `now` found `work`, in a step of which so many messages of `size` are `done`.
    #[inline]
    pub(super) fn beat(
        &self,
        now: Instant,
        polls: u64,
        work: usize,
        step: impl Fn() -> (u64, u32),
    ) {
        let mut meter = self.meter.borrow_mut();
        meter.look(now.0);
        meter.account(now.0, polls, work);
        if now.0 >= self.due.get() {
            drop(meter);
            self.tell(now, step());
        }
    }

    #[cold]
    fn tell(&self, now: Instant, (done, size): (u64, u32)) {
        self.due.set(now.after(TELL_EVERY).0);
        self.meter.borrow().show();
        let Counts { messages, bytes, .. } = self.counts.get();
        let bytes = bytes + done * u64::from(size);
        self.live.show(&Counts { messages: messages + done, bytes, ..self.counts.get() });
        if let Some(teller) = &mut *self.teller.borrow_mut() {
            teller.turn();
        }
    }

    /// A step of messages of `size` is over; or it broke.
    pub(super) fn over(&self, size: u32, tally: Option<&Tally>) {
        let mut counts = self.counts.get();
        match tally {
            Some(tally) => {
                let messages = tally.sent + tally.warmed + tally.received;
                counts.messages += messages;
                counts.bytes += messages * u64::from(size);
                counts.verified_bytes += tally.verified;
            }
            None => counts.errors += 1,
        }
        self.counts.set(counts);
        self.live.show(&counts);
        self.excuse();
    }

    /// It is about to sleep for at most so long.
    pub(super) fn nap(&self, at_most: Duration) {
        self.meter.borrow_mut().nap(u64::try_from(at_most.as_nanos()).unwrap_or(u64::MAX));
    }

    /// It did something else up to now, which is no gap.
    pub(super) fn excuse(&self) {
        self.meter.borrow_mut().excuse();
    }

    /// The longest time of late for which it did not poll.
    pub(super) fn gap(&self) -> Gap {
        self.meter.borrow().stats().recent_gap
    }
}

#[cfg(test)]
mod tests {
    use pmd_lcore::StatsReader;

    use super::*;

    const MS: u64 = 1_000_000;

    fn pulse() -> (Pulse, StatsReader) {
        let meter = Meter::new();
        let reader = meter.reader();
        let pulse = Pulse {
            meter: RefCell::new(meter),
            teller: RefCell::default(),
            live: Arc::default(),
            counts: Cell::default(),
            due: Cell::new(0),
        };
        (pulse, reader)
    }

    #[test]
    fn others_are_told_now_and_then_and_at_the_end_of_a_step() {
        let (pulse, reader) = pulse();
        let every = u64::try_from(TELL_EVERY.as_nanos()).unwrap();
        pulse.beat(Instant(0), 1, 1, || (3, 8));
        assert_eq!((reader.read().polls, pulse.live.read().0.bytes), (1, 24));
        pulse.beat(Instant(every - 1), 9, 0, || (5, 8));
        assert_eq!((reader.read().polls, pulse.live.read().0.messages), (1, 3), "not yet");
        pulse.beat(Instant(every), 1, 1, || (6, 8));
        let stats = reader.read();
        assert_eq!((stats.polls, stats.busy_ns, stats.idle_ns), (11, every - 1, 1));
        assert_eq!(pulse.live.read().0, Counts { messages: 6, bytes: 48, ..Counts::default() });
        let tally = Tally { sent: 7, warmed: 1, verified: 64, ..Tally::default() };
        pulse.over(8, Some(&tally));
        let over = Counts { messages: 8, bytes: 64, verified_bytes: 64, errors: 0 };
        assert_eq!(pulse.live.read().0, over);
        pulse.over(8, None);
        assert_eq!(pulse.live.read().0, Counts { errors: 1, ..over });
    }

    /// S3-10: a process that was stopped sees that it was, whatever its loop did; other work of its own is no standstill.
    #[test]
    fn who_was_stopped_has_a_gap() {
        let (pulse, _) = pulse();
        let beat = |ms: u64| pulse.beat(Instant(ms * MS), 1, 0, || (0, 0));
        beat(1);
        beat(2);
        beat(902);
        assert_eq!(pulse.gap(), Gap { ended: 902 * MS, ns: 900 * MS });
        pulse.excuse();
        beat(3000);
        pulse.nap(Duration::from_millis(10));
        beat(3010);
        assert_eq!(pulse.gap().ns, 900 * MS);
    }
}
