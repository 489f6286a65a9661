//! Asynchronous events: which ones come, whom they concern, and whom they do not.

use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::roce::ids::Rkey;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Data, Qp, Rc, RemoteAddr, WorkRequest};

use super::errors::CASES;
use super::finding::{Findings, Question, question};
use super::rig::{Ground, RECEIVES, Rig, Way, ends, step};

const ESTABLISHED: Question = question("comm-est", "IBTA 1.4, 11.6.3; man ibv_get_async_event");
const NEIGHBOURS: Question = question("qp-neighbours", "IBTA 1.4, 11.6.3");
const OVERRUN: Question = question("cq-overrun", "IBTA 1.4, 11.6.3; man ibv_get_async_event");
const BEYOND: Question = question("cq-neighbours", "IBTA 1.4, 11.6.3");

pub(super) fn run(ground: &Ground<'_>, way: Way, found: &mut Findings) -> anyhow::Result<()> {
    for case in CASES {
        let Some(event) = case.event else { continue };
        let rig = ground.rig(way)?;
        let ([_a, b], _) = case.play(&rig)?;
        found.same(case.question, event, names(&of(&rig, 1, &b)));
    }
    established(&ground.rig(way)?, found)?;
    neighbours(&ground.rig(way)?, found)?;
    overrun(&ground.rig(way)?, found)
}

/// The events about a queue pair, but for that somebody talked to it.
fn of(rig: &Rig<'_>, side: usize, qp: &Qp<Rc>) -> Vec<AsyncEvent> {
    let about = |event: &AsyncEvent| event.qpn() == Some(qp.number());
    let mut events = rig.events(side);
    events.retain(|event| about(event) && !matches!(event, AsyncEvent::CommEst(_)));
    events
}

fn names(events: &[AsyncEvent]) -> String {
    if events.is_empty() {
        return "no event".to_owned();
    }
    events.iter().map(|event| event.name()).collect::<Vec<_>>().join(", ")
}

fn message(rig: &Rig<'_>, [a, b]: &[Qp<Rc>; 2]) -> anyhow::Result<String> {
    rig.sides[1].receives(b, RECEIVES, 1, 64)?;
    a.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(1))?;
    let [sent, received] = rig.complete([1, 1]);
    Ok(format!("{}, {}; {}, {}", ends(&sent), rig.state(a), ends(&received), rig.state(b)))
}

const CARRIES: &str = "1 success (0), RTS; 100 success (0), RTS";

/// A message that arrives in RTR says that the peer is connected.
fn established(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let (a, b): (Qp<Rc>, Qp<Rc>) = (rig.qp(0, |_| {})?, rig.qp(1, |_| {})?);
    let (near, far) = (rig.attr(0, b.number())?, rig.attr(1, a.number())?);
    for to in [QpState::Init, QpState::Rtr] {
        step(&b, &far, to)?;
    }
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        step(&a, &near, to)?;
    }
    rig.sides[1].receives(&b, RECEIVES, 1, 64)?;
    a.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(1))?;
    rig.complete([1, 1]);
    let events: Vec<_> =
        rig.events(1).into_iter().filter(|event| event.qpn() == Some(b.number())).collect();
    found.same(ESTABLISHED, "COMM_EST", names(&events));
    Ok(())
}

/// A queue pair that fails leaves those beside it alone, on the same completion queue and in the same domain.
fn neighbours(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let [failing, neighbour] = [rig.pair::<Rc>(|_, _| {})?, rig.pair::<Rc>(|_, _| {})?];
    let good = rig.sides[1].remote(0);
    let bad = RemoteAddr { rkey: Rkey(!good.rkey.0), ..good };
    failing[0].post_send(&WorkRequest::write(Data::Inline(&[b"nowhere"]), bad).id(1))?;
    let [sent, _] = rig.complete([1, 0]);
    let touched: Vec<_> =
        [0, 1].iter().flat_map(|side| of(rig, *side, &neighbour[*side])).collect();
    let seen = message(rig, &neighbour)?;
    found.same(
        NEIGHBOURS,
        format_args!("1 remote access error (10); a neighbour: no event, {CARRIES}"),
        format_args!("{}; a neighbour: {}, {seen}", ends(&sent), names(&touched)),
    );
    Ok(())
}

/// A completion queue that overruns takes its queue pairs with it, and nobody else.
fn overrun(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let small = rig.sides[0].cx.create_cq(4)?;
    // As deep as the device made it.
    let depth = small.depth();
    let failing = [
        rig.qp::<Rc>(0, |options| {
            options.send_cq = &small;
            options.cap.max_send_wr = depth + 4;
        })?,
        rig.qp(1, |_| {})?,
    ];
    rig.connect(&failing, |_, _| {})?;
    let neighbour = rig.pair::<Rc>(|_, _| {})?;
    let to = rig.sides[1].remote(0);
    for wr in 0..u64::from(depth) + 2 {
        failing[0].post_send(&WorkRequest::write(Data::Inline(&[b"bytes"]), to).id(wr))?;
    }
    rig.settle();
    let events = rig.events(0);
    let has = |name: &str| events.iter().any(|event| event.name() == name);
    let came: Vec<_> = ["CQ_ERR", "QP_FATAL"].into_iter().filter(|name| has(name)).collect();
    let state = rig.state(&failing[0]);
    found.same(
        OVERRUN,
        "CQ_ERR and QP_FATAL, ERR",
        format_args!("{}, {state}", came.join(" and ")),
    );
    found.same(BEYOND, CARRIES, message(rig, &neighbour)?);
    Ok(())
}
