//! Protection domains: what may reach what.

use std::rc::Rc;
use std::sync::Arc;

use pmd_mem::Region;
use pmd_roce::engine::ResourceError;
use pmd_roce::ids::PdId;
use pmd_roce::qp::attr::AddressVector;
use pmd_roce::work::Access;

use crate::ah::Ah;
use crate::context::Context;
use crate::mr::{Mr, RegisterError};
use crate::mw::Mw;
use crate::qp::{CreateQpError, Qp, QpOptions};
use crate::srq::{Srq, SrqOptions};
use crate::transport::Service;

/// A protection domain: queue pairs reach only memory registered in their own. Freed with the last
/// object in it.
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cx: Context,
    id: PdId,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.cx.with(|core| core.free_pd(self.id));
    }
}

impl Pd {
    pub(crate) fn new(cx: Context, id: PdId) -> Self {
        Self { inner: Rc::new(Inner { cx, id }) }
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }

    /// The lcore it belongs to.
    #[inline]
    pub fn context(&self) -> &Context {
        &self.inner.cx
    }

    /// Registers `len` bytes from `offset` of a region, as `ibv_reg_mr(3)`.
    ///
    /// # Errors
    /// [`RegisterError`]; its text names the limit that was met and what raises it.
    pub fn register(
        &self,
        region: &Arc<Region>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        Mr::register(self, region, offset, len, access)
    }

    /// Allocates a type 2 memory window, as `ibv_alloc_mw(3)`. It opens nothing until it is bound by
    /// a work request.
    ///
    /// # Errors
    /// [`RegisterError`] when the memory table is full.
    pub fn alloc_window(&self) -> Result<Mw, RegisterError> {
        Mw::alloc(self)
    }

    /// Creates a shared receive queue, as `ibv_create_srq(3)`.
    ///
    /// # Errors
    /// [`ResourceError`].
    pub fn create_srq(&self, options: &SrqOptions) -> Result<Srq, ResourceError> {
        Srq::create(self, options)
    }

    /// Creates a queue pair in RESET, as `ibv_create_qp(3)`.
    ///
    /// # Errors
    /// [`CreateQpError`].
    pub fn create_qp<T: Service>(&self, options: &QpOptions<'_>) -> Result<Qp<T>, CreateQpError> {
        Qp::create(self, options)
    }

    /// Creates an address handle for datagrams, as `ibv_create_ah(3)`.
    ///
    /// # Errors
    /// [`ResourceError`] names the attribute that is wrong.
    pub fn create_ah(&self, av: &AddressVector) -> Result<Ah, ResourceError> {
        let cx = self.context().clone();
        let id = cx.with(|core| core.create_ah(self.id(), av))?;
        Ok(Ah { cx, id })
    }
}
