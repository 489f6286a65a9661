//! Datagram extended transport header: 8 bytes, Q_Key and source (IBTA 1.4, 9.3.2).

use super::{Truncated, be};
use crate::ids::Qpn;

mod at {
    pub(super) const QKEY: usize = 0;
    pub(super) const SRC_QP: usize = 5;
}

/// A borrowed DETH.
#[derive(Clone, Copy, Debug)]
pub struct DethView<'a>(&'a [u8; Deth::LEN]);

impl<'a> DethView<'a> {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Truncated> {
        bytes.first_chunk().map(Self).ok_or(Truncated)
    }

    /// Q_Key.
    pub const fn qkey(self) -> u32 {
        be::u32(self.0, at::QKEY)
    }

    /// Sending queue pair.
    pub const fn src_qp(self) -> Qpn {
        Qpn::new(be::u24(self.0, at::SRC_QP))
    }
}

/// A DETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Must equal the receiver's, or the datagram is dropped.
    pub qkey: u32,
    /// Sending queue pair.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// What the bytes mean.
    pub const fn parse(view: DethView<'_>) -> Self {
        Self { qkey: view.qkey(), src_qp: view.src_qp() }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = [0; Self::LEN];
        be::put_u32(out, at::QKEY, self.qkey);
        be::put_u24(out, at::SRC_QP, self.src_qp.value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cm-reject frame 3: from the general services interface.
    const GOLDEN: [u8; 8] = [0x80, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01];

    /// S1-40: Q_Key, a reserved byte, and the source queue pair.
    #[test]
    fn s1_40_golden_bytes_both_ways() {
        let deth = Deth { qkey: 0x8001_0000, src_qp: Qpn::GSI };
        assert_eq!(Deth::parse(DethView::new_checked(&GOLDEN).unwrap()), deth);
        let mut out = [0xaa; 8];
        deth.emit(&mut out);
        assert_eq!(out, GOLDEN);
        assert_eq!(DethView::new_checked(&GOLDEN[..7]).unwrap_err(), Truncated);
    }
}
