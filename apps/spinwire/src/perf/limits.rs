//! The numbers that bound a measurement.

use std::time::Duration;

/// Bytes of a message, where nobody says otherwise: bandwidth and latency as perftest has them.
pub(super) const BANDWIDTH_SIZE: u32 = 65_536;
pub(super) const LATENCY_SIZE: u32 = 2;
/// Bytes of an atomic: the specification knows no others.
pub(super) const ATOMIC_SIZE: u32 = 8;
/// With `-a`: powers of two from 2 bytes to this.
pub(super) const ALL_SIZES_MAX: u32 = 8 << 20;
/// Largest message of a connected transport that buffers are made for.
pub(super) const SIZE_MAX: u32 = 1 << 30;
/// Requests in flight per queue pair, where nobody says otherwise.
pub(super) const TX_DEPTH: u32 = 128;
/// And of all queue pairs of an lcore together: many deep queues would only wait in each other's cache.
pub(super) const TX_DEPTH_TOTAL: u32 = 8192;
/// Nor do they hold more bytes than that together, as long as each has a few requests.
pub(super) const TX_BYTES_TOTAL: u64 = 256 << 20;
/// Requests in one post list.
pub(super) const POST_LIST: u32 = 32;
/// Longest post list.
pub(super) const POST_LIST_MAX: usize = 128;
/// Completions taken at a time.
pub(super) const POLL_BATCH: usize = 32;
/// Post lists of one turn of the loop, over all queue pairs.
pub(super) const LISTS_PER_TURN: usize = 8;
/// Receives posted again at a time.
pub(super) const REPOST: u32 = 32;
/// Buffers of a queue pair with `--buffers rotating` and `app`.
pub(super) const ROTATING: u32 = 16;
/// READs and atomics in flight per queue pair, where nobody says otherwise.
pub(super) const OUTSTANDING: u8 = 16;
/// One post list in so many has its last request timed.
pub(super) const SAMPLE_EVERY: u32 = 8;
/// Bytes compared, filled or read at a time.
pub(super) const CHUNK: usize = 4096;

/// Rounds of the untimed pass at most, of one size and of each with `-a`.
pub(super) const ROUNDS: u32 = 128;
pub(super) const ROUNDS_EACH: u32 = 8;
/// Bytes that all rounds of a size move, beyond the first.
pub(super) const VERIFY_BYTES: u64 = 64 << 20;

/// How long each size is measured, where neither `-n` nor `-D` says.
pub(super) const DURATION: Duration = Duration::from_secs(1);
pub(super) const DURATION_EACH: Duration = Duration::from_millis(200);
/// What runs before the timed part, at most.
pub(super) const WARM_UP: Duration = Duration::from_millis(50);
pub(super) const WARM_UP_MESSAGES: u64 = 4096;
/// How long the second process or the other terminal may take to connect.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// How long a peer may say nothing before it is given up; it says something every [`HEARTBEAT`].
pub(super) const SILENCE: Duration = Duration::from_secs(10);
pub(super) const HEARTBEAT: Duration = Duration::from_millis(500);
/// The same of a client that is not connected yet: others may wait behind it.
pub(super) const SILENCE_OF_A_CALLER: Duration = Duration::from_secs(3);
/// Callers that were refused of which each has a line in the log; of those beyond, each power of two.
pub(super) const STRANGERS_LOGGED: u64 = 8;
/// Sizes, and bytes to flip, that a client can name.
pub(super) const SIZES_MAX: usize = 64;
/// Longest standstill that a client can ask a server for.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// How long a failed end waits for its peer's words, which may explain more.
pub(super) const EVIDENCE: Duration = Duration::from_millis(300);
/// How long lcores may take to tell what they know of a measurement that broke: less than a peer waits for it.
pub(super) const REPORT: Duration = Duration::from_millis(500);
/// How long an end that was asked waits for the verdict of the one that asked.
pub(super) const VERDICT: Duration = Duration::from_secs(3);
/// How long a reliable connection may stand still, beyond its own retry budget.
pub(super) const STALL: Duration = Duration::from_secs(3);
/// How much longer for each MiB of a message: nothing moves while its bytes are copied, or go through a slow network.
pub(super) const SLOWEST_MIB: Duration = Duration::from_millis(10);
/// How long an unreliable message may be on its way before it counts as lost.
pub(super) const LOST_AFTER: Duration = Duration::from_millis(20);
/// So many of these waits in a row, without anything that arrived, end the run.
pub(super) const LOST_IN_A_ROW: u32 = 50;
/// How long the receiver of unreliable messages waits for late ones.
pub(super) const QUIET: Duration = Duration::from_millis(20);
/// How long lcores may take to come to an end.
pub(super) const JOIN: Duration = Duration::from_secs(5);
/// How long the end may take that somebody asked for.
pub(super) const INTERRUPTED: Duration = Duration::from_secs(5);
/// A time without a poll, nanoseconds, of which an end tells whose peer has ended the run.
pub(super) const OWN_GAP_NS: u64 = 500_000_000;
/// How often an lcore tells others what it has done, and a few of its queue pairs.
pub(super) const TELL_EVERY: Duration = Duration::from_millis(1);
/// How often the control thread looks around.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// Longest nap of an lcore between two steps.
pub(super) const NAP: Duration = Duration::from_micros(200);
/// Longest sleep of an lcore in event mode, after which it looks whether it is still wanted.
pub(super) const EVENT_SLEEP: Duration = Duration::from_millis(10);
