//! Sizes and durations as people write them: `64KiB`, `5s`.

use std::fmt;
use std::time::Duration;

use super::suggest;

/// A number of bytes. `Display` takes the largest binary unit that divides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

const SIZE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const TIME_UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl Size {
    /// `n` bytes.
    pub const fn bytes(n: u64) -> Self {
        Self(n)
    }

    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// `n` TiB.
    pub const fn tib(n: u64) -> Self {
        Self(n << 40)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in SIZE_UNITS[1..5].iter().rev() {
            if self.0 != 0 && self.0.is_multiple_of(*bytes) {
                return write!(f, "{}{unit}", self.0 / bytes);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// Why a text is not a size or a duration, and what it may have meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    /// What is wrong with it.
    pub reason: String,
    /// The text to write instead, where one can be guessed.
    pub meant: Option<String>,
}

/// Reads `64KiB`, `1 GiB`, `200MB`.
///
/// # Errors
/// When there is no whole number, no unit that is known, or too many bytes for 64 bits.
pub fn parse_size(text: &str) -> Result<Size, UnitError> {
    let units: &[(&str, u64)] = &SIZE_UNITS;
    parse(text, units, "64KiB", "a size").map(Size)
}

/// Reads `5s`, `100us`, `2m`.
///
/// # Errors
/// When there is no whole number, no unit that is known, or too long a time for 64 bits of nanoseconds.
pub fn parse_time(text: &str) -> Result<Duration, UnitError> {
    parse(&text.replace('µ', "u"), &TIME_UNITS, "5s", "a duration").map(Duration::from_nanos)
}

/// A duration in the largest unit that divides it: `5s`, `100us`.
pub fn show_time(time: Duration) -> String {
    let nanos = time.as_nanos();
    for (unit, length) in TIME_UNITS.iter().rev() {
        if nanos != 0 && nanos.is_multiple_of(u128::from(*length)) {
            return format!("{}{unit}", nanos / u128::from(*length));
        }
    }
    format!("{nanos}ns")
}

fn parse(text: &str, units: &[(&str, u64)], example: &str, what: &str) -> Result<u64, UnitError> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    if number.is_empty() {
        return Err(UnitError {
            reason: format!("{what} begins with a whole number, as in \"{example}\""),
            meant: None,
        });
    }
    if unit.is_empty() {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        return Err(UnitError {
            reason: format!("{what} carries a unit: {}", names.join(", ")),
            meant: None,
        });
    }
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let near = match unit {
            "K" | "k" => Some("KiB"),
            "M" => Some("MiB"),
            "G" | "g" => Some("GiB"),
            "T" | "t" => Some("TiB"),
            _ => suggest::nearest(unit, units.iter().map(|(name, _)| *name)),
        }
        .filter(|near| units.iter().any(|(name, _)| name == near));
        let reason = if unit.starts_with('.') {
            format!("{what} is a whole number of a unit, as in \"{example}\"")
        } else {
            format!("`{unit}` is not a unit of {what}")
        };
        return Err(UnitError { reason, meant: near.map(|near| format!("{number}{near}")) });
    };
    let value = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*scale));
    value.ok_or_else(|| UnitError {
        reason: format!("{what} of {text} is beyond 64 bits"),
        meant: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_show_the_same() {
        for text in ["1B", "64KiB", "256MiB", "1GiB", "4TiB", "3000001B"] {
            assert_eq!(parse_size(text).unwrap().to_string(), text);
        }
        assert_eq!(parse_size("200MB").unwrap().get(), 200_000_000);
        assert_eq!(parse_size("1 GiB").unwrap(), Size::gib(1));
        assert_eq!(parse_size("0B").unwrap().to_string(), "0B");
    }

    #[test]
    fn bad_sizes_say_what_was_meant() {
        let meant = |text| parse_size(text).unwrap_err().meant;
        assert_eq!(meant("64KiBB").as_deref(), Some("64KiB"));
        assert_eq!(meant("64K").as_deref(), Some("64KiB"));
        assert_eq!(meant("64kib").as_deref(), Some("64KiB"));
        assert_eq!(meant("64 parsecs"), None);
        assert_eq!(meant("64"), None);
        assert!(parse_size("99999999999TiB").unwrap_err().reason.contains("64 bits"));
        assert!(parse_size("99999999999999999999B").unwrap_err().reason.contains("64 bits"));
        assert!(parse_size("-1B").unwrap_err().reason.contains("whole number"));
        assert!(parse_size("1.5GiB").unwrap_err().reason.contains("whole number"));
        assert!(parse_size("").unwrap_err().reason.contains("whole number"));
    }

    #[test]
    fn times_read_and_show_the_same() {
        for text in ["5s", "100us", "1ns", "90s", "2h"] {
            assert_eq!(show_time(parse_time(text).unwrap()), text);
        }
        assert_eq!(parse_time("3µs").unwrap(), Duration::from_micros(3));
        assert_eq!(parse_time("5sec").unwrap_err().meant, None);
        assert_eq!(parse_time("5S").unwrap_err().meant.as_deref(), Some("5s"));
        assert!(parse_time("5").unwrap_err().reason.contains("unit"));
    }
}
