//! Spoiling traffic on purpose, the same way every time.
//!
//! A [`Fault`] wraps any wire and follows a plan: [`Rule`]s that drop, delay, duplicate, reorder,
//! corrupt or partition the frames they match, in either direction. Given the same seed and the
//! same frames it does the same. Whatever it does to a frame, the ICRC stays right for the
//! identification that the frame leaves with, unless the rule corrupts it.
//!
//! Put a [`Tap`](crate::tap::Tap) inside to record what really passes the wire, outside to record
//! what its user meant to.
//!
//! Frames held back live in a pool made beforehand. When the pool for sending is full, `send`
//! refuses as a full wire does; received frames beyond the pool are dropped.

mod held;
mod parse;
mod random;
mod rule;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub use parse::{ParseRuleError, ParsedRule, parse};
pub use rule::{Action, Direction, Match, OpcodeSet, QpnMatch, Rule};

use crate::icrc::restamp;
use crate::limits::MAX_PAYLOAD;
use crate::wire::{
    Flow, IpId, JoinError, RxFrame, RxHandler, RxVerdict, TxFill, Wire, WireCounters, destination,
};
use held::Held;
use random::Random;
use rule::Plan;

/// A wire whose traffic is spoiled.
pub struct Fault<W> {
    inner: W,
    plan: Plan,
    random: Random,
    now_ns: u64,
    tx: Held,
    rx: Held,
    /// A received frame on its way to being corrupted.
    scratch: Box<[u8]>,
}

impl<W: Wire> Fault<W> {
    /// Applies `rules` to what passes `inner`. Where several match a frame, the first acts.
    pub fn new(inner: W, rules: &[Rule], seed: u64) -> Self {
        Self {
            inner,
            plan: Plan::new(rules),
            random: Random::new(seed),
            now_ns: 0,
            tx: Held::new(),
            rx: Held::new(),
            scratch: vec![0; MAX_PAYLOAD].into_boxed_slice(),
        }
    }

    /// Counts how often each rule acts in `tallies` too, which are in the order of the rules: for readers on other threads,
    /// and for several wires with the same rules.
    #[must_use]
    pub fn count_in(mut self, tallies: impl IntoIterator<Item = Arc<AtomicU64>>) -> Self {
        self.plan.count_in(tallies);
        self
    }

    /// The wire inside.
    pub fn inner(&self) -> &W {
        &self.inner
    }

    /// How often each rule acted, in the order they were given.
    pub fn hits(&self) -> impl Iterator<Item = u64> {
        self.plan.hits()
    }

    /// Moves frames whose time has come to the wire inside, oldest first, as many as it takes.
    fn pump(&mut self) {
        self.tx.release(self.now_ns);
        while let Some(slot) = self.tx.due(self.now_ns) {
            let held = self.tx.frame(slot);
            let to = destination(held.payload);
            let sent = self.inner.send(&held.flow, to, held.payload.len(), &mut |ip_id, frame| {
                frame.copy_from_slice(held.payload);
                if held.flow.dst.is_ipv4() {
                    restamp(frame, held.ip_id.value(), ip_id);
                }
            });
            if !sent {
                break;
            }
            self.tx.free(slot);
        }
    }
}

impl<W: Wire> Wire for Fault<W> {
    fn rx_burst(&mut self, now_ns: u64, handle: &mut RxHandler<'_>) -> usize {
        self.now_ns = now_ns;
        let mut count = 0;
        let Self { inner, plan, random, rx, scratch, .. } = self;
        rx.release(now_ns);
        while let Some(slot) = rx.due(now_ns) {
            let held = rx.frame(slot);
            let (flow, ip_id, payload) = (held.flow, held.ip_id, held.payload);
            handle(RxFrame { flow, ip_id, payload });
            rx.free(slot);
            count += 1;
        }
        inner.rx_burst(now_ns, &mut |frame| {
            let action = plan.choose(now_ns, Direction::Rx, &frame.flow, frame.payload, random);
            let verdict = match action {
                Some(Action::Drop) => return spoiled(&frame, "fault: drop"),
                Some(Action::Partition) => return spoiled(&frame, "fault: partition"),
                Some(Action::Delay { ns }) => {
                    let Some(slot) = rx.hold(&frame) else { return spoiled(&frame, NO_ROOM) };
                    rx.queue(slot, now_ns.saturating_add(ns));
                    return spoiled(&frame, "fault: delay");
                }
                Some(Action::Reorder) => {
                    let Some(slot) = rx.hold(&frame) else { return spoiled(&frame, NO_ROOM) };
                    rx.swap(slot, now_ns);
                    return spoiled(&frame, "fault: reorder");
                }
                Some(Action::Duplicate) => {
                    handle(frame);
                    count += 2;
                    handle(frame)
                }
                Some(Action::Corrupt) if frame.payload.len() <= scratch.len() => {
                    let payload = &mut scratch[..frame.payload.len()];
                    payload.copy_from_slice(frame.payload);
                    corrupt(payload, random);
                    count += 1;
                    handle(RxFrame { payload, ..frame })
                }
                Some(Action::Corrupt) | None => {
                    count += 1;
                    handle(frame)
                }
            };
            // A frame has passed those that wait to be passed.
            while let Some(slot) = rx.take_swapped() {
                let held = rx.frame(slot);
                let (flow, ip_id, payload) = (held.flow, held.ip_id, held.payload);
                handle(RxFrame { flow, ip_id, payload });
                rx.free(slot);
                count += 1;
            }
            verdict
        });
        count
    }

    fn send(&mut self, flow: &Flow, to: u32, len: usize, fill: &mut TxFill<'_>) -> bool {
        if self.tx.is_empty() && !self.plan.concerns(Direction::Tx) {
            return self.inner.send(flow, to, len, fill);
        }
        // Two: one for the frame, one for its duplicate.
        if self.tx.room() < 2 {
            self.pump();
        }
        if self.tx.room() < 2 {
            return false;
        }
        let Some(slot) = self.tx.take(flow, IpId::Exact(0), len) else { return false };
        fill(0, self.tx.payload_mut(slot));
        let payload = self.tx.frame(slot).payload;
        let action = self.plan.choose(self.now_ns, Direction::Tx, flow, payload, &mut self.random);
        match action {
            Some(Action::Drop | Action::Partition) => {
                self.tx.free(slot);
                return true;
            }
            Some(Action::Reorder) => {
                self.tx.swap(slot, self.now_ns);
                return true;
            }
            Some(Action::Delay { ns }) => {
                self.tx.queue(slot, self.now_ns.saturating_add(ns));
                return true;
            }
            Some(Action::Corrupt) => corrupt(self.tx.payload_mut(slot), &mut self.random),
            Some(Action::Duplicate) | None => {}
        }
        self.tx.queue(slot, self.now_ns);
        if action == Some(Action::Duplicate)
            && let Some(copy) = self.tx.copy(slot)
        {
            self.tx.queue(copy, self.now_ns);
        }
        while let Some(slot) = self.tx.take_swapped() {
            self.tx.queue(slot, self.now_ns);
        }
        self.pump();
        true
    }

    fn flush(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.pump();
        self.inner.flush(now_ns);
    }

    fn pending(&self) -> usize {
        self.inner.pending() + self.tx.ready(self.now_ns)
    }

    fn poll_timeout(&self) -> Option<u64> {
        let held = [self.inner.poll_timeout(), self.tx.next(), self.rx.next()];
        held.into_iter().flatten().min()
    }

    fn source_port(&self, wanted: u16) -> u16 {
        self.inner.source_port(wanted)
    }

    fn max_payload(&self) -> usize {
        self.inner.max_payload()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.inner.leave(group)
    }

    fn counters(&self) -> WireCounters {
        self.inner.counters()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

impl<W: fmt::Debug> fmt::Debug for Fault<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault")
            .field("inner", &self.inner)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

/// What a wrapper inside is told of a frame that was taken away.
fn spoiled(frame: &RxFrame<'_>, why: &'static str) -> RxVerdict {
    let ip_id = if frame.flow.dst.is_ipv4() { frame.ip_id.value() } else { 0 };
    RxVerdict { ip_id, dropped: Some(why), rest: 0 }
}

const NO_ROOM: &str = "fault: no room to hold it back";

/// BTH byte 4 (FECN, BECN), which the ICRC does not cover.
const UNCOVERED: usize = 4;

/// Inverts one bit that the ICRC covers.
fn corrupt(payload: &mut [u8], random: &mut Random) {
    let covered = payload.len() - usize::from(payload.len() > UNCOVERED);
    if covered == 0 {
        return;
    }
    let bit = random.below(8 * covered);
    let at = bit / 8 + usize::from(bit / 8 >= UNCOVERED);
    payload[at] ^= 1 << (bit % 8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corruption_reaches_every_covered_bit_and_no_other() {
        let mut random = Random::new(1);
        let mut flipped = [0_u8; 16];
        for _ in 0..10_000 {
            let mut payload = [0; 16];
            corrupt(&mut payload, &mut random);
            assert_eq!(payload.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
            flipped.iter_mut().zip(payload).for_each(|(all, one)| *all |= one);
        }
        let mut want = [0xff; 16];
        want[UNCOVERED] = 0;
        assert_eq!(flipped, want);
        corrupt(&mut [], &mut random);
    }
}
