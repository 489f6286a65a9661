//! What a consumer posts and what comes back: work requests and completions.

use core::fmt;

use bitflags::bitflags;

pub use crate::completion::Completion;
use crate::ids::{Lkey, Qpn, Rkey, Srqn, WrId};

/// A piece of local memory, laid out as `struct ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// Virtual address within the region's address range.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RemoteAddr {
    /// Virtual address as the peer announced it.
    pub addr: u64,
    /// Key that the peer announced with it.
    pub rkey: Rkey,
}

/// Immediate data: four opaque bytes, delivered in the order they were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Imm(pub [u8; 4]);

bitflags! {
    /// Access rights of a queue pair, region or window; values of `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u32 {
        /// The device may write here on behalf of this side.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE.
        const REMOTE_WRITE = 2;
        /// A peer may READ.
        const REMOTE_READ = 4;
        /// A peer may run atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to the region.
        const MW_BIND = 16;
        /// Addresses count from the start of the region or window.
        const ZERO_BASED = 32;
    }
}

bitflags! {
    /// Flags of a send work request; values of `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Start only after every earlier READ and atomic has completed.
        const FENCE = 1;
        /// Complete with a work completion even when all goes well.
        const SIGNALED = 2;
        /// Ask the receiver for a solicited event.
        const SOLICITED = 4;
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm(Imm),
    /// SEND that invalidates the peer's key on arrival.
    SendInvalidate(Rkey),
    /// RDMA WRITE.
    Write(RemoteAddr),
    /// RDMA WRITE with immediate: consumes a receive at the peer.
    WriteImm(RemoteAddr, Imm),
    /// RDMA READ.
    Read(RemoteAddr),
    /// Compare 8 bytes and swap them when equal; the original value arrives in the SGE.
    CompareSwap {
        /// Eight aligned bytes.
        at: RemoteAddr,
        /// Expected value.
        compare: u64,
        /// Value stored when the comparison holds.
        swap: u64,
    },
    /// Add to 8 bytes; the original value arrives in the SGE.
    FetchAdd {
        /// Eight aligned bytes.
        at: RemoteAddr,
        /// Addend, modulo 2^64.
        add: u64,
    },
    /// Bind a type 2 memory window.
    BindWindow(WindowBind),
    /// Invalidate one's own region or window key.
    LocalInvalidate(Rkey),
}

/// Binding of a type 2 memory window, posted on a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBind {
    /// The window's current key.
    pub window: Rkey,
    /// The key it has after the bind: same upper 24 bits, low byte chosen by the consumer.
    pub new_key: Rkey,
    /// Region that the window opens; must allow `MW_BIND`.
    pub region: Lkey,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Rights of the window.
    pub access: Access,
}

/// The bytes of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory, read (or, for READ and atomics, written) by the device until completion.
    Sges(&'a [Sge]),
    /// Bytes copied into the work queue at post: the buffers are the caller's again at once.
    Inline(&'a [&'a [u8]]),
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Address handle.
    pub ah: AhId,
    /// Destination queue pair.
    pub qpn: Qpn,
    /// Q_Key to send; with the top bit set, the queue pair's own is sent (IBTA 1.4, 10.2.5).
    pub qkey: u32,
}

/// An address handle of the engine that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AhId(pub u32);

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: WrId,
    /// What to do.
    pub op: SendOp,
    /// With which bytes.
    pub data: Data<'a>,
    /// How.
    pub flags: SendFlags,
    /// Destination; UD only.
    pub to: Option<Datagram>,
    /// Shared receive queue at the peer; XRC only.
    pub srqn: Option<Srqn>,
}

/// A request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: WrId,
    /// Memory for one message, and on UD for the 40 GRH bytes before it.
    pub sges: &'a [Sge],
}

/// Outcome of a work request; values of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// A posted buffer has the wrong length.
    LocLen = 1,
    /// The queue pair cannot do this operation.
    LocQpOp = 2,
    /// A local buffer is not registered for this use.
    LocProt = 4,
    /// The queue pair was in error before this request's turn came.
    WrFlush = 5,
    /// A memory window could not be bound.
    MwBind = 6,
    /// The peer's response makes no sense.
    BadResp = 7,
    /// A local buffer does not allow this access.
    LocAccess = 8,
    /// The peer found the request invalid.
    RemInvReq = 9,
    /// The peer's memory does not allow this access.
    RemAccess = 10,
    /// The peer could not complete the operation.
    RemOp = 11,
    /// Nobody answered within the retry budget.
    RetryExc = 12,
    /// The peer stayed without a receive for the whole RNR budget.
    RnrRetryExc = 13,
    /// The peer aborted.
    RemAbort = 16,
    /// The device failed.
    Fatal = 19,
    /// Anything else.
    General = 21,
}

impl WcStatus {
    /// The text of `ibv_wc_status_str(3)`'s meaning, in our words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocLen => "local length error",
            Self::LocQpOp => "local QP operation error",
            Self::LocProt => "local protection error",
            Self::WrFlush => "Work Request Flushed Error",
            Self::MwBind => "memory window bind error",
            Self::BadResp => "bad response error",
            Self::LocAccess => "local access error",
            Self::RemInvReq => "remote invalid request error",
            Self::RemAccess => "remote access error",
            Self::RemOp => "remote operation error",
            Self::RetryExc => "transport retry counter exceeded",
            Self::RnrRetryExc => "RNR retry counter exceeded",
            Self::RemAbort => "remote aborted error",
            Self::Fatal => "fatal error",
            Self::General => "general error",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), *self as u8)
    }
}

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcOpcode {
    /// A SEND of any kind.
    Send,
    /// A WRITE of either kind.
    Write,
    /// A READ.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A window bind.
    BindWindow,
    /// A local invalidate.
    LocalInvalidate,
    /// A receive, filled by a SEND.
    Recv,
    /// A receive, consumed by a WRITE with immediate.
    RecvWriteImm,
}

/// The completion queue is full: a completion was lost and the queue is in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqOverrun;
