//! Messages between two pinned cores of this machine, each a thread with a device of its own.
//!
//! `ci/syscalls` runs it twice with different counts: what differs is what the messages cost.

use std::time::Instant;

use anyhow::{Result, ensure};
use benches::{Kind, Opposite, Options, Source, cores, hop_ns, pin};
use clap::Parser;
use pmd_verbs::WireChoice;

/// Measures messages between two cores.
#[derive(Debug, Parser)]
struct Args {
    /// What a message is.
    kind: Kind,
    /// Messages.
    #[arg(short = 'n', long, default_value_t = 1 << 20)]
    messages: u64,
    /// Queue pairs.
    #[arg(short, long, default_value_t = 1)]
    qps: usize,
    /// Bytes of a message.
    #[arg(short, long, default_value_t = 8)]
    size: u32,
    /// By packets instead of shared memory.
    #[arg(long)]
    udp: bool,
    /// Leave out the probe of the distance between the cores.
    #[arg(long)]
    no_probe: bool,
}

/// Requests in flight at most. Twice as many receives, so that none is ever missing.
const IN_FLIGHT: u32 = 64;

fn main() -> Result<()> {
    let args = Args::parse();
    let [here, there] = cores()?;
    let probe = if args.no_probe { None } else { Some(hop_ns([there, here])?) };
    pin(here)?;
    let options = Options {
        wire: if args.udp { WireChoice::Udp } else { WireChoice::Shm },
        qps: args.qps,
        depth: 2 * IN_FLIGHT,
        size: args.size,
    };
    let (near, opposite) = Opposite::start(&options, there)?;
    let from = near.source(args.size);
    let in_flight = IN_FLIGHT as usize;
    let mut source = Source::new(&near, args.kind, &from, opposite.wish.memory, in_flight);
    let begin = Instant::now();
    source.run(args.messages, || Ok(()))?;
    let ns = begin.elapsed().as_nanos();
    let received = opposite.join()?;
    let expected = args.kind.receives(source.completed);
    ensure!(received >= expected, "{received} of {expected} messages were received");
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        let Args { kind, qps, size, messages, .. } = args;
        let probe = probe.map_or(String::new(), |ns| format!(" (one hop {ns:.0} ns)"));
        println!("{kind:?} {size} B, {qps} QPs: {:.2} ns{probe}", ns as f64 / messages as f64);
    }
    Ok(())
}
