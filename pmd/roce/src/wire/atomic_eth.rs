//! Atomic extended transport header: 28 bytes that ask for an atomic (IBTA 1.4, 9.3.4).

use super::{Truncated, be};
use crate::ids::Rkey;

mod at {
    pub(super) const VA: usize = 0;
    pub(super) const RKEY: usize = 8;
    pub(super) const SWAP_OR_ADD: usize = 12;
    pub(super) const COMPARE: usize = 20;
}

/// A borrowed AtomicETH.
#[derive(Clone, Copy, Debug)]
pub struct AtomicEthView<'a>(&'a [u8; AtomicEth::LEN]);

impl<'a> AtomicEthView<'a> {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Truncated> {
        bytes.first_chunk().map(Self).ok_or(Truncated)
    }

    /// Virtual address.
    pub const fn va(self) -> u64 {
        be::u64(self.0, at::VA)
    }

    /// Remote key.
    pub const fn rkey(self) -> Rkey {
        Rkey(be::u32(self.0, at::RKEY))
    }

    /// Value to store, or to add.
    pub const fn swap_or_add(self) -> u64 {
        be::u64(self.0, at::SWAP_OR_ADD)
    }

    /// Value expected by a compare and swap.
    pub const fn compare(self) -> u64 {
        be::u64(self.0, at::COMPARE)
    }
}

/// An AtomicETH. Numbers are numbers here and on the wire; in memory they have the host's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address of 8 bytes in the peer's memory.
    pub va: u64,
    /// Key that opens them.
    pub rkey: Rkey,
    /// Value to store when the comparison holds, or to add.
    pub swap_or_add: u64,
    /// Value expected by a compare and swap; 0 in a fetch and add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// What the bytes mean.
    pub const fn parse(view: AtomicEthView<'_>) -> Self {
        Self {
            va: view.va(),
            rkey: view.rkey(),
            swap_or_add: view.swap_or_add(),
            compare: view.compare(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        be::put_u64(out, at::VA, self.va);
        be::put_u32(out, at::RKEY, self.rkey.0);
        be::put_u64(out, at::SWAP_OR_ADD, self.swap_or_add);
        be::put_u64(out, at::COMPARE, self.compare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rc-atomic frame 8: compare with 1, swap to 2.
    const GOLDEN: [u8; 28] = [
        0x00, 0x00, 0x55, 0x87, 0xee, 0x05, 0x40, 0x40, 0x00, 0x00, 0x02, 0xed, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01,
    ];

    #[test]
    fn golden_bytes_both_ways() {
        let atomic =
            AtomicEth { va: 0x5587_ee05_4040, rkey: Rkey(0x2ed), swap_or_add: 2, compare: 1 };
        assert_eq!(AtomicEth::parse(AtomicEthView::new_checked(&GOLDEN).unwrap()), atomic);
        let mut out = [0xaa; 28];
        atomic.emit(&mut out);
        assert_eq!(out, GOLDEN);
        assert_eq!(AtomicEthView::new_checked(&GOLDEN[..27]).unwrap_err(), Truncated);
    }
}
