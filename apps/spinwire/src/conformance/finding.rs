//! What a check has found.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::cli::Part;

/// What was expected of a device, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) part: Part,
    /// The check, as the table of quirks names it.
    pub(crate) check: String,
    /// How the queue pairs reach each other; empty where it does not matter.
    pub(crate) path: &'static str,
    /// What had to happen,
    pub(crate) expected: String,
    /// and who says so.
    pub(crate) source: &'static str,
    /// What happened.
    pub(crate) seen: String,
    pub(crate) deviates: bool,
}

/// A question to a device: its name within its part, and whose rule it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
}

pub(super) const fn question(name: &'static str, source: &'static str) -> Question {
    Question { name, source }
}

/// The findings of one part over one path.
#[derive(Debug)]
pub(super) struct Findings {
    part: Part,
    path: &'static str,
    list: Vec<Finding>,
}

impl Findings {
    pub(super) const fn new(part: Part, path: &'static str) -> Self {
        Self { part, path, list: Vec::new() }
    }

    pub(super) fn into_list(self) -> Vec<Finding> {
        self.list
    }

    /// What was seen must be what was expected, in the same words.
    pub(super) fn same(&mut self, question: Question, expected: impl Display, seen: impl Display) {
        let (expected, seen) = (expected.to_string(), seen.to_string());
        let deviates = expected != seen;
        self.enter(question, expected, seen, deviates);
    }

    /// A time within bounds.
    pub(super) fn within(
        &mut self,
        question: Question,
        what: &str,
        bounds: &RangeInclusive<Duration>,
        took: Duration,
    ) {
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let expected = format!("{what} after {} to {}", ms(*bounds.start()), ms(*bounds.end()));
        let seen = format!("{what} after {}", ms(took));
        let deviates = !bounds.contains(&took);
        self.enter(question, expected, seen, deviates);
    }

    fn enter(&mut self, question: Question, expected: String, seen: String, deviates: bool) {
        let Question { name, source } = question;
        let check = format!("{}.{name}", self.part.name());
        let (part, path) = (self.part, self.path);
        self.list.push(Finding { part, check, path, expected, source, seen, deviates });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_within_their_bounds_or_deviate() {
        let ms = Duration::from_millis;
        let mut findings = Findings::new(Part::Flush, "packets");
        let bounds = ms(10)..=ms(40);
        for took in [9, 10, 40, 41].map(ms) {
            findings.within(question("x", "IBTA"), "an end", &bounds, took);
        }
        let list = findings.into_list();
        let deviate: Vec<_> = list.iter().map(|finding| finding.deviates).collect();
        assert_eq!(deviate, [true, false, false, true]);
        assert_eq!(list[0].check, "flush.x");
        assert_eq!(list[0].expected, "an end after 10.0 ms to 40.0 ms");
        assert_eq!(list[0].seen, "an end after 9.0 ms");
    }
}
