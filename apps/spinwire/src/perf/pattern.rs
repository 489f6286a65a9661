//! The bytes of messages: each follows from who sends it, in which message, at which place.

use pmd_mem::{AccessError, Segment};

use super::limits::CHUNK;

const WORD: usize = 8;

/// The bytes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern(u64);

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
const fn mix(seed: u64) -> u64 {
    let mut z = seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Pattern {
    /// The bytes that a side (0: the client) sends on its `qp`th queue pair of an lcore from a slot, in messages of `size`
    /// bytes.
    pub(super) const fn of(side: u8, lcore: u32, qp: u32, slot: u32, size: u32) -> Self {
        let place = (lcore as u64) << 56 | (side as u64) << 48 | (qp as u64) << 32 | slot as u64;
        Self(mix(mix(place.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(size as u64)))
    }

    /// Eight bytes from a place that is a multiple of eight.
    pub(super) const fn word(self, at: u64) -> u64 {
        mix(self.0.wrapping_add((at / WORD as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// The bytes from a place that is a multiple of eight.
    pub(super) fn fill(self, at: u64, bytes: &mut [u8]) {
        let mut at = at;
        for chunk in bytes.chunks_mut(WORD) {
            chunk.copy_from_slice(&self.word(at).to_le_bytes()[..chunk.len()]);
            at += WORD as u64;
        }
    }

    /// Writes a whole message.
    pub(super) fn write(self, memory: &Segment, offset: u64, size: u32) -> Result<(), AccessError> {
        self.chunks(size, |at, expected| {
            memory.write_at(offset + at, expected)?;
            Ok(None::<()>)
        })
        .map(|_| ())
    }

    /// The first byte that is not that of the pattern: its place, what is there, and what should be.
    pub(super) fn mismatch(
        self,
        memory: &Segment,
        offset: u64,
        size: u32,
    ) -> Result<Option<Mismatch>, AccessError> {
        self.chunks(size, |at, expected| {
            let Some(index) = memory.mismatch_at(offset + at, expected)? else { return Ok(None) };
            let mut got = [0];
            memory.read_at(offset + at + index as u64, &mut got)?;
            Ok(Some(Mismatch { at: at + index as u64, got: got[0], wanted: expected[index] }))
        })
    }

    fn chunks<T>(
        self,
        size: u32,
        mut each: impl FnMut(u64, &[u8]) -> Result<Option<T>, AccessError>,
    ) -> Result<Option<T>, AccessError> {
        let mut expected = [0; CHUNK];
        let mut at = 0;
        while at < u64::from(size) {
            #[expect(clippy::cast_possible_truncation, reason = "at most a chunk")]
            let len = (u64::from(size) - at).min(CHUNK as u64) as usize;
            self.fill(at, &mut expected[..len]);
            if let Some(found) = each(at, &expected[..len])? {
                return Ok(Some(found));
            }
            at += len as u64;
        }
        Ok(None)
    }
}

/// A byte that is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) at: u64,
    pub(super) got: u8,
    pub(super) wanted: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found_with_its_place_and_value() {
        let memory = Segment::private(32 << 10).unwrap();
        let pattern = Pattern::of(0, 0, 3, 7, 10_001);
        pattern.write(&memory, 64, 10_001).unwrap();
        assert_eq!(pattern.mismatch(&memory, 64, 10_001), Ok(None));
        let mut byte = [0];
        memory.read_at(64 + 9_000, &mut byte).unwrap();
        memory.write_at(64 + 9_000, &[byte[0] ^ 0x10]).unwrap();
        let wanted = byte[0];
        let found = Mismatch { at: 9_000, got: wanted ^ 0x10, wanted };
        assert_eq!(pattern.mismatch(&memory, 64, 10_001), Ok(Some(found)));
        let elsewhere = Pattern::of(0, 0, 3, 8, 10_001);
        assert_ne!(elsewhere.mismatch(&memory, 64, 10_001), Ok(None));
    }

    #[test]
    fn sides_lcores_queue_pairs_slots_sizes_and_places_differ() {
        let first = Pattern::of(0, 0, 0, 0, 64).word(0);
        let others = [
            Pattern::of(1, 0, 0, 0, 64),
            Pattern::of(0, 1, 0, 0, 64),
            Pattern::of(0, 0, 1, 0, 64),
            Pattern::of(0, 0, 0, 1, 64),
            Pattern::of(0, 0, 0, 0, 65),
        ];
        assert!(others.iter().all(|other| other.word(0) != first));
        assert_ne!(Pattern::of(0, 0, 0, 0, 64).word(8), first);
    }
}
