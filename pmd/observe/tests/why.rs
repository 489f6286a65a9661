//! Each cause with the evidence that it leaves, and evidence that only looks like it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use pmd_observe::why::{
    End, Evidence, FaultHits, Knobs, Opcode, Path, Peer, Qp, Receives, Request, Symptom,
    Transition, diagnose,
};
use pmd_observe::{Code, Owner, Snapshot, Verdict};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn counters(moved: &[(&'static str, u64)]) -> Snapshot {
    moved.iter().copied().collect()
}

fn rc() -> Qp {
    Qp {
        transport: Some("RC".into()),
        state: Some("RTS".into()),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        sq_psn: Some(0x10_0000),
        rq_psn: Some(0x20_0000),
        path_mtu: Some(1024),
        gid_type: Some("v2".into()),
        access: Some(0xe),
        max_rd_atomic: Some(4),
        max_dest_rd_atomic: Some(4),
        ..Qp::default()
    }
}

fn peer() -> Qp {
    Qp { sq_psn: Some(0x20_0000), rq_psn: Some(0x10_0000), ..rc() }
}

/// A request of this end that failed between two sound ends, of which the counters moved so.
fn failed(status: u8, local: &[(&'static str, u64)], remote: &[(&'static str, u64)]) -> Evidence {
    let request = Request { status, opcode: Opcode::Write, bytes: Some(64), ..Request::default() };
    let end = |name: &str, qp: Qp, moved| End {
        name: name.into(),
        qp,
        after: counters(moved),
        receives: Receives { posted: Some(100), waiting: Some(10), ..Receives::default() },
        gap_ns: Some(MS),
        ..End::default()
    };
    Evidence {
        symptom: Symptom::Completion(request),
        local: end("client", rc(), local),
        remote: Some(end("server", peer(), remote)),
        peer: Peer::Alive,
        knobs: Knobs::node("client"),
        ..Evidence::default()
    }
}

const SILENT: &[(&str, u64)] =
    &[("local_ack_timeout_err", 8), ("req_transport_retries_exceeded", 1)];

fn silence(remote: &[(&'static str, u64)]) -> Evidence {
    failed(12, SILENT, remote)
}

fn with(mut evidence: Evidence, change: impl FnOnce(&mut Evidence, &mut End)) -> Evidence {
    let mut far = evidence.remote.take().unwrap();
    change(&mut evidence, &mut far);
    evidence.remote = Some(far);
    evidence
}

fn request(evidence: &mut Evidence) -> &mut Request {
    match &mut evidence.symptom {
        Symptom::Completion(request) => request,
        other => panic!("{other:?}"),
    }
}

fn code(evidence: &Evidence) -> Code {
    diagnose(evidence).code
}

fn says(verdict: &Verdict, fact: &str) {
    assert!(verdict.evidence.iter().any(|line| line.contains(fact)), "no `{fact}` in {verdict}");
}

fn lost(transport: &str, arrived: u64, remote: &[(&'static str, u64)]) -> Evidence {
    with(failed(0, &[], remote), |evidence, _| {
        evidence.symptom = Symptom::Lost { sent: 100, arrived };
        evidence.local.qp.transport = Some(transport.into());
    })
}

fn transition(from: &str, to: &str, missing: &[&str], skipped: &[&str]) -> Evidence {
    let owned = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
    Evidence {
        symptom: Symptom::Transition(Transition {
            from: from.into(),
            to: to.into(),
            missing: owned(missing),
            skipped: owned(skipped),
            reason: "refused".into(),
            ..Transition::default()
        }),
        ..Evidence::default()
    }
}

/// P11 (a): requests go out, none arrives a second time, the control channel lives.
#[test]
fn p11_a_link_dead() {
    let verdict = diagnose(&silence(&[]));
    assert_eq!((verdict.code, verdict.owner), (Code::LinkDead, Owner::Fabric));
    says(&verdict, "local_ack_timeout_err=8");
}

/// P11 (b), S3-09: the peer has seen requests again; the verdict names the knobs, and what they amount to.
#[test]
fn p11_b_ack_path_lost() {
    let evidence = with(silence(&[("duplicate_request", 7)]), |evidence, _| {
        let request = request(evidence);
        (request.psn, request.tries, request.bytes) = (Some(0x10_0a00), Some(8), Some(1 << 20));
        (evidence.local.qp.qpn, evidence.local.qp.dest_qpn) = (Some(0x11), Some(0x22));
    });
    let verdict = diagnose(&evidence);
    assert_eq!((verdict.code, verdict.owner), (Code::AckPathLost, Owner::Fabric));
    says(&verdict, "duplicate_request=7");
    says(
        &verdict,
        "WRITE failed with status 12 (transport retry counter exceeded), to server, queue pair 0x11, toward 0x22, \
         PSN 0x100a00, bytes 1048576, tries 8, budget 536.9 ms",
    );
    assert_eq!(verdict.knob.as_deref(), Some("node.client.timeout"));
    says(
        &verdict,
        "node.client.timeout 14, node.client.retry_cnt 7: 67.1 ms a try, 536.9 ms in all",
    );
}

/// P11 (c): the peer's queue pair takes nothing yet. One that failed only when we told it is another matter.
#[test]
fn p11_c_peer_not_ready() {
    let in_state =
        |state: &str, moved| with(silence(moved), |_, far| far.qp.state = Some(state.into()));
    let verdict = diagnose(&in_state("INIT", &[("drop_qp_state", 8)]));
    assert_eq!((verdict.code, verdict.owner), (Code::PeerNotReady, Owner::Remote));
    assert!(verdict.summary.contains("INIT"), "{verdict}");
    assert_eq!(code(&in_state("ERR", &[("drop_qp_state", 8)])), Code::PeerNotReady);
    assert_eq!(
        code(&in_state("ERR", &[("duplicate_request", 7), ("drop_qp_state", 1)])),
        Code::AckPathLost
    );
    assert_eq!(code(&in_state("ERR", &[])), Code::LinkDead);
    let unknown = with(silence(&[("drop_unknown_qp", 8)]), |_, far| far.qp = Qp::default());
    assert_eq!(code(&unknown), Code::PeerNotReady);
}

/// P11 (d), S1-24, S1-69 and S2-20: read-back of both ends shows it, whichever way packets count there.
#[test]
fn s1_69_psn_mismatch() {
    for moved in [("out_of_sequence", 8), ("duplicate_request", 8)] {
        let evidence = with(silence(&[moved]), |_, far| far.qp.rq_psn = Some(0x10_0001));
        let verdict = diagnose(&evidence);
        assert_eq!((verdict.code, verdict.owner), (Code::PsnMismatch, Owner::Config));
        assert!(verdict.summary.contains("0x100000") && verdict.summary.contains("0x100001"));
    }
}

/// P11 (e) and S3-10: a pause beyond the budget, which a longer one would have survived; duplicates prove nothing then.
#[test]
fn p11_e_responder_slow() {
    let paused = |gap_ms| {
        with(silence(&[("duplicate_request", 7)]), |_, far| far.gap_ns = Some(gap_ms * MS))
    };
    let verdict = diagnose(&paused(900));
    assert_eq!((verdict.code, verdict.owner), (Code::ResponderSlow, Owner::Remote));
    says(&verdict, "its poll loop stood for 900.0 ms, the budget is 536.9 ms");
    assert!(verdict.knob.as_deref() == Some("node.client.timeout"));
    assert_eq!(code(&paused(400)), Code::AckPathLost, "400 ms are within the budget");
    // A pause that ended before the failure began did not cause it.
    let ended = |age_ms, told_ms| {
        with(paused(900), |evidence, far| {
            (far.gap_age_ns, evidence.told_after_ns) = (Some(age_ms * MS), Some(told_ms * MS));
        })
    };
    assert_eq!(code(&ended(2, 360)), Code::ResponderSlow);
    assert_eq!(code(&ended(50, 1)), Code::AckPathLost);
    // Through shared memory nothing is lost: silence is a loop that stands.
    let shared = with(silence(&[]), |evidence, _| evidence.path = Path::Local);
    assert_eq!(code(&shared), Code::ResponderSlow);
}

/// P11 (f).
#[test]
fn p11_f_roce_version_mismatch() {
    let evidence = with(silence(&[]), |_, far| {
        (far.qp.gid_type, far.qp.sgid_index) = (Some("v1".into()), Some(2));
    });
    let verdict = diagnose(&evidence);
    assert_eq!((verdict.code, verdict.owner), (Code::RoceVersionMismatch, Owner::Config));
    assert_eq!(verdict.knob.as_deref(), Some("node.client.gid_index"));
}

/// S0-21: without the other end nobody can tell, and the verdict says so.
#[test]
fn silence_of_an_unknown_peer_is_not_guessed_at() {
    let verdict = diagnose(&Evidence { remote: None, peer: Peer::Unknown, ..silence(&[]) });
    assert_eq!((verdict.code, verdict.owner), (Code::Unknown, Owner::Fabric));
    says(&verdict, "the peer's half is unknown: give its run directory, too");
}

/// P11 (a) and (e): an end that does not tell its half is told apart by what of it still answers.
#[test]
fn p11_what_answers_tells_a_slow_peer_from_a_dead_path() {
    for (peer, is, why) in [
        (
            Peer::Alive,
            Code::ResponderSlow,
            "answers on the control channel, and its poll loop does not",
        ),
        (
            Peer::Stopped,
            Code::ResponderSlow,
            "nothing in it answers: it was stopped, or has no core",
        ),
        (Peer::Silent, Code::LinkDead, "nothing is heard on its control channel"),
        (Peer::Dead, Code::PeerDead, "it ended with its process"),
    ] {
        let verdict = diagnose(&Evidence { remote: None, peer, ..silence(&[]) });
        assert_eq!(verdict.code, is, "{verdict}");
        says(&verdict, why);
    }
    let path = Path::Local;
    let shared = Evidence { remote: None, peer: Peer::Silent, path, ..silence(&[]) };
    assert_eq!(code(&shared), Code::ResponderSlow);
}

/// Siblings at the same port are not to blame: what a queue pair counts by itself is believed first.
#[test]
fn the_queue_pairs_own_counters_come_first() {
    let own = |count| {
        with(silence(&[("duplicate_request", 70), ("drop_icrc", 2)]), |_, far| {
            far.qp.counters = counters(&[("duplicate_request", count)]);
        })
    };
    assert_eq!(code(&own(0)), Code::LinkDead);
    let verdict = diagnose(&own(7));
    assert_eq!(verdict.code, Code::AckPathLost);
    says(&verdict, "drop_icrc=2 duplicate_request=7");
}

/// Whoever disturbed the wire on purpose reads so in the verdict; and what a program has left lying is shown.
#[test]
fn faults_and_completions_that_wait_are_evidence() {
    let evidence = with(silence(&[("duplicate_request", 7)]), |evidence, far| {
        evidence.local.faults = vec![FaultHits { rule: "drop acks".into(), hits: 52 }];
        far.completions = Some(3);
    });
    let verdict = diagnose(&evidence);
    says(&verdict, "fault on purpose at this end: `drop acks` hit 52 frames");
    says(&verdict, "completions that the peer's program has not taken: 3");
}

proptest! {
    /// A peer can say what it likes: there is a verdict, and no panic.
    #[test]
    fn no_lie_upsets_a_rule(
        status in 0_u8..=255,
        values: [u64; 8],
        bytes: (u8, u8, u32, u64),
        words: [String; 3],
    ) {
        let names = ["duplicate_request", "out_of_buffer", "drop_qp_state", "drop_unknown_qp", "qkey_viol",
            "drop_bad_qkey", "rnr_nak_retry_err", "drop_no_receive"];
        let (small, other, word, long) = bytes;
        let [state, event, name] = words;
        let lie = End {
            name,
            before: names.into_iter().zip(values.into_iter().rev()).collect(),
            after: names.into_iter().zip(values).collect(),
            qp: Qp {
                state: Some(state),
                timeout: Some(small),
                retry_cnt: Some(other),
                path_mtu: Some(word),
                max_dest_rd_atomic: Some(other),
                access: Some(word),
                ..peer()
            },
            events: vec![event],
            gap_ns: Some(long),
            completions: Some(long),
            status: Some(other),
            ..End::default()
        };
        let symptoms = [
            Symptom::Completion(Request { status, bytes: Some(long), remote_addr: Some(long), ..Request::default() }),
            Symptom::Stalled { for_ns: long },
            Symptom::Lost { sent: long, arrived: values[0] },
            Symptom::Event,
        ];
        for symptom in symptoms {
            let evidence = Evidence {
                symptom,
                local: lie.clone(),
                remote: Some(lie.clone().tamed()),
                peer: Peer::Alive,
                ..Evidence::default()
            };
            diagnose(&evidence);
        }
    }
}

/// Whatever the status: a process that is gone explains it.
#[test]
fn peer_dead_comes_first() {
    for status in [5, 12, 13] {
        let evidence =
            Evidence { peer: Peer::Dead, ..failed(status, SILENT, &[("duplicate_request", 3)]) };
        assert_eq!(code(&evidence), Code::PeerDead);
    }
}

/// P04: two settings that differ, and a network that takes no long packets.
#[test]
fn p04_mtu_mismatch() {
    let verdict = diagnose(&with(silence(&[]), |_, far| far.qp.path_mtu = Some(4096)));
    assert_eq!((verdict.code, verdict.owner), (Code::MtuMismatch, Owner::Config));
    assert!(verdict.summary.contains("1024/4096"), "{verdict}");
    let verdict = diagnose(&with(silence(&[]), |evidence, _| evidence.sizes = Some((1024, 4096))));
    assert_eq!((verdict.code, verdict.owner), (Code::MtuMismatch, Owner::Fabric));
    assert!(verdict.summary.contains("only packets > 1024 bytes"), "{verdict}");
}

/// S0-20 and S0-21: answered, nowhere to put it; the ACK timer stayed flat.
#[test]
fn s0_20_status_13_means_alive() {
    let rnr = [("rnr_nak_retry_err", 4), ("req_rnr_retries_exceeded", 1)];
    let verdict = diagnose(&failed(13, &rnr, &[("out_of_buffer", 4)]));
    assert_eq!((verdict.code, verdict.owner), (Code::RnrExhausted, Owner::Remote));
    says(&verdict, "out_of_buffer=4");
    says(&verdict, "no ACK timeout: the peer is alive");
    assert_eq!(verdict.knob.as_deref(), Some("node.client.rnr_retry"));
    let never =
        with(failed(13, &rnr, &[("out_of_buffer", 4)]), |_, far| far.receives.posted = Some(0));
    assert_eq!(code(&never), Code::NoReceives);
    // Silence stays silence, also where no receive was posted.
    let silent = with(silence(&[]), |_, far| far.receives.posted = Some(0));
    assert_eq!(code(&silent), Code::LinkDead);
}

/// P12: a standstill with seven RNR retries; without RNR NAKs it is silence.
#[test]
fn p12_rnr_stall() {
    let stalled = |local: &[(&'static str, u64)]| {
        with(failed(0, local, &[]), |evidence, _| {
            evidence.symptom = Symptom::Stalled { for_ns: 3_000 * MS };
        })
    };
    let verdict = diagnose(&stalled(&[("rnr_nak_retry_err", 900)]));
    assert_eq!((verdict.code, verdict.owner), (Code::RnrStall, Owner::Remote));
    assert!(verdict.summary.contains("3 s"), "{verdict}");
    assert_eq!(code(&stalled(&[])), Code::LinkDead);
    // S1-31: a timeout of 0 hides every failure.
    let forever = with(stalled(&[]), |evidence, _| evidence.local.qp.timeout = Some(0));
    says(&diagnose(&forever), "timeout 0");
}

/// S1-50: all sends meet an empty pool.
#[test]
fn s1_50_srq_dry() {
    let dry = |waiting, status| {
        with(failed(status, &[("rnr_nak_retry_err", 9)], &[("out_of_buffer", 9)]), |_, far| {
            far.receives = Receives { waiting: Some(waiting), shared: true, ..Receives::default() };
        })
    };
    assert_eq!(code(&dry(0, 13)), Code::SrqDry);
    assert_eq!(code(&dry(5, 13)), Code::RnrExhausted);
    let low = with(dry(5, 13), |_, far| far.events.push("SRQ_LIMIT_REACHED".into()));
    assert_eq!(code(&low), Code::SrqDry);
    assert_eq!(code(&dry(0, 12)), Code::LinkDead, "silence has nothing to do with receives");
}

/// S0-11 and E-06: our device answers 9, others 10; the queue pair's flags decide.
#[test]
fn s0_11_access_of_the_queue_pair_and_of_the_region() {
    for status in [9, 10] {
        let evidence = with(failed(status, &[], &[]), |_, far| far.qp.access = Some(4));
        let verdict = diagnose(&evidence);
        assert_eq!(verdict.code, Code::AccessQp, "{status}");
        assert!(verdict.summary.contains("REMOTE_WRITE"), "{verdict}");
        assert_eq!(verdict.knob.as_deref(), Some("qp_access_flags at the peer's RESET -> INIT"));
    }
    let region = with(failed(10, &[], &[]), |_, far| far.events.push("QP_ACCESS_ERR".into()));
    let verdict = diagnose(&region);
    assert_eq!((verdict.code, verdict.owner), (Code::AccessMr, Owner::Local));
    // S4-11: the event tells where to look.
    says(&verdict, "look at the requester's program");
    let wire = with(failed(9, &[], &[]), |_, far| far.events.push("QP_REQ_ERR".into()));
    let verdict = diagnose(&wire);
    assert_eq!(verdict.code, Code::InvalidRequest);
    says(&verdict, "look at the wire and the peer");
}

/// E-26: what hides behind status 9.
#[test]
fn s4_08_atomics_reads_and_lengths() {
    let atomic = |addr| {
        with(failed(9, &[], &[]), |evidence, _| {
            let request = request(evidence);
            (request.opcode, request.remote_addr) = (Opcode::Atomic, Some(addr));
        })
    };
    assert_eq!(code(&atomic(0x1004)), Code::AtomicMisaligned);
    assert_eq!(code(&atomic(0x1008)), Code::InvalidRequest);
    let reads = |theirs| {
        with(failed(9, &[], &[]), |evidence, far| {
            request(evidence).opcode = Opcode::Read;
            far.qp.max_dest_rd_atomic = Some(theirs);
        })
    };
    assert_eq!((code(&reads(1)), code(&reads(4))), (Code::RdAtomic, Code::InvalidRequest));
    for status in [9, 11] {
        let long = with(failed(status, &[], &[]), |evidence, far| {
            let request = request(evidence);
            (request.opcode, request.bytes) = (Opcode::Send, Some(4096));
            far.receives.bytes = Some(1024);
        });
        let verdict = diagnose(&long);
        assert_eq!(verdict.code, Code::Length);
        says(&verdict, "4096 bytes into a receive of 1024");
    }
    assert_eq!(code(&failed(9, &[], &[("resp_local_length_error", 1)])), Code::Length);
    assert_eq!(code(&failed(1, &[], &[])), Code::Length);
}

#[test]
fn failures_of_one_end() {
    let cases = [
        (4, Code::LocalProtection, Owner::Local),
        (8, Code::LocalProtection, Owner::Local),
        (2, Code::InvalidRequest, Owner::Local),
        (11, Code::RemoteOperation, Owner::Remote),
        (19, Code::DeviceGone, Owner::Local),
        (21, Code::Unknown, Owner::Local),
    ];
    for (status, code, owner) in cases {
        let verdict = diagnose(&failed(status, &[], &[]));
        assert_eq!((verdict.code, verdict.owner), (code, owner), "{status}");
    }
    let posted =
        Evidence { symptom: Symptom::Post { reason: "READ on UC".into() }, ..Evidence::default() };
    assert_eq!(code(&posted), Code::InvalidRequest);
    let differs = Symptom::Mismatch { place: "byte 7".into() };
    assert_eq!(code(&Evidence { symptom: differs, ..Evidence::default() }), Code::DataMismatch);
}

/// P16, S4-15: a queue or a device as a whole, at either end, whatever the first completion said.
#[test]
fn p16_queues_and_devices_as_a_whole() {
    for (event, expected) in [
        ("CQ_ERR", Code::CqOverrun),
        ("SRQ_ERR", Code::SrqError),
        ("DEVICE_FATAL", Code::DeviceGone),
    ] {
        let here =
            with(failed(5, &[], &[]), |evidence, _| evidence.local.events.push(event.into()));
        let there = with(silence(&[]), |_, far| far.events.push(event.into()));
        assert_eq!((code(&here), diagnose(&here).owner), (expected, Owner::Local));
        assert_eq!((code(&there), diagnose(&there).owner), (expected, Owner::Remote));
    }
    assert_eq!(code(&failed(5, &[("cq_overruns", 1)], &[])), Code::CqOverrun);
    let verdict = diagnose(&silence(&[("cq_overruns", 1)]));
    assert_eq!((verdict.code, verdict.owner), (Code::CqOverrun, Owner::Remote));
}

/// Flushes and events say nothing by themselves; the other end may know.
#[test]
fn a_flush_is_explained_by_the_other_end() {
    let flushed = failed(5, &[], &[]);
    assert_eq!(code(&flushed), Code::Unknown);
    let told = with(flushed, |_, far| far.status = Some(12));
    let verdict = diagnose(&told);
    assert_eq!((verdict.code, verdict.owner), (Code::LinkDead, Owner::Fabric));
    let protection = with(failed(5, &[], &[]), |_, far| far.status = Some(4));
    let verdict = diagnose(&protection);
    assert_eq!((verdict.code, verdict.owner), (Code::LocalProtection, Owner::Remote));
    let event = with(failed(0, &[], &[]), |evidence, far| {
        evidence.symptom = Symptom::Event;
        evidence.local.events.push("QP_ACCESS_ERR".into());
        far.status = Some(10);
    });
    assert_eq!(code(&event), Code::AccessMr);
}

/// S1-68: what INIT -> RTR lacks, and what a query shows as zero.
#[test]
fn s1_68_missing_attributes_are_listed() {
    let mut evidence = transition("INIT", "RTR", &["dest_qp_num", "rq_psn"], &[]);
    evidence.local.qp = Qp {
        dest_qpn: Some(0),
        rq_psn: Some(0),
        path_mtu: Some(1024),
        min_rnr_timer: Some(0),
        ..Qp::default()
    };
    let verdict = diagnose(&evidence);
    assert_eq!((verdict.code, verdict.owner), (Code::InvalidRequest, Owner::Local));
    assert!(verdict.summary.contains("lacks dest_qp_num, rq_psn"), "{verdict}");
    says(&verdict, "read back as zero: dest_qp_num, rq_psn, min_rnr_timer");
    let skipped = diagnose(&transition("RESET", "RTR", &[], &["INIT"]));
    assert!(skipped.summary.contains("skips INIT"), "{skipped}");
}

/// S1-70: reuse after status 12 without RESET.
#[test]
fn s1_70_a_queue_pair_in_error_must_be_reset() {
    for to in ["RTS", "INIT", "RTR"] {
        let verdict = diagnose(&transition("ERR", to, &[], &["RESET"]));
        assert!(verdict.summary.contains("taken to RESET"), "{verdict}");
        assert_eq!(verdict.knob.as_deref(), Some("modify to RESET, then INIT, RTR and RTS"));
    }
}

/// S1-71: dropped without a word, with both keys shown.
#[test]
fn s1_71_qkey_mismatch() {
    let evidence = with(lost("UD", 0, &[("qkey_viol", 100)]), |evidence, far| {
        (evidence.local.qp.qkey, far.qp.qkey) = (Some(0x1111), Some(0x2222));
    });
    let verdict = diagnose(&evidence);
    assert_eq!((verdict.code, verdict.owner), (Code::QkeyMismatch, Owner::Config));
    assert!(verdict.summary.contains("0x1111") && verdict.summary.contains("0x2222"), "{verdict}");
    let same = with(lost("UD", 0, &[]), |evidence, far| {
        (evidence.local.qp.qkey, far.qp.qkey) = (Some(0x1111), Some(0x1111));
    });
    assert_eq!(code(&same), Code::LinkDead);
}

/// S1-72 and S1-02: UC may lose messages; that none arrives is something else.
#[test]
fn s1_72_a_lost_uc_message_is_normal() {
    let verdict = diagnose(&lost("UC", 97, &[]));
    assert!(verdict.is_ok() && verdict.summary.contains("3 of 100"), "{verdict}");
    assert_eq!(code(&lost("UC", 0, &[])), Code::LinkDead);
    assert_eq!(code(&lost("UC", 0, &[("out_of_buffer", 100)])), Code::NoReceives);
    assert_eq!(code(&lost("UD", 40, &[("drop_no_receive", 60)])), Code::NoReceives);
}

/// S1-58: an alternate path that was not armed is named.
#[test]
fn s1_58_an_alternate_path_that_was_not_taken() {
    let state = |state: &str| {
        let state = state.to_owned();
        diagnose(&with(silence(&[]), |evidence, _| evidence.local.qp.path_mig_state = Some(state)))
    };
    says(&state("MIGRATED"), "path_mig_state is MIGRATED");
    assert!(!state("ARMED").evidence.iter().any(|fact| fact.contains("path_mig_state")));
}

#[test]
fn nothing_wrong_is_ok() {
    assert!(diagnose(&Evidence::default()).is_ok());
}

/// Every code is the verdict of some evidence in this file, but for the one that no evidence of a connection leads to: a store
/// that stalls is found by the clocks of its target and of its clients.
#[test]
fn every_code_has_a_rule() {
    let changed =
        |evidence: Evidence, change: fn(&mut Evidence, &mut End)| code(&with(evidence, change));
    let reached: BTreeSet<Code> = [
        code(&Evidence::default()),
        code(&Evidence { peer: Peer::Dead, ..silence(&[]) }),
        code(&silence(&[])),
        code(&silence(&[("duplicate_request", 1)])),
        changed(silence(&[]), |_, far| far.qp.state = Some("INIT".into())),
        changed(silence(&[]), |_, far| far.qp.rq_psn = Some(1)),
        changed(silence(&[]), |_, far| far.gap_ns = Some(1_000 * MS)),
        changed(silence(&[]), |_, far| far.qp.path_mtu = Some(256)),
        changed(silence(&[]), |_, far| far.qp.gid_type = Some("v1".into())),
        code(&failed(13, &[], &[])),
        changed(failed(13, &[], &[]), |_, far| far.receives.posted = Some(0)),
        changed(failed(13, &[], &[]), |_, far| {
            far.receives = Receives { shared: true, waiting: Some(0), ..Receives::default() };
        }),
        changed(failed(0, &[("rnr_nak_retry_err", 1)], &[]), |evidence, _| {
            evidence.symptom = Symptom::Stalled { for_ns: MS };
        }),
        code(&lost("UD", 0, &[("qkey_viol", 1)])),
        changed(failed(9, &[], &[]), |_, far| far.qp.access = Some(0)),
        code(&failed(10, &[], &[])),
        changed(failed(9, &[], &[]), |evidence, far| {
            request(evidence).opcode = Opcode::Read;
            far.qp.max_dest_rd_atomic = Some(0);
        }),
        changed(failed(9, &[], &[]), |evidence, _| {
            let request = request(evidence);
            (request.opcode, request.remote_addr) = (Opcode::Atomic, Some(1));
        }),
        code(&failed(9, &[], &[])),
        code(&failed(1, &[], &[])),
        code(&failed(4, &[], &[])),
        code(&failed(11, &[], &[])),
        code(&failed(5, &[("cq_overruns", 1)], &[])),
        changed(failed(5, &[], &[]), |evidence, _| evidence.local.events.push("SRQ_ERR".into())),
        code(&failed(19, &[], &[])),
        code(&Evidence {
            symptom: Symptom::Mismatch { place: String::new() },
            ..Evidence::default()
        }),
        code(&failed(5, &[], &[])),
    ]
    .into_iter()
    .collect();
    let missing: Vec<_> = Code::ALL.iter().filter(|code| !reached.contains(code)).collect();
    assert_eq!(missing, [&Code::StoreStall]);
}
