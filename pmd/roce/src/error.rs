//! Why the engine refused: one type per operation, each saying what to do.

use std::io;

use crate::ids::{Gid, Qpn, Srqn};
use crate::qp::state::QpState;

/// A device that is driven by a library of its own refused a call, with an error number of the system. The engine never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", io::Error::from_raw_os_error(*errno))]
pub struct Refusal {
    /// The call.
    pub call: &'static str,
    /// The error number.
    pub errno: i32,
}

/// Why a send request was not accepted. Nothing of it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostSendError {
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQp(Qpn),
    /// The send queue is full: poll completions first.
    #[error("the send queue is full: poll completions first")]
    Full,
    /// Requests can be posted in RTS, SQD, SQE and Error.
    #[error("a queue pair in {0:?} takes no send requests: bring it to RTS first")]
    NotReady(QpState),
    /// More inline bytes than the queue pair was created for.
    #[error("more than {max} inline bytes: ask for more max_inline_data, or register the memory")]
    InlineTooLong {
        /// The queue pair's `max_inline_data`.
        max: u32,
    },
    /// More elements than the queue pair was created for.
    #[error("more than {max} scatter/gather elements")]
    TooManySges {
        /// The queue pair's `max_send_sge`.
        max: u32,
    },
    /// The transport has no such operation (S1-08), or `max_rd_atomic` is 0.
    #[error("this queue pair cannot do that: {0}")]
    Operation(&'static str),
    /// Longer than the transport's largest message.
    #[error("a message of {len} bytes is longer than {max}")]
    TooLong {
        /// Bytes asked for.
        len: u64,
        /// Largest message.
        max: u32,
    },
    /// UD needs an address handle of this engine; XRC needs a shared receive queue number.
    #[error("the request names no valid destination: {0}")]
    Destination(&'static str),
    /// The device failed as a whole.
    #[error("the device failed: open it anew")]
    DeviceFatal,
    /// The device's driver refused.
    #[error(transparent)]
    Driver(#[from] Refusal),
}

/// Why a management datagram was not accepted. Nothing of it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostMadError {
    /// The general services interface belongs to one lcore of a device, which opens it.
    #[error("the general services interface (queue pair 1) is not open here")]
    NotOpen,
    /// Too many wait for room on the wire.
    #[error("too many management datagrams wait: post this one in a later turn")]
    Full,
    /// The device has no such address (any more).
    #[error("{0} is no address of this device")]
    Source(Gid),
    /// Not the address of one port, of another family, or out of reach by its hop limit.
    #[error("{0} cannot be sent to from there")]
    Destination(Gid),
    /// The device failed as a whole.
    #[error("the device failed: open it anew")]
    DeviceFatal,
}

/// Why a receive request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostRecvError {
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQp(Qpn),
    /// No such shared receive queue.
    #[error("there is no shared receive queue {0}")]
    NoSuchSrq(Srqn),
    /// The queue is full.
    #[error("the receive queue is full: poll completions first")]
    Full,
    /// Receives can be posted from INIT on.
    #[error("a queue pair in {0:?} takes no receives: bring it to INIT first")]
    NotReady(QpState),
    /// More elements than the queue was created for.
    #[error("more than {max} scatter/gather elements")]
    TooManySges {
        /// The queue's `max_sge`.
        max: u32,
    },
    /// The queue pair takes its receives from a shared queue, or has none.
    #[error("this queue pair has no receive queue of its own")]
    NoQueue,
    /// The device failed as a whole.
    #[error("the device failed: open it anew")]
    DeviceFatal,
    /// The device's driver refused.
    #[error(transparent)]
    Driver(#[from] Refusal),
}

/// Why an object could not be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestroyError {
    /// No such object.
    #[error("no such object")]
    NotFound,
    /// Queue pairs still use the shared receive queue.
    #[error("{0} queue pairs still use it")]
    InUse(u32),
    /// The queue pair is a member of multicast groups.
    #[error("the queue pair is still attached to {0} multicast groups: detach it first")]
    Attached(u32),
}

/// Why a shared receive queue, address handle or group membership was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// Every slot is taken.
    #[error("all {0} slots are in use")]
    TooMany(usize),
    /// A value outside its range.
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
    /// No such object.
    #[error("no such object")]
    NotFound,
    /// The device failed as a whole.
    #[error("the device failed: open it anew")]
    DeviceFatal,
    /// The device's driver refused.
    #[error(transparent)]
    Driver(#[from] Refusal),
}
