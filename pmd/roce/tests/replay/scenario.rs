//! What the recorded programs did that no frame says.

use pmd_roce::wire::Operation;
use pmd_roce::work::{Access, WcStatus};

use crate::story::End;

/// One trace that is replayed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) trace: &'static str,
    /// Recorded from `vt`: REP tells the server's region, and the client sends from a buffer of
    /// [`pattern`]. Where it is another program, bytes are taken from the frames.
    pub(crate) is_vt: bool,
    /// `vt`: the server's region is filled with [`pattern`]. Zeros serve better where the client
    /// writes before it reads: then what it reads is what it wrote.
    pub(crate) server_has_pattern: bool,
    /// What the server's queue pair allows.
    pub(crate) server_access: Access,
    /// RNR timer code of the server.
    pub(crate) server_rnr_timer: u8,
    /// Frames that the recorder saw and an end did not.
    pub(crate) lost: Option<Lost>,
    /// Requests that rxe sent during an RNR wait, since its ACK timer runs on: ours must not.
    pub(crate) early_resends: usize,
    /// How the client's last request ended.
    pub(crate) ends: WcStatus,
}

/// Every so many frames of a kind were lost on their way into one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) operation: Operation,
    pub(crate) every: usize,
    pub(crate) at: End,
}

/// Byte `at` of a buffer of `vt`.
#[expect(clippy::cast_possible_truncation, reason = "the low byte is meant")]
pub(crate) const fn pattern(at: usize) -> u8 {
    (at * 7 + (at >> 8)) as u8
}

const ALL_REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

const fn other(trace: &'static str) -> Scenario {
    Scenario {
        trace,
        is_vt: false,
        server_has_pattern: false,
        server_access: ALL_REMOTE,
        server_rnr_timer: 0,
        lost: None,
        early_resends: 0,
        ends: WcStatus::Success,
    }
}

const fn vt(trace: &'static str) -> Scenario {
    Scenario { is_vt: true, ..other(trace) }
}

/// 10.24 ms, which `vt` sets where it has receives come late.
const TEN_MS: u8 = 20;

/// Every trace that is replayed.
pub(crate) const SCENARIOS: &[Scenario] = &[
    vt("rc-send"),
    vt("rc-write"),
    vt("rc-write-mtu4096"),
    Scenario { server_has_pattern: true, ..vt("rc-read") },
    Scenario { server_has_pattern: true, ..vt("rc-read-mtu4096") },
    vt("rc-atomic"),
    // Frame 16 comes 0.3 ms after an RNR NAK of 10.24 ms.
    Scenario { server_rnr_timer: TEN_MS, early_resends: 1, ..vt("nak-rnr") },
    Scenario { server_rnr_timer: TEN_MS, ends: WcStatus::RnrRetryExc, ..vt("nak-rnr-exhausted") },
    Scenario { ends: WcStatus::RemAccess, ..vt("nak-access-write") },
    Scenario { ends: WcStatus::RemAccess, ..vt("nak-access-read") },
    Scenario { ends: WcStatus::RemAccess, ..vt("nak-access-bounds") },
    Scenario {
        server_access: Access::empty(),
        ends: WcStatus::RemInvReq,
        ..vt("nak-invalid-request")
    },
    Scenario {
        lost: Some(Lost { operation: Operation::WriteMiddle, every: 5, at: End::Server }),
        ..vt("drop-write")
    },
    Scenario {
        lost: Some(Lost { operation: Operation::Acknowledge, every: 2, at: End::Client }),
        ..vt("drop-ack")
    },
    other("rc-pingpong"),
    other("uc-pingpong"),
    other("ud-pingpong"),
    other("perftest-write-bw"),
    other("perftest-atomic-lat"),
    other("rping"),
];

/// Traces without data to replay: the connection was refused, or only its management is in the trace.
pub(crate) const NO_DATA: &[&str] = &["cm-reject", "nvme-rdma-cm"];
