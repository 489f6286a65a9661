//! What a usual message asks its queue pair, in one cache line.
//!
//! It is all said by state, attributes and what the queue pair was created with, and copied from there whenever one of
//! these changes: a message does not look for it in four places.

use super::attr::{QpAttr, QpInit};
use super::state::{QpState, Transport};
use crate::ids::{CqId, LinkId, PdId, Psn, Qpn};
use crate::requester::ack_timeout_nanos;
use crate::work::SendFlags;

/// The way of a queue pair, and what its state allows on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Route {
    /// Nanoseconds that the peer has for a message; 0: it is waited for without end.
    pub(crate) patience: u64,
    /// Where the peer shares memory, the link to it.
    pub(crate) link: LinkId,
    /// The peer's queue pair.
    pub(crate) peer: Qpn,
    pub(crate) pd: PdId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    /// The number of the first message that is sent.
    pub(crate) first: Psn,
    /// Flags that hold for every request.
    pub(crate) flags: SendFlags,
    /// The peer shares memory.
    pub(crate) is_local: bool,
    /// It is a reliable connection with such a peer, in RTS: usual messages go both ways.
    pub(crate) is_open: bool,
    /// Receives come from a shared queue.
    pub(crate) is_shared: bool,
    /// SENDs and WRITEs of one element can be posted, to be run at once; the same of READs.
    pub(crate) sends: bool,
    pub(crate) reads: bool,
    /// Receives can be posted, to wait for messages.
    pub(crate) receives: bool,
}

const _: () = assert!(size_of::<Route>() <= 48, "with the names of the queue pair, a cache line");

impl Route {
    pub(crate) fn new(init: &QpInit, attr: &QpAttr) -> Self {
        let (transport, is_rts) = (init.transport, attr.state == QpState::Rts);
        let has_elements = init.cap.max_send_sge > 0;
        let is_local = attr.av.link.is_some();
        Self {
            patience: ack_timeout_nanos(attr.timeout).unwrap_or(0),
            link: attr.av.link.unwrap_or(LinkId(0)),
            peer: attr.dest_qpn,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            first: attr.sq_psn,
            flags: if init.sq_sig_all { SendFlags::SIGNALED } else { SendFlags::empty() },
            is_local,
            is_open: is_rts && is_local && transport == Transport::Rc,
            is_shared: init.srq.is_some(),
            sends: is_rts && matches!(transport, Transport::Rc | Transport::Uc) && has_elements,
            reads: is_rts && transport == Transport::Rc && attr.max_rd_atomic > 0 && has_elements,
            receives: attr.state.accepts_post_recv() && attr.state != QpState::Error,
        }
    }
}
