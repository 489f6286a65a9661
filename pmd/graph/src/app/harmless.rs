//! Text that a terminal shows and does not obey.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with every control character but newline and tab, and every mark that turns the direction of writing, as
/// `\u001b`: names, verdicts and journals may come from other processes and files. In JSON such characters stand within
/// strings only, where this means the same.
pub fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut tamed = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) {
            write!(tamed, "\\u{:04x}", u32::from(c)).expect("a string takes all");
        } else {
            tamed.push(c);
        }
    }
    Cow::Owned(tamed)
}

fn is_harmful(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (c.is_control() && !matches!(c, '\n' | '\t')) || turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        assert!(matches!(harmless("a table\n\twith µ and 漢\n"), Cow::Borrowed(_)));
        assert_eq!(harmless("\x1b]0;title\x07\r"), "\\u001b]0;title\\u0007\\u000d");
        assert_eq!(harmless("\u{9b}2J\u{7f}"), "\\u009b2J\\u007f");
        assert_eq!(harmless("a\u{202e}b"), "a\\u202eb");
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::json!({ "name": "\u{9b}2J\u{7f}\u{1b}[m\u{2066}" });
        let text = value.to_string();
        let tamed = harmless(&text);
        assert!(!tamed.chars().any(is_harmful));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&tamed).unwrap(), value);
    }
}
