//! The connecting end.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pmd_observe::{Code, Owner};
use pmd_verbs::connect::{CallError, Channel, Connecting, FOREIGN, Guard, Message, connect};
use pmd_verbs::endpoint::{Endpoint, EndpointOptions, Pending};

use pmd_verbs::ledger::recovery::Role;

use super::comeback::{Comeback, backoff, nanoseconds};
use super::line::dead;
use super::{Greeting, Home, Line, Peer, Refusal};
use crate::device::DeviceLcore;
use crate::failure::Failure;

/// The way to the other end.
#[derive(Debug)]
pub enum Route {
    /// A node of this process, on a channel that was made for the two.
    Here(Channel),
    /// A listener of another process, on a channel that is protected like this.
    Remote(SocketAddr, Guard),
}

/// How far a [`Dial`] is.
#[expect(
    clippy::large_enum_variant,
    reason = "made once for each connection, and taken apart at once"
)]
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
    caller: Caller,
    deadline: Option<u64>,
    again: Option<Again>,
    peer: Peer,
    stage: Stage,
}

/// Who dials.
#[derive(Clone)]
pub(super) struct Caller {
    home: Home,
    protocol: &'static str,
    options: EndpointOptions,
    device: Rc<dyn DeviceLcore>,
    timeout: Duration,
    /// How long a connection that broke may take to work again; `None`: it does not come back.
    reconnect: Option<Duration>,
    /// The listener of another process.
    address: Option<SocketAddr>,
    guard: Guard,
}

/// The peer is dialled again, since its process was gone.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// When the connection before this one failed; `None` where there was none yet.
    since: Option<u64>,
    attempt: u32,
}

/// Two ends whose queue pairs are about to meet.
struct Meeting {
    channel: Channel,
    pending: Box<dyn Pending>,
    /// What the peer's protocol has answered.
    payload: Vec<u8>,
    /// Whether the peer brings the connection back.
    returns: bool,
}

enum Start {
    Here(Channel),
    Remote(SocketAddr),
}

enum Stage {
    Start(Start),
    /// Until then, before another attempt.
    Pausing(u64),
    Reaching(Connecting),
    Reached {
        channel: Channel,
        pending: Box<dyn Pending>,
    },
    Asked {
        channel: Channel,
        pending: Box<dyn Pending>,
    },
    /// It was answered, and the queue pairs have not met yet.
    Meeting(Meeting),
    /// Why this attempt came to nothing.
    Failed(Failure),
    Over,
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { caller, peer, deadline, .. } = self;
        f.debug_struct("Dial")
            .field("home", &caller.home)
            .field("peer", peer)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}

impl Dial {
    /// A connection of the node at `home` that speaks `protocol`, made within `timeout`.
    pub fn new(
        home: Home,
        protocol: &'static str,
        route: Route,
        device: Rc<dyn DeviceLcore>,
        options: EndpointOptions,
        timeout: Duration,
    ) -> Self {
        let peer = match &route {
            Route::Here(channel) => Peer::named(channel.peer()),
            Route::Remote(address, _) => Peer::at(address),
        };
        let (start, address, guard) = match route {
            Route::Here(channel) => (Start::Here(channel), None, Guard::Loopback),
            Route::Remote(address, guard) => (Start::Remote(address), Some(address), guard),
        };
        let reconnect = None;
        let caller = Caller { home, protocol, options, device, timeout, reconnect, address, guard };
        Self { caller, deadline: None, again: None, peer, stage: Stage::Start(start) }
    }

    /// The same, of which a connection that breaks is brought back within `limit`, if the peer agrees.
    #[must_use]
    pub fn reconnecting(mut self, limit: Option<Duration>) -> Self {
        self.caller.reconnect = limit;
        self
    }

    /// Dials anew for a connection that failed at `since`.
    pub(super) fn again(caller: Caller, since: u64) -> Option<Self> {
        let (address, limit) = (caller.address?, caller.reconnect?);
        Some(Self {
            deadline: Some(since.saturating_add(nanoseconds(limit))),
            again: Some(Again { since: Some(since), attempt: 0 }),
            peer: Peer::at(address),
            stage: Stage::Start(Start::Remote(address)),
            caller,
        })
    }

    /// Goes on with it.
    ///
    /// # Errors
    /// Why there will be no connection.
    pub fn poll(&mut self, now: u64) -> Result<Dialing<'_>, Failure> {
        let connected = match (self.step(now), self.again) {
            (Ok(connected), _) => connected,
            (Err(failure), Some(again)) => {
                self.pause(now, again, failure)?;
                None
            }
            (Err(failure), None) if self.may_come_back(&failure) => {
                self.pause(now, Again { since: None, attempt: 0 }, failure)?;
                None
            }
            (Err(failure), None) => return Err(failure),
        };
        if let Some((payload, line)) = connected {
            return Ok(Dialing::Connected(payload, line));
        }
        Ok(match &mut self.stage {
            Stage::Reached { pending, .. } => Dialing::Reached(pending.endpoint()),
            _ => Dialing::Waiting,
        })
    }

    /// Whether a peer that died before there was a connection is waited for, as one that does not listen yet.
    fn may_come_back(&self, failure: &Failure) -> bool {
        let Caller { reconnect, address, .. } = &self.caller;
        reconnect.is_some() && address.is_some() && failure.verdict.code == Code::PeerDead
    }

    /// Goes on with this attempt. Returns the answer and the connection once it is made.
    fn step(&mut self, now: u64) -> Result<Option<(Vec<u8>, Line)>, Failure> {
        let timeout = nanoseconds(self.caller.timeout);
        let deadline = *self.deadline.get_or_insert_with(|| now.saturating_add(timeout));
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Start(Start::Here(channel)) => self.reached(channel)?,
            Stage::Start(Start::Remote(address)) => {
                let left = Duration::from_nanos(deadline.saturating_sub(now));
                let guard = self.caller.guard.clone();
                let connecting = connect(address, left, guard).map_err(|error| {
                    Failure::local(format!("cannot start connecting to {address}: {error}"))
                })?;
                Stage::Reaching(connecting)
            }
            Stage::Pausing(until) if now < until => Stage::Pausing(until),
            Stage::Pausing(_) => match self.caller.address {
                Some(address) => Stage::Start(Start::Remote(address)),
                None => Stage::Over,
            },
            Stage::Reaching(mut connecting) => match connecting.poll() {
                None => Stage::Reaching(connecting),
                Some(Ok(channel)) => self.reached(channel)?,
                Some(Err(error)) => return Err(self.unreached(&error)),
            },
            Stage::Asked { mut channel, mut pending } => match channel.poll() {
                None if now >= deadline => return Err(self.silent()),
                None => Stage::Asked { channel, pending },
                Some(Message::Hello(bytes)) => {
                    let (payload, returns) = self.answered(&bytes, &mut *pending)?;
                    return self.meet(Meeting { channel, pending, payload, returns });
                }
                Some(message) => return Err(self.not_answered(message)),
            },
            Stage::Meeting(mut meeting) => match meeting.channel.poll() {
                None if now >= deadline => return Err(self.silent()),
                None => return self.meet(meeting),
                Some(message) => return Err(self.not_answered(message)),
            },
            Stage::Failed(failure) => return Err(failure),
            stage @ (Stage::Reached { .. } | Stage::Over) => stage,
        };
        Ok(None)
    }

    /// Goes on with queue pairs that meet; where they have, the peer hears so.
    fn meet(&mut self, mut meeting: Meeting) -> Result<Option<(Vec<u8>, Line)>, Failure> {
        let met = meeting.pending.meet().map_err(|error| {
            let summary = format!("cannot connect to {}: {error}", self.peer);
            let failure = Failure::new(Code::PeerNotReady, Owner::Remote, summary);
            failure.turn(format!("node.{}.connect", self.caller.home.name()))
        })?;
        if !met {
            self.stage = Stage::Meeting(meeting);
            return Ok(None);
        }
        let Meeting { mut channel, pending, payload, returns } = meeting;
        channel.send(&Message::Ready).map_err(|error| self.gone(&error.to_string()))?;
        Ok(Some((payload, self.line(pending.into_endpoint(), channel, returns))))
    }

    /// What the peer says instead of an answer.
    fn not_answered(&self, message: Message) -> Failure {
        match message {
            Message::Refused(text) => {
                let mut failure = Refusal::parse(&text).told_by(&self.peer);
                // Nobody else reports a connection that was never made.
                failure.hearsay = false;
                failure
            }
            Message::Bye | Message::Farewell(_) => self.peer.ended_early("it said goodbye"),
            Message::Lost(how) => self.gone(&how),
            Message::Hello(_)
            | Message::Ready
            | Message::Ask(_)
            | Message::Evidence(_)
            | Message::Lives
            | Message::Recovery(..) => self.silent(),
        }
    }

    /// Waits for another attempt, if there is time for one.
    fn pause(&mut self, now: u64, again: Again, failure: Failure) -> Result<(), Failure> {
        if self.deadline.is_none_or(|deadline| now >= deadline) {
            return Err(self.given_up(failure));
        }
        tracing::debug!("dialling again: {failure}");
        let Again { since, attempt } = again;
        let wait = backoff().delay_ns(attempt + 1, pmd_mem::os_entropy());
        self.again = Some(Again { since, attempt: attempt + 1 });
        self.stage = Stage::Pausing(now.saturating_add(wait));
        Ok(())
    }

    /// The connection, which comes back if both ends want that.
    fn line(&self, endpoint: Box<dyn Endpoint>, channel: Channel, returns: bool) -> Line {
        let Caller { home, reconnect, address, .. } = &self.caller;
        let line = Line::new(endpoint, channel, self.peer.clone(), home.clone());
        match reconnect.filter(|_| returns) {
            Some(limit) => {
                let since = self.again.and_then(|again| again.since);
                let caller = address.is_some().then(|| self.caller.clone());
                line.coming_back(Comeback::new(Role::Leads, limit, since), caller)
            }
            None => line,
        }
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
        let Caller { protocol, options, home, reconnect, .. } = &self.caller;
        let limit = reconnect.map_or(0, |limit| limit.as_millis());
        let greeting = Greeting {
            protocol,
            transport: options.transport,
            pid: std::process::id(),
            node: home.name(),
            reconnect: u32::try_from(limit).unwrap_or(u32::MAX),
            payload,
            device: &pending.hello(&[]),
        };
        self.stage = match channel.send(&Message::Hello(greeting.encode())) {
            Ok(()) => Stage::Asked { channel, pending },
            Err(error) => {
                let failure = self.gone(&error.to_string());
                if self.again.is_none() && !self.may_come_back(&failure) {
                    return Err(failure);
                }
                Stage::Failed(failure)
            }
        };
        Ok(())
    }

    /// Does not want the connection any more: a peer that is reached already learns it. Returns what it means to the run,
    /// which is not what was asked for.
    pub fn leave(self) -> Failure {
        let channel = match self.stage {
            Stage::Start(Start::Here(channel))
            | Stage::Reached { channel, .. }
            | Stage::Asked { channel, .. }
            | Stage::Meeting(Meeting { channel, .. }) => Some(channel),
            Stage::Start(Start::Remote(_))
            | Stage::Pausing(_)
            | Stage::Reaching(_)
            | Stage::Failed(_)
            | Stage::Over => None,
        };
        if let Some(mut channel) = channel {
            // A peer that is gone already needs no goodbye.
            drop(channel.send(&Message::Bye));
        }
        let failure = self.peer.ended_early("the run was told to end");
        match self.peer.address {
            Some(_) => failure.turn(format!("node.{}.peer", self.caller.home.name())),
            None => failure,
        }
    }

    /// When it gives up.
    pub fn next_timeout(&self) -> Option<u64> {
        match self.stage {
            Stage::Pausing(until) => Some(until),
            _ => self.deadline,
        }
    }

    fn reached(&self, channel: Channel) -> Result<Stage, Failure> {
        // Within a process there is nobody to be found.
        let managed = self.caller.options.managed && self.caller.address.is_some();
        let options = EndpointOptions { managed, ..self.caller.options };
        let pending = self.caller.device.prepare(&options).map_err(|error| {
            Failure::local(format!("no queue pair for `{}`: {error}", self.caller.home.name()))
        })?;
        Ok(Stage::Reached { channel, pending })
    }

    /// Takes the answer and connects to it. Returns its payload, and whether the peer brings the connection back.
    fn answered(
        &mut self,
        bytes: &[u8],
        pending: &mut dyn Pending,
    ) -> Result<(Vec<u8>, bool), Failure> {
        let peer = self.peer.clone();
        let wrong = |text: String| {
            let summary = format!("cannot connect to {peer}: {text}");
            Failure::new(Code::InvalidRequest, Owner::Config, summary)
        };
        let answer = Greeting::decode(bytes).map_err(|error| wrong(error.to_string()))?;
        if answer.protocol != self.caller.protocol {
            let (theirs, ours) = (answer.protocol, self.caller.protocol);
            return Err(wrong(format!("it speaks `{theirs}`, this node `{ours}`")));
        }
        self.peer = self.peer.clone().greeted(answer.node, answer.pid);
        pending.connect(answer.device).map_err(|error| wrong(error.to_string()))?;
        let returns = answer.reconnect > 0;
        if !returns && self.caller.reconnect.is_some() {
            tracing::warn!("{} does not bring connections back", self.peer);
        }
        Ok((answer.payload.to_vec(), returns))
    }

    /// The channel broke. Nodes of one process end together: one that was told so first has not died.
    fn gone(&self, how: &str) -> Failure {
        match self.peer.address {
            Some(_) if how == FOREIGN => {
                let summary = format!("{} does not speak this protocol", self.peer);
                Failure::new(Code::PeerNotReady, Owner::Config, summary)
                    .because("another program listens there: correct the address")
                    .turn(format!("node.{}.peer", self.caller.home.name()))
            }
            Some(_) => dead(&self.peer, how),
            None => self.peer.ended_early(how).heard(),
        }
    }

    /// A peer that was there has not come back; `last` is what the last attempt met.
    fn given_up(&self, last: Failure) -> Failure {
        let was_connected = self.again.is_some_and(|again| again.since.is_some());
        if last.verdict.code != Code::PeerNotReady || !was_connected {
            return last;
        }
        let (peer, limit) = (&self.peer, self.limit());
        let summary = format!("{peer} is gone, and nobody has come back within {limit:?}");
        Failure::new(Code::PeerDead, Owner::Remote, summary)
            .because(last.verdict.summary)
            .turn(format!("node.{}.reconnect_timeout", self.caller.home.name()))
    }

    /// How long it may take until there is a connection.
    fn limit(&self) -> Duration {
        let Caller { timeout, reconnect, .. } = self.caller;
        self.again.and_then(|again| again.since).and(reconnect).unwrap_or(timeout)
    }

    /// There is no channel.
    fn unreached(&self, error: &CallError) -> Failure {
        let (peer, home) = (&self.peer, &self.caller.home);
        let (code, owner) = match error {
            CallError::Io(error) => return self.unreachable(&error.to_string()),
            CallError::Foreign => return self.gone(FOREIGN),
            CallError::Refused(text) => return Refusal::parse(text).told_by(peer),
            CallError::Unproven(_) => (Code::PeerNotReady, Owner::Remote),
            CallError::Exposed(_)
            | CallError::NoKey
            | CallError::OtherKey
            | CallError::Version { .. } => (Code::InvalidRequest, Owner::Config),
        };
        let failure = Failure::new(code, owner, format!("cannot connect to {peer}: {error}"));
        failure.turn(format!("node.{}.psk_file", home.name()))
    }

    fn unreachable(&self, why: &str) -> Failure {
        let (peer, timeout) = (&self.peer, self.limit());
        let summary = format!("cannot reach {peer} within {timeout:?}: {why}");
        Failure::new(Code::PeerNotReady, Owner::Remote, summary)
            .because("start the pipeline that listens there, or correct the address")
            .turn(format!("node.{}.peer", self.caller.home.name()))
    }

    fn silent(&self) -> Failure {
        let (peer, timeout) = (&self.peer, self.limit());
        let summary = format!("{peer} did not answer within {timeout:?}");
        Failure::new(Code::PeerNotReady, Owner::Remote, summary)
            .because("its channel is open, but it does not answer the greeting")
            .turn(format!("node.{}.connect_timeout", self.caller.home.name()))
    }
}
