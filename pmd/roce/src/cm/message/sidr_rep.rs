//! SIDR REP: names the queue pair of a datagram service (IBTA 1.4, 12.11.2).

use core::fmt;

use crate::cm::mad::MadData;
use crate::cm::private_data::PrivateData;
use crate::cm::service::ServiceId;
use crate::ids::Qpn;
use crate::wire::be;

mod at {
    pub(super) const REQUEST_ID: usize = 0;
    pub(super) const STATUS: usize = 4;
    pub(super) const QPN: usize = 8;
    pub(super) const SERVICE_ID: usize = 12;
    pub(super) const QKEY: usize = 20;
    pub(super) const PRIVATE_DATA: usize = 96;
}

/// What became of the question.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// Here is the queue pair.
    pub const SUCCESS: Self = Self(0);
    /// Nobody listens there.
    pub const UNSUPPORTED: Self = Self(1);
    /// The consumer refuses.
    pub const REJECT: Self = Self(2);
    /// There is no queue pair.
    pub const NO_QP: Self = Self(3);

    /// What it means.
    pub const fn words(self) -> &'static str {
        match self.0 {
            0 => "success",
            1 => "service id not supported: nobody listens there",
            2 => "rejected by the service",
            3 => "no queue pair available",
            4 => "redirection",
            5 => "version not supported",
            _ => "a status that nobody defined",
        }
    }
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.words(), self.0)
    }
}

impl fmt::Debug for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A SIDR REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The receiver's name for the question.
    pub request_id: u32,
    /// What became of it.
    pub status: SidrStatus,
    /// The queue pair.
    pub qpn: Qpn,
    /// What was asked for.
    pub service: ServiceId,
    /// The queue pair's Q_Key.
    pub qkey: u32,
    /// 136 bytes.
    pub private_data: PrivateData,
}

impl SidrRep {
    pub(super) fn parse(data: &MadData) -> Self {
        Self {
            request_id: be::u32(data, at::REQUEST_ID),
            status: SidrStatus(data[at::STATUS]),
            qpn: Qpn::new(be::u24(data, at::QPN)),
            service: ServiceId(be::u64(data, at::SERVICE_ID)),
            qkey: be::u32(data, at::QKEY),
            private_data: PrivateData::of_field(&data[at::PRIVATE_DATA..]),
        }
    }

    pub(super) fn emit(&self, data: &mut MadData) {
        *data = [0; 232];
        be::put_u32(data, at::REQUEST_ID, self.request_id);
        data[at::STATUS] = self.status.0;
        be::put_u24(data, at::QPN, self.qpn.value());
        be::put_u64(data, at::SERVICE_ID, self.service.0);
        be::put_u32(data, at::QKEY, self.qkey);
        self.private_data.emit(&mut data[at::PRIVATE_DATA..]);
    }
}
