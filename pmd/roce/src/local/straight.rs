//! The usual requests, one after the other without a detour: SENDs for which a receive is known,
//! WRITEs and READs that the target allows. Whatever is special about a request ends the run with
//! nothing changed; [`Attempt`](super::attempt::Attempt) has the rules for all of them.
//!
//! What the requests of a run have in common is looked at once, and what they add up to is noted once.

use super::attempt::credits;
use super::{Direct, LocalPeer, Outgoing, Pair, PublishedQp, Straight};
use crate::device::Device;
use crate::ids::{LinkId, Psn, Qpn};
use crate::limits::MARK_EVERY;
use crate::qp::Qp;
use crate::qp::sq::{Inline, SendWqe, Stage, Verb};
use crate::sink::CqSink;
use crate::work::{Access, Completion, RemoteAddr, SendFlags, Sge, WcOpcode};

/// Runs requests from the cursor on, at most `budget` of them; returns how many.
pub(super) fn run<C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    cq: &mut C,
    peers: &mut P,
    link: LinkId,
    budget: usize,
) -> usize {
    let is_usual = qp.route().is_open && qp.local.unsure == 0 && !qp.send_cq_lost;
    let Some(seen) = qp.local.seen.filter(|_| is_usual) else { return 0 };
    let Some(straight) = peers.straight(link, pair(qp)) else { return 0 };
    let credits = known_credits(qp, &straight, qp.sq.waiting_len());
    let page = &qp.local.page;
    let mut run = Run {
        straight,
        seen,
        allows_write: page.access.contains(Access::REMOTE_WRITE),
        allows_read: allows_read(page),
        unfenced: dev.unfenced,
        credits,
        seq: qp.requester.end,
        in_rows: true,
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

/// The queue pair and its peer.
#[inline(always)]
pub(super) fn pair(qp: &Qp) -> Pair {
    let route = qp.route();
    Pair { qpn: qp.qpn, pd: route.pd, peer: route.peer, peer_pd: qp.local.page.pd }
}

pub(super) fn allows_read(page: &PublishedQp) -> bool {
    page.access.contains(Access::REMOTE_READ) && page.max_dest_rd_atomic > 0
}

/// Receives that are known, and those that have come since where there are fewer than `wanted`.
#[inline(always)]
fn known_credits(qp: &mut Qp, straight: &impl Straight, wanted: u32) -> i32 {
    let has_enough = |known: &i32| *known >= wanted.cast_signed();
    if let Some(known) = credits(qp, &qp.local.page)
        && !has_enough(&known)
    {
        qp.local.page.posted = Some(straight.posted());
    }
    credits(qp, &qp.local.page).unwrap_or(0)
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
    /// Messages are short enough to go in rows, as far as is known.
    in_rows: bool,
    /// The position of the last one.
    newest: u64,
    /// Messages since completions were last seen to, and whether they were.
    unmarked: usize,
    is_marked: bool,
    /// Bytes of messages and WRITEs, and of READs.
    sent: u64,
    received: u64,
}

impl<S: Straight> Run<S> {
    /// Requests in a row, at most so many; returns how many.
    fn row<C: CqSink>(&mut self, qp: &mut Qp, dev: &mut Device, cq: &mut C, most: usize) -> usize {
        let (lane, slot, qpn, send_cq) = (qp.local.lane, qp.slot, qp.qpn, qp.route().send_cq);
        let (mut done, mut completed) = (0, 0);
        // What is done when it is the oldest completes on the spot. The consumer sees it after the fence
        // that ends the poll.
        let mut is_oldest = qp.sq.next_is_head();
        let (wqes, inline) = qp.sq.waiting(most);
        let pushed = cq.fill(send_cq, |mut slots| {
            let room = slots.len();
            while let Some(rest) = wqes.get_mut(done..).filter(|rest| !rest.is_empty()) {
                let inline = inline.behind(done);
                let now = match rest[0].verb {
                    Verb::Write if is_oldest => {
                        self.complete::<false>(rest, inline, qpn, &mut slots)
                    }
                    Verb::Read if is_oldest => self.complete::<true>(rest, inline, qpn, &mut slots),
                    _ => self.queue(rest, inline),
                };
                if now == 0 {
                    break;
                }
                done += now;
                if self.unmarked == MARK_EVERY {
                    self.is_marked = dev.lanes.mark(lane, self.newest, slot);
                    self.unmarked = 0;
                }
                is_oldest &= rest[0].stage == Stage::Posted;
                completed += if is_oldest { now } else { 0 };
            }
            room - slots.len()
        });
        qp.sq.pass(done, completed);
        qp.local.progress |= completed > 0;
        if pushed.is_err() {
            qp.lose_send_cq(dev);
        }
        done
    }

    /// Requests in a row from a SEND on, which complete once it is taken. This loop and the following have
    /// functions of their own, and so the registers to themselves.
    #[inline(never)]
    fn queue(&mut self, wqes: &mut [SendWqe], inline: Inline<'_>) -> usize {
        let credits = usize::try_from(self.credits).unwrap_or(0);
        let most = credits.min(MARK_EVERY - self.unmarked);
        let (mut done, mut left) = (0, most);
        while let Some([wqe, ..]) = wqes.get_mut(done..) {
            let sent = match wqe.verb {
                Verb::Send if left == 0 => 0,
                Verb::Send => {
                    let is_row = self.in_rows && has_row(&wqes[done..]);
                    let row = if is_row { self.send_row(&mut wqes[done..], left) } else { 0 };
                    self.in_rows &= !is_row || row > 0;
                    if row > 0 { row } else { self.send(&mut wqes[done], inline, done) }
                }
                _ if self.copy::<false>(wqe, inline, done)
                    || self.copy::<true>(wqe, inline, done) =>
                {
                    wqe.stage = Stage::Done;
                    done += 1;
                    continue;
                }
                _ => 0,
            };
            if sent == 0 {
                break;
            }
            (done, left) = (done + sent, left - sent);
        }
        self.unmarked += most - left;
        self.credits -= i32::try_from(most - left).unwrap_or(0);
        done
    }

    /// SENDs in a row, at most so many; returns how many.
    #[inline(never)]
    fn send_row(&mut self, wqes: &mut [SendWqe], most: usize) -> usize {
        let most = most.min(wqes.len());
        let Some(row) = wqes.get_mut(..most).filter(|_| self.straight.glance() == self.seen) else {
            return 0;
        };
        let sent = self.straight.send_row(self.seq, row);
        let Some(newest) = row[..sent].last() else { return 0 };
        self.newest = newest.position;
        self.seq = newest.first_psn.plus(1);
        self.sent += row[..sent].iter().map(|wqe| u64::from(wqe.len)).sum::<u64>();
        sent
    }

    /// A SEND that is alone, or too long to go in a row; whether it was sent.
    #[inline(always)]
    fn send(&mut self, wqe: &mut SendWqe, inline: Inline<'_>, nth: usize) -> usize {
        if !self.is_next(wqe) {
            return 0;
        }
        let solicited = wqe.flags.contains(SendFlags::SOLICITED);
        let position = match wqe.only() {
            Some(sge) => self.straight.send(self.seq, solicited, sge),
            None => inline
                .of(nth, wqe)
                .and_then(|bytes| self.straight.send_inline(self.seq, solicited, bytes)),
        };
        let Some(position) = position else { return 0 };
        wqe.is_at(self.seq, position);
        (self.newest, self.seq) = (position, self.seq.plus(1));
        self.sent += u64::from(wqe.len);
        1
    }

    /// WRITEs or READs in a row which are the oldest when they are done. Leaves the slots that it did not
    /// need.
    #[inline(never)]
    fn complete<const READ: bool>(
        &mut self,
        wqes: &[SendWqe],
        inline: Inline<'_>,
        qpn: Qpn,
        slots: &mut &mut [Completion],
    ) -> usize {
        let mut free = core::mem::take(slots).iter_mut();
        let [first, ..] = wqes else { return 0 };
        let mut done = self.copy_row::<READ>(&wqes[..wqes.len().min(free.len())]);
        if done == 0 && (free.len() > 0 || !first.is_signaled()) {
            done = usize::from(self.copy::<READ>(first, inline, 0));
        }
        let (what, brings) = if READ { (WcOpcode::Read, u32::MAX) } else { (WcOpcode::Write, 0) };
        for wqe in wqes[..done].iter().filter(|wqe| wqe.is_signaled()) {
            let Some(slot) = free.next() else { break };
            *slot = Completion::new(what, wqe.len & brings).of(wqe.wr_id, qpn);
        }
        *slots = free.into_slice();
        done
    }

    /// WRITEs or READs in a row; returns how many.
    #[inline(always)]
    fn copy_row<const READ: bool>(&mut self, wqes: &[SendWqe]) -> usize {
        if !self.may::<READ>() {
            return 0;
        }
        let done = self.straight.copy_row::<READ, _>(wqes, self.seen);
        let bytes = wqes[..done].iter().map(|wqe| u64::from(wqe.len)).sum();
        self.note::<READ>(bytes);
        done
    }

    /// Does the copy of a WRITE or READ; false: it is something else, or not usual.
    #[inline(always)]
    fn copy<const READ: bool>(&mut self, wqe: &SendWqe, inline: Inline<'_>, nth: usize) -> bool {
        let verb = if READ { Verb::Read } else { Verb::Write };
        if wqe.verb != verb || !self.is_next(wqe) || !self.may::<READ>() {
            return false;
        }
        let at = wqe.remote();
        let is_done = match wqe.only() {
            Some(into) if READ => self.straight.read(into, at),
            Some(from) => self.straight.write(from, at),
            None if READ => false,
            None => inline.of(nth, wqe).is_some_and(|bytes| self.straight.write_inline(bytes, at)),
        };
        if is_done {
            self.note::<READ>(wqe.len.into());
        }
        is_done
    }

    /// Whether the target allows WRITEs or READs, and everything that was written is visible before something is read.
    #[inline(always)]
    fn may<const READ: bool>(&mut self) -> bool {
        if !READ {
            return self.allows_write;
        }
        if self.allows_read && core::mem::take(&mut self.unfenced) {
            self.straight.fence();
        }
        self.allows_read
    }

    /// So many bytes were written or read.
    #[inline(always)]
    const fn note<const READ: bool>(&mut self, bytes: u64) {
        if READ {
            self.received += bytes;
        } else {
            self.unfenced |= bytes > 0;
            self.sent += bytes;
        }
    }

    /// Whether nobody has looked at it yet, and the target is as it was.
    #[inline(always)]
    fn is_next(&self, wqe: &SendWqe) -> bool {
        wqe.stage == Stage::Posted && self.straight.glance() == self.seen
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

/// Whether the first of these requests is a SEND that another follows.
#[inline(always)]
fn has_row(wqes: &[SendWqe]) -> bool {
    matches!(wqes, [first, second, ..] if (first.verb, second.verb) == (Verb::Send, Verb::Send))
}

impl Direct for SendWqe {
    #[inline(always)]
    fn places<const READ: bool>(&self) -> Option<(&Sge, RemoteAddr)> {
        let verb = if READ { Verb::Read } else { Verb::Write };
        let is_usual = self.verb == verb && self.stage == Stage::Posted;
        Some((self.only().filter(|_| is_usual)?, self.remote()))
    }
}

impl Outgoing for SendWqe {
    #[inline(always)]
    fn says(&self) -> Option<(&Sge, bool)> {
        let is_usual = self.verb == Verb::Send && self.stage == Stage::Posted;
        let sge = self.only().filter(|_| is_usual)?;
        Some((sge, self.flags.contains(SendFlags::SOLICITED)))
    }

    #[inline(always)]
    fn is_at(&mut self, seq: Psn, position: u64) {
        (self.stage, self.first_psn, self.position) = (Stage::Started, seq, position);
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
