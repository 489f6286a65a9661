//! Memory regions and windows.

use ::core::ffi::c_int;

use pmd_mem::Region;
use pmd_roce::engine::Refusal;
use pmd_roce::ids::{Lkey, PdId, Rkey};
use pmd_roce::work::Access;
use rustix::io::Errno;

use super::core::Core;
use super::library::Owned;
use super::nic::refusal;
use crate::mr::RegisterError;

/// `IBV_MW_TYPE_2`.
const TYPE_2: c_int = 2;

impl Core {
    /// Pins `len` bytes from `offset` of a region, for the device.
    pub(crate) fn register(
        &mut self,
        pd: PdId,
        region: &Region,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<(Lkey, Rkey), RegisterError> {
        let refused = |error| RegisterError::Driver { refusal: refusal("ibv_reg_mr", &error) };
        let within = offset.checked_add(len).is_some_and(|end| end <= region.len()) && len > 0;
        let invalid = Refusal { call: "ibv_reg_mr", errno: Errno::INVAL.raw_os_error() };
        let (true, Ok(bytes), Ok(start)) =
            (within, usize::try_from(len), usize::try_from(region.address() + offset))
        else {
            return Err(RegisterError::Driver { refusal: invalid });
        };
        let pd = self.pd(pd).map_err(refused)?;
        let start = ::core::ptr::with_exposed_provenance_mut(start);
        #[expect(clippy::cast_possible_wrap, reason = "bits")]
        let access = access.bits() as c_int;
        // SAFETY: the domain is alive; the bytes are of a region, which whoever registers it keeps until it is deregistered,
        // and which nobody has references into.
        let raw = unsafe { (self.library.ibv_reg_mr)(pd, start, bytes, access) };
        // SAFETY: it was made just now.
        let mr = unsafe { Owned::new(raw, self.library.ibv_dereg_mr) }.map_err(refused)?;
        let keys = (Lkey(mr.fields().lkey), Rkey(mr.fields().rkey));
        self.regions.insert(keys.0.0, mr);
        Ok(keys)
    }

    pub(crate) fn deregister(&mut self, key: Lkey) {
        self.regions.remove(&key.0);
    }

    pub(crate) fn alloc_window(&mut self, pd: PdId) -> Result<Rkey, RegisterError> {
        let refused = |error| RegisterError::Driver { refusal: refusal("ibv_alloc_mw", &error) };
        let ops = self.open.context.fields().ops;
        let (Some(alloc), Some(dealloc)) = (ops.alloc_mw, ops.dealloc_mw) else {
            return Err(refused(Errno::OPNOTSUPP.into()));
        };
        let pd = self.pd(pd).map_err(refused)?;
        // SAFETY: the domain is alive.
        let raw = unsafe { alloc(pd, TYPE_2) };
        // SAFETY: it was made just now.
        let window = unsafe { Owned::new(raw, dealloc) }.map_err(refused)?;
        let key = window.fields().rkey;
        // Binding changes the low byte.
        self.windows.insert(key >> 8, window);
        Ok(Rkey(key))
    }

    pub(crate) fn free_window(&mut self, key: Rkey) {
        self.windows.remove(&(key.0 >> 8));
    }
}
