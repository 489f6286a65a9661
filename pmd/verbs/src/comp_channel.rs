//! Completion channels: sleeping until a completion queue has something, as
//! `ibv_create_comp_channel(3)` and `ibv_get_cq_event(3)`.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! # let device = pmd_verbs::Device::open(&pmd_verbs::DeviceConfig::default())?;
//! let cx = device.context(0)?;
//! let mut channel = cx.create_channel()?;
//! let cq = channel.create_cq(64)?;
//! loop {
//!     cq.arm(false);
//!     // What came before the queue was armed does not fire.
//!     if cq.poll(64, |completion| println!("{completion:?}")) == 0 {
//!         channel.wait(Duration::from_secs(1))?;
//!     }
//! }
//! # }
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::cq::{Cq, CreateCqError, WeakCq};
use crate::provider::Provider;
use crate::sleeper::Sleeper;
use crate::soft::Bell;

/// Turns of the device that one look takes at most, however much there is to do.
const TURNS: usize = 16;

/// Tells of completion queues that fired. It belongs to one lcore, and sleeps on its behalf: for
/// programs without a poll loop.
#[derive(Debug)]
pub struct CompletionChannel {
    cx: Context,
    sleeper: Sleeper,
    bell: Rc<Bell>,
    cqs: Vec<WeakCq>,
    /// Whose turn it is, so that no queue keeps the others waiting.
    next: usize,
}

impl Context {
    /// Creates a channel, as `ibv_create_comp_channel(3)`.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn create_channel(&self) -> io::Result<CompletionChannel> {
        let bell = Rc::new(Bell::new()?);
        let sleeper = Sleeper::new(self, &[&bell])?;
        Ok(CompletionChannel { cx: self.clone(), sleeper, bell, cqs: Vec::new(), next: 0 })
    }
}

impl CompletionChannel {
    /// Creates a completion queue whose events this channel tells.
    ///
    /// # Errors
    /// [`CreateCqError`].
    pub fn create_cq(&mut self, depth: u32) -> Result<Cq, CreateCqError> {
        let cq = self.cx.create_cq(depth)?;
        self.cx.with(|core| core.attach_bell(cq.id(), &self.bell));
        self.cqs.retain(WeakCq::is_alive);
        self.cqs.push(cq.downgrade());
        Ok(cq)
    }

    /// Readable when there may be something to do: for event loops that wait for other things, too.
    /// Then, and before every sleep, call [`CompletionChannel::poll`] until it returns `None`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.sleeper.fd()
    }

    /// Drives the device, and returns a completion queue that fired since it was armed. Each arming
    /// gives one event. After `None`, peers of this host ring when they have something.
    pub fn poll(&mut self) -> Option<Cq> {
        for _ in 0..TURNS {
            let work = self.cx.nudge();
            let fired = self.take();
            if fired.is_some() {
                return fired;
            }
            // Where a loop drives the device, its own naps say so.
            if work == 0 && (self.cx.is_driven() || self.listens()) {
                return None;
            }
        }
        // More to do than one look takes: the descriptor says so at once.
        let now = self.cx.device().now();
        self.cx.with(|core| core.wake(now));
        None
    }

    /// As [`CompletionChannel::poll`], sleeping until a queue fires, at most for `limit`.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(&mut self, limit: Duration) -> io::Result<Option<Cq>> {
        let deadline = Instant::now() + limit;
        loop {
            let work = self.cx.progress(self.cx.device().now());
            let fired = self.take();
            let left = deadline.saturating_duration_since(Instant::now());
            if fired.is_some() || left.is_zero() {
                return Ok(fired);
            }
            if work == 0 && self.listens() {
                self.sleeper.sleep(left)?;
            }
        }
    }

    /// Has peers of this host ring from now on, until the next turn. False: something has come already.
    fn listens(&self) -> bool {
        self.cx.with(Provider::sleep)
    }

    /// The next queue that fired, and silence when none is left.
    fn take(&mut self) -> Option<Cq> {
        for step in 0..self.cqs.len() {
            let at = (self.next + step) % self.cqs.len();
            let Some(cq) = self.cqs[at].upgrade() else { continue };
            if self.cx.with(|core| core.take_fired(cq.id())) {
                self.next = at + 1;
                return Some(cq);
            }
        }
        self.bell.silence();
        None
    }
}
