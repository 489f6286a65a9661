//! `spinwire top` and `spinwire counters`: a run from outside, by the state that it writes.

mod args;
mod counters;
mod ends;
mod screen;
mod source;
mod table;
mod told;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::Context as _;
use pmd_graph::app::{self, Exit};
use serde_json::json;

use crate::commands::recorded;

pub(crate) use args::{CountersArgs, TopArgs};
use source::Source;
use view::{Choice, View};

/// Shows lcores, nodes and queue pairs.
///
/// # Errors
/// When the terminal or stdout cannot be used.
pub(crate) fn top(args: &TopArgs) -> anyhow::Result<Exit> {
    let source = match source_of(args.run_dir.as_slice()) {
        Ok(source) => source,
        Err(exit) => return Ok(exit),
    };
    let runs = match source.read() {
        Ok(runs) => runs,
        Err(error) => return Ok(recorded::complain(&error)),
    };
    let choice = Choice {
        sort: args.sort,
        filter: args.filter.clone().unwrap_or_default(),
        with_ended: args.ended || runs.iter().all(|run| run.status.ended),
    };
    if args.json {
        let runs: Vec<_> = runs.iter().map(source::Run::to_json).collect();
        app::print(&format!("{}\n", json!({ "runs": runs })))?;
    } else if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        app::print(&table::text(&View::new(runs), &choice))?;
    } else {
        let interrupt = app::signals::interrupt().context("cannot listen for signals")?;
        screen::show(&source, View::new(runs), choice, &interrupt)?;
    }
    Ok(Exit::Done)
}

/// Prints the counters of ports and queue pairs.
///
/// # Errors
/// When stdout cannot be used.
pub(crate) fn counters(args: &CountersArgs) -> anyhow::Result<Exit> {
    let source = match source_of(&args.run_dirs) {
        Ok(source) => source,
        Err(exit) => return Ok(exit),
    };
    match counters::run(&source, args) {
        Ok(()) => Ok(Exit::Done),
        Err(counters::Error::Unread(error)) => Ok(recorded::complain(&error)),
        Err(counters::Error::Output(error)) => Err(error.into()),
    }
}

/// The run directories that were named, else that of the last run.
fn source_of(dirs: &[PathBuf]) -> Result<Source, Exit> {
    let dirs = match dirs {
        [] => vec![recorded::place(None)?],
        dirs => dirs.to_vec(),
    };
    Ok(Source::new(dirs))
}
