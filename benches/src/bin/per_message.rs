//! What a message costs one core that runs both ends in turn: all instructions of consumer, engine
//! and wire, and none of the waiting for another core.
//!
//! Plain, it prints nanoseconds per message. Under `valgrind --tool=callgrind
//! --toggle-collect='*measured*'` it counts instructions; `ci/instructions` does that. Valgrind
//! shows no AVX-512, so that copies of a few bytes take the kernels for older processors there.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use benches::{BATCH, Books, Ends, Kind, Player, Side, Sink, Source, Work, pair, rally, stream};
use clap::Parser;
use pmd_verbs::WireChoice;
use pmd_verbs::endpoint::Op;

/// Counts what messages cost.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    work: Work,
    /// Measure polls of an empty queue instead: this many.
    #[arg(long)]
    idle: Option<u64>,
    /// One message at a time, each the answer to the one before.
    #[arg(long)]
    ping_pong: bool,
    /// By an endpoint instead of a queue pair.
    #[arg(long)]
    endpoint: bool,
}

/// Messages before those that are measured.
const WARM_UP: u64 = 4096;

fn main() -> Result<()> {
    let args = Args::parse();
    let work = args.work;
    if args.endpoint {
        return endpoint(&work);
    }
    let options = work.options(64);
    let [one, two] = pair(&options)?;
    if args.ping_pong {
        return ping_pong(&one, &two, &work);
    }
    let (from, into) = (one.source(work.size), two.sink(work.size));
    let mut source =
        Source::new(&one, work.kind, &from, two.mr.remote(0), 64).in_lists_of(work.list);
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
    print(&work, begin);
    Ok(())
}

fn endpoint(work: &Work) -> Result<()> {
    let mut ends = Ends::connect(WireChoice::Shm, work.size, Books::Kept)?;
    let op = match work.kind {
        Kind::Write => Op::Write { from: ends.from, to: ends.to, imm: None },
        Kind::Read => Op::Read { into: ends.from, from: ends.to },
        _ => Op::Send { from: ends.from, imm: None },
    };
    let mut run = |messages| (0..messages / BATCH as u64).try_for_each(|_| ends.batch(op));
    run(WARM_UP)?;
    let begin = Instant::now();
    measured_endpoint(&mut run, work.messages)?;
    print(work, begin);
    Ok(())
}

fn ping_pong(one: &Side, two: &Side, work: &Work) -> Result<()> {
    let from = [one, two].map(|side| side.source(work.size));
    let into = [one, two].map(|side| side.sink(work.size));
    let to = [two, one].map(|side| side.mr.remote(side.mr.len() / 2));
    let mut players = [
        Player::new(one, work.kind, &from[0], &into[0], to[0])?,
        Player::new(two, work.kind, &from[1], &into[1], to[1])?,
    ];
    rally(&mut players, work.kind, WARM_UP)?;
    let begin = Instant::now();
    measured_ping_pong(&mut players, work.kind, work.messages)?;
    print(work, begin);
    Ok(())
}

fn print(work: &Work, begin: Instant) {
    let ns = begin.elapsed().as_nanos();
    let Work { kind, qps, size, messages, .. } = work;
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{kind:?} {size} B, {qps} QPs: {:.2} ns", ns as f64 / *messages as f64);
    }
}

/// What is counted.
#[inline(never)]
fn measured(source: &mut Source<'_>, sink: &mut Sink<'_>, messages: u64) -> Result<()> {
    stream(source, sink, messages)
}

/// What is counted of endpoints.
#[inline(never)]
fn measured_endpoint(run: &mut impl FnMut(u64) -> Result<()>, messages: u64) -> Result<()> {
    run(messages)
}

/// What is counted where messages answer each other: half round trips.
#[inline(never)]
fn measured_ping_pong(players: &mut [Player<'_>; 2], kind: Kind, messages: u64) -> Result<()> {
    rally(players, kind, messages)
}

/// What is counted of a context that has nothing to do.
#[inline(never)]
fn measured_idle(side: &Side, polls: u64) {
    for _ in 0..polls {
        black_box(side.cq.poll(32, |_| {}));
    }
}
