//! Why a measurement broke: how it broke and the counters of both ends, as evidence for the rules of `pmd-observe`.

use pmd_observe::why::{
    End, Evidence, Knobs, Opcode, Path, Peer, Qp, Receives, Request, Symptom, diagnose,
};
use pmd_observe::{Code, Owner, Snapshot, Verdict};
use pmd_verbs::{WcOpcode, WcStatus};

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
    let words = failure.to_string();
    let mut verdict = match symptom(failure) {
        Some(symptom) => diagnose(&evidence(symptom, params, counters, path)),
        None => {
            let (code, owner) = match failure {
                Failure::Length { .. } => (Code::Length, Owner::Local),
                Failure::Usage(_) => (Code::Unknown, Owner::Config),
                _ => (Code::Unknown, Owner::Local),
            };
            Verdict::new(code, owner, words.clone())
        }
    };
    if verdict.summary != words && !verdict.evidence.contains(&words) {
        verdict = verdict.because(words);
    }
    if params.no_post_recv && params.test.op() == Op::Send {
        verdict = verdict.because("--no-post-recv: the server posted no receive");
    }
    if let Some(pause) = params.pause {
        verdict =
            verdict.because(format!("--pause-responder: the server stood still for {pause:?}"));
    }
    verdict
}

/// What was met, where rules can say more than the words of the failure.
fn symptom(failure: &Failure) -> Option<Symptom> {
    Some(match failure {
        Failure::Completion { status, opcode } => Symptom::Completion(Request {
            status: *status as u8,
            opcode: kind(*opcode),
            ..Request::default()
        }),
        Failure::Stalled { seconds } => Symptom::Stalled { for_ns: seconds * 1_000_000_000 },
        Failure::NothingArrives { sent } => Symptom::Lost { sent: *sent, arrived: 0 },
        Failure::Mismatch { .. } => Symptom::Mismatch { place: failure.to_string() },
        Failure::Length { .. } | Failure::Device(_) | Failure::Unfit(_) | Failure::Usage(_) => {
            return None;
        }
    })
}

const fn kind(opcode: WcOpcode) -> Opcode {
    match opcode {
        WcOpcode::Write => Opcode::Write,
        WcOpcode::Read => Opcode::Read,
        WcOpcode::CompareSwap | WcOpcode::FetchAdd => Opcode::Atomic,
        WcOpcode::Recv | WcOpcode::RecvWriteImm => Opcode::Recv,
        _ => Opcode::Send,
    }
}

fn evidence(symptom: Symptom, params: &Params, counters: &Counters, path: &str) -> Evidence {
    let end = |name: &str, [before, after]: &[Snapshot; 2]| End {
        name: name.into(),
        before: before.clone(),
        after: after.clone(),
        ..End::default()
    };
    let silent = params.no_post_recv && params.test.op() == Op::Send;
    let remote = End {
        receives: Receives { posted: silent.then_some(0), ..Receives::default() },
        gap_ns: params.pause.map(|pause| u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX)),
        ..end("the peer", &counters.remote)
    };
    let mut local = end("this end", &counters.local);
    local.qp = Qp {
        transport: Some(params.transport.to_string().to_uppercase()),
        timeout: Some(params.timeout),
        retry_cnt: Some(params.retry_cnt),
        rnr_retry: Some(params.rnr_retry),
        min_rnr_timer: Some(params.min_rnr_timer),
        ..Qp::default()
    };
    Evidence {
        symptom,
        local,
        remote: Some(remote),
        path: if path == "local" { Path::Local } else { Path::Packet },
        // The words of both ends go over a channel of their own, which would have told of its end.
        peer: Peer::Alive,
        knobs: Knobs::flags(),
        ..Evidence::default()
    }
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
        let quiet = params("send-bw").unwrap();
        let status = |status| Failure::Completion { status, opcode: WcOpcode::Send };
        let explain =
            |failure: &Failure, counters: &Counters| explain(failure, &quiet, counters, "packet");
        let none = counters(&[], &[]);
        let dead = explain(&status(WcStatus::RetryExc), &none);
        assert_eq!((dead.code, dead.knob.as_deref()), (Code::LinkDead, Some("--qp-timeout")));
        assert!(dead.evidence.iter().any(|fact| fact.contains("67.1 ms a try")), "{dead}");
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

    /// P11 and S0-24: what the server was told to do is evidence, too.
    #[test]
    fn a_server_that_was_told_to_pause_or_to_post_nothing_is_believed() {
        let explain = |flags: &str, status, path: &str| {
            let failure = Failure::Completion { status, opcode: WcOpcode::Send };
            let again = counters(&[], &[("duplicate_request", 7)]);
            explain(&failure, &params(flags).unwrap(), &again, path)
        };
        let slow =
            explain("write-bw --retry-cnt 2 --pause-responder 2s", WcStatus::RetryExc, "packet");
        assert_eq!((slow.code, slow.owner), (Code::ResponderSlow, Owner::Remote));
        let none = explain("send-bw --no-post-recv --rnr-retry 3", WcStatus::RnrRetryExc, "local");
        assert_eq!((none.code, none.owner), (Code::NoReceives, Owner::Remote));
        let shared = explain("write-bw", WcStatus::RetryExc, "local");
        assert_eq!(shared.code, Code::ResponderSlow);
    }
}
