//! Every bound a pipeline is held to, in one place.

use std::time::Duration;

use crate::config::units::Size;

/// Longest name of a node, lcore or device, in bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// Largest config file, in bytes. A pipeline is a page of text; more is the wrong file.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Most nodes of one pipeline.
pub const NODES_MAX: usize = 1024;

/// Smallest memory of a process.
pub const MEMORY_MIN: Size = Size::mib(1);
/// Largest memory of a process; far above any machine, so that "too large" is the machine's answer.
pub const MEMORY_MAX: Size = Size::tib(1024);
/// Memory of a process when the config does not say.
pub const MEMORY_DEFAULT: Size = Size::mib(256);

/// Smallest block that a stage passes on.
pub const BLOCK_MIN: Size = Size::bytes(1);
/// Largest block that a stage passes on. RC could carry 2 GiB; a block is also a buffer, and buffers are counted by the
/// hundred.
pub const BLOCK_MAX: Size = Size::mib(64);
/// Blocks that a source may have read ahead, beyond those its consumers hold.
pub const READ_AHEAD: u64 = 32;

/// Most QPs of one node.
pub const QPS_MAX: u64 = 1024;
/// Most blocks in flight on one QP.
pub const DEPTH_MAX: u64 = 8192;
/// Largest completion queue, in entries. The verbs number of most NICs.
pub const CQ_DEPTH_MAX: u64 = 1 << 22;
/// Receives posted per QP of a client that is not known yet.
pub const LISTEN_DEPTH: u64 = 128;
/// Most clients that a node serves before it ends.
pub const SERVE_MAX: u64 = 1_000_000;

/// Longest wait for a listener to appear.
pub const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Wait for a listener to appear when the config does not say.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Longest retry budget that still ends while someone is watching; more is refused as impossible.
pub const RETRY_BUDGET_MAX: Duration = Duration::from_secs(3600);

/// How many characters of two words may differ, per three, for one to be suggested for the other.
pub const SUGGEST_DISTANCE_PER_THREE: usize = 1;
