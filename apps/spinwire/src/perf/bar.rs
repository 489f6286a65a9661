//! How far a measurement is, on a terminal.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::params::{Length, Params};

/// What takes less needs no progress.
const SHOW_AFTER: Duration = Duration::from_millis(700);

/// A line on stderr that follows one size.
#[derive(Debug)]
pub(super) struct Bar {
    begin: Instant,
    length: Length,
    queue_pairs: u64,
    /// `None` where nobody looks: stderr is no terminal.
    line: Option<Option<ProgressBar>>,
}

impl Bar {
    pub(super) fn new(params: &Params) -> Self {
        Self {
            begin: Instant::now(),
            length: params.length,
            queue_pairs: params.qps.into(),
            line: io::stderr().is_terminal().then_some(None),
        }
    }

    /// So many messages are done.
    pub(super) fn show(&mut self, done: u64) {
        let elapsed = self.begin.elapsed();
        let Some(line) = &mut self.line else { return };
        if elapsed < SHOW_AFTER {
            return;
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (position, total) = match self.length {
            Length::Messages(each) => (done, each.saturating_mul(self.queue_pairs)),
            Length::Time(time) => (millis(elapsed), millis(time)),
        };
        let line = line.get_or_insert_with(|| bar(total));
        line.set_position(position.min(total));
        line.set_message(format!("{done} messages"));
    }

    /// Leaves the terminal as it was.
    pub(super) fn clear(self) {
        if let Some(line) = self.line.flatten() {
            line.finish_and_clear();
        }
    }
}

fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{elapsed} [{wide_bar}] {percent}% {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
