//! Messages between two pinned cores of this machine, each a thread with a device of its own.
//!
//! `ci/syscalls` runs it twice with different counts: what differs is what the messages cost.

use std::time::Instant;

use anyhow::{Result, ensure};
use benches::{Opposite, Source, Work, cores};
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
}

/// Requests in flight at most. Twice as many receives, so that none is ever missing.
const IN_FLIGHT: u32 = 64;

fn main() -> Result<()> {
    let args = Args::parse();
    let work = args.work;
    let [here, there] = cores()?;
    let probe = if args.no_probe { None } else { Some(hop_ns(there, here)?) };
    let options = work.options(2 * IN_FLIGHT);
    // A thread that is started after this one was pinned could not leave its core.
    let (near, opposite) = Opposite::start(&options, there)?;
    pin_current(here)?;
    let from = near.source(work.size);
    let in_flight = IN_FLIGHT as usize;
    let mut source = Source::new(&near, work.kind, &from, opposite.wish.memory, in_flight);
    let begin = Instant::now();
    source.run(work.messages, || Ok(()))?;
    let ns = begin.elapsed().as_nanos();
    let received = opposite.join()?;
    let expected = work.kind.receives(source.completed);
    ensure!(received >= expected, "{received} of {expected} messages were received");
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        let Work { kind, qps, size, messages, .. } = work;
        let probe = probe.map_or(String::new(), |ns| format!(" (one hop {ns:.0} ns)"));
        println!("{kind:?} {size} B, {qps} QPs: {:.2} ns{probe}", ns as f64 / messages as f64);
    }
    Ok(())
}
