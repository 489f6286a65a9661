//! A connection between two nodes: the endpoint that moves bytes, and the channel that tells of the peer's end.

use std::fmt;

use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::connect::{Channel, Message};
use pmd_verbs::endpoint::{
    Caps, Endpoint, EndpointEvent, Op, Outcome, Settled, SubmitError, Token,
};

use super::{Refusal, status};
use crate::failure::Failure;
use crate::limits::{CHANNEL_TURNS, EVIDENCE_WAIT};

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
    let failure = Failure::new(Code::PeerDead, Owner::Remote, format!("{peer} is gone"));
    // A node of this process reports itself why it ended.
    Failure { hearsay: peer.address.is_none(), ..failure }.because(how)
}

/// A connection.
pub struct Line {
    endpoint: Box<dyn Endpoint>,
    channel: Channel,
    peer: Peer,
    /// This end's name, for the settings that apply to it.
    node: String,
    /// Something failed; the reason is still being looked for.
    trouble: Option<Trouble>,
    peer_left: bool,
    turns: u32,
}

/// A connection that does not work any more.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    since: u64,
    /// The first operation that failed of itself.
    outcome: Option<Outcome>,
    flushed: u32,
    event: Option<&'static str>,
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
    /// A connection of the node called `node`.
    pub fn new(endpoint: Box<dyn Endpoint>, channel: Channel, peer: Peer, node: &str) -> Self {
        Self {
            endpoint,
            channel,
            peer,
            node: node.to_owned(),
            trouble: None,
            peer_left: false,
            turns: 0,
        }
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
        if !self.is_up() {
            return Ok(false);
        }
        match self.endpoint.submit(op, token) {
            Ok(()) => Ok(true),
            Err(SubmitError::Full) => Ok(false),
            Err(SubmitError::Degraded) => {
                self.trouble(now);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Starts what was submitted.
    pub fn doorbell(&mut self) {
        self.endpoint.doorbell();
    }

    /// Adds what was done to `done`, which keeps its capacity, and looks after the peer. Returns how much was found.
    ///
    /// # Errors
    /// The reason why the connection ended, once it is known: a failed operation waits a moment for the peer's end, which
    /// explains it better.
    pub fn poll(&mut self, now: u64, done: &mut Vec<Settled>) -> Result<usize, Failure> {
        let trouble = &mut self.trouble;
        let mut note = |settled: Settled| match settled.outcome {
            Outcome::Done => done.push(settled),
            Outcome::Flushed => Trouble::begin(trouble, now).flushed += 1,
            outcome => {
                Trouble::begin(trouble, now).outcome.get_or_insert(outcome);
            }
        };
        let settled = self.endpoint.poll(&mut note);
        match self.endpoint.event() {
            Some(EndpointEvent::PeerDead) if !self.peer_left => {
                return Err(dead(&self.peer, "the device noticed that its process is gone"));
            }
            Some(EndpointEvent::Failed(event)) => {
                Trouble::begin(&mut self.trouble, now).event.get_or_insert(event);
            }
            Some(EndpointEvent::PeerDead) | None => {}
        }
        self.turns += 1;
        if settled == 0 || self.turns >= CHANNEL_TURNS || !self.is_up() {
            self.turns = 0;
            self.listen()?;
        }
        let patience = u64::try_from(EVIDENCE_WAIT.as_nanos()).unwrap_or(u64::MAX);
        match &self.trouble {
            Some(trouble) if now.saturating_sub(trouble.since) >= patience => {
                Err(self.explain(trouble))
            }
            _ => Ok(settled),
        }
    }

    /// When a failed connection will have been waited for long enough.
    pub fn next_timeout(&self) -> Option<u64> {
        let patience = u64::try_from(EVIDENCE_WAIT.as_nanos()).unwrap_or(u64::MAX);
        self.trouble.map(|trouble| trouble.since.saturating_add(patience))
    }

    /// Says goodbye: everything asked for has been done. The connection ends with it.
    pub fn leave(mut self) {
        // A peer that is gone already needs no goodbye.
        drop(self.channel.send(&Message::Bye));
        self.endpoint.close();
    }

    /// Says goodbye, and goes on serving until the peer has left too.
    pub fn announce_end(&mut self) {
        drop(self.channel.send(&Message::Bye));
    }

    /// Ends the connection and tells the peer why.
    pub fn abort(&mut self, verdict: &Verdict) {
        // A peer that is gone already needs no reason.
        drop(self.channel.send(&Message::Refused(Refusal::from(verdict).to_string())));
        self.endpoint.close();
    }

    fn trouble(&mut self, now: u64) {
        Trouble::begin(&mut self.trouble, now);
    }

    /// Hears what the peer says on the channel.
    fn listen(&mut self) -> Result<(), Failure> {
        match self.channel.poll() {
            Some(Message::Bye) => self.peer_left = true,
            Some(Message::Refused(text)) => return Err(Refusal::parse(&text).told_by(&self.peer)),
            Some(Message::Lost(how)) if !self.peer_left => return Err(dead(&self.peer, &how)),
            // A closed channel after a goodbye is as it should be; nothing else has a meaning here.
            Some(_) | None => {}
        }
        Ok(())
    }

    fn explain(&self, trouble: &Trouble) -> Failure {
        let mut failure = match trouble.outcome {
            Some(Outcome::Failed(cause)) => status::failure(cause, &self.node, &self.peer),
            _ => {
                let summary = format!("the connection to {} failed", self.peer);
                Failure::new(Code::Unknown, Owner::Remote, summary)
            }
        };
        if let Some(words) = self.endpoint.failure() {
            failure = failure.because(words);
        }
        if let Some(event) = trouble.event {
            failure = failure.because(event);
        }
        if trouble.flushed > 0 {
            failure = failure.because(format!("{} operations were flushed", trouble.flushed));
        }
        failure
    }
}

impl Trouble {
    fn begin(slot: &mut Option<Self>, now: u64) -> &mut Self {
        slot.get_or_insert(Self { since: now, outcome: None, flushed: 0, event: None })
    }
}
