//! Copies between two shared regions by size, through the kernels that size and machine choose.

use anyhow::Result;
use criterion::{Criterion, Throughput};
use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};

const LARGEST: u64 = 4 << 20;

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let (from, to) = (region()?, region()?);
    let mut group = criterion.benchmark_group("copy");
    let sizes = [8, 64, 200, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
    for size in sizes.into_iter().chain([LARGEST]) {
        group.throughput(Throughput::Bytes(size));
        // One warm buffer to one warm buffer.
        group.bench_function(format!("{size} b"), |bencher| {
            let (from, to) = (from.segment(), to.segment());
            bencher.iter(|| from.copy_to(0, to, 0, size).expect("both are in bounds"));
        });
    }
    Ok(())
}

fn region() -> Result<Region> {
    let numa = Numa::default();
    let spec = RegionSpec {
        name: "bench",
        len: LARGEST,
        hugepages: Hugepages::None,
        numa: &numa,
        seal: Seal::Data,
    };
    Ok(Region::create(&spec)?)
}
