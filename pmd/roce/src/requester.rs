//! The requester: turns send requests into request packets, and decides when they go and go again.

use core::time::Duration;

use crate::counters::tally;
use crate::device::{Device, Io};
use crate::frame::{self, Sent};
use crate::ids::{Instant, Psn};
use crate::limits::MAX_PSNS;
use crate::local::Source;
use crate::memory::Memory;
use crate::qp::Qp;
use crate::qp::attr::QpAttr;
use crate::qp::sq::{SendWqe, Stage, gather};
use crate::qp::state::{QpState, Transport};
use crate::sink::{CqSink, TxSink};
use crate::turn::Turn;
use crate::wire::{AtomicEth, Bth, Headers, Ieth, ImmDt, Opcode, Operation, Reth, XrcEth};
use crate::work::{SendFlags, SendOp, Sge, WcStatus};

/// Where a requester stands in its stream of PSNs.
///
/// ```text
///    una                      sending             end
///     | sent, unacknowledged   | to be sent again  | never sent
/// ```
///
/// `sending` is the packet `packet` of the send queue's `next` request; it equals `end` unless the
/// requester went back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    /// Oldest PSN without acknowledgement.
    pub(crate) una: Psn,
    /// One past the newest PSN that was ever used.
    pub(crate) end: Psn,
    /// Which packet of the `next` request is sent next.
    pub(crate) packet: u32,
    /// READs and atomics that were started and have no response yet.
    pub(crate) rd_atomics: u32,
    /// Of the PSNs in `una .. end`, those that belong to responses only.
    pub(crate) response_psns: u32,
    /// Retries left until the peer is given up; full again after progress.
    pub(crate) retries_left: u8,
    /// The same for RNR NAKs.
    pub(crate) rnr_retries_left: u8,
    /// The peer has no receive: nothing is sent until the timer is over.
    pub(crate) rnr_wait: bool,
    /// A missing response has been noticed; later ones of the same stream say nothing new.
    pub(crate) gap_noted: bool,
    /// How many retries of both kinds there are when they are full.
    full: [u8; 2],
}

impl Requester {
    pub(crate) const fn new() -> Self {
        Self {
            una: Psn::new(0),
            end: Psn::new(0),
            packet: 0,
            rd_atomics: 0,
            response_psns: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            rnr_wait: false,
            gap_noted: false,
            full: [0; 2],
        }
    }

    /// RTS: the first packet carries `sq_psn`.
    pub(crate) const fn begin(&mut self, attr: &QpAttr) {
        *self = Self { una: attr.sq_psn, end: attr.sq_psn, ..Self::new() };
        self.refill(attr);
    }

    /// Error: nothing is outstanding any more.
    pub(crate) const fn stop(&mut self) {
        *self = Self { una: self.end, end: self.end, ..Self::new() };
    }

    /// Progress: all retries are there again.
    pub(crate) const fn refill(&mut self, attr: &QpAttr) {
        self.full = [attr.retry_cnt, attr.rnr_retry];
        self.renew();
    }

    /// The same, with as many as the last time.
    pub(crate) const fn renew(&mut self) {
        [self.retries_left, self.rnr_retries_left] = self.full;
        self.gap_noted = false;
    }

    /// PSNs without acknowledgement.
    pub(crate) const fn outstanding(&self) -> u32 {
        self.end.value().wrapping_sub(self.una.value()) & 0xff_ffff
    }

    /// Request packets without acknowledgement.
    const fn in_flight(&self) -> u32 {
        self.outstanding() - self.response_psns
    }
}

/// Local ACK timeout: 4.096 us x 2^code; `None`: wait for ever.
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    ack_timeout_nanos(code).map(Duration::from_nanos)
}

/// The same in nanoseconds.
#[inline]
pub(crate) const fn ack_timeout_nanos(code: u8) -> Option<u64> {
    match code {
        0 => None,
        code => Some(4096 << code),
    }
}

/// Whether the request at the cursor may be worked on now.
pub(crate) enum Gate {
    /// Send its next packet.
    Open,
    /// It was done without a packet: on to the following one.
    Passed,
    /// Something else must happen first.
    Shut,
    /// It has failed and is the oldest.
    Failed(WcStatus),
}

/// Sends request packets, at most `budget` of them.
pub(crate) fn transmit<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    tx: &mut impl TxSink,
    budget: usize,
) -> Turn {
    let mut done = 0;
    while !qp.requester.rnr_wait {
        match gate(qp, dev, io) {
            Gate::Shut => break,
            Gate::Passed => {
                qp.sq.advance();
                qp.requester.packet = 0;
                retire_local(qp, dev, io);
                continue;
            }
            Gate::Failed(status) => {
                qp.fail_send(dev, io.cq, status);
                break;
            }
            Gate::Open => {}
        }
        if done == budget {
            return Turn::more(done);
        }
        match send_packet(qp, dev, io, tx) {
            Sent::Yes => done += 1,
            Sent::Full => return Turn::wire_full(done),
            Sent::Fault(_) => fail_next(qp, WcStatus::LocProt),
        }
    }
    qp.note_drained(dev);
    Turn::idle(done)
}

/// Looks at the request at the cursor and starts it if it may start.
fn gate<M: Memory, C>(qp: &mut Qp, dev: &Device, io: &mut Io<'_, M, C>) -> Gate {
    let Some(wqe) = qp.sq.next() else { return Gate::Shut };
    let requester = &qp.requester;
    match wqe.stage {
        Stage::Done => return Gate::Passed,
        Stage::Failed(status) if qp.sq.next_is_head() => return Gate::Failed(status),
        Stage::Failed(_) => return Gate::Shut,
        Stage::Started => {
            let psn = wqe.first_psn.plus(requester.packet);
            let is_new = psn == requester.end;
            let room = requester.in_flight() < dev.config.window_packets;
            return if !is_new || !is_reliable(qp) || room { Gate::Open } else { Gate::Shut };
        }
        Stage::Posted if qp.state() != QpState::Rts => return Gate::Shut,
        Stage::Posted => {}
    }
    if wqe.flags.contains(SendFlags::FENCE) && requester.rd_atomics > 0 {
        return Gate::Shut;
    }
    if wqe.is_local() {
        return run_local(qp, io.mem);
    }
    let is_read_or_atomic = wqe.is_read_or_atomic();
    if is_read_or_atomic && requester.rd_atomics >= qp.attr.max_rd_atomic.into() {
        return Gate::Shut;
    }
    let packets = qp.packets_of(wqe.len);
    if is_reliable(qp) {
        let psns = if is_read_or_atomic { packets } else { 1 };
        let shut = requester.in_flight() >= dev.config.window_packets
            || requester.outstanding() + psns > MAX_PSNS;
        if shut {
            return Gate::Shut;
        }
    }
    if let Err(status) = check_elements(qp, io.mem, wqe) {
        fail_next(qp, status);
        return if qp.sq.next_is_head() { Gate::Failed(status) } else { Gate::Shut };
    }
    if is_read_or_atomic {
        qp.requester.rd_atomics += 1;
    }
    let first_psn = qp.requester.end;
    if let Some(wqe) = qp.sq.next_mut() {
        (wqe.stage, wqe.first_psn, wqe.packets) = (Stage::Started, first_psn, packets);
    }
    Gate::Open
}

fn is_reliable(qp: &Qp) -> bool {
    qp.transport().is_reliable()
}

/// Runs the request at the cursor, if it needs no peer, and no PSN. A key is invalidated only when nothing before it
/// can need the key again.
pub(crate) fn run_local(qp: &mut Qp, mem: &mut impl Memory) -> Gate {
    let (outcome, failure) = match qp.sq.next_op() {
        Some(SendOp::BindWindow(bind)) => (mem.bind(qp.asker(), &bind), WcStatus::MwBind),
        Some(SendOp::LocalInvalidate(_)) if !qp.sq.next_is_head() => return Gate::Shut,
        Some(SendOp::LocalInvalidate(key)) => (mem.invalidate(qp.asker(), key), WcStatus::LocQpOp),
        _ => return Gate::Open,
    };
    if outcome.is_err() {
        fail_next(qp, failure);
        return if qp.sq.next_is_head() { Gate::Failed(failure) } else { Gate::Shut };
    }
    if let Some(wqe) = qp.sq.next_mut() {
        wqe.stage = Stage::Done;
    }
    Gate::Passed
}

/// Completes requests at the head that needed no peer.
pub(crate) fn retire_local<M, C: CqSink>(qp: &mut Qp, dev: &mut Device, io: &mut Io<'_, M, C>) {
    while qp.sq.head().is_some_and(|wqe| wqe.stage == Stage::Done) {
        qp.complete_send(dev, io.cq, WcStatus::Success);
    }
}

/// Every element must be registered for its use before the first packet leaves.
pub(crate) fn check_elements(qp: &Qp, mem: &impl Memory, wqe: &SendWqe) -> Result<(), WcStatus> {
    let Source::Sges(sges) = qp.sq.next_source() else { return Ok(()) };
    let write = wqe.is_read_or_atomic();
    let check = |sge: &Sge| mem.check_local(qp.init.pd, sge, write);
    let used = sges.iter().filter(|sge| sge.len > 0);
    used.map(check).try_for_each(|checked| checked.map_err(|_| WcStatus::LocProt))
}

/// Marks the request at the cursor as failed: its turn to complete comes when it is the oldest.
pub(crate) fn fail_next(qp: &mut Qp, status: WcStatus) {
    if let Some(wqe) = qp.sq.next_mut() {
        wqe.stage = Stage::Failed(status);
    }
}

/// Sends the packet at the cursor and moves the cursor.
fn send_packet<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    tx: &mut impl TxSink,
) -> Sent {
    let (Some(wqe), Some(op)) = (qp.sq.next(), qp.sq.next_op()) else { return Sent::Full };
    let number = qp.requester.packet;
    let is_read_or_atomic = wqe.is_read_or_atomic();
    let is_last = is_read_or_atomic || number + 1 == wqe.packets;
    let offset = qp.offset_of(number);
    let psn = wqe.first_psn.plus(number);
    let is_new = psn == qp.requester.end;

    let mut headers = request(qp, wqe, op, number, offset);
    headers.bth.psn = psn;
    headers.bth.mig_req = qp.mig_req();
    headers.bth.solicited = is_last && wqe.flags.contains(SendFlags::SOLICITED) && may_solicit(&op);
    headers.bth.ack_req = is_reliable(qp)
        && (is_last
            || (number + 1).is_multiple_of(dev.config.ack_request_every)
            // Nothing more can be sent without an answer.
            || is_new && qp.requester.in_flight() + 1 >= dev.config.window_packets);
    let payload_len = match is_read_or_atomic {
        true => 0,
        false => qp.attr.path_mtu.bytes().min((wqe.len - offset) as usize),
    };
    // The PSNs that the answer to a READ takes come with its request.
    let psns = if is_read_or_atomic { wqe.packets } else { 1 };
    let (source, pd, mem) = (qp.sq.next_source(), qp.init.pd, &*io.mem);
    let sent = frame::send(tx, dev, &qp.flow, &headers, payload_len, |out| {
        gather(mem, pd, source, offset, out)
    });
    if sent != Sent::Yes {
        return sent;
    }
    sent_packet(qp, dev, io, psns, is_last, is_new);
    if headers.bth.ack_req && is_new && !is_read_or_atomic {
        qp.book.asked(psn.plus(1), io.now);
    }
    Sent::Yes
}

/// Moves cursor and timer past the packet that was just sent, which took so many PSNs.
fn sent_packet<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    psns: u32,
    is_last: bool,
    is_new: bool,
) {
    let requester = &mut qp.requester;
    if !is_new {
        tally!(qp, dev, retransmits);
    } else {
        requester.end = requester.end.plus(psns);
        requester.response_psns += psns - 1;
    }
    if is_last {
        requester.packet = 0;
        qp.sq.advance();
    } else {
        requester.packet += 1;
    }
    if !is_reliable(qp) {
        qp.requester.una = qp.requester.end;
        if is_last {
            qp.complete_send(dev, io.cq, WcStatus::Success);
            retire_local(qp, dev, io);
        }
    } else if !dev.timers.is_set(qp.slot) {
        start_timer(qp, dev, io.now);
    }
}

/// (Re)starts the ACK timer.
pub(crate) fn start_timer(qp: &Qp, dev: &mut Device, now: Instant) {
    if let Some(timeout) = ack_timeout(qp.attr.timeout) {
        dev.timers.set(qp.slot, now.after(timeout));
    }
}

/// A solicited event belongs to a message that consumes a receive.
const fn may_solicit(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::WriteImm(..)
    )
}

/// Headers of packet `number` of the request at the cursor, which starts at byte `offset`.
fn request(qp: &Qp, wqe: &SendWqe, op: SendOp, number: u32, offset: u32) -> Headers {
    use Operation as O;
    let (first, last) = (number == 0, number + 1 == wqe.packets);
    let place = |only, begin, middle, end| match (first, last) {
        (true, true) => only,
        (true, false) => begin,
        (false, false) => middle,
        (false, true) => end,
    };
    let operation = match op {
        SendOp::Send => place(O::SendOnly, O::SendFirst, O::SendMiddle, O::SendLast),
        SendOp::SendImm(_) => place(O::SendOnlyImm, O::SendFirst, O::SendMiddle, O::SendLastImm),
        SendOp::SendInvalidate(_) => {
            place(O::SendOnlyInv, O::SendFirst, O::SendMiddle, O::SendLastInv)
        }
        SendOp::Write(_) => place(O::WriteOnly, O::WriteFirst, O::WriteMiddle, O::WriteLast),
        SendOp::WriteImm(..) => {
            place(O::WriteOnlyImm, O::WriteFirst, O::WriteMiddle, O::WriteLastImm)
        }
        SendOp::Read(_) => O::ReadRequest,
        SendOp::CompareSwap { .. } => O::CmpSwap,
        SendOp::FetchAdd { .. } => O::FetchAdd,
        SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => {
            unreachable!("requests without a peer have no packets")
        }
    };
    let opcode = Opcode::of(qp.class(), operation).expect("post_send refuses what a class lacks");
    let mut headers = Headers::new(Bth::new(opcode, qp.attr.dest_qpn, wqe.first_psn));
    if qp.transport() == Transport::XrcIni {
        headers.xrceth = qp.sq.next_srqn().map(|srqn| XrcEth { srqn });
    }
    match op {
        SendOp::Send => {}
        SendOp::SendImm(imm) => headers.immdt = last.then_some(ImmDt(imm.0)),
        SendOp::SendInvalidate(rkey) => headers.ieth = last.then_some(Ieth { rkey }),
        SendOp::Write(at) => {
            headers.reth = first.then_some(Reth { va: at.addr, rkey: at.rkey, dma_len: wqe.len });
        }
        SendOp::WriteImm(at, imm) => {
            headers.reth = first.then_some(Reth { va: at.addr, rkey: at.rkey, dma_len: wqe.len });
            headers.immdt = last.then_some(ImmDt(imm.0));
        }
        // A READ that goes on in the middle asks for what is missing.
        SendOp::Read(at) => {
            let (va, dma_len) = (at.addr.wrapping_add(offset.into()), wqe.len - offset);
            headers.reth = Some(Reth { va, rkey: at.rkey, dma_len });
        }
        SendOp::CompareSwap { at, compare, swap } => {
            let (va, rkey) = (at.addr, at.rkey);
            headers.atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: swap, compare });
        }
        SendOp::FetchAdd { at, add } => {
            let (va, rkey) = (at.addr, at.rkey);
            headers.atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
        }
        SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => {}
    }
    headers
}
