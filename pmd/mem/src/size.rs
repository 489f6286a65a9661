use core::fmt;

/// Bytes, printed in the largest binary unit that divides them: `64 MiB`, `3 KiB`, `1000 B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_in_the_largest_exact_unit() {
        let printed = [0, 1000, 3 << 10, 64 << 20, 1 << 30, 5 << 40, (1 << 30) + (1 << 20)]
            .map(|n| Size(n).to_string());
        assert_eq!(printed, ["0 B", "1000 B", "3 KiB", "64 MiB", "1 GiB", "5 TiB", "1025 MiB"]);
    }
}
