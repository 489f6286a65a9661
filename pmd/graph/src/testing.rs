//! What the unit tests of this crate share.

use std::sync::Arc;

use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};

/// A region of small pages.
pub(crate) fn region(len: u64) -> Arc<Region> {
    let numa = Numa::default();
    let spec =
        RegionSpec { name: "test", len, hugepages: Hugepages::None, numa: &numa, seal: Seal::Data };
    Arc::new(Region::create(&spec).unwrap())
}
