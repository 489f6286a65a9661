//! Rules as text, as `--fault` takes them:
//!
//! ```text
//! drop|delay T|dup|reorder|corrupt|partition
//!     [all|acks|OPCODE] [to NODE] [from NODE] [after N] [every N] [count N] [for T] [psn N]
//! ```
//!
//! `for T` heals: frames are hit for so long, counted from the first that can be. T carries its unit (`ns`, `us`, `ms`, `s`); N is decimal, or hexadecimal after `0x`. What an
//! opcode or a node is called, the caller knows.

use super::rule::{Action, Match, OpcodeSet, Rule};

/// A rule, and the nodes it names, for the caller to look up and put into
/// [`Match::to`](super::Match::to), [`Match::from`](super::Match::from) or
/// [`Match::qpn`](super::Match::qpn).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRule<'a> {
    /// The rule, without the nodes.
    pub rule: Rule,
    /// The node after `to`.
    pub to: Option<&'a str>,
    /// The node after `from`.
    pub from: Option<&'a str>,
}

/// Why a text is not a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRuleError {
    /// It does not begin with an action.
    #[error(
        "a fault begins with drop, delay TIME, dup, reorder, corrupt, partition or flip (a pipeline's with hang, too), not with {0:?}"
    )]
    Action(String),
    /// A word that is neither an opcode nor a condition.
    #[error(
        "{0:?} is neither an opcode (acks, all, or a name such as WRITE_MIDDLE) nor one of \
         to NODE, from NODE, after N, every N, count N, for T, psn N"
    )]
    Word(String),
    /// Nothing follows a word that needs something.
    #[error("{0:?} lacks its {1}")]
    Missing(&'static str, &'static str),
    /// Not a time.
    #[error("{0:?} is not a time: write it with its unit, as in 5ms (ns, us, ms or s)")]
    Time(String),
    /// It is over before it begins.
    #[error("{0:?} is no time to hit anything in: leave `for` out, or give it more")]
    Never(String),
    /// Not a number, or too large.
    #[error("{1:?} after {0} is not a whole number from {2} to {3}")]
    Number(&'static str, String, u64, u64),
    /// The same condition twice.
    #[error("{0:?} occurs twice")]
    Twice(&'static str),
}

/// Reads one rule. `opcodes` gives the opcodes of a name other than `all`.
///
/// # Errors
/// [`ParseRuleError`], which says what was expected.
pub fn parse<'a>(
    text: &'a str,
    opcodes: &dyn Fn(&str) -> Option<OpcodeSet>,
) -> Result<ParsedRule<'a>, ParseRuleError> {
    let mut words = text.split_whitespace();
    let action = match words.next().unwrap_or_default() {
        "drop" => Action::Drop,
        "delay" => Action::Delay {
            ns: nanoseconds(words.next().ok_or(ParseRuleError::Missing("delay", "time"))?)?,
        },
        "dup" => Action::Duplicate,
        "reorder" => Action::Reorder,
        "corrupt" => Action::Corrupt,
        "partition" => Action::Partition,
        other => return Err(ParseRuleError::Action(other.to_owned())),
    };
    let mut which = None;
    let (mut to, mut from) = (None, None);
    let (mut after, mut every, mut count, mut psn) = (None, None, None, None);
    let mut lasts = None;
    while let Some(word) = words.next() {
        match word {
            "to" => node(&mut to, "to", words.next())?,
            "from" => node(&mut from, "from", words.next())?,
            "after" => number(&mut after, "after", words.next(), 0, u64::MAX)?,
            "every" => number(&mut every, "every", words.next(), 1, u64::MAX)?,
            "count" => number(&mut count, "count", words.next(), 1, u64::MAX)?,
            "for" => {
                let time = words.next().ok_or(ParseRuleError::Missing("for", "time"))?;
                let ns = match nanoseconds(time)? {
                    0 => return Err(ParseRuleError::Never(time.to_owned())),
                    ns => ns,
                };
                once(&mut lasts, "for", ns)?;
            }
            "psn" => number(&mut psn, "psn", words.next(), 0, 0xff_ffff)?,
            word => {
                let named = if word == "all" { Some(OpcodeSet::ALL) } else { opcodes(word) };
                let named = named.ok_or_else(|| ParseRuleError::Word(word.to_owned()))?;
                once(&mut which, "opcode", named)?;
            }
        }
    }
    let matching = Match {
        opcodes: which.unwrap_or(OpcodeSet::ALL),
        psn: psn.and_then(|psn| u32::try_from(psn).ok()),
        after: after.unwrap_or(0),
        every: every.unwrap_or(1),
        count: count.unwrap_or(0),
        lasts_ns: lasts.unwrap_or(0),
        ..Match::default()
    };
    Ok(ParsedRule { rule: Rule { action, matching }, to, from })
}

fn once<T>(place: &mut Option<T>, name: &'static str, value: T) -> Result<(), ParseRuleError> {
    if place.replace(value).is_some() { Err(ParseRuleError::Twice(name)) } else { Ok(()) }
}

fn node<'a>(
    place: &mut Option<&'a str>,
    name: &'static str,
    word: Option<&'a str>,
) -> Result<(), ParseRuleError> {
    once(place, name, word.ok_or(ParseRuleError::Missing(name, "node"))?)
}

fn number(
    place: &mut Option<u64>,
    name: &'static str,
    word: Option<&str>,
    min: u64,
    max: u64,
) -> Result<(), ParseRuleError> {
    let word = word.ok_or(ParseRuleError::Missing(name, "number"))?;
    let number = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    match number {
        Ok(number) if (min..=max).contains(&number) => once(place, name, number),
        _ => Err(ParseRuleError::Number(name, word.to_owned(), min, max)),
    }
}

fn nanoseconds(word: &str) -> Result<u64, ParseRuleError> {
    let digits = word.len() - word.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = word.split_at(digits);
    let unit = match unit {
        "ns" => Some(1),
        "us" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        _ => None,
    };
    let parsed = number.parse::<u64>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
    parsed.ok_or_else(|| ParseRuleError::Time(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Option<OpcodeSet> {
        match name {
            "acks" => Some([0x11].into_iter().collect()),
            "WRITE_MIDDLE" => Some([0x07, 0x27].into_iter().collect()),
            _ => None,
        }
    }

    #[test]
    fn rules_are_read_as_they_are_documented() {
        let rule = |action, matching| Rule { action, matching };
        let acks = names("acks").unwrap();
        let table = [
            ("drop", rule(Action::Drop, Match::default()), None, None),
            (
                "drop acks after 10",
                rule(Action::Drop, Match { opcodes: acks, after: 10, ..Match::default() }),
                None,
                None,
            ),
            (
                "corrupt all every 50",
                rule(Action::Corrupt, Match { every: 50, ..Match::default() }),
                None,
                None,
            ),
            (
                "delay 5ms to target from client count 3",
                rule(Action::Delay { ns: 5_000_000 }, Match { count: 3, ..Match::default() }),
                Some("target"),
                Some("client"),
            ),
            (
                "dup WRITE_MIDDLE psn 0xfffffe",
                rule(
                    Action::Duplicate,
                    Match {
                        opcodes: names("WRITE_MIDDLE").unwrap(),
                        psn: Some(0xff_fffe),
                        ..Match::default()
                    },
                ),
                None,
                None,
            ),
            (
                "drop all after 9 for 800ms",
                rule(Action::Drop, Match { after: 9, lasts_ns: 800_000_000, ..Match::default() }),
                None,
                None,
            ),
            ("partition to b", rule(Action::Partition, Match::default()), Some("b"), None),
            ("reorder", rule(Action::Reorder, Match::default()), None, None),
        ];
        for (text, rule, to, from) in table {
            assert_eq!(parse(text, &names), Ok(ParsedRule { rule, to, from }), "{text}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_reason() {
        let table = [
            ("", "a fault begins with"),
            ("lose", "not with \"lose\""),
            ("lose", "reorder, corrupt, partition or flip (a pipeline's with hang, too)"),
            ("delay", "lacks its time"),
            ("delay 5", "write it with its unit"),
            ("delay ms", "write it with its unit"),
            ("delay 99999999999999999s", "write it with its unit"),
            ("drop after", "lacks its number"),
            ("drop for", "lacks its time"),
            ("drop for 5", "write it with its unit"),
            ("drop for 5ms for 6ms", "occurs twice"),
            ("drop for 0s", "is no time to hit anything in"),
            ("drop to", "lacks its node"),
            ("drop after x", "\"x\" after after is not a whole number"),
            ("drop every 0", "from 1 to"),
            ("drop psn 0x1000000", "from 0 to 16777215"),
            ("drop nothing", "neither an opcode"),
            ("drop acks all", "occurs twice"),
            ("drop after 1 after 2", "occurs twice"),
        ];
        for (text, reason) in table {
            let error = parse(text, &names).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
