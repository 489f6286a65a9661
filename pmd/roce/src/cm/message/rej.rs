//! REJ: refuses a request or a reply, or takes one back (IBTA 1.4, 12.6.7).

use core::fmt;

use super::Answered;
use crate::cm::mad::MadData;
use crate::cm::private_data::PrivateData;
use crate::cm::reason::RejectReason;
use crate::ids::{Gid, PathMtu};
use crate::wire::be;

mod at {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const MESSAGE: usize = 8;
    pub(super) const INFO_LEN: usize = 9;
    pub(super) const REASON: usize = 10;
    pub(super) const INFO: usize = 12;
    pub(super) const PRIVATE_DATA: usize = 84;
}

/// What goes with a reason: up to 72 bytes, whose meaning depends on it.
#[derive(Clone, Copy)]
pub struct RejectInfo {
    len: u8,
    bytes: [u8; Self::CAPACITY],
}

impl RejectInfo {
    const CAPACITY: usize = 72;

    /// Nothing.
    pub const NONE: Self = Self { len: 0, bytes: [0; Self::CAPACITY] };

    /// The first 72 of these bytes.
    pub fn new(info: &[u8]) -> Self {
        let len = info.len().min(Self::CAPACITY);
        let mut bytes = [0; Self::CAPACITY];
        bytes[..len].copy_from_slice(&info[..len]);
        #[expect(clippy::cast_possible_truncation, reason = "at most 72")]
        let len = len as u8;
        Self { len, bytes }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    /// With [`RejectReason::TIMEOUT`]: the adapter that gave up.
    pub fn guid(&self) -> Option<u64> {
        self.as_bytes().first_chunk().copied().map(u64::from_be_bytes)
    }

    /// With [`RejectReason::INVALID_GID`]: an address that would do.
    pub fn gid(&self) -> Option<Gid> {
        self.as_bytes().first_chunk().copied().map(Gid)
    }

    /// With [`RejectReason::INVALID_MTU`]: the largest that would do.
    pub fn path_mtu(&self) -> Option<PathMtu> {
        PathMtu::from_code(*self.as_bytes().first()?)
    }
}

impl PartialEq for RejectInfo {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for RejectInfo {}

impl fmt::Debug for RejectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().fmt(f)
    }
}

/// A REJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's name for the connection; 0 where it has none.
    pub local_comm_id: u32,
    /// The receiver's; 0 where the sender does not know it.
    pub remote_comm_id: u32,
    /// Which message is refused.
    pub message: Answered,
    /// Why.
    pub reason: RejectReason,
    /// What goes with the reason.
    pub info: RejectInfo,
    /// 148 bytes.
    pub private_data: PrivateData,
}

impl Rej {
    pub(super) fn parse(data: &MadData) -> Self {
        let info = &data[at::INFO..at::PRIVATE_DATA];
        let info_len = usize::from(data[at::INFO_LEN] >> 1).min(info.len());
        Self {
            local_comm_id: be::u32(data, at::LOCAL_COMM_ID),
            remote_comm_id: be::u32(data, at::REMOTE_COMM_ID),
            message: Answered::from_bits(data[at::MESSAGE] >> 6),
            reason: RejectReason(be::u16(data, at::REASON)),
            info: RejectInfo::new(&info[..info_len]),
            private_data: PrivateData::of_field(&data[at::PRIVATE_DATA..]),
        }
    }

    pub(super) fn emit(&self, data: &mut MadData) {
        *data = [0; 232];
        be::put_u32(data, at::LOCAL_COMM_ID, self.local_comm_id);
        be::put_u32(data, at::REMOTE_COMM_ID, self.remote_comm_id);
        data[at::MESSAGE] = (self.message as u8) << 6;
        data[at::INFO_LEN] = self.info.len << 1;
        be::put_u16(data, at::REASON, self.reason.0);
        data[at::INFO..at::PRIVATE_DATA].copy_from_slice(&self.info.bytes);
        self.private_data.emit(&mut data[at::PRIVATE_DATA..]);
    }
}
