//! Sleeping on behalf of an lcore until its device, or a bell, has something.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::context::Context;
use crate::soft::Bell;

/// One descriptor for everything that can wake an lcore.
#[derive(Debug)]
pub(crate) struct Sleeper {
    epoll: OwnedFd,
}

impl Sleeper {
    /// Wakes at the device's frames, deadlines and peers, and at these bells.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub(crate) fn new(cx: &Context, bells: &[&Bell]) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut watch = |fd: BorrowedFd<'_>| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            Ok(())
        };
        bells.iter().try_for_each(|bell| watch(bell.fd()))?;
        cx.with(|core| core.watch(true, &mut watch))?;
        Ok(Self { epoll })
    }

    /// Readable when there may be something to do.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Sleeps until then, at most for `limit`.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub(crate) fn sleep(&self, limit: Duration) -> io::Result<()> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
