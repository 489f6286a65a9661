//! Why a measurement broke: how it broke and what both ends know, as evidence for the rules of `pmd-observe`.

use pmd_graph::config::units::show_time;
use pmd_lcore::limits::GAP_OLD_NS;
use pmd_observe::report::Nanos;
use pmd_observe::why::{End, Evidence, Knobs, Opcode, Path, Peer, Request, Symptom, diagnose};
use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::{WcOpcode, WcStatus};

use super::failure::Failure;
use super::limits::OWN_GAP_NS;
use super::params::Params;
use super::refusal::Refusal;
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

/// What the peer said, and for how long this end did not poll before: whoever was stopped knows of it.
pub(super) fn with_own_gap(refusal: Refusal, own: &End) -> Refusal {
    let (Some(gap), Some(age)) = (own.gap_ns, own.gap_age_ns) else { return refusal };
    if gap < OWN_GAP_NS || age > GAP_OLD_NS {
        return refusal;
    }
    let fact = format!("this end did not poll for {}: it was stopped, or had no core", Nanos(gap));
    Refusal { verdict: refusal.verdict.because(fact), ..refusal }
}

/// What is known of both ends.
#[derive(Debug, Default)]
pub(super) struct Scene {
    pub(super) local: End,
    pub(super) remote: Option<End>,
    pub(super) peer: Peer,
    pub(super) told_after_ns: Option<u64>,
    /// Why what the peer told is no evidence.
    pub(super) nonsense: Option<String>,
}

/// The verdict on a failure of this end, and what it was made of.
pub(super) fn explain(
    failure: &Failure,
    params: &Params,
    scene: Scene,
    path: &str,
) -> (Verdict, Option<Evidence>) {
    let words = failure.to_string();
    let nonsense = scene.nonsense.clone();
    let evidence = symptom(failure).map(|symptom| evidence(symptom, scene, path));
    let mut verdict = match &evidence {
        Some(evidence) => diagnose(evidence),
        None => {
            let (code, owner) = match failure {
                Failure::Length { .. } => (Code::Length, Owner::Local),
                Failure::Usage(_) => (Code::Unknown, Owner::Config),
                Failure::Unmet { silent: true, .. } => (Code::LinkDead, Owner::Fabric),
                Failure::Unmet { .. } => (Code::PeerNotReady, Owner::Remote),
                _ => (Code::Unknown, Owner::Local),
            };
            Verdict::new(code, owner, words.clone())
        }
    };
    if verdict.summary != words && !verdict.evidence.contains(&words) {
        verdict = verdict.because(words);
    }
    if let Some(nonsense) = nonsense {
        verdict = verdict.because(nonsense);
    }
    if params.no_post_recv && params.test.op() == Op::Send {
        verdict = verdict.because("--no-post-recv: the server posted no receive");
    }
    if let Some(pause) = params.pause {
        verdict = verdict
            .because(format!("--pause-responder: the server stood still for {}", show_time(pause)));
    }
    if let Some(wrong) = params.misconnect {
        verdict = verdict.because(format!("--misconnect {wrong}: the server is wrong on purpose"));
    }
    (verdict, evidence)
}

/// What was met, where rules can say more than the words of the failure.
fn symptom(failure: &Failure) -> Option<Symptom> {
    Some(match failure {
        Failure::Completion { status, opcode, .. } => Symptom::Completion(Request {
            status: *status as u8,
            opcode: kind(*opcode),
            ..Request::default()
        }),
        Failure::Stalled { seconds } => Symptom::Stalled { for_ns: seconds * 1_000_000_000 },
        Failure::NothingArrives { sent } => Symptom::Lost { sent: *sent, arrived: 0 },
        Failure::Mismatch { .. } => Symptom::Mismatch { place: failure.to_string() },
        Failure::Length { .. }
        | Failure::Unmet { .. }
        | Failure::Device(_)
        | Failure::Unfit(_)
        | Failure::Usage(_) => return None,
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

fn evidence(symptom: Symptom, scene: Scene, path: &str) -> Evidence {
    let Scene { local, remote, peer, told_after_ns, nonsense: _ } = scene;
    Evidence {
        symptom,
        local,
        remote,
        told_after_ns,
        path: if path == "local" { Path::Local } else { Path::Packet },
        peer,
        knobs: Knobs::flags(),
        ..Evidence::default()
    }
}

#[cfg(test)]
mod tests {
    use pmd_observe::why::{Qp, Receives};
    use pmd_verbs::roce::ids::Qpn;

    use super::*;
    use crate::perf::params::tests::params;

    const MS: u64 = 1_000_000;

    fn scene(local: &[(&'static str, u64)], remote: &[(&'static str, u64)]) -> Scene {
        let end = |moved: &[(&'static str, u64)]| End {
            after: moved.iter().copied().collect(),
            qp: Qp { timeout: Some(14), retry_cnt: Some(7), rnr_retry: Some(3), ..Qp::default() },
            receives: Receives { posted: Some(9), ..Receives::default() },
            ..End::default()
        };
        let (local, remote) = (end(local), Some(end(remote)));
        Scene { local, remote, peer: Peer::Alive, ..Scene::default() }
    }

    fn status(status: WcStatus) -> Failure {
        Failure::Completion { status, opcode: WcOpcode::Send, qpn: Qpn::new(7) }
    }

    #[test]
    fn silence_missing_receives_and_endless_waits_are_told_apart() {
        let quiet = params("send-bw").unwrap();
        let explain = |failure: &Failure, scene: Scene| explain(failure, &quiet, scene, "packet").0;
        let dead = explain(&status(WcStatus::RetryExc), scene(&[], &[]));
        assert_eq!((dead.code, dead.knob.as_deref()), (Code::LinkDead, Some("--qp-timeout")));
        assert!(dead.evidence.iter().any(|fact| fact.contains("67.1 ms a try")), "{dead}");
        let again = scene(&[], &[("duplicate_request", 7)]);
        assert_eq!(explain(&status(WcStatus::RetryExc), again).code, Code::AckPathLost);
        let none = explain(&status(WcStatus::RnrRetryExc), scene(&[], &[]));
        assert_eq!(none.code, Code::RnrExhausted);
        let stall = Failure::Stalled { seconds: 3 };
        assert_eq!(explain(&stall, scene(&[("rnr_nak_retry_err", 100)], &[])).code, Code::RnrStall);
        assert_eq!(explain(&stall, scene(&[], &[])).code, Code::LinkDead);
        let lost = Failure::NothingArrives { sent: 9 };
        let verdict = explain(&lost, scene(&[], &[("out_of_buffer", 9)]));
        assert_eq!((verdict.code, verdict.owner), (Code::NoReceives, Owner::Remote));
        assert!(verdict.evidence.iter().any(|fact| fact.contains("out_of_buffer=9")), "{verdict}");
    }

    /// P11 and S0-24: what the server knows of itself tells a pause from a path, and missing receives from late ones.
    #[test]
    fn a_server_that_paused_or_posted_nothing_says_so() {
        let quiet = params("write-bw").unwrap();
        let explain = |failure: &Failure, change: &dyn Fn(&mut Scene), path: &str| {
            let mut scene = scene(&[], &[("duplicate_request", 7)]);
            change(&mut scene);
            let (verdict, evidence) = explain(failure, &quiet, scene, path);
            assert_eq!(diagnose(&evidence.unwrap()).code, verdict.code);
            (verdict.code, verdict.owner)
        };
        let silent = status(WcStatus::RetryExc);
        let gap =
            |ns: u64| move |scene: &mut Scene| scene.remote.as_mut().unwrap().gap_ns = Some(ns);
        let slow = (Code::ResponderSlow, Owner::Remote);
        assert_eq!(explain(&silent, &gap(900 * MS), "packet"), slow);
        assert_eq!(explain(&silent, &gap(9 * MS), "packet").0, Code::AckPathLost);
        assert_eq!(explain(&silent, &|_| {}, "local"), slow);
        assert_eq!(explain(&silent, &|scene| scene.remote = None, "packet"), slow);
        let never = |scene: &mut Scene| scene.remote.as_mut().unwrap().receives.posted = Some(0);
        let none = explain(&status(WcStatus::RnrRetryExc), &never, "local");
        assert_eq!(none, (Code::NoReceives, Owner::Remote));
    }

    #[test]
    fn who_stood_still_says_so_beside_the_peers_words() {
        let words = || Refusal::failed(Verdict::new(Code::PeerDead, Owner::Remote, "it is gone"));
        let own = |gap: u64, age: u64| End {
            gap_ns: Some(gap * MS),
            gap_age_ns: Some(age * MS),
            ..End::default()
        };
        for (gap, age, says) in [(12_000, 3, true), (100, 3, false), (12_000, 60_000, false)] {
            let told = with_own_gap(words(), &own(gap, age)).verdict;
            assert_eq!(told.code, Code::PeerDead);
            let named = told.evidence.iter().any(|fact| fact.starts_with("this end did not poll"));
            assert_eq!(named, says, "{told}");
        }
        assert!(with_own_gap(words(), &End::default()).verdict.evidence.is_empty());
    }

    #[test]
    fn a_connection_manager_that_nobody_answers_has_a_verdict() {
        let quiet = params("write-bw").unwrap();
        for (silent, code) in [(true, Code::LinkDead), (false, Code::PeerNotReady)] {
            let failure = Failure::Unmet { reason: "nothing answered".into(), silent };
            let (verdict, _) = explain(&failure, &quiet, Scene::default(), "packet");
            assert_eq!(verdict.code, code);
        }
    }
}
