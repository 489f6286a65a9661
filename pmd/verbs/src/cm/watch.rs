//! Whether the interface under a device is still the one that peers know.

use std::path::PathBuf;
use std::time::Duration;

use pmd_roce::ids::Instant;

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// The hardware address of an interface, as sysfs shows it.
#[derive(Debug)]
pub(super) struct AddressWatch {
    path: Option<PathBuf>,
    known: Option<String>,
    next: Instant,
}

impl AddressWatch {
    /// Of the interface with this name; of none, where only memory is shared.
    pub(super) fn new(netdev: Option<&str>, now: Instant) -> Self {
        Self::of(netdev.map(|name| PathBuf::from(format!("/sys/class/net/{name}/address"))), now)
    }

    fn of(path: Option<PathBuf>, now: Instant) -> Self {
        let mut watch = Self { path, known: None, next: now.after(EVERY) };
        watch.known = watch.read();
        watch
    }

    fn read(&self) -> Option<String> {
        std::fs::read_to_string(self.path.as_ref()?).ok()
    }

    /// Whether it has changed since the last look. One that is gone has not.
    pub(super) fn has_changed(&mut self, now: Instant) -> bool {
        if now < self.next || self.path.is_none() {
            return false;
        }
        self.next = now.after(EVERY);
        let Some(address) = self.read() else { return false };
        self.known.replace(address).as_ref() != self.known.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S0-32: another hardware address is noticed, once, and not before the next look.
    #[test]
    fn s0_32_another_hardware_address_is_noticed() {
        let path = std::env::temp_dir().join(format!("spinwire-watch-{}", std::process::id()));
        std::fs::write(&path, "02:00:00:00:00:01\n").unwrap();
        let mut watch = AddressWatch::of(Some(path.clone()), Instant(0));
        let second = |n: u64| Instant(n * 1_000_000_000);
        assert!(!watch.has_changed(second(1)));
        std::fs::write(&path, "02:00:00:00:00:02\n").unwrap();
        assert!(!watch.has_changed(Instant(1_500_000_000)), "looked at once a second");
        assert!(watch.has_changed(second(2)));
        assert!(!watch.has_changed(second(3)));
        std::fs::remove_file(&path).unwrap();
        assert!(!watch.has_changed(second(4)));
        assert!(!AddressWatch::new(None, Instant(0)).has_changed(second(9)));
    }
}
