//! Atomic acknowledge extended transport header: 8 bytes, the value before (IBTA 1.4, 9.3.5).

use super::{Truncated, be};

/// A borrowed AtomicAckETH.
#[derive(Clone, Copy, Debug)]
pub struct AtomicAckEthView<'a>(&'a [u8; AtomicAckEth::LEN]);

impl<'a> AtomicAckEthView<'a> {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Truncated> {
        bytes.first_chunk().map(Self).ok_or(Truncated)
    }

    /// Value before the atomic.
    pub const fn original(self) -> u64 {
        be::u64(self.0, 0)
    }
}

/// An AtomicAckETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// Value that the 8 bytes had before the atomic.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// What the bytes mean.
    pub const fn parse(view: AtomicAckEthView<'_>) -> Self {
        Self { original: view.original() }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        be::put_u64(out, 0, self.original);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// perftest-atomic-lat frame 4.
    const GOLDEN: [u8; 8] = [0xbd, 0x94, 0x87, 0xdd, 0xc4, 0x52, 0x24, 0x83];

    #[test]
    fn golden_bytes_both_ways() {
        let ack = AtomicAckEth { original: 0xbd94_87dd_c452_2483 };
        assert_eq!(AtomicAckEth::parse(AtomicAckEthView::new_checked(&GOLDEN).unwrap()), ack);
        let mut out = [0xaa; 8];
        ack.emit(&mut out);
        assert_eq!(out, GOLDEN);
        assert_eq!(AtomicAckEthView::new_checked(&GOLDEN[..7]).unwrap_err(), Truncated);
    }
}
