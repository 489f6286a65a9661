//! What a peer says of itself, against what this end knows: a claim explains, and never overrides.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pmd_observe::why::{
    End, Evidence, Knobs, Opcode, Path, Peer, Qp, Request, Symptom, Told, diagnose,
};
use pmd_observe::{Code, Owner, Snapshot, Verdict};

const MS: u64 = 1_000_000;
/// The retry budget of [`qp`] is 536.9 ms.
const BUDGET: u64 = 8 * (4096 << 14);

fn counters(moved: &[(&'static str, u64)]) -> Snapshot {
    moved.iter().copied().collect()
}

fn qp() -> Qp {
    Qp {
        transport: Some("RC".into()),
        timeout: Some(14),
        retry_cnt: Some(7),
        sq_psn: Some(7),
        rq_psn: Some(7),
        ..Qp::default()
    }
}

/// A request that failed, and what the peer counts.
fn failed(status: u8, remote: &[(&'static str, u64)]) -> Evidence {
    let request = Request { status, opcode: Opcode::Write, ..Request::default() };
    let end = |name: &str, moved| End {
        name: name.into(),
        qp: qp(),
        after: counters(moved),
        ..End::default()
    };
    Evidence {
        symptom: Symptom::Completion(request),
        local: end("client", &[("local_ack_timeout_err", 8), ("rnr_nak_retry_err", 0)]),
        remote: Some(end("server", remote)),
        peer: Peer::Alive,
        knobs: Knobs::node("client"),
        ..Evidence::default()
    }
}

fn with(mut evidence: Evidence, change: impl FnOnce(&mut Evidence, &mut End)) -> Evidence {
    let mut far = evidence.remote.take().unwrap();
    change(&mut evidence, &mut far);
    evidence.remote = Some(far);
    evidence
}

fn is(evidence: &Evidence) -> (Code, Owner) {
    let verdict = diagnose(evidence);
    (verdict.code, verdict.owner)
}

fn says(verdict: &Verdict, fact: &str) {
    assert!(verdict.evidence.iter().any(|line| line.contains(fact)), "no `{fact}` in {verdict}");
}

/// A completion queue, a receive queue or a device that the peer lost would have answered nothing: where something was
/// answered, what was answered counts.
#[test]
fn a_peer_that_answered_had_not_failed_as_a_whole() {
    let claims = |status| {
        with(failed(status, &[("cq_overruns", 9)]), |_, far| {
            far.events = ["CQ_ERR", "SRQ_ERR", "DEVICE_FATAL"].map(str::to_owned).into();
        })
    };
    for (status, code) in [
        (9, Code::InvalidRequest),
        (10, Code::AccessMr),
        (13, Code::RnrExhausted),
        (4, Code::LocalProtection),
        (1, Code::Length),
    ] {
        assert_eq!(diagnose(&claims(status)).code, code, "status {status}");
    }
    let lying = with(claims(12), |evidence, _| {
        evidence.symptom = Symptom::Mismatch { place: "byte 7 differs".into() };
    });
    assert_eq!(is(&lying), (Code::DataMismatch, Owner::Local));
}

/// Where it can be why, it is told as what it is: the peer's word.
#[test]
fn what_only_the_peer_knows_is_its_word() {
    for (event, code) in [
        ("CQ_ERR", Code::CqOverrun),
        ("SRQ_ERR", Code::SrqError),
        ("DEVICE_FATAL", Code::DeviceGone),
    ] {
        let claims = |status| with(failed(status, &[]), |_, far| far.events.push(event.into()));
        for status in [12, 11, 5] {
            let verdict = diagnose(&claims(status));
            assert_eq!((verdict.code, verdict.owner), (code, Owner::Remote), "{verdict}");
            assert!(verdict.summary.starts_with("the peer says: its "), "{verdict}");
        }
        let own = with(claims(12), |evidence, _| evidence.local.events.push(event.into()));
        assert_eq!(is(&own), (code, Owner::Local), "what this end met itself comes first");
    }
    let counted = with(failed(12, &[("cq_overruns", 1)]), |evidence, _| {
        evidence.local.after.extend([("cq_overruns", 2)]);
    });
    assert_eq!(is(&counted), (Code::CqOverrun, Owner::Local));
    let verdict = diagnose(&failed(12, &[("duplicate_request", 7)]));
    says(&verdict, "the peer says: requests that it had seen before: 7");
    says(&verdict, "the peer says: counters of the peer since the start: duplicate_request=7");
}

/// An RNR NAK is met here: where this end counts them and got none, the peer's counter proves nothing.
#[test]
fn missing_receives_are_noticed_here() {
    let stalled = |heard: Option<u64>| {
        with(failed(0, &[("out_of_buffer", 900)]), |evidence, _| {
            evidence.symptom = Symptom::Stalled { for_ns: 3_000 * MS };
            evidence.local.after =
                heard.map(|heard| ("rnr_nak_retry_err", heard)).into_iter().collect();
        })
    };
    assert_eq!(diagnose(&stalled(Some(0))).code, Code::LinkDead);
    assert_eq!(diagnose(&stalled(Some(900))).code, Code::RnrStall);
    assert_eq!(diagnose(&stalled(None)).code, Code::RnrStall, "nobody here counts them");
}

/// Ends that have understood each other agree on where they began, and on how packets look.
#[test]
fn who_was_answered_once_is_not_misconfigured() {
    let claims = |answers| {
        with(failed(12, &[]), |evidence, far| {
            (far.qp.rq_psn, far.qp.gid_type) = (Some(8), Some("v1".into()));
            (evidence.local.qp.gid_type, evidence.local.answers) = (Some("v2".into()), answers);
        })
    };
    assert_eq!(diagnose(&claims(None)).code, Code::RoceVersionMismatch);
    assert_eq!(diagnose(&claims(Some(0))).code, Code::RoceVersionMismatch);
    assert_eq!(diagnose(&claims(Some(1))).code, Code::LinkDead);
    let psn = with(claims(Some(0)), |_, far| far.qp.gid_type = Some("v2".into()));
    assert_eq!(diagnose(&psn).code, Code::PsnMismatch);
}

/// Silence with requests that arrived a second time: whether the last ones still did tells a path that is dead in one
/// direction from one that is dead in both, in whichever order the directions died.
#[test]
fn the_last_tries_tell_a_lost_ack_path_from_a_dead_link() {
    let last = |age_ms: u64, told_ms: u64| {
        with(failed(12, &[("duplicate_request", 40)]), |evidence, far| {
            (far.duplicate_age_ns, evidence.told_after_ns) =
                (Some(age_ms * MS), Some(told_ms * MS));
        })
    };
    // Only acknowledgements are lost: the last try arrived one ACK timeout before this end gave up, whenever it is asked.
    assert_eq!(is(&last(67, 0)), (Code::AckPathLost, Owner::Fabric));
    assert_eq!(is(&last(967, 900)), (Code::AckPathLost, Owner::Fabric));
    // Acknowledgements were lost first, and requests soon after: some came again before they did not any more.
    let both = last(470, 1);
    assert_eq!(is(&both), (Code::LinkDead, Owner::Fabric));
    says(
        &diagnose(&both),
        "a request that it had seen before came last 469.0 ms before this end gave up",
    );
    // Requests were lost first: what came again did so long ago, over a path that was slow then.
    assert_eq!(is(&last(60_000, 1)), (Code::LinkDead, Owner::Fabric));
    // Both at once: nothing came a second time.
    let verdict = diagnose(&failed(12, &[]));
    assert_eq!((verdict.code, verdict.owner), (Code::LinkDead, Owner::Fabric));
    says(&verdict, "no request arrived a second time");
    // A standstill that nothing ends is judged by how long it is.
    let stalled = |age_ms| {
        with(last(age_ms, 0), |evidence, _| {
            evidence.symptom = Symptom::Stalled { for_ns: 3_000 * MS };
        })
    };
    assert_eq!(diagnose(&stalled(2_000)).code, Code::AckPathLost);
    assert_eq!(diagnose(&stalled(2_900)).code, Code::LinkDead);
    // With one retry there is one try to go by.
    let one = with(last(67, 0), |evidence, _| evidence.local.qp.retry_cnt = Some(1));
    assert_eq!(diagnose(&one).code, Code::AckPathLost);
    let none = with(last(134, 0), |evidence, _| evidence.local.qp.retry_cnt = Some(1));
    assert_eq!(diagnose(&none).code, Code::LinkDead);
    // Who has sent nothing again was not heard twice.
    let liar = with(last(67, 0), |evidence, _| {
        evidence.local.after = counters(&[("local_ack_timeout_err", 0)]);
    });
    assert_eq!(diagnose(&liar).code, Code::LinkDead);
}

fn given_up(code: Code, gap_ns: u64, age_ns: u64) -> Evidence {
    let reason = "`server` is alive, and did not poll for longer than the retry budget".to_owned();
    with(failed(0, &[]), |evidence, far| {
        evidence.symptom = Symptom::Event;
        evidence.told = Some(Told { code, reason });
        (evidence.local.gap_ns, evidence.local.gap_age_ns) = (Some(gap_ns), Some(age_ns));
        far.name = "client".into();
    })
}

/// A process that was stopped and goes on finds that its peer has given it up: it knows itself why.
#[test]
fn whoever_stood_still_names_itself() {
    for code in [Code::ResponderSlow, Code::LinkDead, Code::Unknown] {
        for path in [Path::Packet, Path::Local] {
            let evidence = Evidence { path, ..given_up(code, 3_200 * MS, 5 * MS) };
            let verdict = diagnose(&evidence);
            assert_eq!((verdict.code, verdict.owner), (Code::ResponderSlow, Owner::Local));
            assert_eq!(
                verdict.summary,
                "this end did not poll for 3200.0 ms, and client gave it up"
            );
            says(&verdict, "the peer says: it waits for 536.9 ms");
            says(&verdict, &format!("the peer says: {code}: `server` is alive"));
            // Though its peer is gone meanwhile.
            assert_eq!(is(&Evidence { peer: Peer::Dead, ..evidence }).1, Owner::Local);
        }
    }
    // It need not know how long a peer waits that names what it saw.
    let alone = Evidence { remote: None, ..given_up(Code::ResponderSlow, 200 * MS, 5 * MS) };
    assert_eq!(is(&alone), (Code::ResponderSlow, Owner::Local));
}

/// The same where its own requests fail first, since the peer's queue pair has: what counts is how long the peer waits, which
/// may be far less than this end does.
#[test]
fn whoever_stood_still_names_itself_though_its_own_requests_failed() {
    let met = |status, gap_ms: u64, their_status| {
        with(failed(status, &[]), |evidence, far| {
            evidence.path = Path::Local;
            evidence.local.qp.timeout = Some(18);
            far.status = their_status;
            (evidence.local.gap_ns, evidence.local.gap_age_ns) = (Some(gap_ms * MS), Some(MS));
        })
    };
    for status in [12, 5] {
        assert_eq!(is(&met(status, 1_158, Some(12))), (Code::ResponderSlow, Owner::Local));
    }
    // It did not stand still for so long, or the peer has not given up, or it was refused.
    assert_eq!(is(&met(12, 300, Some(12))), (Code::ResponderSlow, Owner::Remote));
    assert_eq!(is(&met(12, 1_158, None)), (Code::ResponderSlow, Owner::Remote));
    assert_eq!(is(&met(10, 1_158, Some(12))).0, Code::AccessMr);
}

/// Without a gap of its own, that long and just now, it only has the peer's word.
#[test]
fn whoever_polled_all_the_time_has_only_the_peers_word() {
    for (gap_ns, age_ns) in [(99 * MS, 0), (3_200 * MS, 10_000 * MS), (0, 0)] {
        let verdict = diagnose(&given_up(Code::ResponderSlow, gap_ns, age_ns));
        assert_eq!((verdict.code, verdict.owner), (Code::ResponderSlow, Owner::Remote));
        says(&verdict, "the peer says: responder-slow: `server` is alive");
    }
    assert_eq!(is(&given_up(Code::LinkDead, BUDGET - 1, 0)), (Code::LinkDead, Owner::Remote));
    // Standing still explains no failure that was met otherwise.
    let refused = given_up(Code::DataMismatch, 3_200 * MS, 5 * MS);
    assert_eq!(is(&refused), (Code::DataMismatch, Owner::Remote));
    assert_eq!(is(&given_up(Code::Length, 3_200 * MS, 5 * MS)).1, Owner::Config);
}
