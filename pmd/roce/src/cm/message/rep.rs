//! REP: accepts a connection (IBTA 1.4, 12.6.8).

use crate::cm::mad::MadData;
use crate::cm::private_data::PrivateData;
use crate::cm::span;
use crate::ids::{Psn, Qpn};
use crate::wire::be;

mod at {
    pub(super) const LOCAL_COMM_ID: usize = 0;
    pub(super) const REMOTE_COMM_ID: usize = 4;
    pub(super) const LOCAL_QKEY: usize = 8;
    pub(super) const LOCAL_QPN: usize = 12;
    pub(super) const LOCAL_EECN: usize = 16;
    pub(super) const STARTING_PSN: usize = 20;
    pub(super) const RESPONDER_RESOURCES: usize = 24;
    pub(super) const INITIATOR_DEPTH: usize = 25;
    pub(super) const ACK_DELAY: usize = 26;
    pub(super) const RNR_RETRY: usize = 27;
    pub(super) const LOCAL_CA_GUID: usize = 28;
    pub(super) const PRIVATE_DATA: usize = 36;
}

/// A REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// Q_Key; 0 but for reliable datagrams.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// For XRC, the sender's queue pair stands here.
    pub local_eecn: u32,
    /// First PSN that the sender expects.
    pub starting_psn: Psn,
    /// READs and atomics that the sender serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it has outstanding at most.
    pub initiator_depth: u8,
    /// How long the sender's adapter takes to acknowledge, a code of 5 bits.
    pub target_ack_delay: u8,
    /// Whether the alternate path was accepted, 2 bits; 0: it was.
    pub failover: u8,
    /// The sender heeds the credits in acknowledgements.
    pub flow_control: bool,
    /// RNR retries of the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender takes receives from a shared queue.
    pub srq: bool,
    /// Tells the sender's adapter from all others.
    pub local_ca_guid: u64,
    /// 196 bytes.
    pub private_data: PrivateData,
}

impl Rep {
    pub(super) fn parse(data: &MadData) -> Self {
        Self {
            local_comm_id: be::u32(data, at::LOCAL_COMM_ID),
            remote_comm_id: be::u32(data, at::REMOTE_COMM_ID),
            local_qkey: be::u32(data, at::LOCAL_QKEY),
            local_qpn: Qpn::new(be::u24(data, at::LOCAL_QPN)),
            local_eecn: be::u24(data, at::LOCAL_EECN),
            starting_psn: Psn::new(be::u24(data, at::STARTING_PSN)),
            responder_resources: data[at::RESPONDER_RESOURCES],
            initiator_depth: data[at::INITIATOR_DEPTH],
            target_ack_delay: data[at::ACK_DELAY] >> 3,
            failover: data[at::ACK_DELAY] >> 1 & 3,
            flow_control: data[at::ACK_DELAY] & 1 != 0,
            rnr_retry_count: data[at::RNR_RETRY] >> 5,
            srq: data[at::RNR_RETRY] & 0x10 != 0,
            local_ca_guid: be::u64(data, at::LOCAL_CA_GUID),
            private_data: PrivateData::of_field(&data[at::PRIVATE_DATA..]),
        }
    }

    pub(super) fn emit(&self, data: &mut MadData) {
        *data = [0; 232];
        be::put_u32(data, at::LOCAL_COMM_ID, self.local_comm_id);
        be::put_u32(data, at::REMOTE_COMM_ID, self.remote_comm_id);
        be::put_u32(data, at::LOCAL_QKEY, self.local_qkey);
        be::put_u24(data, at::LOCAL_QPN, self.local_qpn.value());
        be::put_u24(data, at::LOCAL_EECN, self.local_eecn);
        be::put_u24(data, at::STARTING_PSN, self.starting_psn.value());
        data[at::RESPONDER_RESOURCES] = self.responder_resources;
        data[at::INITIATOR_DEPTH] = self.initiator_depth;
        data[at::ACK_DELAY] = (self.target_ack_delay & span::BITS) << 3
            | (self.failover & 3) << 1
            | u8::from(self.flow_control);
        data[at::RNR_RETRY] = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        be::put_u64(data, at::LOCAL_CA_GUID, self.local_ca_guid);
        self.private_data.emit(&mut data[at::PRIVATE_DATA..]);
    }
}
