//! A queue pair brought up: RESET to INIT to RTR to RTS, and the whole life of one.

use anyhow::Result;
use benches::{Options, Side};
use criterion::{BatchSize, Criterion};
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{Qp, QpOptions, Rc, WireChoice};

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("modify");
    for (name, wire) in [("shm", WireChoice::Shm), ("udp", WireChoice::Udp)] {
        let options = Options { wire, qps: 1, depth: 64, size: 8 };
        let (one, two) = (Side::open("one", &options)?, Side::open("two", &options)?);
        let peer = two.wish();
        group.bench_function(format!("reset to rts, {name}"), |bencher| {
            bencher.iter_batched(
                || reset(&one.qps[0]),
                |()| one.connect(&peer).expect("every step is allowed"),
                BatchSize::PerIteration,
            );
        });
        group.bench_function(format!("create and destroy, {name}"), |bencher| {
            bencher.iter(|| create(&one).expect("a slot is free"));
        });
    }
    Ok(())
}

fn reset(qp: &Qp<Rc>) {
    qp.modify(&QpAttr::new(QpState::Reset), AttrMask::STATE).expect("RESET is always allowed");
}

fn create(side: &Side) -> Result<Qp<Rc>> {
    let cap = QpCap {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let (send_cq, recv_cq) = (&side.cq, &side.cq);
    let wish = QpOptions { send_cq, recv_cq, srq: None, xrcd: None, cap, signal_all: false };
    Ok(side.qps[0].pd().create_qp(&wish)?)
}
