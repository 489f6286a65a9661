//! RESET: from every state, on RESET itself, and the way back.

use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Data, Qp, Rc, WorkRequest};

use super::finding::{Findings, Question, question};
use super::judge::differences;
use super::rig::{Ground, RECEIVES, Rig, Way, ends, go, step};

const ON_RESET: Question = question("on-reset", "IBTA 1.4, 10.3.1 (RESET to RESET)");
const FROM: Question = question("from-every-state", "IBTA 1.4, 10.3.1; man ibv_modify_qp");
const AGAIN: Question = question("and-again", "IBTA 1.4, 10.3.1");

pub(super) fn run(ground: &Ground<'_>, way: Way, found: &mut Findings) -> anyhow::Result<()> {
    on_reset(&ground.rig(way)?, found)?;
    use QpState::{Error, Init, Rtr, Rts, Sqd};
    for path in
        [&[Init][..], &[Init, Rtr], &[Init, Rtr, Rts], &[Init, Rtr, Rts, Sqd], &[Init, Error]]
    {
        from(&ground.rig(way)?, path, found)?;
    }
    again(&ground.rig(way)?, found)
}

fn as_new(fresh: &QpAttr, rig: &Rig<'_>, qp: &Qp<Rc>) -> String {
    let view = rig.view(qp);
    let state = view.attr.state;
    let outstanding = view.send_outstanding + view.recv_outstanding;
    let differs = differences(fresh, &view.attr, !0).next();
    format!(
        "{state}, {outstanding} outstanding, {}",
        differs.unwrap_or_else(|| "as new".to_owned())
    )
}

const NEW: &str = "RESET, 0 outstanding, as new";

fn on_reset(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let qp: Qp<Rc> = rig.qp(0, |_| {})?;
    let fresh = qp.query().attr;
    let seen = match go(&qp, QpState::Reset) {
        Ok(()) => as_new(&fresh, rig, &qp),
        Err(error) => format!("refused: {error}"),
    };
    found.same(ON_RESET, NEW, seen);
    Ok(())
}

/// What was posted is forgotten without a completion, and what was set is as when it was new.
fn from(rig: &Rig<'_>, path: &[QpState], found: &mut Findings) -> anyhow::Result<()> {
    let (qp, peer): (Qp<Rc>, Qp<Rc>) = (rig.qp(0, |_| {})?, rig.qp(1, |_| {})?);
    let fresh = qp.query().attr;
    let attr = rig.attr(0, peer.number())?;
    for to in path {
        step(&qp, &attr, *to)?;
    }
    let state = qp.state();
    if state != QpState::Error {
        // In Error they would be flushed at once.
        rig.sides[0].receives(&qp, RECEIVES, 2, 64)?;
    }
    let seen = match go(&qp, QpState::Reset) {
        Ok(()) => as_new(&fresh, rig, &qp),
        Err(error) => format!("refused: {error}"),
    };
    let [got, _] = rig.complete([0, 0]);
    found.same(
        FROM,
        format_args!("{state}: {NEW}; nothing completes"),
        format_args!("{state}: {seen}; {}", ends(&got)),
    );
    Ok(())
}

/// A connection that failed carries messages again after RESET of both ends.
fn again(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let qps = rig.pair::<Rc>(|_, _| {})?;
    for qp in &qps {
        go(qp, QpState::Error)?;
    }
    for qp in &qps {
        go(qp, QpState::Reset)?;
    }
    rig.connect(&qps, |_, _| {})?;
    rig.sides[1].receives(&qps[1], RECEIVES, 1, 64)?;
    qps[0].post_send(&WorkRequest::send(Data::Inline(&[b"again"])).id(1))?;
    let [sent, received] = rig.complete([1, 1]);
    found.same(
        AGAIN,
        "1 success (0); peer: 100 success (0)",
        format_args!("{}; peer: {}", ends(&sent), ends(&received)),
    );
    Ok(())
}
