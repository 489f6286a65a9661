//! The numbers that bound this crate.

use std::time::Duration;

/// Most requests at a file at once: the largest ring that every kernel makes.
pub const DEPTH_MAX: u32 = 4096;

/// Bytes of one registered buffer: the kernel's limit. Longer memory is registered in parts.
pub const REGISTERED_BYTES_MAX: u64 = 1 << 30;

/// Alignment of direct requests where the file system does not say: no device has larger sectors.
pub const DIRECT_ALIGN: u32 = 4096;

/// How long a file that somebody else has is waited for.
pub const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How long a file that is closed is waited for while requests are in flight. Past it, their memory is never freed.
pub const CLOSE_WAIT: Duration = Duration::from_secs(5);
