//! What one lcore did in one step.

use pmd_observe::Histogram;
use serde::{Deserialize, Serialize};

/// Most messages and bytes that a peer is believed.
const TOLD_MAX: u64 = 1 << 48;
/// Most lcores of a peer.
const TOLD_LCORES: usize = 8;

/// What one lcore did in one step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Messages that this end sent, and that completed.
    pub(super) sent: u64,
    /// Messages that this end sent before it began to count.
    pub(super) warmed: u64,
    /// Messages that arrived here and completed.
    pub(super) received: u64,
    /// Bytes that were compared here.
    pub(super) verified: u64,
    /// Messages that were sent and given up.
    pub(super) lost: u64,
    /// When the first message was posted and the last one completed, in nanoseconds of this end.
    pub(super) started: u64,
    pub(super) ended: u64,
    /// The longest time between two turns.
    pub(super) gap: u64,
    /// Messages of each lcore, in either direction.
    pub(super) each: Vec<(u32, u64)>,
    /// Latencies.
    #[serde(skip)]
    pub(super) latency: Option<Box<Histogram>>,
}

impl Tally {
    /// Adds another lcore's.
    pub(super) fn add(&mut self, other: &Self) {
        let begun = |tally: &Self| tally.ended != 0;
        if begun(other) {
            self.started =
                if begun(self) { self.started.min(other.started) } else { other.started };
            self.ended = self.ended.max(other.ended);
        }
        self.each.extend(&other.each);
        self.each.sort_unstable();
        self.sent += other.sent;
        self.warmed += other.warmed;
        self.received += other.received;
        self.verified += other.verified;
        self.lost += other.lost;
        self.gap = self.gap.max(other.gap);
        match (&mut self.latency, &other.latency) {
            (Some(ours), Some(theirs)) => ours.merge(theirs),
            (ours @ None, Some(theirs)) => *ours = Some(theirs.clone()),
            (_, None) => {}
        }
    }

    /// The same, as a peer may tell it: numbers that sums of this end can take.
    #[must_use]
    pub(super) fn tamed(mut self) -> Self {
        for count in [
            &mut self.sent,
            &mut self.warmed,
            &mut self.received,
            &mut self.verified,
            &mut self.lost,
        ] {
            *count = (*count).min(TOLD_MAX);
        }
        self.each.truncate(TOLD_LCORES);
        self.each.iter_mut().for_each(|(_, count)| *count = (*count).min(TOLD_MAX));
        self
    }

    /// From the first message to the last completion, nanoseconds.
    pub(super) const fn elapsed(&self) -> u64 {
        self.ended.saturating_sub(self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lcores_add_up_and_overlap() {
        let mut all = Tally::default();
        all.add(&Tally { sent: 3, started: 100, ended: 300, ..Tally::default() });
        all.add(&Tally { sent: 4, started: 50, ended: 200, gap: 9, ..Tally::default() });
        all.add(&Tally { verified: 7, ..Tally::default() });
        assert_eq!((all.sent, all.verified, all.gap, all.elapsed()), (7, 7, 9, 250));
    }
}
