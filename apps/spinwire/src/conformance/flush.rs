//! In which order work ends on a queue pair that fails, is drained, or has failed already.

use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::roce::ids::{Lkey, Rkey};
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{Data, Qp, Rc, RemoteAddr, Sends, Sge, Uc, WorkRequest};

use super::finding::{Findings, Question, question};
use super::rig::{Ground, RECEIVES, Rig, Way, apart, ends, go};

const POSTED_BEFORE: Question =
    question("posted-before-error", "IBTA 1.4, 10.3.1; man ibv_modify_qp");
const POSTED_AFTER: Question =
    question("posted-after-error", "IBTA 1.4, 10.3.1; man ibv_modify_qp");
const FIRST_ERROR: Question = question("behind-an-error", "IBTA 1.4, 11.6.2, table 58");
const PEER_OF_ERROR: Question = question("receives-of-the-peer", "IBTA 1.4, 11.6.2, table 58");
const UNSIGNALED: Question = question("unsignaled", "man ibv_post_send (IBV_SEND_SIGNALED)");
const SQE: Question = question("send-queue-error", "IBTA 1.4, 10.3.1, 11.6.2");
const BACK_FROM_SQE: Question = question("send-queue-error-to-rts", "IBTA 1.4, 10.3.1");
const DRAINED: Question = question("posted-in-sqd", "IBTA 1.4, 10.3.1");
const TOLD: Question = question("sq-drained-event", "IBTA 1.4, 11.6.3; man ibv_get_async_event");

pub(super) fn run(ground: &Ground<'_>, way: Way, found: &mut Findings) -> anyhow::Result<()> {
    before_and_after(&ground.rig(way)?, found)?;
    behind_an_error(&ground.rig(way)?, found)?;
    unsignaled(&ground.rig(way)?, found)?;
    send_queue_error(&ground.rig(way)?, found)?;
    drained(&ground.rig(way)?, found)
}

fn send<T: Sends + pmd_verbs::Connected>(qp: &Qp<T>, wr: u64) -> anyhow::Result<()> {
    Ok(qp.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(wr))?)
}

/// Sends in flight, since nobody posts a receive, and receives that wait: all are flushed, each queue in its order. So is
/// what is posted then.
fn before_and_after(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    // A long RNR timer, so that the sends are still there when it fails.
    let [a, _b] = rig.pair::<Rc>(|_, attr| attr.min_rnr_timer = 0)?;
    rig.sides[0].receives(&a, RECEIVES, 3, 64)?;
    for wr in 1..=3 {
        send(&a, wr)?;
    }
    rig.turn();
    go(&a, QpState::Error)?;
    let flushed = |sends: [u64; 2], receives: u64| {
        let of = |mut numbers: std::ops::Range<u64>| {
            let first = numbers.next().map(|wr| format!("{wr} Work Request Flushed Error (5)"));
            let rest = numbers.map(|wr| format!(", {wr} Work Request Flushed Error (5)"));
            first.into_iter().chain(rest).collect::<String>()
        };
        let receives = RECEIVES + receives..RECEIVES + receives + sends[1] - sends[0];
        format!("sends: {}; receives: {}", of(sends[0]..sends[1]), of(receives))
    };
    let [got, _] = rig.complete([6, 0]);
    found.same(POSTED_BEFORE, flushed([1, 4], 0), apart(&got));
    for wr in 4..=5 {
        send(&a, wr)?;
    }
    rig.sides[0].receives(&a, RECEIVES + 3, 2, 64)?;
    let [got, _] = rig.complete([4, 0]);
    found.same(POSTED_AFTER, flushed([4, 6], 3), apart(&got));
    Ok(())
}

/// What was done before the error is done, the request that failed says why, and what is behind it is flushed.
fn behind_an_error(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let [a, b] = rig.pair::<Rc>(|_, _| {})?;
    let [near, far] = &rig.sides;
    far.receives(&b, RECEIVES, 2, 64)?;
    let sges = [near.sge(0, 64)];
    let good = far.remote(0);
    let bad = RemoteAddr { rkey: Rkey(!good.rkey.0), ..good };
    for (wr, to) in [(1, good), (2, bad), (3, good)] {
        a.post_send(&WorkRequest::write(Data::Sges(&sges), to).id(wr))?;
    }
    send(&a, 4)?;
    let [got, at_peer] = rig.complete([4, 2]);
    found.same(
        FIRST_ERROR,
        "1 success (0), 2 remote access error (10), 3 Work Request Flushed Error (5), 4 Work Request Flushed Error (5)",
        ends(&got),
    );
    found.same(
        PEER_OF_ERROR,
        "100 Work Request Flushed Error (5), 101 Work Request Flushed Error (5); ERR",
        format_args!("{}; {}", ends(&at_peer), rig.state(&b)),
    );
    Ok(())
}

/// Requests that would complete in silence do not fail in silence.
fn unsignaled(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let qps = [rig.qp::<Rc>(0, |options| options.signal_all = false)?, rig.qp(1, |_| {})?];
    rig.connect(&qps, |_, attr| attr.min_rnr_timer = 0)?;
    for wr in 1..=2 {
        send(&qps[0], wr)?;
    }
    rig.turn();
    go(&qps[0], QpState::Error)?;
    let [got, _] = rig.complete([2, 0]);
    let expected = "1 Work Request Flushed Error (5), 2 Work Request Flushed Error (5)";
    found.same(UNSIGNALED, expected, ends(&got));
    Ok(())
}

/// On an unreliable connection a send that fails breaks the send queue alone, until it is brought back to RTS.
fn send_queue_error(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let [a, b] = rig.pair::<Uc>(|_, _| {})?;
    let [near, far] = &rig.sides;
    near.receives(&a, RECEIVES, 1, 64)?;
    let sges = [Sge { addr: 0x1000, len: 8, lkey: Lkey(0xffff_fff0) }];
    a.post_send(&WorkRequest::send(Data::Sges(&sges)).id(1))?;
    send(&a, 2)?;
    let [got, _] = rig.complete([2, 0]);
    let state = rig.state(&a);
    send(&b, 3)?;
    let [received, _] = rig.complete([1, 1]);
    found.same(
        SQE,
        "1 local protection error (4), 2 Work Request Flushed Error (5); SQE; then 100 success (0)",
        format_args!("{}; {state}; then {}", ends(&got), ends(&received)),
    );
    far.receives(&b, RECEIVES + 1, 1, 64)?;
    let back = match go(&a, QpState::Rts) {
        Ok(()) => {
            send(&a, 4)?;
            let [sent, received] = rig.complete([1, 1]);
            format!("{}; {}", ends(&sent), ends(&received))
        }
        Err(error) => format!("refused: {error}"),
    };
    found.same(BACK_FROM_SQE, "4 success (0); 101 success (0)", back);
    Ok(())
}

/// A drained send queue takes requests and starts none; who asked is told that it is drained.
fn drained(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let [a, b] = rig.pair::<Rc>(|_, _| {})?;
    rig.sides[1].receives(&b, RECEIVES, 1, 64)?;
    let attr = QpAttr { sqd_notify: true, ..QpAttr::new(QpState::Sqd) };
    a.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY)?;
    rig.settle();
    let drained = AsyncEvent::SqDrained(a.number());
    let told = rig.events(0).contains(&drained);
    found.same(TOLD, "SQ_DRAINED", if told { "SQ_DRAINED" } else { "no event" });
    send(&a, 1)?;
    let [early, _] = rig.complete([0, 0]);
    go(&a, QpState::Rts)?;
    let [sent, received] = rig.complete([1, 1]);
    found.same(
        DRAINED,
        "in SQD nothing completes; in RTS 1 success (0), at the peer 100 success (0)",
        format_args!(
            "in SQD {}; in RTS {}, at the peer {}",
            ends(&early),
            ends(&sent),
            ends(&received)
        ),
    );
    Ok(())
}
