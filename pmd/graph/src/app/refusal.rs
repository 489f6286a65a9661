//! A run that did not begin.

use std::io;

use pmd_lcore::SpawnError;
use pmd_lcore::topology::TopologyError;
use pmd_observe::{Code, Owner, Verdict};

use super::{Exit, pipeline, say};
use crate::device::DeviceError;
use crate::failure::advised;
use crate::plan::Plan;
use crate::plan::fit::Fit;
use crate::run::{Report, RunError};

/// Why a run did not begin, and how the command ends.
#[derive(Debug)]
pub(super) struct Refusal {
    exit: Exit,
    /// For stderr; `None` where it has been told.
    text: Option<String>,
    verdict: Verdict,
}

impl Refusal {
    /// The arguments or the config ask for what cannot be.
    pub(super) fn usage(reason: impl Into<String>) -> Self {
        Self::new(Exit::Usage, Owner::Config, reason.into())
    }

    /// The config has faults, and stderr got all of them.
    pub(super) fn config() -> Self {
        let refused = Self::usage("the config is refused; stderr has the reasons");
        Self { text: None, ..refused }
    }

    /// This machine is too small.
    pub(super) fn unfit(plan: &Plan, fit: &Fit) -> Self {
        let summary = "the pipeline does not fit this machine".to_owned();
        let mut refusal = Self::new(Exit::Unfit, Owner::Local, summary);
        refusal.text = Some(plan.to_text(fit).trim_end().to_owned());
        for problem in &fit.problems {
            let fixes = problem.fixes.iter().map(|fix| format!("; fix: {fix}"));
            let fact = format!("{}{}", problem.what, fixes.collect::<String>());
            refusal.verdict = refusal.verdict.because(fact);
        }
        refusal
    }

    fn new(exit: Exit, owner: Owner, reason: String) -> Self {
        let reason = advised(reason);
        let text = Some(format!("error: {reason}"));
        Self { exit, text, verdict: Verdict::new(Code::Unknown, owner, reason) }
    }

    /// Names the setting that applies.
    pub(super) fn turn(mut self, knob: &str) -> Self {
        self.verdict = self.verdict.turn(knob);
        self
    }

    /// Why.
    pub(super) fn verdict(&self) -> Verdict {
        self.verdict.clone()
    }

    /// Tells people, and programs that expect JSON.
    pub(super) fn tell(self, as_json: bool) -> Exit {
        if let Some(text) = self.text {
            say(text);
        }
        if as_json {
            let report = Report::refused(self.verdict);
            let printed = serde_json::to_string(&report).map_err(io::Error::other);
            let printed = printed.and_then(|json| pipeline::print(&format!("{json}\n")));
            if let Err(error) = printed {
                pipeline::unwritten(&error);
            }
        }
        self.exit
    }
}

impl From<RunError> for Refusal {
    fn from(error: RunError) -> Self {
        let text = error.to_string();
        match error {
            RunError::Fault(_) | RunError::Device { source: DeviceError::Contradiction(_), .. } => {
                Self::usage(text)
            }
            RunError::Memory(_) => Self::new(Exit::Unfit, Owner::Local, text).turn("memory.size"),
            RunError::NoSuchDevice { .. }
            | RunError::Device { source: DeviceError::Unfit(_), .. }
            | RunError::Spawn(SpawnError::Thread { .. }) => {
                Self::new(Exit::Unfit, Owner::Local, text)
            }
            RunError::Observe { .. } => Self::usage(text).turn("observe.listen"),
            RunError::Device { .. } | RunError::Spawn(_) => {
                Self::new(Exit::Failed, Owner::Local, text)
            }
        }
    }
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Failed, Owner::Local, format!("{error:#}"))
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        anyhow::Error::from(error).into()
    }
}

impl From<TopologyError> for Refusal {
    fn from(error: TopologyError) -> Self {
        anyhow::Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_is_too_small_a_machine() {
        let source = io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
        let error = RunError::Spawn(SpawnError::Thread { lcore: "lc0".to_owned(), source });
        let refusal = Refusal::from(error);
        assert_eq!((refusal.exit, refusal.verdict.owner), (Exit::Unfit, Owner::Local));
        assert!(refusal.verdict.summary.contains("lcore `lc0`: cannot start a thread"));
    }
}
