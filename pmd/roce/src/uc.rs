//! The responder of unreliable connections: a message arrives whole and in order, or not at all.

use crate::counters::tally;
use crate::device::{Device, Io};
use crate::memory::Memory;
use crate::qp::Qp;
use crate::responder::inbound::{self, Fault, Message};
use crate::responder::note_heard;
use crate::sink::CqSink;
use crate::transition::Cause;
use crate::wire::{DropReason, Packet};
use crate::work::WcStatus;

/// Takes a request. FIRST and ONLY always begin a message; whatever does not continue the one in
/// progress ends it without a word, and the next message gets its receive.
///
/// # Errors
/// Why it had no effect.
pub(crate) fn handle_request<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    let bth = &packet.headers.bth;
    let begins = bth.opcode.operation().starts_message();
    let message = qp.responder.message;
    if begins {
        qp.responder.message = Message::None;
    } else if message == Message::None || bth.psn != qp.responder.expected {
        qp.responder.message = Message::None;
        tally!(qp, dev, out_of_sequence);
        return Err(DropReason::OutOfOrder);
    }
    note_heard(qp, dev);
    qp.responder.expected = bth.psn.plus(1);
    let Err(fault) = inbound::place(qp, dev, io, packet) else { return Ok(()) };
    qp.responder.message = Message::None;
    Err(lose(qp, dev, io, fault))
}

/// Drops a message that cannot be taken.
pub(crate) fn lose<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    fault: Fault,
) -> DropReason {
    match fault {
        Fault::NoReceive => {
            tally!(qp, dev, out_of_buffer);
            DropReason::NoReceive
        }
        Fault::ReceiveTooSmall => DropReason::ReceiveTooSmall,
        // The fault is this side's own.
        Fault::LocalProtection => {
            qp.fail_receive(dev, io.cq, WcStatus::LocProt);
            qp.enter_error(dev, io.cq, Some(Cause::Receive(WcStatus::LocProt)));
            DropReason::InvalidRequest
        }
        _ => DropReason::InvalidRequest,
    }
}
