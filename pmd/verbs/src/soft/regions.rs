//! The regions of a device by number: grows, never shrinks, read without a lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use pmd_mem::Region;
use pmd_roce::work::Access;

/// Regions a device can have.
pub(crate) const MAX_REGIONS: usize = 256;

/// Beside the rights of a region: peers have been told of it.
const TOLD: u32 = 1 << 31;

/// Every region that was registered with a device.
#[derive(Debug)]
pub(crate) struct Regions {
    slots: Box<[OnceLock<Arc<Region>>]>,
    /// Remote rights that any registration of the region has given so far, and [`TOLD`].
    rights: Box<[AtomicU32]>,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..MAX_REGIONS).map(|_| OnceLock::new()).collect(),
            rights: (0..MAX_REGIONS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The number of a region, giving it one on first sight. `None`: every number is taken.
    pub(crate) fn number(&self, region: &Arc<Region>) -> Option<u32> {
        let holds = |slot: &OnceLock<Arc<Region>>| {
            Arc::ptr_eq(slot.get_or_init(|| Arc::clone(region)), region)
        };
        u32::try_from(self.slots.iter().position(holds)?).ok()
    }

    /// Notes the rights of a registration. Whether peers must be told: of a new region, or that they
    /// may write to it from now on.
    pub(crate) fn widens(&self, number: u32, rights: Access) -> bool {
        let writing = (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).bits();
        let Some(known) = self.rights.get(number as usize) else { return false };
        let before = known.fetch_or(rights.bits() | TOLD, Ordering::AcqRel);
        before & TOLD == 0 || (before & writing == 0 && rights.bits() & writing != 0)
    }

    /// Peers could not be told: the next registration tries again.
    pub(crate) fn untold(&self, number: u32) {
        if let Some(known) = self.rights.get(number as usize) {
            known.store(0, Ordering::Release);
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Arc<Region>> {
        self.slots.get(number as usize)?.get()
    }
}
