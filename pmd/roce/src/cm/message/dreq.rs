//! DREQ: ends a connection (IBTA 1.4, 12.6.10).

use crate::cm::mad::MadData;
use crate::cm::private_data::PrivateData;
use crate::ids::Qpn;
use crate::wire::be;

mod at {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const REMOTE_QPN: usize = 8;
    pub(super) const PRIVATE_DATA: usize = 12;
}

/// A DREQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// 220 bytes.
    pub private_data: PrivateData,
}

impl Dreq {
    pub(super) fn parse(data: &MadData) -> Self {
        Self {
            local_comm_id: be::u32(data, at::LOCAL_COMM_ID),
            remote_comm_id: be::u32(data, at::REMOTE_COMM_ID),
            remote_qpn: Qpn::new(be::u24(data, at::REMOTE_QPN)),
            private_data: PrivateData::of_field(&data[at::PRIVATE_DATA..]),
        }
    }

    pub(super) fn emit(&self, data: &mut MadData) {
        *data = [0; 232];
        be::put_u32(data, at::LOCAL_COMM_ID, self.local_comm_id);
        be::put_u32(data, at::REMOTE_COMM_ID, self.remote_comm_id);
        be::put_u24(data, at::REMOTE_QPN, self.remote_qpn.value());
        self.private_data.emit(&mut data[at::PRIVATE_DATA..]);
    }
}
