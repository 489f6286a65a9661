//! Why a measurement broke, from how it broke and the counters of both ends.

use pmd_observe::{Code, Owner, Snapshot, Verdict};
use pmd_verbs::WcStatus;

use super::failure::Failure;
use super::params::Params;
use super::session::Counters;
use super::test::Op;

/// Whether the peer's own words say more than this.
pub(super) fn is_vague(failure: &Failure) -> bool {
    match failure {
        Failure::Completion { status, .. } => {
            !matches!(status, WcStatus::RnrRetryExc | WcStatus::LocProt | WcStatus::LocLen)
        }
        Failure::Mismatch { .. } | Failure::Length { .. } => false,
        _ => true,
    }
}

/// The verdict on a failure of this end.
pub(super) fn explain(
    failure: &Failure,
    params: &Params,
    counters: &Counters,
    path: &str,
) -> Verdict {
    let local = counters.local[1].since(&counters.local[0]);
    let remote = counters.remote[1].since(&counters.remote[0]);
    let moved = |snapshot: &Snapshot, name: &str| snapshot.get(name).unwrap_or(0);
    let verdict = match failure {
        Failure::Completion { status, .. } => completion(*status, params, &local, &remote, path),
        Failure::Stalled { seconds } if moved(&local, "rnr_nak_retry_err") > 0 || moved(&remote, "out_of_buffer") > 0 => {
            Verdict::new(
                Code::RnrStall,
                Owner::Remote,
                format!("the peer has had no receive posted for {seconds} s, and --rnr-retry 7 waits without limit"),
            )
            .turn("--rnr-retry")
        }
        Failure::Stalled { .. } => Verdict::new(Code::LinkDead, Owner::Fabric, failure.to_string()),
        Failure::NothingArrives { .. } if moved(&remote, "out_of_buffer") > 0 => Verdict::new(
            Code::NoReceives,
            Owner::Remote,
            "messages reach the peer, which has no receive posted",
        ),
        Failure::NothingArrives { .. } => {
            Verdict::new(Code::LinkDead, Owner::Fabric, failure.to_string())
        }
        Failure::Mismatch { .. } => Verdict::new(Code::DataMismatch, Owner::Local, failure.to_string()),
        Failure::Length { .. } => Verdict::new(Code::Length, Owner::Local, failure.to_string()),
        Failure::Device(_) | Failure::Unfit(_) => {
            Verdict::new(Code::Unknown, Owner::Local, failure.to_string())
        }
        Failure::Usage(_) => Verdict::new(Code::Unknown, Owner::Config, failure.to_string()),
    };
    let mut verdict = verdict.because(failure.to_string());
    if params.no_post_recv && params.test.op() == Op::Send {
        verdict = verdict.because("--no-post-recv: the server posted no receive");
    }
    for (whose, delta) in [("this end", &local), ("the peer", &remote)] {
        let delta = trouble(delta);
        if !delta.is_empty() {
            verdict = verdict.because(format!("counters of {whose} since the start: {delta}"));
        }
    }
    verdict
}

fn completion(
    status: WcStatus,
    params: &Params,
    local: &Snapshot,
    remote: &Snapshot,
    path: &str,
) -> Verdict {
    let moved = |snapshot: &Snapshot, name: &str| snapshot.get(name).unwrap_or(0);
    let budget = params.budget().map_or_else(
        || "no limit".to_owned(),
        |budget| format!("{:.1} ms", budget.as_secs_f64() * 1e3),
    );
    match status {
        WcStatus::RetryExc => {
            let late = params.pause.is_some() || moved(remote, "duplicate_request") > 0;
            let (code, owner, summary) = if params.pause.is_some() {
                (
                    Code::ResponderSlow,
                    Owner::Remote,
                    "the peer is alive, and did not poll for longer than the retry budget",
                )
            } else if late && path == "packet" {
                (
                    Code::AckPathLost,
                    Owner::Fabric,
                    "requests arrive at the peer more than once, and its acknowledgements do not come back",
                )
            } else {
                (
                    Code::LinkDead,
                    Owner::Fabric,
                    "the peer did not answer within the retry budget, and its control channel is open",
                )
            };
            Verdict::new(code, owner, summary)
                .because(format!("retry budget: {budget}"))
                .turn("--qp-timeout")
        }
        WcStatus::RnrRetryExc => Verdict::new(
            Code::RnrExhausted,
            Owner::Remote,
            "the peer had no receive posted for as long as the RNR retries lasted",
        )
        .because(format!("RNR NAKs that arrived: {}", moved(local, "rnr_nak_retry_err")))
        .turn("--rnr-retry"),
        WcStatus::RemAccess => Verdict::new(
            Code::AccessMr,
            Owner::Remote,
            "the peer's memory does not allow this access",
        ),
        WcStatus::RemInvReq => {
            Verdict::new(Code::InvalidRequest, Owner::Local, "the peer found the request invalid")
        }
        WcStatus::RemOp => Verdict::new(
            Code::RemoteOperation,
            Owner::Remote,
            "the peer failed while it executed the request",
        ),
        WcStatus::LocLen => {
            Verdict::new(Code::Length, Owner::Local, "a message is longer than its buffer")
        }
        WcStatus::LocProt | WcStatus::LocAccess => Verdict::new(
            Code::LocalProtection,
            Owner::Local,
            "a local buffer is not registered for this use",
        ),
        WcStatus::Fatal => Verdict::new(Code::DeviceGone, Owner::Local, "the device failed"),
        status => Verdict::new(Code::Unknown, Owner::Local, format!("a request failed: {status}")),
    }
}

/// Of the counters that moved, those that tell of trouble.
fn trouble(delta: &Snapshot) -> Snapshot {
    let tells = |name: &str| {
        !(name.starts_with("tx_")
            || name.starts_with("rx_")
            || name.contains("bytes")
            || name.contains("calls"))
    };
    let moved = delta.iter().filter(|(name, value)| *value > 0 && tells(name));
    moved.map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::params::tests::params;

    fn counters(local: &[(&'static str, u64)], remote: &[(&'static str, u64)]) -> Counters {
        let after = |values: &[(&'static str, u64)]| values.iter().copied().collect();
        Counters {
            local: [Snapshot::default(), after(local)],
            remote: [Snapshot::default(), after(remote)],
        }
    }

    #[test]
    fn silence_missing_receives_and_endless_waits_are_told_apart() {
        let params = params("send-bw").unwrap();
        let status = |status| Failure::Completion { status, opcode: pmd_verbs::WcOpcode::Send };
        let explain =
            |failure: &Failure, counters: &Counters| explain(failure, &params, counters, "packet");
        let none = counters(&[], &[]);
        let dead = explain(&status(WcStatus::RetryExc), &none);
        assert_eq!((dead.code, dead.knob.as_deref()), (Code::LinkDead, Some("--qp-timeout")));
        let again = counters(&[], &[("duplicate_request", 7)]);
        assert_eq!(explain(&status(WcStatus::RetryExc), &again).code, Code::AckPathLost);
        assert_eq!(explain(&status(WcStatus::RnrRetryExc), &none).code, Code::RnrExhausted);
        let stall = Failure::Stalled { seconds: 3 };
        let waits = counters(&[("rnr_nak_retry_err", 100)], &[]);
        assert_eq!(explain(&stall, &waits).code, Code::RnrStall);
        assert_eq!(explain(&stall, &none).code, Code::LinkDead);
        let lost = Failure::NothingArrives { sent: 9 };
        let dry = counters(&[], &[("out_of_buffer", 9)]);
        let verdict = explain(&lost, &dry);
        assert_eq!((verdict.code, verdict.owner), (Code::NoReceives, Owner::Remote));
        assert!(verdict.evidence.iter().any(|fact| fact.contains("out_of_buffer=9")), "{verdict}");
    }
}
