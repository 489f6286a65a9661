//! Why a node gave up.

use std::fmt;

use pmd_mem::AccessError;
use pmd_observe::why::Evidence;
use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::endpoint::{MemoryError, SubmitError};

/// What the system says when a limit of the process is met, and what raises it.
const LIMITS: [(rustix::io::Errno, &str); 3] = [
    (
        rustix::io::Errno::MFILE,
        "this process may open no more: raise its limit, as in `ulimit -n 65536`",
    ),
    (rustix::io::Errno::NFILE, "this machine may open no more: raise fs.file-max"),
    (
        rustix::io::Errno::FBIG,
        "files may become no longer: raise the limit, as in `ulimit -f unlimited`",
    ),
];

/// The text, and what helps where it tells of a limit of the process that was met.
pub fn advised(text: String) -> String {
    let says =
        |errno: &rustix::io::Errno| text.contains(&format!("(os error {})", errno.raw_os_error()));
    match LIMITS.iter().find(|(errno, advice)| says(errno) && !text.contains(advice)) {
        Some((_, advice)) => format!("{text}; {advice}"),
        None => text,
    }
}

/// Why a node gave up: a verdict, and how the node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The diagnosis.
    pub verdict: Verdict,
    /// Whether the peer told it: where the peer runs in this process, its own words are better.
    pub hearsay: bool,
    /// What both ends knew, where a connection broke: the verdict can be judged anew from it.
    pub evidence: Option<Box<Evidence>>,
}

impl Failure {
    /// A failure of which this node has evidence.
    pub fn new(code: Code, owner: Owner, summary: impl Into<String>) -> Self {
        let verdict = Verdict::new(code, owner, advised(summary.into()));
        Self { verdict, hearsay: false, evidence: None }
    }

    /// Something of this process that does not work, and that no other code describes.
    pub fn local(summary: impl Into<String>) -> Self {
        Self::new(Code::Unknown, Owner::Local, summary)
    }

    /// Adds one fact.
    #[must_use]
    pub fn because(mut self, fact: impl Into<String>) -> Self {
        self.verdict = self.verdict.because(fact);
        self
    }

    /// Names the setting that applies.
    #[must_use]
    pub fn turn(mut self, knob: impl Into<String>) -> Self {
        self.verdict = self.verdict.turn(knob);
        self
    }

    /// Marks it as what the peer said.
    #[must_use]
    pub fn heard(mut self) -> Self {
        self.hearsay = true;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.verdict.summary)
    }
}

impl std::error::Error for Failure {}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        Self::new(Code::LocalProtection, Owner::Local, error.to_string())
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        Self::new(Code::LocalProtection, Owner::Local, error.to_string())
    }
}

/// For submissions that the node had no reason to expect refused: a full queue or a failed connection is handled where
/// it is met.
impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        let code = match error {
            SubmitError::TooLong { .. } => Code::Length,
            SubmitError::OutOfRange => Code::LocalProtection,
            SubmitError::Unsupported(_) => Code::InvalidRequest,
            SubmitError::Full | SubmitError::Degraded => Code::Unknown,
        };
        Self::new(code, Owner::Local, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_a_process_are_named_with_what_raises_them() {
        let error = |errno: rustix::io::Errno| std::io::Error::from(errno);
        let failure = Failure::local(format!("no socket: {}", error(rustix::io::Errno::MFILE)));
        let summary = failure.verdict.summary;
        assert!(summary.ends_with("as in `ulimit -n 65536`"), "{summary}");
        assert_eq!(advised(summary.clone()), summary, "once");
        assert!(advised(error(rustix::io::Errno::FBIG).to_string()).contains("ulimit -f"));
        assert_eq!(advised("as it is".into()), "as it is");
    }
}
