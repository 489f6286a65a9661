//! The trace: a hash over everything that happens, in order.

/// A running hash. Equal traces have equal hashes; one altered bit gives another hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    hash: u64,
}

impl Trace {
    /// An empty trace.
    pub const fn new(seed: u64) -> Self {
        Self { hash: seed ^ 0x51_7c_c1_b7_27_22_0a_95 }
    }

    /// Appends a number.
    pub fn word(&mut self, word: u64) {
        // Each step can be undone, so that two traces meet again only by a rare chance.
        let mixed = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
    }

    /// Appends bytes and their count.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }

    /// The hash so far.
    pub const fn hash(&self) -> u64 {
        self.hash
    }
}

impl core::fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_or_another_order_gives_another_hash() {
        let hash = |words: &[u64]| {
            let mut trace = Trace::new(1);
            words.iter().for_each(|word| trace.word(*word));
            trace.hash()
        };
        assert_eq!(hash(&[1, 2]), hash(&[1, 2]));
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        assert_ne!(hash(&[1, 2]), hash(&[1, 3]));
        let mut bytes = Trace::new(1);
        bytes.bytes(&[0; 8]);
        let mut fewer = Trace::new(1);
        fewer.bytes(&[0; 7]);
        assert_ne!(bytes, fewer);
    }
}
