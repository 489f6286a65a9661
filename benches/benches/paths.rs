//! From post to completion, on each path.

use anyhow::Result;
use benches::{BATCH, Kind, Opposite, Options, Packets, Side, Sink, Source, pair, stream};
use criterion::{Criterion, Throughput};
use pmd_verbs::{Data, WcStatus, WireChoice, WorkRequest};

/// Requests in flight at most.
const IN_FLIGHT: usize = 64;

/// `there` is the core of opposite ends.
pub(crate) fn suite(criterion: &mut Criterion, there: usize) -> Result<()> {
    for (kind, size) in [
        (Kind::Send, 8),
        (Kind::Send, 4096),
        (Kind::Send, 65_536),
        (Kind::Write, 8),
        (Kind::Write, 65_536),
        (Kind::Read, 8),
        (Kind::Read, 65_536),
    ] {
        in_memory(criterion, kind, size)?;
        for wire in [WireChoice::Shm, WireChoice::Udp] {
            one_core(criterion, wire, kind, size)?;
            two_cores(criterion, there, wire, kind, size)?;
        }
    }
    for wire in [WireChoice::Shm, WireChoice::Udp] {
        alone(criterion, there, wire)?;
    }
    Ok(())
}

fn options(wire: WireChoice, size: u32) -> Options {
    // Twice as many receives as requests, so that none is ever missing.
    Options { wire, qps: 1, depth: 128, size }
}

fn named(kind: Kind, size: u32) -> String {
    format!("{kind:?} {size} B").to_lowercase()
}

/// A batch of packets between two engines without any wire; both ends are paid for.
fn in_memory(criterion: &mut Criterion, kind: Kind, size: u32) -> Result<()> {
    let mut packets = Packets::new(kind, size)?;
    let mut group = criterion.benchmark_group("post to completion, in-memory packets");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(named(kind, size), |bencher| {
        bencher.iter(|| packets.run(BATCH as u64).expect("messages complete"));
    });
    Ok(())
}

/// A batch between two devices that one core runs in turn: both ends are paid for, nobody waits.
fn one_core(criterion: &mut Criterion, wire: WireChoice, kind: Kind, size: u32) -> Result<()> {
    let [one, two] = pair(&options(wire, size))?;
    let (from, into) = (one.source(size), two.sink(size));
    let mut source = Source::new(&one, kind, &from, two.mr.remote(0), IN_FLIGHT);
    let mut sink = Sink::new(&two, &into, 128)?;
    let name = format!("post to completion, {wire:?}, one core").to_lowercase();
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(named(kind, size), |bencher| {
        let batch = BATCH as u64;
        bencher.iter(|| stream(&mut source, &mut sink, batch).expect("messages complete"));
    });
    Ok(())
}

/// A batch between two devices on a core each: what the slower of them takes.
fn two_cores(
    criterion: &mut Criterion,
    there: usize,
    wire: WireChoice,
    kind: Kind,
    size: u32,
) -> Result<()> {
    let (near, opposite) = Opposite::start(&options(wire, size), there)?;
    let from = near.source(size);
    let mut source = Source::new(&near, kind, &from, opposite.wish.memory, IN_FLIGHT);
    let name = format!("post to completion, {wire:?}, two cores").to_lowercase();
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(named(kind, size), |bencher| {
        let run = |source: &mut Source<'_>| source.run(BATCH as u64, || Ok(()));
        bencher.iter(|| run(&mut source).expect("messages complete"));
    });
    drop(group);
    opposite.join()?;
    Ok(())
}

/// One SEND alone, until its completion: to the other core and back.
fn alone(criterion: &mut Criterion, there: usize, wire: WireChoice) -> Result<()> {
    let (near, opposite) = Opposite::start(&options(wire, 8), there)?;
    let from = near.source(8);
    let name = format!("post to completion, {wire:?}, two cores").to_lowercase();
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    group.bench_function("send 8 b alone", |bencher| bencher.iter(|| post_one(&near, &from)));
    drop(group);
    opposite.join()?;
    Ok(())
}

fn post_one(near: &Side, from: &[pmd_verbs::Sge; 1]) {
    let wr = WorkRequest::send(Data::Sges(from)).signaled();
    near.qps[0].post_send(&wr).expect("room for one request");
    while near.cq.poll(1, |wc| assert_eq!(wc.status, WcStatus::Success)) == 0 {}
}
