//! A running hash over bytes: equal runs have equal hashes, one altered bit gives another.

/// A hash so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    /// Of nothing.
    pub(crate) const fn new() -> Self {
        Self(0x9e6c_63d0_676a_9a99)
    }

    fn word(&mut self, word: u64) {
        // Each step can be undone, so that two runs meet again only by a rare chance.
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    /// Appends bytes and their count.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    /// The number.
    pub(crate) const fn value(self) -> u64 {
        self.0
    }

    /// Of these bytes alone.
    pub(crate) fn of(bytes: &[u8]) -> u64 {
        let mut digest = Self::new();
        digest.bytes(bytes);
        digest.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_another_order_or_another_length_gives_another_hash() {
        let long: Vec<u8> = (0..41).collect();
        for at in 0..long.len() * 8 {
            let mut other = long.clone();
            other[at / 8] ^= 1 << (at % 8);
            assert_ne!(Digest::of(&long), Digest::of(&other));
        }
        assert_ne!(Digest::of(&[0; 8]), Digest::of(&[0; 7]));
        let (mut ab, mut ba) = (Digest::new(), Digest::new());
        ab.bytes(b"a");
        ab.bytes(b"b");
        ba.bytes(b"b");
        ba.bytes(b"a");
        assert_ne!(ab, ba);
    }
}
