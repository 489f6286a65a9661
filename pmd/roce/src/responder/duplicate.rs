//! Requests that were executed before: an answer was lost, or a request came twice.

use super::acknowledge_executed;
use crate::counters::tally;
use crate::device::Device;
use crate::qp::Qp;
use crate::wire::{DropReason, Operation, Packet};

/// Answers again. SENDs and WRITEs are acknowledged without being executed, READs are read again,
/// atomics are answered with the result of the first time.
pub(super) fn handle(qp: &mut Qp, dev: &mut Device, packet: &Packet<'_>) -> Result<(), DropReason> {
    tally!(qp, dev, duplicate_request);
    qp.book.duplicated(dev.now);
    let bth = &packet.headers.bth;
    let replies = &mut qp.responder.replies;
    let known = match (bth.opcode.operation(), packet.headers.reth) {
        (Operation::ReadRequest, Some(reth)) => {
            replies.read_again(bth.psn, &reth, qp.attr.path_mtu)
        }
        (Operation::CmpSwap | Operation::FetchAdd, _) => replies.tell_again(bth.psn),
        _ => acknowledge_executed(qp),
    };
    if !known {
        return Err(DropReason::Duplicate);
    }
    dev.ready.push(qp.slot);
    Ok(())
}
