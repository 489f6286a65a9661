//! The pattern that `generator` makes and `sink` expects.

use pmd_mem::AccessError;

use crate::limits::{COPY_CHUNK, COPY_CHUNK_LEN};
use crate::stream::Block;

/// Bytes of the pattern that come from one step.
const WORD: usize = 8;

/// A pattern without end, in which every byte follows from the seed and its place, and no two stretches look alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) seed: u64,
}

impl Pattern {
    /// The eight bytes that start at `8 * index`: the output function of SplitMix64 (Steele, Lea, Flood 2014).
    fn word(self, index: u64) -> [u8; WORD] {
        let mut z = self.seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    }

    /// The bytes that start at `offset`.
    pub(crate) fn fill(self, offset: u64, bytes: &mut [u8]) {
        let mut index = offset / WORD as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than a word")]
        let skip = (offset % WORD as u64) as usize;
        let (head, rest) = bytes.split_at_mut((WORD - skip).min(bytes.len()));
        head.copy_from_slice(&self.word(index)[skip..skip + head.len()]);
        for chunk in rest.chunks_mut(WORD) {
            index += 1;
            chunk.copy_from_slice(&self.word(index)[..chunk.len()]);
        }
    }

    /// Fills a block with the part of the pattern at its place.
    pub(crate) fn write(self, block: &Block) -> Result<(), AccessError> {
        let mut chunk = [0; COPY_CHUNK];
        let mut done = 0;
        while done < block.len {
            let part = &mut chunk[..COPY_CHUNK.min((block.len - done) as usize)];
            self.fill(block.offset + u64::from(done), part);
            block.buffer.write_at(done, part)?;
            done += COPY_CHUNK_LEN;
        }
        Ok(())
    }

    /// The first byte of a block that is not that of the pattern, as its place in the stream.
    pub(crate) fn mismatch(self, block: &Block) -> Result<Option<u64>, AccessError> {
        let (mut expected, mut found) = ([0; COPY_CHUNK], [0; COPY_CHUNK]);
        let mut done = 0;
        while done < block.len {
            let len = COPY_CHUNK.min((block.len - done) as usize);
            let start = block.offset + u64::from(done);
            self.fill(start, &mut expected[..len]);
            block.buffer.read_at(done, &mut found[..len])?;
            let mut pairs = expected[..len].iter().zip(&found[..len]);
            if let Some(at) = pairs.position(|(expected, found)| expected != found) {
                return Ok(Some(start + at as u64));
            }
            done += COPY_CHUNK_LEN;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_follows_from_its_place() {
        let pattern = Pattern { seed: 7 };
        let mut whole = [0; 100];
        pattern.fill(0, &mut whole);
        for start in 0..40 {
            for len in [0, 1, 7, 8, 9, 60] {
                let mut part = vec![0; len];
                pattern.fill(start as u64, &mut part);
                assert_eq!(part, whole[start..start + len], "{len} bytes from {start}");
            }
        }
    }

    #[test]
    fn seeds_and_places_differ() {
        let at = |seed, offset| {
            let mut bytes = [0; 16];
            Pattern { seed }.fill(offset, &mut bytes);
            bytes
        };
        assert_ne!(at(1, 0), at(2, 0));
        assert_ne!(at(1, 0), at(1, 16));
        // The first output of SplitMix64 from seed 0 is the word at index 1.
        assert_eq!(at(0, 8)[..8], 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
    }
}
