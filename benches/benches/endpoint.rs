//! What the seam costs: the same messages by an `Endpoint` and by a bare queue pair, one core at
//! both ends, shared memory between them.

use anyhow::Result;
use benches::{BATCH, Books, Ends, Kind, Options, Side, Sink, Source, pair, stream};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use pmd_verbs::endpoint::Op;
use pmd_verbs::{Data, Rc, WireChoice, WorkRequest};

const SIZE: u32 = 8;
/// Requests of a queue, and receives posted: as of an endpoint.
const DEPTH: u32 = 64;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("endpoint against queue pair, shm, one core");
    group.throughput(Throughput::Elements(BATCH as u64));
    for kind in [Kind::Send, Kind::Write] {
        let named = |how: &str| format!("{kind:?} {SIZE} B, {how}").to_lowercase();
        by_list(&mut group, &named("queue pair, by lists"), kind)?;
        one_by_one(&mut group, &named("queue pair, one by one"), kind)?;
        by_endpoint(&mut group, &named("endpoint"), kind)?;
    }
    Ok(())
}

fn options() -> Options {
    Options { wire: WireChoice::Shm, qps: 1, depth: DEPTH, size: SIZE }
}

fn by_list(group: &mut Group<'_>, name: &str, kind: Kind) -> Result<()> {
    let [one, two] = pair(&options())?;
    let (from, into) = (one.source(SIZE), two.sink(SIZE));
    let mut source = Source::new(&one, kind, &from, two.mr.remote(0), BATCH);
    let mut sink = Sink::new(&two, &into, DEPTH)?;
    group.bench_function(name, |bencher| {
        let batch = BATCH as u64;
        bencher.iter(|| stream(&mut source, &mut sink, batch).expect("messages complete"));
    });
    Ok(())
}

fn one_by_one(group: &mut Group<'_>, name: &str, kind: Kind) -> Result<()> {
    let [one, two] = pair(&options())?;
    let (from, into) = (one.source(SIZE), two.sink(SIZE));
    let mut sink = Sink::new(&two, &into, DEPTH)?;
    let data = Data::Sges(&from);
    let wr = match kind {
        Kind::Send => WorkRequest::send(data),
        _ => WorkRequest::write(data, two.mr.remote(0)),
    };
    let wr = wr.signaled();
    group.bench_function(name, |bencher| {
        bencher.iter(|| post_batch(&one, &wr, &mut sink).expect("messages complete"));
    });
    Ok(())
}

fn post_batch(near: &Side, wr: &WorkRequest<'_, Rc>, sink: &mut Sink<'_>) -> Result<()> {
    for _ in 0..BATCH {
        near.qps[0].post_send(wr)?;
    }
    let mut completed = 0;
    while completed < BATCH {
        completed += near.cq.poll(BATCH, |_| {});
        sink.poll()?;
    }
    Ok(())
}

fn by_endpoint(group: &mut Group<'_>, name: &str, kind: Kind) -> Result<()> {
    let mut ends = Ends::connect(WireChoice::Shm, SIZE, Books::Kept)?;
    let op = match kind {
        Kind::Send => Op::Send { from: ends.from, imm: None },
        _ => Op::Write { from: ends.from, to: ends.to, imm: None },
    };
    group.bench_function(name, |bencher| {
        bencher.iter(|| ends.batch(op).expect("messages complete"));
    });
    Ok(())
}
