//! What a message costs one core that runs both ends in turn: all instructions of consumer, engine
//! and wire, and none of the waiting for another core.
//!
//! Plain, it prints nanoseconds per message. Under `valgrind --tool=callgrind
//! --toggle-collect='*measured*'` it counts instructions; `ci/instructions` does that. Valgrind
//! shows no AVX-512, so that copies of a few bytes take the kernels for older processors there.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use benches::{Side, Sink, Source, Work, pair, stream};
use clap::Parser;

/// Counts what messages cost.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    work: Work,
    /// Measure polls of an empty queue instead: this many.
    #[arg(long)]
    idle: Option<u64>,
}

/// Messages before those that are measured.
const WARM_UP: u64 = 4096;

fn main() -> Result<()> {
    let args = Args::parse();
    let work = args.work;
    let options = work.options(64);
    let [one, two] = pair(&options)?;
    let (from, into) = (one.source(work.size), two.sink(work.size));
    let mut source = Source::new(&one, work.kind, &from, two.mr.remote(0), 64);
    let mut sink = Sink::new(&two, &into, 64)?;
    stream(&mut source, &mut sink, WARM_UP)?;
    if let Some(polls) = args.idle {
        let begin = Instant::now();
        measured_idle(&one, polls);
        let ns = begin.elapsed().as_nanos();
        #[expect(clippy::print_stdout, reason = "the result")]
        {
            println!("idle: {:.2} ns per poll", ns as f64 / polls as f64);
        }
        return Ok(());
    }
    let begin = Instant::now();
    measured(&mut source, &mut sink, work.messages)?;
    let ns = begin.elapsed().as_nanos();
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        let Work { kind, qps, size, messages, .. } = work;
        println!("{kind:?} {size} B, {qps} QPs: {:.2} ns", ns as f64 / messages as f64);
    }
    Ok(())
}

/// What is counted.
#[inline(never)]
fn measured(source: &mut Source<'_>, sink: &mut Sink<'_>, messages: u64) -> Result<()> {
    stream(source, sink, messages)
}

/// What is counted of a context that has nothing to do.
#[inline(never)]
fn measured_idle(side: &Side, polls: u64) {
    for _ in 0..polls {
        black_box(side.cq.poll(32, |_| {}));
    }
}
