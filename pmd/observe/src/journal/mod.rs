//! The transition journal: every attempt to move a queue pair, refused ones included, and every move that it made by
//! itself.
//!
//! An lcore writes [`Words`] into a [`ring()`], which costs no memory, no lock and no call; a control thread reads them, has
//! them made into [`Record`]s by whoever knows what the words mean, and keeps these as [`Line`]s of a file.

mod record;
mod ring;

pub use record::{Attr, By, Cause, Line, Record, Refusal, VERSION};
pub use ring::{Read, Reader, WORDS, Words, Writer, ring};
