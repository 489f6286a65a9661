//! A run on record: the scenario, the seed, and every input of every engine with its time.
//!
//! The first line is JSON: `{format, seed, trace_hash, inputs, sum, scenario}`, where `sum` is the CRC-32 of all the rest: seed,
//! hash, scenario and inputs. Each further line is one input: nanoseconds of
//! virtual time, the host, and what it was. A replay makes the world again from the scenario and the seed, and compares
//! input by input, so that it is exact or says where it is not.

use std::fmt::Write as _;

use pmd_sim::Input;
use serde::{Deserialize, Serialize};

use crate::scenario::Scenario;
use crate::{Report, SetupError, run_recorded};

/// The version of the format.
const FORMAT: u32 = 2;

/// A run on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tape {
    head: Head,
    inputs: Vec<String>,
    /// Whether they are not what was written.
    is_damaged: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    format: u32,
    seed: u64,
    trace_hash: String,
    inputs: usize,
    sum: u32,
    scenario: String,
}

/// Why a tape is not played.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    /// It is not what was written.
    #[error("the record is damaged: {0}")]
    Damaged(String),
    /// It is no tape.
    #[error("this is no record of a run: {0}")]
    Format(String),
    /// The scenario in it is refused.
    #[error("the scenario on record is refused:\n{0}")]
    Scenario(Box<pmd_graph::diagnostic::Report>),
    /// The world cannot be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Something else happened than what is on record.
    #[error("input {number} differs\n  on record: {recorded}\n  now:       {now}{}", damage(*is_damaged))]
    Differs {
        /// Which input, from 0.
        number: usize,
        /// What it was.
        recorded: String,
        /// What it is.
        now: String,
        /// Whether the record is not what was written.
        is_damaged: bool,
    },
    /// The inputs are the same, and what came of them is not.
    #[error("the inputs are the same, and the trace is another one: {now} instead of {recorded}")]
    Trace {
        /// The hash on record.
        recorded: String,
        /// The hash now.
        now: String,
    },
}

/// What is added where a record is not what was written.
const fn damage(is_damaged: bool) -> &'static str {
    if is_damaged { "\nthe record is damaged: its checksum is another one" } else { "" }
}

/// The CRC-32 of everything but itself.
fn sum(head: &Head, inputs: &[String]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head.seed.to_le_bytes());
    for text in [&head.trace_hash, &head.scenario].into_iter().chain(inputs) {
        hasher.update(text.as_bytes());
        hasher.update(b"\n");
    }
    hasher.finalize()
}

impl Tape {
    pub(crate) fn new(scenario: &Scenario, seed: u64, trace_hash: &str, inputs: &[Input]) -> Self {
        let inputs: Vec<String> = inputs
            .iter()
            .map(|input| format!("{} {} {}", input.at.0, input.host.index(), input.what))
            .collect();
        let head = Head {
            format: FORMAT,
            seed,
            trace_hash: trace_hash.to_owned(),
            inputs: inputs.len(),
            sum: 0,
            scenario: scenario.text.clone(),
        };
        let head = Head { sum: sum(&head, &inputs), ..head };
        Self { head, inputs, is_damaged: false }
    }

    /// How many inputs there are.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// As the text of a file.
    ///
    /// # Errors
    /// When the head cannot be written as JSON, which does not happen.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string(&self.head)?;
        for input in &self.inputs {
            // A String takes everything.
            let written = write!(text, "\n{input}");
            debug_assert!(written.is_ok());
        }
        text.push('\n');
        Ok(text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`TapeError::Format`] or [`TapeError::Damaged`].
    pub fn from_text(text: &str) -> Result<Self, TapeError> {
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default();
        let head: Head =
            serde_json::from_str(head).map_err(|error| TapeError::Format(error.to_string()))?;
        if head.format != FORMAT {
            return Err(TapeError::Format(format!("format {}, not {FORMAT}", head.format)));
        }
        let inputs: Vec<String> = lines.map(str::to_owned).collect();
        if inputs.len() != head.inputs {
            let found = inputs.len();
            return Err(TapeError::Damaged(format!("it holds {found} inputs of {}", head.inputs)));
        }
        let is_damaged = head.sum != sum(&head, &inputs);
        Ok(Self { head, inputs, is_damaged })
    }

    /// Plays it: the same world again, every input compared with the one on record.
    ///
    /// # Errors
    /// [`TapeError`] names the first input that differs.
    pub fn replay(&self) -> Result<Report, TapeError> {
        let played = self.play()?;
        if self.is_damaged {
            return Err(TapeError::Damaged("its checksum is another one".into()));
        }
        Ok(played)
    }

    fn play(&self) -> Result<Report, TapeError> {
        let scenario = Scenario::parse("the scenario on record", &self.head.scenario)
            .map_err(|report| TapeError::Scenario(Box::new(report)))?;
        let (report, now) = run_recorded(&scenario, self.head.seed, true)?;
        let nothing = || "nothing".to_owned();
        for number in 0..self.inputs.len().max(now.inputs.len()) {
            let (recorded, now) = (self.inputs.get(number), now.inputs.get(number));
            if recorded != now {
                let recorded = recorded.cloned().unwrap_or_else(nothing);
                let now = now.cloned().unwrap_or_else(nothing);
                return Err(TapeError::Differs {
                    number,
                    recorded,
                    now,
                    is_damaged: self.is_damaged,
                });
            }
        }
        if now.head.trace_hash != self.head.trace_hash {
            let (recorded, now) = (self.head.trace_hash.clone(), now.head.trace_hash);
            return Err(TapeError::Trace { recorded, now });
        }
        Ok(report)
    }
}
