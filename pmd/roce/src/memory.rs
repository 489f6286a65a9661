//! How the engine reaches memory: by key, by copy, never by reference.

use crate::ids::{PdId, Qpn, Rkey};
use crate::work::{Access, RemoteAddr, Sge, WindowBind};

/// Why memory refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// No region or window has this key.
    #[error("no region has this key")]
    UnknownKey,
    /// The key belongs to another protection domain, or the window to another queue pair.
    #[error("the key belongs to another protection domain or queue pair")]
    WrongDomain,
    /// The region does not allow this access.
    #[error("the region does not allow this access")]
    NoPermission,
    /// The range leaves the region.
    #[error("the range leaves the region")]
    OutOfBounds,
}

/// An atomic operation on eight aligned bytes, in the host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Swap when equal.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, modulo 2^64.
    FetchAdd(u64),
}

/// Who asks for memory: rights are checked against both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// The queue pair itself; type 2 windows belong to one.
    pub qpn: Qpn,
}

/// The memory of this side, as the engine sees it.
///
/// All ranges are checked by the implementation on every call, since keys can be revoked between
/// two packets of one message. A zero-length access touches nothing and checks nothing.
pub trait Memory {
    /// Checks that the whole element can be read (`write` false) or written by the device.
    fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), MemoryFault>;

    /// Copies out of registered memory: `into.len()` bytes from byte `offset` of the element.
    fn gather(&self, pd: PdId, sge: &Sge, offset: u32, into: &mut [u8]) -> Result<(), MemoryFault>;

    /// Copies into registered memory at byte `offset` of the element; needs `LOCAL_WRITE`.
    fn scatter(&mut self, pd: PdId, sge: &Sge, offset: u32, from: &[u8])
    -> Result<(), MemoryFault>;

    /// Checks that a peer may access `len` bytes with all of `rights`.
    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(), MemoryFault>;

    /// Serves a peer's READ; needs `REMOTE_READ`.
    fn read_remote(&self, by: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault>;

    /// Serves a peer's WRITE; needs `REMOTE_WRITE`.
    fn write_remote(&mut self, by: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault>;

    /// Serves a peer's atomic and returns the value before it; needs `REMOTE_ATOMIC`. The caller
    /// has checked that the address is a multiple of eight.
    fn atomic_remote(
        &mut self,
        by: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault>;

    /// Revokes a key: a type 2 window, or a region. By SEND with invalidate, or by the consumer.
    fn invalidate(&mut self, by: Asker, key: Rkey) -> Result<(), MemoryFault>;

    /// Binds a type 2 window.
    fn bind(&mut self, by: Asker, bind: &WindowBind) -> Result<(), MemoryFault>;
}
