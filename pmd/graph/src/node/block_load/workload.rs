//! Which block comes next, and what every block should hold.

/// What is done with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// Everything written before is made durable.
    Flush,
}

/// One request to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: Action,
    pub(super) number: u64,
    /// The generation that is written, or should be read.
    pub(super) generation: u32,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Writes every block once, so that there is something to verify.
    Fill,
    /// What was asked for, and is measured.
    Work,
    /// Reads every block once: what was written is there.
    Check,
    /// All is done.
    Over,
}

/// In which order blocks come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Sequential,
    Random,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) order: Order,
    /// Per cent of the requests that read.
    pub(super) reads: u64,
    /// Requests; `None`: until told to end.
    pub(super) count: Option<u64>,
    /// Writes after which a flush follows.
    pub(super) flush: Option<u64>,
    pub(super) verify: bool,
    pub(super) seed: u64,
}

/// Marks a block of which a request is in flight, beside its generation.
const BUSY: u32 = 1 << 31;

/// The blocks of a run and what is still to be done with them.
#[derive(Debug)]
pub(super) struct Workload {
    wish: Wish,
    blocks: u64,
    phase: Phase,
    /// Requests that are left in this phase.
    left: u64,
    /// The next block, where they come in order.
    next: u64,
    random: u64,
    unflushed: u64,
    wrote: bool,
    /// Generation of every block, with [`BUSY`]; empty where nothing is verified.
    held: Box<[u32]>,
}

impl Workload {
    /// For `blocks` of them, at least one. Where they are verified, there is a word of memory for each.
    pub(super) fn new(wish: Wish, blocks: u64) -> Self {
        let held = if wish.verify { usize::try_from(blocks).unwrap_or(0) } else { 0 };
        let mut workload = Self {
            wish,
            blocks,
            phase: Phase::Fill,
            left: blocks,
            next: 0,
            random: wish.seed,
            unflushed: 0,
            wrote: false,
            held: vec![0; held].into_boxed_slice(),
        };
        if !wish.verify {
            workload.advance();
        }
        workload
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether nothing is left to begin in this phase.
    pub(super) fn is_drained(&self) -> bool {
        self.left == 0
    }

    /// Begins nothing more in this phase.
    pub(super) fn end_phase(&mut self) {
        self.left = 0;
    }

    /// Goes on with the next phase; everything of this one has ended.
    pub(super) fn advance(&mut self) {
        (self.phase, self.left) = match self.phase {
            Phase::Fill => (Phase::Work, self.wish.count.unwrap_or(u64::MAX)),
            Phase::Work if self.wish.verify && self.wrote => (Phase::Check, self.blocks),
            Phase::Work | Phase::Check | Phase::Over => (Phase::Over, 0),
        };
        self.next = 0;
    }

    /// The next request; `None`: nothing is left in this phase, or every block near is in flight.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Step> {
        if self.left == 0 {
            return None;
        }
        if self.wish.flush.is_some_and(|flush| self.unflushed >= flush) {
            self.unflushed = 0;
            return Some(Step { action: Action::Flush, number: 0, generation: 0 });
        }
        let reads = self.reads();
        let action = match self.phase {
            Phase::Fill => Action::Write,
            Phase::Check => Action::Read,
            Phase::Work | Phase::Over if reads => Action::Read,
            Phase::Work | Phase::Over => Action::Write,
        };
        let number = self.choose();
        let number = self.free(number)?;
        self.left -= 1;
        self.next = (number + 1) % self.blocks;
        let mut generation = 0;
        if let Some(held) = self.held.get_mut(usize::try_from(number).unwrap_or(usize::MAX)) {
            // A generation that has used up its bits begins anew: no two in a row are alike.
            generation = (*held + u32::from(action == Action::Write)) & !BUSY;
            *held = generation | BUSY;
        }
        if action == Action::Write {
            self.unflushed += 1;
            self.wrote |= self.phase == Phase::Work;
        }
        Some(Step { action, number, generation })
    }

    /// A request has ended well.
    #[inline]
    pub(super) fn done(&mut self, step: &Step) {
        if step.action == Action::Flush {
            return;
        }
        if let Some(held) = self.held.get_mut(usize::try_from(step.number).unwrap_or(usize::MAX)) {
            *held &= !BUSY;
        }
    }

    fn choose(&mut self) -> u64 {
        if self.phase != Phase::Work || self.wish.order == Order::Sequential {
            return self.next;
        }
        let wide = u128::from(self.draw()) * u128::from(self.blocks);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// The block itself, or the next one of which nothing is in flight: bytes that change while they are read prove nothing.
    #[inline]
    fn free(&self, number: u64) -> Option<u64> {
        if self.held.is_empty() {
            return Some(number);
        }
        let mut at = number;
        loop {
            let held = self.held.get(usize::try_from(at).unwrap_or(usize::MAX))?;
            if held & BUSY == 0 {
                return Some(at);
            }
            // In a phase that passes once, the one in flight is not skipped but waited for.
            at = (at + 1) % self.blocks;
            if at == number || self.phase != Phase::Work {
                return None;
            }
        }
    }

    fn reads(&mut self) -> bool {
        match self.wish.reads {
            0 => false,
            100.. => true,
            percent => self.draw() % 100 < percent,
        }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISH: Wish = Wish {
        order: Order::Random,
        reads: 100,
        count: Some(1000),
        flush: None,
        verify: false,
        seed: 1,
    };

    fn drain(workload: &mut Workload) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(step) = workload.next() {
            workload.done(&step);
            steps.push(step);
        }
        assert!(workload.is_drained());
        steps
    }

    #[test]
    fn random_blocks_are_spread_and_the_seed_decides_which() {
        let numbers = |seed| {
            let steps = drain(&mut Workload::new(Wish { seed, ..WISH }, 16));
            steps.iter().map(|step| step.number).collect::<Vec<_>>()
        };
        let first = numbers(1);
        assert_eq!((first.len(), &numbers(1)), (1000, &first));
        assert_ne!(numbers(2), first);
        for number in 0..16 {
            let times = first.iter().filter(|drawn| **drawn == number).count();
            assert!((30..100).contains(&times), "{number} came {times} times");
        }
    }

    #[test]
    fn sequential_blocks_go_round() {
        let wish = Wish { order: Order::Sequential, count: Some(7), ..WISH };
        let steps = drain(&mut Workload::new(wish, 3));
        assert_eq!(steps.iter().map(|step| step.number).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn reads_are_a_share() {
        for (reads, range) in [(0, 0..=0), (30, 250..=350), (100, 1000..=1000)] {
            let steps = drain(&mut Workload::new(Wish { reads, ..WISH }, 64));
            let count = steps.iter().filter(|step| step.action == Action::Read).count();
            assert!(range.contains(&count), "{count} of 1000 read at {reads} %");
        }
    }

    #[test]
    fn flushes_follow_writes_and_do_not_count() {
        let wish = Wish { reads: 0, count: Some(6), flush: Some(2), ..WISH };
        let steps = drain(&mut Workload::new(wish, 64));
        use Action::{Flush, Write};
        let actions: Vec<Action> = steps.iter().map(|step| step.action).collect();
        assert_eq!(actions, [Write, Write, Flush, Write, Write, Flush, Write, Write]);
    }

    #[test]
    fn what_is_verified_is_filled_first_and_checked_at_the_end() {
        let wish = Wish { reads: 50, verify: true, count: Some(100), ..WISH };
        let mut workload = Workload::new(wish, 8);
        let mut held = [0; 8];
        for phase in [Phase::Fill, Phase::Work, Phase::Check] {
            assert_eq!(workload.phase(), phase);
            let steps = drain(&mut workload);
            assert_eq!(steps.len(), if phase == Phase::Work { 100 } else { 8 });
            for step in steps {
                let held = &mut held[usize::try_from(step.number).unwrap()];
                *held += u32::from(step.action == Action::Write);
                assert_eq!(step.generation, *held, "{step:?}");
            }
            workload.advance();
        }
        assert_eq!((workload.phase(), workload.next()), (Phase::Over, None));
        // Nothing was written that the work itself did not read.
        let mut reads = Workload::new(Wish { reads: 100, ..wish }, 8);
        for _ in [Phase::Fill, Phase::Work] {
            drain(&mut reads);
            reads.advance();
        }
        assert_eq!(reads.phase(), Phase::Over);
    }

    /// No two requests for one block are in flight at once.
    #[test]
    fn blocks_in_flight_are_left_alone() {
        let wish = Wish { reads: 50, verify: true, count: None, ..WISH };
        let mut workload = Workload::new(wish, 4);
        drain(&mut workload);
        workload.advance();
        let steps: Vec<Step> = std::iter::from_fn(|| workload.next()).collect();
        let mut numbers: Vec<u64> = steps.iter().map(|step| step.number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3]);
        workload.done(&steps[2]);
        assert_eq!(workload.next().map(|step| step.number), Some(steps[2].number));
        assert!(!workload.is_drained());
        workload.end_phase();
        assert_eq!((workload.is_drained(), workload.next()), (true, None));
    }
}
