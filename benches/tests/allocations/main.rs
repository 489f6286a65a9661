//! After warm-up, nothing on the data path asks the allocator for memory: not the engine, not a
//! wire, not a queue.
#![forbid(unsafe_code)]

mod datagrams;

use std::time::{Duration, Instant};

use benches::{BATCH, Books, Ends, Kind, Options, Packets, Sink, Source, pair, stream};
use pmd_verbs::endpoint::Op;
use pmd_verbs::{QpOptions, Rc, WireChoice};

/// Before the count: queues reach their depth, buffers their size.
const WARM_UP: u64 = 1024;
/// So long, at least, messages go before the count: control threads tell each other of memory meanwhile, and a
/// poll that takes in what they say may allocate.
const SETTLED: Duration = Duration::from_millis(20);
const MESSAGES: u64 = 4096;

/// Repeats a run until everybody has settled.
pub(crate) fn warm_up(mut run: impl FnMut()) {
    let begin = Instant::now();
    while begin.elapsed() < SETTLED {
        run();
    }
}

const KINDS: [Kind; 6] =
    [Kind::Send, Kind::Write, Kind::WriteImm, Kind::Read, Kind::Atomic, Kind::Mixed];

/// Allocations of this thread, which runs both ends, for `MESSAGES` of one kind.
fn allocations(wire: WireChoice, qps: usize, kind: Kind, size: u32) -> u64 {
    let [one, two] = pair(&Options { wire, qps, depth: 64, size }).expect("two connected ends");
    let (from, into) = (one.source(size), two.sink(size));
    let mut source = Source::new(&one, kind, &from, two.mr.remote(0), 64);
    let mut sink = Sink::new(&two, &into, 64).expect("room for receives");
    warm_up(|| stream(&mut source, &mut sink, WARM_UP).expect("messages complete"));
    let counted = allocation_counter::measure(|| {
        stream(&mut source, &mut sink, MESSAGES).expect("messages complete");
    });
    assert!(source.completed >= WARM_UP + MESSAGES);
    counted.count_total
}

fn none_for_any_kind(wire: WireChoice, cases: &[(usize, u32)]) {
    for (qps, size) in cases {
        for kind in KINDS {
            let size = if kind == Kind::Atomic { 8 } else { *size };
            let found = allocations(wire, *qps, kind, size);
            assert_eq!(found, 0, "{wire:?}, {qps} QPs, {kind:?} of {size} bytes");
        }
    }
}

/// Sizes inside a record, pulled by the receiver, and pushed into its buffer.
#[test]
fn shared_memory_allocates_nothing() {
    none_for_any_kind(WireChoice::Shm, &[(1, 8), (16, 8), (1, 4096), (1, 65_536)]);
}

/// One packet, and several of a path MTU of 1024.
#[test]
fn packets_over_sockets_allocate_nothing() {
    none_for_any_kind(WireChoice::Udp, &[(1, 8), (16, 8), (1, 4096)]);
}

#[test]
fn packets_in_memory_allocate_nothing() {
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        for size in [8, 65_536] {
            let mut packets = Packets::new(kind, size).expect("two connected engines");
            packets.run(WARM_UP).expect("messages complete");
            let counted = allocation_counter::measure(|| {
                packets.run(MESSAGES).expect("messages complete");
            });
            assert_eq!(counted.count_total, 0, "{kind:?} of {size} bytes");
        }
    }
}

/// The seam of nodes, with operations that carry their bytes and such that point to them.
#[test]
fn endpoints_allocate_nothing() {
    for wire in [WireChoice::Shm, WireChoice::Udp] {
        let mut ends = Ends::connect(wire, 64, Books::Kept).expect("two connected endpoints");
        let (from, to) = (ends.from, ends.to);
        for op in [
            Op::Send { from, imm: None },
            Op::SendInline { bytes: &[7; 64], imm: Some([1, 2, 3, 4]) },
            Op::Write { from, to, imm: None },
            Op::Read { into: from, from: to },
        ] {
            let mut run = |messages: u64| {
                for _ in 0..messages / BATCH as u64 {
                    ends.batch(op).expect("operations end well");
                }
            };
            warm_up(|| run(WARM_UP));
            let counted = allocation_counter::measure(|| run(MESSAGES));
            assert_eq!(counted.count_total, 0, "{wire:?}, {op:?}");
        }
    }
}

/// The counter counts: where it did not, every test above would pass.
#[test]
fn the_counter_sees_one_allocation() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(7_u64))));
    assert_eq!(counted.count_total, 1);
}

/// What a queue pair says it takes is what the allocator gave for it: within a tenth, for what
/// allocations round up to and tables that grow.
#[test]
fn a_queue_pair_takes_the_bytes_it_reports() {
    let options = Options { wire: WireChoice::Shm, qps: 1, depth: 64, size: 8 };
    let [one, two] = pair(&options).expect("two connected ends");
    let cap = one.qps[0].query().init.cap;
    let (send_cq, recv_cq) = (&one.cq, &one.cq);
    let wish = QpOptions { send_cq, recv_cq, srq: None, xrcd: None, cap, signal_all: false };
    let mut more = Vec::with_capacity(64);
    let counted = allocation_counter::measure(|| {
        for _ in 0..64 {
            more.push(one.qps[0].pd().create_qp::<Rc>(&wish).expect("a slot is free"));
        }
    });
    let reported: usize = more.iter().map(|qp| qp.query().memory_bytes).sum();
    let given = usize::try_from(counted.bytes_current).expect("more than nothing");
    assert!(given.abs_diff(reported) <= reported / 10, "{given} bytes given, {reported} reported");
    drop(more);
    drop(two);
}
