//! Something as a whole is gone: a peer, a device, a queue. These come first, since they explain everything behind them.

use super::evidence::{Peer, Symptom, Told};
use super::facts::{Facts, millis, says};
use crate::verdict::{Code, Owner, Verdict};

pub(super) fn peer_dead(facts: &Facts<'_>) -> Option<Verdict> {
    let gone = facts.evidence.peer == Peer::Dead && facts.evidence.symptom != Symptom::None;
    gone.then(|| {
        Verdict::new(Code::PeerDead, Owner::Remote, format!("{} is gone", facts.peer()))
            .because("its process or its control channel ended")
    })
}

/// The peer gave this end up, and this end knows that it stood still meanwhile.
pub(super) fn stood_still(facts: &Facts<'_>) -> Option<Verdict> {
    let (gap, patience) = facts.stood_still()?;
    let summary =
        format!("this end did not poll for {}, and {} gave it up", millis(gap), facts.peer());
    let verdict = Verdict::new(Code::ResponderSlow, Owner::Local, summary)
        .because(says(format!("it waits for {}", millis(patience))));
    Some(verdict.turn("what keeps this end from polling, or the peer's timeout and retry_cnt"))
}

/// Why the peer ended the connection, as it says.
pub(super) fn told(facts: &Facts<'_>) -> Option<Verdict> {
    let Told { code, reason } = facts.evidence.told.as_ref()?;
    let owner = match code {
        // These concern what was configured, on whichever side.
        Code::Length | Code::InvalidRequest => Owner::Config,
        _ => Owner::Remote,
    };
    Some(Verdict::new(*code, owner, reason.clone()))
}

pub(super) fn device_gone(facts: &Facts<'_>) -> Option<Verdict> {
    let summary = "device failed as a whole: everything on it is lost";
    if facts.has_event("DEVICE_FATAL") || facts.failed(19).is_some() {
        return Some(ours(Code::DeviceGone, summary));
    }
    facts.peer_has_event("DEVICE_FATAL").then(|| theirs(Code::DeviceGone, summary))
}

pub(super) fn cq_overrun(facts: &Facts<'_>) -> Option<Verdict> {
    let summary =
        "completion queue was too small for what completed, and every queue pair on it failed";
    let why = "no completion can come from a queue that overran";
    let knob = facts.knob("cq_depth");
    if facts.has_event("CQ_ERR") || facts.local("cq_overruns") > 0 {
        return Some(ours(Code::CqOverrun, summary).because(why).turn(knob));
    }
    let counted = facts.remote("cq_overruns") > 0 && facts.can_be_a_peer_that_failed();
    let verdict = || theirs(Code::CqOverrun, summary).because(why).turn(knob);
    (counted || facts.peer_has_event("CQ_ERR")).then(verdict)
}

pub(super) fn srq_error(facts: &Facts<'_>) -> Option<Verdict> {
    let summary = "shared receive queue failed, and every queue pair on it with it";
    if facts.has_event("SRQ_ERR") {
        return Some(ours(Code::SrqError, summary));
    }
    facts.peer_has_event("SRQ_ERR").then(|| theirs(Code::SrqError, summary))
}

pub(super) fn data_mismatch(facts: &Facts<'_>) -> Option<Verdict> {
    let Symptom::Mismatch { place } = &facts.evidence.symptom else { return None };
    let verdict = Verdict::new(Code::DataMismatch, Owner::Local, place.clone());
    Some(
        verdict.because("bytes that arrived are not those that were sent, and no checksum noticed"),
    )
}

fn ours(code: Code, what: &str) -> Verdict {
    Verdict::new(code, Owner::Local, format!("this end's {what}"))
}

/// What only the peer knows.
fn theirs(code: Code, what: &str) -> Verdict {
    Verdict::new(code, Owner::Remote, says(format!("its {what}")))
}
