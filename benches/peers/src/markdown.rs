//! The table, as Markdown.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::row::{Unit, Want};
use crate::schedule::{Measured, Medians, Regime};

const BEGIN: &str = "<!-- peers -->";
const END: &str = "<!-- /peers -->";

/// The rows of which something is wanted.
pub(crate) fn summary(rows: &[Measured]) -> String {
    table(rows.iter().filter(|row| !matches!(row.row.want, Want::Nothing)))
}

/// The table: a line per row and regime.
pub(crate) fn table<'a>(rows: impl IntoIterator<Item = &'a Measured>) -> String {
    let mut text = String::from(
        "| work | probe | spinwire | peer | | ratio | wanted | |\n|---|--:|--:|--:|---|--:|--:|---|\n",
    );
    for row in rows {
        let mut is_there = false;
        for regime in [Regime::Fast, Regime::Slow] {
            if let Some(medians) = row.medians(regime) {
                is_there = true;
                line(&mut text, row, &medians);
            }
        }
        if !is_there {
            let why = row.failure.as_deref().unwrap_or("the probe changed during every pair");
            let name = &row.row.name;
            writeln!(
                text,
                "| {name} | – | – | – | {} | – | – | not measured: {why} |",
                row.row.peer_name
            )
            .unwrap_or_default();
        }
    }
    text
}

fn line(text: &mut String, row: &Measured, medians: &Medians) {
    let unit = row.row.unit.name();
    let (ours, peer) = (figure(medians.ours), figure(medians.peer));
    let (ratio, wanted) = match row.row.want {
        Want::Above(want) => (format!("+{} ns", figure(medians.above)), format!("≤ +{want} ns")),
        Want::Ratio(want) => {
            let sign = if row.row.unit == Unit::Latency { "≤" } else { "≥" };
            (format!("{:.2}x", medians.ratio), format!("{sign} {want}x"))
        }
        Want::Nothing => (format!("{:.2}x", medians.ratio), String::new()),
    };
    let verdict = match row.is_met(medians) {
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "",
    };
    let (name, peer_name, pairs) = (&row.row.name, row.row.peer_name, medians.pairs);
    writeln!(
        text,
        "| {name} | {:.0} ns | {ours} {unit} | {peer} {unit} | {peer_name} | {ratio} | {wanted} | {verdict} (n={pairs}) |",
        medians.probe_ns
    )
    .unwrap_or_default();
}

/// Three digits that count.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Writes a file of its own.
pub(crate) fn write(path: &Path, table: &str) -> Result<()> {
    std::fs::write(path, table).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces what is between the two marks.
pub(crate) fn put_in_section(path: &Path, table: &str) -> Result<()> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let new = replaced(&text, table)
        .with_context(|| format!("{} has no {BEGIN} … {END} section", path.display()))?;
    write(path, &new)
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let from = text.find(BEGIN)? + BEGIN.len();
    let to = from + text[from..].find(END)?;
    Some(format!("{}\n{table}{}", &text[..from], &text[to..]))
}

/// Results go to stdout.
pub(crate) fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_nothing_else() {
        let text = "a\n<!-- peers -->\nold\n<!-- /peers -->\nb\n";
        let new = replaced(text, "| new |\n").expect("a section");
        assert_eq!(new, "a\n<!-- peers -->\n| new |\n<!-- /peers -->\nb\n");
        assert_eq!(replaced("nothing", ""), None);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([123.4, 12.34, 1.234, 0.1234].map(figure), ["123", "12.3", "1.23", "0.123"]);
    }
}
