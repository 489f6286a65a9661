//! The control thread while the lcores run.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmd_lcore::{Running, Wait};

use crate::config::units::show_time;
use crate::limits::{DRAIN_IN_ORDER, WATCH};
use crate::node::Live;
use crate::plan::Plan;
use crate::run_dir::JournalKeeper;

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Since the lcores were started.
    pub elapsed: Duration,
    /// Bytes that the sources will have passed on; 0 when they do not know.
    pub expected_bytes: u64,
    /// Bytes that have come to the end of their way.
    pub bytes: u64,
    /// Bytes that were verified.
    pub verified_bytes: u64,
    /// Errors so far.
    pub errors: u64,
}

/// Why a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its nodes had nothing left to do, or one failed.
    Itself,
    /// The time was over that it was given.
    Time(Duration),
    /// Somebody told it to stop, by a signal.
    Told,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Itself => f.write_str("done"),
            Self::Time(time) => write!(f, "stopped after {}, as it was to", show_time(*time)),
            Self::Told => f.write_str("stopped before its end, as it was told by a signal"),
        }
    }
}

/// What the control thread looks at.
pub(super) struct Watch<'a, 'w> {
    pub(super) plan: &'a Plan,
    pub(super) live: &'a [Arc<Live>],
    pub(super) duration: Option<Duration>,
    pub(super) interrupt: Option<Arc<AtomicBool>>,
    pub(super) watcher: Option<&'w mut dyn FnMut(&Progress)>,
    pub(super) journal: JournalKeeper,
}

impl Watch<'_, '_> {
    /// Waits until all lcores have ended, or one has failed, or the run is to end: then the others are told to stop, and
    /// waited for as long as they may drain.
    pub(super) fn until_the_end(&mut self, running: &Running, began: Instant) -> End {
        let mut stopped: Option<Instant> = None;
        let mut end = End::Itself;
        loop {
            match running.wait(WATCH) {
                Wait::Ended | Wait::Failed => break,
                Wait::Timeout => {}
            }
            let progress = self.progress(began.elapsed());
            if let Some(watcher) = &mut self.watcher {
                watcher(&progress);
            }
            self.journal.keep();
            match stopped {
                Some(since) if since.elapsed() >= DRAIN_IN_ORDER => break,
                Some(_) => {}
                None => {
                    if let Some(over) = self.is_over(began) {
                        running.stop(DRAIN_IN_ORDER);
                        (stopped, end) = (Some(Instant::now()), over);
                    }
                }
            }
        }
        let progress = self.progress(began.elapsed());
        if let Some(watcher) = &mut self.watcher {
            watcher(&progress);
        }
        end
    }

    fn is_over(&self, began: Instant) -> Option<End> {
        let interrupted = self.interrupt.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed));
        let time = self.duration.filter(|duration| began.elapsed() >= *duration);
        if interrupted { Some(End::Told) } else { time.map(End::Time) }
    }

    fn progress(&self, elapsed: Duration) -> Progress {
        let mut progress = Progress { elapsed, ..Progress::default() };
        for (node, live) in self.plan.nodes.iter().zip(self.live) {
            let (counts, expected) = live.read();
            progress.expected_bytes = progress.expected_bytes.saturating_add(expected);
            progress.errors += counts.errors;
            progress.verified_bytes += counts.verified_bytes;
            // Where a stream ends, its bytes are counted once.
            if node.to.is_none() && node.clients.is_empty() {
                progress.bytes += counts.bytes;
            }
        }
        progress
    }
}
