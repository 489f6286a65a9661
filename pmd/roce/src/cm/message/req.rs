//! REQ: asks for a connection (IBTA 1.4, 12.6.5).

use super::path::RequestPath;
use crate::cm::mad::MadData;
use crate::cm::private_data::PrivateData;
use crate::cm::service::ServiceId;
use crate::cm::span;
use crate::ids::{PathMtu, Psn, Qpn};
use crate::qp::state::Transport;
use crate::wire::{Pkey, be};

mod at {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const SERVICE_ID: usize = 8;
    pub(super) const LOCAL_CA_GUID: usize = 16;
    pub(super) const LOCAL_QKEY: usize = 28;
    pub(super) const LOCAL_QPN: usize = 32;
    pub(super) const RESPONDER_RESOURCES: usize = 35;
    pub(super) const INITIATOR_DEPTH: usize = 39;
    pub(super) const REMOTE_TIMEOUT: usize = 43;
    pub(super) const STARTING_PSN: usize = 44;
    pub(super) const LOCAL_TIMEOUT: usize = 47;
    pub(super) const PKEY: usize = 48;
    pub(super) const MTU: usize = 50;
    pub(super) const MAX_CM_RETRIES: usize = 51;
    pub(super) const PRIMARY: usize = 52;
    pub(super) const ALTERNATE: usize = 96;
    pub(super) const PRIVATE_DATA: usize = 140;
}

/// The service that a connection is to give, two bits and three more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, which nobody has.
    Rd,
    /// Extended reliable connection.
    Xrc,
    /// One of the extended types that nobody defined.
    Unknown(u8),
}

impl ServiceType {
    const EXTENDED: u8 = 3;
    const XRC: u8 = 1;

    const fn from_bits(service: u8, extended: u8) -> Self {
        match (service, extended) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, Self::XRC) => Self::Xrc,
            (_, other) => Self::Unknown(other),
        }
    }

    const fn bits(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (Self::EXTENDED, Self::XRC),
            Self::Unknown(extended) => (Self::EXTENDED, extended & 7),
        }
    }

    /// The transport of a queue pair that is connected by two messages of one kind.
    pub const fn transport(self) -> Option<Transport> {
        match self {
            Self::Rc => Some(Transport::Rc),
            Self::Uc => Some(Transport::Uc),
            Self::Rd | Self::Xrc | Self::Unknown(_) => None,
        }
    }
}

/// A REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// What is asked for.
    pub service: ServiceId,
    /// Tells the sender's adapter from all others.
    pub local_ca_guid: u64,
    /// Q_Key; 0 but for reliable datagrams.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it wants to have outstanding.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer, a code of 5 bits.
    pub remote_response_timeout: u8,
    /// Kind of connection.
    pub service_type: ServiceType,
    /// The sender heeds the credits in acknowledgements.
    pub flow_control: bool,
    /// First PSN that the sender expects.
    pub starting_psn: Psn,
    /// How long the sender may take to answer, a code of 5 bits.
    pub local_response_timeout: u8,
    /// Retries of the queue pairs of both sides, 3 bits.
    pub retry_count: u8,
    /// Partition.
    pub pkey: Pkey,
    /// Payload bytes per packet, as [`PathMtu`] numbers them, 4 bits; see [`Req::path_mtu`].
    pub path_mtu_code: u8,
    /// RNR retries of the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// How often each side sends a message again, 4 bits.
    pub max_cm_retries: u8,
    /// The sender takes receives from a shared queue.
    pub srq: bool,
    /// Path of the connection.
    pub primary: RequestPath,
    /// Path to migrate to.
    pub alternate: Option<RequestPath>,
    /// 92 bytes, of which an IP header takes the first 36.
    pub private_data: PrivateData,
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 92;

    /// The path MTU; `None` for a code that nobody defined.
    pub fn path_mtu(&self) -> Option<PathMtu> {
        PathMtu::from_code(self.path_mtu_code)
    }

    pub(super) fn parse(data: &MadData) -> Self {
        let path = |at: usize| -> [u8; RequestPath::LEN] { core::array::from_fn(|n| data[at + n]) };
        let alternate = RequestPath::parse(&path(at::ALTERNATE));
        let (service, retries) = (data[at::REMOTE_TIMEOUT], data[at::MAX_CM_RETRIES]);
        Self {
            local_comm_id: be::u32(data, at::LOCAL_COMM_ID),
            service: ServiceId(be::u64(data, at::SERVICE_ID)),
            local_ca_guid: be::u64(data, at::LOCAL_CA_GUID),
            local_qkey: be::u32(data, at::LOCAL_QKEY),
            local_qpn: Qpn::new(be::u24(data, at::LOCAL_QPN)),
            responder_resources: data[at::RESPONDER_RESOURCES],
            initiator_depth: data[at::INITIATOR_DEPTH],
            remote_response_timeout: service >> 3,
            service_type: ServiceType::from_bits(service >> 1 & 3, retries & 7),
            flow_control: service & 1 != 0,
            starting_psn: Psn::new(be::u24(data, at::STARTING_PSN)),
            local_response_timeout: data[at::LOCAL_TIMEOUT] >> 3,
            retry_count: data[at::LOCAL_TIMEOUT] & 7,
            pkey: Pkey(be::u16(data, at::PKEY)),
            path_mtu_code: data[at::MTU] >> 4,
            rnr_retry_count: data[at::MTU] & 7,
            max_cm_retries: retries >> 4,
            srq: retries & 8 != 0,
            primary: RequestPath::parse(&path(at::PRIMARY)),
            alternate: (alternate.local_lid != 0).then_some(alternate),
            private_data: PrivateData::of_field(&data[at::PRIVATE_DATA..]),
        }
    }

    pub(super) fn emit(&self, data: &mut MadData) {
        *data = [0; 232];
        let (service, extended) = self.service_type.bits();
        be::put_u32(data, at::LOCAL_COMM_ID, self.local_comm_id);
        be::put_u64(data, at::SERVICE_ID, self.service.0);
        be::put_u64(data, at::LOCAL_CA_GUID, self.local_ca_guid);
        be::put_u32(data, at::LOCAL_QKEY, self.local_qkey);
        be::put_u24(data, at::LOCAL_QPN, self.local_qpn.value());
        data[at::RESPONDER_RESOURCES] = self.responder_resources;
        data[at::INITIATOR_DEPTH] = self.initiator_depth;
        data[at::REMOTE_TIMEOUT] = (self.remote_response_timeout & span::BITS) << 3
            | service << 1
            | u8::from(self.flow_control);
        be::put_u24(data, at::STARTING_PSN, self.starting_psn.value());
        data[at::LOCAL_TIMEOUT] =
            (self.local_response_timeout & span::BITS) << 3 | self.retry_count & 7;
        be::put_u16(data, at::PKEY, self.pkey.0);
        data[at::MTU] = self.path_mtu_code << 4 | self.rnr_retry_count & 7;
        data[at::MAX_CM_RETRIES] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | extended;
        for (at, path) in [(at::PRIMARY, Some(self.primary)), (at::ALTERNATE, self.alternate)] {
            if let (Some(path), Some(out)) = (path, data[at..].first_chunk_mut()) {
                path.emit(out);
            }
        }
        self.private_data.emit(&mut data[at::PRIVATE_DATA..]);
    }
}
