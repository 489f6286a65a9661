//! The connecting end.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pmd_observe::{Code, Owner};
use pmd_verbs::connect::{Channel, Connecting, FOREIGN, Message, connect};
use pmd_verbs::endpoint::{Endpoint, EndpointOptions, Pending};

use super::line::dead;
use super::{Greeting, Line, Peer, Refusal};
use crate::device::DeviceLcore;
use crate::failure::Failure;

/// The way to the other end.
#[derive(Debug)]
pub enum Route {
    /// A node of this process, on a channel that was made for the two.
    Here(Channel),
    /// A listener of another process.
    Remote(SocketAddr),
}

/// How far a [`Dial`] is.
pub enum Dialing<'a> {
    /// Nothing to do but to poll again.
    Waiting,
    /// There is somebody. Register memory and post receives now, then [`Dial::ask`].
    Reached(&'a mut dyn Endpoint),
    /// Connected: what the peer answered, and the connection.
    Connected(Vec<u8>, Line),
}

impl std::fmt::Debug for Dialing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting => "Waiting",
            Self::Reached(_) => "Reached",
            Self::Connected(..) => "Connected",
        })
    }
}

/// A connection being made to a peer that accepts. Polled; never waits.
pub struct Dial {
    node: String,
    protocol: &'static str,
    options: EndpointOptions,
    device: Rc<dyn DeviceLcore>,
    timeout: Duration,
    deadline: Option<u64>,
    peer: Peer,
    stage: Stage,
}

enum Stage {
    Start(Route),
    Reaching(Connecting),
    Reached { channel: Channel, pending: Box<dyn Pending> },
    Asked { channel: Channel, pending: Box<dyn Pending> },
    Over,
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, peer, deadline, .. } = self;
        f.debug_struct("Dial")
            .field("node", node)
            .field("peer", peer)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}

impl Dial {
    /// A connection of `node` that speaks `protocol`, made within `timeout`.
    pub fn new(
        node: &str,
        protocol: &'static str,
        route: Route,
        device: Rc<dyn DeviceLcore>,
        options: EndpointOptions,
        timeout: Duration,
    ) -> Self {
        let peer = match &route {
            Route::Here(channel) => Peer::named(channel.peer()),
            Route::Remote(address) => Peer::at(address),
        };
        Self {
            node: node.to_owned(),
            protocol,
            options,
            device,
            timeout,
            deadline: None,
            peer,
            stage: Stage::Start(route),
        }
    }

    /// Goes on with it.
    ///
    /// # Errors
    /// Why there will be no connection.
    pub fn poll(&mut self, now: u64) -> Result<Dialing<'_>, Failure> {
        let timeout = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline = *self.deadline.get_or_insert_with(|| now.saturating_add(timeout));
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Start(Route::Here(channel)) => self.reached(channel)?,
            Stage::Start(Route::Remote(address)) => {
                let connecting = connect(address, self.timeout).map_err(|error| {
                    Failure::local(format!("cannot start connecting to {address}: {error}"))
                })?;
                Stage::Reaching(connecting)
            }
            Stage::Reaching(mut connecting) => match connecting.poll() {
                None => Stage::Reaching(connecting),
                Some(Ok(channel)) => self.reached(channel)?,
                Some(Err(error)) => return Err(self.unreachable(&error.to_string())),
            },
            Stage::Asked { mut channel, mut pending } => match channel.poll() {
                None if now >= deadline => return Err(self.silent()),
                None => Stage::Asked { channel, pending },
                Some(Message::Hello(bytes)) => {
                    let payload = self.answered(&bytes, &mut *pending)?;
                    channel.send(&Message::Ready).map_err(|error| self.gone(&error.to_string()))?;
                    let endpoint = pending.into_endpoint();
                    let line = Line::new(endpoint, channel, self.peer.clone(), &self.node);
                    return Ok(Dialing::Connected(payload, line));
                }
                Some(Message::Refused(text)) => {
                    let mut failure = Refusal::parse(&text).told_by(&self.peer);
                    // Nobody else reports a connection that was never made.
                    failure.hearsay = false;
                    return Err(failure);
                }
                Some(Message::Bye) => return Err(self.peer.ended_early("it said goodbye")),
                Some(Message::Lost(how)) => return Err(self.gone(&how)),
                Some(Message::Ready | Message::Ask(_) | Message::Evidence(_) | Message::Lives) => {
                    return Err(self.silent());
                }
            },
            stage @ (Stage::Reached { .. } | Stage::Over) => stage,
        };
        Ok(match &mut self.stage {
            Stage::Reached { pending, .. } => Dialing::Reached(pending.endpoint()),
            _ => Dialing::Waiting,
        })
    }

    /// Greets the peer, with what the protocol says first. Call it once, when the peer was reached.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn ask(&mut self, payload: &[u8]) -> Result<(), Failure> {
        let Stage::Reached { mut channel, pending } =
            std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Ok(());
        };
        let greeting = Greeting {
            protocol: self.protocol,
            transport: self.options.transport,
            pid: std::process::id(),
            node: &self.node,
            payload,
            device: &pending.hello(&[]),
        };
        let sent = channel.send(&Message::Hello(greeting.encode()));
        sent.map_err(|error| self.gone(&error.to_string()))?;
        self.stage = Stage::Asked { channel, pending };
        Ok(())
    }

    /// Does not want the connection any more: a peer that is reached already learns it. Returns what it means to the run,
    /// which is not what was asked for.
    pub fn leave(self) -> Failure {
        let channel = match self.stage {
            Stage::Start(Route::Here(channel))
            | Stage::Reached { channel, .. }
            | Stage::Asked { channel, .. } => Some(channel),
            Stage::Start(Route::Remote(_)) | Stage::Reaching(_) | Stage::Over => None,
        };
        if let Some(mut channel) = channel {
            // A peer that is gone already needs no goodbye.
            drop(channel.send(&Message::Bye));
        }
        let failure = self.peer.ended_early("the run was told to end");
        match self.peer.address {
            Some(_) => failure.turn(format!("node.{}.peer", self.node)),
            None => failure,
        }
    }

    /// When it gives up.
    pub fn next_timeout(&self) -> Option<u64> {
        self.deadline
    }

    fn reached(&self, channel: Channel) -> Result<Stage, Failure> {
        let pending = self.device.prepare(&self.options).map_err(|error| {
            Failure::local(format!("no queue pair for `{}`: {error}", self.node))
        })?;
        Ok(Stage::Reached { channel, pending })
    }

    /// Takes the answer and connects to it. Returns its payload.
    fn answered(&mut self, bytes: &[u8], pending: &mut dyn Pending) -> Result<Vec<u8>, Failure> {
        let peer = self.peer.clone();
        let wrong = |text: String| {
            let summary = format!("cannot connect to {peer}: {text}");
            Failure::new(Code::InvalidRequest, Owner::Config, summary)
        };
        let answer = Greeting::decode(bytes).map_err(|error| wrong(error.to_string()))?;
        if answer.protocol != self.protocol {
            let (theirs, ours) = (answer.protocol, self.protocol);
            return Err(wrong(format!("it speaks `{theirs}`, this node `{ours}`")));
        }
        self.peer = self.peer.clone().greeted(answer.node, answer.pid);
        pending.connect(answer.device).map_err(|error| wrong(error.to_string()))?;
        Ok(answer.payload.to_vec())
    }

    /// The channel broke. Nodes of one process end together: one that was told so first has not died.
    fn gone(&self, how: &str) -> Failure {
        match self.peer.address {
            Some(_) if how == FOREIGN => {
                let summary = format!("{} does not speak this protocol", self.peer);
                Failure::new(Code::PeerNotReady, Owner::Config, summary)
                    .because("another program listens there: correct the address")
                    .turn(format!("node.{}.peer", self.node))
            }
            Some(_) => dead(&self.peer, how),
            None => self.peer.ended_early(how).heard(),
        }
    }

    fn unreachable(&self, why: &str) -> Failure {
        let (peer, timeout) = (&self.peer, self.timeout);
        let summary = format!("cannot reach {peer} within {timeout:?}: {why}");
        Failure::new(Code::PeerNotReady, Owner::Remote, summary)
            .because("start the pipeline that listens there, or correct the address")
            .turn(format!("node.{}.peer", self.node))
    }

    fn silent(&self) -> Failure {
        let (peer, timeout) = (&self.peer, self.timeout);
        let summary = format!("{peer} did not answer within {timeout:?}");
        Failure::new(Code::PeerNotReady, Owner::Remote, summary)
            .because("its channel is open, but it does not answer the greeting")
            .turn(format!("node.{}.connect_timeout", self.node))
    }
}
