//! Attributes of a queue pair: what it is created with, what `modify` sets and `query` reads.

use core::fmt;

use crate::error::Refusal;
use crate::ids::{CqId, Gid, LinkId, PathMtu, PdId, Psn, Qpn, Srqn, XrcdId};
use crate::qp::state::{AttrMask, QpState, TransitionError, Transport};
use crate::work::Access;

/// Depths and sizes, as `struct ibv_qp_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send requests that can be outstanding.
    pub max_send_wr: u32,
    /// Receive requests that can be outstanding; ignored with a shared receive queue.
    pub max_recv_wr: u32,
    /// Elements per send request.
    pub max_send_sge: u32,
    /// Elements per receive request; ignored with a shared receive queue.
    pub max_recv_sge: u32,
    /// Bytes a send request can carry inline.
    pub max_inline_data: u32,
}

/// What a queue pair is created with and keeps for life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Service.
    pub transport: Transport,
    /// Protection domain.
    pub pd: PdId,
    /// Where send requests complete.
    pub send_cq: CqId,
    /// Where receive requests complete.
    pub recv_cq: CqId,
    /// Shared receive queue instead of an own one: RC and UD.
    pub srq: Option<Srqn>,
    /// XRC domain: required on XRC targets.
    pub xrcd: Option<XrcdId>,
    /// Depths and sizes; the created queue pair has at least these.
    pub cap: QpCap,
    /// Every send request completes with a completion, signalled or not.
    pub sq_sig_all: bool,
}

/// Why a queue pair was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateQpError {
    /// All slots of this lcore are taken.
    #[error("all {max} queue pairs of this lcore are in use")]
    TooMany {
        /// Slots there are.
        max: usize,
    },
    /// A depth is 0 where it must not be, or above the device's limit.
    #[error("{field} = {asked} is outside {min}..={max}")]
    Range {
        /// Field of [`QpCap`].
        field: &'static str,
        /// Value asked for.
        asked: u32,
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
    },
    /// The shared receive queue does not exist, or cannot serve this transport.
    #[error("no shared receive queue {0:?} for this transport")]
    NoSuchSrq(Option<Srqn>),
    /// An XRC target needs an XRC domain, and nothing else takes one.
    #[error("an XRC domain goes with an XRC target, and only with it")]
    XrcDomain,
    /// The table describes this transport, the engine does not run it.
    #[error("{0:?} queue pairs are not supported")]
    Transport(Transport),
    /// The device failed as a whole.
    #[error("the device failed: open it anew")]
    DeviceFatal,
    /// The device's driver refused.
    #[error(transparent)]
    Driver(#[from] Refusal),
}

/// An address vector, as `struct ibv_ah_attr` with its GRH: on RoCE the GRH is never optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Whether the GRH fields count. RoCE refuses false.
    pub is_global: bool,
    /// Destination.
    pub dgid: Gid,
    /// Index of the source address in the port's GID table.
    pub sgid_index: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, and where not 0 the source of the UDP source port.
    pub flow_label: u32,
    /// Service level.
    pub sl: u8,
    /// Port number, from 1.
    pub port: u8,
    /// Shared memory instead of packets: the peer's lcore, found by the provider.
    pub link: Option<LinkId>,
}

impl AddressVector {
    /// Toward `dgid` from the first address of port 1, by packets.
    pub const fn to(dgid: Gid) -> Self {
        Self {
            is_global: true,
            dgid,
            sgid_index: 0,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
            port: 1,
            link: None,
        }
    }
}

/// Where automatic path migration stands; values of `enum ibv_mig_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PathMigState {
    /// On the path in use for good; so begins every queue pair.
    #[default]
    Migrated = 0,
    /// An alternate path is loaded, and the peer has not said the same yet.
    Rearm = 1,
    /// Both ends have an alternate path: the device takes it when it must.
    Armed = 2,
}

impl PathMigState {
    /// The name that verbs use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Migrated => "MIGRATED",
            Self::Rearm => "REARM",
            Self::Armed => "ARMED",
        }
    }
}

impl fmt::Display for PathMigState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Attributes that `modify` sets where the mask says so, and `query` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// Target state.
    pub state: QpState,
    /// State the caller believes the queue pair to be in.
    pub cur_state: QpState,
    /// SQD: raise `SqDrained` when drained.
    pub sqd_notify: bool,
    /// One-sided operations that the peer may use.
    pub access: Access,
    /// Index into the partition table, which has one entry.
    pub pkey_index: u16,
    /// Port number, from 1.
    pub port: u8,
    /// Q_Key; UD.
    pub qkey: u32,
    /// Path to the peer.
    pub av: AddressVector,
    /// Payload bytes per packet.
    pub path_mtu: PathMtu,
    /// Local ACK timeout: 4.096 us x 2^n, 5 bits; 0 waits for ever.
    pub timeout: u8,
    /// Retries after the first transmission, 3 bits.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 3 bits; 7 is without end.
    pub rnr_retry: u8,
    /// RNR timer code that this responder asks for, 5 bits.
    pub min_rnr_timer: u8,
    /// PSN of the first packet to send.
    pub sq_psn: Psn,
    /// PSN of the first packet to expect.
    pub rq_psn: Psn,
    /// READs and atomics this requester may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The path to go on over when the first one is dead; to address 0 while none is loaded.
    pub alt_av: AddressVector,
    /// Index into the partition table on that path.
    pub alt_pkey_index: u16,
    /// Port of that path, from 1.
    pub alt_port: u8,
    /// Local ACK timeout on that path.
    pub alt_timeout: u8,
    /// Whether that path is ready to be taken.
    pub path_mig_state: PathMigState,
}

impl QpAttr {
    /// Takes over what `mask` names of `given`, but for the state and the alternate path, which are more than values.
    #[inline]
    pub fn adopt(&mut self, given: &Self, mask: AttrMask) {
        macro_rules! copy {
            ($($bit:ident $field:ident),* $(,)?) => {
                $(if mask.contains(AttrMask::$bit) {
                    self.$field = given.$field;
                })*
            };
        }
        copy! {
            ACCESS_FLAGS access,
            PKEY_INDEX pkey_index,
            PORT port,
            QKEY qkey,
            AV av,
            PATH_MTU path_mtu,
            TIMEOUT timeout,
            RETRY_CNT retry_cnt,
            RNR_RETRY rnr_retry,
            RQ_PSN rq_psn,
            MAX_QP_RD_ATOMIC max_rd_atomic,
            MIN_RNR_TIMER min_rnr_timer,
            SQ_PSN sq_psn,
            MAX_DEST_RD_ATOMIC max_dest_rd_atomic,
            DEST_QPN dest_qpn,
        }
    }

    /// Attributes as RESET leaves them, with the given target state.
    pub const fn new(state: QpState) -> Self {
        Self {
            state,
            cur_state: QpState::Reset,
            sqd_notify: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            qkey: 0,
            av: AddressVector::to(Gid([0; 16])),
            path_mtu: PathMtu::B1024,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            dest_qpn: Qpn::new(0),
            alt_av: AddressVector::to(Gid([0; 16])),
            alt_pkey_index: 0,
            alt_port: 1,
            alt_timeout: 0,
            path_mig_state: PathMigState::Migrated,
        }
    }
}

/// Why `modify` changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyQpError {
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQp(Qpn),
    /// The device failed as a whole.
    #[error("the device failed: open it anew")]
    DeviceFatal,
    /// The transition, or its mask, is not in the table.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// `CUR_STATE` was given and is wrong.
    #[error("cur_qp_state = {claimed}: the queue pair is in {actual}")]
    WrongCurrentState {
        /// What the caller said.
        claimed: QpState,
        /// What is true.
        actual: QpState,
    },
    /// An attribute has a value outside its field.
    #[error("{field} = {value}: {need}")]
    Value {
        /// Name of the attribute.
        field: &'static str,
        /// Value given.
        value: u64,
        /// What it must be.
        need: &'static str,
    },
    /// The address vector names a source address that the port does not have.
    #[error("ah_attr.grh.sgid_index = {index}: the GID table has {len} entries")]
    SgidIndex {
        /// Index given.
        index: u8,
        /// Addresses of the port.
        len: usize,
    },
    /// The device's driver refused.
    #[error(transparent)]
    Driver(#[from] Refusal),
}
