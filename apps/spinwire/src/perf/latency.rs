//! One message at a time: how long it takes.
//!
//! The clock is read once per round trip: where one ends the next begins. Between, it is read now and
//! then only, for the timers of the device.

use pmd_observe::Histogram;
use pmd_verbs::roce::ids::Instant;

use super::desk::{Desk, Rest, Signal};
use super::failure::Failure;
use super::inbox::{Inbox, number_of, numbered};
use super::limits::{LOST_AFTER, LOST_IN_A_ROW, WARM_UP, WARM_UP_MESSAGES};
use super::params::Length;
use super::requests::{Elements, request};
use super::service::Flavour;
use super::tally::Tally;

/// Turns without news between two looks at the clock and the signals.
const GLANCE: u32 = 64;
/// Round trips between two looks at the completions of the sending side.
const DRAIN: u64 = 4;

/// What one round trip ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    Done,
    /// Nothing came for a while, on a transport that loses messages.
    Lost,
    /// The control thread wants an end.
    Over,
}

/// Times round trips until there are enough. `trip` makes one, and is told its number, from 1.
///
/// # Errors
/// What `trip` says, and that nothing arrives any more.
pub(super) fn time<T: Flavour>(
    desk: &Desk<'_, T>,
    length: Length,
    halves: u64,
    mut trip: impl FnMut(u64, Instant) -> Result<Round, Failure>,
) -> Result<Tally, Failure> {
    let begin = desk.ticker.now();
    let (warm, end) = match length {
        Length::Messages(messages) => {
            let warm = (messages / 4).min(WARM_UP_MESSAGES);
            (Warm::Messages(warm), End::Message(messages + warm))
        }
        Length::Time(time) => {
            let warm = begin.after(WARM_UP.min(time / 4));
            (Warm::Until(warm), End::At(warm.after(time)))
        }
    };
    let mut histogram = Histogram::new();
    let mut tally = Tally { started: begin.0, ..Tally::default() };
    let (mut number, mut from, mut silent) = (0, begin, 0);
    loop {
        let is_warm = match warm {
            Warm::Messages(messages) => number >= messages,
            Warm::Until(time) => from >= time,
        };
        if is_warm && histogram.is_empty() && tally.lost == 0 {
            tally.started = from.0;
        }
        match end {
            End::Message(last) if number == last => break,
            End::At(time) if from >= time => break,
            _ => number += 1,
        }
        let round = trip(number, from)?;
        let now = desk.ticker.now();
        match round {
            Round::Over => break,
            Round::Lost => {
                tally.lost += 1;
                silent += 1;
                if silent == LOST_IN_A_ROW {
                    return Err(Failure::NothingArrives { sent: number });
                }
            }
            Round::Done => {
                silent = 0;
                if is_warm {
                    histogram.record(now.0.saturating_sub(from.0) / halves);
                    tally.sent += 1;
                }
            }
        }
        from = now;
        tally.ended = now.0;
        desk.shared.done.store(tally.sent, std::sync::atomic::Ordering::Relaxed);
    }
    tally.latency = Some(Box::new(histogram));
    Ok(tally)
}

#[derive(Clone, Copy)]
enum Warm {
    Messages(u64),
    Until(Instant),
}

#[derive(Clone, Copy)]
enum End {
    Message(u64),
    At(Instant),
}

/// Waits for something: turns the device, looks at the clock and the signals now and then.
struct Watch<'b, 'a, T: Flavour> {
    desk: &'b Desk<'a, T>,
    /// As far as this loop knows.
    now: Instant,
    since: Instant,
    turns: u32,
    rest: Rest,
    /// The end of waiting.
    stop: Signal,
    /// Completions of the sending side that were seen while waiting.
    completed: u64,
}

impl<'b, 'a, T: Flavour> Watch<'b, 'a, T> {
    fn new(desk: &'b Desk<'a, T>, now: Instant, stop: Signal) -> Self {
        Self { desk, now, since: now, turns: 0, rest: Rest::default(), stop, completed: 0 }
    }

    /// One turn without what is waited for; `None`: go on waiting.
    #[inline]
    fn turn(&mut self) -> Result<Option<Round>, Failure> {
        self.turns += 1;
        if self.turns.is_multiple_of(GLANCE) || self.desk.params.events || self.desk.cpu_shared {
            return self.glance();
        }
        std::hint::spin_loop();
        Ok(None)
    }

    #[cold]
    fn glance(&mut self) -> Result<Option<Round>, Failure> {
        let desk = self.desk;
        self.now = desk.ticker.now();
        self.completed += desk.completions()?;
        if desk.is(self.stop) {
            return Ok(Some(Round::Over));
        }
        let still = self.now.since(self.since);
        if !desk.params.transport.is_reliable() && still > LOST_AFTER {
            return Ok(Some(Round::Lost));
        }
        if desk.is_stalled(still) {
            return Err(Failure::Stalled { seconds: still.as_secs() });
        }
        desk.rest(&mut self.rest)?;
        Ok(None)
    }
}

/// SENDs that answer each other, at the end that begins.
///
/// # Errors
/// How it broke.
pub(super) fn send_client<T: Flavour>(
    desk: &Desk<'_, T>,
    inbox: &mut Inbox<'_>,
    size: u32,
    length: Length,
) -> Result<Tally, Failure> {
    let elements = Elements::of(desk, size)?;
    let pieces = elements.pieces();
    let slots = u64::from(desk.params.slots());
    let numbers = !desk.params.transport.is_reliable();
    time(desk, length, 2, |number, now| {
        let slot = slot_of(number, slots);
        let imm = numbers.then(|| numbered(number));
        let wr =
            request(desk, desk.params.test.op(), elements.data(&pieces, 0, slot), 0, slot, imm)?;
        if number.is_multiple_of(DRAIN) {
            desk.completions()?;
        }
        desk.ends.qps[0].post_send(&wr.signaled())?;
        desk.ends.cx.transmit(now);
        let mut watch = Watch::new(desk, now, Signal::Cut);
        loop {
            desk.ends.cx.receive(watch.now);
            let mut answered = false;
            inbox.take(desk, |completion| {
                // A late answer to a message that was given up is none to this one.
                answered |= !numbers || number_of(completion) == number_of_sent(number);
                Ok(())
            })?;
            if answered {
                return Ok(Round::Done);
            }
            desk.ends.cx.transmit(watch.now);
            if let Some(round) = watch.turn()? {
                return Ok(round);
            }
        }
    })
}

/// SENDs that answer each other, at the end that answers, until the other end is done.
///
/// # Errors
/// How it broke.
pub(super) fn send_server<T: Flavour>(
    desk: &Desk<'_, T>,
    inbox: &mut Inbox<'_>,
    size: u32,
) -> Result<Tally, Failure> {
    let elements = Elements::of(desk, size)?;
    let pieces = elements.pieces();
    let slots = u64::from(desk.params.slots());
    let numbers = !desk.params.transport.is_reliable();
    let mut answers = 0_u64;
    let mut watch = Watch::new(desk, desk.ticker.now(), Signal::Stop);
    let mut pause = Pause::new(desk);
    loop {
        desk.ends.cx.receive(watch.now);
        let mut due = 0;
        let mut imm = None;
        inbox.take(desk, |completion| {
            // The news of the untimed pass may still be on its way.
            if !numbers || number_of(completion).is_some() {
                due += 1;
                imm = completion.imm();
            }
            Ok(())
        })?;
        for _ in 0..due {
            pause.take();
            let slot = slot_of(answers, slots);
            let wr = request(
                desk,
                desk.params.test.op(),
                elements.data(&pieces, 0, slot),
                0,
                slot,
                imm,
            )?;
            answers += 1;
            if answers.is_multiple_of(DRAIN) {
                desk.completions()?;
            }
            desk.ends.qps[0].post_send(&wr.signaled())?;
        }
        desk.ends.cx.transmit(watch.now);
        if due > 0 {
            watch.since = watch.now;
        } else if watch.turn()? == Some(Round::Over) {
            return Ok(Tally { sent: answers, received: answers, ..Tally::default() });
        }
    }
}

/// WRITEs that answer each other, at either end: each sees the last byte of the other's message change.
#[derive(Debug)]
struct Mirror<'b, 'a, T: Flavour> {
    desk: &'b Desk<'a, T>,
    size: u32,
    /// The word of the sink that holds the last byte of a message, and where in it.
    word: &'b std::sync::atomic::AtomicU64,
    shift: u32,
    /// Where the last byte goes out.
    last: u64,
    inline: Option<Vec<u8>>,
    local: bool,
    posted: u64,
}

impl<'b, 'a, T: Flavour> Mirror<'b, 'a, T> {
    fn new(desk: &'b Desk<'a, T>, size: u32) -> Result<Self, Failure> {
        let memory = &desk.ends.memory;
        let (Some(source), Some(sink)) = (&memory.source, &memory.sink) else {
            return Err(Failure::device("write-lat needs buffers on both sides"));
        };
        let at = sink.at(0, 0) + u64::from(size) - 1;
        let inline = (size <= desk.params.inline).then(|| {
            let mut bytes = vec![0; size as usize];
            memory.region.read_at(source.at(0, 0), &mut bytes).map(|()| bytes)
        });
        #[expect(clippy::cast_possible_truncation, reason = "a place within a word")]
        let shift =
            if cfg!(target_endian = "little") { 8 * (at % 8) } else { 56 - 8 * (at % 8) } as u32;
        Ok(Self {
            desk,
            size,
            word: memory.region.atomic_u64(at / 8 * 8)?,
            shift,
            last: source.at(0, 0) + u64::from(size) - 1,
            inline: inline.transpose()?,
            local: desk.ends.path == "local",
            posted: 0,
        })
    }

    /// The last byte of what has arrived.
    #[inline]
    fn seen(&self) -> u8 {
        let word = self.word.load(std::sync::atomic::Ordering::Acquire);
        (word >> self.shift).to_le_bytes()[0]
    }

    fn post(&mut self, value: u8, now: Instant) -> Result<(), Failure> {
        let desk = self.desk;
        self.posted += 1;
        if self.posted.is_multiple_of(DRAIN) {
            desk.completions()?;
        }
        let qp = &desk.ends.qps[0];
        if let Some(bytes) = &mut self.inline {
            if let Some(last) = bytes.last_mut() {
                *last = value;
            }
            let piece = [bytes.as_slice()];
            qp.post_send(
                &request(desk, desk.params.test.op(), pmd_verbs::Data::Inline(&piece), 0, 0, None)?
                    .signaled(),
            )?;
        } else if let Some(source) = &desk.ends.memory.source {
            desk.ends.memory.region.write_at(self.last, &[value])?;
            let sge = [source.sge(0, 0, self.size)];
            qp.post_send(
                &request(desk, desk.params.test.op(), pmd_verbs::Data::Sges(&sge), 0, 0, None)?
                    .signaled(),
            )?;
        }
        desk.ends.cx.transmit(now);
        Ok(())
    }

    /// Whether the byte shows, after some looks; the device has a turn.
    #[inline]
    fn look(&self, value: u8, now: Instant) -> bool {
        // Shared memory shows it without any work of this end; packets need a turn for each look.
        for _ in 0..if self.local { 32 } else { 1 } {
            if self.seen() == value {
                return true;
            }
            std::hint::spin_loop();
        }
        self.desk.turn(now);
        self.seen() == value
    }
}

/// The byte that marks a message; no two in a row are equal.
const fn mark(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

/// Clears the byte that is watched, at either end, before the other one can write it.
///
/// # Errors
/// When there are no buffers.
pub(super) fn clear_mark<T: Flavour>(desk: &Desk<'_, T>, size: u32) -> Result<(), Failure> {
    if let Some(sink) = &desk.ends.memory.sink {
        desk.ends.memory.region.write_at(sink.at(0, 0) + u64::from(size) - 1, &[mark(0)])?;
    }
    Ok(())
}

/// WRITEs that answer each other, at the end that begins.
///
/// # Errors
/// How it broke.
pub(super) fn write_client<T: Flavour>(
    desk: &Desk<'_, T>,
    size: u32,
    length: Length,
) -> Result<Tally, Failure> {
    let mut mirror = Mirror::new(desk, size)?;
    time(desk, length, 2, |number, now| {
        let mut again = 0;
        mirror.post(mark(number), now)?;
        let mut watch = Watch::new(desk, now, Signal::Cut);
        loop {
            if mirror.look(mark(number), watch.now) {
                return Ok(if again == 0 { Round::Done } else { Round::Lost });
            }
            match watch.turn()? {
                Some(Round::Lost) if again < LOST_IN_A_ROW => {
                    again += 1;
                    mirror.post(mark(number), watch.now)?;
                    watch.since = watch.now;
                }
                Some(Round::Lost) => return Err(Failure::NothingArrives { sent: number }),
                Some(round) => return Ok(round),
                None => {}
            }
        }
    })
}

/// WRITEs that answer each other, at the end that answers, until the other end is done.
///
/// # Errors
/// How it broke.
pub(super) fn write_server<T: Flavour>(desk: &Desk<'_, T>, size: u32) -> Result<Tally, Failure> {
    let mut mirror = Mirror::new(desk, size)?;
    let mut number = 1_u64;
    let mut watch = Watch::new(desk, desk.ticker.now(), Signal::Stop);
    let mut pause = Pause::new(desk);
    loop {
        if mirror.look(mark(number), watch.now) {
            pause.take();
            mirror.post(mark(number), watch.now)?;
            number += 1;
            watch.since = watch.now;
            continue;
        }
        match watch.turn()? {
            Some(Round::Over) => {
                return Ok(Tally { sent: number - 1, received: number - 1, ..Tally::default() });
            }
            // The last answer may have been lost.
            Some(Round::Lost) if number > 1 => {
                mirror.post(mark(number - 1), watch.now)?;
                watch.since = watch.now;
            }
            _ => {}
        }
    }
}

/// READs and atomics, each from its posting to its completion.
///
/// # Errors
/// How it broke.
pub(super) fn fetch<T: Flavour>(
    desk: &Desk<'_, T>,
    size: u32,
    length: Length,
) -> Result<Tally, Failure> {
    let elements = Elements::of(desk, size)?;
    let slots = u64::from(desk.params.slots());
    time(desk, length, 1, |number, now| {
        let slot = slot_of(number, slots);
        let wr = request(desk, desk.params.test.op(), elements.data(&[], 0, slot), 0, slot, None)?;
        desk.ends.qps[0].post_send(&wr.signaled())?;
        desk.ends.cx.transmit(now);
        let mut watch = Watch::new(desk, now, Signal::Cut);
        loop {
            if watch.completed + desk.completions()? > 0 {
                return Ok(Round::Done);
            }
            desk.turn(watch.now);
            if desk.completions()? > 0 {
                return Ok(Round::Done);
            }
            if let Some(round) = watch.turn()? {
                return Ok(round);
            }
        }
    })
}

/// What the responder does once when it was told to: nothing.
#[derive(Debug)]
pub(super) struct Pause(Option<std::time::Duration>);

impl Pause {
    pub(super) fn new<T: Flavour>(desk: &Desk<'_, T>) -> Self {
        Self(desk.params.pause.filter(|_| desk.server))
    }

    /// Stops this lcore for its time, the first time.
    pub(super) fn take(&mut self) {
        if let Some(time) = self.0.take() {
            std::thread::sleep(time);
        }
    }
}

fn number_of_sent(number: u64) -> Option<u32> {
    Some(u32::from_be_bytes(numbered(number).0))
}

#[expect(clippy::cast_possible_truncation, reason = "less than the slots")]
const fn slot_of(message: u64, slots: u64) -> u32 {
    (message % slots) as u32
}
