//! The accepting end.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pmd_observe::why::End;
use pmd_observe::{Code, Owner};
use pmd_verbs::connect::{Channel, Listener, Message};
use pmd_verbs::endpoint::{Endpoint, EndpointOptions, Pending};

use pmd_verbs::ledger::recovery::Role;

use super::comeback::Comeback;
use super::line::dead;
use super::{Greeting, Home, Line, Peer, Refusal};
use crate::device::DeviceLcore;
use crate::failure::Failure;
use crate::limits::{ACCEPT_TIMEOUT, GREETING_TIMEOUT, LISTEN_CONNECTIONS};

/// A caller that may come in.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// The host's name for the connection.
    pub key: usize,
    /// What its endpoint is made with.
    pub options: EndpointOptions,
}

/// The node that accepts.
pub trait Host {
    /// Somebody asks. `here`: a node of this process.
    ///
    /// # Errors
    /// [`Refusal`], which is told to the caller.
    fn admit(&mut self, ask: &Greeting<'_>, here: bool) -> Result<Admission, Refusal>;

    /// The endpoint of an admitted caller: register memory, post receives, and return what the protocol answers. The
    /// caller cannot reach it before it has the answer.
    ///
    /// # Errors
    /// [`Refusal`], which is told to the caller; the admission is void then, without a call to [`Host::lost`].
    fn equip(
        &mut self,
        key: usize,
        ask: &Greeting<'_>,
        endpoint: &mut dyn Endpoint,
    ) -> Result<Vec<u8>, Refusal>;

    /// A caller is connected.
    fn connected(&mut self, key: usize, line: Line);

    /// A caller is gone before it was connected, or was refused. `key` is that of its admission, `None` where there was
    /// none; `here`: a node of this process; `why` is `None` when it left in peace.
    fn lost(&mut self, key: Option<usize>, here: bool, why: Option<Failure>);
}

/// Everybody who wants to connect to a node and has not yet.
pub struct Acceptor {
    home: Home,
    protocol: &'static str,
    device: Rc<dyn DeviceLcore>,
    listener: Option<Listener>,
    callers: Vec<Caller>,
    /// This end leaves soon: whoever still comes in learns it at once.
    ending: bool,
    reconnects: bool,
}

struct Caller {
    channel: Channel,
    here: bool,
    deadline: Option<u64>,
    stage: Stage,
}

enum Stage {
    Silent,
    Answered {
        key: usize,
        pending: Box<dyn Pending>,
        peer: Peer,
        reconnect: Option<Duration>,
        /// This end before the caller could reach it.
        start: Box<End>,
    },
}

/// Who refused an admitted caller.
enum Unprepared {
    /// The host, which has let it go.
    ByHost(Refusal),
    /// The device, of which the host does not know yet.
    ByDevice(Refusal),
}

/// What became of a caller in one turn.
enum Step {
    Wait(Caller),
    Over,
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { home, protocol, listener, callers, .. } = self;
        f.debug_struct("Acceptor")
            .field("home", home)
            .field("protocol", protocol)
            .field("listener", listener)
            .field("callers", &callers.len())
            .finish_non_exhaustive()
    }
}

impl Acceptor {
    /// Accepts for the node at `home`, which speaks `protocol`: the callers at the other ends of `here`, all of this process, and
    /// those that come through `listener`.
    pub fn new(
        home: Home,
        protocol: &'static str,
        device: Rc<dyn DeviceLcore>,
        here: Vec<Channel>,
        listener: Option<Listener>,
    ) -> Self {
        let mut callers: Vec<Caller> = here
            .into_iter()
            .map(|channel| Caller { channel, here: true, deadline: None, stage: Stage::Silent })
            .collect();
        callers.reserve(LISTEN_CONNECTIONS);
        Self { home, protocol, device, listener, callers, ending: false, reconnects: false }
    }

    /// The same, for a node that hears of every [`Change`](super::Change): connections that break are brought back as their
    /// clients wish.
    #[must_use]
    pub fn reconnecting(self) -> Self {
        Self { reconnects: true, ..self }
    }

    /// Takes no new callers of other processes: those that have said nothing yet are told so, the others go on.
    pub fn close(&mut self) {
        self.listener = None;
        let goes_on =
            |caller: &Caller| caller.here || matches!(caller.stage, Stage::Answered { .. });
        for mut caller in self.callers.extract_if(.., |caller| !goes_on(caller)) {
            let reason = format!("`{}` takes no more clients", self.home.name());
            let refusal = Refusal::new(Code::PeerNotReady, reason);
            // A caller that is gone already needs no reason.
            drop(caller.channel.send(&Message::Refused(refusal.to_string())));
        }
    }

    /// The node was told to end: as [`close`](Self::close), and callers of other processes that were answered hear with
    /// their connection that it will not last.
    pub fn end(&mut self) {
        self.ending = true;
        self.close();
    }

    /// How many are on their way.
    pub fn callers(&self) -> usize {
        self.callers.len()
    }

    /// Goes on with everyone. Returns how much was done.
    pub fn poll(&mut self, now: u64, host: &mut dyn Host) -> usize {
        let mut work = 0;
        // As many in one turn as there is room for: each is heard at least once before it makes room for another.
        for _ in 0..LISTEN_CONNECTIONS {
            let silent = match self.callers.len() < LISTEN_CONNECTIONS {
                true => None,
                false => match self.oldest_silent(now) {
                    Some(silent) => Some(silent),
                    None => break,
                },
            };
            let Some(channel) = self.listener.as_mut().and_then(Listener::poll) else { break };
            work += 1;
            if let Some(silent) = silent {
                let caller = self.callers.swap_remove(silent);
                give_up(&caller, Some(caller.unheard("made room for others")), host);
            }
            let deadline = Some(after(GREETING_TIMEOUT, now));
            self.callers.push(Caller { channel, here: false, deadline, stage: Stage::Silent });
        }
        let mut index = 0;
        while index < self.callers.len() {
            let mut caller = self.callers.swap_remove(index);
            match caller.channel.poll() {
                Some(message) => {
                    work += 1;
                    match self.hear(now, caller, message, host) {
                        Step::Wait(caller) => self.put_back(index, caller),
                        // The last caller stands at this index now.
                        Step::Over => continue,
                    }
                }
                None if caller.deadline.is_some_and(|deadline| now >= deadline) => {
                    work += 1;
                    give_up(&caller, Some(caller.unheard("ran out of time")), host);
                    continue;
                }
                None => self.put_back(index, caller),
            }
            index += 1;
        }
        work
    }

    /// When the next caller runs out of time.
    pub fn next_timeout(&self) -> Option<u64> {
        self.callers.iter().filter_map(|caller| caller.deadline).min()
    }

    /// The stranger that has been silent for longest, and was there in an earlier turn.
    fn oldest_silent(&self, now: u64) -> Option<usize> {
        let fresh = after(GREETING_TIMEOUT, now);
        let silent = self.callers.iter().enumerate().filter_map(|(index, caller)| {
            let deadline = caller.deadline.filter(|deadline| *deadline < fresh)?;
            matches!(caller.stage, Stage::Silent).then_some((deadline, index))
        });
        silent.min().map(|(_, index)| index)
    }

    fn put_back(&mut self, index: usize, caller: Caller) {
        self.callers.push(caller);
        let last = self.callers.len() - 1;
        self.callers.swap(index, last);
    }

    fn hear(&self, now: u64, caller: Caller, message: Message, host: &mut dyn Host) -> Step {
        match (caller.stage, message) {
            (Stage::Silent, Message::Hello(bytes)) => {
                let caller = Caller { stage: Stage::Silent, ..caller };
                self.greeted(now, caller, &bytes, host)
            }
            (Stage::Answered { key, pending, peer, reconnect, start }, Message::Ready) => {
                let endpoint = pending.into_endpoint();
                let line = Line::new(endpoint, caller.channel, peer, self.home.clone());
                let mut line = line.counting_from(*start);
                if let Some(limit) = reconnect {
                    line = line.coming_back(Comeback::new(Role::Follows, limit, None), None);
                }
                if self.ending && !caller.here {
                    line.announce_end();
                }
                host.connected(key, line);
                Step::Over
            }
            (stage, message) => {
                let caller = Caller { stage, ..caller };
                let peer = caller.peer();
                let failure = match message {
                    Message::Bye | Message::Farewell(_) => None,
                    Message::Lost(how) => Some(caller.gone(&how)),
                    Message::Refused(text) => Some(Refusal::parse(&text).told_by(&peer)),
                    Message::Hello(_)
                    | Message::Ready
                    | Message::Ask(_)
                    | Message::Evidence(_)
                    | Message::Lives
                    | Message::Recovery(..) => {
                        let summary = format!("{peer} spoke out of turn while connecting");
                        Some(Failure::new(Code::InvalidRequest, Owner::Remote, summary))
                    }
                };
                give_up(&caller, failure, host);
                Step::Over
            }
        }
    }

    /// Somebody said who it is: admits it, prepares its endpoint, and answers.
    fn greeted(&self, now: u64, mut caller: Caller, bytes: &[u8], host: &mut dyn Host) -> Step {
        let peer = caller.peer();
        let refuse = |mut caller: Caller, refusal: Refusal, host: &mut dyn Host| {
            // A caller that is gone already needs no reason.
            drop(caller.channel.send(&Message::Refused(refusal.to_string())));
            let summary = format!("{} was refused: {}", caller.peer(), refusal.reason);
            // The caller, if it is of this process, reports what it was told.
            let failure = Failure::new(refusal.code, Owner::Remote, summary).heard();
            host.lost(None, caller.here, Some(failure));
            Step::Over
        };
        let ask = match Greeting::decode(bytes) {
            Ok(ask) if ask.protocol == self.protocol => ask,
            Ok(ask) => {
                let (theirs, ours) = (ask.protocol, self.protocol);
                let reason =
                    format!("`{}` speaks `{ours}`, the caller `{theirs}`", self.home.name());
                return refuse(caller, Refusal::new(Code::InvalidRequest, reason), host);
            }
            Err(error) => {
                let refusal = Refusal::new(Code::InvalidRequest, error.to_string());
                return refuse(caller, refusal, host);
            }
        };
        let peer = peer.greeted(ask.node, ask.pid);
        let admission = match host.admit(&ask, caller.here) {
            Ok(admission) => admission,
            Err(refusal) => return refuse(caller, refusal, host),
        };
        match self.prepare(&admission, &ask, host) {
            Ok((mut pending, answer)) => {
                let start = Box::new(pending.endpoint().evidence());
                let reconnect = self.granted(&ask);
                let reconnect = (reconnect > 0).then(|| Duration::from_millis(reconnect.into()));
                caller.stage =
                    Stage::Answered { key: admission.key, pending, peer, reconnect, start };
                caller.deadline = Some(after(ACCEPT_TIMEOUT, now));
                match caller.channel.send(&Message::Hello(answer)) {
                    Ok(()) => Step::Wait(caller),
                    Err(error) => {
                        let failure = caller.gone(&error.to_string());
                        give_up(&caller, Some(failure), host);
                        Step::Over
                    }
                }
            }
            Err(Unprepared::ByHost(refusal)) => refuse(caller, refusal, host),
            Err(Unprepared::ByDevice(refusal)) => {
                // A caller that is gone already needs no reason.
                drop(caller.channel.send(&Message::Refused(refusal.to_string())));
                let failure = Failure::new(refusal.code, Owner::Local, refusal.reason);
                host.lost(Some(admission.key), caller.here, Some(failure));
                Step::Over
            }
        }
    }

    /// For how many milliseconds a connection of the caller is brought back.
    fn granted(&self, ask: &Greeting<'_>) -> u32 {
        if self.reconnects { ask.reconnect } else { 0 }
    }

    /// The endpoint and the answer.
    fn prepare(
        &self,
        admission: &Admission,
        ask: &Greeting<'_>,
        host: &mut dyn Host,
    ) -> Result<(Box<dyn Pending>, Vec<u8>), Unprepared> {
        let node = self.home.name();
        let unfit = |text: String| {
            let reason = format!("`{node}` cannot connect to the caller: {text}");
            Unprepared::ByDevice(Refusal::new(Code::InvalidRequest, reason))
        };
        let mut pending =
            self.device.prepare(&admission.options).map_err(|error| unfit(error.to_string()))?;
        pending.connect(ask.device).map_err(|error| unfit(error.to_string()))?;
        let payload =
            host.equip(admission.key, ask, pending.endpoint()).map_err(Unprepared::ByHost)?;
        let answer = Greeting {
            protocol: self.protocol,
            transport: admission.options.transport,
            pid: std::process::id(),
            node,
            reconnect: self.granted(ask),
            payload: &payload,
            device: &pending.hello(&[]),
        };
        Ok((pending, answer.encode()))
    }
}

impl Caller {
    /// The channel broke. Nodes of one process end together: one that was told so first has not died.
    fn gone(&self, how: &str) -> Failure {
        let peer = self.peer();
        if self.here { peer.ended_early(how).heard() } else { dead(&peer, how) }
    }

    /// It does not go on; `what` it did instead.
    fn unheard(&self, what: &str) -> Failure {
        let summary = format!("{} began to connect, did not go on, and {what}", self.peer());
        Failure::new(Code::PeerNotReady, Owner::Remote, summary)
    }

    fn peer(&self) -> Peer {
        match &self.stage {
            Stage::Answered { peer, .. } => peer.clone(),
            Stage::Silent if self.here => Peer::named(self.channel.peer()),
            Stage::Silent => Peer::at(self.channel.peer()),
        }
    }
}

fn after(wait: Duration, now: u64) -> u64 {
    now.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
}

fn give_up(caller: &Caller, why: Option<Failure>, host: &mut dyn Host) {
    let key = match caller.stage {
        Stage::Answered { key, .. } => Some(key),
        Stage::Silent => None,
    };
    host.lost(key, caller.here, why);
}
