//! The kind `xor`: what the config may say about it, and what it does.

use pmd_graph::config::schema::{Key, Settings};
use pmd_graph::failure::Failure;
use pmd_graph::node::{Node, NodeContext, Record, Turn};
use pmd_graph::registry::{NodeFactory, Schema};
use pmd_graph::stream::{Block, Inlet, Outlet};

/// Bytes that are copied out, masked and copied back at a time.
const CHUNK: usize = 4096;

/// What the planner and the config know of it.
#[derive(Debug)]
pub(crate) struct Xor(Schema);

impl Xor {
    pub(crate) fn new() -> Self {
        let mask =
            Key::count("mask", 0..=255, "what every byte is combined with").default(0x5a_u64);
        let schema = Schema::new("xor", "masks the bytes of every block and passes it on");
        Self(schema.takes_input().gives_output().key(mask))
    }

    fn mask(settings: &Settings) -> u8 {
        // The schema holds it below 256.
        u8::try_from(settings.count("mask")).unwrap_or(u8::MAX)
    }
}

impl NodeFactory for Xor {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let (inlet, outlet) = (cx.inlet(), cx.outlet());
        outlet.announce(inlet.length());
        let chunk = vec![0; CHUNK].into_boxed_slice();
        Ok(Box::new(Masking { inlet, outlet, mask: Self::mask(cx.settings()), chunk }))
    }
}

/// A node at work.
struct Masking {
    inlet: Inlet,
    outlet: Outlet,
    mask: u8,
    /// Blocks lie in memory that devices read and write: their bytes are reached by copy.
    chunk: Box<[u8]>,
}

impl Masking {
    fn mask(&mut self, block: &mut Block) -> Result<(), Failure> {
        let mut at = 0;
        while at < block.len {
            let len = self.chunk.len().min((block.len - at) as usize);
            let chunk = &mut self.chunk[..len];
            block.buffer.read_at(at, chunk)?;
            chunk.iter_mut().for_each(|byte| *byte ^= self.mask);
            block.buffer.write_at(at, chunk)?;
            at = at.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        }
        block.crc32c = None;
        Ok(())
    }
}

impl Node for Masking {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = 0;
        while self.outlet.has_room()
            && let Some(mut block) = self.inlet.take()
        {
            self.mask(&mut block)?;
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
