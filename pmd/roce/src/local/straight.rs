//! The usual requests, one after the other without a detour: SENDs for which a receive is known,
//! WRITEs and READs that the target allows. Whatever is special about a request ends the run with
//! nothing changed; [`Attempt`](super::attempt::Attempt) has the rules for all of them.
//!
//! What the requests of a run have in common is looked at once, and what they add up to is noted once.

use super::attempt::credits;
use super::{LocalPeer, Pair, Straight};
use crate::device::Device;
use crate::ids::{LinkId, Psn};
use crate::limits::MARK_EVERY;
use crate::qp::sq::{Stage, Verb};
use crate::qp::state::{QpState, Transport};
use crate::qp::{Qp, sent_completion};
use crate::sink::CqSink;
use crate::work::{Access, SendFlags};

/// Runs requests from the cursor on, at most `budget` of them; returns how many.
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
        && qp.local.unsure == 0
        && !qp.send_cq_lost;
    let Some(seen) = qp.local.seen.filter(|_| is_usual) else { return 0 };
    let page = qp.local.page;
    let pair = Pair { qpn: qp.qpn, pd: qp.init.pd, peer: qp.attr.dest_qpn, peer_pd: page.pd };
    let Some(straight) = peers.straight(link, pair) else { return 0 };
    let mut run = Run {
        straight,
        seen,
        allows_write: page.access.contains(Access::REMOTE_WRITE),
        allows_read: page.access.contains(Access::REMOTE_READ) && page.max_dest_rd_atomic > 0,
        unfenced: dev.unfenced,
        credits: credits(qp, &page).unwrap_or(0),
        seq: qp.requester.end,
        newest: 0,
        unmarked: 0,
        is_marked: true,
        sent: 0,
        received: 0,
    };
    let mut done = 0;
    loop {
        // A row ends where the memory of the queue does.
        let row = run.row(qp, dev, cq, budget - done);
        done += row;
        if row == 0 || qp.send_cq_lost {
            break;
        }
    }
    run.end(qp, dev);
    done
}

/// A run under way.
struct Run<S> {
    straight: S,
    /// The target's page as it was when last looked at.
    seen: u64,
    allows_write: bool,
    allows_read: bool,
    /// Direct WRITEs were made since the last fence.
    unfenced: bool,
    /// Receives that the target is known to have.
    credits: i32,
    /// The number of the next message.
    seq: Psn,
    /// The position of the last one.
    newest: u64,
    /// Messages since completions were last seen to, and whether they were.
    unmarked: u32,
    is_marked: bool,
    /// Bytes of messages and WRITEs, and of READs.
    sent: u64,
    received: u64,
}

impl<S: Straight> Run<S> {
    /// Requests in a row, at most so many; returns how many. A function of its own, so that its loop has
    /// the registers to itself.
    #[inline(never)]
    fn row<C: CqSink>(&mut self, qp: &mut Qp, dev: &mut Device, cq: &mut C, most: usize) -> usize {
        let (lane, slot, qpn) = (qp.local.lane, qp.slot, qp.qpn);
        let (mut done, mut completed) = (0, 0);
        // What is done when it is the oldest completes on the spot. The consumer sees it after the fence
        // that ends the poll.
        let mut is_oldest = qp.sq.next_is_head();
        let (wqes, inline) = qp.sq.waiting(most);
        let mut wqes = wqes.iter_mut();
        let pushed = cq.extend(qp.init.send_cq, || {
            for wqe in wqes.by_ref() {
                if wqe.stage != Stage::Posted || self.straight.glance() != self.seen {
                    break;
                }
                let len = wqe.len;
                let brought = match wqe.verb {
                    Verb::Send if self.credits > 0 => {
                        let (seq, solicited) = (self.seq, wqe.flags.contains(SendFlags::SOLICITED));
                        let position = match wqe.only() {
                            Some(sge) => self.straight.send(seq, solicited, sge)?,
                            None => {
                                self.straight.send_inline(seq, solicited, inline.of(done, wqe)?)?
                            }
                        };
                        (wqe.stage, wqe.first_psn, wqe.position) = (Stage::Started, seq, position);
                        (self.seq, self.newest) = (seq.plus(1), position);
                        self.sent += u64::from(len);
                        self.credits -= 1;
                        self.unmarked += 1;
                        if self.unmarked == MARK_EVERY {
                            self.is_marked = dev.lanes.mark(lane, position, slot);
                            self.unmarked = 0;
                        }
                        is_oldest = false;
                        done += 1;
                        continue;
                    }
                    Verb::Write if self.allows_write => {
                        let at = wqe.remote();
                        let is_done = match wqe.only() {
                            Some(sge) => self.straight.write(sge, at),
                            None => self.straight.write_inline(inline.of(done, wqe)?, at),
                        };
                        if !is_done {
                            break;
                        }
                        self.unfenced = true;
                        self.sent += u64::from(len);
                        0
                    }
                    Verb::Read if self.allows_read => {
                        if core::mem::take(&mut self.unfenced) {
                            // Everything written so far is visible before anything is read.
                            self.straight.fence();
                        }
                        if !self.straight.read(wqe.only()?, wqe.remote()) {
                            break;
                        }
                        self.received += u64::from(len);
                        len
                    }
                    _ => break,
                };
                done += 1;
                if is_oldest {
                    completed += 1;
                    if wqe.is_signaled() {
                        return Some(sent_completion(wqe, qpn, brought));
                    }
                } else {
                    wqe.stage = Stage::Done;
                }
            }
            None
        });
        qp.sq.pass(done, completed);
        qp.local.progress |= completed > 0;
        if pushed.is_err() {
            qp.lose_send_cq(dev);
        }
        done
    }

    /// Notes what was done.
    #[inline]
    fn end(self, qp: &mut Qp, dev: &mut Device) {
        dev.unfenced = self.unfenced;
        if self.unmarked > 0 {
            dev.mark(qp, self.newest);
        } else if !self.is_marked {
            qp.local.unmarked = true;
        }
        if self.seq != qp.requester.end {
            qp.requester.end = self.seq;
            qp.local.question = None;
        }
        dev.counters.tx_bytes += self.sent;
        dev.counters.rx_bytes += self.received;
    }
}

impl Device {
    /// Has completions looked for once the peer has taken what was pushed up to `position`.
    #[inline]
    pub(super) fn mark(&mut self, qp: &mut Qp, position: u64) {
        qp.local.unmarked = !self.lanes.mark(qp.local.lane, position, qp.slot);
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
