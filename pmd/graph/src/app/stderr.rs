//! What people are told.

use std::fmt::Display;
use std::io::{self, Write};

use super::harmless::harmless;

/// Writes a line to stderr, harmless to a terminal. Where stderr takes nothing, as a closed pipe or a full disk, there is nobody to tell, and the
/// exit code still says how it ended.
pub fn say(text: impl Display) {
    say_as_it_is(harmless(&text.to_string()));
}

/// The same for what is coloured and was made harmless before.
pub(super) fn say_as_it_is(text: impl Display) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}
