//! One deadline per queue pair, in a binary heap that knows where each entry is.
//!
//! A deadline that only moves later, as the ACK timer's does with every acknowledgement, leaves the
//! heap alone, and so does one that is cleared: the entry is put right when its time has come, or when
//! somebody asks for the next deadline in order to sleep until then.
//!
//! Whoever does not know the time asks for a deadline some time [after](Timers::after) the next
//! reading of the clock, which comes with [`Timers::arm`]: a message through shared memory costs less
//! than to read a clock.

use core::time::Duration;

use crate::ids::Instant;
use crate::ready::ReadyList;

const ABSENT: u32 = u32::MAX;

/// A deadline that never comes.
const NEVER: Instant = Instant(u64::MAX);
/// One that is not known before the clock is read.
const UNARMED: Instant = Instant(u64::MAX - 1);

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    slot: u32,
}

/// The deadlines of all queue pairs of an engine, by slot.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Ordered by `at`, each no later than the slot's deadline; some of what has none any more.
    heap: Vec<Entry>,
    /// Where in the heap a slot's entry is.
    place: Box<[u32]>,
    terms: Box<[Term]>,
    /// Slots whose deadline counts from the next reading of the clock.
    unarmed: ReadyList,
}

/// What a slot waits for.
#[derive(Clone, Copy, Debug)]
struct Term {
    deadline: Instant,
    /// How long it is from the next reading of the clock, in nanoseconds, where that is to come.
    span: u64,
}

impl Timers {
    /// Room for slots `0..slots`.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            heap: Vec::with_capacity(slots),
            place: vec![ABSENT; slots].into(),
            terms: vec![Term { deadline: NEVER, span: 0 }; slots].into(),
            unarmed: ReadyList::new(slots),
        }
    }

    /// Sets or moves a deadline to `span` after the next reading of the clock.
    pub(crate) fn after(&mut self, slot: u32, span: Duration) {
        self.after_nanos(slot, u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The same, of so many nanoseconds.
    #[inline]
    pub(crate) fn after_nanos(&mut self, slot: u32, span: u64) {
        let term = Term { deadline: UNARMED, span };
        if core::mem::replace(&mut self.terms[slot as usize], term).deadline != UNARMED {
            self.unarmed.push(slot);
        }
    }

    /// The clock was read.
    #[inline]
    pub(crate) fn arm(&mut self, now: Instant) {
        while let Some(slot) = self.unarmed.pop() {
            let Term { deadline, span } = self.terms[slot as usize];
            if deadline == UNARMED {
                self.set(slot, Instant(now.0.saturating_add(span)));
            }
        }
    }

    /// Sets or moves a deadline.
    pub(crate) fn set(&mut self, slot: u32, at: Instant) {
        self.terms[slot as usize].deadline = at;
        match self.place[slot as usize] {
            ABSENT => {
                self.heap.push(Entry { at, slot });
                self.rise(self.heap.len() - 1);
            }
            place if at < self.heap[place as usize].at => {
                self.heap[place as usize].at = at;
                self.rise(place as usize);
            }
            _ => {}
        }
    }

    /// Removes a deadline.
    #[inline]
    pub(crate) fn clear(&mut self, slot: u32) {
        self.terms[slot as usize].deadline = NEVER;
    }

    /// Whether the slot has a deadline.
    #[inline]
    pub(crate) fn is_set(&self, slot: u32) -> bool {
        self.terms[slot as usize].deadline != NEVER
    }

    /// The next deadline of those that are armed.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        while let Some(Entry { at, slot }) = self.heap.first().copied() {
            if self.terms[slot as usize].deadline == at {
                return Some(at);
            }
            self.correct_first();
        }
        None
    }

    /// Whether to be told that it is `now` changes nothing.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.unarmed.is_empty() && self.heap.first().is_none_or(|entry| entry.at > now)
    }

    /// Takes one slot whose deadline has come.
    #[inline]
    pub(crate) fn due(&mut self, now: Instant) -> Option<u32> {
        // No entry is later than its slot's deadline.
        if self.heap.first().is_none_or(|entry| entry.at > now) {
            return None;
        }
        self.take_due(now)
    }

    fn take_due(&mut self, now: Instant) -> Option<u32> {
        while let Some(Entry { at, slot }) = self.heap.first().copied().filter(|e| e.at <= now) {
            let is_due = self.terms[slot as usize].deadline == at;
            if is_due {
                self.clear(slot);
            }
            self.correct_first();
            if is_due {
                return Some(slot);
            }
        }
        None
    }

    /// Puts the top of the heap, which is not its slot's deadline, in its place.
    fn correct_first(&mut self) {
        let slot = self.heap[0].slot as usize;
        match self.terms[slot].deadline {
            NEVER | UNARMED => {
                self.place[slot] = ABSENT;
                let last = self.heap.pop();
                if let Some(last) = last.filter(|_| !self.heap.is_empty()) {
                    self.heap[0] = last;
                }
            }
            later => self.heap[0].at = later,
        }
        if !self.heap.is_empty() {
            self.sink(0);
        }
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].at <= self.heap[place].at {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
        self.settle_place(place);
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child].at) else { break };
            if self.heap[place].at <= self.heap[least].at {
                break;
            }
            self.swap(place, least);
            place = least;
        }
        self.settle_place(place);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.settle_place(a);
        self.settle_place(b);
    }

    #[expect(clippy::cast_possible_truncation, reason = "slots are numbered in 32 bits")]
    fn settle_place(&mut self, place: usize) {
        self.place[self.heap[place].slot as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(timers: &mut Timers, now: u64) -> Vec<u32> {
        core::iter::from_fn(|| timers.due(Instant(now))).collect()
    }

    #[test]
    fn deadlines_come_in_order_of_time() {
        let mut timers = Timers::new(8);
        for (slot, at) in [(3, 30), (1, 10), (2, 20), (0, 40)] {
            timers.set(slot, Instant(at));
        }
        assert_eq!(timers.next(), Some(Instant(10)));
        assert_eq!(drain(&mut timers, 9), []);
        assert_eq!(drain(&mut timers, 30), [1, 2, 3]);
        assert_eq!(timers.next(), Some(Instant(40)));
    }

    #[test]
    fn a_deadline_moves_both_ways_and_can_be_cleared() {
        let mut timers = Timers::new(4);
        timers.set(0, Instant(10));
        timers.set(1, Instant(20));
        timers.set(0, Instant(30));
        timers.set(1, Instant(15));
        assert_eq!(drain(&mut timers, 20), [1]);
        assert_eq!(timers.next(), Some(Instant(30)));
        timers.clear(0);
        assert!(!timers.is_set(0));
        assert_eq!(timers.next(), None);
        assert_eq!(drain(&mut timers, u64::MAX - 1), []);
    }

    /// A deadline counts from when the clock is read, not from when it was asked for.
    #[test]
    fn a_deadline_waits_for_the_clock() {
        let mut timers = Timers::new(2);
        timers.after(0, Duration::from_nanos(10));
        timers.after(1, Duration::from_nanos(5));
        assert!(timers.is_set(0) && timers.next().is_none());
        timers.clear(1);
        timers.after(0, Duration::from_nanos(7));
        timers.arm(Instant(100));
        assert_eq!(timers.next(), Some(Instant(107)));
        timers.after(0, Duration::from_nanos(7));
        assert_eq!(drain(&mut timers, 1000), []);
        timers.arm(Instant(200));
        assert_eq!(drain(&mut timers, 206), []);
        assert_eq!(drain(&mut timers, 207), [0]);
    }

    #[test]
    fn agrees_with_a_sorted_list() {
        let mut timers = Timers::new(16);
        let mut model = [None; 16];
        let mut seed = 7u64;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let (slot, at) = ((seed >> 40) as u32 % 16, seed >> 50);
            match (seed >> 33) % 4 {
                0 => {
                    timers.clear(slot);
                    model[slot as usize] = None;
                }
                1 => {
                    let due = timers.due(Instant(at));
                    let earliest = model.iter().flatten().min().copied();
                    match due {
                        Some(slot) => assert_eq!(model[slot as usize].take(), earliest),
                        None => assert!(earliest.is_none_or(|earliest| earliest > at)),
                    }
                }
                _ => {
                    timers.set(slot, Instant(at));
                    model[slot as usize] = Some(at);
                }
            }
            assert_eq!(timers.next().map(|at| at.0), model.iter().flatten().min().copied());
        }
    }
}
