//! Latencies counted.

use anyhow::Result;
use criterion::Criterion;
use pmd_observe::histogram::Histogram;

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("histogram");
    let mut histogram = Histogram::new();
    group.bench_function("record, steady", |bencher| bencher.iter(|| histogram.record(1_234)));
    let mut ns = 1_u64;
    group.bench_function("record, spread over 1 ms", |bencher| {
        bencher.iter(|| {
            ns = ns.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            histogram.record(ns >> 44);
        });
    });
    Ok(())
}
