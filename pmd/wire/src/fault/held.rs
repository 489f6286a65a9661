//! Frames held back until their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::limits::{FAULT_FRAMES, FAULT_REORDER_NS, MAX_PAYLOAD};
use crate::wire::{Flow, IpId, RxFrame};

/// Number of a frame's place in the pool.
pub(super) type Slot = usize;

/// A pool of frames, and the order in which they leave it. Every frame is in one of three places:
/// queued for a time, swapped (waiting for the next frame to pass it), or in its user's hands.
#[derive(Debug)]
pub(super) struct Held {
    bytes: Box<[u8]>,
    facts: Box<[Option<Facts>]>,
    spare: Vec<Slot>,
    /// By time, then by age.
    queued: BinaryHeap<Reverse<(u64, u64, Slot)>>,
    /// The slot, and when it stops waiting.
    swapped: Vec<(Slot, u64)>,
    next_age: u64,
}

#[derive(Clone, Copy, Debug)]
struct Facts {
    flow: Flow,
    ip_id: IpId,
    len: usize,
}

/// A frame in the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldFrame<'a> {
    pub(super) flow: Flow,
    pub(super) ip_id: IpId,
    pub(super) payload: &'a [u8],
}

impl Held {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; FAULT_FRAMES * MAX_PAYLOAD].into_boxed_slice(),
            facts: vec![None; FAULT_FRAMES].into_boxed_slice(),
            spare: (0..FAULT_FRAMES).rev().collect(),
            queued: BinaryHeap::with_capacity(FAULT_FRAMES),
            swapped: Vec::with_capacity(FAULT_FRAMES),
            next_age: 0,
        }
    }

    /// Frames that can be taken.
    pub(super) fn room(&self) -> usize {
        self.spare.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spare.len() == FAULT_FRAMES
    }

    /// Takes a place for a frame of `len` bytes; None when the pool is full.
    pub(super) fn take(&mut self, flow: &Flow, ip_id: IpId, len: usize) -> Option<Slot> {
        assert!(len <= MAX_PAYLOAD, "a frame of {len} bytes is longer than any RoCEv2 frame");
        let slot = self.spare.pop()?;
        self.facts[slot] = Some(Facts { flow: *flow, ip_id, len });
        Some(slot)
    }

    /// Takes a copy of a received frame; None when the pool is full or the frame too long for it.
    pub(super) fn hold(&mut self, frame: &RxFrame<'_>) -> Option<Slot> {
        if frame.payload.len() > MAX_PAYLOAD {
            return None;
        }
        let slot = self.take(&frame.flow, frame.ip_id, frame.payload.len())?;
        self.payload_mut(slot).copy_from_slice(frame.payload);
        Some(slot)
    }

    /// Takes a copy of a frame of the pool.
    pub(super) fn copy(&mut self, slot: Slot) -> Option<Slot> {
        let facts = self.facts(slot);
        let copy = self.take(&facts.flow, facts.ip_id, facts.len)?;
        let from = slot * MAX_PAYLOAD;
        self.bytes.copy_within(from..from + facts.len, copy * MAX_PAYLOAD);
        Some(copy)
    }

    pub(super) fn frame(&self, slot: Slot) -> HeldFrame<'_> {
        let Facts { flow, ip_id, len } = self.facts(slot);
        let at = slot * MAX_PAYLOAD;
        HeldFrame { flow, ip_id, payload: &self.bytes[at..at + len] }
    }

    pub(super) fn payload_mut(&mut self, slot: Slot) -> &mut [u8] {
        let at = slot * MAX_PAYLOAD;
        let len = self.facts(slot).len;
        &mut self.bytes[at..at + len]
    }

    fn facts(&self, slot: Slot) -> Facts {
        self.facts[slot].expect("a slot in use has facts")
    }

    /// Lets the frame go at `due_ns`, after those queued earlier for the same time.
    pub(super) fn queue(&mut self, slot: Slot, due_ns: u64) {
        self.queued.push(Reverse((due_ns, self.next_age, slot)));
        self.next_age += 1;
    }

    /// Keeps the frame until another has passed, or for a short time where none does.
    pub(super) fn swap(&mut self, slot: Slot, now_ns: u64) {
        self.swapped.push((slot, now_ns.saturating_add(FAULT_REORDER_NS)));
    }

    /// The oldest frame that waits to be passed. It is then in the caller's hands.
    pub(super) fn take_swapped(&mut self) -> Option<Slot> {
        (!self.swapped.is_empty()).then(|| self.swapped.remove(0).0)
    }

    /// Queues the frames that have waited too long to be passed.
    pub(super) fn release(&mut self, now_ns: u64) {
        while self.swapped.first().is_some_and(|(_, until)| *until <= now_ns) {
            let (slot, until) = self.swapped.remove(0);
            self.queue(slot, until);
        }
    }

    /// The frame to leave next, if its time has come. It stays first until it is freed.
    pub(super) fn due(&self, now_ns: u64) -> Option<Slot> {
        let Reverse((due, _, slot)) = self.queued.peek()?;
        (*due <= now_ns).then_some(*slot)
    }

    /// When the next frame wants to leave.
    pub(super) fn next(&self) -> Option<u64> {
        let queued = self.queued.peek().map(|Reverse((due, ..))| *due);
        let swapped = self.swapped.first().map(|(_, until)| *until);
        queued.into_iter().chain(swapped).min()
    }

    /// Frames whose time has come.
    pub(super) fn ready(&self, now_ns: u64) -> usize {
        self.queued.iter().filter(|Reverse((due, ..))| *due <= now_ns).count()
    }

    /// Gives the place back; a frame that [`Held::due`] returned leaves the queue.
    pub(super) fn free(&mut self, slot: Slot) {
        if self.queued.peek().is_some_and(|Reverse((.., first))| *first == slot) {
            self.queued.pop();
        }
        self.facts[slot] = None;
        self.spare.push(slot);
    }
}
