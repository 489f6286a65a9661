//! What the blocks carry: who they are, and a checksum over all of it.

use pmd_mem::AccessError;

use crate::extent::Extent;
use crate::node::pattern::Pattern;

/// Bytes that say which block it is: seed (8), number (8), generation (4), CRC-32C of everything else (4).
const HEAD: usize = 24;
/// Where the checksum lies.
const CRC: std::ops::Range<usize> = 20..24;

/// Makes and checks blocks of one size.
pub(super) struct Stamps {
    seed: u64,
    /// A block that is being made or looked at.
    block: Box<[u8]>,
}

impl Stamps {
    pub(super) fn new(seed: u64, block: u32) -> Self {
        Self { seed, block: vec![0; block as usize].into_boxed_slice() }
    }

    /// Puts block `number` of this generation at `at`.
    pub(super) fn write(
        &mut self,
        extent: &Extent,
        at: u64,
        number: u64,
        generation: u32,
    ) -> Result<(), AccessError> {
        fill(self.seed, number, generation, &mut self.block);
        extent.write_at(at, &self.block)
    }

    /// What is wrong with the block at `at`, which should be this one.
    pub(super) fn check(
        &mut self,
        extent: &Extent,
        at: u64,
        number: u64,
        generation: u32,
    ) -> Result<Option<String>, AccessError> {
        extent.read_at(at, &mut self.block)?;
        let head = head(self.seed, number, generation);
        if self.block[..CRC.start] == head && self.block[CRC] == crc(&self.block) {
            return Ok(None);
        }
        Ok(Some(self.difference(number, generation)))
    }

    /// Something differs: a block of ours that should not be here, or bytes that nobody wrote.
    fn difference(&self, number: u64, generation: u32) -> String {
        let found = &self.block;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| found[at + i]));
        let whole = found[CRC] == crc(found);
        if whole && word(0) == self.seed {
            let there = u32::from_le_bytes(std::array::from_fn(|i| found[16 + i]));
            return format!(
                "it is block {} of generation {there} instead of block {number} of generation {generation}",
                word(8)
            );
        }
        let mut expected = vec![0; found.len()];
        fill(self.seed, number, generation, &mut expected);
        let byte = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or(0);
        let offset = number * found.len() as u64 + byte as u64;
        let (written, read) = (expected[byte], found[byte]);
        format!("byte {offset} differs: {written:#04x} was written, {read:#04x} was read")
    }
}

fn head(seed: u64, number: u64, generation: u32) -> [u8; CRC.start] {
    let mut head = [0; CRC.start];
    head[..8].copy_from_slice(&seed.to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16..].copy_from_slice(&generation.to_le_bytes());
    head
}

fn fill(seed: u64, number: u64, generation: u32, block: &mut [u8]) {
    block[..CRC.start].copy_from_slice(&head(seed, number, generation));
    // No two blocks, nor two generations of one, have a stretch in common.
    let seed = seed ^ number.rotate_left(32) ^ u64::from(generation);
    Pattern { seed }.fill(0, &mut block[HEAD..]);
    let crc = crc(block);
    block[CRC].copy_from_slice(&crc);
}

fn crc(block: &[u8]) -> [u8; 4] {
    let crc = crc32c::crc32c(&block[..CRC.start]);
    crc32c::crc32c_append(crc, &block[CRC.end..]).to_le_bytes()
}

impl std::fmt::Debug for Stamps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stamps").field("seed", &self.seed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::region;

    const BLOCK: u64 = 4096;

    fn extent() -> Extent {
        Extent::new(region(4 * BLOCK), 0, 4 * BLOCK)
    }

    #[test]
    fn a_block_is_what_it_says() {
        let (extent, mut stamps) = (extent(), Stamps::new(7, 4096));
        stamps.write(&extent, BLOCK, 12, 3).unwrap();
        assert_eq!(stamps.check(&extent, BLOCK, 12, 3), Ok(None));
        let wrong = stamps.check(&extent, BLOCK, 12, 4).unwrap().unwrap();
        assert_eq!(wrong, "it is block 12 of generation 3 instead of block 12 of generation 4");
        let wrong = stamps.check(&extent, BLOCK, 13, 3).unwrap().unwrap();
        assert_eq!(wrong, "it is block 12 of generation 3 instead of block 13 of generation 3");
    }

    #[test]
    fn every_byte_counts() {
        let (extent, mut stamps) = (extent(), Stamps::new(7, 4096));
        stamps.write(&extent, 0, 2, 1).unwrap();
        for at in [0, 8, 16, 19, 20, 23, 24, 2000, 4095] {
            let mut byte = [0];
            extent.read_at(at, &mut byte).unwrap();
            extent.write_at(at, &[!byte[0]]).unwrap();
            let wrong = stamps.check(&extent, 0, 2, 1).unwrap().unwrap();
            let named = format!("byte {} differs: {:#04x} was written", 2 * BLOCK + at, byte[0]);
            assert!(wrong.starts_with(&named), "{wrong}");
            extent.write_at(at, &byte).unwrap();
            assert_eq!(stamps.check(&extent, 0, 2, 1), Ok(None));
        }
    }

    /// Halves of two blocks are no block, nor are those of two generations.
    #[test]
    fn torn_blocks_are_found() {
        let (extent, mut stamps) = (extent(), Stamps::new(1, 4096));
        for (number, generation) in [(5, 2), (6, 1)] {
            stamps.write(&extent, 0, 5, 1).unwrap();
            stamps.write(&extent, BLOCK, number, generation).unwrap();
            let mut half = [0; 2048];
            extent.read_at(BLOCK + 2048, &mut half).unwrap();
            extent.write_at(2048, &half).unwrap();
            let wrong = stamps.check(&extent, 0, 5, 1).unwrap().unwrap();
            assert!(wrong.starts_with("byte 22"), "{wrong}");
        }
    }
}
