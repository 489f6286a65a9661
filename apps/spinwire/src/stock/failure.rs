//! Why a program did not come to its good end.

use pmd_graph::app::Exit;
use pmd_graph::failure::advised;
use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::cm::{CmFailure, EventKind, IdError, RejectReason, Rejection, Unreached};
use pmd_verbs::{Completion, WcStatus};

/// How the command ends, and what it says.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    pub(super) verdict: Verdict,
}

impl Failure {
    pub(super) const fn of(verdict: Verdict) -> Self {
        Self { exit: Exit::Failed, verdict }
    }

    /// The command line asks for what cannot be.
    pub(super) fn usage(reason: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, verdict: Verdict::new(Code::Unknown, Owner::Config, reason) }
    }

    /// Something of this process.
    #[expect(clippy::needless_pass_by_value, reason = "errors are handed over so by map_err")]
    pub(super) fn local(reason: impl ToString) -> Self {
        Self::of(Verdict::new(Code::Unknown, Owner::Local, advised(reason.to_string())))
    }

    /// Something that the other end did, or did not do.
    pub(super) fn remote(code: Code, reason: impl Into<String>) -> Self {
        Self::of(Verdict::new(code, Owner::Remote, reason))
    }

    /// A request that did not end well.
    pub(super) fn completion(completion: &Completion) -> Self {
        let Completion { opcode, status, .. } = completion;
        let text = format!("{opcode:?} failed with status {} ({})", *status as u8, status.text());
        let (code, owner) = match status {
            WcStatus::RetryExc => (Code::PeerDead, Owner::Remote),
            WcStatus::RnrRetryExc => (Code::RnrExhausted, Owner::Remote),
            WcStatus::RemAccess => (Code::AccessMr, Owner::Remote),
            WcStatus::RemInvReq => (Code::InvalidRequest, Owner::Remote),
            WcStatus::RemOp => (Code::RemoteOperation, Owner::Remote),
            WcStatus::LocLen => (Code::Length, Owner::Local),
            WcStatus::WrFlush => (Code::PeerDead, Owner::Remote),
            _ => (Code::Unknown, Owner::Local),
        };
        Self::of(Verdict::new(code, owner, text))
    }

    /// An event that is the end of it.
    pub(super) fn event(kind: &EventKind) -> Self {
        let (code, owner) = match kind {
            EventKind::Rejected(rejection) => refused(rejection),
            EventKind::Unreachable(Unreached::Lookup(_)) => (Code::PeerNotReady, Owner::Remote),
            EventKind::Unreachable(_) => (Code::PeerDead, Owner::Remote),
            EventKind::Disconnected(_) => (Code::PeerDead, Owner::Remote),
            EventKind::AddrError(_) => (Code::Unknown, Owner::Config),
            EventKind::RouteError => (Code::LinkDead, Owner::Local),
            EventKind::DeviceRemoval => (Code::DeviceGone, Owner::Local),
            _ => (Code::Unknown, Owner::Local),
        };
        let mut verdict = Verdict::new(code, owner, kind.to_string());
        if let EventKind::Rejected(Rejection { reason: RejectReason::INVALID_MTU, info, .. }) = kind
            && let Some(mtu) = info.path_mtu()
        {
            verdict = verdict.because(format!("the peer takes packets of {mtu} bytes at most"));
        }
        Self::of(verdict)
    }
}

const fn refused(rejection: &Rejection) -> (Code, Owner) {
    match rejection.reason {
        RejectReason::INVALID_MTU => (Code::MtuMismatch, Owner::Remote),
        _ => (Code::PeerNotReady, Owner::Remote),
    }
}

impl From<CmFailure> for Failure {
    fn from(failure: CmFailure) -> Self {
        match failure {
            CmFailure::Failed(kind) => Self::event(&kind),
            CmFailure::Unexpected { ref got, .. } if got.name().ends_with("DISCONNECTED") => {
                Self::event(got)
            }
            CmFailure::Late { .. } => Self::remote(Code::PeerNotReady, failure.to_string()),
            other => Self::local(other),
        }
    }
}

impl From<IdError> for Failure {
    fn from(error: IdError) -> Self {
        match error {
            IdError::NoSuchAddress { .. } | IdError::PortInUse { .. } => {
                Self::usage(error.to_string())
            }
            error => Self::local(error),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::local(error)
    }
}

#[cfg(test)]
mod tests {
    use pmd_verbs::cm::message::{Answered, RejectInfo};
    use pmd_verbs::cm::{PrivateData, RejectReason};

    use super::*;

    /// S0-31, P04, P25: a refusal is told in words, and a path MTU that does not fit by its name.
    #[test]
    fn s0_31_p04_refusals_become_verdicts() {
        let told = |reason, info: &[u8]| {
            let rejection = Rejection {
                reason,
                message: Answered::Req,
                info: RejectInfo::new(info),
                private_data: PrivateData::EMPTY,
            };
            Failure::event(&EventKind::Rejected(rejection)).verdict
        };
        let nobody = told(RejectReason::INVALID_SERVICE_ID, &[]);
        assert_eq!(nobody.code, Code::PeerNotReady);
        assert!(nobody.to_string().contains("nobody listens there (8)"), "{nobody}");
        let mtu = told(RejectReason::INVALID_MTU, &[3]);
        assert_eq!(mtu.code, Code::MtuMismatch);
        assert!(mtu.to_string().contains("1024 bytes at most"), "{mtu}");
    }
}
