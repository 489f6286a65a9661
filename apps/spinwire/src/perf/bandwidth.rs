//! As many messages as possible: the sending half of a bandwidth measurement.
//!
//! A turn of the loop takes completions in batches and posts whole lists, which were written before
//! it began; it reads the clock once, whatever the number of messages. Latencies are those of the
//! last request of one list in [`SAMPLE_EVERY`]: from the moment before it was posted to the moment
//! after its completion was taken.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use pmd_observe::Histogram;
use pmd_verbs::roce::ids::Instant;
use pmd_verbs::{Completion, WcStatus, WorkRequest};

use super::desk::{Desk, Rest, Signal};
use super::failure::Failure;
use super::inbox::{Inbox, NEWS_ID, numbered, read_all};
use super::limits::{
    CHUNK, LISTS_PER_TURN, LOST_AFTER, LOST_IN_A_ROW, POLL_BATCH, POST_LIST_MAX, SAMPLE_EVERY,
};
use super::params::Length;
use super::requests::{Elements, count, local, request};
use super::service::Flavour;
use super::tally::Tally;
use super::test::{Buffers, Op};

/// The sending half of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    posted: u64,
    done: u64,
    /// Where it ends.
    target: u64,
    /// Whether it waits in the queue of those that can post.
    queued: bool,
    /// Given up, of those posted.
    passed: u64,
    /// The request that is timed, by its number and one; 0: none.
    timed: u64,
    timed_from: Instant,
    lists: u32,
}

/// How much may be under way.
#[derive(Clone, Copy, Debug)]
struct Window {
    depth: u64,
    list: u64,
    /// Room that is worth a list of its own.
    enough: u64,
    /// Unreliable messages that the peer has not told of.
    unheard: Option<u64>,
}

impl Window {
    fn room(&self, lane: &Lane, credited: u64) -> u64 {
        let room = self.depth - (lane.posted - lane.done);
        match self.unheard {
            None => room,
            Some(unheard) => {
                let heard = credited.max(lane.passed);
                room.min(unheard.saturating_sub(lane.posted - heard.min(lane.posted)))
            }
        }
    }

    fn can_post(&self, lane: &Lane, credited: u64) -> bool {
        let left = lane.target - lane.posted;
        left > 0 && self.room(lane, credited) >= self.enough.min(left)
    }
}

/// Everything that is posted, written before the loop begins.
#[derive(Debug)]
struct Requests<'a, T> {
    elements: &'a Elements,
    pieces: &'a [[&'a [u8]; 1]],
    wrs: Vec<WorkRequest<'a, T>>,
    per_lane: usize,
    slots: u64,
    /// Requests after which they repeat.
    period: u64,
    /// Lists are copied before they are posted: something differs from message to message.
    copies: bool,
}

impl<'a, T: Flavour> Requests<'a, T> {
    fn write(
        desk: &Desk<'_, T>,
        elements: &'a Elements,
        pieces: &'a [[&'a [u8]; 1]],
    ) -> Result<Self, Failure> {
        let params = desk.params;
        let slots = params.slots();
        // Where every second one is a WRITE, one slot has two requests.
        let period = if params.alternates { slots.max(2) } else { slots };
        // A list may begin at any of them, and is a part of the whole wherever it begins.
        let per_lane = period + params.post_list - 1;
        let mut wrs = Vec::with_capacity((count(desk) * per_lane) as usize);
        for qp in 0..count(desk) {
            for at in 0..per_lane {
                let slot = at % slots;
                let writes = params.alternates && at % 2 == 1;
                let op = if writes { Op::Write } else { params.test.op() };
                wrs.push(request(desk, op, elements.data(pieces, qp, slot), qp, slot, None)?);
            }
        }
        let copies =
            params.cq_mod > 1 || params.buffers == Buffers::App || !params.transport.is_reliable();
        let (per_lane, slots, period) = (per_lane as usize, slots.into(), period.into());
        Ok(Self { elements, pieces, wrs, per_lane, slots, period, copies })
    }
}

/// What the loop of one step is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volley {
    pub(super) size: u32,
    pub(super) length: Length,
}

/// Runs one volley to its end.
///
/// # Errors
/// How it broke.
pub(super) fn run<T: Flavour>(
    desk: &Desk<'_, T>,
    inbox: &mut Inbox<'_>,
    volley: Volley,
) -> Result<Tally, Failure> {
    let qps = desk.ends.qps.len();
    let elements = Elements::of(desk, volley.size)?;
    let pieces = elements.pieces();
    let requests = Requests::write(desk, &elements, &pieces)?;
    let params = desk.params;
    let enough = if params.cq_mod == 1 { params.post_list } else { 1 };
    let window = Window {
        depth: params.tx_depth.into(),
        list: params.post_list.into(),
        enough: enough.into(),
        unheard: (!params.transport.is_reliable()).then(|| {
            u64::from((params.rx_depth / 2).min(in_sockets(volley.size)).max(params.post_list))
        }),
    };
    let target = match volley.length {
        Length::Messages(messages) => messages,
        Length::Time(_) => u64::MAX,
    };
    let mut run = Run {
        desk,
        requests,
        window,
        size: volley.size,
        lanes: vec![Lane { target, queued: true, ..Lane::default() }; qps].into(),
        ready: (0..qps).collect(),
        latency: Histogram::new(),
        completed: 0,
        open: target == u64::MAX,
    };
    run.go(inbox, volley.length)
}

/// Unreliable messages that fit the buffers of any socket on the way.
fn in_sockets(size: u32) -> u32 {
    (96 << 10) / size.max(512)
}

struct Run<'a, 'b, T: Flavour> {
    desk: &'b Desk<'a, T>,
    requests: Requests<'b, T>,
    window: Window,
    size: u32,
    lanes: Box<[Lane]>,
    ready: VecDeque<usize>,
    latency: Histogram,
    completed: u64,
    /// It ends at a deadline that has not come.
    open: bool,
}

impl<T: Flavour> Run<'_, '_, T> {
    fn go(&mut self, inbox: &mut Inbox<'_>, length: Length) -> Result<Tally, Failure> {
        let desk = self.desk;
        // What is to be posted was written meanwhile.
        desk.pulse.excuse();
        let started = desk.ticker.now();
        let deadline = match length {
            Length::Time(time) => started.after(time),
            Length::Messages(_) => Instant(u64::MAX),
        };
        let (mut last, mut gap, mut moved) = (started, 0, started);
        let mut silences = 0;
        let mut rest = Rest::default();
        let reads = (desk.params.buffers == Buffers::App).then_some(self.size);
        loop {
            let now = desk.ticker.now();
            gap = gap.max(now.0.saturating_sub(last.0));
            last = now;
            let mut work = desk.turn(now);
            let completed = self.take_completions()?;
            work += completed + inbox.serve(desk, reads)?;
            if completed > 0 {
                moved = now;
                desk.shared.done.store(self.completed, Ordering::Relaxed);
            }
            if self.open && now >= deadline || desk.is(Signal::Cut) {
                self.close();
            }
            if desk.is(Signal::Abort) {
                break;
            }
            if self.window.unheard.is_some() {
                work += self.hear(inbox);
            }
            work += self.post(inbox)?;
            if self.is_over(inbox) {
                break;
            }
            if work > 0 {
                continue;
            }
            let still = now.since(moved);
            if self.window.unheard.is_some() && still > LOST_AFTER {
                // What the peer has not told of by now is lost.
                silences = if self.give_up(inbox) { silences + 1 } else { 0 };
                moved = now;
                if silences == LOST_IN_A_ROW {
                    return Err(Failure::NothingArrives { sent: self.completed });
                }
            } else if self.window.unheard.is_none() && desk.is_stalled(still) {
                return Err(Failure::Stalled { seconds: still.as_secs() });
            }
            desk.rest(&mut rest)?;
        }
        // The last to move was a completion, or the peer's word of the last message.
        let ended = if self.window.unheard.is_some() { last } else { desk.ticker.now() };
        Ok(Tally {
            sent: self.completed,
            started: started.0,
            ended: ended.0,
            gap,
            latency: Some(Box::new(self.latency.clone())),
            ..Tally::default()
        })
    }

    #[inline]
    fn take_completions(&mut self) -> Result<usize, Failure> {
        let cq_mod = u64::from(self.desk.params.cq_mod);
        let mut taken = 0;
        loop {
            let mut batch = ArrayVec::<Completion, POLL_BATCH>::new();
            let count = self.desk.ends.send_cq.poll_batch(&mut batch);
            for completion in &batch {
                if completion.status != WcStatus::Success {
                    return Err(Failure::of(completion));
                }
                if completion.wr_id.0 == NEWS_ID {
                    continue;
                }
                #[expect(clippy::cast_possible_truncation, reason = "an index that was posted")]
                let at = completion.wr_id.0 as usize;
                let before = self.lanes[at].done;
                let lane = &mut self.lanes[at];
                lane.done = (lane.done + cq_mod).min(lane.posted);
                self.completed += lane.done - before;
                if lane.timed != 0 && lane.done >= lane.timed {
                    lane.timed = 0;
                    let since = self.desk.ticker.now().0.saturating_sub(lane.timed_from.0);
                    self.latency.record(since);
                }
                if self.window.unheard.is_none() && !lane.queued && self.window.can_post(lane, 0) {
                    lane.queued = true;
                    self.ready.push_back(at);
                }
                if self.requests.copies {
                    self.read_arrived(at, before)?;
                }
            }
            taken += count;
            if count < POLL_BATCH {
                return Ok(taken);
            }
        }
    }

    /// Reads what READs have brought, as an application would.
    fn read_arrived(&self, at: usize, before: u64) -> Result<(), Failure> {
        let desk = self.desk;
        if desk.params.buffers != Buffers::App || desk.params.test.op() != Op::Read {
            return Ok(());
        }
        let Some(sink) = &desk.ends.memory.sink else { return Ok(()) };
        for message in before..self.lanes[at].done {
            let (qp, slot) = (index(at), slot_of(message, self.requests.slots));
            read_all(desk, sink.at(qp, slot), self.size)?;
        }
        Ok(())
    }

    /// Posts lists on those queue pairs that have room, each in its turn.
    #[inline]
    fn post(&mut self, inbox: &Inbox<'_>) -> Result<usize, Failure> {
        for lists in 0..LISTS_PER_TURN {
            let Some(at) = self.ready.pop_front() else { return Ok(lists) };
            let lane = &mut self.lanes[at];
            lane.queued = false;
            let credited = inbox.words[at].credited;
            let room = self.window.room(lane, credited);
            let count = self.window.list.min(room).min(lane.target - lane.posted);
            if count == 0 {
                continue;
            }
            lane.lists += 1;
            if lane.timed == 0 && lane.lists % SAMPLE_EVERY == 1 {
                lane.timed = lane.posted + count;
                lane.timed_from = self.desk.ticker.now();
            }
            let (posted, target) = (lane.posted, lane.target);
            lane.posted += count;
            if self.window.can_post(lane, credited) {
                lane.queued = true;
                self.ready.push_back(at);
            }
            #[expect(clippy::cast_possible_truncation, reason = "less than the requests of a lane")]
            let first = at * self.requests.per_lane + (posted % self.requests.period) as usize;
            #[expect(clippy::cast_possible_truncation, reason = "at most a post list")]
            let list = &self.requests.wrs[first..first + count as usize];
            if self.requests.copies {
                self.post_copy(at, list, posted, target)?;
            } else {
                self.desk.ends.qps[at].post_send_list(list)?;
            }
        }
        Ok(LISTS_PER_TURN)
    }

    /// Posts a list with what differs from message to message.
    fn post_copy(
        &self,
        at: usize,
        list: &[WorkRequest<'_, T>],
        posted: u64,
        target: u64,
    ) -> Result<(), Failure> {
        let desk = self.desk;
        let cq_mod = u64::from(desk.params.cq_mod);
        let signals = |number: u64| (number + 1).is_multiple_of(cq_mod) || number + 1 == target;
        let mut copy = ArrayVec::<WorkRequest<'_, T>, POST_LIST_MAX>::new();
        for (wr, number) in list.iter().zip(posted..) {
            copy.push(if cq_mod > 1 && signals(number) { wr.signaled() } else { *wr });
            self.write_before(at, number)?;
        }
        if self.window.unheard.is_some() {
            // The last one carries its number: the peer tells when it has arrived. A WRITE without leaves no trace at the
            // peer, so where one can be lost each has its number.
            let op = desk.params.test.op();
            let traceless = op == Op::Write && desk.ends.path != "local";
            let first = if traceless { 0 } else { copy.len().saturating_sub(1) };
            for (wr, number) in copy.iter_mut().zip(posted..).skip(first) {
                let (qp, slot) = (index(at), slot_of(number, self.requests.slots));
                let data = self.requests.elements.data(self.requests.pieces, qp, slot);
                let numbered = request(desk, op, data, qp, slot, Some(numbered(number)))?;
                *wr = if cq_mod > 1 && signals(number) { numbered.signaled() } else { numbered };
            }
        }
        desk.ends.qps[at].post_send_list(&copy)?;
        Ok(())
    }

    /// Writes every line of a message before it is sent, as an application would.
    fn write_before(&self, at: usize, number: u64) -> Result<(), Failure> {
        let desk = self.desk;
        let writes = matches!(desk.params.test.op(), Op::Send | Op::Write);
        if desk.params.buffers != Buffers::App || !writes {
            return Ok(());
        }
        let to = local(desk)?.at(index(at), slot_of(number, self.requests.slots));
        let chunk = [number.to_le_bytes(); CHUNK / 8];
        let chunk = chunk.as_flattened();
        let mut done = 0;
        while done < u64::from(self.size) {
            #[expect(clippy::cast_possible_truncation, reason = "at most a chunk")]
            let len = (u64::from(self.size) - done).min(CHUNK as u64) as usize;
            desk.ends.memory.region.write_at(to + done, &chunk[..len])?;
            done += len as u64;
        }
        Ok(())
    }

    /// No more than what is posted, up to the next completion.
    fn close(&mut self) {
        self.open = false;
        let cq_mod = u64::from(self.desk.params.cq_mod);
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            lane.target = lane.target.min(lane.posted.next_multiple_of(cq_mod));
            if lane.posted < lane.target && !lane.queued {
                lane.queued = true;
                self.ready.push_back(at);
            }
        }
    }

    /// Queues those queue pairs that the peer's words gave room.
    fn hear(&mut self, inbox: &Inbox<'_>) -> usize {
        let mut heard = 0;
        for (at, (lane, word)) in self.lanes.iter_mut().zip(&inbox.words).enumerate() {
            if !lane.queued && self.window.can_post(lane, word.credited) {
                lane.queued = true;
                self.ready.push_back(at);
                heard += 1;
            }
        }
        heard
    }

    /// Passes over everything that the peer has not told of. Whether there was any, and the peer told of none before.
    fn give_up(&mut self, inbox: &mut Inbox<'_>) -> bool {
        let mut silent = false;
        for (lane, word) in self.lanes.iter_mut().zip(&mut inbox.words) {
            if lane.passed.max(word.credited) < lane.posted {
                silent |= word.credited <= lane.passed;
                lane.passed = lane.posted;
                word.credited = lane.posted;
            }
        }
        silent
    }

    #[inline]
    fn is_over(&self, inbox: &Inbox<'_>) -> bool {
        if self.open || !self.ready.is_empty() {
            return false;
        }
        let is_done = |lane: &Lane| lane.done >= lane.target;
        match self.window.unheard {
            None => self.lanes.iter().all(is_done),
            Some(_) => {
                let mut lanes = self.lanes.iter().zip(&inbox.words);
                lanes.all(|(lane, word)| is_done(lane) && word.credited >= lane.posted)
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "queue pairs of an lcore: a few thousand")]
const fn index(at: usize) -> u32 {
    at as u32
}

#[expect(clippy::cast_possible_truncation, reason = "less than the slots")]
const fn slot_of(message: u64, slots: u64) -> u32 {
    (message % slots) as u32
}
