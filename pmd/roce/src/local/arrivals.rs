//! The usual messages, one after the other without a detour: SENDs that a connection expects next, and
//! for which a receive of one element is posted. Whatever is special about one ends the run with nothing
//! changed; [`responder`](super::responder) has the rules for all of them.

use super::responder::still_sends;
use super::{Arrivals, Messages, ahead, lone};
use crate::device::Device;
use crate::ids::LinkId;
use crate::qp::Qp;
use crate::qp::table::QpTable;
use crate::sink::CqSink;
use crate::work::{Completion, WcOpcode};

/// Takes messages from the front on, at most `budget` of them, as long as they are usual; returns how
/// many.
#[inline]
pub(crate) fn take(
    qps: &mut QpTable,
    dev: &mut Device,
    cq: &mut impl CqSink,
    link: LinkId,
    arrivals: &mut impl Arrivals,
    budget: usize,
) -> usize {
    let mut taken = 0;
    // Where queue pairs take turns, each message is taken alone.
    let (mut is_lone, mut last) = (false, None);
    while taken < budget {
        let Some((dst, is_borrowed)) = arrivals.front() else { break };
        // Where queue pairs take turns, the next ones lie far away.
        if last.is_some_and(|last| last != dst) {
            ahead::arrival(qps, arrivals);
        }
        let Some(qp) = qps.get_mut(dst) else { break };
        is_lone &= last.replace(dst) != Some(dst);
        if is_lone && !is_borrowed && lone::take(qp, dev, cq, link, arrivals) {
            taken += 1;
            continue;
        }
        let left = budget - taken;
        let run = match is_borrowed {
            false => run::<_, _, false>(qp, dev, cq, link, arrivals, left),
            true => run::<_, _, true>(qp, dev, cq, link, arrivals, left),
        };
        if run == 0 {
            break;
        }
        is_lone = run == 1;
        taken += run;
    }
    taken
}

/// Takes the message at the front, if it is a usual one with its bytes behind it; whether it was.
#[inline(always)]
pub(crate) fn take_alone(
    qps: &mut QpTable,
    dev: &mut Device,
    cq: &mut impl CqSink,
    link: LinkId,
    arrivals: &mut impl Arrivals,
) -> bool {
    let Some((dst, false)) = arrivals.front() else { return false };
    let Some(qp) = qps.get_mut(dst) else { return false };
    lone::take(qp, dev, cq, link, arrivals)
}

/// Takes messages for one queue pair, into receives that lie in a row. A function of its own, so that its
/// loop has the registers to itself.
#[inline(never)]
fn run<C: CqSink, A: Arrivals, const BORROWED: bool>(
    qp: &mut Qp,
    dev: &mut Device,
    cq: &mut C,
    link: LinkId,
    arrivals: &mut A,
    budget: usize,
) -> usize {
    let route = *qp.route();
    let is_usual = route.is_open && route.link == link && !qp.receive.open && !qp.recv_cq_lost;
    let srq = if route.is_shared { qp.init.srq } else { None };
    let (queue, pd, budget) = match srq {
        _ if !is_usual => return 0,
        None => (&mut qp.rq, route.pd, budget),
        // The first of a queue pair may be one of those that are kept for newcomers.
        Some(_) if !qp.receive.had_shared => return 0,
        Some(srqn) => match dev.srqs.queue_of(srqn) {
            Some((shared, pd, spare)) => (shared, pd, budget.min(spare)),
            None => return 0,
        },
    };
    let (qpn, peer, first) = (qp.qpn, route.peer, qp.local.expected);
    let receives = queue.row(budget);
    let Some(lkey) = receives.first().map(|receive| receive.lkey()) else { return 0 };
    let Some(mut messages) = arrivals.messages::<BORROWED>(qpn, peer, pd, lkey) else { return 0 };
    let (mut seq, mut bytes) = (first, 0);
    let completed = cq.fill(route.recv_cq, |slots| {
        for (slot, receive) in slots.iter_mut().zip(receives) {
            let Some(place) = receive.only() else { break };
            let Some(plain) = messages.copy(seq, place) else { break };
            // Else the sender's consumer may have changed the bytes during the copy.
            if BORROWED && !still_sends(messages.sender(), qpn) {
                break;
            }
            messages.advance();
            seq = seq.plus(1);
            bytes += u64::from(plain.len);
            let message = Completion::new(WcOpcode::Recv, plain.len);
            *slot = message.of(receive.wr_id, qpn).with_solicited(plain.solicited);
        }
        seq.minus(first.value()).value() as usize
    });
    let taken = seq.minus(first.value()).value();
    if taken == 0 {
        return 0;
    }
    queue.drop_front(taken);
    qp.local.expected = seq;
    qp.local.refused = false;
    dev.counters.rx_bytes += bytes;
    if let Some(srqn) = srq {
        dev.note_shared_taken(srqn);
    }
    if completed.is_err() {
        qp.lose_recv_cq(dev, route.recv_cq);
    }
    taken as usize
}
