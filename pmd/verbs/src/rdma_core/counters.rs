//! What a device counts: the files of its port's `hw_counters`, under their own names.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::provider::Counters;

/// The counters of a port.
#[derive(Debug)]
pub(super) struct HardwareCounters(Vec<(&'static str, PathBuf)>);

impl HardwareCounters {
    /// Looks which there are. A device without any has none.
    pub(super) fn of(device: &str, port: u8) -> Self {
        let folder = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters");
        let Ok(files) = fs::read_dir(folder) else { return Self(Vec::new()) };
        let paths = files.filter_map(|file| Some(file.ok()?.path()));
        let named = paths.filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            // How often the driver reads them is no count.
            (name != "lifespan").then(|| (kept(name), path.clone()))
        });
        let mut all: Vec<_> = named.collect();
        all.sort_unstable();
        Self(all)
    }

    /// Reads them: for a control thread, or when a connection is made or has failed.
    pub(super) fn read(&self, into: &mut Counters) {
        for (name, path) in &self.0 {
            let Ok(text) = fs::read_to_string(path) else { continue };
            let Ok(value) = text.trim().parse() else { continue };
            if into.try_push((name, value)).is_err() {
                return;
            }
        }
    }
}

/// A name that stays, once for all that have it: drivers name at most a few dozen.
fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        assert!(std::ptr::eq(kept("rx_ack"), kept("rx_ack")));
        assert_ne!(kept("rx_ack"), kept("tx_ack"));
    }

    #[test]
    fn a_device_without_counters_has_none() {
        let mut counters = Counters::new();
        HardwareCounters::of("no such device", 1).read(&mut counters);
        assert!(counters.is_empty());
    }
}
