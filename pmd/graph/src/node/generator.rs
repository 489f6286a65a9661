//! `generator`: makes blocks of a seeded pattern.

use super::pattern::Pattern;
use super::{Node, NodeContext, Record, Turn};
use crate::failure::Failure;
use crate::limits::SOURCE_BURST;
use crate::stream::{Block, Buffers, Outlet};

pub(crate) struct Generator {
    pattern: Pattern,
    /// Blocks made so far, and in all.
    made: u64,
    count: u64,
    /// Nanoseconds from one block to the next, where there is a rate.
    interval_ns: Option<u64>,
    /// When the first block was made.
    began: Option<u64>,
    buffers: Buffers,
    outlet: Option<Outlet>,
}

impl Generator {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let settings = cx.settings();
        let block = settings.size("block").get();
        let count = settings.count("count");
        let outlet = cx.outlet();
        outlet.announce(count.checked_mul(block));
        cx.expect(count.saturating_mul(block));
        Ok(Box::new(Self {
            pattern: Pattern { seed: settings.count("seed") },
            made: 0,
            count,
            interval_ns: settings.count_opt("rate").map(|rate| 1_000_000_000 / rate),
            began: None,
            buffers: cx.buffers("blocks", block)?,
            outlet: Some(outlet),
        }))
    }

    /// When the next block is due; at once, where there is no rate.
    fn due(&self) -> u64 {
        let Some((interval, began)) = self.interval_ns.zip(self.began) else { return 0 };
        began.saturating_add(interval.saturating_mul(self.made))
    }
}

impl Node for Generator {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        self.began.get_or_insert(now);
        let mut work = 0;
        while work < SOURCE_BURST {
            let more = self.made < self.count;
            let Some(outlet) = self.outlet.as_ref().filter(|outlet| more && !outlet.is_abandoned())
            else {
                self.outlet = None;
                return Ok(Turn::Done);
            };
            if now < self.due() || !outlet.has_room() {
                break;
            }
            let Some(buffer) = self.buffers.take() else { break };
            let len = self.buffers.size();
            let offset = self.made.wrapping_mul(u64::from(len));
            let block = Block { buffer, len, offset, crc32c: None };
            self.pattern.write(&block)?;
            record.message(now, u64::from(len));
            // There was room for it.
            drop(outlet.give(block));
            self.made += 1;
            work += 1;
        }
        Ok(Turn::Worked(work))
    }

    fn stop(&mut self) {
        self.outlet = None;
    }

    fn next_timeout(&self) -> Option<u64> {
        self.interval_ns.map(|_| self.due())
    }
}
