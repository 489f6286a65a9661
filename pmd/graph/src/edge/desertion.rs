//! A peer that leaves before its node has asked for everything.

use pmd_observe::{Code, Owner};

use super::Peer;
use crate::failure::Failure;
use crate::limits::DESERTED_WAIT;
use crate::node::Turn;

/// Whether the peer has left first, and what that means.
///
/// Who tells a run of several processes to end tells each of them, and one of them hears it first. So a node whose peer
/// leaves begins nothing more and finishes what is in flight; it has failed only if it is not told to end as well within
/// [`DESERTED_WAIT`].
#[derive(Debug, Default)]
pub(crate) struct Desertion(Option<(u64, Failure)>);

impl Desertion {
    /// The peer said goodbye. Of several times, the first counts.
    pub(crate) fn note(&mut self, now: u64, peer: &Peer) {
        self.0.get_or_insert_with(|| {
            let summary = format!("{peer} ended before everything was asked of it");
            let failure = Failure::new(Code::PeerNotReady, Owner::Remote, summary);
            (now, failure.because("it said goodbye on the control channel"))
        });
    }

    /// Whether it has left.
    pub(crate) fn is_noted(&self) -> bool {
        self.0.is_some()
    }

    /// What becomes of the node, now that nothing of it is in flight. `stopping`: it was told to end.
    ///
    /// # Errors
    /// The peer has left, and nobody told the node to end.
    pub(crate) fn settle(&mut self, now: u64, stopping: bool) -> Result<Turn, Failure> {
        match self.0.take_if(|(since, _)| stopping || now >= until(*since)) {
            Some((_, failure)) if !stopping => Err(failure),
            None if self.is_noted() => Ok(Turn::Worked(0)),
            _ => Ok(Turn::Done),
        }
    }

    /// When it will have waited for long enough.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.0.as_ref().map(|(since, _)| until(*since))
    }
}

fn until(since: u64) -> u64 {
    since.saturating_add(u64::try_from(DESERTED_WAIT.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted() -> Desertion {
        let mut desertion = Desertion::default();
        desertion.note(5, &Peer::named("target"));
        desertion.note(7, &Peer::named("another"));
        desertion
    }

    #[test]
    fn nobody_left() {
        assert_eq!(Desertion::default().settle(0, false), Ok(Turn::Done));
        assert_eq!(Desertion::default().next_timeout(), None);
    }

    #[test]
    fn whoever_is_told_to_end_too_has_not_failed() {
        let mut desertion = noted();
        let end = desertion.next_timeout().unwrap();
        assert_eq!(desertion.settle(end - 1, false), Ok(Turn::Worked(0)));
        assert_eq!(desertion.settle(end - 1, true), Ok(Turn::Done));
    }

    #[test]
    fn whoever_is_not_told_to_end_was_deserted() {
        let mut desertion = noted();
        let end = 5 + u64::try_from(DESERTED_WAIT.as_nanos()).unwrap();
        assert_eq!(desertion.settle(end - 1, false), Ok(Turn::Worked(0)));
        let failure = desertion.settle(end, false).unwrap_err();
        assert_eq!(failure.verdict.code, Code::PeerNotReady);
        assert_eq!(failure.verdict.summary, "`target` ended before everything was asked of it");
    }
}
