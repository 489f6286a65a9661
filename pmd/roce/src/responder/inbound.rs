//! SENDs and WRITEs as they come in, packet by packet: the same for RC, XRC and UC, which differ
//! in what a fault leads to.

use crate::device::{Device, Io};
use crate::ids::Srqn;
use crate::limits::MAX_MESSAGE;
use crate::memory::Memory;
use crate::qp::Qp;
use crate::qp::rq::Receive;
use crate::sink::CqSink;
use crate::srq::Srq;
use crate::wire::{Operation, Packet, Position};
use crate::work::{Access, Completion, Imm, RemoteAddr, WcOpcode};

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No receive is posted.
    NoReceive,
    /// FIRST, MIDDLE, LAST and ONLY do not follow each other, or the opcode is unknown.
    Sequence,
    /// The queue pair does not allow the operation.
    Forbidden,
    /// The shared receive queue does not exist in this XRC domain.
    SharedQueue,
    /// Bytes against the MTU, the RETH or the largest message.
    Length,
    /// An atomic at an address that is no multiple of eight.
    Misaligned,
    /// More READs and atomics outstanding than agreed.
    TooManyReads,
    /// Key, rights or bounds.
    RemoteAccess,
    /// The key that a SEND wants invalidated is not one of this queue pair.
    Invalidation,
    /// The message is longer than the receive.
    ReceiveTooSmall,
    /// An element of the receive is not registered for this use.
    LocalProtection,
}

/// The message in progress, between FIRST and LAST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// None: the next packet begins one.
    None,
    /// A SEND of which so many bytes are in the receive.
    Send { received: u32 },
    /// A WRITE of which the bytes from `received` on are missing.
    Write { at: RemoteAddr, len: u32, received: u32 },
}

impl Message {
    /// Bytes that may still come; for a SEND, what the receive has room for.
    pub(crate) fn rest(self, receive: &Receive) -> u64 {
        match self {
            Self::None => 0,
            Self::Send { received } => receive.capacity.saturating_sub(received.into()),
            Self::Write { len, received, .. } => (len - received).into(),
        }
    }
}

/// How much of a message a packet has made complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// More packets follow.
    Part,
    /// All of it.
    Whole,
}

/// Executes a packet of a SEND or WRITE. With a fault nothing has changed, but for bytes in memory
/// of which nobody has been told.
pub(crate) fn place<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<Placed, Fault> {
    let operation = packet.headers.bth.opcode.operation();
    in_sequence(qp.responder.message, operation)?;
    if operation.is_write() && !qp.attr.access.contains(Access::REMOTE_WRITE) {
        return Err(Fault::Forbidden);
    }
    if !packet.obeys_payload_rule(qp.attr.path_mtu) {
        return Err(Fault::Length);
    }
    let placed = if operation.is_send() {
        place_send(qp, dev, io, packet)
    } else {
        place_write(qp, dev, io, packet)
    };
    if placed.is_ok() {
        dev.counters.rx_bytes += packet.payload.len() as u64;
    }
    placed
}

/// FIRST and ONLY begin a message; MIDDLE and LAST go on with one of their own kind.
fn in_sequence(message: Message, operation: Operation) -> Result<(), Fault> {
    let begins = matches!(operation.position(), Position::First | Position::Only);
    let fits = match message {
        Message::None => begins,
        Message::Send { .. } => !begins && operation.is_send(),
        Message::Write { .. } => !begins && operation.is_write(),
    };
    if fits { Ok(()) } else { Err(Fault::Sequence) }
}

fn place_send<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<Placed, Fault> {
    let received = match qp.responder.message {
        Message::Send { received } => received,
        _ => {
            take_receive(qp, dev, xrc_queue(packet))?;
            0
        }
    };
    let end = u64::from(received) + packet.payload.len() as u64;
    if end > qp.receive.capacity || end > MAX_MESSAGE.into() {
        return Err(Fault::ReceiveTooSmall);
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_MESSAGE")]
    let end = end as u32;
    let placed = qp.receive.scatter(io.mem, received, packet.payload);
    placed.map_err(|_| Fault::LocalProtection)?;
    if !packet.headers.bth.opcode.operation().ends_message() {
        qp.responder.message = Message::Send { received: end };
        return Ok(Placed::Part);
    }
    let mut message = Completion::new(WcOpcode::Recv, end);
    if let Some(ieth) = packet.headers.ieth {
        io.mem.invalidate(qp.asker(), ieth.rkey).map_err(|_| Fault::Invalidation)?;
        message = message.with_invalidated(ieth.rkey);
    }
    finish(qp, dev, io, packet, message);
    Ok(Placed::Whole)
}

fn place_write<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
) -> Result<Placed, Fault> {
    let ends = packet.headers.bth.opcode.operation().ends_message();
    #[expect(clippy::cast_possible_truncation, reason = "at most one MTU")]
    let here = packet.payload.len() as u32;
    let (at, len, received) = match (qp.responder.message, packet.headers.reth) {
        (Message::Write { at, len, received }, _) => (at, len, received),
        (_, Some(reth)) => (RemoteAddr { addr: reth.va, rkey: reth.rkey }, reth.dma_len, 0),
        (_, None) => return Err(Fault::Sequence),
    };
    // Exactly the announced bytes, and none of them only where the message ends.
    let rest = (len - received).checked_sub(here).ok_or(Fault::Length)?;
    if len > MAX_MESSAGE || ends != (rest == 0) {
        return Err(Fault::Length);
    }
    if packet.headers.immdt.is_some() {
        take_receive(qp, dev, xrc_queue(packet))?;
    }
    if received == 0 {
        let checked = io.mem.check_remote(qp.asker(), at, len.into(), Access::REMOTE_WRITE);
        checked.map_err(|_| Fault::RemoteAccess)?;
        dev.counters.rx_write_requests += 1;
    }
    if here > 0 {
        let to = RemoteAddr { addr: at.addr.wrapping_add(received.into()), ..at };
        let written = io.mem.write_remote(qp.asker(), to, packet.payload);
        written.map_err(|_| Fault::RemoteAccess)?;
    }
    if !ends {
        qp.responder.message = Message::Write { at, len, received: received + here };
        return Ok(Placed::Part);
    }
    if packet.headers.immdt.is_some() {
        finish(qp, dev, io, packet, Completion::new(WcOpcode::RecvWriteImm, len));
    }
    qp.responder.message = Message::None;
    Ok(Placed::Whole)
}

/// Completes the receive with the message that just became whole.
fn finish<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
    message: Completion,
) {
    let imm = packet.headers.immdt.map(|immdt| Imm(immdt.0));
    let solicited = packet.headers.bth.solicited;
    qp.responder.message = Message::None;
    qp.complete_receive(dev, io.cq, message.with_imm(imm).with_solicited(solicited));
}

/// Takes the next receive, unless one is still open: a message that UC gave up leaves it so.
pub(crate) fn take_receive(
    qp: &mut Qp,
    dev: &mut Device,
    xrc_queue: Option<Srqn>,
) -> Result<(), Fault> {
    if qp.receive.open {
        return Ok(());
    }
    let taken = match (xrc_queue, qp.init.srq) {
        (Some(srqn), _) => take_xrc(qp, dev, srqn)?,
        (None, Some(srqn)) => dev.take_shared(srqn, &mut qp.receive, qp.init.recv_cq),
        (None, None) => qp.rq.take(&mut qp.receive, qp.init.pd, qp.init.recv_cq),
    };
    if taken { Ok(()) } else { Err(Fault::NoReceive) }
}

/// The shared queue that an XRC request names.
fn xrc_queue(packet: &Packet<'_>) -> Option<Srqn> {
    packet.headers.xrceth.map(|xrceth| xrceth.srqn)
}

/// XRC: the peer names the queue, the domain must be the queue pair's, and the message completes on
/// the queue's completion queue.
fn take_xrc(qp: &mut Qp, dev: &mut Device, srqn: Srqn) -> Result<bool, Fault> {
    let xrc = dev.srqs.get(srqn).and_then(Srq::xrc);
    let Some((_, cq)) = xrc.filter(|(xrcd, _)| Some(*xrcd) == qp.init.xrcd) else {
        return Err(Fault::SharedQueue);
    };
    Ok(dev.take_shared(srqn, &mut qp.receive, cq))
}
