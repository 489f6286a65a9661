//! Immediate data: 4 bytes that nobody interprets (IBTA 1.4, 9.3.6).

use super::Truncated;

/// Borrowed immediate data.
#[derive(Clone, Copy, Debug)]
pub struct ImmDtView<'a>(&'a [u8; ImmDt::LEN]);

impl<'a> ImmDtView<'a> {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Truncated> {
        bytes.first_chunk().map(Self).ok_or(Truncated)
    }

    /// The four bytes, in the order the sender gave them.
    pub const fn data(self) -> [u8; 4] {
        *self.0
    }
}

/// Immediate data: delivered in the order it was given, whatever order that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// What the bytes mean.
    pub const fn parse(view: ImmDtView<'_>) -> Self {
        Self(view.data())
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rc-send frame 15.
    const GOLDEN: [u8; 4] = [0x11, 0x22, 0x33, 0x44];

    #[test]
    fn golden_bytes_both_ways() {
        let imm = ImmDt([0x11, 0x22, 0x33, 0x44]);
        assert_eq!(ImmDt::parse(ImmDtView::new_checked(&GOLDEN).unwrap()), imm);
        let mut out = [0xaa; 4];
        imm.emit(&mut out);
        assert_eq!(out, GOLDEN);
        assert_eq!(ImmDtView::new_checked(&GOLDEN[..3]).unwrap_err(), Truncated);
    }
}
