//! A connection between two nodes: the endpoint that moves bytes, and the channel that tells of the peer's end.

use std::fmt;

use pmd_observe::why::End;
use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::WcStatus;
use pmd_verbs::connect::{Channel, FOREIGN, FORGED, Message};
use pmd_verbs::endpoint::{
    Caps, Endpoint, EndpointEvent, Op, Outcome, Settled, SubmitError, Token,
};

use super::comeback::{Comeback, GivenUp};
use super::dial::Caller;
use super::inquest::{Inquest, Scene};
use super::stall::Stall;
use super::{Change, Dial, Home, Lost, Refusal};
use crate::failure::Failure;
use crate::limits::{CHANNEL_MESSAGES, CHANNEL_TURNS};

/// Who is at the other end, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node's name in its process; empty before it has greeted.
    pub node: String,
    /// The process, if it is another one.
    pub pid: Option<u32>,
    /// Its address, if it is in another process.
    pub address: Option<String>,
}

impl Peer {
    /// A node of this process.
    pub fn named(node: impl Into<String>) -> Self {
        Self { node: node.into(), pid: None, address: None }
    }

    /// Whoever is at this address.
    pub fn at(address: impl fmt::Display) -> Self {
        Self { node: String::new(), pid: None, address: Some(address.to_string()) }
    }

    /// The run, or the peer, ended while the two were not connected yet.
    pub(super) fn ended_early(&self, how: &str) -> Failure {
        let summary = format!("ended before it was connected to {self}");
        Failure::new(Code::PeerNotReady, Owner::Remote, summary).because(how)
    }

    /// What a greeting adds. A node of this process needs neither process nor address.
    pub(super) fn greeted(self, node: &str, pid: u32) -> Self {
        let pid = self.address.is_some().then_some(pid);
        Self { node: node.to_owned(), pid, ..self }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.node.as_str(), &self.address, self.pid) {
            ("", Some(address), _) => write!(f, "the peer at {address}"),
            (node, Some(address), Some(pid)) => write!(f, "`{node}` (process {pid} at {address})"),
            (node, Some(address), None) => write!(f, "`{node}` (at {address})"),
            (node, None, _) => write!(f, "`{node}`"),
        }
    }
}

/// The peer has left without a goodbye.
pub(super) fn dead(peer: &Peer, how: &str) -> Failure {
    if how == FORGED {
        return forged(peer);
    }
    let failure = Failure::new(Code::PeerDead, Owner::Remote, format!("{peer} is gone"));
    // A node of this process reports itself why it ended.
    Failure { hearsay: peer.address.is_none(), ..failure }.because(how)
}

/// Somebody on the way changed what the peer said, and only the seal tells.
fn forged(peer: &Peer) -> Failure {
    let summary = format!("what {peer} says was tampered with on its way");
    Failure::new(Code::DataMismatch, Owner::Fabric, summary)
        .because(format!("its control channel is sealed: {FORGED}"))
}

/// A connection.
pub struct Line {
    endpoint: Box<dyn Endpoint>,
    channel: Channel,
    peer: Peer,
    /// What is known of both ends: apart from what every turn looks at.
    inquest: Box<Inquest>,
    /// Something failed; the reason is still being looked for.
    trouble: Option<Trouble>,
    peer_left: bool,
    stall: Stall,
    turns: u32,
    /// Of the last look.
    now: u64,
    comeback: Option<Box<Comeback>>,
    /// Who dials again when the peer's process is gone.
    caller: Option<Box<Caller>>,
}

/// A connection that does not work any more.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    /// The first operation that failed of itself.
    outcome: Option<Outcome>,
    flushed: u32,
    event: Option<&'static str>,
    /// How long nothing had ended, in nanoseconds, if it was that.
    stalled: Option<u64>,
}

impl Trouble {
    /// Whether trying again can help: silence and missing receives pass, a request that breaks a rule breaks it again.
    fn may_pass(&self) -> bool {
        let silent = |status| matches!(status, WcStatus::RetryExc | WcStatus::RnrRetryExc);
        match self.outcome {
            Some(Outcome::Failed(status)) => silent(status),
            Some(Outcome::Done | Outcome::Flushed | Outcome::FailedCoarse) | None => true,
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, trouble, peer_left, .. } = self;
        f.debug_struct("Line")
            .field("peer", peer)
            .field("trouble", trouble)
            .field("peer_left", peer_left)
            .finish_non_exhaustive()
    }
}

impl Line {
    /// A connection that was made just now.
    pub fn new(endpoint: Box<dyn Endpoint>, channel: Channel, peer: Peer, home: Home) -> Self {
        let stall = Stall::new(home.stall());
        home.meets(endpoint.gids());
        let inquest = Box::new(Inquest::open(home, &*endpoint));
        Self {
            endpoint,
            channel,
            peer,
            inquest,
            trouble: None,
            peer_left: false,
            stall,
            turns: 0,
            now: 0,
            comeback: None,
            caller: None,
        }
    }

    /// The same, over which something may have come already since this end was as in `start`.
    pub(super) fn counting_from(mut self, start: End) -> Self {
        self.inquest.count_from(start);
        self
    }

    /// The same, to be brought back when it breaks, if its device can do that; by `caller`, also to another process.
    pub(super) fn coming_back(mut self, comeback: Comeback, caller: Option<Caller>) -> Self {
        if self.endpoint.reconnect().is_some() {
            self.comeback = Some(Box::new(comeback));
            self.caller = caller.map(Box::new);
        }
        self
    }

    /// What has become of the connection; ask after every [`poll`](Self::poll), until there is no more.
    pub fn change(&mut self) -> Option<Change> {
        self.comeback.as_mut()?.next_change()
    }

    /// What ended without success since the last call, where the connection comes back: each submission once.
    pub fn lost(&mut self) -> impl Iterator<Item = Lost> + '_ {
        self.comeback.iter_mut().flat_map(|comeback| comeback.lost())
    }

    /// Dials again, after [`Change::PeerGone`]. `None` where that was never said.
    pub fn redial(mut self) -> Option<Dial> {
        let since = self.comeback.as_ref()?.failed_since()?;
        self.endpoint.close();
        Dial::again(*self.caller.take()?, since)
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// What the connection can do.
    pub fn caps(&self) -> Caps {
        self.endpoint.caps()
    }

    /// How bytes reach the peer.
    pub fn path(&self) -> &'static str {
        self.endpoint.path()
    }

    /// The endpoint, to register and export memory.
    pub fn endpoint(&mut self) -> &mut dyn Endpoint {
        &mut *self.endpoint
    }

    /// Whether the peer has said goodbye.
    pub fn peer_left(&self) -> bool {
        self.peer_left
    }

    /// Whether it takes work.
    pub fn is_up(&self) -> bool {
        self.trouble.is_none()
    }

    /// Submits an operation. `false`: not now; the queue is full, or the connection has failed and a later
    /// [`poll`](Self::poll) says why.
    ///
    /// # Errors
    /// When the operation could never be taken.
    pub fn submit(&mut self, now: u64, op: Op<'_>, token: Token) -> Result<bool, Failure> {
        if !self.is_up() && !self.renews(&op) {
            return Ok(false);
        }
        match self.endpoint.submit(op, token) {
            Ok(()) => Ok(true),
            Err(SubmitError::Full) => Ok(false),
            Err(SubmitError::Degraded) => {
                self.now = now;
                Trouble::begin(&mut self.trouble);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn renews(&self, op: &Op<'_>) -> bool {
        let takes = self.comeback.as_ref().is_some_and(|comeback| comeback.takes_receives());
        takes && matches!(op, Op::Recv { .. })
    }

    /// Starts what was submitted.
    pub fn doorbell(&mut self) {
        self.endpoint.doorbell();
    }

    /// Adds what was done to `done`, which keeps its capacity, and looks after the peer. Returns how much was found.
    ///
    /// # Errors
    /// The reason why the connection ended, once it is known: after a failure the peer is asked for what it knows, which
    /// explains it better, and waited for at most for [`ANSWER_WAIT`](pmd_verbs::connect::ANSWER_WAIT). Where it comes back, only when that is over, too: look at [`change`](Self::change) meanwhile.
    pub fn poll(&mut self, now: u64, done: &mut Vec<Settled>) -> Result<usize, Failure> {
        self.now = now;
        let before = done.len();
        let (trouble, comeback) = (&mut self.trouble, &mut self.comeback);
        let mut note = |settled: Settled| match settled.outcome {
            Outcome::Done => done.push(settled),
            outcome => {
                let trouble = Trouble::begin(trouble);
                match outcome {
                    Outcome::Flushed => trouble.flushed += 1,
                    outcome => {
                        trouble.outcome.get_or_insert(outcome);
                    }
                }
                if let Some(comeback) = comeback {
                    comeback.lose(settled.token, settled.replay);
                }
            }
        };
        let settled = self.endpoint.poll(&mut note);
        match self.endpoint.event() {
            // Its control channel tells the same, and may be dialled again.
            Some(EndpointEvent::PeerDead) if self.caller.is_some() => {
                Trouble::begin(&mut self.trouble);
            }
            Some(EndpointEvent::PeerDead) if !self.peer_left => {
                self.inquest.wait_for_last_words(now);
            }
            Some(EndpointEvent::Failed(event)) => {
                Trouble::begin(&mut self.trouble).event.get_or_insert(event);
            }
            Some(EndpointEvent::PeerDead) | None => {}
        }
        if settled > 0 || self.trouble.is_some() || self.endpoint.in_flight() == 0 {
            self.stall.progress(now);
        } else if let Some(for_ns) = self.stall.look(now) {
            Trouble::begin(&mut self.trouble).stalled = Some(for_ns);
        }
        if self.trouble.is_some() {
            self.inquest.ask(&*self.endpoint, &mut self.channel, now);
        }
        self.turns += 1;
        if settled == 0
            || self.turns >= CHANNEL_TURNS
            || !self.is_up()
            || self.inquest.gone_at().is_some()
        {
            self.turns = 0;
            self.listen(now)?;
        }
        if let Some(gone_at) = self.inquest.gone_at().filter(|_| !self.peer_left) {
            return match now >= gone_at {
                true => Err(self.dead("the device noticed that its process is gone")),
                false => Ok(settled),
            };
        }
        let progress = done.len() > before;
        if self.comes_back() {
            self.come_back(now, progress)?;
            return Ok(settled);
        }
        match &self.trouble {
            // Whoever said goodbye may have closed its end already: its node lets this end go.
            Some(trouble) if self.inquest.is_over(now) && !self.said_goodbye(now) => {
                Err(self.explain(trouble))
            }
            _ => Ok(settled),
        }
    }

    /// When something is due although nothing arrives.
    pub fn next_timeout(&self) -> Option<u64> {
        if self.inquest.gone_at().is_some() {
            return self.inquest.gone_at();
        }
        let recovery = match (&self.comeback, &self.trouble) {
            (Some(comeback), _) if self.comes_back() && comeback.is_up() => {
                self.trouble.as_ref().and_then(|_| self.inquest.word_deadline())
            }
            (Some(comeback), _) if self.comes_back() => comeback.next_timeout(),
            (_, Some(_)) => self.inquest.deadline(),
            (_, None) => None,
        };
        let waits = self.trouble.is_none() && self.endpoint.in_flight() > 0;
        let stall = self.stall.next_timeout().filter(|_| waits);
        [recovery, stall].into_iter().flatten().min()
    }

    fn comes_back(&self) -> bool {
        self.comeback.is_some() && self.trouble.as_ref().is_none_or(Trouble::may_pass)
    }

    /// Goes on with bringing the connection back, if it is broken. `progress`: something was done over it.
    fn come_back(&mut self, now: u64, progress: bool) -> Result<(), Failure> {
        // Whoever leaves closes its end, which looks like a break until its goodbye is heard: its node lets this end go.
        let leaving = self.said_goodbye(now) || self.inquest.awaits_word(now);
        let Some(comeback) = &mut self.comeback else { return Ok(()) };
        if comeback.is_up() {
            if self.trouble.is_none() {
                if progress {
                    comeback.progress(now);
                    self.inquest.begin_anew(&*self.endpoint);
                }
                return Ok(());
            }
            if leaving {
                return Ok(());
            }
            let Some(steps) = self.endpoint.reconnect() else {
                // The device is gone, and nothing can be brought back.
                self.comeback = None;
                return Ok(());
            };
            let failure = steps.failure();
            comeback.fail(now, failure);
            tracing::warn!("the connection to {} broke, and is brought back", self.peer);
        }
        Trouble::begin(&mut self.trouble);
        match comeback.run(now, &mut *self.endpoint, &mut self.channel) {
            Ok(true) => {
                self.trouble = None;
                tracing::info!("the connection to {} is up again", self.peer);
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(given_up) => Err(self.give_up(given_up)),
        }
    }

    fn give_up(&self, given_up: GivenUp) -> Failure {
        let GivenUp { attempts, took_ns } = given_up;
        let ms = took_ns / 1_000_000;
        let tried = format!("{attempts} attempts in {ms} ms did not bring the connection back");
        let failure = match &self.trouble {
            Some(trouble) => self.explain(trouble).because(tried),
            None => Failure::new(Code::Unknown, Owner::Remote, tried),
        };
        match self.comeback.as_ref().map_or(0, |comeback| comeback.ignored()) {
            0 => failure,
            count => failure.because(format!(
                "{count} messages of the peer spoke of connections that are none: ignored"
            )),
        }
    }

    /// Says goodbye: everything asked for has been done. The connection ends with it.
    pub fn leave(self) {
        let Self { mut endpoint, channel, inquest, now, .. } = self;
        inquest.part(&*endpoint, channel, now);
        endpoint.close();
    }

    /// Says goodbye, and goes on serving until the peer has left too.
    pub fn announce_end(&mut self) {
        self.inquest.farewell(&*self.endpoint, &mut self.channel, self.now);
    }

    /// Ends the connection and tells the peer why.
    pub fn abort(&mut self, verdict: &Verdict) {
        // A peer that is gone already needs no reason.
        drop(self.channel.send(&Message::Refused(Refusal::from(verdict).to_string())));
        self.endpoint.close();
    }

    /// Hears the next of what the peer has said on the channel; where a broken connection comes back, all of it up to a
    /// goodbye, which tells a break from a leave. A peer that goes on talking is heard further in later turns.
    fn listen(&mut self, now: u64) -> Result<(), Failure> {
        for _ in 0..CHANNEL_MESSAGES {
            let Some(message) = self.channel.poll() else { break };
            self.hear(message, now)?;
            if self.is_up() || self.peer_left || !self.comes_back() {
                break;
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: Message, now: u64) -> Result<(), Failure> {
        match message {
            Message::Bye => self.peer_left = true,
            message @ Message::Farewell(_) => {
                self.peer_left = true;
                self.inquest.hear(&message, &*self.endpoint, &mut self.channel, now);
            }
            message @ (Message::Ask(_) | Message::Evidence(_) | Message::Lives) => {
                self.inquest.hear(&message, &*self.endpoint, &mut self.channel, now);
            }
            Message::Refused(text) => {
                let refusal = Refusal::parse(&text);
                return Err(self.inquest.told(refusal, &*self.endpoint, &self.peer, now));
            }
            Message::Recovery(message, hello) => {
                if let Some(comeback) = &mut self.comeback {
                    comeback.hear(now, message, hello, &mut *self.endpoint);
                    if !comeback.is_up() {
                        Trouble::begin(&mut self.trouble);
                    }
                }
            }
            Message::Lost(how) if !self.peer_left => {
                let Some(comeback) = self.comeback.as_mut().filter(|_| self.caller.is_some())
                else {
                    return Err(match &*how {
                        FOREIGN => self.garbled(),
                        FORGED => forged(&self.peer),
                        _ => self.dead(&how),
                    });
                };
                if comeback.lose_channel(now) {
                    tracing::warn!("{} is gone, and is dialled again: {how}", self.peer);
                }
                Trouble::begin(&mut self.trouble);
            }
            Message::Lost(how) if self.comeback.is_some() && !self.is_up() => {
                return Err(self.dead(&how));
            }
            // A closed channel after a goodbye is as it should be; nothing else has a meaning here.
            Message::Lost(_) | Message::Hello(_) | Message::Ready => {}
        }
        Ok(())
    }

    /// Whether the peer has just said goodbye.
    fn said_goodbye(&self, now: u64) -> bool {
        self.peer_left && self.inquest.deadline().is_none_or(|deadline| now < deadline)
    }

    /// The peer has left without a goodbye.
    fn dead(&self, how: &str) -> Failure {
        self.inquest.witness(dead(&self.peer, how), &*self.endpoint, &self.peer, self.now)
    }

    /// The peer lives, and talks nonsense.
    fn garbled(&self) -> Failure {
        let summary =
            format!("{} sent something on the control channel that is no message", self.peer);
        Failure::new(Code::InvalidRequest, Owner::Remote, summary).because(
            "the connection ended for it: the peer is of another version, or another program",
        )
    }

    fn explain(&self, trouble: &Trouble) -> Failure {
        let Trouble { outcome, flushed, event, stalled } = *trouble;
        let scene = Scene { peer: &self.peer, outcome, flushed, event, stalled };
        self.inquest.explain(&scene, &*self.endpoint, self.now)
    }
}

impl Trouble {
    fn begin(slot: &mut Option<Self>) -> &mut Self {
        slot.get_or_insert(Self { outcome: None, flushed: 0, event: None, stalled: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_that_was_tampered_with_names_its_seal() {
        let forged = dead(&Peer::at("10.0.0.1:7471"), FORGED).verdict;
        assert_eq!((forged.code, forged.owner), (Code::DataMismatch, Owner::Fabric));
        assert!(forged.evidence[0].contains("sealed"), "{forged}");
        let gone = dead(&Peer::at("10.0.0.1:7471"), "its end closed").verdict;
        assert_eq!((gone.code, gone.owner), (Code::PeerDead, Owner::Remote));
    }
}
