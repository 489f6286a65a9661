//! Ties a thread to one core, and looks whether it holds.

use std::io;

use core_affinity::CoreId;

use crate::cpuset::CpuSet;

/// Why a thread is not on the core it asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// There is no such core, or the affinity mask leaves it out.
    #[error(
        "core {cpu} does not exist or is outside of this process's affinity mask; available: {available}"
    )]
    NoSuchCore {
        /// The core asked for.
        cpu: usize,
        /// The cores to choose from.
        available: CpuSet,
    },
    /// The kernel refused.
    #[error("the kernel refuses to pin a thread to core {cpu} ({reason}); available: {available}")]
    Refused {
        /// The core asked for.
        cpu: usize,
        /// The cores to choose from.
        available: CpuSet,
        /// What the system call said.
        reason: io::Error,
    },
    /// The call succeeded without effect, as in some sandboxes.
    #[error(
        "pinned to core {cpu}, but the thread may run on {actual}; is this a sandbox that ignores affinity?"
    )]
    NotHonoured {
        /// The core asked for.
        cpu: usize,
        /// Where the thread may run.
        actual: CpuSet,
    },
    /// The kernel does not tell where this thread may run.
    #[error("cannot read the affinity mask of this thread: {0}")]
    Affinity(#[from] io::Error),
}

/// Pins the calling thread to `cpu`, one of the CPUs it may run on now, and reads back that it is so.
///
/// Threads started later by this one inherit the pin.
///
/// # Errors
/// See [`PinError`].
pub fn pin_current(cpu: usize) -> Result<(), PinError> {
    let available = CpuSet::allowed()?;
    if !available.contains(cpu) {
        return Err(PinError::NoSuchCore { cpu, available });
    }
    if !core_affinity::set_for_current(CoreId { id: cpu }) {
        return Err(PinError::Refused { cpu, available, reason: io::Error::last_os_error() });
    }
    verify(cpu, CpuSet::allowed()?)
}

fn verify(cpu: usize, actual: CpuSet) -> Result<(), PinError> {
    if actual.len() == 1 && actual.contains(cpu) {
        Ok(())
    } else {
        Err(PinError::NotHonoured { cpu, actual })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_pinned_thread_stays_on_its_core() {
        for cpu in CpuSet::allowed().unwrap().iter() {
            let seen = thread::spawn(move || {
                pin_current(cpu).unwrap();
                (CpuSet::allowed().unwrap(), rustix::thread::sched_getcpu())
            });
            assert_eq!(seen.join().unwrap(), (CpuSet::from_iter([cpu]), cpu));
        }
    }

    #[test]
    fn a_pin_without_effect_is_noticed() {
        assert!(verify(1, CpuSet::from_iter([1])).is_ok());
        for actual in [vec![0], vec![0, 1], vec![]] {
            assert!(matches!(
                verify(1, actual.into_iter().collect()),
                Err(PinError::NotHonoured { cpu: 1, .. })
            ));
        }
        let error = verify(1, CpuSet::from_iter([0, 1])).unwrap_err().to_string();
        assert!(error.starts_with("pinned to core 1, but the thread may run on 0-1;"), "{error}");
    }

    #[test]
    fn a_missing_core_is_named_with_those_there_are() {
        let available = CpuSet::allowed().unwrap();
        for cpu in [1023, 5000] {
            assert_eq!(
                pin_current(cpu).unwrap_err().to_string(),
                format!(
                    "core {cpu} does not exist or is outside of this process's affinity mask; available: {available}"
                )
            );
        }
    }
}
