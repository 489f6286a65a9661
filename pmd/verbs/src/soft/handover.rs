//! Frames that reached the wrong lcore of a process.
//!
//! The kernel steers datagrams by the queue pair number of their first frame. A batch that a
//! sender without regard for lcores gathered, or that a network card merged, may hold frames for others too: they
//! are copied into the inbox of the lcore they are for. This is the exception, so a lock is fair;
//! an lcore that is handed nothing pays one load per turn.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pmd_roce::ids::Qpn;
use pmd_roce::limits::{QPN_GENERATION_BITS, QPN_INDEX_BITS, QPN_LCORE_BITS};
use pmd_roce::sink::{Flow, Frame, IpId};
use pmd_wire::limits::MAX_PAYLOAD;

/// Frames that wait for an lcore; more are dropped, as by a full receive queue.
const INBOX_FRAMES: usize = 256;

/// A frame in an inbox.
struct Waiting {
    flow: Flow,
    ip_id: IpId,
    len: usize,
    bytes: Box<[u8; MAX_PAYLOAD]>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Buffers to copy into; made once.
    free: Vec<Box<[u8; MAX_PAYLOAD]>>,
}

#[derive(Default)]
struct Inbox {
    count: AtomicUsize,
    queue: Mutex<Queue>,
}

/// The inboxes of a device's lcores.
#[derive(Clone)]
pub(crate) struct Handover {
    inboxes: Arc<[Inbox]>,
    process: u32,
    lcore: u32,
    /// Frames that this lcore handed to others.
    given: u64,
}

impl Handover {
    /// For `lcores` lcores of the process with this part of every queue pair number.
    pub(crate) fn new(process: u32, lcores: u32) -> Self {
        // With one lcore there is nobody to hand anything to.
        let buffers = if lcores > 1 { INBOX_FRAMES } else { 0 };
        let inboxes = (0..lcores).map(|_| {
            let free = (0..buffers).map(|_| Box::new([0; MAX_PAYLOAD])).collect();
            let queue = Queue { waiting: VecDeque::with_capacity(buffers), free };
            Inbox { count: AtomicUsize::new(0), queue: Mutex::new(queue) }
        });
        Self { inboxes: inboxes.collect(), process, lcore: 0, given: 0 }
    }

    /// As one lcore uses it.
    pub(crate) fn of(&self, lcore: u32) -> Self {
        Self { lcore, ..self.clone() }
    }

    /// Whether another lcore may hand anything over.
    pub(crate) fn is_shared(&self) -> bool {
        self.inboxes.len() > 1
    }

    /// Frames that this lcore received and handed to others.
    pub(crate) const fn given(&self) -> u64 {
        self.given
    }

    /// Hands a frame to the lcore it is for. False: it is for this one, or for nobody.
    pub(crate) fn divert(&mut self, frame: &Frame<'_>) -> bool {
        if !self.is_shared() {
            return false;
        }
        let Some(owner) = self.owner(frame.payload) else { return false };
        let Some(inbox) = self.inboxes.get(owner as usize) else { return false };
        let mut queue = inbox.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut bytes) = queue.free.pop() {
            let len = frame.payload.len().min(MAX_PAYLOAD);
            bytes[..len].copy_from_slice(&frame.payload[..len]);
            queue.waiting.push_back(Waiting { flow: frame.flow, ip_id: frame.ip_id, len, bytes });
            inbox.count.store(queue.waiting.len(), Ordering::Release);
        }
        self.given += 1;
        true
    }

    /// The other lcore that owns the frame's destination, if one does.
    fn owner(&self, payload: &[u8]) -> Option<u32> {
        let [_, _, _, _, _, a, b, c, ..] = payload else { return None };
        let qpn = u32::from_be_bytes([0, *a, *b, *c]);
        let lcore_at = QPN_GENERATION_BITS + QPN_INDEX_BITS;
        let owner = (qpn >> lcore_at) & ((1 << QPN_LCORE_BITS) - 1);
        let is_ours = qpn >> (lcore_at + QPN_LCORE_BITS) == self.process;
        (is_ours && qpn != Qpn::MULTICAST.value() && owner != self.lcore).then_some(owner)
    }

    /// Takes in what other lcores handed over; returns how many frames.
    pub(crate) fn receive(&self, mut take: impl FnMut(&Frame<'_>)) -> usize {
        let Some(inbox) = self.inboxes.get(self.lcore as usize) else { return 0 };
        if inbox.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut queue = inbox.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let count = queue.waiting.len();
        while let Some(Waiting { flow, ip_id, len, bytes }) = queue.waiting.pop_front() {
            take(&Frame { flow, ip_id, payload: &bytes[..len] });
            queue.free.push(bytes);
        }
        inbox.count.store(0, Ordering::Release);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmd_roce::ids::Gid;

    fn frame(qpn: u32, payload: &mut [u8; 16]) -> Frame<'_> {
        payload[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        let flow = Flow {
            src: Gid([1; 16]),
            dst: Gid([2; 16]),
            src_port: 4791,
            traffic_class: 0,
            hop_limit: 64,
        };
        Frame { flow, ip_id: IpId::Likely(7), payload }
    }

    #[test]
    fn frames_reach_the_lcore_they_are_for() {
        let all = Handover::new(5, 2);
        let (mut zero, mut one) = (all.of(0), all.of(1));
        let mut payload = [9; 16];
        let for_one = frame(5 << 17 | 1 << 14 | 3, &mut payload);
        assert!(!one.divert(&for_one));
        assert!(zero.divert(&for_one));
        let mut taken = Vec::new();
        assert_eq!(one.receive(|frame| taken.push((frame.ip_id, frame.payload.to_vec()))), 1);
        assert_eq!(taken, [(IpId::Likely(7), for_one.payload.to_vec())]);
        assert_eq!(one.receive(|_| panic!("nothing is left")), 0);
        assert_eq!((zero.given(), one.given()), (1, 0));
    }

    #[test]
    fn frames_for_nobody_and_for_all_stay() {
        let mut zero = Handover::new(5, 2).of(0);
        let mut payload = [9; 16];
        for qpn in [1, 0xff_ffff, 6 << 17 | 1 << 14, 5 << 17 | 2, 5 << 17 | 7 << 14] {
            assert!(!zero.divert(&frame(qpn, &mut payload)), "{qpn:#x}");
        }
    }

    #[test]
    fn a_full_inbox_drops_as_a_full_queue_does() {
        let all = Handover::new(5, 2);
        let (mut zero, one) = (all.of(0), all.of(1));
        let mut payload = [9; 16];
        let for_one = frame(5 << 17 | 1 << 14 | 3, &mut payload);
        for _ in 0..INBOX_FRAMES + 10 {
            assert!(zero.divert(&for_one));
        }
        assert_eq!(one.receive(|_| {}), INBOX_FRAMES);
        assert!(zero.divert(&for_one));
        assert_eq!(one.receive(|_| {}), 1);
    }
}
