//! The loop.

use std::fmt;
use std::hint;
use std::thread;
use std::time::Duration;

use crate::clock::Clock;
use crate::doorbell::Doorbells;
use crate::idle::{Pacer, Rest};
use crate::limits::{FAILURE_DRAIN, LINGER, NAP_NS_MAX, NAP_NS_MIN, PAUSES};
use crate::mailbox::Receiver;
use crate::stats::{Meter, StatsReader};

/// A device that an lcore polls: everything that must happen for it besides what nodes ask for.
///
/// Called on one thread, in the order [`rx`](Self::rx), then every node, then [`tx`](Self::tx), again and again. Times
/// are nanoseconds of the lcore's [`Clock`].
pub trait Progress {
    /// For errors and reports.
    fn name(&self) -> &str;

    /// Takes in what has arrived and acts on timers that are due. Returns the units of work found; 0 is idle.
    fn rx(&mut self, now: u64) -> usize;

    /// Sends what is ready to go, within a budget, and rings the wire's doorbell once. Returns the units of work done.
    fn tx(&mut self, now: u64) -> usize;

    /// When the next timer is due: a nap ends before.
    fn next_timeout(&self) -> Option<u64> {
        None
    }

    /// Prepares for a nap: asks peers to ring, and names the descriptors that become readable when they do. Where work
    /// has come in meanwhile, [`Doorbells::ring`] calls the nap off. The next `rx` ends the state.
    fn arm<'a>(&'a mut self, _doorbells: &mut Doorbells<'a>) {}

    /// Whether all that this device still owes to its peers has been sent. Asked after the nodes are done.
    fn is_settled(&self) -> bool {
        true
    }
}

/// Something that runs on an lcore: a stage of a pipeline.
pub trait Node {
    /// For errors and reports.
    fn name(&self) -> &str;

    /// Does what can be done now (ns), within a budget, without waiting. Returns the units of work done; 0 is idle.
    fn run(&mut self, now: u64) -> usize;

    /// How far it is.
    fn state(&self) -> NodeState;

    /// Asks it to end soon: begin nothing new, finish what is in flight, become done.
    fn stop(&mut self);

    /// When it will have something to do though nothing arrives: a nap ends before.
    fn next_timeout(&self) -> Option<u64> {
        None
    }

    /// Prepares for a nap, as [`Progress::arm`] does: names the descriptors that become readable when it has work.
    fn arm<'a>(&'a mut self, _doorbells: &mut Doorbells<'a>) {}

    /// Called once, after the last poll: hand over the results.
    fn finish(&mut self) {}
}

/// How far a [`Node`] is. Once it no longer runs, it stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// There is, or may be, more to do.
    Running,
    /// All that was asked of it is done and settled.
    Done,
    /// It gave up; its report says why.
    Failed,
}

/// What an lcore polls. Built by a start closure, on the lcore's own thread.
#[derive(Default)]
pub struct Parts {
    /// The devices, in polling order.
    pub devices: Vec<Box<dyn Progress>>,
    /// The nodes, in running order: from source to sink, a message passes all in one loop. An lcore without nodes ends
    /// at once.
    pub nodes: Vec<Box<dyn Node>>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<&str> = self.devices.iter().map(|device| device.name()).collect();
        let nodes: Vec<&str> = self.nodes.iter().map(|node| node.name()).collect();
        f.debug_struct("Parts").field("devices", &devices).field("nodes", &nodes).finish()
    }
}

/// What the control plane asks of an lcore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Stop every node; end when they are done, at the latest at `deadline` (ns).
    Stop {
        /// When to end regardless. An earlier one, once given, stays.
        deadline: u64,
    },
    /// Poll nothing until then (ns), as if the core were taken away. For tests of how peers bear it.
    Pause {
        /// When to go on.
        until: u64,
    },
}

/// Why a loop ended, if not because all its nodes were done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoopError {
    /// A node gave up.
    #[error("node `{node}` failed")]
    Failed {
        /// The first that did.
        node: String,
    },
    /// The deadline came first.
    #[error("still busy at the end of the time to drain: {}", busy.join(", "))]
    Undrained {
        /// The nodes that still ran, else the devices that still had something to send.
        busy: Vec<String>,
    },
}

/// One lcore: what it polls, and how far it is.
#[derive(Debug)]
pub struct Lcore {
    parts: Parts,
    mailbox: Receiver<Command>,
    meter: Meter,
    stopping: bool,
    lingering: bool,
    /// When to end regardless.
    deadline: u64,
    paused_until: u64,
    failed: Option<String>,
}

impl Lcore {
    /// An lcore that nobody polls yet.
    pub fn new(parts: Parts, mailbox: Receiver<Command>) -> Self {
        Self::with_meter(parts, mailbox, Meter::new())
    }

    pub(crate) const fn with_meter(parts: Parts, mailbox: Receiver<Command>, meter: Meter) -> Self {
        Self {
            parts,
            mailbox,
            meter,
            stopping: false,
            lingering: false,
            deadline: u64::MAX,
            paused_until: 0,
            failed: None,
        }
    }

    /// Reads this lcore's statistics, from any thread.
    pub fn stats(&self) -> StatsReader {
        self.meter.reader()
    }

    /// One loop at `now` (ns). Returns the units of work done; 0 is idle.
    pub fn poll(&mut self, now: u64) -> usize {
        let mut work = self.obey(now); // control plane: usually one load
        if now >= self.paused_until {
            self.meter.look(now);
            for device in &mut self.parts.devices {
                work += device.rx(now); // frames and messages in, timers that are due
            }
            for node in &mut self.parts.nodes {
                work += node.run(now); // apps poll and submit
            }
            for device in &mut self.parts.devices {
                work += device.tx(now); // frames and messages out, one doorbell
            }
        }
        self.meter.publish(now, work);
        work
    }

    /// Whether the loop is over at `now`: all nodes done, or failed and drained, or out of time.
    pub fn ended(&mut self, now: u64) -> Option<Result<(), LoopError>> {
        let mut running = false;
        for node in &self.parts.nodes {
            match node.state() {
                NodeState::Running => running = true,
                NodeState::Failed => {
                    self.failed.get_or_insert_with(|| node.name().to_owned());
                }
                NodeState::Done => {}
            }
        }
        if running && now < self.deadline {
            if self.failed.is_some() {
                self.stop(after(now, FAILURE_DRAIN));
            }
            return None;
        }
        if !running && !self.lingering {
            self.lingering = true;
            self.deadline = self.deadline.min(after(now, LINGER));
        }
        let settled = !running && self.parts.devices.iter().all(|device| device.is_settled());
        (settled || now >= self.deadline).then(|| self.outcome())
    }

    /// Polls until the loop is over, then lets every node hand over its results.
    ///
    /// # Errors
    /// See [`LoopError`].
    pub fn run(&mut self, clock: &Clock, mut pacer: Pacer) -> Result<(), LoopError> {
        loop {
            let now = clock.now();
            let work = self.poll(now);
            if let Some(outcome) = self.ended(now) {
                self.parts.nodes.iter_mut().for_each(|node| node.finish());
                return outcome;
            }
            match pacer.after(now, work) {
                Rest::Spin => {}
                Rest::Pause => (0..PAUSES).for_each(|_| hint::spin_loop()),
                Rest::Yield => thread::yield_now(),
                Rest::Nap(span_ns) => self.nap(now, span_ns),
            }
        }
    }

    fn obey(&mut self, now: u64) -> usize {
        let mut taken = 0;
        while let Some(command) = self.mailbox.receive() {
            match command {
                Command::Stop { deadline } => self.stop(deadline),
                Command::Pause { until } => self.paused_until = until.max(now),
            }
            taken += 1;
        }
        taken
    }

    fn stop(&mut self, deadline: u64) {
        self.deadline = self.deadline.min(deadline);
        if !self.stopping {
            self.stopping = true;
            self.parts.nodes.iter_mut().for_each(|node| node.stop());
        }
    }

    /// Naps for at most `span_ns`, at most until something is due or a doorbell rings.
    fn nap(&mut self, now: u64, span_ns: u64) {
        let devices = self.parts.devices.iter().filter_map(|device| device.next_timeout());
        let nodes = self.parts.nodes.iter().filter_map(|node| node.next_timeout());
        let due = devices.chain(nodes).min().unwrap_or(u64::MAX);
        let span_ns = span_ns.min(due.saturating_sub(now)).min(NAP_NS_MAX);
        // The kernel would wake us late for something due so soon.
        if span_ns < NAP_NS_MIN {
            return thread::yield_now();
        }
        let mut doorbells = Doorbells::default();
        self.parts.devices.iter_mut().for_each(|device| device.arm(&mut doorbells));
        self.parts.nodes.iter_mut().for_each(|node| node.arm(&mut doorbells));
        if doorbells.wait(Duration::from_nanos(span_ns)) {
            self.meter.nap(span_ns);
        }
    }

    fn outcome(&self) -> Result<(), LoopError> {
        if let Some(node) = &self.failed {
            return Err(LoopError::Failed { node: node.clone() });
        }
        let running = self.parts.nodes.iter().filter(|node| node.state() == NodeState::Running);
        let running: Vec<String> = running.map(|node| node.name().to_owned()).collect();
        let unsettled = self.parts.devices.iter().filter(|device| !device.is_settled());
        let busy = if running.is_empty() {
            unsettled.map(|device| device.name().to_owned()).collect()
        } else {
            running
        };
        if busy.is_empty() { Ok(()) } else { Err(LoopError::Undrained { busy }) }
    }
}

/// `span` after `now`, in nanoseconds.
pub(crate) fn after(now: u64, span: Duration) -> u64 {
    now.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(all(test, not(loom)))]
mod tests;
