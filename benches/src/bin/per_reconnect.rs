//! What a queue pair costs to have at work again, after its connection broke.
//!
//! Plain, it prints nanoseconds. Under `valgrind --tool=callgrind --toggle-collect='*measured*'` it
//! counts instructions; `ci/instructions` does that.

use std::time::Instant;

use anyhow::Result;
use benches::{Queues, Reconnect};
use clap::Parser;
use pmd_verbs::WireChoice;

/// Counts what a queue pair costs to have at work again.
#[derive(Debug, Parser)]
struct Args {
    /// How.
    how: How,
    /// How often.
    #[arg(short = 'n', long, default_value_t = 1 << 20)]
    times: u64,
    /// How large its queues are.
    #[arg(short, long, default_value = "perf")]
    queues: Queues,
    /// Its peer is reached by packets instead of shared memory.
    #[arg(long)]
    udp: bool,
}

/// What becomes of the queue pair.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum How {
    /// RESET, and the steps to RTS on the same one.
    ResetReinit,
    /// Destroyed, and another one created and led to RTS.
    DestroyCreate,
}

fn main() -> Result<()> {
    let Args { how, times, queues, udp } = Args::parse();
    let wire = if udp { WireChoice::Udp } else { WireChoice::Shm };
    let mut reconnect = Reconnect::new(wire, queues)?;
    let begin = Instant::now();
    match how {
        How::ResetReinit => measured_reset(&mut reconnect, times)?,
        How::DestroyCreate => measured_create(&mut reconnect, times)?,
    }
    let ns = begin.elapsed().as_nanos();
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{how:?}, {queues:?}, {wire:?}: {:.1} ns", ns as f64 / times as f64);
    }
    Ok(())
}

#[inline(never)]
fn measured_reset(reconnect: &mut Reconnect, times: u64) -> Result<()> {
    (0..times).try_for_each(|_| reconnect.reset_reinit())
}

#[inline(never)]
fn measured_create(reconnect: &mut Reconnect, times: u64) -> Result<()> {
    (0..times).try_for_each(|_| reconnect.destroy_create())
}
