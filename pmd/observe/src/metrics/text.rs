//! Prometheus text, line by line.

use std::fmt::Write as _;

use super::families::{Family, Kind};
use crate::status::Times;

/// Labels of a series, as they stand between braces.
#[derive(Clone, Debug, Default)]
pub(super) struct Labels(String);

impl Labels {
    pub(super) fn none() -> Self {
        Self::default()
    }

    pub(super) fn of(pairs: &[(&str, &str)]) -> Self {
        pairs.iter().fold(Self::none(), |labels, (name, value)| labels.and(name, value))
    }

    /// These and one more.
    pub(super) fn and(&self, name: &str, value: &str) -> Self {
        let Self(text) = self;
        let comma = if text.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        Self(format!("{text}{comma}{name}=\"{value}\""))
    }
}

/// A page of metrics.
#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    /// A family with its series; nothing where there are none.
    pub(super) fn family(
        &mut self,
        family: &Family,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        self.head(&family.name, family.kind, &family.help);
        for (labels, value) in values {
            self.line(&family.name, &labels, value);
        }
    }

    /// A counter of the engine under the name that starts with `prefix`.
    pub(super) fn counter(
        &mut self,
        prefix: &str,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        self.family(&Family::counter(prefix, name, &[], help), values);
    }

    /// How long something took: quantiles, sum and count.
    pub(super) fn summary(
        &mut self,
        family: &Family,
        values: impl IntoIterator<Item = (Labels, Times)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        let name = &family.name;
        self.head(name, family.kind, &family.help);
        let (sum, count) = (format!("{name}_sum"), format!("{name}_count"));
        for (labels, times) in values {
            self.line(name, &labels.and("quantile", "0.5"), seconds(times.p50_ns));
            self.line(name, &labels.and("quantile", "0.99"), seconds(times.p99_ns));
            self.line(&sum, &labels, times.sum_s);
            self.line(&count, &labels, super::count(times.count));
        }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    fn head(&mut self, name: &str, kind: Kind, help: &str) {
        // Writing to a string cannot fail.
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str())
            .unwrap_or_default();
    }

    fn line(&mut self, name: &str, Labels(labels): &Labels, value: f64) {
        let written = match labels.as_str() {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
        written.unwrap_or_default();
    }
}

fn seconds(ns: u64) -> f64 {
    super::count(ns) / 1e9
}
