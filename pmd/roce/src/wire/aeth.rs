//! ACK extended transport header: 4 bytes, a syndrome and the message sequence number (IBTA 1.4,
//! 9.3.5.1 and 9.7.5.2).

use core::time::Duration;

use super::{Truncated, be};

mod at {
    pub(super) const SYNDROME: usize = 0;
    pub(super) const MSN: usize = 1;
}

/// A borrowed AETH. Says what is there, valid or not.
#[derive(Clone, Copy, Debug)]
pub struct AethView<'a>(&'a [u8; Aeth::LEN]);

impl<'a> AethView<'a> {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Truncated> {
        bytes.first_chunk().map(Self).ok_or(Truncated)
    }

    /// Syndrome as it stands, which may be a reserved one.
    pub const fn syndrome_byte(self) -> u8 {
        self.0[at::SYNDROME]
    }

    /// Message sequence number.
    pub const fn msn(self) -> Msn {
        Msn::new(be::u24(self.0, at::MSN))
    }
}

/// An AETH that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// How many messages it has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// What the bytes mean; `None` for a reserved syndrome.
    pub fn parse(view: AethView<'_>) -> Option<Self> {
        Some(Self { syndrome: Syndrome::from_byte(view.syndrome_byte())?, msn: view.msn() })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[at::SYNDROME] = self.syndrome.byte();
        be::put_u24(out, at::MSN, self.msn.value());
    }
}

/// A message sequence number: requests completed since the connection began, modulo 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Msn(u32);

impl Msn {
    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `messages` later, modulo 2^24.
    #[must_use]
    pub const fn plus(self, messages: u32) -> Self {
        Self::new(self.0.wrapping_add(messages))
    }

    /// Signed distance from `earlier` to `self`, in -2^23 ..= 2^23 - 1.
    pub const fn since(self, earlier: Self) -> i32 {
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }
}

/// What a responder says about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// All is well.
    Ack {
        /// How many more messages the receive queue can take.
        credits: CreditCode,
    },
    /// No receive is posted: try again later.
    Rnr {
        /// Not before this time is over.
        timer: RnrTimer,
    },
    /// Refused.
    Nak(NakCode),
}

impl Syndrome {
    const RNR: u8 = 0b001_00000;
    const NAK: u8 = 0b011_00000;
    const VALUE: u8 = 0b000_11111;

    /// An acknowledgement that says nothing about credits.
    pub const ACK: Self = Self::Ack { credits: CreditCode::NONE };

    /// The syndrome of a byte; `None` for reserved ones.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        let value = byte & Self::VALUE;
        match byte & !Self::VALUE {
            0 => Some(Self::Ack { credits: CreditCode(value) }),
            Self::RNR => Some(Self::Rnr { timer: RnrTimer(value) }),
            Self::NAK => match NakCode::from_value(value) {
                Some(code) => Some(Self::Nak(code)),
                None => None,
            },
            _ => None,
        }
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits.0,
            Self::Rnr { timer } => Self::RNR | timer.0,
            Self::Nak(code) => Self::NAK | code as u8,
        }
    }
}

/// Why a responder refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: send again from this PSN.
    PsnSequenceError = 0,
    /// The operation is not enabled, or breaks a rule of the transport.
    InvalidRequest = 1,
    /// Key, rights or bounds of the remote memory forbid it.
    RemoteAccessError = 2,
    /// The responder met a fault of its own.
    RemoteOperationalError = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

impl NakCode {
    const fn from_value(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            _ => return None,
        })
    }
}

/// End-to-end flow control credits, coded in five bits (IBTA 1.4, table 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditCode(u8);

impl CreditCode {
    /// The responder does not count credits.
    pub const NONE: Self = Self(31);

    /// Receives by code.
    const RECEIVES: [u16; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];

    /// The largest code that does not promise more than `receives`.
    pub fn for_receives(receives: u32) -> Self {
        let codes = Self::RECEIVES.partition_point(|promised| u32::from(*promised) <= receives);
        #[expect(clippy::cast_possible_truncation, reason = "at most 31 codes, at least code 0")]
        Self((codes - 1) as u8)
    }

    /// How many messages beyond the MSN may be sent; `None` when the responder does not count.
    pub fn receives(self) -> Option<u16> {
        Self::RECEIVES.get(usize::from(self.0)).copied()
    }
}

/// How long a requester waits after an RNR NAK, coded in five bits (IBTA 1.4, table 45). Code 0 is
/// the longest time, and what rdma_cm sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Time by code, in units of 10 µs.
    const TENS_OF_MICROS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// The timer with this code; `None` above 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time, 10 µs to 655.36 ms.
    pub fn duration(self) -> Duration {
        Duration::from_micros(10 * u64::from(Self::TENS_OF_MICROS[usize::from(self.0)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nak(code: NakCode, msn: u32) -> Aeth {
        Aeth { syndrome: Syndrome::Nak(code), msn: Msn::new(msn) }
    }

    /// S1-28: syndrome and MSN, as found in drop-ack 11, nak-rnr-exhausted 7, drop-write 23,
    /// nak-invalid-request 7 and nak-access-bounds 7.
    #[test]
    fn s1_28_golden_bytes_both_ways() {
        let rnr = Syndrome::Rnr { timer: RnrTimer::new(20).unwrap() };
        for (bytes, aeth) in [
            ([0x1f, 0, 0, 1], Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) }),
            ([0x34, 0, 0, 0], Aeth { syndrome: rnr, msn: Msn::new(0) }),
            ([0x60, 0, 0, 2], nak(NakCode::PsnSequenceError, 2)),
            ([0x61, 0, 0, 0], nak(NakCode::InvalidRequest, 0)),
            ([0x62, 0, 0, 0], nak(NakCode::RemoteAccessError, 0)),
        ] {
            assert_eq!(Aeth::parse(AethView::new_checked(&bytes).unwrap()), Some(aeth));
            let mut out = [0xaa; 4];
            aeth.emit(&mut out);
            assert_eq!(out, bytes);
        }
        assert_eq!(AethView::new_checked(&[0x1f, 0, 0]).unwrap_err(), Truncated);
    }

    #[test]
    fn every_syndrome_byte_is_understood_or_reserved() {
        for byte in 0..=255 {
            match Syndrome::from_byte(byte) {
                Some(syndrome) => assert_eq!(syndrome.byte(), byte),
                None => assert!(matches!(byte, 0x40..=0x5f | 0x65..=0xff), "{byte:#04x}"),
            }
        }
        assert_eq!(Syndrome::from_byte(0x63), Some(Syndrome::Nak(NakCode::RemoteOperationalError)));
    }

    /// S0-15: what a responder's code means to the requester.
    #[test]
    fn s0_15_rnr_timer_codes() {
        let micros = |code| RnrTimer::new(code).unwrap().duration().as_micros();
        let expected = [
            655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560,
            3840, 5120, 7680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880,
            163_840, 245_760, 327_680, 491_520,
        ];
        assert!((0..32).map(micros).eq(expected));
        assert_eq!(RnrTimer::new(32), None);
    }

    #[test]
    fn credit_codes_never_promise_too_much() {
        for (receives, code, promised) in
            [(0, 0, 0), (4, 4, 4), (5, 4, 4), (6, 5, 6), (100, 13, 96), (1 << 20, 30, 32768)]
        {
            let credits = CreditCode::for_receives(receives);
            assert_eq!(Syndrome::Ack { credits }.byte(), code);
            assert_eq!(credits.receives(), Some(promised));
        }
        assert_eq!(CreditCode::NONE.receives(), None);
    }

    #[test]
    fn msn_counts_modulo_2_24() {
        assert_eq!(Msn::new(0xff_ffff).plus(2), Msn::new(1));
        assert_eq!(Msn::new(1).since(Msn::new(0xff_ffff)), 2);
        assert_eq!(Msn::new(0xff_ffff).since(Msn::new(1)), -2);
    }
}
