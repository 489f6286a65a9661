//! Why one end does not connect, or ends a connection, in words for the other.

use std::fmt;

use pmd_observe::{Code, Owner, Verdict};

use super::Peer;
use crate::failure::Failure;
use crate::limits::REASON_MAX;

/// A reason that crosses the control channel as text: a verdict code, a colon, a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The diagnosis.
    pub code: Code,
    /// A sentence, with the fix.
    pub reason: String,
}

impl Refusal {
    /// A reason.
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// From the words of a peer, whatever they are: not all of them, if there are many, and no refusal means that all is
    /// well.
    pub fn parse(text: &str) -> Self {
        let text = text.char_indices().nth(REASON_MAX).map_or(text, |(end, _)| &text[..end]);
        let known = text
            .split_once(": ")
            .and_then(|(code, reason)| Some(Self::new(code.parse().ok()?, reason)))
            .filter(|refusal| refusal.code != Code::Ok);
        known.unwrap_or_else(|| Self::new(Code::Unknown, text))
    }

    /// Whether there may be room later.
    pub(super) const fn may_pass(&self) -> bool {
        matches!(self.code, Code::PeerNotReady | Code::Length)
    }

    /// What it means to the end that reads it.
    pub fn told_by(self, peer: &Peer) -> Failure {
        let owner = match self.code {
            // These concern what was configured, on whichever side.
            Code::Length | Code::InvalidRequest => Owner::Config,
            _ => Owner::Remote,
        };
        let failure = Failure::new(self.code, owner, self.reason).heard();
        failure.because(format!("{peer} says so"))
    }
}

impl From<&Verdict> for Refusal {
    fn from(verdict: &Verdict) -> Self {
        Self::new(verdict.code, verdict.summary.clone())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_keeps_its_code_across_the_channel() {
        let refusal = Refusal::new(Code::DataMismatch, "byte 12345 differs: 0x01 is 0x00");
        assert_eq!(Refusal::parse(&refusal.to_string()), refusal);
    }

    #[test]
    fn other_words_are_taken_as_they_are() {
        for text in ["no: room", "", "peer_dead: x", "go away", "ok: fine"] {
            assert_eq!(Refusal::parse(text), Refusal::new(Code::Unknown, text));
        }
    }
    #[test]
    fn long_words_are_cut() {
        let refusal = Refusal::parse(&format!("length: {}", "ä".repeat(70_000)));
        assert_eq!((refusal.code, refusal.reason.chars().count()), (Code::Length, REASON_MAX - 8));
    }
}
