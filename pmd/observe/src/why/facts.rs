//! Evidence as rules ask for it: differences, budgets, and words.

use std::collections::BTreeSet;

use super::evidence::{End, Evidence, Path, Peer, Request, Symptom, Told};
use crate::counters::Snapshot;
use crate::limits::{LONG_GAP_NS, NOTICED_WITHIN_NS};
use crate::report::Nanos;
use crate::verdict::{Code, Verdict};

/// The wait for an ACK, nanoseconds: 4.096 us x 2^timeout; none for 0, which waits for ever.
pub const fn ack_timeout_ns(timeout: u8) -> Option<u64> {
    if timeout == 0 { None } else { Some(4096 << (timeout & 31)) }
}

/// How long a peer can be silent before a request fails with status 12, nanoseconds: the first try and every retry wait
/// for one ACK timeout. None: for ever.
pub const fn retry_budget_ns(timeout: u8, retry_cnt: u8) -> Option<u64> {
    match ack_timeout_ns(timeout) {
        Some(wait_ns) => Some(wait_ns * (retry_cnt as u64 + 1)),
        None => None,
    }
}

/// What rules ask.
pub(super) struct Facts<'a> {
    pub(super) evidence: &'a Evidence,
    pub(super) local: Snapshot,
    pub(super) remote: Option<Snapshot>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(evidence: &'a Evidence) -> Self {
        // A queue pair that counts by itself says more than its port, which has others too.
        let delta = |end: &End| {
            let port = end.after.since(&end.before);
            let counted = port.iter().map(|(name, _)| name);
            let own = end.qp.counters.iter().map(|(name, _)| name);
            let value = |name: &str| end.qp.counters.get(name).or_else(|| port.get(name));
            let names: BTreeSet<&str> = counted.chain(own).collect();
            names.into_iter().map(|name| (name.to_owned(), value(name).unwrap_or(0))).collect()
        };
        Self {
            evidence,
            local: delta(&evidence.local),
            remote: evidence.remote.as_ref().map(delta),
        }
    }

    /// The failed request, if its status is `status`.
    pub(super) fn failed(&self, status: u8) -> Option<&'a Request> {
        match &self.evidence.symptom {
            Symptom::Completion(request) if request.status == status => Some(request),
            _ => None,
        }
    }

    pub(super) fn far(&self) -> Option<&'a End> {
        self.evidence.remote.as_ref()
    }

    /// How far a counter of this end moved; 0 where it is not counted.
    pub(super) fn local(&self, name: &str) -> u64 {
        self.local.get(name).unwrap_or(0)
    }

    /// How far a counter of the peer moved; 0 where nobody knows.
    pub(super) fn remote(&self, name: &str) -> u64 {
        self.remote.as_ref().and_then(|delta| delta.get(name)).unwrap_or(0)
    }

    /// How far a counter of this end moved; none where it is not counted here.
    pub(super) fn local_if_counted(&self, name: &str) -> Option<u64> {
        self.local.get(name)
    }

    /// Whether this end got the event.
    pub(super) fn has_event(&self, name: &str) -> bool {
        self.evidence.local.events.iter().any(|event| event == name)
    }

    /// Whether the peer says that it got the event, and that can be why: what fails a whole peer leaves silence here, or a
    /// failure behind another. A request that was refused, for whatever reason, was refused by a peer that worked.
    pub(super) fn peer_has_event(&self, name: &str) -> bool {
        self.can_be_a_peer_that_failed()
            && self.far().is_some_and(|end| end.events.iter().any(|event| event == name))
    }

    /// Whether what was met here is what a peer leaves that failed as a whole.
    pub(super) fn can_be_a_peer_that_failed(&self) -> bool {
        match &self.evidence.symptom {
            Symptom::Completion(request) => matches!(request.status, 5 | 7 | 11 | 12),
            Symptom::Stalled { .. } | Symptom::Lost { .. } | Symptom::Event => true,
            _ => false,
        }
    }

    /// How long this end waited before it gave up, nanoseconds.
    fn waited(&self) -> Option<u64> {
        match self.evidence.symptom {
            Symptom::Stalled { for_ns } => Some(for_ns),
            _ => self.budget().flatten(),
        }
    }

    /// How long before this end gave up a request came to the peer last that had come before, as the peer says, and whether
    /// that means that requests still reach it: of those that were sent again, the last ones did. None where that is not
    /// known.
    pub(super) fn last_duplicate(&self) -> Option<(u64, bool)> {
        let age = self.far()?.duplicate_age_ns?;
        let before = age.saturating_sub(self.evidence.told_after_ns.unwrap_or(0));
        let waited = self.waited()?;
        Some((before, before <= waited - waited / 4))
    }

    /// How long this end itself stood still, and for how long its peer waits, if that is why the peer gave it up: for longer
    /// than that, and until just now. The peer says in one way or another that it gave up; how long this end stood still, it
    /// knows itself.
    pub(super) fn stood_still(&self) -> Option<(u64, u64)> {
        let theirs = self.far().and_then(|end| retry_budget_ns(end.qp.timeout?, end.qp.retry_cnt?));
        let patience = match &self.evidence.told {
            // It names what this end knows: no need to know for how long it waits.
            Some(Told { code: Code::ResponderSlow, .. }) => {
                Some(theirs.unwrap_or(LONG_GAP_NS).min(LONG_GAP_NS))
            }
            // What silence looks like from the other side.
            Some(Told { code, .. }) => {
                let silence = [Code::LinkDead, Code::AckPathLost, Code::RnrStall, Code::Unknown];
                theirs.or_else(|| self.budget().flatten()).filter(|_| silence.contains(code))
            }
            None => {
                let gave_up = self.far().and_then(|end| end.status) == Some(12);
                theirs.filter(|_| gave_up && self.can_be_a_peer_that_failed())
            }
        }?;
        let end = &self.evidence.local;
        let (gap, age) = (end.gap_ns?, end.gap_age_ns?);
        let just_now = age <= patience.saturating_add(NOTICED_WITHIN_NS);
        (gap >= patience && just_now).then_some((gap, theirs.unwrap_or(patience)))
    }

    pub(super) fn is_alive(&self) -> bool {
        self.evidence.peer == Peer::Alive
    }

    pub(super) fn is_shared_memory(&self) -> bool {
        self.evidence.path == Path::Local
    }

    /// The full name of a setting.
    pub(super) fn knob(&self, key: &str) -> String {
        self.evidence.knobs.name(key)
    }

    /// The retry budget of this end: none where it is unknown, and `Some(None)` where it is without end.
    pub(super) fn budget(&self) -> Option<Option<u64>> {
        let qp = &self.evidence.local.qp;
        Some(retry_budget_ns(qp.timeout?, qp.retry_cnt?))
    }

    /// What this end's patience amounts to, with the settings that make it; none where they are unknown.
    pub(super) fn patience(&self) -> Option<String> {
        let (timeout, retry_cnt) =
            (self.evidence.local.qp.timeout?, self.evidence.local.qp.retry_cnt?);
        let names =
            format!("{} {timeout}, {} {retry_cnt}", self.knob("timeout"), self.knob("retry_cnt"));
        Some(match ack_timeout_ns(timeout).zip(self.budget().flatten()) {
            Some((wait, budget)) => {
                format!("{names}: {} a try, {} in all", millis(wait), millis(budget))
            }
            None => format!("{names}: waits without end"),
        })
    }

    /// Whether the other end stood still only before what was met.
    pub(super) fn gap_was_before(&self) -> bool {
        let age = self.far().and_then(|end| end.gap_age_ns);
        age.zip(self.evidence.told_after_ns).is_some_and(|(age, told)| age > told)
    }

    /// The peer's name.
    pub(super) fn peer(&self) -> &'a str {
        self.far()
            .map(|end| end.name.as_str())
            .filter(|name| !name.is_empty())
            .unwrap_or("the peer")
    }
}

/// Something that only the peer knows, and that it may know better than it says.
#[expect(clippy::needless_pass_by_value, reason = "lines are made to be said")]
pub(super) fn says(line: String) -> String {
    format!("the peer says: {line}")
}

/// `536.9 ms`
pub(super) fn millis(ns: u64) -> String {
    let tenths = ns.div_ceil(50_000) / 2;
    format!("{}.{} ms", tenths / 10, tenths % 10)
}

/// The request in one line: peer, both queue pairs, PSN, opcode, bytes, tries, budget.
fn line(facts: &Facts<'_>, request: &Request) -> String {
    let mut line =
        format!("{} failed with status {}", request.opcode.name(), status(request.status));
    let qp = &facts.evidence.local.qp;
    let mut add = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push_str(&format!(", {what} {value}"));
        }
    };
    let hex = |number: Option<u32>| number.map(|number| format!("{number:#x}"));
    add("to", facts.far().map(|_| facts.peer().to_owned()));
    add("queue pair", hex(qp.qpn));
    add("toward", hex(qp.dest_qpn));
    add("PSN", hex(request.psn));
    add("bytes", request.bytes.map(|bytes| bytes.to_string()));
    add("tries", request.tries.map(|tries| tries.to_string()));
    let budget = facts.budget().map(|budget| budget.map_or_else(|| "without end".into(), millis));
    add("budget", budget);
    line
}

/// The status with its text.
pub(super) fn status(number: u8) -> String {
    let text = match number {
        1 => "local length error",
        2 => "local QP operation error",
        4 => "local protection error",
        5 => "Work Request Flushed Error",
        6 => "memory window bind error",
        7 => "bad response error",
        8 => "local access error",
        9 => "remote invalid request error",
        10 => "remote access error",
        11 => "remote operation error",
        12 => "transport retry counter exceeded",
        13 => "RNR retry counter exceeded",
        19 => "fatal error",
        _ => return number.to_string(),
    };
    format!("{number} ({text})")
}

/// Adds what was observed, whatever the verdict.
pub(super) fn with_observations(mut verdict: Verdict, facts: &Facts<'_>) -> Verdict {
    match &facts.evidence.symptom {
        Symptom::None => {}
        Symptom::Completion(request) => verdict = verdict.because(line(facts, request)),
        Symptom::Stalled { for_ns } => {
            verdict = verdict.because(format!("nothing has completed for {}", Nanos(*for_ns)));
        }
        Symptom::Lost { sent, arrived } => {
            verdict = verdict.because(format!("{arrived} of {sent} messages arrived"));
        }
        Symptom::Transition(transition) => verdict = verdict.because(transition.reason.clone()),
        Symptom::Post { reason } => verdict = verdict.because(reason.clone()),
        // The verdict says it.
        Symptom::Mismatch { .. } | Symptom::Event => {}
    }
    if let Some(Told { code, reason }) = &facts.evidence.told {
        verdict = verdict.because(says(format!("{code}: {reason}")));
    }
    // Of the peer is known what it says.
    let own: Said = |line| line;
    let ends = [("this end", own, Some(&facts.evidence.local)), ("the peer", says, facts.far())];
    for (whose, said, end) in ends {
        for event in end.into_iter().flat_map(|end| &end.events) {
            verdict = verdict.because(said(format!("event of {whose}: {event}{}", hint(event))));
        }
    }
    let moved = [Some(&facts.local), facts.remote.as_ref()];
    for ((whose, said, _), delta) in ends.into_iter().zip(moved) {
        let delta = delta.map(trouble).unwrap_or_default();
        if !delta.is_empty() {
            let line = format!("counters of {whose} since the start: {delta}");
            verdict = verdict.because(said(line));
        }
    }
    for (whose, said, end) in ends {
        for fault in end.into_iter().flat_map(|end| &end.faults) {
            let line = format!("fault on purpose at {whose}: {fault}");
            verdict = verdict.because(said(line));
        }
        for entry in end.into_iter().flat_map(|end| &end.journal) {
            verdict = verdict.because(said(format!("journal of {whose}: {entry}")));
        }
    }
    if let Some(waiting) = facts.far().and_then(|end| end.completions).filter(|count| *count > 0) {
        let line = format!("completions that the peer's program has not taken: {waiting}");
        verdict = verdict.because(says(line));
    }
    if facts.far().is_none() && !verdict.is_ok() {
        verdict = verdict.because(match facts.evidence.peer {
            Peer::Alive => {
                "the peer's half is unknown: its process answers, and its poll loop does not"
            }
            Peer::Silent => "the peer's half is unknown: nothing is heard on its control channel",
            Peer::Stopped => "the peer's half is unknown: its process stands still",
            Peer::Dead => "the peer's half is unknown: it ended with its process",
            Peer::Unknown => "the peer's half is unknown: give its run directory, too",
        });
    }
    verdict
}

/// How a line is put: as it is, or as hearsay.
type Said = fn(String) -> String;

/// Where an event tells to look.
fn hint(event: &str) -> &'static str {
    match event {
        "QP_REQ_ERR" => ": an opcode or sequence that made no sense, look at the wire and the peer",
        "QP_ACCESS_ERR" => ": memory that may not be touched so, look at the requester's program",
        _ => "",
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

    /// S0-16, S2-06, S3-11 and the table of constants: the unit is 4.096 us, and a retry count of 7 makes 8 tries.
    #[test]
    fn s3_11_budgets_in_milliseconds() {
        let wait = |code| ack_timeout_ns(code).map(millis);
        assert_eq!(wait(8).unwrap(), "1.0 ms");
        assert_eq!(wait(12).unwrap(), "16.8 ms");
        assert_eq!(wait(14).unwrap(), "67.1 ms");
        assert_eq!(wait(16).unwrap(), "268.4 ms");
        assert_eq!(wait(0), None);
        assert_eq!(ack_timeout_ns(31).unwrap() / 1_000_000_000, 8796);
        let budget = |code, retries| retry_budget_ns(code, retries).map(millis);
        assert_eq!(budget(14, 7).unwrap(), "536.9 ms");
        assert_eq!(budget(20, 5).unwrap(), "25769.8 ms");
        assert_eq!(budget(0, 7), None);
    }
}
