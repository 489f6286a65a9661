//! XRC extended transport header: 4 bytes, the shared receive queue to deliver into (IBTA 1.4,
//! annex A14).

use super::{Truncated, be};
use crate::ids::Srqn;

mod at {
    pub(super) const SRQN: usize = 1;
}

/// A borrowed XRCETH.
#[derive(Clone, Copy, Debug)]
pub struct XrcEthView<'a>(&'a [u8; XrcEth::LEN]);

impl<'a> XrcEthView<'a> {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Truncated> {
        bytes.first_chunk().map(Self).ok_or(Truncated)
    }

    /// Shared receive queue at the receiver.
    pub const fn srqn(self) -> Srqn {
        Srqn(be::u24(self.0, at::SRQN))
    }
}

/// An XRCETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// Shared receive queue at the receiver, 24 bits.
    pub srqn: Srqn,
}

impl XrcEth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// What the bytes mean.
    pub const fn parse(view: XrcEthView<'_>) -> Self {
        Self { srqn: view.srqn() }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[0] = 0;
        be::put_u24(out, at::SRQN, self.srqn.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1-07: a reserved byte and the number. Soft-RoCE has no XRC, so no trace shows one.
    #[test]
    fn s1_07_bytes_both_ways() {
        let xrceth = XrcEth { srqn: Srqn(0x01_2345) };
        let mut out = [0xaa; 4];
        xrceth.emit(&mut out);
        assert_eq!(out, [0x00, 0x01, 0x23, 0x45]);
        assert_eq!(XrcEth::parse(XrcEthView::new_checked(&out).unwrap()), xrceth);
        // The reserved byte means nothing to a receiver.
        out[0] = 0xff;
        assert_eq!(XrcEth::parse(XrcEthView::new_checked(&out).unwrap()), xrceth);
        assert_eq!(XrcEthView::new_checked(&out[..3]).unwrap_err(), Truncated);
    }
}
