//! The thread that watches a run: once a second, and when somebody asks, it asks every lcore for its queue pairs, writes `status.json`, and keeps
//! the text ready that is served to whoever scrapes.
//!
//! It has a thread of its own so that neither a slow disk nor a slow reader holds up whoever ends the run. It knows nothing of
//! plans: a pipeline is watched by it as well as a measurement, and each says by a [`Cast`] who takes part.

mod account;
mod http;
mod request;
mod survey;

use std::fs;
use std::io::{self, PipeWriter, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use pmd_lcore::StatsReader;
use pmd_observe::status::{self, Status};
use pmd_observe::{Verdict, metrics};

use crate::limits::{STATUS_EVERY, STATUS_LAST, STATUS_WAIT};
use account::Account;
use http::{Pages, Server};
use survey::Asked;

pub use crate::node::{Counts, Live};
pub use survey::{Asker, Seat, Surveyor, Teller, ends};

/// Who takes part in what is watched, by the names that a reader knows them by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cast {
    /// The lcores, in the order of their [`Asker`]s.
    pub lcores: Vec<LcoreRole>,
    /// The names of the devices.
    pub devices: Vec<String>,
    /// The nodes, in the order of their counts; a queue pair is of the node on whose behalf it was made.
    pub nodes: Vec<NodeRole>,
}

/// An lcore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LcoreRole {
    /// Its name.
    pub name: String,
    /// The CPU that it is pinned to.
    pub cpu: usize,
}

/// Who works on an lcore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRole {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: String,
    /// The name of its lcore.
    pub lcore: String,
    /// Where it finds a peer of another process.
    pub peer: Option<SocketAddr>,
    /// Where peers of other processes find it.
    pub listen: Option<SocketAddr>,
}

/// What a run is watched with.
#[derive(Debug)]
pub struct Subject {
    /// Who takes part.
    pub cast: Cast,
    /// What each node counts.
    pub live: Vec<Arc<Live>>,
    /// The control side's end of each lcore's survey.
    pub askers: Vec<Asker>,
    /// How each lcore spends its time.
    pub stats: Vec<StatsReader>,
    /// When the lcores were started.
    pub began: Instant,
}

/// Where it is shown.
#[derive(Debug, Default)]
pub struct Outlets {
    run_dir: Option<PathBuf>,
    listener: Option<TcpListener>,
}

impl Outlets {
    /// In the directory `run_dir`, and served at `listen`.
    ///
    /// # Errors
    /// When nobody can listen at the address.
    pub fn open(
        run_dir: Option<PathBuf>,
        listen: Option<SocketAddr>,
    ) -> Result<Self, (SocketAddr, io::Error)> {
        let bind = |address: SocketAddr| {
            let listener = TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            });
            listener.map_err(|error| (address, error))
        };
        Ok(Self { run_dir, listener: listen.map(bind).transpose()? })
    }

    /// In the directory `run_dir` alone.
    pub const fn in_directory(run_dir: PathBuf) -> Self {
        Self { run_dir: Some(run_dir), listener: None }
    }

    /// Whether anybody looks.
    pub const fn is_any(&self) -> bool {
        self.run_dir.is_some() || self.listener.is_some()
    }
}

/// The thread, as the control thread sees it. Dropped, it ends without a last word.
#[derive(Debug)]
pub struct Monitor {
    end: Option<Sender<Verdict>>,
    /// Wakes the thread: by a byte, or by its end.
    wake: Option<PipeWriter>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Begins to watch.
    ///
    /// # Errors
    /// When there is no pipe or no thread to be had.
    pub fn start(subject: Subject, outlets: Outlets) -> io::Result<Self> {
        let (woken, wake) = io::pipe()?;
        let (end, ending) = channel();
        let (finished, done) = channel();
        let Outlets { run_dir, listener } = outlets;
        let body = move || {
            let server = Server::new(listener, woken);
            Watcher::new(subject, run_dir, server, ending).run();
            // The control thread may have stopped waiting.
            finished.send(()).unwrap_or_default();
        };
        let thread = Builder::new().name("spinwire-watch".to_owned()).spawn(body)?;
        Ok(Self { end: Some(end), wake: Some(wake), done, thread: Some(thread) })
    }

    /// Writes the last status, after all lcores have ended, and waits for that a bounded time.
    pub fn finish(mut self, verdict: &Verdict) {
        let told = self.end.take().is_some_and(|end| end.send(verdict.clone()).is_ok());
        let woken = self.wake.as_mut().is_some_and(|wake| wake.write_all(&[1]).is_ok());
        if !told || !woken || self.done.recv_timeout(STATUS_LAST).is_err() {
            tracing::warn!("the last {} may not be written", status::FILE);
            // Its thread is left behind.
            self.thread = None;
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        (self.end, self.wake) = (None, None);
        let Some(thread) = self.thread.take() else { return };
        // It ends within a turn; a file system that hangs holds up nobody.
        if self.done.recv_timeout(STATUS_LAST).is_ok() || thread.is_finished() {
            drop(thread.join());
        }
    }
}

/// What runs on the thread.
struct Watcher {
    subject: Subject,
    account: Account,
    run_dir: Option<PathBuf>,
    server: Server,
    ending: Receiver<Verdict>,
    /// When the lcores are asked next, and until when an answer is waited for.
    due: Instant,
    patience: Option<Instant>,
    /// Whether it was said that the file cannot be written.
    complained: bool,
}

impl Watcher {
    fn new(
        subject: Subject,
        run_dir: Option<PathBuf>,
        server: Server,
        ending: Receiver<Verdict>,
    ) -> Self {
        let account = Account::new(&subject);
        let due = Instant::now();
        Self { subject, account, run_dir, server, ending, due, patience: None, complained: false }
    }

    fn run(mut self) {
        loop {
            let now = Instant::now();
            // Who asks for metrics gets those of now.
            let is_awaited = self.patience.is_none() && self.server.is_awaited();
            if now >= self.due || is_awaited {
                self.due = now + STATUS_EVERY;
                self.patience = Some(now + STATUS_WAIT);
                self.ask(now);
            }
            let is_told = self.hear(now);
            if self.patience.is_some_and(|until| is_told || now >= until) {
                self.patience = None;
                self.show(now, None);
            }
            let wait = match self.patience {
                Some(_) => Duration::from_millis(2),
                None => self.due.saturating_duration_since(Instant::now()),
            };
            if !self.server.turn(wait) {
                break;
            }
        }
        if let Ok(verdict) = self.ending.try_recv() {
            let now = Instant::now();
            self.hear(now);
            self.show(now, Some(verdict));
        }
    }

    fn ask(&mut self, now: Instant) {
        for (lcore, asker) in self.subject.askers.iter_mut().enumerate() {
            if asker.ask() == Asked::Ended {
                self.account.ended(lcore, now);
            }
        }
    }

    /// Takes in answers. True where nobody owes one.
    fn hear(&mut self, now: Instant) -> bool {
        let mut all = true;
        for (lcore, asker) in self.subject.askers.iter_mut().enumerate() {
            asker.hear(|told| self.account.take(lcore, told, now));
            all &= !asker.is_waiting() || self.account.has_ended(lcore);
        }
        all
    }

    fn show(&mut self, now: Instant, verdict: Option<Verdict>) {
        let status = self.account.status(&self.subject, now, verdict);
        if let Some(run_dir) = &self.run_dir {
            match write(run_dir, &status) {
                Ok(()) => self.complained = false,
                Err(_) if self.complained => {}
                Err(error) => {
                    self.complained = true;
                    let path = run_dir.join(status::FILE);
                    tracing::warn!("cannot write {}: {error}", path.display());
                }
            }
        }
        if self.server.is_open() {
            let json = serde_json::to_string(&status).unwrap_or_default();
            self.server.show(Pages { at: now, metrics: metrics::text(&status), status: json });
        }
    }
}

/// Readers see the old file or the new one, whole.
fn write(run_dir: &Path, status: &Status) -> io::Result<()> {
    let text = serde_json::to_string(status).map_err(io::Error::other)?;
    let draft = run_dir.join(format!(".{}.{}", status::FILE, std::process::id()));
    let replaced = fs::write(&draft, text + "\n")
        .and_then(|()| fs::rename(&draft, run_dir.join(status::FILE)));
    replaced.inspect_err(|_| {
        // There is none where it could not even be begun.
        drop(fs::remove_file(&draft));
    })
}
