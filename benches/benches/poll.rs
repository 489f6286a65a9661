//! One turn of a device, and of an lcore's loop, with nothing to do and with a batch that arrived.

use std::time::{Duration, Instant};

use anyhow::Result;
use benches::{BATCH, Kind, Options, Side, Sink, Source, pair, stream};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use pmd_lcore::mailbox::mailbox;
use pmd_lcore::{Lcore, Node, NodeState, Parts, Progress};
use pmd_verbs::roce::ids;
use pmd_verbs::{Context, WireChoice};

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("poll, empty");
    empty(&mut group, "shm, 1 qp", WireChoice::Shm, 1)?;
    empty(&mut group, "shm, 1024 qps", WireChoice::Shm, 1024)?;
    empty(&mut group, "udp, 1 qp", WireChoice::Udp, 1)?;
    lcore(&mut group)?;
    drop(group);
    let mut group = criterion.benchmark_group("poll, loaded");
    group.throughput(Throughput::Elements(BATCH as u64));
    loaded(&mut group, "shm, sends of 8 b", WireChoice::Shm)?;
    loaded(&mut group, "udp, sends of 8 b", WireChoice::Udp)?;
    Ok(())
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Queue pairs that are connected and silent; the clock is read once.
fn empty(group: &mut Group<'_>, name: &str, wire: WireChoice, qps: usize) -> Result<()> {
    let [one, _two] = pair(&Options { wire, qps, depth: 16, size: 8 })?;
    group.bench_function(name, |bencher| bencher.iter(|| one.turn()));
    Ok(())
}

/// The loop of an lcore around such a device and a node that has nothing to do either.
fn lcore(group: &mut Group<'_>) -> Result<()> {
    let [one, _two] = pair(&Options { wire: WireChoice::Shm, qps: 1, depth: 16, size: 8 })?;
    one.cx.drive();
    let parts =
        Parts { devices: vec![Box::new(Driven(one.cx.clone()))], nodes: vec![Box::new(Waiting)] };
    let (_orders, mailbox) = mailbox(16);
    let mut lcore = Lcore::new(parts, mailbox);
    let device = one.cx.device().clone();
    group.bench_function("lcore, shm, 1 qp, 1 node", |bencher| {
        bencher.iter(|| lcore.poll(device.now().0));
    });
    Ok(())
}

/// A turn that takes in a batch of SENDs, hands over their completions and posts the receives again.
fn loaded(group: &mut Group<'_>, name: &str, wire: WireChoice) -> Result<()> {
    let [one, two] = pair(&Options { wire, qps: 1, depth: 128, size: 8 })?;
    let (from, into) = (one.source(8), two.sink(8));
    let mut source = Source::new(&one, Kind::Send, &from, two.mr.remote(0), BATCH);
    let mut sink = Sink::new(&two, &into, 128)?;
    stream(&mut source, &mut sink, BATCH as u64)?;
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|batches| {
            let mut spent = Duration::ZERO;
            for _ in 0..batches {
                spent += receive(&one, &mut source, &mut sink).expect("messages arrive");
            }
            spent
        });
    });
    Ok(())
}

/// How long the receiving end takes for one batch.
fn receive(near: &Side, source: &mut Source<'_>, sink: &mut Sink<'_>) -> Result<Duration> {
    source.post()?;
    near.turn();
    let (sent, until) = (source.completed + BATCH as u64, sink.received + BATCH as u64);
    let begin = Instant::now();
    while sink.received < until {
        let before = sink.received;
        sink.poll()?;
        // Only before the two have found each other's memory, or where a frame was lost.
        if sink.received == before {
            near.turn();
        }
    }
    let spent = begin.elapsed();
    while source.completed < sent {
        source.poll()?;
        sink.poll()?;
    }
    Ok(spent)
}

/// A device as an lcore polls it.
struct Driven(Context);

impl Progress for Driven {
    fn name(&self) -> &str {
        self.0.device().name()
    }

    fn rx(&mut self, now: u64) -> usize {
        self.0.receive(ids::Instant(now))
    }

    fn tx(&mut self, now: u64) -> usize {
        self.0.transmit(ids::Instant(now))
    }
}

/// A node that waits for ever.
struct Waiting;

impl Node for Waiting {
    fn name(&self) -> &str {
        "waiting"
    }

    fn run(&mut self, _now: u64) -> usize {
        0
    }

    fn state(&self) -> NodeState {
        NodeState::Running
    }

    fn stop(&mut self) {}
}
