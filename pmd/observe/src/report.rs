//! Numbers and tables for people.
//!
//! Sizes count in powers of two, as the configuration writes them; rates in powers of ten, as links are sold. What a
//! program should read goes into JSON, unrounded.

use std::fmt;
use std::time::Duration;

/// `value` with about three significant digits, in the largest unit that leaves at least one before the point.
///
/// `units` begins with the unit of `value`; each is `step` times the one before.
fn scaled(f: &mut fmt::Formatter<'_>, mut value: f64, step: f64, units: &[&str]) -> fmt::Result {
    let mut units = units.iter().peekable();
    let mut unit = units.next().copied().unwrap_or_default();
    // What would be printed as a whole `step` belongs to the next unit.
    while value >= step - 0.5 && units.peek().is_some() {
        value /= step;
        unit = units.next().copied().unwrap_or_default();
    }
    let decimals = match value {
        v if v.fract() == 0.0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    f.pad(format!("{value:.decimals$} {unit}").trim_end())
}

/// The nearest `f64`: rounding is what a report is for.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
const fn approx(value: u64) -> f64 {
    value as f64
}

/// A size in bytes: `64 KiB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, approx(self.0), 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
    }
}

/// A rate in bytes per second: `12.5 GB/s`.
#[derive(Clone, Copy, Debug)]
pub struct BytesPerSecond(pub f64);

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
    }
}

/// A rate of messages or I/O operations per second: `1.25 M/s`.
#[derive(Clone, Copy, Debug)]
pub struct PerSecond(pub f64);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1000.0, &["/s", "k/s", "M/s", "G/s"])
    }
}

/// A count: `1.25 M`.
#[derive(Clone, Copy, Debug)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, approx(self.0), 1000.0, &["", "k", "M", "G", "T"])
    }
}

/// A span in nanoseconds: `4.1 us`.
#[derive(Clone, Copy, Debug)]
pub struct Nanos(pub u64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, approx(self.0), 1000.0, &["ns", "us", "ms", "s"])
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A share of one: `97.3 %`.
#[derive(Clone, Copy, Debug)]
pub struct Percent(pub f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.1} %", self.0 * 100.0))
    }
}

/// `amount` per second over `elapsed`; zero where no time passed.
pub fn per_second(amount: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { approx(amount) / elapsed.as_secs_f64() }
}

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// Rows of text in aligned columns under a heading. Every line ends in a newline and carries no trailing spaces.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these headings.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|&(heading, align)| (heading.to_owned(), align)).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Appends a row: one cell for each column.
    ///
    /// # Panics
    /// Where the number of cells is not the number of columns.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        // A cell is part of one line, whatever is in it.
        let cell = |cell: C| cell.into().replace(['\n', '\r', '\t'], " ");
        let cells: Vec<String> = cells.into_iter().map(cell).collect();
        assert_eq!(cells.len(), self.columns.len(), "a cell for every column");
        self.rows.push(cells);
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Characters that the widest cell of `column` takes, its heading included.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[column]);
        cells.chain([&self.columns[column].0]).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        let headings: Vec<String> =
            self.columns.iter().map(|(heading, _)| heading.clone()).collect();
        for row in [&headings].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((cell, &width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}")),
                    Align::Right => line.push_str(&format!("{cell:>width$}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_powers_of_two() {
        let shown = [0, 1, 1023, 1024, 65_536, 1_500_000, 256 << 20, 3 << 40, u64::MAX]
            .map(|n| Bytes(n).to_string());
        let expected = [
            "0 B",
            "1 B",
            "1023 B",
            "1 KiB",
            "64 KiB",
            "1.43 MiB",
            "256 MiB",
            "3 TiB",
            "16384 PiB",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn rates_in_powers_of_ten() {
        assert_eq!(BytesPerSecond(12.5e9).to_string(), "12.5 GB/s");
        assert_eq!(BytesPerSecond(999.7).to_string(), "1.00 kB/s");
        assert_eq!(PerSecond(1_254_000.0).to_string(), "1.25 M/s");
        assert_eq!(PerSecond(0.0).to_string(), "0 /s");
        assert_eq!(Count(999).to_string(), "999");
        assert_eq!(Count(1_250).to_string(), "1.25 k");
    }

    #[test]
    fn spans() {
        let shown = [7, 4_100, 18_250, 999_600, 1_000_000, 2_500_000_000, 90_000_000_000]
            .map(|n| Nanos(n).to_string());
        assert_eq!(shown, ["7 ns", "4.10 us", "18.2 us", "1.00 ms", "1 ms", "2.50 s", "90 s"]);
        assert_eq!(Nanos::from(Duration::from_micros(250)).to_string(), "250 us");
    }

    #[test]
    fn padding_applies_to_number_and_unit_together() {
        assert_eq!(format!("[{:>10}]", Bytes(65_536)), "[    64 KiB]");
        assert_eq!(format!("[{:<8}]", Percent(0.9731)), "[97.3 %  ]");
    }

    #[test]
    fn rate_of_no_time_is_zero() {
        assert_eq!(per_second(10, Duration::ZERO).to_bits(), 0.0_f64.to_bits());
        assert_eq!(per_second(10, Duration::from_millis(500)).to_bits(), 20.0_f64.to_bits());
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("node", Align::Left), ("rate", Align::Right)]);
        table.row(["client", "12.5 GB/s"]);
        table.row(["größe", "7 B/s"]);
        assert_eq!(table.to_string(), "node         rate\nclient  12.5 GB/s\ngröße       7 B/s\n");
    }

    #[test]
    fn no_trailing_spaces_and_headings_even_without_rows() {
        let mut table = Table::new(&[("a", Align::Left), ("long heading", Align::Left)]);
        assert_eq!(table.to_string(), "a  long heading\n");
        table.row(["x", ""]);
        assert_eq!(table.to_string(), "a  long heading\nx\n");
    }

    #[test]
    #[should_panic(expected = "a cell for every column")]
    fn a_short_row_is_a_programmer_error() {
        Table::new(&[("a", Align::Left), ("b", Align::Left)]).row(["x"]);
    }
}
