//! Nobody answered: status 12, a standstill, or datagrams that do not arrive. Who is silent, and why, the other end's
//! counters tell.

use super::evidence::{End, Peer, Symptom};
use super::facts::{Facts, millis, says};
use crate::verdict::{Code, Owner, Verdict};

fn is_silent(facts: &Facts<'_>) -> bool {
    match facts.evidence.symptom {
        Symptom::Completion(ref request) => request.status == 12,
        Symptom::Stalled { .. } => true,
        Symptom::Lost { arrived, sent } => arrived < sent,
        _ => false,
    }
}

/// A verdict of silence, with how long it was waited for.
fn silent(facts: &Facts<'_>, code: Code, owner: Owner, summary: impl Into<String>) -> Verdict {
    let mut verdict = Verdict::new(code, owner, summary);
    if let Some(patience) = facts.patience() {
        verdict = verdict.because(patience);
    }
    if facts.evidence.local.qp.timeout == Some(0) {
        verdict =
            verdict.because("timeout 0: silence is waited for without end, and nothing fails");
    }
    if let Some(state) = facts.evidence.local.qp.path_mig_state.as_ref().filter(|s| *s != "ARMED") {
        verdict =
            verdict.because(format!("no alternate path was taken: path_mig_state is {state}"));
    }
    verdict
}

/// Whether the two ends have understood each other on this connection: then they agree on what both must know.
fn understood(facts: &Facts<'_>) -> bool {
    facts.evidence.local.answers.is_some_and(|answers| answers > 0)
}

pub(super) fn roce_version(facts: &Facts<'_>) -> Option<Verdict> {
    let (ours, theirs) =
        (facts.evidence.local.qp.gid_type.as_ref()?, facts.far()?.qp.gid_type.as_ref()?);
    (is_silent(facts) && !understood(facts) && ours != theirs).then(|| {
        let summary = format!("this end sends RoCE {ours}, and the peer expects {theirs}");
        let index =
            |end: &End| end.qp.sgid_index.map_or_else(|| "?".into(), |index| index.to_string());
        let far = facts.far().map_or_else(String::new, index);
        silent(facts, Code::RoceVersionMismatch, Owner::Config, summary)
            .because(format!("sgid_index {} here, {far} there", index(&facts.evidence.local)))
            .turn(facts.knob("gid_index"))
    })
}

/// S1-41 and S1-71: the wire drops it without a word.
pub(super) fn qkey(facts: &Facts<'_>) -> Option<Verdict> {
    let Symptom::Lost { .. } = facts.evidence.symptom else { return None };
    let (ours, theirs) = (facts.evidence.local.qp.qkey, facts.far().and_then(|end| end.qp.qkey));
    let differ = ours.zip(theirs).is_some_and(|(ours, theirs)| ours != theirs);
    // Ours counts each under both names, others under the first alone.
    let counted = facts.remote("qkey_viol").max(facts.remote("drop_bad_qkey"));
    (counted > 0 || differ).then(|| {
        let shown =
            |key: Option<u32>| key.map_or_else(|| "unknown".into(), |key| format!("{key:#x}"));
        let summary = format!(
            "datagrams carry Q_Key {}, and the receiver expects {}",
            shown(ours),
            shown(theirs)
        );
        silent(facts, Code::QkeyMismatch, Owner::Config, summary)
            .because(says(format!("dropped for it: {counted}")))
            .turn("qkey")
    })
}

/// S1-24 and S1-69: both ends must start from the same number.
pub(super) fn psn(facts: &Facts<'_>) -> Option<Verdict> {
    let (sends, expects) = (facts.evidence.local.qp.sq_psn?, facts.far()?.qp.rq_psn?);
    (is_silent(facts) && !understood(facts) && sends != expects).then(|| {
        let summary =
            format!("this end sends from PSN {sends:#x} on, and the peer expects {expects:#x}");
        silent(facts, Code::PsnMismatch, Owner::Config, summary)
            .because(says(format!(
                "out_of_sequence={} duplicate_request={}",
                facts.remote("out_of_sequence"),
                facts.remote("duplicate_request")
            )))
            .turn("sq_psn of this end, rq_psn of the peer")
    })
}

pub(super) fn peer_not_ready(facts: &Facts<'_>) -> Option<Verdict> {
    let state = facts.far()?.qp.state.as_deref();
    let dropped = facts.remote("drop_qp_state").saturating_add(facts.remote("drop_unknown_qp"));
    // Whoever has seen a request twice was ready for the first one: if it drops others now, that is since it failed itself.
    let was_ready = facts.remote("duplicate_request") > 0;
    let deaf = state.filter(|state| match *state {
        "RESET" | "INIT" => true,
        "ERR" => dropped > 0 && !was_ready,
        _ => false,
    });
    let not_ready = deaf.is_some() || (dropped > 0 && !was_ready && state.is_none());
    (is_silent(facts) && not_ready).then(|| {
        let summary = match deaf {
            Some(state) => {
                format!("the queue pair of {} is in {state}, and takes nothing", facts.peer())
            }
            None => format!("{} has no queue pair that takes what is sent to it", facts.peer()),
        };
        silent(facts, Code::PeerNotReady, Owner::Remote, summary)
            .because(says(format!("frames dropped for its state: {dropped}")))
            .turn("take the peer's queue pair to RTR before this end sends")
    })
}

/// P04: the two ends were given different path MTUs.
fn mtus_differ(facts: &Facts<'_>) -> Option<Verdict> {
    let ours = facts.evidence.local.qp.path_mtu?;
    let theirs = facts.far()?.qp.path_mtu.filter(|theirs| *theirs != ours)?;
    let summary =
        format!("path MTU mismatch {ours}/{theirs}: packets of one end do not fit the other");
    Some(silent(facts, Code::MtuMismatch, Owner::Config, summary).turn(facts.knob("mtu")))
}

/// P04: a device that looks at the length of packets refuses those of another path MTU.
pub(super) fn mtu_refused(facts: &Facts<'_>) -> Option<Verdict> {
    facts.failed(9).and_then(|_| mtus_differ(facts))
}

/// P04: the two ends differ, or only long packets get lost.
pub(super) fn mtu(facts: &Facts<'_>) -> Option<Verdict> {
    if !is_silent(facts) {
        return None;
    }
    let ours = facts.evidence.local.qp.path_mtu;
    let theirs = facts.far().and_then(|end| end.qp.path_mtu);
    if ours.zip(theirs).is_some_and(|(ours, theirs)| ours != theirs) {
        return mtus_differ(facts);
    }
    let (passed, lost) = facts.evidence.sizes.filter(|(passed, lost)| passed < lost)?;
    let summary =
        format!("only packets > {passed} bytes are lost: the network takes no longer ones");
    let verdict = silent(facts, Code::MtuMismatch, Owner::Fabric, summary)
        .because(format!("{passed} bytes arrived, {lost} did not"));
    Some(verdict.turn(facts.knob("mtu")))
}

/// S3-10: alive, but later than the budget allows.
pub(super) fn responder_slow(facts: &Facts<'_>) -> Option<Verdict> {
    if !is_silent(facts) || matches!(facts.evidence.symptom, Symptom::Lost { .. }) {
        return None;
    }
    let budget = facts.budget().flatten();
    let gap = facts.far().and_then(|end| end.gap_ns).filter(|_| !facts.gap_was_before());
    let paused = budget.zip(gap).filter(|(budget, gap)| gap >= budget);
    let peer = facts.evidence.peer;
    let stands = match paused {
        Some((budget, gap)) => says(format!(
            "its poll loop stood for {}, the budget is {}",
            millis(gap),
            millis(budget)
        )),
        None if peer == Peer::Stopped => {
            "its process lives, and nothing in it answers: it was stopped, or has no core".into()
        }
        None if peer == Peer::Alive && facts.far().is_none() => {
            "its process answers on the control channel, and its poll loop does not".into()
        }
        // Who is silent there does not poll.
        None if facts.is_shared_memory() && matches!(peer, Peer::Alive | Peer::Silent) => {
            "its control channel is open, and shared memory loses nothing".into()
        }
        None => return None,
    };
    let summary =
        format!("{} is alive, and did not poll for longer than the retry budget", facts.peer());
    let verdict = silent(facts, Code::ResponderSlow, Owner::Remote, summary).because(stands);
    Some(verdict.turn(facts.knob("timeout")))
}

/// The peer has seen requests more than once up to the end: they arrive, and its answers do not. Where the last that it saw
/// came long before this end gave up, those that were sent since did not arrive either.
pub(super) fn ack_path_lost(facts: &Facts<'_>) -> Option<Verdict> {
    let again = facts.remote("duplicate_request");
    let sent_again = facts.local_if_counted("local_ack_timeout_err") != Some(0);
    let arrive = facts.last_duplicate().is_none_or(|(_, arrive)| arrive);
    let lost = is_silent(facts) && again > 0 && sent_again && arrive && !facts.is_shared_memory();
    lost.then(|| {
        let summary = format!(
            "requests arrive at {} more than once, and its acknowledgements do not come back",
            facts.peer()
        );
        silent(facts, Code::AckPathLost, Owner::Fabric, summary)
            .because(says(format!("requests that it had seen before: {again}")))
            .turn(facts.knob("timeout"))
    })
}

/// Nothing passes, as far as the other end can tell.
pub(super) fn link_dead(facts: &Facts<'_>) -> Option<Verdict> {
    if !is_silent(facts) {
        return None;
    }
    let partly = matches!(facts.evidence.symptom, Symptom::Lost { arrived: 1.., .. });
    let known = facts.far().is_some();
    let is_silent = facts.evidence.peer == Peer::Silent;
    ((known || is_silent) && !partly).then(|| {
        let summary = if facts.is_alive() {
            "nothing passes to the peer, and its control channel is open: the path between is dead"
        } else if is_silent {
            "nothing passes to the peer, on its control channel neither: the path or its host is dead"
        } else {
            "nothing passes to the peer within the retry budget"
        };
        let verdict = silent(facts, Code::LinkDead, Owner::Fabric, summary);
        let again = facts.remote("duplicate_request");
        let verdict = match facts.last_duplicate().filter(|_| again > 0) {
            Some((before, _)) => verdict.because(says(format!(
                "a request that it had seen before came last {} before this end gave up",
                millis(before)
            ))),
            None if known && again == 0 => {
                verdict.because(says("no request arrived a second time".into()))
            }
            None => verdict,
        };
        verdict.turn(facts.knob("timeout"))
    })
}

/// Silence, and nobody to ask.
pub(super) fn nobody_answered(facts: &Facts<'_>) -> Option<Verdict> {
    (is_silent(facts) && facts.far().is_none()).then(|| {
        let summary = "nobody answered; whether requests or acknowledgements were lost, only the peer's counters tell";
        silent(facts, Code::Unknown, Owner::Fabric, summary).turn(facts.knob("timeout"))
    })
}

/// S1-02 and S1-72: services that may lose messages lost some.
pub(super) fn allowed_loss(facts: &Facts<'_>) -> Option<Verdict> {
    let Symptom::Lost { sent, arrived } = facts.evidence.symptom else { return None };
    let lossy = matches!(facts.evidence.local.qp.transport.as_deref(), Some("UC" | "UD"));
    (lossy && arrived > 0).then(|| {
        Verdict::ok(format!(
            "{} of {sent} messages were lost, as this service may",
            sent - arrived.min(sent)
        ))
    })
}
