//! What ends the nap of a poll loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use crate::context::Context;
use crate::provider::Provider;

/// A descriptor that becomes readable when something arrives for an lcore that naps.
///
/// For loops that poll ([`Context::drive`]) and nap when they find nothing. It does not know about timers
/// ([`Context::next_timeout`] does), nor about what peers write directly, nor about frames that another lcore hands over:
/// a nap stays short.
#[derive(Debug)]
pub struct Doorbell {
    cx: Context,
    epoll: OwnedFd,
}

impl Context {
    /// Creates this lcore's doorbell.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn create_doorbell(&self) -> io::Result<Doorbell> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        self.with(|core| {
            core.watch(false, &mut |fd| {
                epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
                Ok(())
            })
        })?;
        Ok(Doorbell { cx: self.clone(), epoll })
    }
}

impl Doorbell {
    /// Asks peers of this host to ring from now on, until the next turn of the device. False: something has arrived
    /// already, do not nap.
    #[must_use = "after false there is work to do"]
    pub fn arm(&self) -> bool {
        self.cx.with(Provider::sleep)
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
