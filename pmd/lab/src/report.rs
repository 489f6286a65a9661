//! What came of a scenario, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use pmd_observe::Verdict;
use serde::Serialize;

use crate::judge::Expectation;

/// What came of a scenario. As JSON: one object with stable keys.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Every expectation was met.
    pub ok: bool,
    /// The seed.
    pub seed: u64,
    /// Hash over every input and output of every engine, 16 hexadecimal digits.
    pub trace_hash: String,
    /// Virtual time that passed.
    pub elapsed_virtual_s: f64,
    /// What must be, and whether it was.
    pub expectations: Vec<Expectation>,
    /// The diagnosis of each connection.
    pub verdicts: Vec<Diagnosis>,
    /// What became of each connection.
    pub qps: Vec<Summary>,
    /// Asynchronous events, in the order in which they came.
    pub events: Vec<Event>,
}

/// An asynchronous event.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Virtual time, seconds.
    pub at_s: f64,
    /// Whose device raised it.
    pub host: String,
    /// What it was, and of what.
    pub event: String,
}

/// The diagnosis of a connection.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Which connection.
    pub qp: String,
    /// What is wrong with it.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// What became of a connection.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// Requests by status.
    pub statuses: BTreeMap<String, u64>,
    /// Receives by status.
    pub receives: BTreeMap<String, u64>,
    /// Asynchronous events by name.
    pub events: BTreeMap<String, u64>,
    /// States of its two queue pairs in the end.
    pub states: [String; 2],
    /// Seconds that each recovery took.
    pub recoveries_s: Vec<f64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for expectation in &self.expectations {
            let Expectation { text, met, seen } = expectation;
            match met {
                true => writeln!(f, "met      {text} ({seen})")?,
                false => writeln!(f, "NOT MET  {text}\n         seen instead: {seen}")?,
            }
        }
        let mut told: Vec<(&Verdict, Vec<&str>)> = Vec::new();
        for Diagnosis { qp, verdict } in self.verdicts.iter().filter(|one| !one.verdict.is_ok()) {
            match told.iter_mut().find(|(known, _)| *known == verdict) {
                Some((_, qps)) => qps.push(qp),
                None => told.push((verdict, vec![qp])),
            }
        }
        // What several queue pairs have met is told once.
        for (verdict, qps) in told {
            writeln!(f, "\n{}: {verdict}", qps.join(", "))?;
        }
        let met = self.expectations.iter().filter(|one| one.met).count();
        writeln!(
            f,
            "\n{met} of {} expectations met; seed {}, trace {}, {:.6} s of virtual time",
            self.expectations.len(),
            self.seed,
            self.trace_hash,
            self.elapsed_virtual_s
        )
    }
}
