//! How a submission ends.

use std::fmt;

use crate::event::EventKind;
use crate::submission::{Replay, Ticket};

/// A status as verbs number it, `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u8);

impl Status {
    /// Done.
    pub const SUCCESS: Self = Self(0);
    /// Flushed: the queue pair was in error before it was its turn.
    pub const FLUSH: Self = Self(5);
    /// The peer stayed silent for all retries.
    pub const RETRY_EXC: Self = Self(12);
    /// The peer had no receive for all RNR retries.
    pub const RNR_RETRY_EXC: Self = Self(13);
}

/// Why something was failed without a completion of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// An asynchronous event.
    Event(EventKind),
    /// Another submission failed, which ends the queue pair.
    Completion(Status),
    /// No completion within the time that is given to the oldest submission.
    Deadline {
        /// That time, nanoseconds.
        limit_ns: u64,
    },
    /// The peer's process or host is gone.
    PeerDead,
    /// The peer says that its side failed.
    PeerFailed,
    /// The queue pair went back to RESET, which discards what it has not reported.
    Reset,
    /// The application closes the connection.
    Closed,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(kind) => write!(f, "asynchronous event {kind}"),
            Self::Completion(Status(status)) => write!(f, "a request ended with status {status}"),
            Self::Deadline { limit_ns } => {
                write!(f, "no completion for {} ms", limit_ns / 1_000_000)
            }
            Self::PeerDead => f.write_str("the peer is gone"),
            Self::PeerFailed => f.write_str("the peer reports that its side failed"),
            Self::Reset => f.write_str("the queue pair was reset"),
            Self::Closed => f.write_str("the connection was closed"),
        }
    }
}

/// How a submission ended: the first of completion, event and deadline, and final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The device said so.
    Completed(Status),
    /// The device has not said, and nobody waits for it any more. It may have taken effect.
    Failed(Cause),
}

impl Outcome {
    /// Whether it was done.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Completed(Status::SUCCESS))
    }
}

/// A submission that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Its number.
    pub ticket: Ticket,
    /// The caller's name for it.
    pub token: u64,
    /// Work requests that it held of the queue's depth, and holds no more.
    pub wrs: u16,
    /// How.
    pub outcome: Outcome,
    /// Whether it may be made again.
    pub replay: Replay,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S3-29: a failure comes with words.
    #[test]
    fn s3_29_causes_are_told_in_words() {
        assert_eq!(
            Cause::Event(EventKind::DeviceFatal).to_string(),
            "asynchronous event DEVICE_FATAL"
        );
        assert_eq!(
            Cause::Deadline { limit_ns: 536_870_912 }.to_string(),
            "no completion for 536 ms"
        );
        assert_eq!(
            Cause::Completion(Status::RETRY_EXC).to_string(),
            "a request ended with status 12"
        );
        assert_eq!(Cause::PeerDead.to_string(), "the peer is gone");
    }

    #[test]
    fn only_status_0_is_success() {
        assert!(Outcome::Completed(Status::SUCCESS).is_success());
        assert!(!Outcome::Completed(Status::FLUSH).is_success());
        assert!(!Outcome::Failed(Cause::Reset).is_success());
    }
}
