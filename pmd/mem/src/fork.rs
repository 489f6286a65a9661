//! Noticing that this process is a fork of the one that mapped a segment.
//!
//! Segments are mapped MADV_DONTFORK, so a child that touches one dies of SIGSEGV. A counter that `fork(3)` moves in the
//! child turns that into an error, at the price of one load of a shared cache line.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Which descendant of the first process this is; counting starts with the first call.
pub(crate) fn generation() -> io::Result<u32> {
    static INSTALLED: OnceLock<i32> = OnceLock::new();
    let code = *INSTALLED.get_or_init(|| {
        // SAFETY: the handler is async-signal-safe (one atomic add) and lives as long as the program.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
    });
    if code == 0 {
        Ok(FORKS.load(Ordering::Relaxed))
    } else {
        Err(io::Error::from_raw_os_error(code))
    }
}

/// Whether this process still is the one that took `generation`.
#[inline]
pub(crate) fn same_process(generation: u32) -> bool {
    FORKS.load(Ordering::Relaxed) == generation
}
