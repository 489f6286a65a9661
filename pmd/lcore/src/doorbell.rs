//! What ends a nap early.

use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::limits::DOORBELLS_MAX;

/// The file descriptors that one nap waits on. On the stack: a nap allocates nothing.
#[derive(Debug, Default)]
pub struct Doorbells<'a> {
    fds: ArrayVec<PollFd<'a>, DOORBELLS_MAX>,
    rung: bool,
}

impl<'a> Doorbells<'a> {
    /// Ends the nap when `fd` becomes readable. Beyond [`DOORBELLS_MAX`] descriptors it is not watched, and what it
    /// announces is found after the nap.
    pub fn watch(&mut self, fd: BorrowedFd<'a>) {
        if !self.fds.is_full() {
            self.fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
    }

    /// There is work already: no nap. For a device that finds it while it asks its peers to ring.
    pub const fn ring(&mut self) {
        self.rung = true;
    }

    /// Waits until a descriptor is readable or `span` is over (ppoll(2)). False: there was work already, and no wait.
    pub(crate) fn wait(mut self, span: Duration) -> bool {
        if self.rung {
            return false;
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(span.subsec_nanos()),
        };
        match poll(&mut self.fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            // Without memory or descriptors to wait with, the nap is still a nap.
            Err(_) => thread::sleep(span),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// Each would wait for a second, but for the doorbell: the test hangs visibly, and asserts no time.
    const LONG: Duration = Duration::from_millis(999);

    fn readable(fd: BorrowedFd<'_>) -> bool {
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default()))
            .unwrap()
            == 1
    }

    #[test]
    fn a_readable_descriptor_or_found_work_ends_the_nap() {
        let quiet = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let ringing = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let mut doorbells = Doorbells::default();
        doorbells.watch(quiet.as_fd());
        doorbells.watch(ringing.as_fd());
        assert!(doorbells.wait(LONG));
        assert!(readable(ringing.as_fd()), "waiting leaves the doorbell to its device");

        let mut doorbells = Doorbells::default();
        doorbells.watch(quiet.as_fd());
        doorbells.ring();
        assert!(!doorbells.wait(LONG));
    }

    #[test]
    fn silence_ends_with_the_span() {
        let quiet = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut doorbells = Doorbells::default();
        doorbells.watch(quiet.as_fd());
        assert!(doorbells.wait(Duration::from_micros(50)));
        assert!(Doorbells::default().wait(Duration::from_micros(50)));
    }

    #[test]
    fn more_descriptors_than_fit_are_left_out() {
        let quiet = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut doorbells = Doorbells::default();
        (0..DOORBELLS_MAX + 3).for_each(|_| doorbells.watch(quiet.as_fd()));
        assert_eq!(doorbells.fds.len(), DOORBELLS_MAX);
        assert!(doorbells.wait(Duration::from_micros(50)));
    }
}
