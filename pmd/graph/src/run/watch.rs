//! The control thread while the lcores run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmd_lcore::{Running, Wait};

use crate::limits::{DRAIN, WATCH};
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
    pub(super) fn until_the_end(&mut self, running: &Running, began: Instant) {
        let mut stopped: Option<Instant> = None;
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
                Some(since) if since.elapsed() >= DRAIN => break,
                Some(_) => {}
                None if self.is_over(began) => {
                    running.stop(DRAIN);
                    stopped = Some(Instant::now());
                }
                None => {}
            }
        }
        let progress = self.progress(began.elapsed());
        if let Some(watcher) = &mut self.watcher {
            watcher(&progress);
        }
    }

    fn is_over(&self, began: Instant) -> bool {
        let interrupted = self.interrupt.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed));
        interrupted || self.duration.is_some_and(|duration| began.elapsed() >= duration)
    }

    fn progress(&self, elapsed: Duration) -> Progress {
        let mut progress = Progress { elapsed, ..Progress::default() };
        for (node, live) in self.plan.nodes.iter().zip(self.live) {
            let (counts, expected) = live.read();
            progress.expected_bytes = progress.expected_bytes.saturating_add(expected);
            progress.errors += counts.errors;
            progress.verified_bytes = progress.verified_bytes.max(counts.verified_bytes);
            // Where a stream ends, its bytes are counted once.
            if node.to.is_none() && node.clients.is_empty() {
                progress.bytes += counts.bytes;
            }
        }
        progress
    }
}
