//! The untimed pass: every queue pair's every slot moves, with bytes of its own each time, and each byte
//! is compared where it arrives. Where a queue pair has more requests in flight than slots, there are
//! rounds, as many as it takes for one message per request.

use pmd_verbs::Completion;
use pmd_verbs::roce::limits::GRH_BYTES;

use super::buffers::Area;
use super::desk::{Desk, Rest, Signal};
use super::failure::Failure;
use super::inbox::{Inbox, number_of, numbered};
use super::limits::LOST_AFTER;
use super::pattern::Pattern;
use super::requests::{Elements, count, first_atomic, request, word};
use super::service::Flavour;
use super::tally::Tally;
use super::test::{Op, Transport};

/// Unreliable messages that may be under way in all.
const UNHEARD: u64 = 16;

/// The untimed pass of one size on one lcore.
#[derive(Debug)]
pub(super) struct Pass {
    op: Op,
    size: u32,
    round: u32,
    /// Messages that have arrived, per queue pair.
    counts: Box<[u32]>,
    /// Which slots arrived, where the peer does not say so by completing.
    arrived: Box<[bool]>,
    tally: Tally,
}

impl Pass {
    pub(super) fn new<T: Flavour>(desk: &Desk<'_, T>, op: Op, size: u32, round: u32) -> Self {
        let qps = count(desk) as usize;
        Self {
            op,
            size,
            round,
            counts: vec![0; qps].into(),
            arrived: vec![false; qps * desk.params.slots() as usize].into(),
            tally: Tally::default(),
        }
    }

    /// Fills what the peer will get from here.
    ///
    /// # Errors
    /// When a buffer is not where it should be.
    pub(super) fn prepare<T: Flavour>(&self, desk: &Desk<'_, T>) -> Result<(), Failure> {
        let Some(source) = &desk.ends.memory.source else { return Ok(()) };
        let region = &desk.ends.memory.region;
        for (qp, slot) in slots(desk) {
            let pattern = self.pattern(desk, desk.side(), qp, slot);
            pattern.write(region, source.at(qp, slot), self.size)?;
            self.flip(desk, source, qp, slot)?;
        }
        Ok(())
    }

    /// The bytes of a message. WRITEs that follow SENDs to the same place bring others, and so does each round.
    fn pattern<T: Flavour>(&self, desk: &Desk<'_, T>, side: u8, qp: u32, slot: u32) -> Pattern {
        let follows = desk.params.alternates && self.op == Op::Write;
        let message = self.round * desk.params.slots() + slot;
        Pattern::of(side, desk.lcore, qp, message, self.size | u32::from(follows) << 31)
    }

    /// Changes the stored byte that a fault names, if it lies in this slot: in the first round.
    fn flip<T: Flavour>(
        &self,
        desk: &Desk<'_, T>,
        area: &Area,
        qp: u32,
        slot: u32,
    ) -> Result<(), Failure> {
        if desk.lcore != 0 || self.round != 0 {
            return Ok(());
        }
        let size = u64::from(self.size);
        let first = (u64::from(qp) * u64::from(area.slots()) + u64::from(slot)) * size;
        for (flip, hits) in desk.params.flips.iter().zip(&mut *desk.flipped.borrow_mut()) {
            if flip.side != desk.side() {
                continue;
            }
            let Some(at) = flip.offset.checked_sub(first).filter(|at| *at < size) else {
                continue;
            };
            let mut byte = [0];
            let at = area.at(qp, slot) + at;
            desk.ends.memory.region.read_at(at, &mut byte)?;
            desk.ends.memory.region.write_at(at, &[!byte[0]])?;
            *hits += 1;
        }
        Ok(())
    }

    /// Sends every slot once.
    ///
    /// # Errors
    /// How it broke.
    pub(super) fn send<T: Flavour>(
        &mut self,
        desk: &Desk<'_, T>,
        inbox: &mut Inbox<'_>,
    ) -> Result<(), Failure> {
        let elements = Elements::of(desk, self.size)?;
        let pieces = elements.pieces();
        let reliable = desk.params.transport.is_reliable();
        let atomic = self.op == Op::Atomic;
        let qps = u64::from(count(desk));
        let total = qps * u64::from(desk.params.slots());
        let per_qp = desk.params.tx_depth.min(desk.params.slots());
        let limit = if reliable { qps * u64::from(per_qp) } else { UNHEARD };
        let (mut posted, mut done) = (0, 0);
        let mut passed = 0;
        desk.pulse.excuse();
        let mut moved = desk.ticker.now();
        let mut rest = Rest::default();
        while done < total || (!reliable && heard(inbox).max(passed) < total) {
            let now = desk.ticker.now();
            let mut work = desk.turn(now);
            let completed = desk.completions()?;
            done += completed;
            work += self.receive(desk, inbox)?;
            let known = if reliable { done } else { heard(inbox).max(passed).min(done) };
            while posted < total && posted - known < limit {
                // Slot after slot, over all queue pairs: each has its turn.
                #[expect(clippy::cast_possible_truncation, reason = "queue pairs and slots")]
                let (qp, slot) = ((posted % qps) as u32, (posted / qps) as u32);
                let data = elements.data(&pieces, qp, slot);
                let wr = if atomic {
                    first_atomic(desk, data, qp, slot)?
                } else {
                    let number = (!reliable).then(|| numbered(slot.into()));
                    request(desk, self.op, data, qp, slot, number)?
                };
                desk.ends.qps[qp as usize].post_send(&wr.signaled())?;
                posted += 1;
                work += 1;
            }
            if desk.is(Signal::Cut) {
                break;
            }
            if completed > 0 {
                moved = now;
            }
            if work > 0 {
                continue;
            }
            let still = now.since(moved);
            if !reliable && done == posted && still > LOST_AFTER {
                passed = posted;
                moved = now;
            } else if desk.is_stalled(still) {
                return Err(Failure::Stalled { seconds: still.as_secs() });
            }
            desk.rest(&mut rest)?;
        }
        self.tally.sent = done;
        Ok(())
    }

    /// Takes and compares what has arrived as messages.
    ///
    /// # Errors
    /// A byte that differs, among others.
    pub(super) fn receive<T: Flavour>(
        &mut self,
        desk: &Desk<'_, T>,
        inbox: &mut Inbox<'_>,
    ) -> Result<usize, Failure> {
        inbox.messages(desk, |completion| self.message(desk, completion))
    }

    fn message<T: Flavour>(
        &mut self,
        desk: &Desk<'_, T>,
        completion: &Completion,
    ) -> Result<(), Failure> {
        #[expect(clippy::cast_possible_truncation, reason = "two halves")]
        let (lane, place) = ((completion.wr_id.0 >> 32) as usize, completion.wr_id.0 as u32);
        let qp = desk.ends.owner(lane, completion.qpn);
        let nth = self.counts[qp as usize];
        self.counts[qp as usize] += 1;
        let slot = number_of(completion).unwrap_or(nth);
        self.tally.received += 1;
        if self.op != Op::Send {
            if let Some(arrived) = self.arrived.get_mut((qp * desk.params.slots() + slot) as usize)
            {
                *arrived = true;
            }
            return Ok(());
        }
        let wanted = self.size + if desk.params.transport == Transport::Ud { GRH_BYTES } else { 0 };
        if completion.byte_len != wanted {
            return Err(Failure::Length { got: completion.byte_len, wanted });
        }
        let Some(sink) = &desk.ends.memory.sink else { return Ok(()) };
        // Shared receives number their slots through all queue pairs.
        let lane = u32::try_from(lane).unwrap_or_default();
        let at = (lane + place / sink.slots(), place % sink.slots());
        self.flip(desk, sink, at.0, at.1)?;
        self.compare(desk, sink.at(at.0, at.1), qp, slot)
    }

    fn compare<T: Flavour>(
        &mut self,
        desk: &Desk<'_, T>,
        at: u64,
        qp: u32,
        slot: u32,
    ) -> Result<(), Failure> {
        let size = self.size;
        let pattern = self.pattern(desk, 1 - desk.side(), qp, slot);
        if let Some(found) = pattern.mismatch(&desk.ends.memory.region, at, size)? {
            let (offset, got, wanted) = (found.at, found.got, found.wanted);
            return Err(Failure::Mismatch { offset, got, wanted, qp, slot, size });
        }
        self.tally.verified += u64::from(size);
        Ok(())
    }

    /// Compares what arrived without a message, once the peer is done.
    ///
    /// # Errors
    /// A byte that differs.
    pub(super) fn finish<T: Flavour>(mut self, desk: &Desk<'_, T>) -> Result<Tally, Failure> {
        let acts = !desk.server || desk.params.both_send();
        let serves = desk.server || desk.params.both_send();
        let memory = &desk.ends.memory;
        let op = self.op;
        let landed = match op {
            Op::Write => serves,
            Op::Read | Op::Atomic => acts,
            Op::Send => false,
        };
        if let (true, Some(sink)) = (landed, &memory.sink) {
            let told = !desk.params.transport.is_reliable();
            for ((qp, slot), arrived) in slots(desk).zip(self.arrived.clone()) {
                if arrived || !told {
                    self.flip(desk, sink, qp, slot)?;
                    self.compare(desk, sink.at(qp, slot), qp, slot)?;
                }
            }
        }
        if let (true, Op::Atomic, Some(source)) = (serves, op, &memory.source) {
            for (qp, slot) in slots(desk) {
                self.changed(desk, source, qp, slot)?;
            }
        }
        Ok(self.tally)
    }

    /// Whether the peer's atomic has changed a word as it should.
    fn changed<T: Flavour>(
        &mut self,
        desk: &Desk<'_, T>,
        source: &Area,
        qp: u32,
        slot: u32,
    ) -> Result<(), Failure> {
        let mut found = [0; 8];
        desk.ends.memory.region.read_at(source.at(qp, slot), &mut found)?;
        let wanted = word(desk, desk.side(), qp, slot).wrapping_add(1).to_le_bytes();
        if let Some(offset) = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted)
        {
            return Err(Failure::Mismatch {
                offset: offset as u64,
                got: found[offset],
                wanted: wanted[offset],
                qp,
                slot,
                size: self.size,
            });
        }
        self.tally.verified += 8;
        Ok(())
    }
}

/// Every queue pair's every slot.
fn slots<T: Flavour>(desk: &Desk<'_, T>) -> impl Iterator<Item = (u32, u32)> + use<T> {
    let slots = desk.params.slots();
    (0..count(desk)).flat_map(move |qp| (0..slots).map(move |slot| (qp, slot)))
}

/// What the peer has told of, over all queue pairs.
fn heard(inbox: &Inbox<'_>) -> u64 {
    inbox.words.iter().map(|word| word.credited).sum()
}
