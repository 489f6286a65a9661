//! What it takes to have a queue pair at work again after its connection broke: RESET and the steps
//! to RTS on the same one, against destroying it and making another.

use std::cell::Cell;
use std::time::Instant;

use anyhow::Result;
use benches::{Queues, Reconnect};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use pmd_verbs::WireChoice;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("reconnect");
    for (path, wire) in [("local", WireChoice::Shm), ("packets", WireChoice::Udp)] {
        for queues in [Queues::Endpoint, Queues::Perf, Queues::Server] {
            let mut qp = Reconnect::new(wire, queues)?;
            compare(&mut group, &mut qp, &format!("{path}, {queues:?}").to_lowercase());
        }
    }
    Ok(())
}

/// Measures both ways, and says how many times as long the second one takes.
fn compare(group: &mut Group<'_>, qp: &mut Reconnect, name: &str) {
    let again = measure(group, &format!("reset_reinit, {name}"), || qp.reset_reinit());
    let anew = measure(group, &format!("destroy_create, {name}"), || qp.destroy_create());
    if let (Some(again), Some(anew)) = (again, anew) {
        #[expect(clippy::print_stdout, reason = "the result")]
        {
            println!("{name}: destroy_create takes {:.1} times as long\n", anew / again);
        }
    }
}

/// Nanoseconds by the fastest sample; `None` where a filter leaves it out.
fn measure(group: &mut Group<'_>, name: &str, mut act: impl FnMut() -> Result<()>) -> Option<f64> {
    let fastest = Cell::new(None::<f64>);
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let begin = Instant::now();
            (0..iterations).try_for_each(|_| act()).expect("nothing of it is refused");
            let took = begin.elapsed();
            let each = took.as_nanos() as f64 / iterations as f64;
            fastest.set(Some(fastest.get().map_or(each, |known| known.min(each))));
            took
        });
    });
    fastest.get()
}
