//! SIDR REQ: asks for the queue pair of a datagram service (IBTA 1.4, 12.11.1).

use crate::cm::mad::MadData;
use crate::cm::private_data::PrivateData;
use crate::cm::service::ServiceId;
use crate::wire::{Pkey, be};

mod at {
    pub(super) const REQUEST_ID: usize = 0;
    pub(super) const PKEY: usize = 4;
    pub(super) const SERVICE_ID: usize = 8;
    pub(super) const PRIVATE_DATA: usize = 16;
}

/// A SIDR REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's name for the question.
    pub request_id: u32,
    /// Partition.
    pub pkey: Pkey,
    /// What is asked for.
    pub service: ServiceId,
    /// 216 bytes, of which an IP header takes the first 36.
    pub private_data: PrivateData,
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 216;

    pub(super) fn parse(data: &MadData) -> Self {
        Self {
            request_id: be::u32(data, at::REQUEST_ID),
            pkey: Pkey(be::u16(data, at::PKEY)),
            service: ServiceId(be::u64(data, at::SERVICE_ID)),
            private_data: PrivateData::of_field(&data[at::PRIVATE_DATA..]),
        }
    }

    pub(super) fn emit(&self, data: &mut MadData) {
        *data = [0; 232];
        be::put_u32(data, at::REQUEST_ID, self.request_id);
        be::put_u16(data, at::PKEY, self.pkey.0);
        be::put_u64(data, at::SERVICE_ID, self.service.0);
        self.private_data.emit(&mut data[at::PRIVATE_DATA..]);
    }
}
