//! How a measurement broke, as the lcore that saw it tells it.

use pmd_verbs::roce::engine::PostSendError;
use pmd_verbs::roce::ids::Qpn;
use pmd_verbs::{Completion, PostListError, PostRecvListError, WcOpcode, WcStatus};

/// How a measurement broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// A request ended in error.
    #[error("{opcode:?} failed: {status}")]
    Completion {
        /// How.
        status: WcStatus,
        /// What.
        opcode: WcOpcode,
        /// Of which queue pair.
        qpn: Qpn,
    },
    /// Nothing completes any more.
    #[error("nothing has completed for {seconds} s")]
    Stalled {
        /// For how long.
        seconds: u64,
    },
    /// Unreliable messages go out, and none arrives.
    #[error("{sent} messages were sent, and the peer acknowledged none of the last ones")]
    NothingArrives {
        /// How many went out.
        sent: u64,
    },
    /// A byte is not what was sent.
    #[error(
        "byte {offset} is {got:#04x} instead of {wanted:#04x} (queue pair {qp}, buffer {slot}, {size} bytes)"
    )]
    Mismatch {
        /// Place in the message.
        offset: u64,
        /// What arrived.
        got: u8,
        /// What was sent.
        wanted: u8,
        /// Which queue pair of the lcore.
        qp: u32,
        /// Which of its buffers.
        slot: u32,
        /// Bytes of the message.
        size: u32,
    },
    /// A message has another length than was sent.
    #[error("a message of {got} bytes arrived instead of {wanted}")]
    Length {
        /// Bytes that arrived.
        got: u32,
        /// Bytes that were sent.
        wanted: u32,
    },
    /// The connection manager did not bring two queue pairs together.
    #[error("the connection manager does not connect: {reason}")]
    Unmet {
        /// Why.
        reason: String,
        /// Whether nothing was answered at all, over a control channel that works.
        silent: bool,
    },
    /// This side's device refused something.
    #[error("{0}")]
    Device(String),
    /// The machine lacks something.
    #[error("{0}")]
    Unfit(String),
    /// The two ends do not fit together.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    /// What a completion with an error says.
    #[cold]
    pub(super) fn of(completion: &Completion) -> Self {
        let Completion { status, opcode, qpn, .. } = *completion;
        Self::Completion { status, opcode, qpn }
    }

    /// What the device refused.
    #[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
    pub(super) fn device<E: ToString>(error: E) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<PostListError> for Failure {
    fn from(error: PostListError) -> Self {
        Self::device(error)
    }
}

impl From<PostSendError> for Failure {
    fn from(error: PostSendError) -> Self {
        Self::device(error)
    }
}

impl From<PostRecvListError> for Failure {
    fn from(error: PostRecvListError) -> Self {
        Self::device(error)
    }
}

impl From<pmd_mem::AccessError> for Failure {
    fn from(error: pmd_mem::AccessError) -> Self {
        Self::device(error)
    }
}
