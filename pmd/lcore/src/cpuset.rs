//! Sets of CPUs, in the kernel's list notation.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;

use crate::limits::CPUS_MAX;

/// CPU ids, ascending. Written as in sysfs and `taskset -c`: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<usize>);

/// The text is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of CPUs below {CPUS_MAX}, such as `0-3,8`")]
pub struct CpuSetError(String);

impl CpuSet {
    /// The CPUs the calling thread may run on (sched_getaffinity(2)): what taskset, a container's cpuset or an
    /// earlier pin left over.
    ///
    /// # Errors
    /// What the system call says; EINVAL on a machine with more CPUs than [`CPUS_MAX`].
    pub fn allowed() -> io::Result<Self> {
        let mask = rustix::thread::sched_getaffinity(None)?;
        Ok((0..CPUS_MAX).filter(|&cpu| mask.is_set(cpu)).collect())
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Reads the kernel's notation, where an empty line is the empty set.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let number = |part: &str| part.parse().ok().filter(|&cpu| cpu < CPUS_MAX);
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => Some(number(first)?..=number(last)?),
            None => number(part).map(|cpu| cpu..=cpu),
        };
        let parts = text.trim().split(',').filter(|part| !part.is_empty());
        let ranges: Option<Vec<_>> =
            parts.map(|part| range(part).filter(|range| !range.is_empty())).collect();
        ranges
            .map(|ranges| ranges.into_iter().flatten().collect())
            .ok_or_else(|| CpuSetError(text.trim().to_owned()))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last {
                _ if last == first => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_the_kernel_notation() {
        for (text, cpus) in [
            ("0", vec![0]),
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("0-1,3-4,6", vec![0, 1, 3, 4, 6]),
            ("", vec![]),
        ] {
            let set: CpuSet = format!("{text}\n").parse().unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), cpus);
            assert_eq!(set.to_string(), text);
        }
    }

    #[test]
    fn normalises_order_and_overlap() {
        assert_eq!("8,0-2,1-3".parse::<CpuSet>().unwrap().to_string(), "0-3,8");
    }

    #[test]
    fn refuses_what_is_no_list() {
        for text in ["x", "3-1", "1-", "-2", "0-4000000000", "1;2", "1024"] {
            let error = text.parse::<CpuSet>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("`{text}` is not a list of CPUs below 1024, such as `0-3,8`")
            );
        }
    }

    #[test]
    fn the_mask_is_the_kernels() {
        let read = |path| std::fs::read_to_string(path).unwrap();
        let status = read("/proc/thread-self/status");
        let listed =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let listed: CpuSet = listed.parse().unwrap();
        let online: CpuSet = read("/sys/devices/system/cpu/online").parse().unwrap();
        let allowed = CpuSet::allowed().unwrap();
        assert_eq!(allowed, listed.iter().filter(|&cpu| online.contains(cpu)).collect());
        assert!(allowed.first().is_some());
    }
}
