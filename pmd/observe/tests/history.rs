//! What is told from transition journals, alone and beside reports.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use pmd_observe::journal::{Attr, By, Cause, Record, Refusal};
use pmd_observe::why::{Evidence, Half, Peer, Request, Symptom, diagnose, trouble};
use pmd_observe::{Code, Owner, Verdict};

/// A journal being written.
#[derive(Default)]
struct Journal(Vec<Record>);

impl Journal {
    fn moves(&mut self, qpn: u32, from: &str, to: &str, attrs: &[(&str, u64)]) -> &mut Record {
        let attrs = attrs.iter().map(|(name, value)| ((*name).to_owned(), Attr::Number(*value)));
        self.0.push(Record {
            at_us: self.0.len() as u64,
            device: "soft0".into(),
            qpn,
            transport: "RC".into(),
            from: from.into(),
            to: to.into(),
            attrs: attrs.collect(),
            ..Record::default()
        });
        self.0.last_mut().unwrap()
    }

    fn refused(&mut self, qpn: u32, from: &str, to: &str, refusal: Refusal) {
        self.moves(qpn, from, to, &[]).refused = Some(refusal);
    }

    fn fell(&mut self, qpn: u32, by: By, what: &str, status: Option<u8>) {
        let cause = Cause { by, what: Some(what.into()), status };
        self.moves(qpn, "RTS", "ERR", &[]).cause = cause;
    }

    /// From RESET to RTS.
    fn up(&mut self, qpn: u32, peer: u32, sq_psn: u64, rq_psn: u64) {
        self.moves(qpn, "RESET", "INIT", &[("qp_access_flags", 14)]);
        let rtr = [("dest_qp_num", u64::from(peer)), ("rq_psn", rq_psn), ("path_mtu", 1024)];
        self.moves(qpn, "INIT", "RTR", &rtr);
        self.moves(qpn, "RTR", "RTS", &[("sq_psn", sq_psn), ("timeout", 14), ("retry_cnt", 7)]);
    }

    fn half(self) -> Half {
        Half { records: self.0, ..Half::default() }
    }
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|&name| name.to_owned()).collect()
}

fn says(verdict: &Verdict, fact: &str) {
    assert!(verdict.evidence.iter().any(|line| line.contains(fact)), "no `{fact}` in {verdict}");
}

/// S1-68, S1-60, S2-14: from the journal alone, which attributes an INIT -> RTR lacked, or which state was skipped.
#[test]
fn s1_68_a_refused_step_is_told_from_the_journal_alone() {
    let mut journal = Journal::default();
    journal.moves(2, "RESET", "INIT", &[]);
    let missing = names(&["dest_qp_num", "rq_psn"]);
    let reason = "RC INIT -> RTR: missing RQ_PSN | DEST_QPN".to_owned();
    journal.refused(2, "INIT", "RTR", Refusal { reason, missing, ..Refusal::default() });
    let verdict = diagnose(&journal.half().own());
    assert_eq!(verdict.code, Code::InvalidRequest);
    assert!(verdict.summary.contains("INIT -> RTR lacks dest_qp_num, rq_psn"), "{verdict}");
    says(&verdict, "journal of this end: 00:00:00.000001 soft0/0 RC 0x000002 INIT -> RTR refused");

    let mut journal = Journal::default();
    let skipped = names(&["INIT"]);
    journal.refused(2, "RESET", "RTR", Refusal { skipped, ..Refusal::default() });
    let verdict = diagnose(&journal.half().own());
    assert!(verdict.summary.contains("RESET -> RTR skips INIT"), "{verdict}");
    assert_eq!(verdict.knob.as_deref(), Some("modify to INIT first"));
}

/// A step that was taken after all is no trouble any more, and neither is a fall that was recovered from.
#[test]
fn what_was_overcome_is_over() {
    let mut journal = Journal::default();
    journal.refused(2, "RESET", "RTR", Refusal::default());
    journal.up(2, 3, 1, 1);
    journal.fell(2, By::Completion, "12", Some(12));
    journal.moves(2, "ERR", "RESET", &[]).cause.by = By::Recovery;
    journal.up(2, 3, 7, 7);
    let evidence = journal.half().own();
    assert_eq!(evidence.symptom, Symptom::None);
    assert!(diagnose(&evidence).is_ok());
}

/// S1-70: whoever goes on with a queue pair in ERR without RESET is told what brought it there, and the way back.
#[test]
fn s1_70_reuse_after_a_failure_needs_a_reset() {
    let mut journal = Journal::default();
    journal.up(2, 3, 1, 1);
    journal.moves(2, "RTS", "RTS", &[]);
    let skipped = names(&["RESET", "INIT", "RTR"]);
    journal.refused(2, "ERR", "RTS", Refusal { skipped, ..Refusal::default() });
    let verdict = diagnose(&journal.half().own());
    assert!(verdict.summary.contains("ERR -> RTS: a queue pair in ERR stays there"), "{verdict}");
    assert_eq!(verdict.knob.as_deref(), Some("modify to RESET, then INIT, RTR and RTS"));

    let mut journal = Journal::default();
    journal.up(2, 3, 1, 1);
    journal.fell(2, By::Completion, "of a send request: 12", Some(12));
    let skipped = names(&["RESET", "INIT", "RTR"]);
    journal.refused(2, "ERR", "RTS", Refusal { skipped, ..Refusal::default() });
    let verdict = diagnose(&journal.half().own());
    says(&verdict, "RTS -> ERR, by completion of a send request: 12");
    says(&verdict, "ERR -> RTS refused");
}

/// S1-69, S1-24: what both ends were brought up with, read back from both journals.
#[test]
fn s1_69_psns_are_compared_between_two_journals() {
    let mut near = Journal::default();
    near.up(0x10, 0x20, 0x100, 0x200);
    near.fell(0x10, By::Completion, "of a send request: 12", Some(12));
    let mut far = Journal::default();
    // An older life of the same queue pair, and another one, say nothing.
    far.up(0x20, 0x10, 0x200, 0x100);
    far.moves(0x20, "ERR", "RESET", &[]);
    far.up(0x20, 0x10, 0x200, 0x111);
    far.up(0x21, 0x11, 0x200, 0x100);
    let (near, far) = (near.half(), far.half());
    let alone = diagnose(&near.own());
    assert_eq!(alone.code, Code::Unknown);
    says(&alone, "the peer's half is unknown: give its run directory, too");
    let both = diagnose(&near.with(&far));
    assert_eq!((both.code, both.owner), (Code::PsnMismatch, Owner::Config));
    assert!(both.summary.contains("0x100") && both.summary.contains("0x111"), "{both}");
}

/// The other end's report is found by the numbers of the connection, and adds what this end did not hear.
#[test]
fn reports_of_both_ends_are_joined() {
    let request = Request { status: 12, ..Request::default() };
    let mut near = Evidence { symptom: Symptom::Completion(request), ..Evidence::default() };
    (near.local.qp.qpn, near.local.qp.dest_qpn) = (Some(0x10), Some(0x20));
    let mut far = Evidence { symptom: Symptom::Event, ..Evidence::default() };
    (far.local.qp.qpn, far.local.qp.dest_qpn) = (Some(0x20), Some(0x10));
    far.local.after = [("duplicate_request", 9)].into_iter().collect();
    let near = Half { evidence: Some(near), ..Half::default() };
    let far = Half { evidence: Some(far), ..Half::default() };
    assert_eq!(diagnose(&near.own()).code, Code::Unknown);
    assert_eq!(diagnose(&near.with(&far)).code, Code::AckPathLost);
    let killed = Half { killed: true, ..Half::default() };
    let evidence = near.with(&killed);
    assert_eq!((evidence.peer, diagnose(&evidence).code), (Peer::Dead, Code::PeerDead));
}

#[test]
fn lines_of_trouble_are_the_last_ones() {
    let mut journal = Journal::default();
    for _ in 0..20 {
        journal.refused(2, "RESET", "RTS", Refusal::default());
        journal.moves(2, "RESET", "INIT", &[]);
        journal.moves(2, "INIT", "RESET", &[]);
    }
    journal.refused(3, "RESET", "RTS", Refusal::default());
    let lines = trouble(&journal.0, Some(2));
    assert_eq!(lines.len(), 8);
    assert!(lines.iter().all(|line| line.contains("0x000002 RESET -> RTS refused")), "{lines:?}");
    assert!(lines[7].starts_with("00:00:00.000057 "), "{lines:?}");
    assert!(trouble(&journal.0, None)[7].contains("0x000003"));
    let attrs = BTreeMap::from([("sq_psn".to_owned(), Attr::Text("?".into()))]);
    journal.0[1].attrs = attrs;
    assert_eq!(pmd_observe::why::attributes_of(&journal.0, 2).unwrap().sq_psn, None);
    assert_eq!(pmd_observe::why::attributes_of(&journal.0, 9), None);
}
