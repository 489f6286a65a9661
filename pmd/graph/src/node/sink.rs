//! `sink`: counts what arrives and drops it.

use pmd_observe::{Code, Owner};

use super::pattern::Pattern;
use super::{Node, NodeContext, Record, Turn};
use crate::failure::Failure;
use crate::stream::Inlet;

pub(crate) struct Sink {
    name: String,
    inlet: Inlet,
    /// What the blocks should hold, if that is looked at.
    expected: Option<Pattern>,
}

impl Sink {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Box<dyn Node> {
        let settings = cx.settings();
        let expected = (settings.text("verify") == "pattern")
            .then(|| Pattern { seed: settings.count_opt("seed").unwrap_or(1) });
        Box::new(Self { name: cx.name().to_owned(), inlet: cx.inlet(), expected })
    }
}

impl Node for Sink {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = 0;
        while let Some(block) = self.inlet.take() {
            let len = u64::from(block.len);
            if let Some(pattern) = self.expected {
                if let Some(at) = pattern.mismatch(&block)? {
                    let summary = format!("`{}`: byte {at} differs from the pattern", self.name);
                    return Err(Failure::new(Code::DataMismatch, Owner::Local, summary)
                        .because(format!("the pattern is that of seed {}", pattern.seed)));
                }
                record.verified(len);
            }
            record.message(now, len);
            work += 1;
        }
        Ok(if self.inlet.is_drained() { Turn::Done } else { Turn::Worked(work) })
    }

    fn stop(&mut self) {
        // Its source stops; what is on the way still arrives.
    }
}
