//! The numbers that bound this crate.

/// Longest latency a histogram tells apart, in nanoseconds: one minute. Longer ones are counted at this value; the
/// exact maximum is kept beside them.
pub const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Decimal digits to which a histogram keeps a latency: a percentile is off by at most 0.1 %.
pub const LATENCY_DIGITS: u8 = 3;

/// Longest word that an end tells of itself, in characters: a name, a rule, a line of its journal.
pub const TOLD_CHARS: usize = 256;

/// Most events, lines of journal or faults that an end tells of itself.
pub const TOLD_LINES: usize = 64;

/// A queue pair that has work to do and gets none done for longer than this stands still, in seconds: states are written once a
/// second.
pub const STANDSTILL_S: f64 = 2.0;

/// A queue pair that is in INIT or RTR for longer than this does not come up by itself, in seconds.
pub const UNDER_WAY_S: f64 = 5.0;

/// Lines of a transition journal that go into a diagnosis, of each end.
pub const HISTORY_LINES: usize = 8;
/// How soon after this end stood still it notices that its peer gave it up, beyond its retry budget: within this, a failure is
/// its own.
pub const NOTICED_WITHIN_NS: u64 = 1_000_000_000;
/// A standstill of this length is one to speak of, where a peer complains of it.
pub const LONG_GAP_NS: u64 = 100_000_000;
