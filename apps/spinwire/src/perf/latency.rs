//! One message at a time: how long it takes.
//!
//! The clock is read once per round trip: where one ends the next begins. Between, it is read now and
//! then only, for the timers of the device. What can be done before a message comes is done while it is
//! waited for.

use pmd_observe::Histogram;
use pmd_verbs::roce::ids::Instant;
use pmd_verbs::{Imm, WorkRequest};

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
/// Looks at shared memory for each turn of the device, and into its ring.
const LOOKS: u32 = 256;
const RING_LOOKS: u32 = 16;
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

/// A round trip, or an operation of one side, in two halves: what there is to be said of the one before
/// is written down while this one is under way.
pub(super) trait Trip {
    /// Sends message `number`, from 1.
    ///
    /// # Errors
    /// What was refused.
    fn begin(&mut self, number: u64, now: Instant) -> Result<(), Failure>;

    /// Waits for its end.
    ///
    /// # Errors
    /// That it failed, or does not come.
    fn end(&mut self, number: u64, now: Instant) -> Result<Round, Failure>;
}

/// Times round trips until there are enough.
///
/// # Errors
/// What `trip` says, and that nothing arrives any more.
fn time<T: Flavour>(
    desk: &Desk<'_, T>,
    length: Length,
    halves: u64,
    mut trip: impl Trip,
) -> Result<Tally, Failure> {
    desk.pulse.excuse();
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
    let mut book = Book {
        warm,
        halves,
        histogram: Histogram::new(),
        tally: Tally { started: begin.0, ..Tally::default() },
        silent: 0,
    };
    let (mut number, mut from, mut last) = (0, begin, None);
    loop {
        match end {
            End::Message(last) if number == last => break,
            End::At(time) if from >= time => break,
            _ => number += 1,
        }
        trip.begin(number, from)?;
        if let Some(last) = last.take() {
            book.enter(desk, &last)?;
        }
        let round = trip.end(number, from)?;
        let to = desk.ticker.now();
        last = Some(Past { number, round, from, to });
        if round == Round::Over {
            break;
        }
        from = to;
    }
    if let Some(last) = last {
        book.enter(desk, &last)?;
    }
    Ok(Tally { latency: Some(Box::new(book.histogram)), ..book.tally })
}

/// A trip that is over.
struct Past {
    number: u64,
    round: Round,
    from: Instant,
    to: Instant,
}

/// What is known of all trips.
struct Book {
    warm: Warm,
    halves: u64,
    histogram: Histogram,
    tally: Tally,
    /// Trips that were lost in a row.
    silent: u32,
}

impl Book {
    fn enter<T: Flavour>(&mut self, desk: &Desk<'_, T>, past: &Past) -> Result<(), Failure> {
        let Past { number, round, from, to } = *past;
        let is_warm = match self.warm {
            Warm::Messages(messages) => number > messages,
            Warm::Until(time) => from >= time,
        };
        let tally = &mut self.tally;
        if is_warm && tally.sent == 0 && tally.lost == 0 {
            tally.started = from.0;
        }
        match round {
            Round::Over => return Ok(()),
            Round::Lost => {
                tally.lost += 1;
                self.silent += 1;
                if self.silent == LOST_IN_A_ROW {
                    return Err(Failure::NothingArrives { sent: number });
                }
            }
            Round::Done => {
                self.silent = 0;
                if is_warm {
                    self.histogram.record(to.0.saturating_sub(from.0) / self.halves);
                    tally.sent += 1;
                }
            }
        }
        tally.ended = to.0;
        desk.shared.done.store(tally.sent, std::sync::atomic::Ordering::Relaxed);
        desk.beat(to, 1, 1);
        Ok(())
    }
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
    /// Turns between two glances.
    glance: u32,
    /// Looks into the ring in a turn: there is nothing to be sent before something has come.
    looks: u32,
    rest: Rest,
    /// The end of waiting.
    stop: Signal,
    /// Completions of the sending side that were seen while waiting.
    completed: u64,
}

impl<'b, 'a, T: Flavour> Watch<'b, 'a, T> {
    fn new(desk: &'b Desk<'a, T>, now: Instant, stop: Signal) -> Self {
        let glance = if desk.params.events || desk.cpu_shared { 1 } else { GLANCE };
        let looks = if desk.ends.path == "local" && glance > 1 { RING_LOOKS } else { 1 };
        let rest = Rest::default();
        Self { desk, now, since: now, turns: 0, glance, looks, rest, stop, completed: 0 }
    }

    /// The receiving half of a turn.
    #[inline]
    fn receive(&self) {
        let mut looks = 0..self.looks;
        while looks.next().is_some() && self.desk.ends.cx.receive(self.now) == 0 {}
    }

    /// One turn without what is waited for; `None`: go on waiting.
    #[inline]
    fn turn(&mut self) -> Result<Option<Round>, Failure> {
        self.turns += 1;
        if self.turns < self.glance {
            return Ok(None);
        }
        self.turns = 0;
        self.glance()
    }

    #[cold]
    fn glance(&mut self) -> Result<Option<Round>, Failure> {
        let desk = self.desk;
        self.now = desk.ticker.now();
        desk.beat(self.now, self.glance.into(), 0);
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

/// Sends one message after the other, each written before its time has come.
struct Sender<'b, 'a, T: Flavour> {
    desk: &'b Desk<'a, T>,
    elements: &'b Elements,
    pieces: &'b [[&'b [u8]; 1]],
    slot: u32,
    next: WorkRequest<'b, T>,
    sent: u64,
}

impl<'b, 'a, T: Flavour> Sender<'b, 'a, T> {
    fn new(
        desk: &'b Desk<'a, T>,
        elements: &'b Elements,
        pieces: &'b [[&'b [u8]; 1]],
        imm: Option<Imm>,
    ) -> Result<Self, Failure> {
        let next = request(desk, desk.params.test.op(), elements.data(pieces, 0, 0), 0, 0, imm)?;
        Ok(Self { desk, elements, pieces, slot: 0, next: next.signaled(), sent: 0 })
    }

    /// Has the next message say this.
    fn say(&mut self, imm: Option<Imm>) -> Result<(), Failure> {
        let (op, data) =
            (self.desk.params.test.op(), self.elements.data(self.pieces, 0, self.slot));
        self.next = request(self.desk, op, data, 0, self.slot, imm)?.signaled();
        Ok(())
    }

    /// Sends the next message, and writes the one after it.
    #[inline]
    fn send(&mut self, now: Instant, after: Option<Imm>) -> Result<(), Failure> {
        self.desk.ends.qps[0].post_send(&self.next)?;
        self.desk.ends.cx.transmit(now);
        self.sent += 1;
        if self.sent.is_multiple_of(DRAIN) {
            self.desk.completions()?;
        }
        self.pass(after)
    }

    /// On to the next slot.
    #[inline]
    fn pass(&mut self, imm: Option<Imm>) -> Result<(), Failure> {
        let slots = self.desk.params.slots();
        if slots == 1 && imm.is_none() {
            // The same again.
            return Ok(());
        }
        self.slot = (self.slot + 1) % slots;
        self.say(imm)
    }
}

/// SENDs that answer each other, at the end that begins.
struct Serve<'c, 'b, 'a, 'i, T: Flavour> {
    sender: Sender<'b, 'a, T>,
    inbox: &'c mut Inbox<'i>,
    /// Messages can be lost, and so carry numbers.
    numbers: bool,
}

impl<T: Flavour> Trip for Serve<'_, '_, '_, '_, T> {
    #[inline]
    fn begin(&mut self, number: u64, now: Instant) -> Result<(), Failure> {
        self.sender.send(now, self.numbers.then(|| numbered(number + 1)))
    }

    #[inline]
    fn end(&mut self, number: u64, now: Instant) -> Result<Round, Failure> {
        let desk = self.sender.desk;
        let mut watch = Watch::new(desk, now, Signal::Cut);
        loop {
            watch.receive();
            let mut answered = false;
            self.inbox.take(desk, |completion| {
                // A late answer to a message that was given up is none to this one.
                answered |= !self.numbers || number_of(completion) == number_of_sent(number);
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
    let numbers = !desk.params.transport.is_reliable();
    let sender = Sender::new(desk, &elements, &pieces, numbers.then(|| numbered(1)))?;
    time(desk, length, 2, Serve { sender, inbox, numbers })
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
    let numbers = !desk.params.transport.is_reliable();
    let mut sender = Sender::new(desk, &elements, &pieces, None)?;
    let mut watch = Watch::new(desk, desk.ticker.now(), Signal::Stop);
    let mut pause = Pause::new(desk);
    loop {
        watch.receive();
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
        if due > 0 && numbers {
            sender.say(imm)?;
        }
        for _ in 0..due {
            pause.take(desk);
            sender.send(watch.now, imm)?;
        }
        if due > 0 {
            watch.since = watch.now;
            continue;
        }
        desk.ends.cx.transmit(watch.now);
        if watch.turn()? == Some(Round::Over) {
            let answers = sender.sent;
            return Ok(Tally { sent: answers, received: answers, ..Tally::default() });
        }
    }
}

/// WRITEs that answer each other, at either end: each sees the last byte of the other's message change.
struct Mirror<'b, 'a, T: Flavour> {
    desk: &'b Desk<'a, T>,
    /// The word of the sink that holds the last byte of a message, and where in it.
    word: &'b std::sync::atomic::AtomicU64,
    shift: u32,
    /// Where the last byte goes out.
    last: u64,
    /// The message fills words.
    is_word: bool,
    /// The message, where it goes inline.
    inline: Option<Vec<u8>>,
    request: WorkRequest<'b, T>,
    local: bool,
    posted: u64,
}

impl<'b, 'a, T: Flavour> Mirror<'b, 'a, T> {
    /// Of messages that `elements` hold.
    fn new(desk: &'b Desk<'a, T>, elements: &'b Elements, size: u32) -> Result<Self, Failure> {
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
        let data = elements.data(&[], 0, 0);
        Ok(Self {
            desk,
            word: memory.region.atomic_u64(at / 8 * 8)?,
            shift,
            last: source.at(0, 0) + u64::from(size) - 1,
            is_word: size.is_multiple_of(8),
            inline: inline.transpose()?,
            request: request(desk, desk.params.test.op(), data, 0, 0, None)?.signaled(),
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

    #[inline]
    fn post(&mut self, value: u8, now: Instant) -> Result<(), Failure> {
        let desk = self.desk;
        let qp = &desk.ends.qps[0];
        if let Some(bytes) = &mut self.inline {
            if let Some(last) = bytes.last_mut() {
                *last = value;
            }
            let piece = [bytes.as_slice()];
            let data = pmd_verbs::Data::Inline(&piece);
            let wr = request(desk, desk.params.test.op(), data, 0, 0, None)?;
            qp.post_send(&wr.signaled())?;
        } else {
            // A message that a register holds is written as one, as it is sent.
            let marks = [value; 8];
            let (at, marks) =
                if self.is_word { (self.last - 7, &marks[..]) } else { (self.last, &marks[..1]) };
            desk.ends.memory.region.write_at(at, marks)?;
            qp.post_send(&self.request)?;
        }
        desk.ends.cx.transmit(now);
        self.posted += 1;
        if self.posted.is_multiple_of(DRAIN) {
            desk.completions()?;
        }
        Ok(())
    }

    /// Whether the byte shows, after some looks; the device has a turn.
    #[inline]
    fn look(&self, value: u8, now: Instant) -> bool {
        // Shared memory shows it without any work of this end; packets need a turn for each look.
        for _ in 0..if self.local { LOOKS } else { 1 } {
            if self.seen() == value {
                return true;
            }
        }
        self.desk.ends.cx.progress(now);
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
impl<T: Flavour> Trip for Mirror<'_, '_, T> {
    #[inline]
    fn begin(&mut self, number: u64, now: Instant) -> Result<(), Failure> {
        self.post(mark(number), now)
    }

    #[inline]
    fn end(&mut self, number: u64, now: Instant) -> Result<Round, Failure> {
        let mut again = 0;
        let mut watch = Watch::new(self.desk, now, Signal::Cut);
        loop {
            if self.look(mark(number), watch.now) {
                return Ok(if again == 0 { Round::Done } else { Round::Lost });
            }
            match watch.turn()? {
                Some(Round::Lost) if again < LOST_IN_A_ROW => {
                    again += 1;
                    self.post(mark(number), watch.now)?;
                    watch.since = watch.now;
                }
                Some(Round::Lost) => return Err(Failure::NothingArrives { sent: number }),
                Some(round) => return Ok(round),
                None => {}
            }
        }
    }
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
    let elements = Elements::of(desk, size)?;
    time(desk, length, 2, Mirror::new(desk, &elements, size)?)
}

/// WRITEs that answer each other, at the end that answers, until the other end is done.
///
/// # Errors
/// How it broke.
pub(super) fn write_server<T: Flavour>(desk: &Desk<'_, T>, size: u32) -> Result<Tally, Failure> {
    let elements = Elements::of(desk, size)?;
    let mut mirror = Mirror::new(desk, &elements, size)?;
    let mut number = 1_u64;
    let mut watch = Watch::new(desk, desk.ticker.now(), Signal::Stop);
    let mut pause = Pause::new(desk);
    loop {
        if mirror.look(mark(number), watch.now) {
            pause.take(desk);
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
struct Fetch<'b, 'a, T: Flavour>(Sender<'b, 'a, T>);

impl<T: Flavour> Trip for Fetch<'_, '_, T> {
    #[inline]
    fn begin(&mut self, _: u64, now: Instant) -> Result<(), Failure> {
        self.0.desk.ends.qps[0].post_send(&self.0.next)?;
        self.0.desk.ends.cx.transmit(now);
        Ok(())
    }

    #[inline]
    fn end(&mut self, _: u64, now: Instant) -> Result<Round, Failure> {
        let desk = self.0.desk;
        let mut watch = Watch::new(desk, now, Signal::Cut);
        loop {
            if watch.completed + desk.completions()? > 0 {
                self.0.pass(None)?;
                return Ok(Round::Done);
            }
            desk.ends.cx.progress(watch.now);
            if let Some(round) = watch.turn()? {
                return Ok(round);
            }
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
    time(desk, length, 1, Fetch(Sender::new(desk, &elements, &[], None)?))
}

/// What the responder does once when it was told to: nothing.
#[derive(Debug)]
pub(super) struct Pause(Option<std::time::Duration>);

impl Pause {
    pub(super) fn new<T: Flavour>(desk: &Desk<'_, T>) -> Self {
        Self(desk.params.pause.filter(|_| desk.server))
    }

    /// Stops this lcore for its time, the first time.
    pub(super) fn take<T: Flavour>(&mut self, desk: &Desk<'_, T>) {
        if let Some(time) = self.0.take() {
            std::thread::sleep(time);
            desk.beat(desk.ticker.now(), 0, 0);
        }
    }
}

fn number_of_sent(number: u64) -> Option<u32> {
    Some(u32::from_be_bytes(numbered(number).0))
}
