//! Why something failed: rules over the evidence of both ends.
//!
//! Each rule is a function of the evidence alone, and the first that applies gives the verdict; the order is in one table,
//! from what explains everything to what explains least. Status 12 means silence, and 13 that the peer is alive but has
//! nowhere to put it; which of the worlds behind these numbers it is, the counters and attributes of the other end tell.

mod broken;
mod evidence;
mod facts;
mod history;
mod receives;
mod refused;
mod silence;
mod state;

pub use evidence::{
    End, Evidence, FaultHits, Knobs, Opcode, Path, Peer, Qp, Receives, Request, Right, Symptom,
    Told, Transition,
};
pub use facts::{ack_timeout_ns, retry_budget_ns};
pub use history::{Half, attributes_of, evidence_of, trouble};
pub use state::evidence_of_state;

use self::facts::{Facts, with_observations};
use crate::verdict::{Code, Owner, Verdict};

type Rule = fn(&Facts<'_>) -> Option<Verdict>;

/// In this order.
const RULES: &[Rule] = &[
    broken::data_mismatch,
    broken::stood_still,
    broken::told,
    broken::device_gone,
    broken::peer_dead,
    broken::cq_overrun,
    broken::srq_error,
    refused::transition,
    refused::atomic_misaligned,
    refused::access_qp,
    refused::length,
    refused::access_mr,
    refused::rd_atomic,
    refused::remote_operation,
    refused::local_protection,
    silence::mtu_refused,
    refused::invalid_request,
    receives::srq_dry,
    receives::no_receives,
    receives::rnr_stall,
    receives::rnr_exhausted,
    silence::qkey,
    silence::roce_version,
    silence::psn,
    silence::peer_not_ready,
    silence::mtu,
    silence::allowed_loss,
    silence::responder_slow,
    silence::ack_path_lost,
    silence::link_dead,
    silence::nobody_answered,
    receiver_failed,
];

/// The verdict, with everything that was observed as its evidence.
pub fn diagnose(evidence: &Evidence) -> Verdict {
    let facts = Facts::new(evidence);
    let verdict = match evidence.symptom {
        Symptom::None => Verdict::ok("all that was asked for was done"),
        _ => RULES.iter().find_map(|rule| rule(&facts)).unwrap_or_else(|| unknown(&facts)),
    };
    with_observations(verdict, &facts)
}

/// Flushed requests and bare events say only that something else failed; the other end may know what.
fn receiver_failed(facts: &Facts<'_>) -> Option<Verdict> {
    let far = facts.far()?;
    let vague = facts.failed(5).is_some() || matches!(facts.evidence.symptom, Symptom::Event);
    let status = far.status.filter(|status| vague && !matches!(status, 0 | 5))?;
    // Its view is ours from the other side.
    let request = Request { status, ..Request::default() };
    let turned = Evidence {
        symptom: Symptom::Completion(request),
        local: far.clone(),
        remote: Some(facts.evidence.local.clone()),
        ..facts.evidence.clone()
    };
    let theirs = diagnose(&turned);
    let owner = match theirs.owner {
        Owner::Local => Owner::Remote,
        Owner::Remote => Owner::Local,
        shared => shared,
    };
    let mut verdict =
        Verdict::new(theirs.code, owner, format!("the peer says: {}", theirs.summary));
    verdict.knob = theirs.knob;
    Some(verdict)
}

fn unknown(facts: &Facts<'_>) -> Verdict {
    let summary = match &facts.evidence.symptom {
        Symptom::Completion(request) if request.status == 5 => {
            "requests were flushed behind a failure that nobody has recorded".to_owned()
        }
        Symptom::Completion(request) => {
            format!("a request failed with status {}", facts::status(request.status))
        }
        _ => "the evidence fits no known cause".to_owned(),
    };
    Verdict::new(Code::Unknown, Owner::Local, summary)
}
