//! What goes wrong on the network, and when.

use core::time::Duration;

use pmd_roce::ids::{Instant, Psn, Qpn};
use pmd_roce::wire::bth::BthView;
use pmd_roce::wire::{Opcode, Operation};

use crate::host::HostId;

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is lost.
    Drop,
    /// It arrives so much later; frames behind it overtake it.
    Delay(Duration),
    /// It arrives twice.
    Duplicate,
    /// It arrives a random time later, up to [`crate::limits::REORDER_BY`].
    Reorder,
    /// One of its bits is flipped.
    Corrupt,
}

/// Kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Every frame.
    All,
    /// ACKs, NAKs and RNR NAKs.
    Acks,
    /// Frames of an operation, on any transport.
    Operation(Operation),
    /// Frames of an opcode.
    Opcode(Opcode),
}

/// Which frames a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Their kind.
    pub frames: Frames,
    /// Their PSN.
    pub psn: Option<Psn>,
    /// The queue pair they go to.
    pub qp: Option<Qpn>,
    /// The connection they belong to: they go to one of its two queue pairs.
    pub pair: Option<[Qpn; 2]>,
    /// Only frames whose UDP payload is longer, bytes.
    pub longer_than: Option<usize>,
    /// So many matching frames pass first.
    pub after: u64,
    /// Then every so-manieth is hit; 1 hits each.
    pub every: u64,
    /// At most so many are hit.
    pub count: Option<u64>,
    /// Of these, so many in a million, by chance.
    pub chance: u32,
}

impl Filter {
    /// Every frame.
    pub const ALL: Self = Self::of(Frames::All);

    /// Every frame of a kind.
    pub const fn of(frames: Frames) -> Self {
        Self {
            frames,
            psn: None,
            qp: None,
            pair: None,
            longer_than: None,
            after: 0,
            every: 1,
            count: None,
            chance: 1_000_000,
        }
    }

    fn matches(&self, payload: &[u8]) -> bool {
        let Ok(bth) = BthView::new_checked(payload) else { return false };
        let opcode = Opcode::new(bth.opcode_byte());
        let operation = opcode.map(Opcode::operation);
        let kind = match self.frames {
            Frames::All => true,
            Frames::Acks => operation == Some(Operation::Acknowledge),
            Frames::Operation(wanted) => operation == Some(wanted),
            Frames::Opcode(wanted) => opcode == Some(wanted),
        };
        kind && self.psn.is_none_or(|psn| bth.psn() == psn)
            && self.qp.is_none_or(|qp| bth.dest_qp() == qp)
            && self.pair.is_none_or(|pair| pair.contains(&bth.dest_qp()))
            && self.longer_than.is_none_or(|len| payload.len() > len)
    }
}

/// One entry of a fault plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Only frames of this sender.
    pub from: Option<HostId>,
    /// Only frames to this receiver.
    pub to: Option<HostId>,
    /// Start.
    pub at: Instant,
    /// End; frames sent at this time pass.
    pub until: Instant,
    /// Which frames.
    pub filter: Filter,
    /// What happens to them.
    pub act: Act,
}

impl Fault {
    /// Hits every frame that passes `filter`, from any host to any, at all times.
    pub const fn new(act: Act, filter: Filter) -> Self {
        Self { from: None, to: None, at: Instant(0), until: Instant(u64::MAX), filter, act }
    }

    /// Hits `parts` of a million frames, by chance.
    pub const fn random(act: Act, parts: u32) -> Self {
        Self::new(act, Filter { chance: parts, ..Filter::ALL })
    }

    /// Only frames from this host.
    #[must_use]
    pub const fn from(mut self, host: HostId) -> Self {
        self.from = Some(host);
        self
    }

    /// Only frames to this host.
    #[must_use]
    pub const fn to(mut self, host: HostId) -> Self {
        self.to = Some(host);
        self
    }

    /// Only frames sent from `at` on and before `until`.
    #[must_use]
    pub const fn between(mut self, at: Instant, until: Instant) -> Self {
        self.at = at;
        self.until = until;
        self
    }
}

/// Names a fault of a world's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultId(pub(crate) usize);

/// A fault with its counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Armed {
    fault: Fault,
    seen: u64,
    hits: u64,
    pub(crate) over: bool,
}

impl Armed {
    pub(crate) const fn new(fault: Fault) -> Self {
        Self { fault, seen: 0, hits: 0, over: false }
    }

    pub(crate) const fn hits(&self) -> u64 {
        self.hits
    }

    /// What happens to this frame because of this fault. `chance` is asked last, so that a plan
    /// without chance draws nothing.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        from: HostId,
        to: HostId,
        payload: &[u8],
        chance: impl FnOnce(u32) -> bool,
    ) -> Option<Act> {
        let Fault { filter, .. } = self.fault;
        let concerns = !self.over
            && (self.fault.at..self.fault.until).contains(&now)
            && self.fault.from.is_none_or(|host| host == from)
            && self.fault.to.is_none_or(|host| host == to)
            && filter.matches(payload);
        if !concerns {
            return None;
        }
        self.seen += 1;
        let turn = self.seen > filter.after
            && (self.seen - filter.after - 1).is_multiple_of(filter.every.max(1))
            && filter.count.is_none_or(|count| self.hits < count);
        if !turn || (filter.chance < 1_000_000 && !chance(filter.chance)) {
            return None;
        }
        self.hits += 1;
        Some(self.fault.act)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = HostId(0);
    const B: HostId = HostId(1);

    fn frame(opcode: Opcode, psn: u8) -> Vec<u8> {
        vec![opcode.byte(), 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, psn, 0, 0, 0, 0]
    }

    fn hits(fault: Fault, frames: &[Vec<u8>]) -> Vec<usize> {
        let mut armed = Armed::new(fault);
        let judge = |(index, frame): (usize, &Vec<u8>)| {
            armed.judge(Instant(5), A, B, frame, |_| true).map(|_| index)
        };
        frames.iter().enumerate().filter_map(judge).collect()
    }

    #[test]
    fn after_every_and_count_pick_among_matching_frames() {
        let frames: Vec<_> = (0..10)
            .map(|n| {
                frame(if n % 2 == 0 { Opcode::RC_ACKNOWLEDGE } else { Opcode::RC_SEND_ONLY }, n)
            })
            .collect();
        let acks = Filter::of(Frames::Acks);
        assert_eq!(hits(Fault::new(Act::Drop, acks), &frames), [0, 2, 4, 6, 8]);
        let filter = Filter { after: 1, every: 2, count: Some(1), ..acks };
        assert_eq!(hits(Fault::new(Act::Drop, filter), &frames), [2]);
        let filter = Filter { every: 2, ..acks };
        assert_eq!(hits(Fault::new(Act::Drop, filter), &frames), [0, 4, 8]);
        let filter = Filter { psn: Some(Psn::new(3)), ..Filter::ALL };
        assert_eq!(hits(Fault::new(Act::Drop, filter), &frames), [3]);
        let filter = Filter { qp: Some(Qpn::new(0x12)), ..Filter::ALL };
        assert_eq!(hits(Fault::new(Act::Drop, filter), &frames), []);
        let pair = |other| Filter { pair: Some([Qpn::new(other), Qpn::new(0x13)]), ..filter };
        assert_eq!(hits(Fault::new(Act::Drop, pair(0x11)), &frames), []);
        assert_eq!(hits(Fault::new(Act::Drop, Filter { qp: None, ..pair(0x12) }), &frames), []);
        let ours = Filter { qp: None, psn: Some(Psn::new(3)), ..pair(0x11) };
        assert_eq!(hits(Fault::new(Act::Drop, ours), &frames), [3]);
        let sends = Filter::of(Frames::Operation(Operation::SendOnly));
        assert_eq!(hits(Fault::new(Act::Drop, sends).from(B), &frames), []);
        let late = Fault::new(Act::Drop, sends).between(Instant(6), Instant(9));
        assert_eq!(hits(late, &frames), []);
    }
}
