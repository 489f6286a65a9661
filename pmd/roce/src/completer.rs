//! The completer: takes what the peer's responder says and completes, retries or fails requests.

use crate::counters::tally;
use crate::device::{Device, Io};
use crate::ids::Psn;
use crate::memory::Memory;
use crate::migration;
use crate::qp::Qp;
use crate::qp::rq::scatter;
use crate::qp::sq::Stage;
use crate::qp::state::{QpState, Transport};
use crate::requester::{retire_local, start_timer};
use crate::sink::CqSink;
use crate::wire::{Aeth, DropReason, NakCode, Operation, Packet, RnrTimer, Syndrome};
use crate::work::{WcOpcode, WcStatus};

/// Takes a response.
///
/// # Errors
/// Why it had no effect.
pub(crate) fn handle_response<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    if qp.transport() == Transport::XrcTgt {
        return Err(DropReason::WrongTransport);
    }
    if !matches!(qp.state(), QpState::Rts | QpState::Sqd) {
        return Err(DropReason::QpState);
    }
    let bth = &packet.headers.bth;
    let ahead = bth.psn.value().wrapping_sub(qp.requester.una.value()) & 0xff_ffff;
    if ahead >= qp.requester.outstanding() {
        return Err(DropReason::StaleResponse);
    }
    let psn = bth.psn;
    let result = match (bth.opcode.operation(), packet.headers.aeth) {
        (Operation::Acknowledge, Some(Aeth { syndrome, .. })) => match syndrome {
            Syndrome::Ack { .. } => {
                if acknowledge(qp, dev, io, psn.plus(1)) == Seen::Gap {
                    implied_nak(qp, dev, io);
                }
                Ok(())
            }
            Syndrome::Rnr { timer } => handle_rnr_nak(qp, dev, io, psn, timer),
            Syndrome::Nak(code) => handle_nak(qp, dev, io, psn, code),
        },
        (Operation::AtomicAcknowledge, _) => handle_atomic_response(qp, dev, io, packet),
        _ => handle_read_response(qp, dev, io, packet),
    };
    if qp.sq.has_next() {
        dev.ready.push(qp.slot);
    }
    qp.note_drained(dev);
    result
}

/// The timer of a requester ran out: either an RNR wait is over, or nobody answered.
pub(crate) fn handle_timeout<M, C: CqSink>(qp: &mut Qp, dev: &mut Device, io: &mut Io<'_, M, C>) {
    if core::mem::take(&mut qp.requester.rnr_wait) {
        dev.ready.push(qp.slot);
        return;
    }
    if qp.requester.outstanding() == 0 || !matches!(qp.state(), QpState::Rts | QpState::Sqd) {
        return;
    }
    tally!(qp, dev, local_ack_timeout_err);
    // A gap that was noticed may have led to a resend that was lost as well.
    qp.requester.gap_noted = false;
    retry(qp, dev, io);
}

/// Whether everything before a response was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    All,
    /// The response to an earlier READ or atomic is missing.
    Gap,
}

/// Acknowledges every PSN before `upto`: SENDs and WRITEs complete, READs and atomics wait for
/// their own responses.
fn acknowledge<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    upto: Psn,
) -> Seen {
    let before = qp.requester.una;
    let mut seen = Seen::All;
    while let Some(wqe) = qp.sq.head() {
        match wqe.stage {
            Stage::Done => qp.complete_send(dev, io.cq, WcStatus::Success),
            Stage::Started if wqe.is_read_or_atomic() => {
                if covers(upto, wqe.end_psn()) {
                    seen = Seen::Gap;
                }
                break;
            }
            Stage::Started if covers(upto, wqe.end_psn()) => {
                qp.requester.una = wqe.end_psn();
                qp.complete_send(dev, io.cq, WcStatus::Success);
            }
            Stage::Started | Stage::Failed(_) => {
                if covers(upto, qp.requester.una) {
                    qp.requester.una = upto;
                }
                break;
            }
            Stage::Posted => break,
        }
    }
    if qp.requester.una != before {
        progress(qp, dev, io);
    }
    seen
}

/// Whether everything before `upto` includes everything before `psn`.
const fn covers(upto: Psn, psn: Psn) -> bool {
    upto.since(psn) >= 0
}

/// The peer has moved on: retries are refilled, the timer starts anew, and what had been put back
/// to be sent again but has arrived after all is not sent.
fn progress<M, C>(qp: &mut Qp, dev: &mut Device, io: &Io<'_, M, C>) {
    pass_cursor(qp);
    qp.book.answered(qp.requester.una, io.now);
    let attr = &qp.attr;
    qp.requester.refill(attr);
    qp.requester.rnr_wait = false;
    dev.timers.clear(qp.slot);
    if qp.requester.outstanding() > 0 {
        start_timer(qp, dev, io.now);
    }
}

/// Keeps the cursor from lagging behind the oldest PSN without acknowledgement.
fn pass_cursor(qp: &mut Qp) {
    let started = qp.sq.head().filter(|wqe| wqe.stage == Stage::Started);
    if let Some(wqe) = started.filter(|_| qp.sq.next_is_head()) {
        let answered = qp.requester.una.since(wqe.first_psn).cast_unsigned();
        qp.requester.packet = qp.requester.packet.max(answered);
    }
}

/// Goes back to the oldest PSN without acknowledgement, if the peer is worth another try.
fn retry<M, C: CqSink>(qp: &mut Qp, dev: &mut Device, io: &mut Io<'_, M, C>) {
    match qp.requester.retries_left.checked_sub(1) {
        Some(left) => {
            qp.requester.retries_left = left;
            go_back(qp, dev);
        }
        None if migration::escape(qp, dev) => {}
        None => {
            tally!(qp, dev, req_transport_retries_exceeded);
            qp.fail_send(dev, io.cq, WcStatus::RetryExc);
        }
    }
}

/// Has everything from `una` on sent again. The timer starts with the first packet.
pub(crate) fn go_back(qp: &mut Qp, dev: &mut Device) {
    qp.sq.go_back();
    qp.book.sent_again();
    qp.requester.packet = 0;
    pass_cursor(qp);
    dev.timers.clear(qp.slot);
    dev.ready.push(qp.slot);
}

/// A response proves that an earlier one was lost.
fn implied_nak<M, C: CqSink>(qp: &mut Qp, dev: &mut Device, io: &mut Io<'_, M, C>) {
    if !core::mem::replace(&mut qp.requester.gap_noted, true) {
        tally!(qp, dev, implied_nak_seq_err);
        retry(qp, dev, io);
    }
}

fn handle_rnr_nak<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    psn: Psn,
    timer: RnrTimer,
) -> Result<(), DropReason> {
    if acknowledge(qp, dev, io, psn) == Seen::Gap {
        implied_nak(qp, dev, io);
        return Ok(());
    }
    if qp.requester.rnr_wait {
        return Err(DropReason::StaleResponse);
    }
    tally!(qp, dev, rnr_nak_retry_err);
    if qp.attr.rnr_retry != RNR_RETRY_FOREVER {
        let Some(left) = qp.requester.rnr_retries_left.checked_sub(1) else {
            tally!(qp, dev, req_rnr_retries_exceeded);
            qp.fail_send(dev, io.cq, WcStatus::RnrRetryExc);
            return Ok(());
        };
        qp.requester.rnr_retries_left = left;
    }
    go_back(qp, dev);
    // The ACK timer stands still meanwhile, and no retry is used up.
    qp.requester.rnr_wait = true;
    qp.book.rnr_wait.record(timer.duration());
    dev.timers.set(qp.slot, io.now.after(timer.duration()));
    Ok(())
}

/// `rnr_retry` of a requester that never gives up.
pub(crate) const RNR_RETRY_FOREVER: u8 = 7;

fn handle_nak<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    psn: Psn,
    code: NakCode,
) -> Result<(), DropReason> {
    if code == NakCode::PsnSequenceError {
        tally!(qp, dev, packet_seq_err);
    }
    if acknowledge(qp, dev, io, psn) == Seen::Gap {
        implied_nak(qp, dev, io);
        return Ok(());
    }
    let status = match code {
        NakCode::PsnSequenceError => {
            // A requester that has gone back already sends the missing packet anyway.
            if sending(qp).since(psn) > 0 {
                retry(qp, dev, io);
            }
            return Ok(());
        }
        NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
            tally!(qp, dev, req_remote_invalid_request);
            WcStatus::RemInvReq
        }
        NakCode::RemoteAccessError => {
            tally!(qp, dev, req_remote_access_errors);
            WcStatus::RemAccess
        }
        NakCode::RemoteOperationalError => WcStatus::RemOp,
    };
    qp.fail_send(dev, io.cq, status);
    Ok(())
}

/// PSN of the packet at the cursor.
fn sending(qp: &Qp) -> Psn {
    match qp.sq.next() {
        Some(wqe) if wqe.stage == Stage::Started => wqe.first_psn.plus(qp.requester.packet),
        _ => qp.requester.end,
    }
}

fn handle_atomic_response<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    let psn = packet.headers.bth.psn;
    if acknowledge(qp, dev, io, psn) == Seen::Gap {
        implied_nak(qp, dev, io);
        return Ok(());
    }
    let Some(original) = packet.headers.atomic_ack_eth.map(|ack| ack.original) else {
        return Err(DropReason::StaleResponse);
    };
    let is_atomic = qp.sq.head().is_some_and(|wqe| {
        let is_atomic = matches!(wqe.wc_opcode(), WcOpcode::CompareSwap | WcOpcode::FetchAdd);
        wqe.stage == Stage::Started && is_atomic && wqe.first_psn == psn
    });
    if !is_atomic || !is_ack(packet) {
        qp.fail_send(dev, io.cq, WcStatus::BadResp);
        return Ok(());
    }
    // Big-endian on the wire, the host's order in memory.
    let value = original.to_ne_bytes();
    if scatter(io.mem, qp.init.pd, qp.sq.head_sges(), 0, &value).is_err() {
        qp.fail_send(dev, io.cq, WcStatus::LocProt);
        return Ok(());
    }
    dev.counters.rx_bytes += 8;
    qp.requester.una = psn.plus(1);
    finish_head(qp, dev, io);
    Ok(())
}

fn handle_read_response<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    let psn = packet.headers.bth.psn;
    if acknowledge(qp, dev, io, psn) == Seen::Gap {
        implied_nak(qp, dev, io);
        return Ok(());
    }
    let head = qp.sq.head().copied();
    let read = head.filter(|wqe| wqe.stage == Stage::Started && wqe.wc_opcode() == WcOpcode::Read);
    let Some(wqe) = read.filter(|_| is_ack(packet)) else {
        qp.fail_send(dev, io.cq, WcStatus::BadResp);
        return Ok(());
    };
    if psn != qp.requester.una {
        implied_nak(qp, dev, io);
        return Ok(());
    }
    let number = psn.since(wqe.first_psn).cast_unsigned();
    let offset = qp.offset_of(number);
    let is_last = number + 1 == wqe.packets;
    let expected = qp.attr.path_mtu.bytes().min((wqe.len - offset) as usize);
    // A resumed READ may be answered from FIRST on or go on with MIDDLE: PSN and length decide.
    let ends = packet.headers.bth.opcode.operation().ends_message();
    if packet.payload.len() != expected || ends != is_last {
        qp.fail_send(dev, io.cq, WcStatus::BadResp);
        return Ok(());
    }
    if scatter(io.mem, qp.init.pd, qp.sq.head_sges(), offset, packet.payload).is_err() {
        qp.fail_send(dev, io.cq, WcStatus::LocProt);
        return Ok(());
    }
    dev.counters.rx_bytes += expected as u64;
    qp.requester.una = psn.plus(1);
    if is_last {
        finish_head(qp, dev, io);
    } else {
        qp.requester.response_psns -= 1;
        progress(qp, dev, io);
    }
    Ok(())
}

/// Bytes of the READ at the head that have not come yet.
pub(crate) fn rest_of_read(qp: &Qp) -> u64 {
    let Some(wqe) = qp.sq.head().filter(|wqe| wqe.stage == Stage::Started) else { return 0 };
    let number = qp.requester.una.since(wqe.first_psn).cast_unsigned();
    if number < wqe.packets { (wqe.len - qp.offset_of(number)).into() } else { 0 }
}

/// Whether a response that carries data carries an ACK with it, or no AETH at all.
fn is_ack(packet: &Packet<'_>) -> bool {
    packet.headers.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
}

/// The READ or atomic at the head is answered.
fn finish_head<M, C: CqSink>(qp: &mut Qp, dev: &mut Device, io: &mut Io<'_, M, C>) {
    qp.requester.rd_atomics -= 1;
    qp.complete_send(dev, io.cq, WcStatus::Success);
    retire_local(qp, dev, io);
    progress(qp, dev, io);
}
