//! Partition keys.

/// A partition key: 15 bits that name the partition, and bit 15 for full membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pkey(pub u16);

impl Pkey {
    /// Full member of the default partition, the only key RoCE uses in practice.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether this is a full member; limited members cannot talk to each other.
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether a packet with key `other` may pass (IBTA 1.4, 10.9.3): the same partition, which is
    /// not 0, and at least one full member.
    pub const fn matches(self, other: Self) -> bool {
        let partition = self.0 & 0x7fff;
        partition != 0
            && partition == other.0 & 0x7fff
            && (self.is_full_member() || other.is_full_member())
    }
}

impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::Pkey;

    #[test]
    fn a_full_member_talks_to_every_member_of_its_partition() {
        let (full, limited) = (Pkey(0x8123), Pkey(0x0123));
        assert!(full.matches(full));
        assert!(full.matches(limited));
        assert!(limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(Pkey(0x8124)));
        assert!(!Pkey(0x8000).matches(Pkey(0x8000)));
    }
}
