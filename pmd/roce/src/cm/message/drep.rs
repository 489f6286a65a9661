//! DREP: answers a DREQ (IBTA 1.4, 12.6.11).

use crate::cm::mad::MadData;
use crate::cm::private_data::PrivateData;
use crate::wire::be;

mod at {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const PRIVATE_DATA: usize = 8;
}

/// A DREP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// 224 bytes.
    pub private_data: PrivateData,
}

impl Drep {
    pub(super) fn parse(data: &MadData) -> Self {
        Self {
            local_comm_id: be::u32(data, at::LOCAL_COMM_ID),
            remote_comm_id: be::u32(data, at::REMOTE_COMM_ID),
            private_data: PrivateData::of_field(&data[at::PRIVATE_DATA..]),
        }
    }

    pub(super) fn emit(&self, data: &mut MadData) {
        *data = [0; 232];
        be::put_u32(data, at::LOCAL_COMM_ID, self.local_comm_id);
        be::put_u32(data, at::REMOTE_COMM_ID, self.remote_comm_id);
        self.private_data.emit(&mut data[at::PRIVATE_DATA..]);
    }
}
