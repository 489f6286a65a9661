//! Base transport header: 12 bytes, first in every packet (IBTA 1.4, 9.2).

use super::packet::DropReason;
use super::{Opcode, Pkey, TransportClass, Truncated, be};
use crate::ids::{Psn, Qpn};

mod at {
    pub(super) const OPCODE: usize = 0;
    pub(super) const FLAGS: usize = 1;
    pub(super) const PKEY: usize = 2;
    pub(super) const CONGESTION: usize = 4;
    pub(super) const DEST_QP: usize = 5;
    pub(super) const ACK_REQ: usize = 8;
    pub(super) const PSN: usize = 9;
}

mod bit {
    pub(super) const SOLICITED: u8 = 0x80;
    pub(super) const MIG_REQ: u8 = 0x40;
    pub(super) const PAD_SHIFT: u8 = 4;
    pub(super) const TVER: u8 = 0x0f;
    pub(super) const FECN: u8 = 0x80;
    pub(super) const BECN: u8 = 0x40;
    pub(super) const ACK_REQ: u8 = 0x80;
}

/// A borrowed BTH. Says what is there, valid or not.
#[derive(Clone, Copy, Debug)]
pub struct BthView<'a>(&'a [u8; Bth::LEN]);

impl<'a> BthView<'a> {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Truncated> {
        bytes.first_chunk().map(Self).ok_or(Truncated)
    }

    /// Opcode as it stands, which may be one that nobody defined.
    pub const fn opcode_byte(self) -> u8 {
        self.0[at::OPCODE]
    }

    /// SE: the receiver's completion shall raise a solicited event.
    pub const fn solicited(self) -> bool {
        self.0[at::FLAGS] & bit::SOLICITED != 0
    }

    /// M: the sender considers its path migrated.
    pub const fn mig_req(self) -> bool {
        self.0[at::FLAGS] & bit::MIG_REQ != 0
    }

    /// PadCnt: bytes after the payload that make it a multiple of four.
    pub const fn pad(self) -> u8 {
        self.0[at::FLAGS] >> bit::PAD_SHIFT & 3
    }

    /// TVer: transport header version; only 0 exists.
    pub const fn tver(self) -> u8 {
        self.0[at::FLAGS] & bit::TVER
    }

    /// P_Key.
    pub const fn pkey(self) -> Pkey {
        Pkey(be::u16(self.0, at::PKEY))
    }

    /// F: congestion met on the way here.
    pub const fn fecn(self) -> bool {
        self.0[at::CONGESTION] & bit::FECN != 0
    }

    /// B: congestion met on the way there.
    pub const fn becn(self) -> bool {
        self.0[at::CONGESTION] & bit::BECN != 0
    }

    /// Destination queue pair.
    pub const fn dest_qp(self) -> Qpn {
        Qpn::new(be::u24(self.0, at::DEST_QP))
    }

    /// A: the requester asks for an acknowledgement.
    pub const fn ack_req(self) -> bool {
        self.0[at::ACK_REQ] & bit::ACK_REQ != 0
    }

    /// Packet sequence number.
    pub const fn psn(self) -> Psn {
        Psn::new(be::u24(self.0, at::PSN))
    }
}

/// A BTH that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// SE: the receiver's completion shall raise a solicited event.
    pub solicited: bool,
    /// M: the sender considers its path migrated, which it is when no alternate path is in use.
    pub mig_req: bool,
    /// P_Key.
    pub pkey: Pkey,
    /// F: congestion met on the way here.
    pub fecn: bool,
    /// B: congestion met on the way there.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// A: the requester asks for an acknowledgement. Without meaning on UC and UD.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header of the default partition with no flag but MigReq, which a queue pair sends set
    /// until it uses an alternate path (IBTA 1.4, 17.2.8); some peers misbehave when it is clear.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// What the bytes mean.
    ///
    /// # Errors
    /// [`DropReason::BadTver`], [`DropReason::UnknownTransport`], [`DropReason::UnknownOpcode`].
    pub fn parse(view: BthView<'_>) -> Result<Self, DropReason> {
        if view.tver() != 0 {
            return Err(DropReason::BadTver);
        }
        let Some(opcode) = Opcode::new(view.opcode_byte()) else {
            return Err(match TransportClass::of(view.opcode_byte()) {
                None | Some(TransportClass::Rd) => DropReason::UnknownTransport,
                Some(_) => DropReason::UnknownOpcode,
            });
        };
        Ok(Self {
            opcode,
            solicited: view.solicited(),
            mig_req: view.mig_req(),
            pkey: view.pkey(),
            fecn: view.fecn(),
            becn: view.becn(),
            dest_qp: view.dest_qp(),
            ack_req: view.ack_req(),
            psn: view.psn(),
        })
    }

    /// Writes the header of a packet with `pad` bytes of padding, 0 to 3.
    pub fn emit(&self, pad: u8, out: &mut [u8; Self::LEN]) {
        let flag = |set, bit| if set { bit } else { 0 };
        out[at::OPCODE] = self.opcode.byte();
        out[at::FLAGS] = flag(self.solicited, bit::SOLICITED)
            | flag(self.mig_req, bit::MIG_REQ)
            | (pad & 3) << bit::PAD_SHIFT;
        be::put_u16(out, at::PKEY, self.pkey.0);
        out[at::CONGESTION] = flag(self.fecn, bit::FECN) | flag(self.becn, bit::BECN);
        be::put_u24(out, at::DEST_QP, self.dest_qp.value());
        out[at::ACK_REQ] = flag(self.ack_req, bit::ACK_REQ);
        be::put_u24(out, at::PSN, self.psn.value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rc-send frame 15: the last packet of a SEND with immediate.
    const GOLDEN: [u8; 12] =
        [0x03, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0x7c, 0x03, 0xc9];

    fn golden() -> Bth {
        Bth {
            mig_req: false,
            ack_req: true,
            ..Bth::new(Opcode::RC_SEND_LAST_IMM, Qpn::new(0x11), Psn::new(0x7c_03c9))
        }
    }

    #[test]
    fn golden_bytes_both_ways() {
        let view = BthView::new_checked(&GOLDEN).unwrap();
        assert_eq!(view.pad(), 0);
        assert_eq!(Bth::parse(view), Ok(golden()));
        let mut out = [0xaa; 12];
        golden().emit(0, &mut out);
        assert_eq!(out, GOLDEN);
    }

    /// S1-59: MigReq is bit 6 of byte 1 and set by default; every flag has its own bit.
    #[test]
    fn s1_59_flags_have_their_own_bits() {
        let plain = Bth { mig_req: false, ..Bth::new(Opcode::UC_SEND_ONLY, Qpn::GSI, Psn::new(0)) };
        for (header, byte, bits) in [
            (Bth { solicited: true, ..plain }, 1, 0x80),
            (Bth::new(Opcode::UC_SEND_ONLY, Qpn::GSI, Psn::new(0)), 1, 0x40),
            (Bth { fecn: true, ..plain }, 4, 0x80),
            (Bth { becn: true, ..plain }, 4, 0x40),
            (Bth { ack_req: true, ..plain }, 8, 0x80),
        ] {
            let (mut out, mut expected) = ([0; 12], [0; 12]);
            header.emit(0, &mut out);
            plain.emit(0, &mut expected);
            expected[byte] |= bits;
            assert_eq!(out, expected);
            assert_eq!(Bth::parse(BthView::new_checked(&out).unwrap()), Ok(header));
        }
        let mut out = [0; 12];
        plain.emit(3, &mut out);
        assert_eq!(out[1], 0x30);
        assert_eq!(BthView::new_checked(&out).unwrap().pad(), 3);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let parse_with = |at: usize, byte: u8| {
            let mut bytes = GOLDEN;
            bytes[at] = byte;
            Bth::parse(BthView::new_checked(&bytes).unwrap())
        };
        assert_eq!(parse_with(1, 0x01), Err(DropReason::BadTver));
        assert_eq!(parse_with(0, 0x15), Err(DropReason::UnknownOpcode));
        assert_eq!(parse_with(0, 0x2c), Err(DropReason::UnknownOpcode));
        assert_eq!(parse_with(0, 0x44), Err(DropReason::UnknownTransport));
        assert_eq!(parse_with(0, 0xe0), Err(DropReason::UnknownTransport));
        assert_eq!(BthView::new_checked(&GOLDEN[..11]).unwrap_err(), Truncated);
    }
}
