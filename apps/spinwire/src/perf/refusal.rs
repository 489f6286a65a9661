//! Measurements that did not begin, or broke.

use pmd_graph::app::Exit;
use pmd_graph::failure::advised;
use pmd_observe::{Code, Owner, Verdict};

/// Why there is no result, and how the command ends.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) exit: Exit,
    pub(super) verdict: Verdict,
}

impl Refusal {
    /// The command line asks for what cannot be.
    pub(super) fn usage(reason: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, verdict: Verdict::new(Code::Unknown, Owner::Config, reason) }
    }

    /// This machine does not have what it takes.
    pub(super) fn unfit(reason: impl Into<String>) -> Self {
        let reason = advised(reason.into());
        Self { exit: Exit::Unfit, verdict: Verdict::new(Code::Unknown, Owner::Local, reason) }
    }

    /// It broke.
    pub(super) fn failed(verdict: Verdict) -> Self {
        Self { exit: Exit::Failed, verdict }
    }

    /// There is no other end, or it does not take part yet.
    pub(super) fn nobody(reason: impl Into<String>) -> Self {
        Self::failed(Verdict::new(Code::PeerNotReady, Owner::Remote, reason))
    }

    /// Something of this process that does not work, and that no other code describes.
    pub(super) fn local(reason: impl Into<String>) -> Self {
        Self::failed(Verdict::new(Code::Unknown, Owner::Local, advised(reason.into())))
    }
}
