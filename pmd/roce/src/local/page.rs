//! What a queue pair shows to peers on the same host, and when.

use super::{LocalPeer, PublishedQp};
use crate::ids::{Psn, Qpn};
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
    /// What pages that were shown say of receives, or are to say: so nobody has to look at the queue pairs again.
    receives: Box<[Receives]>,
    /// Destroyed since the last publication.
    gone: Vec<Qpn>,
}

/// What the page of a queue pair says of its receives.
#[derive(Clone, Copy, Debug)]
struct Receives {
    qpn: Qpn,
    rq_psn: Psn,
    posted: u32,
}

impl Pages {
    /// Room for slots `0..slots`.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            changed: ReadyList::new(slots),
            received: ReadyList::new(slots),
            receives: vec![NO_RECEIVES; slots].into(),
            gone: Vec::with_capacity(slots),
        }
    }

    /// Notes that what a queue pair shows may have changed.
    pub(crate) fn touch(&mut self, slot: u32) {
        self.changed.push(slot);
        // Its page says that too.
        self.received.remove(slot);
    }

    /// Notes that a queue pair has posted receives.
    #[inline]
    pub(crate) fn touch_receives(&mut self, qp: &Qp) {
        // Others have no receives of their own to post.
        debug_assert!(!qp.is_local() || counts_receives(qp));
        if qp.is_local() {
            self.received.push(qp.slot);
            self.receives[qp.slot as usize].posted = qp.rq.posted();
        }
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
            let Receives { qpn, rq_psn, posted } = self.receives[slot as usize];
            peers.show_receives(qpn, rq_psn, posted);
        }
    }

    #[cold]
    fn publish_pages(&mut self, qps: &mut QpTable, peers: &mut impl LocalPeer) {
        for qpn in self.gone.drain(..) {
            peers.show(qpn, None);
        }
        while let Some(slot) = self.changed.pop() {
            if let Some(qp) = qps.at(slot) {
                let (qpn, rq_psn, posted) = (qp.qpn, qp.attr.rq_psn, qp.rq.posted());
                self.receives[slot as usize] = Receives { qpn, rq_psn, posted };
                peers.show(qpn, of(qp).as_ref());
            }
        }
    }
}

const NO_RECEIVES: Receives = Receives { qpn: Qpn::new(0), rq_psn: Psn::new(0), posted: 0 };

/// Whether the page counts receives: a shared queue alone knows how many it has.
fn counts_receives(qp: &Qp) -> bool {
    qp.init.srq.is_none() && matches!(qp.transport(), Transport::Rc | Transport::Uc)
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
