//! What to do to which frames.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::random::Random;
use crate::wire::Flow;

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is lost.
    Drop,
    /// It arrives later; frames behind it may pass it.
    Delay {
        /// How much later, in nanoseconds.
        ns: u64,
    },
    /// It arrives twice.
    Duplicate,
    /// It changes places with the next frame.
    Reorder,
    /// One bit, covered by the ICRC, is inverted.
    Corrupt,
    /// It is lost, as everything is between the two sides: [`Match::from`] and [`Match::to`] are
    /// taken in either order, and opcodes and sequence numbers are of no account.
    Partition,
}

/// Which way frames go, seen from the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Sent.
    Tx,
    /// Received.
    Rx,
    /// Either.
    #[default]
    Both,
}

/// A set of BTH opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeSet([u64; 4]);

impl OpcodeSet {
    /// Every opcode, and frames too short to have one.
    pub const ALL: Self = Self([u64::MAX; 4]);
    /// None.
    pub const NONE: Self = Self([0; 4]);

    /// Whether `opcode` is in the set.
    pub const fn contains(&self, opcode: u8) -> bool {
        self.0[opcode as usize / 64] & 1 << (opcode % 64) != 0
    }

    /// The set with `opcode` in it.
    #[must_use]
    pub const fn with(mut self, opcode: u8) -> Self {
        self.0[opcode as usize / 64] |= 1 << (opcode % 64);
        self
    }
}

impl FromIterator<u8> for OpcodeSet {
    fn from_iter<I: IntoIterator<Item = u8>>(opcodes: I) -> Self {
        opcodes.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Destination queue pairs: those whose number agrees with `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnMatch {
    /// The number.
    pub value: u32,
    /// The bits that count: `0xff_ffff` for one queue pair, fewer for all of an lcore.
    pub mask: u32,
}

/// Which frames a rule is about. The default is all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Direction.
    pub direction: Direction,
    /// BTH opcode.
    pub opcodes: OpcodeSet,
    /// BTH sequence number.
    pub psn: Option<u32>,
    /// BTH destination queue pair.
    pub qpn: Option<QpnMatch>,
    /// Source address.
    pub from: Option<IpAddr>,
    /// Destination address.
    pub to: Option<IpAddr>,
    /// Of the two times that a frame of this address passes wires of this process, only the first
    /// counts: received frames from here were looked at when they were sent.
    pub own: Option<IpAddr>,
    /// So many matching frames pass first.
    pub after: u64,
    /// Then every so manyth is hit; 0 and 1 are every one.
    pub every: u64,
    /// Until so many were hit; 0 is without end.
    pub count: u64,
    /// And so long after the first of them passed, in nanoseconds; 0 is without end.
    pub lasts_ns: u64,
    /// Of those, so many in a million, by chance.
    pub per_million: u32,
}

impl Default for Match {
    fn default() -> Self {
        Self {
            direction: Direction::Both,
            opcodes: OpcodeSet::ALL,
            psn: None,
            qpn: None,
            from: None,
            to: None,
            own: None,
            after: 0,
            every: 1,
            count: 0,
            lasts_ns: 0,
            per_million: MILLION,
        }
    }
}

const MILLION: u32 = 1_000_000;

/// One line of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What to do.
    pub action: Action,
    /// To which frames.
    pub matching: Match,
}

impl Rule {
    fn matches(&self, direction: Direction, flow: &Flow, payload: &[u8]) -> bool {
        let Match { opcodes, psn, qpn, from, to, .. } = &self.matching;
        let is = |wanted: &Option<IpAddr>, address| wanted.is_none_or(|w| w == address);
        let there = is(from, flow.src) && is(to, flow.dst);
        let seen_before = direction == Direction::Rx && self.matching.own == Some(flow.src);
        if seen_before || !self.concerns(direction) {
            return false;
        }
        if self.action == Action::Partition {
            return there || is(from, flow.dst) && is(to, flow.src);
        }
        let header = Bth::read(payload);
        let header_matches = match header {
            Some(bth) => {
                opcodes.contains(bth.opcode)
                    && psn.is_none_or(|psn| psn == bth.psn)
                    && qpn.is_none_or(|q| (q.value ^ bth.destination) & q.mask == 0)
            }
            None => *opcodes == OpcodeSet::ALL && psn.is_none() && qpn.is_none(),
        };
        there && header_matches
    }

    fn concerns(&self, direction: Direction) -> bool {
        self.matching.direction == Direction::Both || self.matching.direction == direction
    }
}

/// The fields of a base transport header that rules look at (IBTA 9.2).
struct Bth {
    opcode: u8,
    destination: u32,
    psn: u32,
}

impl Bth {
    fn read(payload: &[u8]) -> Option<Self> {
        let bytes = payload.first_chunk::<12>()?;
        let number = |at: usize| u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]]);
        Some(Self { opcode: bytes[0], destination: number(5), psn: number(9) })
    }
}

/// Rules, and how far each has come.
#[derive(Debug)]
pub(super) struct Plan(Box<[Armed]>);

#[derive(Debug)]
struct Armed {
    rule: Rule,
    /// Frames that matched.
    seen: u64,
    /// Frames acted on.
    hits: u64,
    /// Where these are counted for others to read, together with those of other wires.
    tally: Option<Arc<AtomicU64>>,
    /// When the first of them passed.
    since_ns: Option<u64>,
}

impl Plan {
    pub(super) fn new(rules: &[Rule]) -> Self {
        Self(
            rules
                .iter()
                .map(|rule| Armed {
                    rule: rule.clone(),
                    seen: 0,
                    hits: 0,
                    tally: None,
                    since_ns: None,
                })
                .collect(),
        )
    }

    /// Counts what each rule does in `tallies` too.
    pub(super) fn count_in(&mut self, tallies: impl IntoIterator<Item = Arc<AtomicU64>>) {
        for (armed, tally) in self.0.iter_mut().zip(tallies) {
            armed.tally = Some(tally);
        }
    }

    pub(super) fn hits(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|armed| armed.hits)
    }

    /// Whether any rule looks at frames of this direction.
    pub(super) fn concerns(&self, direction: Direction) -> bool {
        self.0.iter().any(|armed| armed.rule.concerns(direction))
    }

    /// Shows a frame to every rule, so that each counts it; returns what the first that acts does.
    pub(super) fn choose(
        &mut self,
        now_ns: u64,
        direction: Direction,
        flow: &Flow,
        payload: &[u8],
        random: &mut Random,
    ) -> Option<Action> {
        let mut chosen = None;
        for armed in &mut self.0 {
            if armed.rule.matches(direction, flow, payload) {
                armed.seen += 1;
                if chosen.is_none() && armed.is_due(now_ns, random) {
                    armed.hits += 1;
                    if let Some(tally) = &armed.tally {
                        tally.fetch_add(1, Ordering::Relaxed);
                    }
                    chosen = Some(armed.rule.action);
                }
            }
        }
        chosen
    }
}

impl Armed {
    fn is_due(&mut self, now_ns: u64, random: &mut Random) -> bool {
        let Match { after, every, count, lasts_ns, per_million, .. } = self.rule.matching;
        let past = self.seen.saturating_sub(after);
        if past > 0 {
            self.since_ns.get_or_insert(now_ns);
        }
        let is_over = |since| lasts_ns > 0 && now_ns.saturating_sub(since) >= lasts_ns;
        past > 0
            && !self.since_ns.is_some_and(is_over)
            && past.is_multiple_of(every.max(1))
            && (count == 0 || self.hits < count)
            && (per_million >= MILLION || random.below(MILLION as usize) < per_million as usize)
    }
}
