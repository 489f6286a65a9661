//! Queue pairs whose turn comes soon: what their turns ask is brought near while others have theirs. With queue pairs by
//! the thousand it lies far away, and what a peer has written lies with the peer.
//!
//! All of this is hints: nothing that happens depends on them.

use super::{Arrivals, LocalPeer, attempt};
use crate::device::Device;
use crate::qp::Qp;
use crate::qp::table::QpTable;

/// The first turn of a poll is about to be taken.
#[inline(always)]
pub(crate) fn first_turns(qps: &QpTable, dev: &Device, peers: &impl LocalPeer) {
    if dev.local.len() > 1 {
        turn(qps, dev.local.nth(1), peers);
    }
}

/// A turn is about to be taken, and out of the list: the one after the next is meant.
#[inline(always)]
pub(crate) fn next_turn(qps: &QpTable, dev: &Device, peers: &impl LocalPeer) {
    turn(qps, dev.local.nth(1), peers);
}

/// Where more waits than receives are known for, the peer is asked for them. It writes there all the time.
#[inline(always)]
fn turn(qps: &QpTable, slot: Option<u32>, peers: &impl LocalPeer) {
    let Some(qp) = slot.and_then(|slot| qps.in_slot(slot)) else { return };
    let route = qp.route();
    if route.is_open && lacks_credits(qp) {
        peers.expect(route.link, route.peer);
    }
}

#[inline(always)]
fn lacks_credits(qp: &Qp) -> bool {
    attempt::credits(qp, &qp.local.page)
        .is_some_and(|credits| credits < qp.sq.waiting_len().cast_signed())
}

/// A message is about to be taken: one behind it may be for another queue pair.
#[inline(always)]
pub(super) fn arrival(qps: &QpTable, arrivals: &impl Arrivals) {
    if let Some(qp) = arrivals.coming().and_then(|qpn| qps.near(qpn)) {
        arrivals.fetch(qp.route());
        arrivals.fetch(&qp.rq);
        arrivals.fetch(&qp.local);
    }
}
