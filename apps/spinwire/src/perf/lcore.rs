//! One lcore: a pinned thread that makes its objects, connects them, and runs one step after another.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};

use pmd_lcore::{Clock, pin};
use pmd_observe::why::End;
use pmd_verbs::Device;
use pmd_verbs::connect::Hello;
use pmd_verbs::gid::GidPair;
use serde::{Deserialize, Serialize};

use super::bandwidth::{self, Volley};
use super::desk::{Desk, Rest, Shared, Signal, Ticker};
use super::ends::Ends;
use super::failure::Failure;
use super::inbox::Inbox;
use super::latency::{self, Pause};
use super::limits::{NAP, QUIET, WARM_UP, WARM_UP_MESSAGES};
use super::params::{Length, Params};
use super::pulse::Station;
use super::service::Flavour;
use super::tally::Tally;
use super::test::{Buffers, Op, Test, Transport};
use super::verify::Pass;

/// What both ends do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// The untimed pass.
    Verify {
        /// How the bytes move.
        op: Op,
        /// Bytes per message.
        size: u32,
        /// Which of several: each moves every buffer once, with other bytes.
        round: u32,
    },
    /// The timed part.
    Measure {
        /// Bytes per message.
        size: u32,
        /// How long.
        length: Length,
    },
}

impl Step {
    /// Bytes per message.
    pub(super) const fn size(&self) -> u32 {
        let (Self::Verify { size, .. } | Self::Measure { size, .. }) = self;
        *size
    }

    /// Whether it is part of what `params` announces: buffers are made for that.
    pub(super) fn belongs_to(&self, params: &Params) -> bool {
        let op = params.test.op();
        let moves = match self {
            Self::Verify { op: asked, .. } => {
                *asked == op || (params.alternates && *asked == Op::Write)
            }
            Self::Measure { .. } => true,
        };
        moves && params.sizes().contains(&self.size())
    }
}

/// What the control thread asks for.
#[derive(Debug)]
pub(super) enum Command {
    /// Connect to these.
    Connect(Vec<Hello>),
    /// Take part in a step.
    Step(Step),
    /// Tell what is known of a queue pair, or of all.
    Report(Option<u32>),
}

/// What an lcore answers.
#[derive(Debug)]
pub(super) enum Reply {
    /// Objects are made; what to tell the peer.
    Made(Vec<Hello>),
    /// Connected.
    Connected(Box<Facts>),
    /// Ready for the step.
    Ready,
    /// This end's own part of the step is done.
    Done,
    /// The step is over.
    Over(Box<Tally>),
    /// What it knows.
    Told(Box<End>),
    /// It broke.
    Failed(Failure),
}

/// What is known once an lcore is connected.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) hellos: Vec<Hello>,
    pub(super) path: &'static str,
    /// The addresses of both ends.
    pub(super) gids: Option<GidPair>,
    pub(super) mtu: u32,
    pub(super) qp_bytes: u64,
    pub(super) end: End,
}

/// Where an lcore sits.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) device: Device,
    /// Which lcore of the device, and of this end.
    pub(super) number: u32,
    pub(super) lcore: u32,
    pub(super) cpu: usize,
    pub(super) cpu_shared: bool,
    pub(super) server: bool,
    pub(super) clock: Clock,
    pub(super) shared: Arc<Shared>,
    pub(super) station: Station,
}

/// Starts an lcore. It ends when its commands end.
///
/// # Errors
/// When there is no thread to be had.
pub(super) fn start(
    seat: Seat,
    params: Params,
    commands: Receiver<Command>,
    replies: Sender<(u32, Reply)>,
) -> std::io::Result<JoinHandle<()>> {
    let name = format!("{}{}", if seat.server { "server" } else { "client" }, seat.lcore);
    thread::Builder::new().name(name).spawn(move || {
        let line = Line { commands, replies, lcore: seat.lcore };
        let ended = match params.transport {
            Transport::Rc => live::<pmd_verbs::Rc>(seat, &params, &line),
            Transport::Uc => live::<pmd_verbs::Uc>(seat, &params, &line),
            Transport::Ud => live::<pmd_verbs::Ud>(seat, &params, &line),
            Transport::Xrc => live::<pmd_verbs::XrcIni>(seat, &params, &line),
        };
        if let Err(failure) = ended {
            line.say(Reply::Failed(failure));
        }
    })
}

/// The line to the control thread.
#[derive(Debug)]
struct Line {
    commands: Receiver<Command>,
    replies: Sender<(u32, Reply)>,
    lcore: u32,
}

impl Line {
    /// Nobody listens any more where the control thread has gone on to the end.
    fn say(&self, reply: Reply) {
        drop(self.replies.send((self.lcore, reply)));
    }
}

/// From the first object to the last command.
fn live<T: Flavour>(seat: Seat, params: &Params, line: &Line) -> Result<(), Failure> {
    pin::pin_current(seat.cpu).map_err(|error| Failure::Usage(error.to_string()))?;
    let cx = seat.device.context(seat.number).map_err(Failure::device)?;
    cx.drive();
    let cx = cx.on_behalf(seat.station.node);
    // It ends last, and so tells of what the others leave.
    let pulse = seat.station.begin(&cx);
    let ticker = Ticker::new(seat.clock, &seat.device);
    let mut ends = Ends::<T>::create(cx, params, seat.lcore, seat.server)?;
    line.say(Reply::Made(ends.hellos.clone()));
    let peers = loop {
        match line.commands.recv_timeout(NAP) {
            Ok(Command::Connect(peers)) => break peers,
            Ok(Command::Step(_) | Command::Report(_)) => {
                return Err(Failure::device("a step before the connection"));
            }
            Err(RecvTimeoutError::Timeout) => {
                ends.cx.progress(ticker.now());
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    };
    ends.connect(params, &peers)?;
    line.say(Reply::Connected(Box::new(Facts {
        hellos: ends.hellos.clone(),
        path: ends.path,
        gids: ends
            .hellos
            .first()
            .zip(peers.first())
            .map(|(ours, theirs)| GidPair { local: ours.source(), remote: theirs.source() }),
        mtu: ends.mtu.bytes_u32(),
        qp_bytes: ends.view().map_or(0, |view| view.memory_bytes as u64),
        end: ends.evidence(None),
    })));
    let desk = Desk {
        ends: &ends,
        params,
        lcore: seat.lcore,
        server: seat.server,
        ticker,
        shared: seat.shared,
        cpu_shared: seat.cpu_shared,
        pulse: &pulse,
        size: std::cell::Cell::default(),
        flipped: std::cell::RefCell::new(vec![0; params.flips.len()]),
    };
    let mut inbox = Inbox::new(&desk);
    loop {
        match line.commands.recv_timeout(NAP) {
            Ok(Command::Step(step)) => match run(&desk, &mut inbox, step, line) {
                Ok(mut tally) => {
                    pulse.over(step.size(), Some(&tally));
                    tally.each = vec![(seat.lcore, tally.sent + tally.received)];
                    line.say(Reply::Over(Box::new(tally)));
                }
                // The counters may still be asked for.
                Err(failure) => {
                    pulse.over(step.size(), None);
                    line.say(Reply::Failed(failure));
                }
            },
            Ok(Command::Report(wanted)) => line.say(Reply::Told(Box::new(desk.end(wanted)))),
            Ok(Command::Connect(_)) => {}
            Err(RecvTimeoutError::Timeout) => {
                desk.turn(ticker.now());
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn run<T: Flavour>(
    desk: &Desk<'_, T>,
    inbox: &mut Inbox<'_>,
    step: Step,
    line: &Line,
) -> Result<Tally, Failure> {
    desk.shared.done.store(0, std::sync::atomic::Ordering::Relaxed);
    desk.size.set(step.size());
    inbox.forget();
    inbox.received = 0;
    match step {
        Step::Verify { op, size, round } => {
            untimed(desk, inbox, Pass::new(desk, op, size, round), line)
        }
        Step::Measure { size, length } if desk.params.test.is_latency() => {
            one_by_one(desk, inbox, size, length, line)
        }
        Step::Measure { size, length } => flood(desk, inbox, size, length, line),
    }
}

/// Whether this end posts the operations of the test.
fn acts<T: Flavour>(desk: &Desk<'_, T>) -> bool {
    !desk.server || desk.params.both_send()
}

fn untimed<T: Flavour>(
    desk: &Desk<'_, T>,
    inbox: &mut Inbox<'_>,
    mut pass: Pass,
    line: &Line,
) -> Result<Tally, Failure> {
    pass.prepare(desk)?;
    line.say(Reply::Ready);
    until(desk, Signal::Go, |_| pass.receive(desk, inbox))?;
    if acts(desk) {
        pass.send(desk, inbox)?;
    }
    line.say(Reply::Done);
    until(desk, Signal::Stop, |_| pass.receive(desk, inbox))?;
    settle(desk, || pass.receive(desk, inbox))?;
    if desk.is(Signal::Abort) {
        return Ok(Tally::default());
    }
    pass.finish(desk)
}

fn flood<T: Flavour>(
    desk: &Desk<'_, T>,
    inbox: &mut Inbox<'_>,
    size: u32,
    length: Length,
    line: &Line,
) -> Result<Tally, Failure> {
    let reads = (desk.params.buffers == Buffers::App).then_some(size);
    line.say(Reply::Ready);
    until(desk, Signal::Go, |_| inbox.serve(desk, reads))?;
    let mut tally = Tally::default();
    if acts(desk) {
        let warm_up = match length {
            Length::Messages(messages) => Length::Messages(messages.min(WARM_UP_MESSAGES)),
            Length::Time(time) => Length::Time(WARM_UP.min(time / 4)),
        };
        let warmed = bandwidth::run(desk, inbox, Volley { size, length: warm_up })?.sent;
        inbox.forget();
        tally = bandwidth::run(desk, inbox, Volley { size, length })?;
        tally.warmed = warmed;
    }
    line.say(Reply::Done);
    let mut pause = Pause::new(desk);
    let gap = until(desk, Signal::Stop, |_| {
        pause.take(desk);
        inbox.serve(desk, reads)
    })?;
    settle(desk, || inbox.serve(desk, reads))?;
    tally.received = inbox.received;
    tally.gap = tally.gap.max(gap);
    Ok(tally)
}

fn one_by_one<T: Flavour>(
    desk: &Desk<'_, T>,
    inbox: &mut Inbox<'_>,
    size: u32,
    length: Length,
    line: &Line,
) -> Result<Tally, Failure> {
    let test = desk.params.test;
    if test == Test::WriteLat {
        latency::clear_mark(desk, size)?;
    }
    line.say(Reply::Ready);
    let answers = desk.server && test.is_ping_pong();
    if answers {
        // It answers from now on, however early the first message comes.
        line.say(Reply::Done);
        return match test {
            Test::WriteLat => latency::write_server(desk, size),
            _ => latency::send_server(desk, inbox, size),
        };
    }
    until(desk, Signal::Go, |_| Ok(0))?;
    let mut tally = match test {
        _ if desk.server => Tally::default(),
        Test::WriteLat => latency::write_client(desk, size, length)?,
        Test::SendLat => latency::send_client(desk, inbox, size, length)?,
        _ => latency::fetch(desk, size, length)?,
    };
    line.say(Reply::Done);
    let mut pause = Pause::new(desk);
    tally.gap = until(desk, Signal::Stop, |_| {
        pause.take(desk);
        Ok(0)
    })?;
    Ok(tally)
}

/// Turns of the device and of `each` until a signal; the longest time between two.
fn until<T: Flavour>(
    desk: &Desk<'_, T>,
    signal: Signal,
    mut each: impl FnMut(u64) -> Result<usize, Failure>,
) -> Result<u64, Failure> {
    let mut rest = Rest::default();
    desk.pulse.excuse();
    let (mut gap, mut last) = (0, desk.ticker.now());
    while !desk.is(signal) {
        let now = desk.ticker.now();
        gap = gap.max(now.0.saturating_sub(last.0));
        last = now;
        let mut work = desk.turn(now);
        work += each(now.0)?;
        // News of what arrived complete too.
        desk.completions()?;
        if work == 0 {
            desk.rest(&mut rest)?;
        }
    }
    Ok(gap)
}

/// What is still on its way once the peer is done.
fn settle<T: Flavour>(
    desk: &Desk<'_, T>,
    mut each: impl FnMut() -> Result<usize, Failure>,
) -> Result<(), Failure> {
    let quiet = if desk.params.transport.is_reliable() { std::time::Duration::ZERO } else { QUIET };
    let mut since = desk.ticker.now();
    loop {
        let now = desk.ticker.now();
        desk.turn(now);
        let taken = each()?;
        desk.completions()?;
        if taken > 0 {
            since = now;
        } else if now.since(since) >= quiet || desk.is(Signal::Abort) {
            return Ok(());
        }
    }
}
