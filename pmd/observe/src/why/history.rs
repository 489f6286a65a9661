//! What a transition journal tells: the attributes a queue pair was brought up with, what was refused, and what it fell
//! into.

use super::evidence::{End, Evidence, Peer, Qp, Receives, Request, Symptom, Transition};
use crate::journal::{By, Record};
use crate::limits::HISTORY_LINES;

/// What is known of one run, for the halves of a diagnosis.
#[derive(Clone, Debug, Default)]
pub struct Half {
    /// What it stored when it failed; none where it did not, or was killed.
    pub evidence: Option<Evidence>,
    /// Its journal.
    pub records: Vec<Record>,
    /// Whether its process is gone without a report.
    pub killed: bool,
}

impl Half {
    /// Its evidence, made from the journal alone where it stored none.
    pub fn own(&self) -> Evidence {
        let mut evidence = self.evidence.clone().unwrap_or_else(|| evidence_of(&self.records));
        complete(&mut evidence.local, &self.records);
        evidence
    }

    /// Its evidence, with what the other end knows: what its report and its journal say of the queue pair at the other
    /// end of the connection.
    pub fn with(&self, other: &Self) -> Evidence {
        let mut evidence = self.own();
        let qp = &evidence.local.qp;
        let found = other.connected_to(qp);
        // One that left no record of any queue pair may have been that one.
        let was_it = found.is_some() || other.records.is_empty();
        match (&mut evidence.remote, found) {
            // Counters come from the time of the failure; the other end's own files know the rest.
            (Some(remote), Some(end)) => supplement(remote, end),
            (Some(_), None) => {}
            (none, found) => *none = found,
        }
        if other.killed && was_it {
            evidence.peer = Peer::Dead;
        }
        evidence
    }

    /// This run's end of a connection, from its report, else from its journal.
    fn connected_to(&self, qp: &Qp) -> Option<End> {
        let is_other_end = |end: &Qp| match (end.qpn, qp.dest_qpn, end.dest_qpn, qp.qpn) {
            (Some(own), Some(theirs), ..) => own == theirs,
            (_, _, Some(their_peer), Some(own)) => their_peer == own,
            _ => true,
        };
        let mut end = self
            .evidence
            .as_ref()
            .map(|evidence| &evidence.local)
            .filter(|end| is_other_end(&end.qp))
            .cloned();
        if end.is_none() {
            let number = match qp.dest_qpn {
                Some(number) => number,
                None => {
                    let leads_here = |record: &&Record| {
                        let peer = record.attrs.get("dest_qp_num").and_then(|attr| attr.number());
                        record.refused.is_none() && peer.is_some() && peer == qp.qpn.map(u64::from)
                    };
                    self.records.iter().rev().find(leads_here)?.qpn
                }
            };
            let qp = attributes_of(&self.records, number)?;
            end = Some(End { qp, ..End::default() });
        }
        let mut end = end?;
        // It counts from when that end told, which is not known.
        end.duplicate_age_ns = None;
        complete(&mut end, &self.records);
        Some(end)
    }
}

/// Adds what the journal knows and the end does not.
fn complete(end: &mut End, records: &[Record]) {
    if let Some(known) = end.qp.qpn.and_then(|qpn| attributes_of(records, qpn)) {
        fill(&mut end.qp, known);
    }
    if end.journal.is_empty() {
        end.journal = trouble(records, end.qp.qpn);
    }
}

/// Adds what another source of the same end knows.
fn supplement(end: &mut End, other: End) {
    fill(&mut end.qp, other.qp);
    if end.name.is_empty() {
        end.name = other.name;
    }
    if end.after.is_empty() {
        (end.before, end.after) = (other.before, other.after);
    }
    if end.journal.is_empty() {
        end.journal = other.journal;
    }
    if end.events.is_empty() {
        end.events = other.events;
    }
    end.status = end.status.or(other.status);
    end.gap_ns = end.gap_ns.or(other.gap_ns);
    let Receives { posted, waiting, bytes, shared } = other.receives;
    end.receives.posted = end.receives.posted.or(posted);
    end.receives.waiting = end.receives.waiting.or(waiting);
    end.receives.bytes = end.receives.bytes.or(bytes);
    end.receives.shared |= shared;
}

/// Takes over every attribute that is not known yet.
fn fill(qp: &mut Qp, known: Qp) {
    macro_rules! take {
        ($($field:ident)*) => { $(if qp.$field.is_none() { qp.$field = known.$field; })* };
    }
    take! {
        qpn dest_qpn transport state sq_psn rq_psn path_mtu timeout retry_cnt rnr_retry min_rnr_timer max_rd_atomic
        max_dest_rd_atomic access qkey sgid_index gid_type path_mig_state
    }
}

/// What a queue pair was brought up with, as its last way from RESET says; none where the journal does not know it.
pub fn attributes_of(records: &[Record], qpn: u32) -> Option<Qp> {
    let mut qp: Option<Qp> = None;
    for record in records.iter().filter(|record| record.qpn == qpn && record.refused.is_none()) {
        let fresh =
            || Qp { qpn: Some(qpn), transport: Some(record.transport.clone()), ..Qp::default() };
        let qp = qp.get_or_insert_with(fresh);
        if record.to == "RESET" {
            *qp = fresh();
        }
        qp.state = Some(record.to.clone());
        let number = |name: &str| record.attrs.get(name).and_then(|attr| attr.number());
        let word = |name: &str| number(name).and_then(|number| u32::try_from(number).ok());
        let byte = |name: &str| number(name).and_then(|number| u8::try_from(number).ok());
        qp.dest_qpn = word("dest_qp_num").or(qp.dest_qpn);
        qp.sq_psn = word("sq_psn").or(qp.sq_psn);
        qp.rq_psn = word("rq_psn").or(qp.rq_psn);
        qp.path_mtu = word("path_mtu").or(qp.path_mtu);
        qp.access = word("qp_access_flags").or(qp.access);
        qp.timeout = byte("timeout").or(qp.timeout);
        qp.retry_cnt = byte("retry_cnt").or(qp.retry_cnt);
        qp.rnr_retry = byte("rnr_retry").or(qp.rnr_retry);
        qp.min_rnr_timer = byte("min_rnr_timer").or(qp.min_rnr_timer);
        qp.max_rd_atomic = byte("max_rd_atomic").or(qp.max_rd_atomic);
        qp.max_dest_rd_atomic = byte("max_dest_rd_atomic").or(qp.max_dest_rd_atomic);
    }
    qp
}

/// The last lines of the journal that tell of trouble, of one queue pair or of all.
pub fn trouble(records: &[Record], qpn: Option<u32>) -> Vec<String> {
    let is_meant =
        |record: &&Record| record.is_trouble() && qpn.is_none_or(|qpn| record.qpn == qpn);
    let mut last: Vec<&Record> =
        records.iter().rev().filter(is_meant).take(HISTORY_LINES).collect();
    last.reverse();
    last.into_iter().map(ToString::to_string).collect()
}

/// Evidence from a journal alone: the oldest trouble that was not overcome, by a queue pair that is back in RTS or was
/// brought to where it was to go.
pub fn evidence_of(records: &[Record]) -> Evidence {
    let Some(record) = records.iter().enumerate().find_map(|(at, record)| {
        let rest = &records[at + 1..];
        let stays = record.is_trouble() && !rest.iter().any(|later| overcomes(later, record));
        stays.then_some(record)
    }) else {
        return Evidence::default();
    };
    let mut evidence = Evidence { symptom: symptom(record), ..Evidence::default() };
    evidence.local.qp = attributes_of(records, record.qpn).unwrap_or_default();
    evidence.local.qp.qpn = Some(record.qpn);
    if matches!(record.cause.by, By::Event | By::Peer) {
        evidence.local.events.extend(record.cause.what.clone());
    }
    evidence
}

/// Whether a later record shows that an earlier trouble is over.
fn overcomes(later: &Record, trouble: &Record) -> bool {
    let is_same = later.qpn == trouble.qpn && later.device == trouble.device;
    let goes_on = later.refused.is_none()
        && (later.to == "RTS" || (trouble.refused.is_some() && later.to == trouble.to));
    is_same && goes_on
}

fn symptom(record: &Record) -> Symptom {
    if let Some(refusal) = &record.refused {
        return Symptom::Transition(Transition {
            from: record.from.clone(),
            to: record.to.clone(),
            missing: refusal.missing.clone(),
            illegal: refusal.illegal.clone(),
            skipped: refusal.skipped.clone(),
            reason: refusal.reason.clone(),
        });
    }
    match record.cause.status {
        Some(status) => Symptom::Completion(Request { status, ..Request::default() }),
        None => Symptom::Event,
    }
}
