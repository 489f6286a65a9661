//! The memory table: which key reaches which bytes, with which rights.
//!
//! It lies in a segment that only its owner writes and that peers map read-only, so that an initiator on the same host checks a
//! remote key by a few loads, without any work by the target.
//!
//! A key is 24 index bits and a low byte. The index's low bits are the slot, the others are random, and free slots are taken
//! at random: to an outsider all 24 bits are, and knowing some keys says nothing about the others. The low byte of a region is
//! random too, that of a window belongs to the consumer.

mod cache;
mod entry;
mod owner;
mod peer;
mod window;

use core::fmt;

pub use cache::{KeyCache, Known};
pub use owner::{
    DeregisterError, MemoryTable, Outstanding, PdUse, RegisterError, Registration, Retired,
    TableError,
};
pub use peer::{ForeignTable, PeerTable};
pub use window::{BindError, InvalidateError, WindowBind, WindowType};

bitflags::bitflags! {
    /// What a registration allows, with the values of `enum ibv_access_flags`; see ibv_reg_mr(3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The device may write it for its own side: receives, READ responses. Needed for the two remote ways to write.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE.
        const REMOTE_WRITE = 2;
        /// A peer may READ.
        const REMOTE_READ = 4;
        /// A peer may do atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const MW_BIND = 16;
        /// Addresses count from 0 instead of the virtual address.
        const ZERO_BASED = 32;
    }
}

impl Access {
    /// What a window, or a peer's access, can ask for.
    pub const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);
}

/// An lkey or rkey: 24 index bits, and a byte that for memory windows belongs to the consumer. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u32);

impl Key {
    /// The upper 24 bits, which name the object.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The lower 8 bits.
    pub const fn consumer_byte(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// The same object under another byte.
    #[must_use]
    pub const fn with_consumer_byte(self, byte: u8) -> Self {
        Self((self.0 & !0xff) | byte as u32)
    }

    /// The same object under the next byte, as ibv_inc_rkey(3) has it.
    #[must_use]
    pub const fn next(self) -> Self {
        self.with_consumer_byte(self.consumer_byte().wrapping_add(1))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Where the bytes of a successful lookup lie.
///
/// Out of a peer's table it is only a claim: the segment it names checks the bounds again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region, as its registration numbered it.
    pub region: u32,
    /// First byte, from the start of the region.
    pub offset: u64,
}

/// Why a key does not reach the bytes asked for. On the wire all of these are a remote access error (NAK 0x62).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No such key was issued, or it is the key of something else.
    #[error("unknown key")]
    UnknownKey,
    /// The key was valid until its region was deregistered or its window invalidated.
    #[error("revoked key")]
    Revoked,
    /// It belongs to another protection domain than the queue pair.
    #[error("key of another protection domain")]
    WrongPd,
    /// It belongs to a type 2 window that is bound to another queue pair.
    #[error("key of a window bound to another queue pair")]
    WrongQp,
    /// Its registration lacks the right.
    #[error("the registration does not allow {0:?}")]
    NoPermission(Access),
    /// The range leaves the registration.
    #[error("the range leaves the registration")]
    OutOfBounds,
}
