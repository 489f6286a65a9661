//! Messages between two pinned cores of this machine, each a thread with a device of its own.
//!
//! `ci/syscalls` runs it twice with different counts: what differs is what the messages cost.

use std::time::Instant;

use anyhow::{Result, ensure};
use benches::{Opposite, Options, Player, Side, Source, Work, cores};
use clap::Parser;
use pmd_lcore::hop_ns;
use pmd_lcore::pin::pin_current;

/// Measures messages between two cores.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    work: Work,
    /// Leave out the probe of the distance between the cores.
    #[arg(long)]
    no_probe: bool,
    /// One message at a time, each the answer to the one before: half round trips.
    #[arg(long)]
    ping_pong: bool,
}

/// Requests in flight at most. Twice as many receives, so that none is ever missing.
const IN_FLIGHT: u32 = 64;
/// Runs of which the median counts.
const RUNS: usize = 31;

fn main() -> Result<()> {
    let args = Args::parse();
    let work = args.work;
    let [here, there] = cores()?;
    let probe = if args.no_probe { None } else { Some(hop_ns(there, here)?) };
    let options = work.options(2 * IN_FLIGHT);
    if args.ping_pong {
        let (near, opposite) = Opposite::answering(&options, there, work.kind)?;
        pin_current(here)?;
        let ns = half_round_trip(&near, &opposite, &options, &work)?;
        opposite.join()?;
        print(&work, ns, probe);
        return Ok(());
    }
    // A thread that is started after this one was pinned could not leave its core.
    let (near, opposite) = Opposite::start(&options, there)?;
    pin_current(here)?;
    let from = near.source(work.size);
    let in_flight = IN_FLIGHT as usize;
    let mut source = Source::new(&near, work.kind, &from, opposite.wish.memory, in_flight)
        .in_lists_of(work.list);
    let ns = median(&work, |messages| source.run(messages, || Ok(())))?;
    let received = opposite.join()?;
    let expected = work.kind.receives(source.completed);
    ensure!(received >= expected, "{received} of {expected} messages were received");
    print(&work, ns, probe);
    Ok(())
}

/// Nanoseconds per message: the median of runs, so that one which was interrupted does not count.
fn median(work: &Work, mut run: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let each = work.messages / RUNS as u64;
    let mut ns = [0.0; RUNS];
    for ns in &mut ns {
        let begin = Instant::now();
        run(each)?;
        *ns = begin.elapsed().as_nanos() as f64 / each as f64;
    }
    ns.sort_by(f64::total_cmp);
    Ok(ns[RUNS / 2])
}

/// Nanoseconds.
fn half_round_trip(
    near: &Side,
    opposite: &Opposite,
    options: &Options,
    work: &Work,
) -> Result<f64> {
    let (from, into) = (near.source(work.size), near.sink(work.size));
    let mut player = Player::new(near, work.kind, &from, &into, opposite.wish.sink(options))?;
    median(work, |messages| {
        for _ in 0..messages / 2 {
            player.send()?;
            while !player.look()? {}
        }
        Ok(())
    })
}

fn print(work: &Work, ns: f64, probe: Option<f64>) {
    let probe = probe.map_or(String::new(), |ns| format!(" (one hop {ns:.0} ns)"));
    let Work { kind, qps, size, .. } = work;
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{kind:?} {size} B, {qps} QPs: {ns:.2} ns{probe}");
    }
}
