//! What wakes whoever sleeps on an lcore's device: a timer for the device's own deadlines, and a
//! bell that armed completion queues ring.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use pmd_roce::ids::Instant;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A descriptor that is readable from a deadline on.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: OwnedFd,
    due: Option<Instant>,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, due: None })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Wakes at `wanted`, or earlier where it was going to anyway: waking once for nothing costs
    /// less than a call each time that a deadline moves on.
    pub(crate) fn set(&mut self, now: Instant, wanted: Option<Instant>) {
        let expired = self.due.is_some_and(|due| due <= now);
        let early_enough = match (self.due, wanted) {
            (_, None) => true,
            (Some(due), Some(wanted)) => due <= wanted,
            (None, Some(_)) => false,
        };
        if !expired && early_enough {
            return;
        }
        // Setting a timer takes back that it ran out. Zero would disarm it.
        let span = wanted.map(|wanted| wanted.since(now).max(Duration::from_nanos(1)));
        let it_value = Timespec::try_from(span.unwrap_or_default()).unwrap_or(NEVER);
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let set = timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval, it_value },
        );
        debug_assert!(set.is_ok(), "a timer takes every span that is not negative");
        self.due = wanted;
    }
}

/// Longer than any program runs.
const NEVER: Timespec = Timespec { tv_sec: 1 << 32, tv_nsec: 0 };

/// A descriptor that is readable once it was rung, until it is silenced.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: OwnedFd,
    rung: Cell<bool>,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self { fd: eventfd(0, flags)?, rung: Cell::new(false) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn ring(&self) {
        if !self.rung.replace(true) {
            let written = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
            debug_assert_eq!(written, Ok(8), "a silent bell counts to 1");
        }
    }

    pub(crate) fn silence(&self) {
        if self.rung.replace(false) {
            let read = rustix::io::read(&self.fd, &mut [0; 8]);
            debug_assert!(matches!(read, Ok(8) | Err(Errno::AGAIN)), "{read:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn readable(fd: BorrowedFd<'_>) -> bool {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn a_bell_is_heard_until_it_is_silenced() {
        let bell = Bell::new().unwrap();
        assert!(!readable(bell.fd()));
        bell.ring();
        bell.ring();
        assert!(readable(bell.fd()));
        bell.silence();
        assert!(!readable(bell.fd()));
        bell.silence();
        bell.ring();
        assert!(readable(bell.fd()));
    }

    /// A timer is readable from its deadline on; setting it anew takes that back.
    #[test]
    fn an_alarm_keeps_the_earliest_deadline() {
        let mut alarm = Alarm::new().unwrap();
        let (now, far) = (Instant(1_000), Some(Instant(1_000_000_000_000)));
        alarm.set(now, None);
        assert_eq!(alarm.due, None);
        alarm.set(now, far);
        assert_eq!(alarm.due, far);
        alarm.set(now, Some(Instant(500)));
        while !readable(alarm.fd()) {
            std::thread::yield_now();
        }
        alarm.set(Instant(2_000), far);
        assert!(!readable(alarm.fd()) && alarm.due == far);
        alarm.set(Instant(2_000), Some(Instant(2_000_000_000_000)));
        assert_eq!(alarm.due, far, "an earlier deadline stays");
        alarm.set(Instant(2_000), None);
        assert_eq!(alarm.due, far);
        alarm.set(Instant(1_000_000_000_001), None);
        assert_eq!(alarm.due, None, "one that has passed does not");
    }
}
