//! Something as a whole is gone: a peer, a device, a queue. These come first, since they explain everything behind them.

use super::evidence::{Peer, Symptom};
use super::facts::Facts;
use crate::verdict::{Code, Owner, Verdict};

pub(super) fn peer_dead(facts: &Facts<'_>) -> Option<Verdict> {
    let gone = facts.evidence.peer == Peer::Dead && facts.evidence.symptom != Symptom::None;
    gone.then(|| {
        Verdict::new(Code::PeerDead, Owner::Remote, format!("{} is gone", facts.peer()))
            .because("its process or its control channel ended")
    })
}

pub(super) fn device_gone(facts: &Facts<'_>) -> Option<Verdict> {
    let end = facts
        .has_event("DEVICE_FATAL")
        .or_else(|| facts.failed(19).map(|_| &facts.evidence.local))?;
    let (owner, whose) = side(facts, end);
    let summary = format!("{whose} device failed as a whole: everything on it is lost");
    Some(Verdict::new(Code::DeviceGone, owner, summary))
}

pub(super) fn cq_overrun(facts: &Facts<'_>) -> Option<Verdict> {
    let counted = |is_local: bool| {
        let moved = if is_local { facts.local("cq_overruns") } else { facts.remote("cq_overruns") };
        (moved > 0).then_some(is_local)
    };
    let is_local = match facts.has_event("CQ_ERR") {
        Some(end) => facts.is_local(end),
        None => counted(true).or_else(|| counted(false))?,
    };
    let (owner, whose) = whose(is_local);
    let summary = format!(
        "{whose} completion queue was too small for what completed, and every queue pair on it failed"
    );
    let verdict = Verdict::new(Code::CqOverrun, owner, summary)
        .because("no completion can come from a queue that overran");
    Some(verdict.turn(facts.knob("cq_depth")))
}

pub(super) fn srq_error(facts: &Facts<'_>) -> Option<Verdict> {
    let end = facts.has_event("SRQ_ERR")?;
    let (owner, whose) = side(facts, end);
    let summary =
        format!("{whose} shared receive queue failed, and every queue pair on it with it");
    Some(Verdict::new(Code::SrqError, owner, summary))
}

pub(super) fn data_mismatch(facts: &Facts<'_>) -> Option<Verdict> {
    let Symptom::Mismatch { place } = &facts.evidence.symptom else { return None };
    let verdict = Verdict::new(Code::DataMismatch, Owner::Local, place.clone());
    Some(
        verdict.because("bytes that arrived are not those that were sent, and no checksum noticed"),
    )
}

fn side(facts: &Facts<'_>, end: &super::evidence::End) -> (Owner, &'static str) {
    whose(facts.is_local(end))
}

const fn whose(is_local: bool) -> (Owner, &'static str) {
    if is_local { (Owner::Local, "this end's") } else { (Owner::Remote, "the peer's") }
}
