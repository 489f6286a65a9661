//! Whether a peer still works for whoever waits for it: a server for its client, and a client for its server.

use std::time::Duration;

use pmd_observe::{Code, Owner};

use super::Peer;
use crate::failure::Failure;
use crate::limits::KEEP_ALIVE_GRACE;

/// When a client asks its server for a sign of life, and when it gives the server up.
///
/// Every reply is a sign. After half of the time that the server may be silent the client asks for one, with a request that
/// the server answers by itself, whatever else it does; both ends have room for it beside all others. The other half
/// begins when it was asked: a client that was itself kept from its core does not take that for the server's silence.
#[derive(Debug)]
pub(crate) struct Pulse {
    half_ns: Option<u64>,
    /// The last sign of life; `None` before the first turn.
    heard: Option<u64>,
    /// When a sign was asked for that has not come.
    asked: Option<u64>,
    /// A sign is wanted now, though not for silence.
    wanted: bool,
}

impl Pulse {
    /// For a server that may be silent for so long; zero: for ever.
    pub(crate) fn new(keep_alive: Duration) -> Self {
        let half = u64::try_from(keep_alive.as_nanos() / 2).unwrap_or(u64::MAX);
        Self { half_ns: (half > 0).then_some(half), heard: None, asked: None, wanted: false }
    }

    /// The server has answered something.
    #[inline]
    pub(crate) fn heard(&mut self, now: u64) {
        self.heard = Some(now);
        self.asked = None;
    }

    /// Whether a sign of life is to be asked for.
    #[inline]
    pub(crate) fn is_due(&mut self, now: u64) -> bool {
        let Some(half) = self.half_ns else { return false };
        let heard = *self.heard.get_or_insert(now);
        self.asked.is_none() && (self.wanted || now.saturating_sub(heard) >= half)
    }

    /// It was asked for.
    pub(crate) fn asked(&mut self, now: u64) {
        (self.asked, self.wanted) = (Some(now), false);
    }

    /// Has it asked for soon, for what the server says with it.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// When the next thing is due.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        Some(self.asked.or(self.heard)?.saturating_add(self.half_ns?))
    }

    /// Gives up a server that was asked and did not answer. `node` is the client.
    #[inline]
    pub(crate) fn check(&self, now: u64, node: &str, peer: &Peer) -> Result<(), Failure> {
        match (self.asked, self.half_ns) {
            (Some(asked), Some(half)) if now.saturating_sub(asked) >= half => {
                let silent = Duration::from_nanos(now.saturating_sub(self.heard.unwrap_or(asked)));
                Err(silence(node, peer, silent))
            }
            _ => Ok(()),
        }
    }
}

/// When a server gives up a client, which says by itself how long it is silent at most.
///
/// A server that finds that time over looks again an eighth of it later: what came while it was itself kept from its core
/// lies unread until then.
#[derive(Debug)]
pub(crate) struct Patience {
    /// In nanoseconds; `None`: without end.
    limit: Option<u64>,
    /// The last request; `None` before the first turn.
    heard: Option<u64>,
    /// When the time was found to be over.
    noticed: Option<u64>,
}

impl Patience {
    /// With a client that announced so many milliseconds; 0: that may be silent for ever.
    pub(crate) fn new(keep_alive_ms: u32) -> Self {
        let limit = Duration::from_millis(keep_alive_ms.into()) * KEEP_ALIVE_GRACE;
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Self { limit: (limit > 0).then_some(limit), heard: None, noticed: None }
    }

    /// The client has asked for something.
    #[inline]
    pub(crate) fn heard(&mut self, now: u64) {
        (self.heard, self.noticed) = (Some(now), None);
    }

    /// When it is to be looked at.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let limit = self.limit?;
        let again = self.noticed.map(|noticed| noticed.saturating_add(limit / 8));
        again.or_else(|| Some(self.heard?.saturating_add(limit)))
    }

    /// Gives up a client that was silent for longer than it announced.
    #[inline]
    pub(crate) fn check(&mut self, now: u64, peer: &Peer) -> Result<(), Failure> {
        let silent = now.saturating_sub(*self.heard.get_or_insert(now));
        let Some(limit) = self.limit.filter(|limit| silent >= *limit) else { return Ok(()) };
        if now.saturating_sub(*self.noticed.get_or_insert(now)) < limit / 8 {
            return Ok(());
        }
        let silent = Duration::from_nanos(silent).as_millis();
        let summary = format!("{peer} has said nothing for {silent} ms, not even a keep-alive");
        Err(Failure::new(Code::PeerDead, Owner::Remote, summary)
            .because("its control channel is open: the process is there, and does not work"))
    }
}

/// A silence as a server is told about it; one that is no whole millisecond is not no silence.
pub(crate) fn milliseconds(keep_alive: Duration) -> u32 {
    u32::try_from(keep_alive.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

fn silence(node: &str, peer: &Peer, silent: Duration) -> Failure {
    let summary =
        format!("{peer} has answered nothing for {} ms, not even a keep-alive", silent.as_millis());
    Failure::new(Code::ResponderSlow, Owner::Remote, summary)
        .because("its control channel is open: the process is there, and does not work")
        .turn(format!("node.{node}.keep_alive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = 500_000_000;

    fn verdict(pulse: &Pulse, now: u64) -> Option<Code> {
        pulse.check(now, "client", &Peer::named("target")).err().map(|failure| failure.verdict.code)
    }

    #[test]
    fn silence_is_asked_about_and_then_given_up() {
        let mut pulse = Pulse::new(Duration::from_secs(1));
        assert!(!pulse.is_due(7), "time begins with the first turn");
        assert_eq!(pulse.next_timeout(), Some(7 + HALF));
        assert!(!pulse.is_due(6 + HALF));
        // Late, since the client itself was kept from its core: the target is not blamed for it.
        let late = 10 * HALF;
        assert!(pulse.is_due(late));
        pulse.asked(late);
        assert!(!pulse.is_due(late + HALF), "one at a time");
        assert_eq!(pulse.next_timeout(), Some(late + HALF));
        assert_eq!(verdict(&pulse, late + HALF - 1), None);
        assert_eq!(verdict(&pulse, late + HALF), Some(Code::ResponderSlow));
        pulse.heard(late + HALF);
        assert_eq!(verdict(&pulse, late + HALF), None);
        assert!(!pulse.is_due(late + HALF));
        pulse.want();
        assert!(pulse.is_due(late + HALF));
        pulse.asked(late + HALF);
        pulse.heard(late + HALF);
        assert!(!pulse.is_due(late + HALF), "once");
    }

    /// A client has twice the time that it announced: it asks for a sign of life twice as often.
    #[test]
    fn a_client_that_says_nothing_is_given_up() {
        let peer = Peer::named("client");
        let mut patience = Patience::new(milliseconds(Duration::from_micros(999_001)));
        assert!(patience.check(5, &peer).is_ok(), "time begins with the first turn");
        assert_eq!(patience.next_timeout(), Some(5 + 4 * HALF));
        assert!(patience.check(4 + 4 * HALF, &peer).is_ok());
        // The server itself may have been kept from its core, and have it in front of it.
        let late = 5 + 9 * HALF;
        assert!(patience.check(late, &peer).is_ok());
        assert_eq!(patience.next_timeout(), Some(late + HALF / 2));
        assert!(patience.check(late - 1 + HALF / 2, &peer).is_ok());
        let failure = patience.check(late + HALF / 2, &peer).unwrap_err();
        assert_eq!(failure.verdict.code, Code::PeerDead);
        patience.heard(late + HALF / 2);
        assert!(patience.check(late + HALF / 2, &peer).is_ok());
        assert_eq!(patience.next_timeout(), Some(late + HALF / 2 + 4 * HALF));
        let mut patience = Patience::new(0);
        assert!(patience.check(0, &peer).is_ok() && patience.check(u64::MAX, &peer).is_ok());
        assert_eq!(patience.next_timeout(), None);
    }

    #[test]
    fn whoever_does_not_want_it_waits_for_ever() {
        let mut pulse = Pulse::new(Duration::ZERO);
        assert!(!pulse.is_due(0) && !pulse.is_due(u64::MAX));
        assert_eq!((pulse.next_timeout(), verdict(&pulse, u64::MAX)), (None, None));
    }
}
