//! What both sides have agreed on, as the moves of a queue pair.

use crate::ids::{Gid, PathMtu, Psn, Qpn};
use crate::qp::attr::{AddressVector, QpAttr};
use crate::qp::state::{AttrMask, QpState, Transport, masks};
use crate::work::Access;

/// The attributes of a connection's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// RC or UC.
    pub transport: Transport,
    /// This side's address; [`Negotiated::av`] takes the index that the device has for it.
    pub source: Gid,
    /// The path. Its `sgid_index` and `port` are those of the first address of port 1: set them to what
    /// the device has for [`Negotiated::source`].
    pub av: AddressVector,
    /// Payload bytes per packet.
    pub path_mtu: PathMtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN to expect.
    pub rq_psn: Psn,
    /// First PSN to send.
    pub sq_psn: Psn,
    /// READs and atomics that this side may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// RNR timer that this side asks for.
    pub min_rnr_timer: u8,
    /// Local ACK timeout.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
}

impl Negotiated {
    /// What the queue pair is to be told to get from the state before to this one: INIT, RTR or RTS.
    /// `None` for other states, and for transports that are not connected.
    pub fn step(&self, to: QpState) -> Option<(QpAttr, AttrMask)> {
        let from = match to {
            QpState::Init => QpState::Reset,
            QpState::Rtr => QpState::Init,
            QpState::Rts => QpState::Rtr,
            _ => return None,
        };
        let mask = masks(self.transport, from, to)?.required;
        let mut access = Access::REMOTE_WRITE;
        if self.max_dest_rd_atomic > 0 {
            access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        let attr = QpAttr {
            access,
            port: self.av.port,
            av: self.av,
            path_mtu: self.path_mtu,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            min_rnr_timer: self.min_rnr_timer,
            sq_psn: self.sq_psn,
            rq_psn: self.rq_psn,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            dest_qpn: self.dest_qpn,
            ..QpAttr::new(to)
        };
        Some((attr, mask))
    }
}
