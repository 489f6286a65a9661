//! The usual requests, one after the other without a detour: SENDs for which a receive is known,
//! WRITEs and READs that the target allows. Whatever is special about a request ends the run with
//! nothing changed; [`Attempt`](super::attempt::Attempt) has the rules for all of them.

use super::attempt::credits;
use super::{LocalPeer, Push, Record, RecordKind, Source};
use crate::device::Device;
use crate::ids::LinkId;
use crate::limits::MARK_EVERY;
use crate::qp::sq::{Stage, Verb};
use crate::qp::state::{QpState, Transport};
use crate::qp::{Qp, sent_completion};
use crate::sink::CqSink;
use crate::work::{Access, SendFlags, Sge};

/// Runs requests from the cursor on, at most `budget` of them; returns how many. A function of its
/// own, so that its loop has the registers to itself.
#[inline(never)]
pub(super) fn run<C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    cq: &mut C,
    peers: &mut P,
    link: LinkId,
    budget: usize,
) -> usize {
    let is_usual = qp.state() == QpState::Rts
        && qp.transport() == Transport::Rc
        && qp.local.seen.is_some()
        && qp.local.unsure == 0
        && !qp.send_cq_lost;
    if !is_usual {
        return 0;
    }
    let (seen, page, pd) = (qp.local.seen, qp.local.page, qp.init.pd);
    let (qpn, peer, send_cq) = (qp.qpn, qp.attr.dest_qpn, qp.init.send_cq);
    let target = (page.pd, peer);
    let allows_write = page.access.contains(Access::REMOTE_WRITE);
    let allows_read = page.access.contains(Access::REMOTE_READ) && page.max_dest_rd_atomic > 0;
    let mut credits = credits(qp, &page).unwrap_or(0);
    let (mut done, mut sent, mut received) = (0, 0, 0);
    let (mut seq, mut newest, mut unmarked) = (qp.requester.end, 0, 0);
    let mut only = Sge::default();
    while done < budget && peers.glance(link, peer) == seen {
        let is_oldest = qp.sq.next_is_head();
        let Some((wqe, source)) = qp.sq.cursor(&mut only) else { break };
        if wqe.stage != Stage::Posted {
            break;
        }
        let len = wqe.len;
        let brought = match wqe.verb {
            Verb::Send if credits > 0 => {
                let record = Record {
                    kind: RecordKind::Send,
                    dst: peer,
                    src: qpn,
                    seq,
                    len,
                    imm: None,
                    solicited: wqe.flags.contains(SendFlags::SOLICITED),
                    srqn: None,
                };
                let Push::At(position) = peers.push(link, pd, &record, source) else { break };
                (wqe.stage, wqe.first_psn, wqe.position) = (Stage::Started, seq, position);
                (seq, newest) = (seq.plus(1), position);
                (sent, credits, unmarked) = (sent + u64::from(len), credits - 1, unmarked + 1);
                qp.sq.advance();
                if unmarked == MARK_EVERY {
                    dev.mark(qp, position);
                    unmarked = 0;
                }
                done += 1;
                continue;
            }
            Verb::Write if allows_write => {
                if peers.write(link, pd, source, target, wqe.remote()).is_err() {
                    break;
                }
                dev.unfenced |= len > 0;
                sent += u64::from(len);
                0
            }
            Verb::Read if allows_read => {
                let Source::Sges(into) = source else { break };
                if core::mem::take(&mut dev.unfenced) {
                    // Everything written so far is visible before anything is read.
                    peers.fence();
                }
                if peers.read(link, pd, into, target, wqe.remote()).is_err() {
                    break;
                }
                received += u64::from(len);
                len
            }
            _ => break,
        };
        done += 1;
        if !is_oldest {
            wqe.stage = Stage::Done;
            qp.sq.advance();
            continue;
        }
        // It completes on the spot. The consumer sees it after the fence that ends the poll.
        qp.local.progress = true;
        let is_lost =
            wqe.is_signaled() && cq.push(send_cq, sent_completion(wqe, qpn, brought)).is_err();
        qp.sq.retire();
        if is_lost {
            qp.lose_send_cq(dev);
            break;
        }
    }
    if unmarked > 0 {
        dev.mark(qp, newest);
    }
    if seq != qp.requester.end {
        qp.requester.end = seq;
        qp.local.question = None;
    }
    dev.counters.tx_bytes += sent;
    dev.counters.rx_bytes += received;
    done
}

impl Device {
    /// Has completions looked for once the peer has taken what was pushed up to `position`.
    #[inline]
    pub(super) fn mark(&mut self, qp: &Qp, position: u64) {
        if !self.lanes.mark(qp.local.lane, position, qp.slot) {
            self.local.push(qp.slot);
        }
    }
}

impl Qp {
    /// The request at the cursor was executed and needs nothing more but its turn to complete: at
    /// once where it is the oldest. The consumer sees it after the fence that ends the poll.
    pub(super) fn sent_direct(&mut self, dev: &mut Device, cq: &mut impl CqSink) {
        if self.sq.next_is_head() {
            self.succeed_send(dev, cq);
            self.local.progress = true;
        } else {
            if let Some(wqe) = self.sq.next_mut() {
                wqe.stage = Stage::Done;
            }
            self.sq.advance();
        }
    }
}
