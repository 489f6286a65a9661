//! What the process does when it is told to end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// Exit code of a process that was told twice, as shells count: 128 and the number of SIGINT.
const TOLD_TWICE: i32 = 130;

/// Becomes true with the first SIGINT or SIGTERM; the second ends the process at once.
///
/// # Errors
/// When the system refuses a handler, sigaction(2).
pub fn interrupt() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag still false.
        flag::register_conditional_shutdown(signal, TOLD_TWICE, Arc::clone(&flag))?;
        flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Has a write beyond `ulimit -f` fail as any other write can, by EFBIG, instead of killing the process by SIGXFSZ
/// (setrlimit(2)).
pub fn outlive_file_limits() {
    if let Err(error) = flag::register(SIGXFSZ, Arc::default()) {
        tracing::warn!("a file that becomes too long will end this process: {error}");
    }
}

/// Asks the kernel to tell this process to end when the one that started it does, however that ends.
pub fn end_with_the_parent() {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        tracing::warn!("this process may outlive the one that started it: {error}");
    }
}
