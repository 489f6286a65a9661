//! Memory windows.

use pmd_mem::Key;
use pmd_mem::table::WindowType;
use pmd_roce::ids::Rkey;

use crate::mr::RegisterError;
use crate::pd::Pd;

/// A type 2 memory window: a part of a region under a key of its own, opened and closed by work
/// requests. Freed on drop.
#[derive(Debug)]
pub struct Mw {
    pd: Pd,
    key: Rkey,
}

impl Mw {
    pub(crate) fn alloc(pd: &Pd) -> Result<Self, RegisterError> {
        let cx = pd.context();
        let key = match cx.device().soft() {
            Some(soft) => Rkey(soft.table.alloc_window(pd.id().0, WindowType::Type2)?.0),
            None => cx.with_nic(|core| core.alloc_window(pd.id()))?,
        };
        Ok(Self { pd: pd.clone(), key })
    }

    /// The window's key before its first bind; later ones differ in the low byte, which is the
    /// consumer's to choose.
    pub const fn rkey(&self) -> Rkey {
        self.key
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let cx = self.pd.context();
        match cx.device().soft() {
            Some(soft) => soft.free_window(Key(self.key.0)),
            None => cx.with_nic(|core| core.free_window(self.key)),
        }
    }
}
