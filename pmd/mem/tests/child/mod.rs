//! A forked process that runs a closure, and does not outlive the test.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The child; killed when dropped.
#[derive(Debug)]
pub(crate) struct Child {
    pid: libc::pid_t,
    status: Option<i32>,
}

impl Child {
    /// Forks; the child runs `work` and leaves with 0 if that returned true.
    pub(crate) fn run(work: impl FnOnce() -> bool) -> Self {
        // SAFETY: the child never returns from here, and shares no lock that another thread could hold: `work` maps, copies
        // and allocates (glibc keeps malloc usable after fork).
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            let ok = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: ends the child without running the parent's destructors and exit handlers.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        Self { pid, status: None }
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if self.status.is_none() {
            // SAFETY: our own child, not yet waited for.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            self.wait();
        }
    }

    /// Whether `work` returned true.
    pub(crate) fn succeeded(mut self) -> bool {
        let status = self.wait();
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: our own child; writes one int.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(pid, self.pid, "waitpid");
        self.status = Some(status);
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
