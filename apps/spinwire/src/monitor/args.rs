//! The arguments of `top` and `counters`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pmd_graph::app::duration;

use super::view::Sort;
use crate::cli::READER_CODES;

/// `top`.
#[derive(Args, Debug)]
#[command(after_help = READER_CODES)]
pub(crate) struct TopArgs {
    /// Run directory; without it, the last run's
    #[arg(value_name = "RUN_DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Print one table and end, as without a terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the state as one JSON object and end
    #[arg(long)]
    pub(crate) json: bool,
    /// Which queue pairs stand first
    #[arg(long, value_enum, default_value_t = Sort::Worst)]
    pub(crate) sort: Sort,
    /// Only queue pairs in whose row this occurs
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Queue pairs that have ended, too
    #[arg(long)]
    pub(crate) ended: bool,
}

/// `counters`.
#[derive(Args, Debug)]
#[command(after_help = READER_CODES)]
pub(crate) struct CountersArgs {
    /// Run directories, such as those of both ends; without any, the last run's
    #[arg(value_name = "RUN_DIR")]
    pub(crate) run_dirs: Vec<PathBuf>,
    /// What moves within a second, instead of what was counted since the start
    #[arg(long, conflicts_with = "watch")]
    pub(crate) delta: bool,
    /// What moves within each T, until the run ends
    #[arg(long, value_name = "T", value_parser = duration)]
    pub(crate) watch: Option<Duration>,
    /// Counters that are zero, too
    #[arg(long)]
    pub(crate) all: bool,
    /// Print one JSON object; with --watch, one for each T
    #[arg(long)]
    pub(crate) json: bool,
}
