//! Shared receive queues: who takes from them, and what is told of it.

use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::roce::ids::WrId;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Data, Qp, Rc, RecvWr, Srq, SrqOptions, WorkRequest};

use super::finding::{Findings, Question, question};
use super::rig::{Ground, INTO, RECEIVES, Rig, Way, ends, go};

const SHARED: Question = question("in-order-for-all", "man ibv_post_srq_recv");
const LIMIT: Question = question("limit-event", "man ibv_modify_srq (below srq_limit, one shot)");
const AGAIN: Question = question("limit-armed-again", "man ibv_modify_srq");
const EMPTY: Question = question("empty", "IBTA 1.4, 9.7.5.2.8 (RNR NAK)");
const LAST: Question = question("last-wqe", "IBTA 1.4, 10.3.1; man ibv_get_async_event");

pub(super) fn run(ground: &Ground<'_>, way: Way, found: &mut Findings) -> anyhow::Result<()> {
    shared(&ground.rig(way)?, found)?;
    limit(&ground.rig(way)?, found)?;
    empty(&ground.rig(way)?, found)?;
    last(&ground.rig(way)?, found)
}

fn queue(rig: &Rig<'_>) -> anyhow::Result<Srq> {
    Ok(rig.sides[1].pd.create_srq(&SrqOptions { max_wr: 8, max_sge: 1, xrc: None })?)
}

fn post(rig: &Rig<'_>, srq: &Srq, first: u64, count: u64) -> anyhow::Result<()> {
    for wr in first..first + count {
        let sges = [rig.sides[1].sge(INTO, 64)];
        srq.post_recv(&RecvWr { wr_id: WrId(RECEIVES + wr), sges: &sges })?;
    }
    Ok(())
}

/// A pair whose second queue pair takes its receives from the queue.
fn pair(rig: &Rig<'_>, srq: &Srq, rnr_retry: u8) -> anyhow::Result<[Qp<Rc>; 2]> {
    let srq = srq.clone();
    let far = &rig.sides[1];
    let options = pmd_verbs::QpOptions {
        send_cq: &far.cq,
        recv_cq: &far.cq,
        srq: Some(&srq),
        xrcd: None,
        cap: pmd_verbs::roce::qp::attr::QpCap {
            max_send_wr: 16,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: 64,
        },
        signal_all: true,
    };
    let qps = [rig.qp(0, |_| {})?, far.pd.create_qp(&options)?];
    rig.connect(&qps, |_, attr| attr.rnr_retry = rnr_retry)?;
    Ok(qps)
}

fn send(qp: &Qp<Rc>, wr: u64) -> anyhow::Result<()> {
    Ok(qp.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(wr))?)
}

/// Two queue pairs take from one queue, in the order in which it was filled.
fn shared(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let srq = queue(rig)?;
    post(rig, &srq, 0, 4)?;
    let [a, b] = [pair(rig, &srq, 7)?, pair(rig, &srq, 7)?];
    let mut seen = Vec::new();
    for (wr, qps) in [(1, &a), (2, &b), (3, &a)] {
        send(&qps[0], wr)?;
        let [_, received] = rig.complete([1, 1]);
        let own = received.iter().all(|completion| completion.qpn == qps[1].number());
        seen.push(format!(
            "{}{}",
            ends(&received),
            if own { "" } else { " on another queue pair" }
        ));
    }
    let expected = "100 success (0); 101 success (0); 102 success (0); 1 left";
    found.same(SHARED, expected, format_args!("{}; {} left", seen.join("; "), srq.outstanding()));
    Ok(())
}

/// The limit event comes when fewer than the limit are left, once for each time that it was armed.
fn limit(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let srq = queue(rig)?;
    post(rig, &srq, 0, 4)?;
    let [a, _b] = pair(rig, &srq, 7)?;
    let reached = AsyncEvent::SrqLimitReached(srq.number());
    let after = |wr: u64| -> anyhow::Result<String> {
        send(&a, wr)?;
        rig.complete([1, 1]);
        let times = rig.events(1).into_iter().filter(|event| *event == reached).count();
        Ok(format!("{} left: {times}", srq.outstanding()))
    };
    srq.arm_limit(3)?;
    let seen = [after(1)?, after(2)?, after(3)?].join(", ");
    found.same(
        LIMIT,
        "events with 3 left: 0, 2 left: 1, 1 left: 0",
        format_args!("events with {seen}"),
    );
    post(rig, &srq, 4, 3)?;
    srq.arm_limit(4)?;
    let seen = [after(4)?, after(5)?].join(", ");
    found.same(AGAIN, "events with 3 left: 1, 2 left: 0", format_args!("events with {seen}"));
    Ok(())
}

/// Without a receive in it the sender is told to wait, or gives up.
fn empty(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let srq = queue(rig)?;
    let [a, b] = pair(rig, &srq, 0)?;
    send(&a, 1)?;
    let [sent, _] = rig.complete([1, 0]);
    found.same(
        EMPTY,
        "1 RNR retry counter exceeded (13); peer: RTS",
        format_args!("{}; peer: {}", ends(&sent), rig.state(&b)),
    );
    Ok(())
}

/// A queue pair that fails takes no more from the queue, says so once, and leaves there what is left.
fn last(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let srq = queue(rig)?;
    post(rig, &srq, 0, 3)?;
    let [_a, b] = pair(rig, &srq, 7)?;
    let [c, d] = pair(rig, &srq, 7)?;
    go(&b, QpState::Error)?;
    rig.settle();
    let last = AsyncEvent::LastWqeReached(b.number());
    let times = rig.events(1).into_iter().filter(|event| *event == last).count();
    let left = srq.outstanding();
    send(&c, 1)?;
    let [_, received] = rig.complete([1, 1]);
    found.same(
        LAST,
        "1 QP_LAST_WQE_REACHED, 3 left; a neighbour: 100 success (0), RTS",
        format_args!(
            "{times} QP_LAST_WQE_REACHED, {left} left; a neighbour: {}, {}",
            ends(&received),
            rig.state(&d)
        ),
    );
    Ok(())
}
