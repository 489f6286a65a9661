//! Memory regions.

use std::sync::Arc;

use pmd_mem::{Key, Region};
use pmd_roce::engine::Refusal;
use pmd_roce::ids::{Lkey, Rkey};
use pmd_roce::work::{Access, RemoteAddr, Sge};
use rustix::io::Errno;

use crate::pd::Pd;

/// Why memory was not registered. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The memory table refused.
    #[error(transparent)]
    Table(#[from] pmd_mem::table::RegisterError),
    /// The device has seen too many different regions.
    #[error("a device takes memory from at most {0} regions: register parts of fewer, larger ones")]
    TooManyRegions(usize),
    /// The device's driver refused. It pins memory, so that most often the limit on that is too low.
    #[error("{refusal}{}", raise_memlock(refusal))]
    Driver {
        /// The call, and why.
        refusal: Refusal,
    },
    /// The kernel gives no descriptor by which peers map the region.
    #[error("cannot share memory with peers: {0}")]
    Share(String),
}

/// What helps where memory cannot be pinned.
fn raise_memlock(refusal: &Refusal) -> &'static str {
    if refusal.errno == Errno::NOMEM.raw_os_error() {
        "; a NIC pins memory: raise the limit, ulimit -l unlimited (shell), LimitMEMLOCK=infinity (systemd unit)"
    } else {
        ""
    }
}

/// Registered memory. Deregistered on drop, once no peer can be using it any more.
#[derive(Debug)]
pub struct Mr {
    pd: Pd,
    region: Arc<Region>,
    lkey: Lkey,
    rkey: Rkey,
    addr: u64,
    offset: u64,
    len: u64,
    access: Access,
}

impl Mr {
    pub(crate) fn register(
        pd: &Pd,
        region: &Arc<Region>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let cx = pd.context();
        let va = region.address().wrapping_add(offset);
        let (lkey, rkey) = match cx.device().soft() {
            Some(soft) => {
                let key = soft.register(region, offset, len, va, pd.id(), access)?;
                (Lkey(key.0), Rkey(key.0))
            }
            None => cx.with_nic(|core| core.register(pd.id(), region, offset, len, access))?,
        };
        let addr = if access.contains(Access::ZERO_BASED) { 0 } else { va };
        let (pd, region) = (pd.clone(), Arc::clone(region));
        Ok(Self { pd, region, lkey, rkey, addr, offset, len, access })
    }

    /// The key for work requests of this side.
    pub const fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// The key for the peer.
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Address of the first byte, as work requests and the peer name it.
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Where the registration begins in its region.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Never: a registration has at least one byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Rights.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The memory itself, by copy.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A scatter/gather element over `len` bytes from byte `at` of the registration. Not checked
    /// here: the device checks every element when it uses it.
    pub const fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(at), len, lkey: self.lkey() }
    }

    /// What a peer names to reach byte `at` of the registration.
    pub const fn remote(&self, at: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(at), rkey: self.rkey() }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let cx = self.pd.context();
        match cx.device().soft() {
            Some(soft) => soft.deregister(Key(self.lkey.0), &self.region),
            None => cx.with_nic(|core| core.deregister(self.lkey)),
        }
    }
}
