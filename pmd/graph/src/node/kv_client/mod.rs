//! `kv-client`: puts values under keys and gets them back, and knows what each of them must be.

mod draw;
mod lane;
mod zipf;

use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::Endpoint;

use super::{Node, NodeContext, Record, Turn};
use crate::edge::{Desertion, Dial, Dialing, Line, milliseconds};
use crate::failure::Failure;
use crate::kv::{self, Open, Opened, Operation, PROTOCOL};
use draw::Draw;
use lane::{Asked, Desk, Lane, Part};

/// Requests after which a client ends that was given neither a count nor a duration.
const COUNT_DEFAULT: u64 = 100_000;

pub(crate) struct KvClient {
    name: String,
    phase: Phase,
    lanes: Vec<State>,
    /// What every connection asks for.
    open: Open,
    desk: Desk,
    preload: bool,
    verify: bool,
    /// Requests of the load that have not begun.
    left: u64,
    /// How long the load lasts, in nanoseconds.
    duration: Option<u64>,
    /// The lane that has its turn first.
    turn: usize,
    stopping: bool,
    desertion: Desertion,
    /// Requests that will have no reply.
    unfinished: usize,
}

/// How far it is. Each phase begins when nothing of the one before is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connect,
    /// Every key is put once.
    Preload,
    /// Requests are drawn, and measured, until this time.
    Load {
        until: Option<u64>,
    },
    /// Every key is read once, so that also the last PUTs are verified.
    Check,
    /// What is under way ends.
    Drain,
}

/// One connection.
enum State {
    Dialing(Box<Dialed>),
    Up(Box<Lane>),
    Over,
}

/// A connection being made.
struct Dialed {
    dial: Dial,
    open: Open,
    part: Part,
    /// What was asked over the connection before.
    asked: Option<Asked>,
}

impl Dialed {
    /// Requests without a reply.
    fn in_flight(&self) -> usize {
        self.asked.as_ref().map_or(0, Asked::in_flight)
    }

    /// Whether the client was connected before, and misses nothing.
    fn is_settled(&self) -> bool {
        self.asked.is_some() && self.in_flight() == 0
    }
}

impl KvClient {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let settings = cx.settings();
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let (depth, keys) = (settings.count("depth"), settings.count("keys"));
        let value = settings.size("value").get();
        let count = settings.count_opt("count");
        let duration = settings.time_opt("duration");
        let until_told = if duration.is_some() { u64::MAX } else { COUNT_DEFAULT };
        let left = count.unwrap_or(until_told);
        let messages = cx.extent("messages");
        let bytes = kv::message_bytes(depth, value);
        let keep_alive = settings.time("keep_alive");
        let dials = cx.dials(PROTOCOL, kv::queues(depth))?;
        let lanes = dials.len() as u64;
        let open = Open {
            session: pmd_mem::os_entropy(),
            keys,
            value: narrow(value),
            connections: u16::try_from(lanes).unwrap_or(u16::MAX),
            depth: narrow(depth),
            keep_alive_ms: milliseconds(keep_alive),
        };
        let state = |(index, dial): (u64, Dial)| {
            let (first, end) = (share(keys, index, lanes), share(keys, index + 1, lanes));
            let short = || Failure::local(format!("`{}` has too little memory", cx.name()));
            let part = Part {
                node: cx.name().to_owned(),
                keep_alive,
                messages: messages.part(index * bytes, bytes).ok_or_else(short)?,
                depth: narrow(depth),
                stride: narrow(kv::stride(value)),
                value: narrow(value),
                first,
                keys: narrow(end - first),
                draw: Draw::new(
                    settings.count("seed") ^ (index << 56),
                    narrow(end - first),
                    settings.text("distribution") == "zipf",
                    narrow(settings.count("get")),
                ),
                seed: settings.count("seed"),
                verify: settings.flag("verify"),
            };
            Ok(State::Dialing(Box::new(Dialed { dial, open, part, asked: None })))
        };
        if left < u64::MAX {
            cx.expect(left.saturating_mul(value));
        }
        Ok(Box::new(Self {
            name: cx.name().to_owned(),
            phase: Phase::Connect,
            lanes: (0..).zip(dials).map(state).collect::<Result<_, Failure>>()?,
            open,
            desk: Desk::new(narrow(value)),
            preload: settings.flag("preload"),
            verify: settings.flag("verify"),
            left,
            duration: duration.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            turn: 0,
            stopping: false,
            desertion: Desertion::default(),
            unfinished: 0,
        }))
    }

    fn up(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().filter_map(|state| match state {
            State::Up(lane) => Some(&mut **lane),
            State::Dialing(_) | State::Over => None,
        })
    }

    /// Goes on with connecting. Returns how much happened.
    fn connect(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let mut work = 0;
        for state in &mut self.lanes {
            let State::Dialing(dialed) = state else { continue };
            let Dialed { dial, open, part, asked } = &mut **dialed;
            match dial.poll(now)? {
                Dialing::Waiting => continue,
                Dialing::Reached(endpoint) => {
                    let endpoint: &mut dyn Endpoint = endpoint;
                    part.equip(endpoint)?;
                    dial.ask(&open.encode())?;
                }
                Dialing::Connected(answer, line) => {
                    let mut lane = opened(part, &answer, line, asked.take())?;
                    // What is asked again comes before anything new.
                    lane.hear(now, record)?;
                    record.path(lane.path());
                    *state = State::Up(Box::new(lane));
                }
            }
            work += 1;
        }
        Ok(work)
    }

    /// Begins what the phase asks for, and goes on to the next one where nothing of it is left.
    fn advance(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        if self.stopping || self.desertion.is_noted() {
            self.phase = Phase::Drain;
        }
        let begun = match self.phase {
            Phase::Connect => self.lanes.iter().all(|state| matches!(state, State::Up(_))),
            Phase::Preload => self.sweep(now, Operation::Put)?,
            Phase::Load { until } => {
                if until.is_some_and(|until| now >= until) {
                    self.left = 0;
                }
                self.load(now)?;
                self.left == 0
            }
            Phase::Check => self.sweep(now, Operation::Get)?,
            Phase::Drain => return Ok(()),
        };
        if begun && self.is_idle() {
            self.phase = self.next(now, record);
            self.up().for_each(Lane::rewind);
            if self.phase != Phase::Drain {
                return self.advance(now, record);
            }
        }
        Ok(())
    }

    fn next(&self, now: u64, record: &mut Record) -> Phase {
        match self.phase {
            Phase::Connect if self.preload => Phase::Preload,
            Phase::Connect | Phase::Preload => {
                record.begin(now);
                Phase::Load { until: self.duration.map(|wait| now.saturating_add(wait)) }
            }
            Phase::Load { .. } if self.verify => Phase::Check,
            Phase::Load { .. } | Phase::Check | Phase::Drain => Phase::Drain,
        }
    }

    /// Whether nothing is under way, nor to be sent again.
    fn is_idle(&self) -> bool {
        self.lanes.iter().all(|state| match state {
            State::Up(lane) => lane.is_idle(),
            State::Dialing(_) => false,
            State::Over => true,
        })
    }

    /// Whether what is under way has ended, on the connections that there are.
    fn is_drained(&self) -> bool {
        self.lanes.iter().all(|state| match state {
            State::Up(lane) => lane.is_idle(),
            State::Dialing(_) | State::Over => true,
        })
    }

    fn sweep(&mut self, now: u64, operation: Operation) -> Result<bool, Failure> {
        let mut all = true;
        for state in &mut self.lanes {
            let State::Up(lane) = state else {
                all = false;
                continue;
            };
            all &= lane.sweep(now, operation, &mut self.desk)?;
        }
        Ok(all)
    }

    fn load(&mut self, now: u64) -> Result<(), Failure> {
        self.turn = if self.turn + 1 < self.lanes.len() { self.turn + 1 } else { 0 };
        let (behind, first) = self.lanes.split_at_mut(self.turn);
        for state in first.iter_mut().chain(behind) {
            let State::Up(lane) = state else { continue };
            self.left -= lane.load(now, self.left, &mut self.desk)?;
        }
        Ok(())
    }

    fn turn(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = if self.phase == Phase::Drain { 0 } else { self.connect(now, record)? };
        let measured = matches!(self.phase, Phase::Load { .. });
        for state in &mut self.lanes {
            let State::Up(lane) = state else { continue };
            work += lane.run(now, measured, &mut self.desk, record)?;
            if lane.is_gone() {
                dial_again(state, self.open);
                continue;
            }
            if lane.peer_left() && self.phase != Phase::Drain {
                self.desertion.note(now, lane.peer());
            }
        }
        self.advance(now, record)?;
        self.up().for_each(Lane::doorbell);
        if self.phase != Phase::Drain || !self.is_drained() {
            return Ok(Turn::Worked(work));
        }
        self.leave(now)
    }

    /// Everything is answered: ends the connections.
    fn leave(&mut self, now: u64) -> Result<Turn, Failure> {
        let mut failure = None;
        for state in self.lanes.drain(..) {
            match state {
                State::Up(lane) => lane.leave(),
                // Told to stop before it was connected, or connected again.
                State::Dialing(dialed) => {
                    let is_settled = dialed.is_settled();
                    self.unfinished += dialed.in_flight();
                    let unconnected = dialed.dial.leave();
                    if !is_settled {
                        failure.get_or_insert(unconnected);
                    }
                }
                State::Over => {}
            }
        }
        failure.map_or_else(|| self.desertion.settle(now, self.stopping), Err)
    }
}

impl Node for KvClient {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let turn = self.turn(now, record);
        if let Err(failure) = &turn {
            for state in self.lanes.drain(..) {
                match state {
                    State::Up(lane) => {
                        self.unfinished += lane.in_flight();
                        lane.abort(&failure.verdict);
                    }
                    State::Dialing(dialed) => self.unfinished += dialed.in_flight(),
                    State::Over => {}
                }
            }
            (0..self.unfinished.max(1)).for_each(|_| record.error());
        }
        turn
    }

    fn stop(&mut self) {
        self.stopping = true;
    }

    fn next_timeout(&self) -> Option<u64> {
        let lanes = self.lanes.iter().filter_map(|state| match state {
            State::Dialing(dialed) => dialed.dial.next_timeout(),
            State::Up(lane) => lane.next_timeout(),
            State::Over => None,
        });
        let until = match self.phase {
            Phase::Load { until } => until,
            _ => None,
        };
        lanes.chain(until).chain(self.desertion.next_timeout()).min()
    }
}

impl std::fmt::Debug for KvClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// First key of the lane of this index, of so many that share the keys.
fn share(keys: u64, index: u64, lanes: u64) -> u64 {
    let (each, more) = (keys / lanes.max(1), keys % lanes.max(1));
    index * each + index.min(more)
}

/// The server's process is gone: dials it again.
fn dial_again(state: &mut State, open: Open) {
    if let State::Up(lane) = std::mem::replace(state, State::Over)
        && let Some((dial, part, asked)) = lane.redial()
    {
        *state = State::Dialing(Box::new(Dialed { dial, open, part, asked: Some(asked) }));
    }
}

/// Takes what the server granted.
fn opened(part: &Part, answer: &[u8], line: Line, asked: Option<Asked>) -> Result<Lane, Failure> {
    let opened = Opened::decode(answer).map_err(|error| {
        let summary = format!("{} answered no grant: {error}", line.peer());
        Failure::new(Code::InvalidRequest, Owner::Remote, summary)
    })?;
    Lane::new(part.clone(), line, &opened, asked)
}
