//! MRA: a message came, and its answer takes longer (IBTA 1.4, 12.6.6).

use super::Answered;
use crate::cm::mad::MadData;
use crate::cm::private_data::PrivateData;
use crate::cm::span;
use crate::wire::be;

mod at {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const MESSAGE: usize = 8;
    pub(super) const SERVICE_TIMEOUT: usize = 9;
    pub(super) const PRIVATE_DATA: usize = 10;
}

/// An MRA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// Which message came.
    pub message: Answered,
    /// How long its answer may take, a code of 5 bits.
    pub service_timeout: u8,
    /// 222 bytes.
    pub private_data: PrivateData,
}

impl Mra {
    pub(super) fn parse(data: &MadData) -> Self {
        Self {
            local_comm_id: be::u32(data, at::LOCAL_COMM_ID),
            remote_comm_id: be::u32(data, at::REMOTE_COMM_ID),
            message: Answered::from_bits(data[at::MESSAGE] >> 6),
            service_timeout: data[at::SERVICE_TIMEOUT] >> 3,
            private_data: PrivateData::of_field(&data[at::PRIVATE_DATA..]),
        }
    }

    pub(super) fn emit(&self, data: &mut MadData) {
        *data = [0; 232];
        be::put_u32(data, at::LOCAL_COMM_ID, self.local_comm_id);
        be::put_u32(data, at::REMOTE_COMM_ID, self.remote_comm_id);
        data[at::MESSAGE] = (self.message as u8) << 6;
        data[at::SERVICE_TIMEOUT] = (self.service_timeout & span::BITS) << 3;
        self.private_data.emit(&mut data[at::PRIVATE_DATA..]);
    }
}
