//! Every input of every engine, for whoever wants to see or compare them.

use pmd_roce::ids::Instant;

use crate::host::HostId;
use crate::trace::Trace;

/// An input of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// When.
    pub at: Instant,
    /// Whose.
    pub host: HostId,
    /// What: `turn`, or `frame`, `record` or `command` and its content.
    pub what: String,
}

/// Bytes of a frame that are written out; of the rest there is a hash.
const HEADERS: usize = 48;

/// A frame in words: its length, a hash over all of it, and its headers.
pub(crate) fn frame(payload: &[u8]) -> String {
    let mut hash = Trace::new(0);
    hash.bytes(payload);
    let head = payload.iter().take(HEADERS).map(|byte| format!("{byte:02x}"));
    format!("frame {} {:016x} {}", payload.len(), hash.hash(), head.collect::<String>())
}
