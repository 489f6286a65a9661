//! A message alone, which somebody waits for: the way from a post to the ring, and from the ring to a completion, in a
//! straight line.
//!
//! What is usual here: a reliable connection in RTS, with nothing that waits or was refused; one SEND, WRITE or READ of one
//! element, behind which no other request waits; one plain SEND at the front of the ring, and a receive of one element in a
//! queue of its own for it. Where anything else is found nothing has changed, and [`straight`] and [`arrivals`] go on, which
//! have the loops for many.
//!
//! A message is visible before it is entered in any book, and nothing is looked up that only a next one could use.
//!
//! [`straight`]: super::straight
//! [`arrivals`]: super::arrivals

use super::attempt::credits;
use super::requester::start_timer;
use super::straight::{allows_read, pair};
use super::{Alone, Arrivals, LocalPeer, Outgoing, Pair, Straight};
use crate::device::Device;
use crate::ids::LinkId;
use crate::qp::sq::{Stage, Verb};
use crate::qp::{Qp, sent_completion};
use crate::sink::CqSink;
use crate::work::{Access, Completion, SendFlags, WcOpcode};

/// Runs the request at the cursor, if it waits alone and is usual; whether it was run. All that is to follow is seen to.
#[inline(never)]
pub(crate) fn send<C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    cq: &mut C,
    peers: &mut P,
) -> bool {
    let (route, local) = (*qp.route(), &qp.local);
    let is_usual = qp.sq.waiting_len() == 1
        && route.is_open
        && !local.lapsed
        && local.unsure == 0
        && !qp.requester.rnr_wait
        && !qp.send_cq_lost;
    let (link, Some(seen), true) = (route.link, local.seen, is_usual) else { return false };
    let is_visible_now = dev.local.is_empty();
    let has_credit = credits(qp, &qp.local.page).is_some_and(|credits| credits > 0);
    let (pair, seq) = (pair(qp), qp.requester.end);
    let Some(wqe) = qp.sq.next_alone() else { return false };
    let Some(sge) = wqe.only().filter(|_| wqe.stage == Stage::Posted) else { return false };
    if wqe.verb != Verb::Send {
        if !direct(qp, dev, cq, peers, (link, pair, seen)) {
            return false;
        }
    } else if has_credit {
        let solicited = wqe.flags.contains(SendFlags::SOLICITED);
        let message = Alone { seen, seq, solicited, from: sge, now: is_visible_now };
        let Some(position) = peers.send_alone(link, pair, &message) else { return false };
        wqe.is_at(seq, position);
        dev.counters.tx_bytes += u64::from(wqe.len);
        qp.sq.advance();
        qp.requester.end = seq.plus(1);
        qp.local.question = None;
        dev.mark(qp, position);
    } else {
        return false;
    }
    qp.local.blocked = false;
    if qp.sq.is_empty() && !qp.send_cq_lost {
        rest(qp, dev);
    } else if !qp.is_all_under_way() {
        dev.unsettled.push(qp.slot);
    } else if !dev.timers.is_set(qp.slot) {
        start_timer(qp, dev, peers.consumed(link));
    }
    true
}

/// Does the copy of a WRITE or READ that waits alone; whether it was done.
#[inline(always)]
fn direct<C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    cq: &mut C,
    peers: &mut P,
    (link, pair, seen): (LinkId, Pair, u64),
) -> bool {
    let Some(mut straight) = peers.straight(link, pair) else { return false };
    let Some(wqe) = qp.sq.next_alone() else { return false };
    let Some(sge) = wqe.only().filter(|_| straight.glance() == seen) else { return false };
    let len = u64::from(sge.len);
    if wqe.verb == Verb::Write && qp.local.page.access.contains(Access::REMOTE_WRITE) {
        if !straight.write(sge, wqe.remote()) {
            return false;
        }
        dev.unfenced = true;
        dev.counters.tx_bytes += len;
    } else if wqe.verb == Verb::Read && allows_read(&qp.local.page) {
        if core::mem::take(&mut dev.unfenced) {
            straight.fence();
        }
        if !straight.read(sge, wqe.remote()) {
            return false;
        }
        dev.counters.rx_bytes += len;
    } else {
        return false;
    }
    qp.sent_direct(dev, cq);
    true
}

/// Completes the message that was sent alone, if the peer has taken it and nothing else is to be done; whether it was so.
#[inline(always)]
pub(super) fn settle<C: CqSink>(qp: &mut Qp, dev: &mut Device, cq: &mut C, taken: u64) -> bool {
    let is_usual = qp.route().is_open && !qp.send_cq_lost && !qp.requester.rnr_wait;
    let Some(wqe) = qp.sq.sent_alone().filter(|_| is_usual) else { return false };
    if wqe.stage != Stage::Started || wqe.position > taken {
        return false;
    }
    qp.requester.una = wqe.first_psn.plus(1);
    qp.local.window = qp.local.window.saturating_add(1);
    let pushed = match wqe.is_signaled() {
        true => cq.push(qp.route().send_cq, sent_completion(wqe, qp.qpn, 0)),
        false => Ok(()),
    };
    qp.sq.retire();
    rest(qp, dev);
    if pushed.is_err() {
        qp.lose_send_cq(dev);
    }
    true
}

/// Its last request has completed.
#[inline(always)]
fn rest(qp: &mut Qp, dev: &mut Device) {
    qp.requester.renew();
    qp.local.silent = 0;
    qp.local.progress = false;
    qp.local.unmarked = false;
    if dev.timers.is_set(qp.slot) {
        dev.timers.clear(qp.slot);
    }
}

/// Takes the message at the front, if it is one for this queue pair, and usual; whether it was taken.
#[inline(never)]
pub(super) fn take<C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    cq: &mut C,
    link: LinkId,
    arrivals: &mut impl Arrivals,
) -> bool {
    let route = *qp.route();
    let is_usual = route.is_open
        && route.link == link
        && !route.is_shared
        && !qp.receive.open
        && !qp.recv_cq_lost;
    let Some(receive) = qp.rq.front().filter(|_| is_usual) else { return false };
    let Some(place) = receive.only() else { return false };
    let (qpn, peer, pd, seq) = (qp.qpn, route.peer, route.pd, qp.local.expected);
    let Some(plain) = arrivals.take(qpn, peer, pd, seq, place) else { return false };
    let message = Completion::new(WcOpcode::Recv, plain.len).of(receive.wr_id, qpn);
    let pushed = cq.push(route.recv_cq, message.with_solicited(plain.solicited));
    qp.rq.drop_front(1);
    qp.local.expected = seq.plus(1);
    qp.local.refused = false;
    dev.counters.rx_bytes += u64::from(plain.len);
    if pushed.is_err() {
        qp.lose_recv_cq(dev, route.recv_cq);
    }
    true
}
