//! Measures spinwire beside its peers: the same work, in the same minute, on the same two cores.
//!
//! A shared machine's speed changes from minute to minute, and two virtual cores are 50 ns apart in
//! one and 250 ns in the next. So every figure comes from a *pair*: probe, peer, ours, probe. A pair
//! whose two probes disagree is dropped; what is reported is the median of the pairs' ratios.
//! `ci/peers` installs the peers and starts this.

#![forbid(unsafe_code)]

mod command;
mod fio;
mod libfabric;
mod markdown;
mod plot;
mod row;
mod schedule;
mod sockets;
mod spinwire;
mod ucx;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

/// Measures spinwire beside its peers and writes a table and plots.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measure, and write `peers.md` and the plots.
    Run(Options),
    /// List the rows.
    List,
    /// The far end of a socket measurement; started by `run`.
    #[command(hide = true)]
    Socket {
        /// Which one.
        kind: sockets::Kind,
        /// Message bytes.
        size: usize,
        /// Core to run on.
        cpu: usize,
    },
}

/// What `run` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Pairs per row.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only rows whose name contains this; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// The spinwire binary.
    #[arg(long, default_value = "target/release/spinwire")]
    spinwire: PathBuf,
    /// Folder with UCX's `bin` and `lib`.
    #[arg(long)]
    ucx: PathBuf,
    /// Where table and plots go.
    #[arg(long, default_value = "benches/report")]
    out: PathBuf,
    /// A file in whose `<!-- peers -->` section the summary is put.
    #[arg(long)]
    readme: Option<PathBuf>,
    /// The two cores, A for the receiving side.
    #[arg(long, num_args = 2, default_values_t = [0, 1])]
    cpus: Vec<usize>,
}

fn main() -> Result<()> {
    match Cli::parse().what {
        What::List => markdown::print(&row::names()),
        What::Socket { kind, size, cpu } => sockets::far_end(kind, size, cpu),
        What::Run(options) => {
            let rows: Vec<_> = row::all()
                .into_iter()
                .filter(|row| {
                    options.only.is_empty()
                        || options.only.iter().any(|part| row.name.contains(part))
                })
                .collect();
            anyhow::ensure!(!rows.is_empty(), "no row matches --only; `peers list` shows them");
            let results = schedule::run(&rows, &options)?;
            std::fs::create_dir_all(&options.out)
                .with_context(|| format!("cannot make {}", options.out.display()))?;
            plot::draw(&results, &options.out)?;
            let table = markdown::table(&results);
            markdown::write(&options.out.join("peers.md"), &table)?;
            if let Some(readme) = &options.readme {
                markdown::put_in_section(readme, &markdown::summary(&results))?;
            }
            markdown::print(&table)
        }
    }
}
