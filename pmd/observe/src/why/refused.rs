//! The peer answered, and refused; or this side's device did.
//!
//! The event at the responder and the status at the requester are two classifications: a misaligned atomic is an access
//! error there and an invalid request here. NICs differ in which status they choose, so rules look at what is known of
//! both queue pairs before they believe the number.

use super::evidence::{Opcode, Request, Symptom};
use super::facts::Facts;
use crate::verdict::{Code, Owner, Verdict};

/// A negative acknowledgement: 9, 10 or 11.
fn refused<'a>(facts: &Facts<'a>) -> Option<&'a Request> {
    [9, 10, 11].into_iter().find_map(|status| facts.failed(status))
}

/// S0-11: a queue pair allows one-sided operations since INIT, or never.
pub(super) fn access_qp(facts: &Facts<'_>) -> Option<Verdict> {
    let request = refused(facts).filter(|request| request.status != 11)?;
    let right = request.opcode.right()?;
    let access = facts.far()?.qp.access?;
    (!right.is_in(access)).then(|| {
        let summary = format!(
            "the peer's queue pair does not allow a {}: it went to INIT without {}",
            request.opcode.name(),
            right.name()
        );
        Verdict::new(Code::AccessQp, Owner::Remote, summary)
            .because(format!("qp_access_flags of the peer: {access:#x}"))
            .turn("qp_access_flags at the peer's RESET -> INIT")
    })
}

pub(super) fn atomic_misaligned(facts: &Facts<'_>) -> Option<Verdict> {
    let request = refused(facts).filter(|request| request.opcode == Opcode::Atomic)?;
    let addr = request.remote_addr.filter(|addr| !addr.is_multiple_of(8))?;
    let summary = format!("an atomic wants eight aligned bytes, and {addr:#x} is no multiple of 8");
    Some(Verdict::new(Code::AtomicMisaligned, Owner::Local, summary))
}

pub(super) fn rd_atomic(facts: &Facts<'_>) -> Option<Verdict> {
    let request = refused(facts)?;
    let (ours, theirs) =
        (facts.evidence.local.qp.max_rd_atomic?, facts.far()?.qp.max_dest_rd_atomic?);
    let outstanding = matches!(request.opcode, Opcode::Read | Opcode::Atomic) && ours > theirs;
    outstanding.then(|| {
        let summary = format!(
            "this end may have {ours} READs and atomics outstanding, and the peer has resources for {theirs}"
        );
        Verdict::new(Code::RdAtomic, Owner::Config, summary).turn(facts.knob("max_rd_atomic"))
    })
}

/// A message that is longer than what it was to go into. The requester sees 9, or 11 from the kernel's driver.
pub(super) fn length(facts: &Facts<'_>) -> Option<Verdict> {
    if facts.failed(1).is_some() {
        let summary = "a message is longer than the local buffer, or than the device's limit";
        return Some(Verdict::new(Code::Length, Owner::Local, summary));
    }
    let request = refused(facts).filter(|request| request.status != 10)?;
    let far = facts.far()?;
    let too_small = far.receives.bytes.zip(request.bytes).is_some_and(|(room, bytes)| bytes > room)
        && request.opcode == Opcode::Send;
    let told = facts.remote("resp_local_length_error") > 0 || far.status == Some(1);
    (too_small || told).then(|| {
        let verdict = Verdict::new(
            Code::Length,
            Owner::Config,
            "a message is longer than the receive that the peer posted for it",
        );
        match (request.bytes, far.receives.bytes) {
            (Some(bytes), Some(room)) => {
                verdict.because(format!("{bytes} bytes into a receive of {room}"))
            }
            _ => verdict,
        }
    })
}

pub(super) fn access_mr(facts: &Facts<'_>) -> Option<Verdict> {
    let request = facts.failed(10)?;
    let summary = format!(
        "the peer's memory does not allow this {}: key, bounds or rights are wrong",
        request.opcode.name()
    );
    Some(
        Verdict::new(Code::AccessMr, Owner::Local, summary)
            .turn("rkey, address and length of the request"),
    )
}

pub(super) fn remote_operation(facts: &Facts<'_>) -> Option<Verdict> {
    let broken = facts.failed(11).is_some() || facts.failed(7).is_some();
    broken.then(|| {
        let summary = "the peer failed while it executed the request: look at its own completions";
        let verdict = Verdict::new(Code::RemoteOperation, Owner::Remote, summary);
        match facts.far().and_then(|end| end.status) {
            Some(status) => {
                verdict.because(format!("its own status: {}", super::facts::status(status)))
            }
            None => verdict,
        }
    })
}

pub(super) fn local_protection(facts: &Facts<'_>) -> Option<Verdict> {
    let request = facts.failed(4).or_else(|| facts.failed(8))?;
    let summary = format!(
        "a local buffer of a {} is not registered for this use: its key, bounds or rights are wrong",
        request.opcode.name()
    );
    Some(Verdict::new(Code::LocalProtection, Owner::Local, summary))
}

pub(super) fn invalid_request(facts: &Facts<'_>) -> Option<Verdict> {
    if let Some(request) = facts.failed(9) {
        let summary = format!("the peer found a {} invalid", request.opcode.name());
        return Some(Verdict::new(Code::InvalidRequest, Owner::Local, summary));
    }
    if let Some(request) = facts.failed(2).or_else(|| facts.failed(6)) {
        let summary = format!("this queue pair cannot do a {}", request.opcode.name());
        return Some(Verdict::new(Code::InvalidRequest, Owner::Local, summary));
    }
    let Symptom::Post { .. } = facts.evidence.symptom else { return None };
    let summary = "the device refused the work request at once: nothing was sent";
    Some(Verdict::new(Code::InvalidRequest, Owner::Local, summary))
}

/// S1-68 and S1-70: a modify call that was refused, and what would have been right.
pub(super) fn transition(facts: &Facts<'_>) -> Option<Verdict> {
    let Symptom::Transition(transition) = &facts.evidence.symptom else { return None };
    let edge = format!("{} -> {}", transition.from, transition.to);
    let (summary, knob) = if transition.from == "ERR" {
        (
            format!(
                "{edge}: a queue pair in ERR stays there until it is taken to RESET and brought up again"
            ),
            "modify to RESET, then INIT, RTR and RTS".to_owned(),
        )
    } else if !transition.skipped.is_empty() {
        let skipped = transition.skipped.join(", ");
        (
            format!("{edge} skips {skipped}: each step is a call of its own"),
            format!("modify to {skipped} first"),
        )
    } else if !transition.missing.is_empty() {
        let missing = transition.missing.join(", ");
        (format!("{edge} lacks {missing}"), missing)
    } else if !transition.illegal.is_empty() {
        let illegal = transition.illegal.join(", ");
        (format!("{edge} does not take {illegal}"), illegal)
    } else {
        (format!("{edge} was refused"), "the attributes of the call".to_owned())
    };
    let verdict = Verdict::new(Code::InvalidRequest, Owner::Local, summary).turn(knob);
    Some(match zeroes(facts) {
        zeroes if zeroes.is_empty() => verdict,
        zeroes => verdict.because(format!("read back as zero: {}", zeroes.join(", "))),
    })
}

/// Attributes of RTR that a query of the queue pair shows as zero.
fn zeroes(facts: &Facts<'_>) -> Vec<&'static str> {
    let qp = &facts.evidence.local.qp;
    let zero = |value: Option<u32>| value == Some(0);
    [
        ("dest_qp_num", zero(qp.dest_qpn)),
        ("rq_psn", zero(qp.rq_psn)),
        ("path_mtu", zero(qp.path_mtu)),
        ("max_dest_rd_atomic", zero(qp.max_dest_rd_atomic.map(u32::from))),
        ("min_rnr_timer", zero(qp.min_rnr_timer.map(u32::from))),
    ]
    .into_iter()
    .filter_map(|(name, zero)| zero.then_some(name))
    .collect()
}
