//! A whole packet, BTH to pad, in one call each way.

use core::fmt;
use core::mem;

use super::aeth::AethView;
use super::atomic_ack_eth::AtomicAckEthView;
use super::atomic_eth::AtomicEthView;
use super::bth::BthView;
use super::deth::DethView;
use super::ieth::IethView;
use super::immdt::ImmDtView;
use super::reth::RethView;
use super::xrceth::XrcEthView;
use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, HeaderSet, Ieth, ImmDt, Reth, Truncated, XrcEth,
};
use crate::ids::PathMtu;

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident $name:literal;)*) => {
        /// Why a frame had no effect. Names are stable: counters and captures carry them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[$doc])* $variant,)*
        }

        impl DropReason {
            /// All reasons, in order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Stable name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Name of the counter: `drop_` and the reason.
            pub const fn counter_name(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!("drop_", $name),)*
                }
            }
        }
    };
}

drop_reasons! {
    /// Ends before its headers do.
    Truncated "truncated";
    /// Not a multiple of four bytes, or more pad than payload.
    BadLength "bad_length";
    /// A transport header version other than 0.
    BadTver "bad_tver";
    /// Reliable datagram, or a class that nobody defined.
    UnknownTransport "unknown_transport";
    /// An operation that its transport lacks.
    UnknownOpcode "unknown_opcode";
    /// A reserved AETH syndrome.
    BadSyndrome "bad_syndrome";
    /// The invariant CRC does not match.
    Icrc "icrc";
    /// The partition key does not match the queue pair's.
    BadPkey "bad_pkey";
    /// No such queue pair.
    UnknownQp "unknown_qp";
    /// The queue pair is of another transport.
    WrongTransport "wrong_transport";
    /// Addresses differ from the connection's.
    WrongAddress "wrong_address";
    /// The queue pair does not receive in its state.
    QpState "qp_state";
    /// The Q_Key does not match the queue pair's.
    BadQkey "bad_qkey";
    /// No receive is posted, and the transport has no way to say so.
    NoReceive "no_receive";
    /// The posted receive is too small, and the transport has no way to say so.
    ReceiveTooSmall "receive_too_small";
    /// Later than the packet that is expected next.
    OutOfOrder "out_of_order";
    /// Seen before, and no answer is due.
    Duplicate "duplicate";
    /// Answers nothing that is outstanding.
    StaleResponse "stale_response";
    /// Breaks a rule, and the transport has no way to say so.
    InvalidRequest "invalid_request";
    /// The port is down.
    PortDown "port_down";
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Truncated> for DropReason {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// The headers of a packet: a BTH, and the extended headers that its opcode asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// XRC requests.
    pub xrceth: Option<XrcEth>,
    /// Datagrams.
    pub deth: Option<Deth>,
    /// WRITE FIRST and ONLY, READ REQUEST.
    pub reth: Option<Reth>,
    /// Atomic requests.
    pub atomic_eth: Option<AtomicEth>,
    /// Responses, but for READ RESPONSE MIDDLE.
    pub aeth: Option<Aeth>,
    /// Atomic responses.
    pub atomic_ack_eth: Option<AtomicAckEth>,
    /// LAST and ONLY with immediate.
    pub immdt: Option<ImmDt>,
    /// LAST and ONLY with invalidate.
    pub ieth: Option<Ieth>,
}

impl Headers {
    /// No extended header yet.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            xrceth: None,
            deth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            immdt: None,
            ieth: None,
        }
    }

    /// Which extended headers are present.
    pub fn present(&self) -> HeaderSet {
        let bit = |is_present, bit| if is_present { bit } else { HeaderSet::empty() };
        bit(self.xrceth.is_some(), HeaderSet::XRCETH)
            | bit(self.deth.is_some(), HeaderSet::DETH)
            | bit(self.reth.is_some(), HeaderSet::RETH)
            | bit(self.atomic_eth.is_some(), HeaderSet::ATOMIC_ETH)
            | bit(self.aeth.is_some(), HeaderSet::AETH)
            | bit(self.atomic_ack_eth.is_some(), HeaderSet::ATOMIC_ACK_ETH)
            | bit(self.immdt.is_some(), HeaderSet::IMMDT)
            | bit(self.ieth.is_some(), HeaderSet::IETH)
    }

    /// Bytes of the packet with so much payload: headers, payload and pad, no ICRC.
    pub fn buffer_len(&self, payload_len: usize) -> usize {
        Bth::LEN + self.bth.opcode.headers_len() + payload_len.next_multiple_of(4)
    }

    /// Writes headers and pad at the start of `out`, and lends the place of the payload to be
    /// filled. Whatever follows the pad is left alone.
    ///
    /// # Panics
    /// When the extended headers are not the ones that the opcode asks for, or `out` is shorter
    /// than [`Headers::buffer_len`].
    pub fn emit<'out>(&self, payload_len: usize, out: &'out mut [u8]) -> &'out mut [u8] {
        let present = self.present();
        assert_eq!(present, self.bth.opcode.headers(), "headers of {}", self.bth.opcode);
        let pad = pad_of(payload_len);
        let mut rest = out;
        self.bth.emit(pad, claim(&mut rest));
        if !present.is_empty() {
            self.emit_extended(&mut rest);
        }
        let (payload, after) = rest.split_at_mut(payload_len);
        after[..pad.into()].fill(0);
        payload
    }

    fn parse_extended(&mut self, set: HeaderSet, rest: &mut &[u8]) -> Result<(), DropReason> {
        if set.contains(HeaderSet::XRCETH) {
            let view = XrcEthView::new_checked(split(rest, XrcEth::LEN)?)?;
            self.xrceth = Some(XrcEth::parse(view));
        }
        if set.contains(HeaderSet::DETH) {
            let view = DethView::new_checked(split(rest, Deth::LEN)?)?;
            self.deth = Some(Deth::parse(view));
        }
        if set.contains(HeaderSet::RETH) {
            let view = RethView::new_checked(split(rest, Reth::LEN)?)?;
            self.reth = Some(Reth::parse(view));
        }
        if set.contains(HeaderSet::ATOMIC_ETH) {
            let view = AtomicEthView::new_checked(split(rest, AtomicEth::LEN)?)?;
            self.atomic_eth = Some(AtomicEth::parse(view));
        }
        if set.contains(HeaderSet::AETH) {
            let view = AethView::new_checked(split(rest, Aeth::LEN)?)?;
            self.aeth = Some(Aeth::parse(view).ok_or(DropReason::BadSyndrome)?);
        }
        if set.contains(HeaderSet::ATOMIC_ACK_ETH) {
            let view = AtomicAckEthView::new_checked(split(rest, AtomicAckEth::LEN)?)?;
            self.atomic_ack_eth = Some(AtomicAckEth::parse(view));
        }
        if set.contains(HeaderSet::IMMDT) {
            let view = ImmDtView::new_checked(split(rest, ImmDt::LEN)?)?;
            self.immdt = Some(ImmDt::parse(view));
        }
        if set.contains(HeaderSet::IETH) {
            let view = IethView::new_checked(split(rest, Ieth::LEN)?)?;
            self.ieth = Some(Ieth::parse(view));
        }
        Ok(())
    }

    fn emit_extended(&self, rest: &mut &mut [u8]) {
        if let Some(xrceth) = &self.xrceth {
            xrceth.emit(claim(rest));
        }
        if let Some(deth) = &self.deth {
            deth.emit(claim(rest));
        }
        if let Some(reth) = &self.reth {
            reth.emit(claim(rest));
        }
        if let Some(atomic_eth) = &self.atomic_eth {
            atomic_eth.emit(claim(rest));
        }
        if let Some(aeth) = &self.aeth {
            aeth.emit(claim(rest));
        }
        if let Some(atomic_ack_eth) = &self.atomic_ack_eth {
            atomic_ack_eth.emit(claim(rest));
        }
        if let Some(immdt) = &self.immdt {
            immdt.emit(claim(rest));
        }
        if let Some(ieth) = &self.ieth {
            ieth.emit(claim(rest));
        }
    }
}

/// A packet as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its headers: exactly the extended ones that the opcode asks for.
    pub headers: Headers,
    /// Its payload, without pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet from its BTH to its pad, the ICRC left out. What only a queue pair can judge
    /// is not judged: keys, numbers, and [`Packet::obeys_payload_rule`].
    ///
    /// # Errors
    /// The reason to drop it. The BTH of an [`UnknownOpcode`](DropReason::UnknownOpcode), which a
    /// reliable connection refuses rather than drops, is still there for a [`BthView`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let mut rest = bytes;
        let bth_view = BthView::new_checked(split(&mut rest, Bth::LEN)?)?;
        let mut headers = Headers::new(Bth::parse(bth_view)?);
        let set = headers.bth.opcode.headers();
        if !set.is_empty() {
            headers.parse_extended(set, &mut rest)?;
        }
        if !rest.len().is_multiple_of(4) {
            return Err(DropReason::BadLength);
        }
        let payload_len =
            rest.len().checked_sub(bth_view.pad().into()).ok_or(DropReason::BadLength)?;
        Ok(Self { headers, payload: &rest[..payload_len] })
    }

    /// Whether the payload is as long as the opcode allows on a path of this MTU. A request that
    /// breaks the rule is invalid.
    pub fn obeys_payload_rule(&self, mtu: PathMtu) -> bool {
        let rule = self.headers.bth.opcode.operation().payload_rule();
        rule.admits(self.payload.len(), mtu.bytes())
    }

    /// Bytes of the packet, no ICRC.
    pub fn buffer_len(&self) -> usize {
        self.headers.buffer_len(self.payload.len())
    }

    /// Writes the packet at the start of `out`.
    ///
    /// # Panics
    /// As [`Headers::emit`].
    pub fn emit(&self, out: &mut [u8]) {
        self.headers.emit(self.payload.len(), out).copy_from_slice(self.payload);
    }
}

/// Bytes that make a payload a multiple of four.
const fn pad_of(payload_len: usize) -> u8 {
    payload_len.to_le_bytes()[0].wrapping_neg() & 3
}

/// Takes `len` bytes off the front of what is left to read.
fn split<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], Truncated> {
    let (head, tail) = rest.split_at_checked(len).ok_or(Truncated)?;
    *rest = tail;
    Ok(head)
}

/// Takes one header's bytes off the front of what is left to write.
fn claim<'out, const N: usize>(rest: &mut &'out mut [u8]) -> &'out mut [u8; N] {
    let (head, tail) = mem::take(rest).split_first_chunk_mut().expect("buffer_len() bytes");
    *rest = tail;
    head
}
