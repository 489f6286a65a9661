//! Everything that an engine can be told.

use core::fmt;

use pmd_roce::engine::SrqInit;
use pmd_roce::event::AsyncEvent;
use pmd_roce::gsi::ManagementDatagram;
use pmd_roce::ids::{CqId, Gid, Instant, LinkId, Qpn, Srqn};
use pmd_roce::local::Record;
use pmd_roce::qp::attr::{AddressVector, QpAttr, QpInit};
use pmd_roce::qp::state::AttrMask;
use pmd_roce::sink::{Flow, FrameOutcome, IpId};
use pmd_roce::transition::Transition;
use pmd_roce::work::AhId;

use crate::call::words;
use crate::digest::Digest;
use crate::pack::{Blob, pack_enum};
use crate::vocabulary::{Receive, Request};

/// An input, with all that comes with it but the time of those that need none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    CreateQp(QpInit),
    ModifyQp { now: Instant, qpn: Qpn, attr: QpAttr, mask: AttrMask },
    DestroyQp(Qpn),
    CreateSrq(SrqInit),
    ArmSrqLimit { srqn: Srqn, limit: u32 },
    ReserveSrq { srqn: Srqn, receives: u32 },
    DestroySrq(Srqn),
    CreateAh(AddressVector),
    DestroyAh(AhId),
    AttachMulticast { qpn: Qpn, group: Gid },
    DetachMulticast { qpn: Qpn, group: Gid },
    PostSend { qpn: Qpn, wr: Request },
    PostRecv { qpn: Qpn, wr: Receive },
    OpenGsi,
    PostMad { flow: Flow, bytes: Blob },
    PollMad,
    PostSrqRecv { srqn: Srqn, wr: Receive },
    Publish,
    Frame { now: Instant, flow: Flow, ip_id: IpId, payload: Blob },
    Record { now: Instant, link: LinkId, record: Record },
    Timeout { now: Instant },
    Transmit { now: Instant },
    Local,
    PollEvent,
    PollTransition,
    TakeLostTransitions,
    PortDown(u8),
    PortUp(u8),
    SetGids { port: u8, gids: Vec<Gid> },
    FailCq(CqId),
    FailSrq(Srqn),
    FailDevice,
    LinkDown(LinkId),
}

pack_enum!(Input {
    1 => CreateQp(init),
    2 => ModifyQp { now, qpn, attr, mask },
    3 => DestroyQp(qpn),
    4 => CreateSrq(init),
    5 => ArmSrqLimit { srqn, limit },
    6 => ReserveSrq { srqn, receives },
    7 => DestroySrq(srqn),
    8 => CreateAh(av),
    9 => DestroyAh(ah),
    10 => AttachMulticast { qpn, group },
    11 => DetachMulticast { qpn, group },
    12 => PostSend { qpn, wr },
    13 => PostRecv { qpn, wr },
    14 => PostSrqRecv { srqn, wr },
    15 => Publish,
    16 => Frame { now, flow, ip_id, payload },
    17 => Record { now, link, record },
    18 => Timeout { now },
    19 => Transmit { now },
    20 => Local,
    21 => PollEvent,
    22 => PortDown(port),
    23 => PortUp(port),
    24 => SetGids { port, gids },
    25 => FailCq(cq),
    26 => FailSrq(srqn),
    27 => FailDevice,
    28 => LinkDown(link),
    29 => PollTransition,
    30 => TakeLostTransitions,
    31 => OpenGsi,
    32 => PostMad { flow, bytes },
    33 => PollMad,
});

impl Input {
    /// The time that comes with it.
    pub(crate) const fn now(&self) -> Option<Instant> {
        match self {
            Self::ModifyQp { now, .. }
            | Self::Frame { now, .. }
            | Self::Record { now, .. }
            | Self::Timeout { now }
            | Self::Transmit { now } => Some(*now),
            _ => None,
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame { payload, .. } => {
                write!(f, "the frame {}", words(&payload.0, payload.0.len() as u64))
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// What the engine answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done; with the number of what was made, how much was done, or whether something was taken.
    Done(u64),
    Refused(String),
    Judged {
        ip_id: u16,
        dropped: Option<String>,
        rest: u64,
    },
    Event(AsyncEvent),
    /// A state change that nobody asked for.
    Fell(String),
}

pack_enum!(Outcome {
    0 => Done(number),
    1 => Refused(reason),
    2 => Judged { ip_id, dropped, rest },
    3 => Event(event),
    4 => Fell(transition),
});

impl Outcome {
    pub(crate) fn of(outcome: FrameOutcome) -> Self {
        let FrameOutcome { ip_id, dropped, rest } = outcome;
        Self::Judged { ip_id, dropped: dropped.map(|reason| reason.name().to_owned()), rest }
    }

    pub(crate) fn fell(transition: &Transition) -> Self {
        let Transition { at, qpn, transport, from, to, cause } = transition;
        let transport = transport.name();
        Self::Fell(format!(
            "{transport} queue pair {qpn} from {from} to {to} at {} ns: {cause}",
            at.0
        ))
    }

    /// Nothing, or what tells one datagram from another.
    pub(crate) fn managed(datagram: Option<&ManagementDatagram>) -> Self {
        Self::Done(datagram.map_or(0, |datagram| {
            let mut digest = Digest::new();
            digest.bytes(&datagram.flow.src.0);
            digest.bytes(&datagram.flow.dst.0);
            digest.bytes(&datagram.bytes);
            digest.value()
        }))
    }

    pub(crate) fn of_result<T: Into<Made>>(result: Result<T, &dyn fmt::Display>) -> Self {
        match result {
            Ok(made) => Self::Done(made.into().0),
            Err(error) => Self::Refused(error.to_string()),
        }
    }
}

/// The number of what a command made.
pub(crate) struct Made(pub(crate) u64);

impl From<()> for Made {
    fn from((): ()) -> Self {
        Self(0)
    }
}

impl From<Qpn> for Made {
    fn from(qpn: Qpn) -> Self {
        Self(qpn.value().into())
    }
}

impl From<Srqn> for Made {
    fn from(srqn: Srqn) -> Self {
        Self(srqn.0.into())
    }
}

impl From<AhId> for Made {
    fn from(ah: AhId) -> Self {
        Self(ah.0.into())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(number) => write!(f, "done ({number})"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Judged { dropped: None, ip_id, rest } => {
                write!(f, "taken (identification {ip_id}, {rest} bytes to come)")
            }
            Self::Judged { dropped: Some(reason), .. } => write!(f, "dropped: {reason}"),
            Self::Event(event) => write!(f, "{event}"),
            Self::Fell(transition) => f.write_str(transition),
        }
    }
}
