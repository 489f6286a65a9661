//! Invalidate extended transport header: 4 bytes, the key to invalidate (IBTA 1.4, 9.3.7).

use super::{Truncated, be};
use crate::ids::Rkey;

/// A borrowed IETH.
#[derive(Clone, Copy, Debug)]
pub struct IethView<'a>(&'a [u8; Ieth::LEN]);

impl<'a> IethView<'a> {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Truncated> {
        bytes.first_chunk().map(Self).ok_or(Truncated)
    }

    /// Key of the receiver to invalidate.
    pub const fn rkey(self) -> Rkey {
        Rkey(be::u32(self.0, 0))
    }
}

/// An IETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// Key of the receiver, invalid before the receive completes.
    pub rkey: Rkey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// What the bytes mean.
    pub const fn parse(view: IethView<'_>) -> Self {
        Self { rkey: view.rkey() }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        be::put_u32(out, 0, self.rkey.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// nvme-rdma frame 10: a response capsule that returns the key of its command.
    const GOLDEN: [u8; 4] = [0x00, 0x00, 0x03, 0xa7];

    #[test]
    fn golden_bytes_both_ways() {
        let ieth = Ieth { rkey: Rkey(0x3a7) };
        assert_eq!(Ieth::parse(IethView::new_checked(&GOLDEN).unwrap()), ieth);
        let mut out = [0xaa; 4];
        ieth.emit(&mut out);
        assert_eq!(out, GOLDEN);
        assert_eq!(IethView::new_checked(&GOLDEN[..3]).unwrap_err(), Truncated);
    }
}
