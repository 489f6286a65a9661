//! Receive queues, private or shared, and the receive that a message is filling.

use crate::error::PostRecvError;
use crate::ids::{CqId, Lkey, PdId, WrId};
use crate::limits::MAX_SGE;
use crate::memory::{Memory, MemoryFault};
use crate::work::{RecvWr, Sge};

/// A posted receive: half a cache line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: WrId,
    /// The only element, where there is one.
    sge: Sge,
    sges: usize,
}

impl RecvWqe {
    /// Key of the only element.
    #[inline]
    pub(crate) const fn lkey(&self) -> Lkey {
        self.sge.lkey
    }

    /// The element, if there is one alone.
    #[inline(always)]
    pub(crate) const fn only(&self) -> Option<&Sge> {
        if self.sges == 1 { Some(&self.sge) } else { None }
    }
}

/// A ring of posted receives.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    /// Oldest receive; both count on without end and are reduced by the ring's size.
    head: u32,
    tail: u32,
    max_sge: usize,
    /// `max_sge` elements per request, where there may be several.
    sges: Box<[Sge]>,
}

impl RecvQueue {
    /// A queue for at least `max_wr` receives of `max_sge` elements.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        // A ring of no size has no mask; it stays unused.
        let slots = if max_wr == 0 { 0 } else { max_wr.next_power_of_two() as usize };
        let max_sge = max_sge as usize;
        Self {
            wqes: vec![RecvWqe::default(); slots].into(),
            sges: vec![Sge::default(); if max_sge > 1 { slots * max_sge } else { 0 }].into(),
            max_sge,
            head: 0,
            tail: 0,
        }
    }

    /// Receives that can be posted.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.wqes.len()
    }

    /// Receives that are posted.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Receives posted since the queue was made or cleared, modulo 2^32.
    pub(crate) const fn posted(&self) -> u32 {
        self.tail
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Appends a receive.
    #[inline]
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if wr.sges.len() > self.max_sge {
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_SGE")]
            return Err(PostRecvError::TooManySges { max: self.max_sge as u32 });
        }
        if self.len() as usize == self.capacity() {
            return Err(PostRecvError::Full);
        }
        let index = self.index(self.tail);
        if let [only] = wr.sges {
            self.wqes[index] = RecvWqe { wr_id: wr.wr_id, sge: *only, sges: 1 };
        } else {
            self.put(index, wr);
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// As [`Self::post`], of one element. False: it was refused.
    #[inline]
    pub(crate) fn post_only(&mut self, wr_id: WrId, only: &Sge) -> bool {
        let has_room = self.max_sge > 0 && (self.len() as usize) < self.capacity();
        if has_room {
            let index = self.index(self.tail);
            self.wqes[index] = RecvWqe { wr_id, sge: *only, sges: 1 };
            self.tail = self.tail.wrapping_add(1);
        }
        has_room
    }

    #[inline(never)]
    fn put(&mut self, index: usize, wr: &RecvWr<'_>) {
        let sges = wr.sges.len();
        self.wqes[index] = RecvWqe { wr_id: wr.wr_id, sge: Sge::default(), sges };
        if sges > 0 {
            let at = index * self.max_sge;
            self.sges[at..at + sges].copy_from_slice(wr.sges);
        }
    }

    /// The oldest receive.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&RecvWqe> {
        if self.is_empty() { None } else { self.wqes.get(self.index(self.head)) }
    }

    /// The oldest receives that lie in a row, at most so many of them.
    #[inline]
    pub(crate) fn row(&self, at_most: usize) -> &[RecvWqe] {
        if self.is_empty() {
            return &[];
        }
        let row = &self.wqes[self.index(self.head)..];
        &row[..row.len().min(self.len() as usize).min(at_most)]
    }

    /// Takes the oldest receives out, of which there are as many.
    #[inline]
    pub(crate) fn drop_front(&mut self, count: u32) {
        debug_assert!(count <= self.len());
        self.head = self.head.wrapping_add(count);
    }

    /// Takes the oldest receive into `receive`, whose domain and completion queue are given.
    pub(crate) fn take(&mut self, receive: &mut Receive, pd: PdId, cq: CqId) -> bool {
        if self.is_empty() {
            return false;
        }
        let index = self.index(self.head);
        let RecvWqe { wr_id, sge, sges } = self.wqes[index];
        receive.wr_id = wr_id;
        if sges == 1 {
            receive.sges[0] = sge;
        } else if sges > 1 {
            let at = index * self.max_sge;
            receive.sges[..sges].copy_from_slice(&self.sges[at..at + sges]);
        }
        receive.count = sges;
        receive.capacity = receive.sges[..sges].iter().map(|sge| u64::from(sge.len)).sum();
        receive.pd = pd;
        receive.cq = cq;
        receive.open = true;
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Takes the oldest receive for a completion without data.
    pub(crate) fn flush_one(&mut self) -> Option<WrId> {
        if self.is_empty() {
            return None;
        }
        let wr_id = self.wqes[self.index(self.head)].wr_id;
        self.head = self.head.wrapping_add(1);
        Some(wr_id)
    }

    /// Bytes of the ring and what belongs to it.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.wqes) + size_of_val(&*self.sges)
    }

    /// Forgets everything posted.
    pub(crate) fn clear(&mut self) {
        self.head = 0;
        self.tail = 0;
    }

    #[inline]
    fn index(&self, counter: u32) -> usize {
        counter as usize & (self.wqes.len() - 1)
    }
}

/// A receive taken from its queue: one message fills it, then it completes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Receive {
    /// Whether there is one.
    pub(crate) open: bool,
    /// The queue pair has had one from a shared queue since it was made or reset.
    pub(crate) had_shared: bool,
    pub(crate) wr_id: WrId,
    /// Domain of the elements: the shared queue's, where it came from one.
    pub(crate) pd: PdId,
    /// Where it completes.
    pub(crate) cq: CqId,
    /// Bytes it has room for.
    pub(crate) capacity: u64,
    count: usize,
    /// Apart, so that what every message asks lies together.
    sges: Box<[Sge; MAX_SGE as usize]>,
}

impl Receive {
    pub(crate) fn new() -> Self {
        Self {
            open: false,
            wr_id: WrId(0),
            pd: PdId(0),
            cq: CqId(0),
            capacity: 0,
            had_shared: false,
            count: 0,
            sges: Box::new([Sge::default(); MAX_SGE as usize]),
        }
    }

    /// Bytes of what belongs to it.
    pub(crate) const fn memory_bytes(&self) -> usize {
        size_of::<[Sge; MAX_SGE as usize]>()
    }

    /// The elements, in order.
    pub(crate) fn sges(&self) -> &[Sge] {
        &self.sges[..self.count]
    }

    /// Copies message bytes to byte `offset` of the elements, which have room for them.
    pub(crate) fn scatter(
        &self,
        mem: &mut impl Memory,
        offset: u32,
        from: &[u8],
    ) -> Result<(), MemoryFault> {
        scatter(mem, self.pd, self.sges(), offset, from)
    }
}

/// Copies `from` to byte `offset` of the elements taken together; what has no room is left out.
pub(crate) fn scatter(
    mem: &mut impl Memory,
    pd: PdId,
    sges: &[Sge],
    mut offset: u32,
    mut from: &[u8],
) -> Result<(), MemoryFault> {
    for sge in sges {
        if from.is_empty() {
            break;
        }
        if offset >= sge.len {
            offset -= sge.len;
            continue;
        }
        let (now, rest) = from.split_at(from.len().min((sge.len - offset) as usize));
        mem.scatter(pd, sge, offset, now)?;
        from = rest;
        offset = 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_bounded() {
        let mut queue = RecvQueue::new(3, 1);
        let sge = Sge { addr: 8, len: 16, lkey: Lkey(1) };
        for id in 0..4 {
            queue.post(&RecvWr { wr_id: WrId(id), sges: &[sge] }).unwrap();
        }
        let wr = RecvWr { wr_id: WrId(4), sges: &[] };
        assert_eq!(queue.post(&wr), Err(PostRecvError::Full));
        assert_eq!(
            queue.post(&RecvWr { wr_id: WrId(4), sges: &[sge, sge] }),
            Err(PostRecvError::TooManySges { max: 1 })
        );
        let mut receive = Receive::new();
        assert!(queue.take(&mut receive, PdId(1), CqId(2)));
        assert_eq!((receive.wr_id, receive.capacity), (WrId(0), 16));
        assert_eq!(receive.sges(), [sge]);
        queue.post(&wr).unwrap();
        assert_eq!(
            core::iter::from_fn(|| queue.flush_one()).collect::<Vec<_>>(),
            [1, 2, 3, 4].map(WrId)
        );
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_queue_without_room_takes_nothing() {
        let mut queue = RecvQueue::new(0, 0);
        assert_eq!(queue.post(&RecvWr { wr_id: WrId(0), sges: &[] }), Err(PostRecvError::Full));
        assert!(!queue.take(&mut Receive::new(), PdId(0), CqId(0)));
        assert_eq!(queue.flush_one(), None);
    }
}
