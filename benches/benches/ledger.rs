//! What the ledger's books cost: the same messages by an endpoint that keeps them and by one that does not, one core at
//! both ends, shared memory between them.

use std::cell::Cell;
use std::time::Instant;

use anyhow::{Context as _, Result};
use benches::{BATCH, Books, Ends, Kind};
use criterion::{Criterion, Throughput};
use pmd_verbs::WireChoice;

const SIZE: u32 = 8;

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("ledger on and off, shm, one core");
    group.throughput(Throughput::Elements(BATCH as u64));
    for kind in [Kind::Send, Kind::Write] {
        let mut fastest = Vec::new();
        for (books, how) in [(Books::Kept, "on"), (Books::None, "off")] {
            let mut ends = Ends::connect(WireChoice::Shm, SIZE, books)?;
            let op = ends.op(kind).context("both are prepared")?;
            let best = Cell::new(f64::INFINITY);
            group.bench_function(format!("{kind:?} {SIZE} B, {how}").to_lowercase(), |bencher| {
                bencher.iter_custom(|iterations| {
                    let begin = Instant::now();
                    let run = (0..iterations).try_for_each(|_| ends.batch(op));
                    run.expect("messages complete");
                    let took = begin.elapsed();
                    best.set(best.get().min(took.as_nanos() as f64 / iterations as f64));
                    took
                });
            });
            fastest.push(best.get());
        }
        if let [on, off] = fastest[..]
            && on.is_finite()
            && off.is_finite()
        {
            #[expect(clippy::print_stdout, reason = "the result")]
            {
                println!("{kind:?}: on takes {:.3} times as long as off\n", on / off);
            }
        }
    }
    Ok(())
}
