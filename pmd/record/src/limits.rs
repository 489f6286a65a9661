//! Every limit of a record, by name.

use core::time::Duration;

/// Bytes of a record, unless it is made with another limit: then it is cut, and the run goes on.
pub const RECORD_BYTES: u64 = 1 << 30;
/// A part of the file is written once it has so many bytes,
pub const WRITE_BYTES: usize = 64 << 10;
/// or once its first input is so old: what `kill -9` takes away.
pub const WRITE_AFTER: Duration = Duration::from_millis(100);
/// Largest part of a file: whole inputs, each with what came of it.
pub const MAX_PART: usize = 16 << 20;
/// Engines of one record.
pub const MAX_ENGINES: usize = 64;
/// Notes of one record, and the bytes of each.
pub const MAX_NOTES: usize = 64;
/// Bytes of a note, of the name of an engine, and of the reason why a record was cut.
pub const MAX_TEXT: usize = 4096;
/// Objects that the engine of a record may have room for, besides queue pairs.
pub const MAX_OBJECTS: usize = 1 << 16;
/// Memory that the queues of all engines of a record may take while it is replayed, in bytes: a file is
/// not believed.
pub const REPLAY_BYTES: u64 = 1 << 30;
