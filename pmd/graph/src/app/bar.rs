//! How far a run is, on a terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::run::Progress;

/// What takes less needs no progress.
const SHOW_AFTER: Duration = Duration::from_millis(700);

/// A line on stderr that follows the run.
#[derive(Debug)]
pub(super) struct Bar(Option<ProgressBar>);

impl Bar {
    /// `None` where nobody looks: stderr is no terminal.
    pub(super) fn new() -> Option<Self> {
        io::stderr().is_terminal().then_some(Self(None))
    }

    pub(super) fn show(&mut self, progress: &Progress) {
        if progress.elapsed < SHOW_AFTER {
            return;
        }
        let bar = self.0.get_or_insert_with(|| bar(progress.expected_bytes));
        bar.set_position(progress.bytes);
        bar.set_message(match progress.errors {
            0 => String::new(),
            errors => format!("{errors} errors"),
        });
    }

    /// Leaves the terminal as it was.
    pub(super) fn clear(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}

fn bar(expected: u64) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let (bar, template) = if expected == 0 {
        (ProgressBar::with_draw_target(None, target), "{elapsed} {bytes} {bytes_per_sec} {msg}")
    } else {
        let template = "{elapsed} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {msg}";
        (ProgressBar::with_draw_target(Some(expected), target), template)
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
