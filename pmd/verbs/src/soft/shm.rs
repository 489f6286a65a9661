//! A device's port on the shared memory of its host.

use std::net::IpAddr;
use std::sync::Arc;

use pmd_mem::table::Retired;
use pmd_mem::{MemoryTable, Region, Segment};
use pmd_roce::work::Access;

/// The port, shared by the lcores of a device.
#[derive(Clone, Debug)]
pub(crate) struct Shm {
    table: Arc<MemoryTable>,
}

impl Shm {
    pub(crate) fn open(
        _lcores: u32,
        _address: IpAddr,
        table: &Arc<MemoryTable>,
        _table_region: Region,
    ) -> Result<Self, String> {
        drop(Self { table: Arc::clone(table) });
        Err("the shared-memory wire is not connected yet".into())
    }

    pub(crate) const fn prefix(&self) -> u32 {
        1
    }

    pub(crate) const fn export(&self, _number: u32, _region: &Arc<Region>, _access: Access) {}

    pub(crate) fn reclaim(
        &self,
        retired: Retired,
        _memory: Option<&Arc<Segment>>,
    ) -> Result<(), String> {
        self.table.reclaim(retired);
        Ok(())
    }
}
