//! RDMA extended transport header: 16 bytes that say where in the peer's memory (IBTA 1.4, 9.3.3).

use super::{Truncated, be};
use crate::ids::Rkey;

mod at {
    pub(super) const VA: usize = 0;
    pub(super) const RKEY: usize = 8;
    pub(super) const LEN: usize = 12;
}

/// A borrowed RETH.
#[derive(Clone, Copy, Debug)]
pub struct RethView<'a>(&'a [u8; Reth::LEN]);

impl<'a> RethView<'a> {
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

    /// Bytes of the whole message.
    pub const fn dma_len(self) -> u32 {
        be::u32(self.0, at::LEN)
    }
}

/// A RETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address in the peer's memory.
    pub va: u64,
    /// Key that opens it.
    pub rkey: Rkey,
    /// Bytes of the whole message; of a resumed READ, those still missing.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// What the bytes mean.
    pub const fn parse(view: RethView<'_>) -> Self {
        Self { va: view.va(), rkey: view.rkey(), dma_len: view.dma_len() }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        be::put_u64(out, at::VA, self.va);
        be::put_u32(out, at::RKEY, self.rkey.0);
        be::put_u32(out, at::LEN, self.dma_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// drop-ack frame 12: READ of 5000 bytes.
    const GOLDEN: [u8; 16] = [
        0x00, 0x00, 0x55, 0xd9, 0x31, 0x9d, 0x40, 0x00, 0x00, 0x00, 0x02, 0xac, 0x00, 0x00, 0x13,
        0x88,
    ];

    #[test]
    fn golden_bytes_both_ways() {
        let reth = Reth { va: 0x55d9_319d_4000, rkey: Rkey(0x2ac), dma_len: 5000 };
        assert_eq!(Reth::parse(RethView::new_checked(&GOLDEN).unwrap()), reth);
        let mut out = [0xaa; 16];
        reth.emit(&mut out);
        assert_eq!(out, GOLDEN);
        assert_eq!(RethView::new_checked(&GOLDEN[..15]).unwrap_err(), Truncated);
    }
}
