//! What a queue pair shows to peers on the same host, and when.

use super::{LocalPeer, PublishedQp};
use crate::ids::Qpn;
use crate::qp::Qp;
use crate::qp::state::{QpState, Transport};
use crate::qp::table::QpTable;
use crate::ready::ReadyList;

/// Queue pairs whose page is out of date.
#[derive(Debug)]
pub(crate) struct Pages {
    changed: ReadyList,
    /// Those of which no more is out of date than the count of receives.
    received: ReadyList,
    /// Destroyed since the last publication.
    gone: Vec<Qpn>,
}

impl Pages {
    /// Room for slots `0..slots`.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            changed: ReadyList::new(slots),
            received: ReadyList::new(slots),
            gone: Vec::with_capacity(slots),
        }
    }

    /// Notes that what a queue pair shows may have changed.
    pub(crate) fn touch(&mut self, slot: u32) {
        self.changed.push(slot);
    }

    /// Notes that a queue pair has posted receives.
    #[inline]
    pub(crate) fn touch_receives(&mut self, slot: u32) {
        self.received.push(slot);
    }

    /// Notes that a queue pair is no more.
    pub(crate) fn forget(&mut self, slot: u32, qpn: Qpn) {
        self.changed.remove(slot);
        self.received.remove(slot);
        self.gone.push(qpn);
    }

    /// Whether anything but counts of receives is out of date.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty() || !self.gone.is_empty()
    }

    /// Whether everything is shown as it is.
    pub(crate) fn is_current(&self) -> bool {
        !self.has_changed() && self.received.is_empty()
    }

    /// Shows everything that changed.
    #[inline]
    pub(crate) fn publish(&mut self, qps: &mut QpTable, peers: &mut impl LocalPeer) {
        if self.has_changed() {
            self.publish_pages(qps, peers);
        }
        while let Some(slot) = self.received.pop() {
            if let Some(qp) = qps.at(slot).filter(|qp| shows_receives(qp)) {
                peers.show_receives(qp.qpn, qp.attr.rq_psn, qp.rq.posted());
            }
        }
    }

    #[cold]
    fn publish_pages(&mut self, qps: &mut QpTable, peers: &mut impl LocalPeer) {
        for qpn in self.gone.drain(..) {
            peers.show(qpn, None);
        }
        while let Some(slot) = self.changed.pop() {
            if let Some(qp) = qps.at(slot) {
                peers.show(qp.qpn, of(qp).as_ref());
            }
        }
    }
}

/// Whether the page counts receives: a shared queue alone knows how many it has.
fn counts_receives(qp: &Qp) -> bool {
    qp.init.srq.is_none() && matches!(qp.transport(), Transport::Rc | Transport::Uc)
}

/// Whether there is a page that counts them.
#[inline]
fn shows_receives(qp: &Qp) -> bool {
    qp.is_local() && counts_receives(qp)
}

/// The page of a queue pair, if it has one: from RTR on, with a peer on the same host. Any peer may
/// send datagrams.
pub(crate) fn of(qp: &Qp) -> Option<PublishedQp> {
    let is_ud = qp.transport() == Transport::Ud;
    let shown = qp.is_local() || is_ud && qp.state().receives_packets();
    shown.then(|| PublishedQp {
        state: qp.state(),
        peer: qp.attr.dest_qpn,
        access: qp.attr.access,
        pd: qp.init.pd,
        max_dest_rd_atomic: qp.attr.max_dest_rd_atomic,
        min_rnr_timer: qp.attr.min_rnr_timer,
        rq_psn: qp.attr.rq_psn,
        posted: counts_receives(qp).then(|| qp.rq.posted()),
    })
}

/// Shows that a queue pair falls into `state`, before a completion can say so: peers then leave its
/// memory alone, and what they still copy from it does not count.
pub(crate) fn show_fall(qp: &Qp, state: QpState, peers: &mut impl LocalPeer) {
    if let Some(page) = of(qp) {
        peers.show(qp.qpn, Some(&PublishedQp { state, ..page }));
    }
}
