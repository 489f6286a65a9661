//! The queue pair state machine as one table: which edges exist, and which attributes each edge
//! requires and allows, per transport (IBTA 1.4, 10.3.1 and table 95; man ibv_modify_qp).
//!
//! ```text
//!            +-------+     +------+     +-----+     +-----+     +-----+
//!  any ----> | RESET | --> | INIT | --> | RTR | --> | RTS | <-> | SQD |
//!            +-------+     +------+     +-----+     +-----+     +-----+
//!                ^                                     ^
//!                |         +-----+                  +-----+
//!                +-------- | ERR | <--- any but     | SQE |  a UC or UD send failed
//!                          +-----+      RESET       +-----+
//! ```

use core::fmt;

use bitflags::bitflags;

use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use Transport::{RawPacket, Rc, Uc, Ud, XrcIni, XrcTgt};

/// What a queue pair does, `enum ibv_qp_state`. IBTA has these seven; the `UNKNOWN` of libibverbs
/// is only something a query can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum QpState {
    /// Newly made, or emptied: nothing may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted; packets are still dropped.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send, too.
    Rts = 3,
    /// Send queue drained: what was started is finished, what is posted waits.
    Sqd = 4,
    /// Send queue error, UC and UD only: sends are flushed, receiving goes on.
    Sqe = 5,
    /// Everything is flushed; only RESET leads out.
    Error = 6,
}

impl QpState {
    /// All states, in order of their numbers.
    pub const ALL: [Self; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];

    /// The name the specification uses.
    pub const fn name(self) -> &'static str {
        match self {
            Reset => "RESET",
            Init => "INIT",
            Rtr => "RTR",
            Rts => "RTS",
            Sqd => "SQD",
            Sqe => "SQE",
            Error => "ERR",
        }
    }

    /// Whether packets that arrive are processed; elsewhere they are dropped.
    pub const fn receives_packets(self) -> bool {
        matches!(self, Rtr | Rts | Sqd | Sqe)
    }

    /// Whether send work requests are started. In SQD those already started are finished.
    pub const fn starts_sends(self) -> bool {
        matches!(self, Rts)
    }

    /// Whether a send may be posted: it is executed, kept (SQD) or flushed (SQE, ERR).
    pub const fn accepts_post_send(self) -> bool {
        matches!(self, Rts | Sqd | Sqe | Error)
    }

    /// Whether a receive may be posted: it is used, kept (INIT) or flushed (ERR).
    pub const fn accepts_post_recv(self) -> bool {
        !matches!(self, Reset)
    }

    /// Whether every posted send completes as flushed.
    pub const fn flushes_sends(self) -> bool {
        matches!(self, Sqe | Error)
    }

    /// Whether every posted receive completes as flushed.
    pub const fn flushes_receives(self) -> bool {
        matches!(self, Error)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What service a queue pair gives, values of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Raw Ethernet packets: known to the state table, not to the engine.
    RawPacket = 8,
    /// Initiator of an extended reliable connection: sends only.
    XrcIni = 9,
    /// Target of an extended reliable connection: receives into shared queues only.
    XrcTgt = 10,
}

impl Transport {
    /// All transports of the state table.
    pub const ALL: [Self; 6] = [Rc, Uc, Ud, XrcIni, XrcTgt, RawPacket];

    /// The name verbs use.
    pub const fn name(self) -> &'static str {
        match self {
            Rc => "RC",
            Uc => "UC",
            Ud => "UD",
            RawPacket => "RAW_PACKET",
            XrcIni => "XRC_INI",
            XrcTgt => "XRC_TGT",
        }
    }

    /// Whether requests are acknowledged and retried.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Rc | XrcIni | XrcTgt)
    }

    /// Whether a queue pair has one peer for its whole connection.
    pub const fn is_connected(self) -> bool {
        matches!(self, Rc | Uc | XrcIni | XrcTgt)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

bitflags! {
    /// Which attributes a modify call sets, values of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AttrMask: u32 {
        /// `qp_state`: the state to enter.
        const STATE = 1;
        /// `cur_qp_state`: the state the caller believes the queue pair to be in.
        const CUR_STATE = 2;
        /// `en_sqd_async_notify`: raise SQ_DRAINED.
        const EN_SQD_ASYNC_NOTIFY = 4;
        /// `qp_access_flags`: what a peer may do one-sided.
        const ACCESS_FLAGS = 8;
        /// `pkey_index`.
        const PKEY_INDEX = 16;
        /// `port_num`.
        const PORT = 32;
        /// `qkey`.
        const QKEY = 64;
        /// `ah_attr`: the address vector.
        const AV = 128;
        /// `path_mtu`.
        const PATH_MTU = 256;
        /// `timeout`: local ACK timeout.
        const TIMEOUT = 512;
        /// `retry_cnt`.
        const RETRY_CNT = 1024;
        /// `rnr_retry`.
        const RNR_RETRY = 2048;
        /// `rq_psn`: first PSN to receive.
        const RQ_PSN = 4096;
        /// `max_rd_atomic`: READs and atomics outstanding as initiator.
        const MAX_QP_RD_ATOMIC = 8192;
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
        const ALT_PATH = 16384;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 32768;
        /// `sq_psn`: first PSN to send.
        const SQ_PSN = 65536;
        /// `max_dest_rd_atomic`: READs and atomics outstanding as responder.
        const MAX_DEST_RD_ATOMIC = 131_072;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 262_144;
        /// `cap`: queue sizes.
        const CAP = 524_288;
        /// `dest_qp_num`: the peer's queue pair.
        const DEST_QPN = 1_048_576;
    }
}

impl AttrMask {
    /// The fields of `struct ibv_qp_attr` that the mask covers, by their names in C. `ALT_PATH`
    /// stands for four fields; the address is the one named.
    pub fn fields(self) -> impl Iterator<Item = &'static str> {
        self.iter().map(|bit| match bit {
            Self::STATE => "qp_state",
            Self::CUR_STATE => "cur_qp_state",
            Self::EN_SQD_ASYNC_NOTIFY => "en_sqd_async_notify",
            Self::ACCESS_FLAGS => "qp_access_flags",
            Self::PKEY_INDEX => "pkey_index",
            Self::PORT => "port_num",
            Self::QKEY => "qkey",
            Self::AV => "ah_attr",
            Self::PATH_MTU => "path_mtu",
            Self::TIMEOUT => "timeout",
            Self::RETRY_CNT => "retry_cnt",
            Self::RNR_RETRY => "rnr_retry",
            Self::RQ_PSN => "rq_psn",
            Self::MAX_QP_RD_ATOMIC => "max_rd_atomic",
            Self::ALT_PATH => "alt_ah_attr",
            Self::MIN_RNR_TIMER => "min_rnr_timer",
            Self::SQ_PSN => "sq_psn",
            Self::MAX_DEST_RD_ATOMIC => "max_dest_rd_atomic",
            Self::PATH_MIG_STATE => "path_mig_state",
            Self::CAP => "cap",
            Self::DEST_QPN => "dest_qp_num",
            _ => "unknown",
        })
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// What one edge asks of a modify call, `STATE` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    /// Attributes that must be given.
    pub required: AttrMask,
    /// Attributes that may be given; every other one is illegal.
    pub optional: AttrMask,
}

/// The masks of an edge, or `None` where no such edge exists.
pub fn masks(transport: Transport, from: QpState, to: QpState) -> Option<Masks> {
    EDGES[transport as usize][from as usize][to as usize]
}

/// Whether a modify call with these attributes may take `from` to `to`.
///
/// # Errors
/// [`TransitionError`] says what is wrong; nothing may then be applied.
pub fn check(
    transport: Transport,
    from: QpState,
    to: QpState,
    given: AttrMask,
) -> Result<(), TransitionError> {
    let refused = |missing, illegal, skipped| {
        Err(TransitionError { transport, from, to, missing, illegal, skipped })
    };
    let Some(edge) = masks(transport, from, to) else {
        return refused(AttrMask::empty(), AttrMask::empty(), Some(Route::between(from, to)));
    };
    let missing = edge.required - given;
    let illegal = given - edge.required - edge.optional;
    if missing.is_empty() && illegal.is_empty() { Ok(()) } else { refused(missing, illegal, None) }
}

/// Why a modify call is refused: a wrong edge, missing attributes, or attributes that belong to
/// another edge or transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionError {
    /// Transport of the queue pair.
    pub transport: Transport,
    /// Where it is, and stays.
    pub from: QpState,
    /// Where it was asked to go.
    pub to: QpState,
    /// Required attributes that were not given. Empty when the edge does not exist.
    pub missing: AttrMask,
    /// Given attributes that the edge does not take. Empty when the edge does not exist.
    pub illegal: AttrMask,
    /// Present when there is no edge between the two states: what to walk through instead.
    pub skipped: Option<Route>,
}

impl std::error::Error for TransitionError {}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, from, to, missing, illegal, skipped } = self;
        write!(f, "{transport} {from} -> {to}: ")?;
        if let Some(route) = skipped {
            return match route.states() {
                [] => write!(f, "no modify call leads there"),
                states => {
                    write!(f, "skips {}; go {from}", states[0])?;
                    states.iter().try_for_each(|state| write!(f, " -> {state}"))?;
                    write!(f, " -> {to}")
                }
            };
        }
        if !missing.is_empty() {
            write!(f, "missing {missing}")?;
        }
        if !illegal.is_empty() {
            let separator = if missing.is_empty() { "" } else { "; " };
            write!(f, "{separator}illegal here {illegal}")?;
        }
        Ok(())
    }
}

/// The states between two others on the shortest legal way, in order; empty where none exists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Route {
    states: [QpState; QpState::ALL.len()],
    len: usize,
}

impl Route {
    /// The states to walk through, both ends left out.
    pub fn states(&self) -> &[QpState] {
        &self.states[..self.len]
    }

    /// Breadth first from `from`: the table is small and this runs only to explain a refusal.
    fn between(from: QpState, to: QpState) -> Self {
        let mut came_from = [None; QpState::ALL.len()];
        let mut queue = [from; QpState::ALL.len()];
        let (mut head, mut tail) = (0, 1);
        while head < tail {
            let here = queue[head];
            head += 1;
            for next in QpState::ALL {
                if came_from[next as usize].is_some() || !is_edge(here, next) {
                    continue;
                }
                came_from[next as usize] = Some(here);
                if next != from {
                    queue[tail] = next;
                    tail += 1;
                }
            }
        }
        let mut route = Self { states: [from; QpState::ALL.len()], len: 0 };
        let mut at = came_from[to as usize];
        while let Some(state) = at.filter(|state| *state != from) {
            route.states[route.len] = state;
            route.len += 1;
            at = came_from[state as usize];
        }
        route.states[..route.len].reverse();
        route
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.states()).finish()
    }
}

/// Whether any transport has this edge; all have the same ones.
fn is_edge(from: QpState, to: QpState) -> bool {
    TABLE.iter().any(|row| row.to == to && row.from.contains(&from))
}

/// Edges that share their target and masks.
struct Row {
    from: &'static [QpState],
    to: QpState,
    transports: &'static [Transport],
    required: AttrMask,
    optional: AttrMask,
}

const fn row(
    from: &'static [QpState],
    to: QpState,
    transports: &'static [Transport],
    required: AttrMask,
    optional: AttrMask,
) -> Row {
    Row { from, to, transports, required, optional }
}

macro_rules! bits {
    () => { AttrMask::empty() };
    ($($bit:ident)|+) => { AttrMask::empty()$(.union(AttrMask::$bit))+ };
}

const NONE: AttrMask = bits!();
const CONNECTED: &[Transport] = &[Rc, Uc, XrcIni, XrcTgt];
const ALL: &[Transport] = &Transport::ALL;

const CONNECTED_INIT: AttrMask = bits!(PKEY_INDEX | PORT | ACCESS_FLAGS);
const UD_INIT: AttrMask = bits!(PKEY_INDEX | PORT | QKEY);
const UC_RTR: AttrMask = bits!(AV | PATH_MTU | DEST_QPN | RQ_PSN);
const RC_RTR: AttrMask = UC_RTR.union(bits!(MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER));
const CONNECTED_RTR_OPTIONAL: AttrMask = bits!(ALT_PATH | ACCESS_FLAGS | PKEY_INDEX);
const RC_RTS: AttrMask = bits!(TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC);
/// What may change on a connection that lives.
const UC_LIVE: AttrMask = bits!(CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE);
const RC_LIVE: AttrMask = UC_LIVE.union(bits!(MIN_RNR_TIMER));
const UD_LIVE: AttrMask = bits!(CUR_STATE | QKEY);
/// What may change while the send queue is drained.
const UC_DRAINED: AttrMask = bits!(AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE);
const XRC_INI_DRAINED: AttrMask =
    UC_DRAINED.union(bits!(PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC));
const XRC_TGT_DRAINED: AttrMask =
    UC_DRAINED.union(bits!(PORT | TIMEOUT | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER));
const RC_DRAINED: AttrMask = XRC_INI_DRAINED.union(XRC_TGT_DRAINED);

/// The state machine. `STATE` is implied: [`masks`] adds it.
static TABLE: &[Row] = &[
    row(&QpState::ALL, Reset, ALL, NONE, NONE),
    row(&[Init, Rtr, Rts, Sqd, Sqe, Error], Error, ALL, NONE, NONE),
    //
    row(&[Reset], Init, CONNECTED, CONNECTED_INIT, NONE),
    row(&[Reset], Init, &[Ud], UD_INIT, NONE),
    row(&[Reset], Init, &[RawPacket], bits!(PORT), NONE),
    row(&[Init], Init, CONNECTED, NONE, CONNECTED_INIT),
    row(&[Init], Init, &[Ud], NONE, UD_INIT),
    row(&[Init], Init, &[RawPacket], NONE, NONE),
    //
    row(&[Init], Rtr, &[Rc, XrcTgt], RC_RTR, CONNECTED_RTR_OPTIONAL),
    row(&[Init], Rtr, &[Uc, XrcIni], UC_RTR, CONNECTED_RTR_OPTIONAL),
    row(&[Init], Rtr, &[Ud], NONE, bits!(PKEY_INDEX | QKEY)),
    row(&[Init], Rtr, &[RawPacket], NONE, NONE),
    //
    row(&[Rtr], Rts, &[Rc], RC_RTS, RC_LIVE),
    row(&[Rtr], Rts, &[XrcIni], RC_RTS, UC_LIVE),
    row(&[Rtr], Rts, &[XrcTgt], bits!(TIMEOUT | SQ_PSN), RC_LIVE),
    row(&[Rtr], Rts, &[Uc], bits!(SQ_PSN), UC_LIVE),
    row(&[Rtr], Rts, &[Ud], bits!(SQ_PSN), UD_LIVE),
    row(&[Rtr], Rts, &[RawPacket], NONE, NONE),
    //
    row(&[Rts, Sqd], Rts, &[Rc, XrcTgt], NONE, RC_LIVE),
    row(&[Rts, Sqd], Rts, &[Uc, XrcIni], NONE, UC_LIVE),
    row(&[Rts, Sqd], Rts, &[Ud], NONE, UD_LIVE),
    row(&[Rts, Sqd], Rts, &[RawPacket], NONE, NONE),
    row(&[Sqe], Rts, &[Uc], NONE, bits!(CUR_STATE | ACCESS_FLAGS)),
    row(&[Sqe], Rts, &[Ud], NONE, UD_LIVE),
    row(&[Sqe], Rts, &[Rc, XrcIni, XrcTgt, RawPacket], NONE, NONE),
    //
    row(&[Rts], Sqd, &[Rc, Uc, Ud, XrcIni, XrcTgt], NONE, bits!(EN_SQD_ASYNC_NOTIFY)),
    row(&[Rts], Sqd, &[RawPacket], NONE, NONE),
    row(&[Sqd], Sqd, &[Rc], NONE, RC_DRAINED),
    row(&[Sqd], Sqd, &[XrcIni], NONE, XRC_INI_DRAINED),
    row(&[Sqd], Sqd, &[XrcTgt], NONE, XRC_TGT_DRAINED),
    row(&[Sqd], Sqd, &[Uc], NONE, UC_DRAINED),
    row(&[Sqd], Sqd, &[Ud], NONE, bits!(PKEY_INDEX | QKEY)),
    row(&[Sqd], Sqd, &[RawPacket], NONE, NONE),
];

const STATES: usize = QpState::ALL.len();
/// One past the highest number of a transport.
const TRANSPORTS: usize = XrcTgt as usize + 1;

/// The table spread out by transport, state left and state entered: a connection that is to come back
/// does not search it at each step.
static EDGES: [[[Option<Masks>; STATES]; STATES]; TRANSPORTS] = {
    let mut edges = [[[None; STATES]; STATES]; TRANSPORTS];
    let mut at = 0;
    while at < TABLE.len() {
        let Row { from, to, transports, required, optional } = TABLE[at];
        let mut nth = 0;
        while nth < from.len() * transports.len() {
            let (from, transport) =
                (from[nth / transports.len()], transports[nth % transports.len()]);
            // A call that stays in its state need not name it.
            let masks = if from as u8 == to as u8 {
                Masks { required, optional: optional.union(AttrMask::STATE) }
            } else {
                Masks { required: required.union(AttrMask::STATE), optional }
            };
            edges[transport as usize][from as usize][to as usize] = Some(masks);
            nth += 1;
        }
        at += 1;
    }
    edges
};
