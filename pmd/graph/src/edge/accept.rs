//! The accepting end.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pmd_observe::why::End;
use pmd_observe::{Code, Owner};
use pmd_verbs::connect::{Channel, Listener, Message, oldest_of_most};
use pmd_verbs::endpoint::{ConnectError, Endpoint, EndpointOptions, Pending};

use pmd_verbs::ledger::recovery::Role;

use super::comeback::Comeback;
use super::line::dead;
use super::{Greeting, Home, Line, Peer, Refusal};
use crate::device::DeviceLcore;
use crate::failure::Failure;
use crate::limits::{ACCEPT_TIMEOUT, HALF_CONNECTED, LISTEN_CONNECTIONS, ROOM_WAIT};

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

    /// So many more have called without having become callers. They are in the log.
    fn turned_away(&mut self, count: u64);
}

/// Everybody who wants to connect to a node and has not yet.
pub struct Acceptor {
    home: Home,
    protocol: &'static str,
    device: Rc<dyn DeviceLcore>,
    listener: Option<Listener>,
    callers: Vec<Caller>,
    /// How many strangers the listener has turned away, as far as the host knows.
    turned_away: u64,
    /// Somebody who was answered has left or was connected: who waits for room may ask again.
    room: bool,
    /// This end leaves soon: whoever still comes in learns it at once.
    ending: bool,
    reconnects: bool,
}

struct Caller {
    channel: Channel,
    here: bool,
    /// When it was answered.
    since: u64,
    deadline: Option<u64>,
    stage: Stage,
}

enum Stage {
    Silent,
    /// It said who it is, and there is no room while others were answered and do not go on.
    Waiting {
        hello: Vec<u8>,
        refusal: Refusal,
    },
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
        let mut callers: Vec<Caller> =
            here.into_iter().map(|channel| Caller::new(channel, true)).collect();
        callers.reserve(LISTEN_CONNECTIONS);
        Self {
            home,
            protocol,
            device,
            listener,
            callers,
            turned_away: 0,
            room: false,
            ending: false,
            reconnects: false,
        }
    }

    /// The same, for a node that hears of every [`Change`](super::Change): connections that break are brought back as their
    /// clients wish.
    #[must_use]
    pub fn reconnecting(self) -> Self {
        Self { reconnects: true, ..self }
    }

    /// Takes no new callers of other processes: those that were not answered yet are told so, the others go on.
    pub fn close(&mut self) {
        let Some(mut listener) = self.listener.take() else { return };
        let reason = format!("`{}` takes no more clients", self.home.name());
        let refusal = Refusal::new(Code::PeerNotReady, reason).to_string();
        let goes_on =
            |caller: &Caller| caller.here || matches!(caller.stage, Stage::Answered { .. });
        let waiting = self.callers.extract_if(.., |caller| !goes_on(caller));
        let waiting = waiting.map(|caller| caller.channel);
        for mut channel in waiting.chain(std::iter::from_fn(|| listener.poll())) {
            // A caller that is gone already needs no reason.
            drop(channel.send(&Message::Refused(refusal.clone())));
        }
        listener.close(&refusal);
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
        let mut work = self.make_room(now, host);
        work += self.let_in(now, host);
        let asks_again = std::mem::take(&mut self.room) || !self.has_half_connected();
        let mut index = 0;
        while index < self.callers.len() {
            let mut caller = self.callers.swap_remove(index);
            let is_late = caller.deadline.is_some_and(|deadline| now >= deadline);
            let step = match (caller.channel.poll(), caller.stage) {
                (Some(message), stage) => self.hear(now, Caller { stage, ..caller }, message, host),
                (None, Stage::Waiting { hello, .. }) if asks_again => {
                    self.greeted(now, Caller { stage: Stage::Silent, ..caller }, &hello, host)
                }
                (None, Stage::Waiting { refusal, .. }) if is_late => {
                    refuse(Caller { stage: Stage::Silent, ..caller }, &refusal, host)
                }
                (None, stage) if is_late => {
                    let caller = Caller { stage, ..caller };
                    give_up(&caller, Some(caller.unheard("ran out of time")), host);
                    Step::Over
                }
                (None, mut stage) => match meets(&mut stage) {
                    Ok(_) => {
                        self.put_back(index, Caller { stage, ..caller });
                        index += 1;
                        continue;
                    }
                    Err(why) => unmet(Caller { stage, ..caller }, &why, host),
                },
            };
            work += 1;
            match step {
                Step::Wait(caller) => {
                    self.put_back(index, caller);
                    index += 1;
                }
                // The last caller stands at this index now.
                Step::Over => self.room = true,
            }
        }
        work
    }

    /// When the next caller runs out of time, or may have to make room.
    pub fn next_timeout(&self) -> Option<u64> {
        let late = self.callers.iter().filter_map(|caller| caller.deadline).min();
        let yields = self.half_connected().map(|(_, caller)| after(HALF_CONNECTED, caller.since));
        let yields = if self.is_crowded() { yields.min() } else { None };
        [late, yields].into_iter().flatten().min()
    }

    /// Lets in who has called.
    fn let_in(&mut self, now: u64, host: &mut dyn Host) -> usize {
        let Some(listener) = &mut self.listener else { return 0 };
        let turned_away = listener.turned_away();
        if turned_away > self.turned_away {
            host.turned_away(turned_away - self.turned_away);
            self.turned_away = turned_away;
        }
        let room =
            LISTEN_CONNECTIONS.saturating_sub(self.callers.iter().filter(|c| !c.here).count());
        let called = std::iter::from_fn(|| listener.poll()).take(room);
        // Each of them has said who it is.
        let called = called.map(|channel| {
            let deadline = Some(after(ROOM_WAIT, now));
            Caller { deadline, ..Caller::new(channel, false) }
        });
        let before = self.callers.len();
        self.callers.extend(called);
        self.callers.len() - before
    }

    /// Where somebody waits for room, sends one away who was answered and does not go on: the one that has been there for
    /// longest, of the source that has most of them.
    fn make_room(&mut self, now: u64, host: &mut dyn Host) -> usize {
        if !self.is_crowded() {
            return 0;
        }
        let half = self.half_connected().map(|(_, caller)| {
            let may = now >= after(HALF_CONNECTED, caller.since);
            (caller.channel.source(), may.then_some(caller.since))
        });
        let Some(nth) = oldest_of_most(half) else { return 0 };
        let Some(index) = self.half_connected().nth(nth).map(|(index, _)| index) else { return 0 };
        let caller = self.callers.swap_remove(index);
        give_up(&caller, Some(caller.unheard("made room for others")), host);
        self.room = true;
        1
    }

    /// Callers of other processes that were answered and have not gone on.
    fn half_connected(&self) -> impl Iterator<Item = (usize, &Caller)> {
        let callers = self.callers.iter().enumerate();
        callers.filter(|(_, it)| !it.here && matches!(it.stage, Stage::Answered { .. }))
    }

    fn has_half_connected(&self) -> bool {
        self.half_connected().next().is_some()
    }

    /// Whether others may have to wait for those that are there.
    fn is_crowded(&self) -> bool {
        let waits = |caller: &Caller| matches!(caller.stage, Stage::Waiting { .. });
        self.callers.iter().any(waits)
            || self.callers.iter().filter(|caller| !caller.here).count() >= LISTEN_CONNECTIONS
    }

    fn put_back(&mut self, index: usize, caller: Caller) {
        self.callers.push(caller);
        let last = self.callers.len() - 1;
        self.callers.swap(index, last);
    }

    fn hear(&self, now: u64, mut caller: Caller, message: Message, host: &mut dyn Host) -> Step {
        let early = message == Message::Ready && meets(&mut caller.stage) != Ok(true);
        match (caller.stage, message) {
            (Stage::Silent, Message::Hello(bytes)) => {
                let caller = Caller { stage: Stage::Silent, ..caller };
                self.greeted(now, caller, &bytes, host)
            }
            (Stage::Answered { key, pending, peer, reconnect, start }, Message::Ready)
                if !early =>
            {
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
        let ask = match Greeting::decode(bytes) {
            Ok(ask) if ask.protocol == self.protocol => ask,
            Ok(ask) => {
                let (theirs, ours) = (ask.protocol, self.protocol);
                let reason =
                    format!("`{}` speaks `{ours}`, the caller `{theirs}`", self.home.name());
                return refuse(caller, &Refusal::new(Code::InvalidRequest, reason), host);
            }
            Err(error) => {
                let refusal = Refusal::new(Code::InvalidRequest, error.to_string());
                return refuse(caller, &refusal, host);
            }
        };
        let peer = peer.greeted(ask.node, ask.pid);
        let admission = match host.admit(&ask, caller.here) {
            Ok(admission) => admission,
            // It may be taken by somebody who does not go on, and has it for a moment only.
            Err(refusal) if !caller.here && refusal.may_pass() && self.has_half_connected() => {
                caller.stage = Stage::Waiting { hello: bytes.to_vec(), refusal };
                return Step::Wait(caller);
            }
            Err(refusal) => return refuse(caller, &refusal, host),
        };
        match self.prepare(&admission, &ask, caller.here, host) {
            Ok((mut pending, answer)) => {
                let start = Box::new(pending.endpoint().evidence());
                let reconnect = self.granted(&ask);
                let reconnect = (reconnect > 0).then(|| Duration::from_millis(reconnect.into()));
                caller.stage =
                    Stage::Answered { key: admission.key, pending, peer, reconnect, start };
                (caller.since, caller.deadline) = (now, Some(after(ACCEPT_TIMEOUT, now)));
                match caller.channel.send(&Message::Hello(answer)) {
                    Ok(()) => Step::Wait(caller),
                    Err(error) => {
                        let failure = caller.gone(&error.to_string());
                        give_up(&caller, Some(failure), host);
                        Step::Over
                    }
                }
            }
            Err(Unprepared::ByHost(refusal)) => refuse(caller, &refusal, host),
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
        here: bool,
        host: &mut dyn Host,
    ) -> Result<(Box<dyn Pending>, Vec<u8>), Unprepared> {
        let node = self.home.name();
        let unfit = |text: String| {
            let reason = format!("`{node}` cannot connect to the caller: {text}");
            Unprepared::ByDevice(Refusal::new(Code::InvalidRequest, reason))
        };
        // Within a process there is nobody to be found.
        let managed = admission.options.managed && !here;
        let options = EndpointOptions { managed, ..admission.options };
        let mut pending =
            self.device.prepare(&options).map_err(|error| unfit(error.to_string()))?;
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
    const fn new(channel: Channel, here: bool) -> Self {
        Self { channel, here, since: 0, deadline: None, stage: Stage::Silent }
    }

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
            _ if self.here => Peer::named(self.channel.peer()),
            _ => Peer::at(self.channel.peer()),
        }
    }
}

fn after(wait: Duration, now: u64) -> u64 {
    now.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
}

/// Goes on with a caller that meets this end by the connection manager.
fn meets(stage: &mut Stage) -> Result<bool, ConnectError> {
    match stage {
        Stage::Answered { pending, .. } => pending.meet(),
        Stage::Silent | Stage::Waiting { .. } => Ok(false),
    }
}

/// Tells a caller that it was not met, and why.
fn unmet(mut caller: Caller, why: &ConnectError, host: &mut dyn Host) -> Step {
    let summary = format!("cannot connect to {}: {why}", caller.peer());
    let refusal = Refusal::new(Code::PeerNotReady, summary.clone());
    // A caller that is gone already needs no reason.
    drop(caller.channel.send(&Message::Refused(refusal.to_string())));
    give_up(&caller, Some(Failure::new(refusal.code, Owner::Remote, summary)), host);
    Step::Over
}

/// Tells a caller that was not admitted why.
fn refuse(mut caller: Caller, refusal: &Refusal, host: &mut dyn Host) -> Step {
    // A caller that is gone already needs no reason.
    drop(caller.channel.send(&Message::Refused(refusal.to_string())));
    let summary = format!("{} was refused: {}", caller.peer(), refusal.reason);
    // The caller, if it is of this process, reports what it was told.
    let failure = Failure::new(refusal.code, Owner::Remote, summary).heard();
    host.lost(None, caller.here, Some(failure));
    Step::Over
}

fn give_up(caller: &Caller, why: Option<Failure>, host: &mut dyn Host) {
    let key = match caller.stage {
        Stage::Answered { key, .. } => Some(key),
        Stage::Silent | Stage::Waiting { .. } => None,
    };
    host.lost(key, caller.here, why);
}
