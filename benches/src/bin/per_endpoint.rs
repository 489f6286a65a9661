//! What a message costs by an endpoint, on one core that runs both ends in turn, with the ledger's books
//! and without.
//!
//! Plain, it prints nanoseconds per message. Under `valgrind --tool=callgrind
//! --toggle-collect='*measured*'` it counts instructions; `ci/instructions` does that.

use std::time::Instant;

use anyhow::{Context as _, Result};
use benches::{BATCH, Books, Ends, Kind};
use clap::Parser;
use pmd_verbs::WireChoice;
use pmd_verbs::endpoint::Op;

/// Counts what messages by an endpoint cost.
#[derive(Debug, Parser)]
struct Args {
    /// What a message is: SEND or WRITE.
    kind: Kind,
    /// Messages to measure.
    #[arg(short = 'n', long, default_value_t = 1 << 20)]
    messages: u64,
    /// Bytes of a message.
    #[arg(short, long, default_value_t = 8)]
    size: u32,
    /// By packets instead of shared memory.
    #[arg(long)]
    udp: bool,
    /// By endpoints that keep no books: the difference is what the ledger costs.
    #[arg(long)]
    no_ledger: bool,
}

fn main() -> Result<()> {
    let Args { kind, messages, size, udp, no_ledger } = Args::parse();
    let wire = if udp { WireChoice::Udp } else { WireChoice::Shm };
    let books = if no_ledger { Books::None } else { Books::Kept };
    let mut ends = Ends::connect(wire, size, books)?;
    let op = ends.op(kind).context("an endpoint is measured by SENDs and WRITEs")?;
    (0..64).try_for_each(|_| ends.batch(op))?;
    let begin = Instant::now();
    measured(&mut ends, op, messages / BATCH as u64)?;
    let ns = begin.elapsed().as_nanos();
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{kind:?} {size} B: {:.2} ns", ns as f64 / messages as f64);
    }
    Ok(())
}

/// What is counted.
#[inline(never)]
fn measured(ends: &mut Ends, op: Op<'_>, batches: u64) -> Result<()> {
    (0..batches).try_for_each(|_| ends.batch(op))
}
