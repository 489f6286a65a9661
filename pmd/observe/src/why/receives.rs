//! The peer answered that it has no receive: alive, but nothing to put it into.

use super::evidence::Symptom;
use super::facts::{Facts, says};
use crate::report::Nanos;
use crate::verdict::{Code, Owner, Verdict};

/// Whether it was receives that were missing: status 13, or RNR NAKs behind a standstill.
fn lacks_receives(facts: &Facts<'_>) -> bool {
    // This end has heard of it, if it counts that; else only the peer knows.
    let waited = match facts.local_if_counted("rnr_nak_retry_err") {
        Some(heard) => heard > 0,
        None => facts.remote("out_of_buffer") > 0,
    };
    match facts.evidence.symptom {
        Symptom::Completion(ref request) => request.status == 13,
        Symptom::Stalled { .. } => waited,
        Symptom::Lost { .. } => {
            facts.remote("out_of_buffer") > 0 || facts.remote("drop_no_receive") > 0
        }
        _ => false,
    }
}

/// S1-50: all SENDs of all its queue pairs meet an empty pool.
pub(super) fn srq_dry(facts: &Facts<'_>) -> Option<Verdict> {
    let far = facts.far().filter(|end| end.receives.shared)?;
    let ran_low = far.events.iter().any(|event| event == "SRQ_LIMIT_REACHED");
    let dry = lacks_receives(facts) && (far.receives.waiting == Some(0) || ran_low);
    dry.then(|| {
        let summary = format!(
            "the shared receive queue of {} ran empty: receives are posted again more slowly than messages come",
            facts.peer()
        );
        Verdict::new(Code::SrqDry, Owner::Remote, summary)
            .because(says(format!(
                "messages that found it empty: {}",
                facts.remote("out_of_buffer")
            )))
            .turn("depth of the shared receive queue, its limit, and how soon receives are posted again")
    })
}

pub(super) fn no_receives(facts: &Facts<'_>) -> Option<Verdict> {
    let stalls = matches!(facts.evidence.symptom, Symptom::Stalled { .. });
    let lost = matches!(facts.evidence.symptom, Symptom::Lost { .. });
    let never = facts.far().is_some_and(|end| end.receives.posted == Some(0));
    (lacks_receives(facts) && !stalls && (never || lost)).then(|| {
        let summary = if never {
            format!("messages reach {}, which says that it never posted a receive", facts.peer())
        } else {
            format!("messages reach {}, which says that it has no receive posted", facts.peer())
        };
        Verdict::new(Code::NoReceives, Owner::Remote, summary)
            .turn("receives at the peer: post them in INIT, before it can be reached")
    })
}

/// S0-20: answered, nowhere to put it.
pub(super) fn rnr_exhausted(facts: &Facts<'_>) -> Option<Verdict> {
    facts.failed(13)?;
    let summary = format!(
        "{} answered, and had no receive posted for as long as the RNR retries lasted: look at its post loop",
        facts.peer()
    );
    let mut verdict = Verdict::new(Code::RnrExhausted, Owner::Remote, summary)
        .because(format!("RNR NAKs that arrived: {}", facts.local("rnr_nak_retry_err")));
    if facts.local("local_ack_timeout_err") == 0 {
        verdict = verdict.because("no ACK timeout: the peer is alive");
    }
    let knob = facts.knob("rnr_retry");
    if let Some(retries) = facts.evidence.local.qp.rnr_retry {
        verdict = verdict.because(format!("{knob} {retries}: so many retries after the first try"));
    }
    Some(verdict.turn(knob))
}

/// P12: with seven RNR retries nothing ever fails, so somebody must say it.
pub(super) fn rnr_stall(facts: &Facts<'_>) -> Option<Verdict> {
    let Symptom::Stalled { for_ns } = facts.evidence.symptom else { return None };
    lacks_receives(facts).then(|| {
        let knob = facts.knob("rnr_retry");
        let summary = format!(
            "{} has had no receive posted for {}, and {knob} 7 waits without limit",
            facts.peer(),
            Nanos(for_ns)
        );
        let verdict = Verdict::new(Code::RnrStall, Owner::Remote, summary);
        let never = facts.far().is_some_and(|end| end.receives.posted == Some(0));
        let verdict =
            if never { verdict.because(says("it never posted one".into())) } else { verdict };
        verdict.turn(knob)
    })
}
