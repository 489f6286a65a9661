//! What people are told.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes a line to stderr. Where stderr takes nothing, as a closed pipe or a full disk, there is nobody to tell, and the
/// exit code still says how it ended.
pub fn say(text: impl Display) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}
