//! Address handles.

use pmd_roce::work::AhId;

use crate::context::Context;

/// Where datagrams go; from [`Pd::create_ah`](crate::Pd::create_ah). Destroyed on drop.
#[derive(Debug)]
pub struct Ah {
    pub(crate) cx: Context,
    pub(crate) id: AhId,
}

impl Ah {
    pub(crate) const fn id(&self) -> AhId {
        self.id
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        self.cx.with(|core| core.destroy_ah(self.id));
    }
}
