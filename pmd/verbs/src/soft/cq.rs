//! Completion queues: bounded rings that the engine fills and the consumer drains.

use std::rc::Rc;

use arrayvec::ArrayVec;
use pmd_roce::ids::CqId;
use pmd_roce::sink::CqSink;
use pmd_roce::work::{Completion, CqOverrun, WcOpcode};

use super::alarm::Bell;

/// When an armed queue fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Any,
    Solicited,
}

#[derive(Debug)]
struct Ring {
    /// Has room for a power of two; filled for the first time as completions come, so that a deep
    /// queue that stays nearly empty takes no memory.
    slots: Vec<Completion>,
    mask: u32,
    /// Oldest completion, and where the next one goes; both count on, and begin anew whenever the queue is empty: as deep
    /// as it may be, what is used of it stays near.
    head: u32,
    tail: u32,
    /// Completions it takes; none any more once one was lost.
    room: u32,
    armed: Armed,
    fired: bool,
    /// Rung when it fires.
    bell: Option<Rc<Bell>>,
}

impl Ring {
    fn new(depth: u32) -> Self {
        let size = depth.next_power_of_two();
        Self {
            slots: Vec::with_capacity(size as usize),
            mask: size - 1,
            head: 0,
            tail: 0,
            room: depth,
            armed: Armed::No,
            fired: false,
            bell: None,
        }
    }

    #[inline(always)]
    fn push(&mut self, completion: Completion) -> Result<(), CqOverrun> {
        if self.tail.wrapping_sub(self.head) >= self.room {
            self.room = 0;
            return Err(CqOverrun);
        }
        match self.slots.get_mut((self.tail & self.mask) as usize) {
            Some(slot) => *slot = completion,
            None => self.first_lap(completion),
        }
        self.tail = self.tail.wrapping_add(1);
        if self.armed != Armed::No {
            self.ring_bell(completion.solicited());
        }
        Ok(())
    }

    #[cold]
    fn first_lap(&mut self, completion: Completion) {
        self.slots.push(completion);
    }

    #[inline(always)]
    fn fill(&mut self, fill: impl FnOnce(&mut [Completion]) -> usize) {
        let before = self.tail;
        let filled = fill(self.free());
        #[expect(clippy::cast_possible_truncation, reason = "at most the depth")]
        let filled = filled as u32;
        self.tail = before.wrapping_add(filled);
        if self.armed != Armed::No {
            self.ring_bell_for(before);
        }
    }

    /// Free slots that lie in a row.
    #[inline]
    fn free(&mut self) -> &mut [Completion] {
        let room = self.room.saturating_sub(self.tail.wrapping_sub(self.head)) as usize;
        let at = (self.tail & self.mask) as usize;
        if at == self.slots.len() && room > 0 {
            self.first_lap(Completion::new(WcOpcode::Recv, 0));
        }
        let row = &mut self.slots[at..];
        let count = row.len().min(room);
        &mut row[..count]
    }

    /// Completions have come since the queue was filled up to `before`.
    #[cold]
    fn ring_bell_for(&mut self, before: u32) {
        for at in 0..self.tail.wrapping_sub(before) {
            let at = (before.wrapping_add(at) & self.mask) as usize;
            self.ring_bell(self.slots[at].solicited());
        }
    }

    #[cold]
    fn ring_bell(&mut self, solicited: bool) {
        if self.armed == Armed::Any || self.armed == Armed::Solicited && solicited {
            self.armed = Armed::No;
            self.fired = true;
            if let Some(bell) = &self.bell {
                bell.ring();
            }
        }
    }

    #[inline]
    fn take<const N: usize>(&mut self, room: usize, into: &mut ArrayVec<Completion, N>) {
        let there = self.tail.wrapping_sub(self.head) as usize;
        let count = there.min(room).min(into.remaining_capacity());
        if count == 0 {
            return;
        }
        let at = (self.head & self.mask) as usize;
        if count == 1 {
            into.push(self.slots[at]);
            self.drop_front(1);
            return;
        }
        let to_end = count.min(self.mask as usize + 1 - at);
        for part in [&self.slots[at..at + to_end], &self.slots[..count - to_end]] {
            let fits = into.try_extend_from_slice(part);
            debug_assert!(fits.is_ok(), "no more than there is room for");
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the depth")]
        let count = count as u32;
        self.drop_front(count);
    }

    #[inline]
    fn drop_front(&mut self, count: u32) {
        self.head = self.head.wrapping_add(count);
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
    }
}

/// The completion queues of one lcore.
#[derive(Debug, Default)]
pub(crate) struct Cqs {
    rings: Vec<Option<Ring>>,
}

impl Cqs {
    pub(crate) fn create(&mut self, depth: u32) -> CqId {
        let free = self.rings.iter().position(Option::is_none).unwrap_or_else(|| {
            self.rings.push(None);
            self.rings.len() - 1
        });
        self.rings[free] = Some(Ring::new(depth));
        CqId(u32::try_from(free).unwrap_or(u32::MAX))
    }

    pub(crate) fn attach_bell(&mut self, cq: CqId, bell: &Rc<Bell>) {
        if let Some(ring) = self.ring(cq) {
            ring.bell = Some(Rc::clone(bell));
        }
    }

    /// From now on it takes no completion, as after an overrun.
    pub(crate) fn kill(&mut self, cq: CqId) {
        if let Some(ring) = self.ring(cq) {
            ring.room = 0;
        }
    }

    pub(crate) fn destroy(&mut self, cq: CqId) {
        if let Some(slot) = self.rings.get_mut(cq.0 as usize) {
            *slot = None;
        }
    }

    #[inline]
    fn ring(&mut self, cq: CqId) -> Option<&mut Ring> {
        match self.rings.get_mut(cq.0 as usize) {
            Some(Some(ring)) => Some(ring),
            _ => None,
        }
    }

    /// Takes up to `room` completions, oldest first, as far as they fit.
    #[inline]
    pub(crate) fn take<const N: usize>(
        &mut self,
        cq: CqId,
        room: usize,
        into: &mut ArrayVec<Completion, N>,
    ) {
        if let Some(ring) = self.ring(cq) {
            ring.take(room, into);
        }
    }

    /// Completions that nobody has taken.
    pub(crate) fn waiting(&self, cq: CqId) -> u32 {
        let ring = self.rings.get(cq.0 as usize).and_then(Option::as_ref);
        ring.map_or(0, |ring| ring.tail.wrapping_sub(ring.head))
    }

    pub(crate) fn arm(&mut self, cq: CqId, armed: Armed) {
        if let Some(ring) = self.ring(cq) {
            ring.armed = armed;
        }
    }

    /// Whether an armed queue has fired since the last call.
    pub(crate) fn take_fired(&mut self, cq: CqId) -> bool {
        self.ring(cq).is_some_and(|ring| std::mem::take(&mut ring.fired))
    }

    pub(crate) fn is_overrun(&self, cq: CqId) -> bool {
        self.rings.get(cq.0 as usize).and_then(Option::as_ref).is_some_and(|ring| ring.room == 0)
    }
}

impl CqSink for Cqs {
    #[inline(always)]
    fn push(&mut self, cq: CqId, completion: Completion) -> Result<(), CqOverrun> {
        // A queue that was destroyed under its queue pairs takes nothing, as an overrun one.
        self.ring(cq).ok_or(CqOverrun)?.push(completion)
    }

    #[inline(always)]
    fn fill(
        &mut self,
        cq: CqId,
        fill: impl FnOnce(&mut [Completion]) -> usize,
    ) -> Result<(), CqOverrun> {
        // Nothing can be written to no slot.
        if let Some(ring) = self.ring(cq) {
            ring.fill(fill);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmd_roce::ids::{Qpn, WrId};

    fn completion(wr: u64) -> Completion {
        Completion::new(WcOpcode::Send, 0).of(WrId(wr), Qpn::new(7))
    }

    fn take(cqs: &mut Cqs, cq: CqId, room: usize) -> Vec<u64> {
        let mut taken = ArrayVec::<_, 4>::new();
        cqs.take(cq, room, &mut taken);
        taken.iter().map(|wc| wc.wr_id.0).collect()
    }

    /// Completions come out in order across the end of the ring, and never more than asked for.
    #[test]
    fn first_in_first_out() {
        let mut cqs = Cqs::default();
        let cq = cqs.create(5);
        assert!(take(&mut cqs, cq, 4).is_empty());
        let (mut pushed, mut taken) = (0, 0);
        for room in [1, 4, 9, 0, 3, 4, 2, 4, 4] {
            while pushed < taken + 5 {
                cqs.push(cq, completion(pushed)).unwrap();
                pushed += 1;
            }
            let expected: Vec<_> = (taken..taken + room.min(4)).collect();
            assert_eq!(take(&mut cqs, cq, usize::try_from(room).unwrap()), expected);
            taken += room.min(4);
        }
    }

    /// Slots are lent in a row, as many as there is room for: across laps, and never beyond the depth.
    #[test]
    fn lent_slots_are_filled_in_order() {
        let mut cqs = Cqs::default();
        let cq = cqs.create(5);
        let lent = |cqs: &mut Cqs, from: u64, most: usize| {
            let mut there = 0;
            let filled = cqs.fill(cq, |slots| {
                there = slots.len();
                let filled = there.min(most);
                for (wr, slot) in (from..).zip(&mut slots[..filled]) {
                    *slot = completion(wr);
                }
                filled
            });
            filled.unwrap();
            there
        };
        // In its first lap the queue grows by one; eight slots make a lap.
        assert_eq!((lent(&mut cqs, 0, 0), lent(&mut cqs, 0, 9)), (1, 1));
        for wr in 1..5 {
            assert_eq!(lent(&mut cqs, wr, 9), 1);
        }
        assert_eq!(lent(&mut cqs, 5, 9), 0, "it is full");
        assert_eq!(take(&mut cqs, cq, 4), [0, 1, 2, 3]);
        for wr in 5..8 {
            assert_eq!(lent(&mut cqs, wr, 9), 1);
        }
        assert_eq!((take(&mut cqs, cq, 4), take(&mut cqs, cq, 4)), (vec![4, 5, 6, 7], vec![]));
        assert_eq!((lent(&mut cqs, 8, 2), lent(&mut cqs, 10, 9)), (5, 3));
        assert_eq!(take(&mut cqs, cq, 4), [8, 9, 10, 11]);
        assert_eq!(lent(&mut cqs, 13, 9), 3, "to the end");
        assert_eq!(lent(&mut cqs, 16, 9), 1, "the rest is in the next lap");
        assert_eq!(
            (take(&mut cqs, cq, 4), take(&mut cqs, cq, 4)),
            (vec![12, 13, 14, 15], vec![16])
        );
        assert_eq!(lent(&mut cqs, 17, 1), 5, "an empty queue begins at its beginning");
        assert_eq!((lent(&mut cqs, 18, 9), lent(&mut cqs, 22, 9)), (4, 0));
        assert_eq!(
            (take(&mut cqs, cq, 4), take(&mut cqs, cq, 4)),
            (vec![17, 18, 19, 20], vec![21])
        );
        cqs.arm(cq, Armed::Solicited);
        lent(&mut cqs, 18, 1);
        assert!(!cqs.take_fired(cq));
        let solicited = |slots: &mut [Completion]| {
            slots[0] = completion(19).with_solicited(true);
            1
        };
        cqs.fill(cq, solicited).unwrap();
        assert!(cqs.take_fired(cq) && !cqs.take_fired(cq));
    }

    /// A queue holds what it was made for, loses what is more, and gives what it holds even then.
    #[test]
    fn an_overrun_is_for_good() {
        let mut cqs = Cqs::default();
        let cq = cqs.create(3);
        for wr in 0..3 {
            cqs.push(cq, completion(wr)).unwrap();
        }
        assert!(!cqs.is_overrun(cq));
        assert_eq!(cqs.push(cq, completion(3)), Err(CqOverrun));
        assert!(cqs.is_overrun(cq));
        assert_eq!(take(&mut cqs, cq, 4), [0, 1, 2]);
        assert_eq!(cqs.push(cq, completion(4)), Err(CqOverrun));
        cqs.destroy(cq);
        assert_eq!(cqs.push(cq, completion(5)), Err(CqOverrun));
    }

    #[test]
    fn an_armed_queue_fires_once() {
        let mut cqs = Cqs::default();
        let cq = cqs.create(8);
        cqs.arm(cq, Armed::Solicited);
        cqs.push(cq, completion(0)).unwrap();
        assert!(!cqs.take_fired(cq));
        cqs.push(cq, completion(1).with_solicited(true)).unwrap();
        assert!(cqs.take_fired(cq) && !cqs.take_fired(cq));
        cqs.arm(cq, Armed::Any);
        cqs.push(cq, completion(2)).unwrap();
        cqs.push(cq, completion(3)).unwrap();
        assert!(cqs.take_fired(cq) && !cqs.take_fired(cq));
    }
}
