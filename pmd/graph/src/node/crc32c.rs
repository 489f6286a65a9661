//! `crc32c`: computes the checksum of every block and passes it on.

use super::{Node, NodeContext, Record, Turn};
use crate::failure::Failure;
use crate::stream::{Inlet, Outlet};

pub(crate) struct Crc32c {
    inlet: Inlet,
    outlet: Outlet,
}

impl Crc32c {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Box<dyn Node> {
        let (inlet, outlet) = (cx.inlet(), cx.outlet());
        outlet.announce(inlet.length());
        Box::new(Self { inlet, outlet })
    }
}

impl Node for Crc32c {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = 0;
        while self.outlet.has_room()
            && let Some(mut block) = self.inlet.take()
        {
            let (extent, start) = block.buffer.place();
            block.crc32c = Some(extent.crc32c(start, u64::from(block.len))?);
            record.message(now, u64::from(block.len));
            // There was room for it.
            drop(self.outlet.give(block));
            work += 1;
        }
        let done = self.inlet.is_drained() || self.outlet.is_abandoned();
        Ok(if done { Turn::Done } else { Turn::Worked(work) })
    }

    fn stop(&mut self) {
        // Its source stops; what is on the way passes through.
    }
}
