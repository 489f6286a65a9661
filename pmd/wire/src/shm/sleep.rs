//! Sleeping instead of polling, without missing anything.

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd};

use pmd_mem::Store;

use super::links::Links;

impl Links {
    /// Readable while there may be news for this lcore; to be waited for after [`sleep`](Self::sleep) said true.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.mailbox(self.lcore).bell().as_fd()
    }

    /// Says that this lcore will wait on its [`bell`](Self::bell): whoever publishes a record for it, takes one of its own, or
    /// changes its links, rings from now on. False: there is news already, do not wait.
    ///
    /// Costs some microseconds, so that publishing to an lcore that is awake costs nothing. Timers are the caller's business, and
    /// so is what a peer writes directly or shows in its page: nobody rings for those.
    #[must_use = "after false there is work to do"]
    pub fn sleep(&mut self) -> bool {
        // Also ends the critical section: a sleeper must not keep others from deregistering.
        self.publish();
        self.asleep.store(1, Ordering::Release);
        // Either a peer's next look finds this lcore asleep, or the following looks find what it did before.
        let is_certain = self.busy.barrier();
        let has_news = !is_certain
            || self.shared.mailbox(self.lcore).is_pending()
            || self.active().iter().any(|id| self.has_news(*id));
        if has_news {
            self.wake();
        }
        !has_news
    }

    fn has_news(&self, id: u32) -> bool {
        let Some(link) = self.link(id) else { return false };
        let moved = match link.out.writer.peek_taken() {
            Ok(taken) => taken != link.out.judged,
            Err(_) => true,
        };
        moved || link.inbound.as_ref().is_some_and(|inbound| inbound.reader.has_next())
    }

    /// Ends [`sleep`](Self::sleep): to be called before the lcore works again.
    pub fn wake(&mut self) {
        self.asleep.store(0, Ordering::Release);
        self.shared.mailbox(self.lcore).silence();
    }
}
