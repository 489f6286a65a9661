//! READs and atomics as they come in.

use super::inbound::{Fault, Message};
use super::reply::{Reply, What};
use crate::device::{Device, Io};
use crate::limits::MAX_MESSAGE;
use crate::memory::{AtomicOp, Memory};
use crate::qp::Qp;
use crate::sink::CqSink;
use crate::wire::{Operation, Packet};
use crate::work::{Access, RemoteAddr};

/// Accepts a READ: its bytes are fetched when the responses leave.
pub(super) fn read<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<(), Fault> {
    let Some(reth) = packet.headers.reth else { return Err(Fault::Sequence) };
    admit(qp, packet, Access::REMOTE_READ)?;
    if reth.dma_len > MAX_MESSAGE {
        return Err(Fault::Length);
    }
    let at = RemoteAddr { addr: reth.va, rkey: reth.rkey };
    let checked = io.mem.check_remote(qp.asker(), at, reth.dma_len.into(), Access::REMOTE_READ);
    checked.map_err(|_| Fault::RemoteAccess)?;
    dev.counters.rx_read_requests += 1;
    let packets = qp.packets_of(reth.dma_len);
    accept(qp, dev, packets, What::Read { at, len: reth.dma_len });
    Ok(())
}

/// Runs an atomic and keeps its result, for the response and for duplicates.
pub(super) fn atomic<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<(), Fault> {
    let Some(eth) = packet.headers.atomic_eth else { return Err(Fault::Sequence) };
    admit(qp, packet, Access::REMOTE_ATOMIC)?;
    if !eth.va.is_multiple_of(8) {
        return Err(Fault::Misaligned);
    }
    let op = match packet.headers.bth.opcode.operation() {
        Operation::CmpSwap => AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add },
        _ => AtomicOp::FetchAdd(eth.swap_or_add),
    };
    let at = RemoteAddr { addr: eth.va, rkey: eth.rkey };
    let original = io.mem.atomic_remote(qp.asker(), at, op).map_err(|_| Fault::RemoteAccess)?;
    dev.counters.rx_atomic_requests += 1;
    accept(qp, dev, 1, What::Atomic { original });
    qp.responder.executed = Some(packet.headers.bth.psn);
    Ok(())
}

/// Checks what READs and atomics have in common.
fn admit(qp: &Qp, packet: &Packet<'_>, right: Access) -> Result<(), Fault> {
    if qp.responder.message != Message::None {
        return Err(Fault::Sequence);
    }
    if !qp.attr.access.contains(right) {
        return Err(Fault::Forbidden);
    }
    if !packet.payload.is_empty() {
        return Err(Fault::Length);
    }
    if !qp.responder.replies.has_room() {
        return Err(Fault::TooManyReads);
    }
    Ok(())
}

fn accept(qp: &mut Qp, dev: &mut Device, packets: u32, what: What) {
    let responder = &mut qp.responder;
    responder.msn = responder.msn.plus(1);
    let (psn, msn) = (responder.expected, responder.msn);
    responder.expected = responder.expected.plus(packets);
    responder.replies.accept(Reply::new(psn, packets, msn, what));
    dev.ready.push(qp.slot);
}
