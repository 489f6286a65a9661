//! What the seam costs: the same messages by an `Endpoint` and by a bare queue pair, one core at
//! both ends, shared memory between them.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use benches::{BATCH, Kind, Options, Side, Sink, Source, pair, stream};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::endpoint::{
    Endpoint, EndpointOptions, Local, Op, Outcome, Pending, Remote, Rights, Token,
};
use pmd_verbs::{Context, Data, Device, DeviceConfig, Rc, WireChoice, WorkRequest};

const SIZE: u32 = 8;
/// Requests of a queue, and receives posted.
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
    let mut ends = Ends::connect()?;
    let op = match kind {
        Kind::Send => Op::Send { from: ends.from, imm: None },
        _ => Op::Write { from: ends.from, to: ends.to, imm: None },
    };
    group.bench_function(name, |bencher| {
        bencher.iter(|| ends.batch(op).expect("messages complete"));
    });
    Ok(())
}

/// Two connected endpoints.
struct Ends {
    near: Box<dyn Endpoint>,
    far: Box<dyn Endpoint>,
    from: Local,
    into: Local,
    to: Remote,
}

impl Ends {
    fn connect() -> Result<Self> {
        let options = EndpointOptions { depth: DEPTH, recv_depth: DEPTH, ..Default::default() };
        let (near_cx, far_cx) = (context("near")?, context("far")?);
        let (mut near, mut far) = (near_cx.prepare(&options)?, far_cx.prepare(&options)?);
        far.connect(&near.hello(b""))?;
        near.connect(&far.hello(b""))?;
        let (mut near, mut far) = (Box::new(near).into_endpoint(), Box::new(far).into_endpoint());
        ensure!(near.path() == "local", "shared memory was asked for");
        let (from, into) = (near.register(&region()?)?, far.register(&region()?)?);
        let rights = Rights { read: true, write: true, atomic: true };
        let exported = far.export(into, 0, 4096, rights)?;
        let to = Remote { key: near.import(&exported.0)?, offset: 0 };
        let local = |key| Local { key, offset: 0, len: SIZE };
        let (from, into) = (local(from), local(into));
        for _ in 0..DEPTH {
            far.submit(Op::Recv { into }, Token(0))?;
        }
        Ok(Self { near, far, from, into, to })
    }

    fn batch(&mut self, op: Op<'_>) -> Result<()> {
        for _ in 0..BATCH {
            self.near.submit(op, Token(1))?;
        }
        self.near.doorbell();
        let (mut completed, mut failed) = (0, None);
        while completed < BATCH {
            completed += self.near.poll(&mut |settled| {
                if settled.outcome != Outcome::Done {
                    failed = Some(settled);
                }
            });
            let received = self.far.poll(&mut |_| {});
            for _ in 0..received {
                self.far.submit(Op::Recv { into: self.into }, Token(0))?;
            }
        }
        ensure!(failed.is_none(), "an operation failed: {failed:?}");
        Ok(())
    }
}

fn context(name: &str) -> Result<Context> {
    let wire = WireChoice::Shm;
    let device = Device::open(&DeviceConfig { name: name.into(), wire, ..Default::default() })?;
    device.context(0).context("its only lcore")
}

fn region() -> Result<Arc<Region>> {
    let spec = RegionSpec {
        name: "bench",
        len: 4096,
        hugepages: Hugepages::None,
        numa: &Numa::default(),
        seal: Seal::Data,
    };
    Ok(Arc::new(Region::create(&spec)?))
}
