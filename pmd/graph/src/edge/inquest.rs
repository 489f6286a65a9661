//! Why a connection broke: what both ends know, judged by the rules that judge everything.

use pmd_observe::why::{self, End, Evidence, Knobs, Path, Qp, Request, Symptom, Told, diagnose};
use pmd_observe::{Code, Owner};
use pmd_verbs::connect::{ANSWERS_MAX, Channel, Inquiry, LAST_WORDS_WAIT, Message, farewell, tell};
use pmd_verbs::endpoint::{Endpoint, Outcome};

use super::comeback::nanoseconds;
use super::{Home, Peer, Refusal};
use crate::failure::Failure;

/// What is known of both ends of one connection.
#[derive(Debug)]
pub(super) struct Inquest {
    home: Home,
    /// This end when the connection was made.
    start: End,
    inquiry: Option<Inquiry>,
    answers: u32,
    /// The device noticed that the peer's process is gone: until then its last words may still come.
    gone_at: Option<u64>,
}

/// What was met.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    pub(super) peer: &'a Peer,
    /// The first operation that failed of itself.
    pub(super) outcome: Option<Outcome>,
    pub(super) flushed: u32,
    pub(super) event: Option<&'static str>,
    /// How long nothing had ended, in nanoseconds, if it was that.
    pub(super) stalled: Option<u64>,
}

impl Inquest {
    /// The baseline of a connection that was made just now.
    pub(super) fn open(home: Home, endpoint: &dyn Endpoint) -> Self {
        Self { home, start: endpoint.evidence(), inquiry: None, answers: 0, gone_at: None }
    }

    /// The baseline is an earlier one. What the queue pair was brought up with is known since.
    pub(super) fn count_from(&mut self, start: End) {
        let qp = Qp { counters: start.qp.counters, ..std::mem::take(&mut self.start.qp) };
        self.start = End { qp, ..start };
    }

    /// Something was done over the connection. If it had broken, what follows counts from here; until then, what was told
    /// of the break explains also why it did not hold.
    pub(super) fn begin_anew(&mut self, endpoint: &dyn Endpoint) {
        if self.inquiry.take().is_some() {
            self.start = endpoint.evidence();
        }
    }

    /// What this end knows of itself.
    fn own(&self, endpoint: &dyn Endpoint, now: u64) -> End {
        let own = endpoint.evidence().since(&self.start);
        let (gap, age) = self.home.gap(now);
        let state = own.qp.state.clone();
        // What it was brought up with stays known after it was reset.
        let counters = own.qp.counters.clone();
        let qp = Qp { state, counters, ..self.start.qp.clone() };
        End {
            name: self.home.name().to_owned(),
            gap_ns: Some(gap),
            gap_age_ns: Some(age),
            qp,
            ..own
        }
    }

    /// Asks the peer, once.
    pub(super) fn ask(&mut self, endpoint: &dyn Endpoint, channel: &mut Channel, now: u64) {
        if self.inquiry.is_none() {
            self.inquiry = Some(Inquiry::begin(channel, &self.own(endpoint, now), now));
        }
    }

    /// Takes in what the peer says of itself, and answers when it asks.
    pub(super) fn hear(
        &mut self,
        message: &Message,
        endpoint: &dyn Endpoint,
        channel: &mut Channel,
        now: u64,
    ) {
        if let Some(inquiry) = &mut self.inquiry {
            inquiry.hear(message, now);
            if let Some(end) = inquiry.told() {
                self.home.hear(end);
            }
        } else if let Message::Ask(bytes) | Message::Evidence(bytes) | Message::Farewell(bytes) =
            message
            && let Ok(end) = pmd_verbs::connect::decode_evidence(bytes)
        {
            self.home.hear(&end);
        }
        if matches!(message, Message::Ask(_) | Message::Farewell(_)) && self.answers < ANSWERS_MAX {
            self.answers += 1;
            tell(channel, &self.own(endpoint, now));
        }
    }

    /// Says goodbye to a peer that is still served.
    pub(super) fn farewell(&self, endpoint: &dyn Endpoint, channel: &mut Channel, now: u64) {
        farewell(channel, &self.own(endpoint, now));
    }

    /// Lets the connection go, whose peer may have last words for the report.
    pub(super) fn part(self, endpoint: &dyn Endpoint, mut channel: Channel, now: u64) {
        if self.home.wants_last_words() {
            let inquiry = Inquiry::leave(&mut channel, &self.own(endpoint, now), now);
            self.home.part(channel, inquiry);
        } else {
            // A peer that is gone already needs no goodbye.
            drop(channel.send(&Message::Bye));
        }
    }

    /// The device noticed that the peer's process is gone. What it said before is on the channel, and says more.
    pub(super) fn wait_for_last_words(&mut self, now: u64) {
        self.gone_at.get_or_insert_with(|| now.saturating_add(nanoseconds(LAST_WORDS_WAIT)));
    }

    /// Until when the last words of a peer are waited for whose process is gone.
    pub(super) const fn gone_at(&self) -> Option<u64> {
        self.gone_at
    }

    /// Whether the peer has told what it knows, or is waited for no longer.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.inquiry.as_ref().is_some_and(|inquiry| inquiry.is_over(now))
    }

    /// Whether the peer was asked and has said nothing yet, which it would have if it could: what it said before is on its way.
    pub(super) fn awaits_word(&self, now: u64) -> bool {
        self.inquiry.as_ref().is_some_and(|inquiry| inquiry.awaits_word(now))
    }

    /// When its first word is waited for no longer.
    pub(super) fn word_deadline(&self) -> Option<u64> {
        self.inquiry.as_ref().map(Inquiry::word_deadline)
    }

    /// When the peer is waited for no longer.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.inquiry.as_ref().map(Inquiry::deadline)
    }

    /// What is known, of which `symptom` was met.
    fn evidence(
        &self,
        symptom: Symptom,
        endpoint: &dyn Endpoint,
        peer: &Peer,
        now: u64,
    ) -> Evidence {
        let remote = self.inquiry.as_ref().and_then(Inquiry::told);
        Evidence {
            symptom,
            local: self.own(endpoint, now),
            remote: remote.map(|end| End { name: peer.to_string(), ..end.clone() }),
            told_after_ns: self.inquiry.as_ref().and_then(Inquiry::told_after),
            path: if endpoint.path() == "local" { Path::Local } else { Path::Packet },
            peer: self.inquiry.as_ref().map_or(why::Peer::Unknown, Inquiry::peer),
            sizes: None,
            told: None,
            knobs: Knobs::node(self.home.name()),
        }
    }

    /// Why it broke.
    pub(super) fn explain(&self, scene: &Scene<'_>, endpoint: &dyn Endpoint, now: u64) -> Failure {
        let request = endpoint.first_failure();
        let flushed = Request { status: 5, ..Request::default() };
        let stalled = scene.stalled.map(|for_ns| Symptom::Stalled { for_ns });
        let symptom = match (request, scene.outcome, stalled) {
            (Some(request), ..) => Symptom::Completion(request),
            (None, Some(Outcome::Failed(status)), _) => {
                Symptom::Completion(Request { status: status as u8, ..Request::default() })
            }
            (None, None, Some(stalled)) => stalled,
            (None, None, None) if scene.flushed > 0 && scene.event.is_none() => {
                Symptom::Completion(flushed)
            }
            _ => Symptom::Event,
        };
        let evidence = self.evidence(symptom, endpoint, scene.peer, now);
        let mut verdict = diagnose(&evidence);
        if verdict.code == Code::Unknown && matches!(evidence.symptom, Symptom::Event) {
            verdict.summary = format!("the connection to {} failed", scene.peer);
            verdict.owner = Owner::Remote;
        }
        let mut failure = Failure { verdict, hearsay: false, evidence: Some(Box::new(evidence)) };
        let nonsense = self.inquiry.as_ref().and_then(Inquiry::nonsense);
        let words = endpoint.failure();
        let words = [words.as_deref(), scene.event, nonsense];
        let mut words: Vec<String> = words.into_iter().flatten().map(str::to_owned).collect();
        if let Some(for_ns) = scene.stalled {
            let ms = for_ns / 1_000_000;
            words.push(format!(
                "requests were under way, and none had ended for {ms} ms: stall_timeout"
            ));
        }
        if scene.flushed > 0 {
            words.push(format!("{} operations were flushed", scene.flushed));
        }
        words.dedup();
        for fact in words {
            failure = failure.because(fact);
        }
        failure
    }

    /// The peer ended the connection, and says why; this end knows whether it stood still meanwhile.
    pub(super) fn told(
        &self,
        refusal: Refusal,
        endpoint: &dyn Endpoint,
        peer: &Peer,
        now: u64,
    ) -> Failure {
        let told = Some(Told { code: refusal.code, reason: refusal.reason });
        let evidence = self.evidence(Symptom::Event, endpoint, peer, now);
        let evidence = Evidence { told, ..evidence };
        let verdict = diagnose(&evidence);
        // The peer reports it too, unless it was this end's doing.
        let hearsay = verdict.owner != Owner::Local;
        Failure { verdict, hearsay, evidence: Some(Box::new(evidence)) }
            .because(format!("{peer} says so"))
    }

    /// Adds what is known of both ends to a failure that needs no rule: the peer is gone.
    pub(super) fn witness(
        &self,
        failure: Failure,
        endpoint: &dyn Endpoint,
        peer: &Peer,
        now: u64,
    ) -> Failure {
        let evidence = self.evidence(Symptom::Event, endpoint, peer, now);
        let evidence = Evidence { peer: why::Peer::Dead, ..evidence };
        Failure { evidence: Some(Box::new(evidence)), ..failure }
    }
}
