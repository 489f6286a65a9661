//! Threads for lcores: started together, watched, and ended in bounded time.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::assign::shared;
use crate::clock::Clock;
use crate::cpuset::CpuSet;
use crate::idle::{Idle, Pacer};
use crate::lcore::{Command, Lcore, LoopError, Parts, after};
use crate::limits::{COMMANDS_MAX, JOIN_GRACE};
use crate::mailbox::{Receiver, SendError, Sender, mailbox};
use crate::pin::{PinError, pin_current};
use crate::stats::{Meter, Stats, StatsReader};

/// Why a start closure could not build what the lcore polls.
pub type StartError = Box<dyn Error + Send + Sync>;

type Start = Box<dyn FnOnce(&Context) -> Result<Parts, StartError> + Send>;

/// An lcore to be.
pub struct LcoreSpec {
    /// Its name, also the thread's.
    pub name: String,
    /// The CPU it is pinned to.
    pub cpu: usize,
    /// What it does while nothing comes.
    pub idle: Idle,
    beside_others: bool,
    start: Start,
}

impl LcoreSpec {
    /// `start` runs on the lcore's thread once that is pinned, so that what it allocates lies near, and what it builds
    /// need not be `Send`.
    pub fn new(
        name: impl Into<String>,
        cpu: usize,
        idle: Idle,
        start: impl FnOnce(&Context) -> Result<Parts, StartError> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), cpu, idle, beside_others: false, start: Box::new(start) }
    }

    /// Whether an lcore of another process polls on that CPU: then this one yields while idle, whatever the policy.
    #[must_use]
    pub fn beside_others(self, beside_others: bool) -> Self {
        Self { beside_others, ..self }
    }
}

impl fmt::Debug for LcoreSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, cpu, idle, beside_others, start: _ } = self;
        let mut spec = f.debug_struct("LcoreSpec");
        spec.field("name", name).field("cpu", cpu).field("idle", idle);
        spec.field("beside_others", beside_others).finish_non_exhaustive()
    }
}

/// Where a start closure runs.
#[derive(Clone, Debug)]
pub struct Context {
    /// The lcore's name.
    pub name: String,
    /// The CPU it is pinned to.
    pub cpu: usize,
    /// The clock of its loop.
    pub clock: Clock,
    /// What its loop has done, for those who run in it.
    pub stats: StatsReader,
}

/// Why the lcores were not started. Those already started are told to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The core of an lcore is not available.
    #[error("lcore `{lcore}`: {source}")]
    Core {
        /// The lcore.
        lcore: String,
        /// The reason.
        source: PinError,
    },
    /// No thread.
    #[error("lcore `{lcore}`: cannot start a thread: {source}")]
    Thread {
        /// The lcore.
        lcore: String,
        /// The reason.
        source: io::Error,
    },
}

/// Why an lcore did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LcoreError {
    /// It could not be pinned.
    #[error("lcore `{lcore}`: {source}")]
    Pin {
        /// The lcore.
        lcore: String,
        /// The reason.
        source: PinError,
    },
    /// Its start closure failed.
    #[error("lcore `{lcore}` did not start: {source}")]
    Start {
        /// The lcore.
        lcore: String,
        /// The reason.
        source: StartError,
    },
    /// Its loop failed.
    #[error("lcore `{lcore}`: {source}")]
    Loop {
        /// The lcore.
        lcore: String,
        /// The reason.
        source: LoopError,
    },
    /// Something on it panicked.
    #[error("lcore `{lcore}` panicked: {message}")]
    Panicked {
        /// The lcore.
        lcore: String,
        /// The panic's message.
        message: String,
    },
    /// It has not ended in time; its thread was left behind.
    #[error("lcore `{lcore}` does not react: something on it has not returned for {waited:?}")]
    Stuck {
        /// The lcore.
        lcore: String,
        /// How long it was waited for.
        waited: Duration,
    },
}

/// Pins and starts the lcores, each on a thread of its own.
///
/// On a core that several lcores share, or that is the only one, idling yields whatever the policy: a warning says
/// so, once.
///
/// # Errors
/// [`SpawnError::Core`] before anything is started, if a CPU is not available to the calling thread.
pub fn spawn(specs: Vec<LcoreSpec>, clock: Clock) -> Result<Running, SpawnError> {
    let core_error = |lcore: &str, source| SpawnError::Core { lcore: lcore.to_owned(), source };
    let mut running =
        Running { lcores: Vec::with_capacity(specs.len()), board: Arc::default(), clock };
    let Some(first) = specs.first() else { return Ok(running) };
    let available = CpuSet::allowed().map_err(|error| core_error(&first.name, error.into()))?;
    if let Some(spec) = specs.iter().find(|spec| !available.contains(spec.cpu)) {
        return Err(core_error(&spec.name, PinError::NoSuchCore { cpu: spec.cpu, available }));
    }
    let crowded = if available.len() == 1 { available } else { shared(&cpus(&specs)) };
    if !crowded.is_empty() {
        tracing::warn!(cores = %crowded, "not a core for each lcore: they yield while idle, and measure slower");
    }
    for spec in specs {
        let pacer = Pacer::new(spec.idle, spec.beside_others || crowded.contains(spec.cpu));
        running.start(spec, pacer)?;
    }
    Ok(running)
}

fn cpus(specs: &[LcoreSpec]) -> Vec<usize> {
    specs.iter().map(|spec| spec.cpu).collect()
}

/// How [`Running::wait`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Every lcore has ended, and well.
    Ended,
    /// At least one has ended badly. The others may still run.
    Failed,
    /// Neither, so far.
    Timeout,
}

/// Lcores that have been started. Dropped without [`join`](Self::join), it tells them to stop at once and leaves them
/// behind.
#[derive(Debug)]
pub struct Running {
    lcores: Vec<Handle>,
    board: Arc<Board>,
    clock: Clock,
}

/// One started lcore, as the control thread sees it.
#[derive(Debug)]
pub struct Handle {
    name: String,
    cpu: usize,
    stats: StatsReader,
    mailbox: Sender<Command>,
    thread: JoinHandle<Result<(), LcoreError>>,
}

impl Handle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The CPU it is pinned to.
    pub const fn cpu(&self) -> usize {
        self.cpu
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.stats.read()
    }

    /// Reads what it has done, from any thread and as long as one wants.
    pub fn reader(&self) -> StatsReader {
        self.stats.clone()
    }

    /// Asks something of it. It obeys within a loop, or a nap.
    ///
    /// # Errors
    /// [`SendError::Closed`] if it has ended, [`SendError::Full`] if it does not read its mailbox.
    pub fn send(&self, command: Command) -> Result<(), SendError<Command>> {
        self.mailbox.send(command)
    }

    /// Collects the outcome, where the thread has given notice that it `ended`.
    fn end(self, ended: bool, waited: Duration) -> Ended {
        let Self { name, cpu, stats, mailbox: _, thread } = self;
        let lcore = name.clone();
        let outcome = if ended {
            let panicked = |panic: Box<dyn Any + Send>| {
                Err(LcoreError::Panicked { lcore, message: message(&*panic) })
            };
            thread.join().unwrap_or_else(panicked)
        } else {
            Err(LcoreError::Stuck { lcore, waited })
        };
        Ended { name, cpu, stats: stats.read(), outcome }
    }
}

/// An lcore that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// The CPU it was pinned to.
    pub cpu: usize,
    /// What it has done.
    pub stats: Stats,
    /// How it ended.
    pub outcome: Result<(), LcoreError>,
}

impl Running {
    /// The lcores, in the order of their specs.
    pub fn lcores(&self) -> &[Handle] {
        &self.lcores
    }

    /// Waits until all lcores have ended, one has failed, or `timeout` is over.
    pub fn wait(&self, timeout: Duration) -> Wait {
        let tally = self.board.wait(timeout, |tally| tally.failed || tally.all_ended());
        match *tally {
            Tally { failed: true, .. } => Wait::Failed,
            _ if tally.all_ended() => Wait::Ended,
            _ => Wait::Timeout,
        }
    }

    /// Asks every lcore to stop, and to end after `drain` even if its nodes are not done.
    pub fn stop(&self, drain: Duration) {
        let deadline = after(self.clock.now(), drain);
        for lcore in &self.lcores {
            match lcore.send(Command::Stop { deadline }) {
                // A full mailbox means that nobody reads it: join finds that lcore stuck.
                Ok(()) | Err(SendError::Closed(_) | SendError::Full(_)) => {}
            }
        }
    }

    /// Stops every lcore and collects how it ended, in the order of the specs. Takes `drain` and [`JOIN_GRACE`] at most.
    pub fn join(mut self, drain: Duration) -> Vec<Ended> {
        self.stop(drain);
        let waited = drain.saturating_add(JOIN_GRACE);
        let ended = self.board.wait(waited, Tally::all_ended).ended.clone();
        self.lcores.drain(..).zip(ended).map(|(lcore, ended)| lcore.end(ended, waited)).collect()
    }

    fn start(&mut self, spec: LcoreSpec, pacer: Pacer) -> Result<(), SpawnError> {
        let LcoreSpec { name, cpu, idle: _, beside_others: _, start } = spec;
        let (sender, receiver) = mailbox(COMMANDS_MAX);
        let meter = Meter::new();
        let stats = meter.reader();
        let context = Context { name: name.clone(), cpu, clock: self.clock, stats: stats.clone() };
        let notice =
            Notice { board: Arc::clone(&self.board), index: self.lcores.len(), failed: true };
        self.board.lock().ended.push(false);
        let body = move || {
            let mut notice = notice;
            let outcome = run(&context, start, receiver, meter, pacer);
            notice.failed = outcome.is_err();
            outcome
        };
        let thread = thread::Builder::new().name(name.clone()).spawn(body);
        let thread = thread.map_err(|source| SpawnError::Thread { lcore: name.clone(), source })?;
        self.lcores.push(Handle { name, cpu, stats, mailbox: sender, thread });
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// The life of an lcore's thread.
fn run(
    context: &Context,
    start: Start,
    mailbox: Receiver<Command>,
    meter: Meter,
    pacer: Pacer,
) -> Result<(), LcoreError> {
    let lcore = || context.name.clone();
    pin_current(context.cpu).map_err(|source| LcoreError::Pin { lcore: lcore(), source })?;
    let parts = start(context).map_err(|source| LcoreError::Start { lcore: lcore(), source })?;
    let outcome = Lcore::with_meter(parts, mailbox, meter).run(&context.clock, pacer);
    outcome.map_err(|source| LcoreError::Loop { lcore: lcore(), source })
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

/// Where lcores report their end.
#[derive(Debug, Default)]
struct Board {
    tally: Mutex<Tally>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Tally {
    /// For each lcore, whether its thread has nothing left to do but to exit.
    ended: Vec<bool>,
    failed: bool,
}

impl Tally {
    fn all_ended(&self) -> bool {
        self.ended.iter().all(|&ended| ended)
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tally once `enough`, or after `timeout`.
    fn wait(&self, timeout: Duration, enough: impl Fn(&Tally) -> bool) -> MutexGuard<'_, Tally> {
        let waiting = self.changed.wait_timeout_while(self.lock(), timeout, |tally| !enough(tally));
        waiting.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Reports the end of an lcore when dropped, however it came.
struct Notice {
    board: Arc<Board>,
    index: usize,
    failed: bool,
}

impl Drop for Notice {
    fn drop(&mut self) {
        let mut tally = self.board.lock();
        tally.ended[self.index] = true;
        tally.failed |= self.failed;
        self.board.changed.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_failure_stays_when_others_end_well() {
        let running = Running { lcores: Vec::new(), board: Arc::default(), clock: Clock::system() };
        running.board.lock().ended = vec![false; 2];
        let end = |index, failed| drop(Notice { board: Arc::clone(&running.board), index, failed });
        assert_eq!(running.wait(Duration::ZERO), Wait::Timeout);
        end(1, true);
        assert_eq!(running.wait(Duration::ZERO), Wait::Failed);
        assert_eq!(running.board.lock().ended, [false, true]);
        end(0, false);
        assert_eq!(running.wait(Duration::ZERO), Wait::Failed);
        assert!(running.board.lock().all_ended());
    }
}
