//! A path in a REQ: 44 bytes, first the primary one, then the alternate (IBTA 1.4, 12.6.5).

use crate::cm::span;
use crate::ids::Gid;
use crate::wire::be;

mod at {
    pub(super) const LOCAL_LID: usize = 0;
    pub(super) const REMOTE_LID: usize = 2;
    pub(super) const LOCAL_GID: usize = 4;
    pub(super) const REMOTE_GID: usize = 20;
    pub(super) const FLOW_LABEL: usize = 36;
    pub(super) const PACKET_RATE: usize = 39;
    pub(super) const TRAFFIC_CLASS: usize = 40;
    pub(super) const HOP_LIMIT: usize = 41;
    pub(super) const SL: usize = 42;
    pub(super) const ACK_TIMEOUT: usize = 43;
}

/// The LID of a path that is not on InfiniBand.
const PERMISSIVE_LID: u16 = 0xffff;

/// A path as the one that asks sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPath {
    /// LID of the one that asks; RoCE has none, and sends [`RequestPath::NO_LID`].
    pub local_lid: u16,
    /// LID of the one that is asked.
    pub remote_lid: u16,
    /// Address of the one that asks.
    pub local_gid: Gid,
    /// Address of the one that is asked.
    pub remote_gid: Gid,
    /// Flow label, 20 bits: both sides derive their UDP source port from it.
    pub flow_label: u32,
    /// Static rate, 6 bits; 0: that of the port.
    pub packet_rate: u8,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// The path does not leave its subnet.
    pub subnet_local: bool,
    /// Local ACK timeout of the queue pair that is asked for, 5 bits.
    pub ack_timeout: u8,
}

impl RequestPath {
    /// Bytes on the wire.
    pub(super) const LEN: usize = 44;
    /// What stands for a LID on RoCE.
    pub const NO_LID: u16 = PERMISSIVE_LID;

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            local_lid: be::u16(bytes, at::LOCAL_LID),
            remote_lid: be::u16(bytes, at::REMOTE_LID),
            local_gid: gid(bytes, at::LOCAL_GID),
            remote_gid: gid(bytes, at::REMOTE_GID),
            flow_label: be::u24(bytes, at::FLOW_LABEL) >> 4,
            packet_rate: bytes[at::PACKET_RATE] & 0x3f,
            traffic_class: bytes[at::TRAFFIC_CLASS],
            hop_limit: bytes[at::HOP_LIMIT],
            sl: bytes[at::SL] >> 4,
            subnet_local: bytes[at::SL] & 0x08 != 0,
            ack_timeout: bytes[at::ACK_TIMEOUT] >> 3,
        }
    }

    pub(super) fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = [0; Self::LEN];
        be::put_u16(out, at::LOCAL_LID, self.local_lid);
        be::put_u16(out, at::REMOTE_LID, self.remote_lid);
        out[at::LOCAL_GID..at::REMOTE_GID].copy_from_slice(&self.local_gid.0);
        out[at::REMOTE_GID..at::FLOW_LABEL].copy_from_slice(&self.remote_gid.0);
        be::put_u24(out, at::FLOW_LABEL, self.flow_label << 4);
        out[at::PACKET_RATE] = self.packet_rate & 0x3f;
        out[at::TRAFFIC_CLASS] = self.traffic_class;
        out[at::HOP_LIMIT] = self.hop_limit;
        out[at::SL] = self.sl << 4 | u8::from(self.subnet_local) << 3;
        out[at::ACK_TIMEOUT] = (self.ack_timeout & span::BITS) << 3;
    }
}

fn gid(bytes: &[u8; RequestPath::LEN], at: usize) -> Gid {
    Gid(core::array::from_fn(|index| bytes[at + index]))
}
