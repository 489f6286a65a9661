//! Buffers got and put through an lcore's cache.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use criterion::{Criterion, Throughput};
use pmd_mem::{Buffer, Mempool, MempoolSpec, Segment};

/// Buffers that a cache moves at a time.
const BULK: u16 = 32;

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let spec = MempoolSpec { name: "bench".into(), offset: 0, size: 2048, count: 1024, align: 64 };
    let segment = Arc::new(Segment::private(2048 * 1024)?);
    let pool = Mempool::new(&segment, &spec)?;
    let mut cache = pool.cache(BULK);
    let mut held: Vec<Buffer> = Vec::with_capacity(256);
    let mut group = criterion.benchmark_group("mempool");
    // One stays in the cache; 256 go through the pool that all lcores share.
    for count in [1, 256] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("get and put {count}"), |bencher| {
            bencher.iter(|| {
                for _ in 0..count {
                    held.extend(cache.get());
                }
                for buffer in held.drain(..) {
                    cache.put(buffer);
                }
            });
        });
    }
    drop(group);
    // What is measured is a pool that has buffers.
    let buffer = cache.get().context("the pool ran dry")?;
    cache.put(buffer);
    Ok(())
}
