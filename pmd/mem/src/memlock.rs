use rustix::process::{Resource, getrlimit};

use crate::Size;

/// How RLIMIT_MEMLOCK is treated (`memory.memlock` in a pipeline).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memlock {
    /// Software devices pin nothing, so a low limit is only reported: the same pipeline would fail on a NIC.
    #[default]
    Check,
    /// Registering more than the limit fails, as it would on a NIC. Privilege (CAP_IPC_LOCK) does not lift it, so that root can
    /// rehearse what a user will meet.
    Strict,
}

impl Memlock {
    /// The most bytes that may be registered under `limit`, None without bound.
    pub fn bound(self, limit: Option<u64>) -> Option<u64> {
        match self {
            Self::Check => None,
            Self::Strict => limit,
        }
    }
}

/// RLIMIT_MEMLOCK of this process in bytes; None where unlimited. See getrlimit(2).
pub fn memlock_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Registering would lock more memory than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "locked memory limit {} < {} requested{}; raise it: ulimit -l {} (shell), LimitMEMLOCK={requested} (systemd unit), \
     --ulimit memlock={requested} --cap-add IPC_LOCK (container)",
    Size(*limit), Size(*requested), held(*requested, *adding), requested.div_ceil(1024)
)]
pub struct MemlockExceeded {
    /// RLIMIT_MEMLOCK in bytes.
    pub limit: u64,
    /// Bytes that would be locked in all.
    pub requested: u64,
    /// Part of `requested` that this call adds.
    pub adding: u64,
}

fn held(requested: u64, adding: u64) -> String {
    let before = requested.saturating_sub(adding);
    if before == 0 {
        String::new()
    } else {
        format!(" ({} more than the {} registered)", Size(adding), Size(before))
    }
}
