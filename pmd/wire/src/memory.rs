//! Two ends of a wire inside one process, for tests and simulations.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::MAX_PAYLOAD;
use crate::wire::{Flow, IpId, JoinError, RxFrame, RxHandler, TxFill, Wire, WireCounters};

/// One end. Frames show their header exactly, with an IPv4 identification that counts up.
#[derive(Debug)]
pub struct MemoryWire {
    address: IpAddr,
    capacity: usize,
    out: Arc<Mutex<Queue>>,
    queued: VecDeque<Held>,
    spare: Vec<Vec<u8>>,
    incoming: Arc<Mutex<Queue>>,
    groups: Vec<IpAddr>,
    next_id: u16,
    counters: WireCounters,
}

type Queue = VecDeque<Held>;

#[derive(Debug)]
struct Held {
    flow: Flow,
    ip_id: u16,
    payload: Vec<u8>,
}

/// Joins `a` and `b` by a wire that holds up to `capacity` frames per direction; each end queues
/// as many again before its `send` reports that it is full.
pub fn pair(a: IpAddr, b: IpAddr, capacity: usize) -> (MemoryWire, MemoryWire) {
    let ab = Arc::new(Mutex::new(Queue::default()));
    let ba = Arc::new(Mutex::new(Queue::default()));
    (MemoryWire::new(a, capacity, ab.clone(), ba.clone()), MemoryWire::new(b, capacity, ba, ab))
}

impl MemoryWire {
    fn new(
        address: IpAddr,
        capacity: usize,
        out: Arc<Mutex<Queue>>,
        incoming: Arc<Mutex<Queue>>,
    ) -> Self {
        Self {
            address,
            capacity,
            out,
            queued: VecDeque::with_capacity(capacity),
            spare: Vec::with_capacity(2 * capacity),
            incoming,
            groups: Vec::new(),
            next_id: 0,
            counters: WireCounters::default(),
        }
    }
}

/// The queue is consistent between any two operations, so a peer's panic does not spoil it.
fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire for MemoryWire {
    fn rx_burst(&mut self, _now_ns: u64, handle: &mut RxHandler<'_>) -> usize {
        let mut count = 0;
        while count < self.capacity {
            let Some(held) = lock(&self.incoming).pop_front() else { break };
            let dst = held.flow.dst;
            if dst == self.address || self.groups.contains(&dst) {
                self.counters.rx_frames += 1;
                self.counters.rx_datagrams += 1;
                self.counters.rx_bytes += held.payload.len() as u64;
                handle(RxFrame {
                    flow: held.flow,
                    ip_id: IpId::Exact(held.ip_id),
                    payload: &held.payload,
                });
                count += 1;
            }
            self.spare.push(held.payload);
        }
        count
    }

    fn send(&mut self, flow: &Flow, _to: u32, len: usize, fill: &mut TxFill<'_>) -> bool {
        assert!(len <= MAX_PAYLOAD, "a frame of {len} bytes is longer than any RoCEv2 frame");
        if self.queued.len() == self.capacity {
            self.counters.tx_full += 1;
            return false;
        }
        let mut payload = self.spare.pop().unwrap_or_default();
        payload.clear();
        payload.resize(len, 0);
        let ip_id = self.next_id;
        self.next_id = ip_id.wrapping_add(1);
        fill(ip_id, &mut payload);
        self.queued.push_back(Held { flow: *flow, ip_id, payload });
        true
    }

    fn flush(&mut self, _now_ns: u64) {
        let mut out = lock(&self.out);
        while out.len() < self.capacity {
            let Some(held) = self.queued.pop_front() else { break };
            self.counters.tx_frames += 1;
            self.counters.tx_datagrams += 1;
            self.counters.tx_bytes += held.payload.len() as u64;
            out.push_back(held);
        }
    }

    fn pending(&self) -> usize {
        self.queued.len()
    }

    fn source_port(&self, wanted: u16) -> u16 {
        wanted
    }

    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        if !group.is_multicast() || group.is_ipv4() != self.address.is_ipv4() {
            return Err(JoinError::NotAGroup(group, self.address));
        }
        if !self.groups.contains(&group) {
            self.groups.push(group);
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) -> Result<(), JoinError> {
        let at = self.groups.iter().position(|g| *g == group);
        let at = at.ok_or(JoinError::NotAMember(group))?;
        self.groups.swap_remove(at);
        Ok(())
    }

    fn counters(&self) -> WireCounters {
        self.counters
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RxVerdict;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn collect(wire: &mut MemoryWire) -> Vec<(Flow, IpId, Vec<u8>)> {
        let mut frames = Vec::new();
        wire.rx_burst(0, &mut |f| {
            frames.push((f.flow, f.ip_id, f.payload.to_vec()));
            RxVerdict { ip_id: f.ip_id.value(), dropped: None, rest: 0 }
        });
        frames
    }

    #[test]
    fn frames_arrive_in_order_with_their_header() {
        let (mut a, mut b) = pair(ip("10.0.0.1"), ip("10.0.0.2"), 4);
        let flow = Flow {
            src: ip("10.0.0.1"),
            dst: ip("10.0.0.2"),
            src_port: 50_000,
            traffic_class: 2,
            hop_limit: 64,
        };
        for byte in 0..4 {
            assert!(a.send(&flow, 0x11, 3, &mut |_, p| p.fill(byte)));
        }
        assert!(!a.send(&flow, 0x11, 3, &mut |_, _| panic!("there is no room")));
        assert_eq!(collect(&mut b), [], "nothing leaves before the flush");
        a.flush(0);
        let got = collect(&mut b);
        let want = (0..4).map(|n| (flow, IpId::Exact(u16::from(n)), vec![n; 3]));
        assert_eq!(got, want.collect::<Vec<_>>());
        assert_eq!((a.counters().tx_full, a.counters().tx_frames), (1, 4));
    }

    #[test]
    fn only_members_hear_a_group() {
        let (mut a, mut b) = pair(ip("10.0.0.1"), ip("10.0.0.2"), 4);
        let group = ip("224.1.2.3");
        let flow = Flow {
            src: ip("10.0.0.1"),
            dst: group,
            src_port: 50_000,
            traffic_class: 0,
            hop_limit: 64,
        };
        let send = |a: &mut MemoryWire| {
            assert!(a.send(&flow, 0x11, 1, &mut |_, p| p[0] = 9));
            a.flush(0);
        };
        send(&mut a);
        assert_eq!(collect(&mut b).len(), 0);
        b.join(group).unwrap();
        send(&mut a);
        assert_eq!(collect(&mut b).len(), 1);
        b.leave(group).unwrap();
        send(&mut a);
        assert_eq!(collect(&mut b).len(), 0);
        assert!(matches!(b.leave(group), Err(JoinError::NotAMember(_))));
        assert!(matches!(b.join(ip("10.0.0.9")), Err(JoinError::NotAGroup(..))));
    }
}
