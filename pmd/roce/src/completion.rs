//! What comes back of a work request.

use core::fmt;

use bitflags::bitflags;

use crate::ids::{Qpn, Rkey, WrId};
use crate::work::{Imm, WcOpcode, WcStatus};

bitflags! {
    /// What there is in a completion; the first two and the last as in `enum ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    struct Flags: u8 {
        const GRH = 1;
        const WITH_IMM = 2;
        const SOLICITED = 4;
        const WITH_INV = 8;
    }
}

/// A work completion, as `struct ibv_wc`: half a cache line.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Completion {
    /// From the work request.
    pub wr_id: WrId,
    /// Bytes received or read; on UD with the 40 GRH bytes. Valid on success only, as whatever else
    /// is said of a message.
    pub byte_len: u32,
    /// Local queue pair; valid with every status.
    pub qpn: Qpn,
    /// Sending queue pair; UD only.
    pub src_qpn: Qpn,
    /// Immediate data, or the key that was invalidated: no message has both.
    operand: [u8; 4],
    /// Outcome.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    flags: Flags,
}

const _: () = assert!(size_of::<Completion>() == 32, "two of them share a cache line");

impl Completion {
    /// The success of a request that is not [named](Self::of) yet, with nothing special about it.
    #[inline(always)]
    pub const fn new(opcode: WcOpcode, byte_len: u32) -> Self {
        Self {
            wr_id: WrId(0),
            byte_len,
            qpn: Qpn::new(0),
            src_qpn: Qpn::new(0),
            operand: [0; 4],
            status: WcStatus::Success,
            opcode,
            flags: Flags::empty(),
        }
    }

    /// Says which request of which queue pair it is about.
    #[inline(always)]
    #[must_use]
    pub const fn of(mut self, wr_id: WrId, qpn: Qpn) -> Self {
        (self.wr_id, self.qpn) = (wr_id, qpn);
        self
    }

    /// Gives it an outcome. An error always is a solicited event.
    #[inline(always)]
    #[must_use]
    pub fn with_status(mut self, status: WcStatus) -> Self {
        self.status = status;
        if status != WcStatus::Success {
            self.flags |= Flags::SOLICITED;
        }
        self
    }

    /// The message carried immediate data, or not.
    #[inline(always)]
    #[must_use]
    pub fn with_imm(mut self, imm: Option<Imm>) -> Self {
        if let Some(Imm(bytes)) = imm {
            self.operand = bytes;
            self.flags |= Flags::WITH_IMM;
        }
        self
    }

    /// The message invalidated a key.
    #[must_use]
    pub fn with_invalidated(mut self, key: Rkey) -> Self {
        self.operand = key.0.to_ne_bytes();
        self.flags |= Flags::WITH_INV;
        self
    }

    /// The message is a datagram of this queue pair.
    #[must_use]
    pub fn with_grh(mut self, src_qpn: Qpn) -> Self {
        self.src_qpn = src_qpn;
        self.flags |= Flags::GRH;
        self
    }

    /// The sender asked for a solicited event, or not.
    #[inline(always)]
    #[must_use]
    pub fn with_solicited(mut self, solicited: bool) -> Self {
        if solicited {
            self.flags |= Flags::SOLICITED;
        }
        self
    }

    /// Immediate data, when the message carried it.
    #[inline]
    pub const fn imm(&self) -> Option<Imm> {
        if self.flags.contains(Flags::WITH_IMM) { Some(Imm(self.operand)) } else { None }
    }

    /// Key that the message invalidated.
    #[inline]
    pub const fn invalidated(&self) -> Option<Rkey> {
        let invalidates = self.flags.contains(Flags::WITH_INV);
        if invalidates { Some(Rkey(u32::from_ne_bytes(self.operand))) } else { None }
    }

    /// Whether the first 40 bytes of the buffer are a GRH area; UD only.
    #[inline]
    pub const fn grh(&self) -> bool {
        self.flags.contains(Flags::GRH)
    }

    /// Whether the sender asked for a solicited event, or the status is an error.
    #[inline]
    pub const fn solicited(&self) -> bool {
        self.flags.contains(Flags::SOLICITED)
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("wr_id", &self.wr_id)
            .field("status", &self.status)
            .field("opcode", &self.opcode)
            .field("qpn", &self.qpn)
            .field("byte_len", &self.byte_len)
            .field("imm", &self.imm())
            .field("invalidated", &self.invalidated())
            .field("src_qpn", &self.src_qpn)
            .field("grh", &self.grh())
            .field("solicited", &self.solicited())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that can be said is found again, and nothing else.
    #[test]
    fn what_is_said_is_found_again() {
        let plain = Completion::new(WcOpcode::Recv, 7).of(WrId(3), Qpn::new(5));
        assert_eq!((plain.wr_id, plain.qpn, plain.byte_len), (WrId(3), Qpn::new(5), 7));
        assert_eq!((plain.imm(), plain.invalidated()), (None, None));
        assert!(!plain.grh() && !plain.solicited());
        let imm = Some(Imm([0, 0, 0, 0]));
        assert_eq!(plain.with_imm(imm).imm(), imm);
        assert_eq!((plain.with_imm(None), plain.with_imm(imm).invalidated()), (plain, None));
        let key = Rkey(0x1234_5678);
        let invalidating = plain.with_invalidated(key);
        assert_eq!((invalidating.invalidated(), invalidating.imm()), (Some(key), None));
        let datagram = plain.with_grh(Qpn::new(9)).with_solicited(true);
        assert_eq!((datagram.src_qpn, datagram.grh()), (Qpn::new(9), true));
        assert!(datagram.solicited() && plain.with_solicited(false) == plain);
        assert!(plain.with_status(WcStatus::WrFlush).solicited());
        assert_eq!(plain.with_status(WcStatus::Success), plain);
    }
}
