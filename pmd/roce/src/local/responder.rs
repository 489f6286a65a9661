//! The responder of the local path: takes records in order, fills receives, and answers what it
//! cannot take. Direct operations of the peer need no work here.

use super::{
    Arrived, LocalFault, LocalPeer, Push, Record, RecordKind, Source, Target, page, requester,
};
use crate::counters::tally;
use crate::device::{Device, Io};
use crate::event::AsyncEvent;
use crate::ids::{LinkId, PdId, Qpn};
use crate::memory::Memory;
use crate::qp::Qp;
use crate::qp::state::{QpState, Transport};
use crate::responder::inbound::{self, Fault};
use crate::responder::{note_heard, refuse};
use crate::sink::CqSink;
use crate::transition::Cause;
use crate::uc;
use crate::wire::{DropReason, NakCode, Syndrome};
use crate::work::{Completion, Sge, WcOpcode};

/// Whether a record is done with, or must come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    /// An answer has no room, or the bytes are not mapped yet.
    Later,
}

/// Takes a record for a queue pair.
#[inline(never)]
pub(crate) fn handle<M: Memory, C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut P,
    link: LinkId,
    record: &Record,
    payload: &mut impl Arrived,
) -> Taken {
    let is_peer = qp.attr.av.link == Some(link) && qp.attr.dest_qpn == record.src;
    let listens = is_peer && qp.state().receives_packets();
    let is_message = matches!(
        record.kind,
        RecordKind::Send | RecordKind::SendInvalidate(_) | RecordKind::WriteImm
    );
    if is_message && listens && !matches!(qp.transport(), Transport::Ud | Transport::XrcIni) {
        return message(qp, dev, io, peers, link, record, payload);
    }
    handle_other(qp, dev, io, peers, link, record, payload)
}

/// A datagram, an answer, or a message that nobody listens to.
#[inline(never)]
fn handle_other<M: Memory, C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut P,
    link: LinkId,
    record: &Record,
    payload: &mut impl Arrived,
) -> Taken {
    let is_peer = qp.attr.av.link == Some(link) && qp.attr.dest_qpn == record.src;
    let listens = is_peer && qp.state().receives_packets();
    match record.kind {
        RecordKind::Send | RecordKind::SendInvalidate(_) | RecordKind::WriteImm => {
            let reason = if is_peer { DropReason::QpState } else { DropReason::WrongAddress };
            return turn_away(dev, peers, link, record, reason);
        }
        RecordKind::Datagram(datagram) => {
            return super::datagram::receive(qp, dev, io, record, &datagram, payload);
        }
        RecordKind::Nak { syndrome } => {
            if let Some(syndrome) = Syndrome::from_byte(syndrome).filter(|_| is_peer) {
                requester::refused(qp, dev, io, peers, record.seq, syndrome);
            }
        }
        RecordKind::SourceFault if is_peer => {
            requester::source_fault(qp, dev, io, peers, record.seq);
        }
        RecordKind::Violation { access, syndrome } if listens => {
            violated(qp, dev, io, peers, access, syndrome);
        }
        RecordKind::Starved if listens && qp.rq.is_empty() && !qp.receive.open => {
            tally!(qp, dev, out_of_buffer);
        }
        RecordKind::SourceFault | RecordKind::Violation { .. } | RecordKind::Starved => {}
    }
    Taken::Yes
}

/// No queue pair takes the message: its sender tries again until somebody does, or it gives up, as
/// it would with packets.
pub(crate) fn turn_away(
    dev: &mut Device,
    peers: &mut impl LocalPeer,
    link: LinkId,
    record: &Record,
    reason: DropReason,
) -> Taken {
    if !record.kind.is_answer() && still_sends(peers.target(link, record.src), record.dst) {
        let answer = answer(record, Syndrome::Nak(NakCode::PsnSequenceError));
        if push(peers, link, &answer) == Push::Full {
            return Taken::Later;
        }
    }
    dev.counters.drops[reason as usize] += 1;
    Taken::Yes
}

/// A message for a connection.
fn message<M: Memory, C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut P,
    link: LinkId,
    record: &Record,
    payload: &mut impl Arrived,
) -> Taken {
    let is_reliable = qp.transport().is_reliable();
    if is_reliable && record.seq != qp.local.expected {
        return out_of_order(qp, dev, peers, link, record);
    }
    note_heard(qp, dev);
    match deliver(qp, dev, io, peers, link, record, payload) {
        Ok(()) => {
            qp.local.expected = qp.local.expected.plus(1);
            qp.local.refused = false;
            Taken::Yes
        }
        Err(Obstacle::Later) => Taken::Later,
        Err(Obstacle::Lost) => Taken::Yes,
        Err(Obstacle::Source) => {
            let answer = Record { kind: RecordKind::SourceFault, ..answer(record, Syndrome::ACK) };
            match push(peers, link, &answer) {
                Push::Full => Taken::Later,
                _ => Taken::Yes,
            }
        }
        Err(Obstacle::Fault(fault)) if !is_reliable => {
            let reason = uc::lose(qp, dev, io, fault);
            dev.counters.drops[reason as usize] += 1;
            Taken::Yes
        }
        Err(Obstacle::Fault(fault)) => {
            let answer = answer(record, refuse::syndrome(qp, fault));
            if push(peers, link, &answer) == Push::Full {
                return Taken::Later;
            }
            qp.local.refused = true;
            if fault != Fault::NoReceive {
                page::show_fall(qp, QpState::Error, peers);
            }
            refuse::suffer(qp, dev, io, fault);
            Taken::Yes
        }
    }
}

/// A message before it is missing, or was refused: the sender is told once.
#[cold]
fn out_of_order(
    qp: &mut Qp,
    dev: &mut Device,
    peers: &mut impl LocalPeer,
    link: LinkId,
    record: &Record,
) -> Taken {
    if !qp.local.refused {
        let answer = answer(record, Syndrome::Nak(NakCode::PsnSequenceError));
        if push(peers, link, &answer) == Push::Full {
            return Taken::Later;
        }
        qp.local.refused = true;
        tally!(qp, dev, out_of_sequence);
    }
    Taken::Yes
}

/// Why a message did not fill a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    Fault(Fault),
    /// Its bytes are no longer in the sender's memory.
    Source,
    /// Its sender took it back or died while it was under way.
    Lost,
    /// Its bytes cannot be reached yet.
    Later,
}

impl From<Fault> for Obstacle {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<LocalFault> for Obstacle {
    fn from(fault: LocalFault) -> Self {
        match fault {
            LocalFault::Local => Self::Fault(Fault::LocalProtection),
            LocalFault::RemoteAccess => Self::Source,
            LocalFault::NotYet => Self::Later,
            LocalFault::Gone => Self::Lost,
        }
    }
}

/// Fills the next receive and completes it. With an obstacle the receive stays open.
fn deliver<M: Memory, C: CqSink, P: LocalPeer>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut P,
    link: LinkId,
    record: &Record,
    payload: &mut impl Arrived,
) -> Result<(), Obstacle> {
    inbound::take_receive(qp, dev, record.srqn)?;
    let mut received = Completion::new(WcOpcode::RecvWriteImm, record.len);
    if record.kind != RecordKind::WriteImm {
        received.opcode = WcOpcode::Recv;
        if u64::from(record.len) > qp.receive.capacity {
            return Err(Fault::ReceiveTooSmall.into());
        }
        fill(qp, payload, 0, record.len)?;
        if payload.is_borrowed() && !still_sends(peers.target(link, record.src), record.dst) {
            // The sender's consumer may have changed the bytes during the copy.
            return Err(Obstacle::Lost);
        }
        dev.counters.rx_bytes += u64::from(record.len);
    }
    if let RecordKind::SendInvalidate(key) = record.kind {
        io.mem.invalidate(qp.asker(), key).map_err(|_| Fault::Invalidation)?;
        received = received.with_invalidated(key);
    }
    let received = received.with_imm(record.imm).with_solicited(record.solicited);
    qp.complete_receive(dev, io.cq, received);
    Ok(())
}

/// Copies a message of `len` bytes into the open receive, which has room for it behind its first
/// `skip` bytes.
pub(super) fn fill(
    qp: &Qp,
    payload: &mut impl Arrived,
    mut skip: u32,
    len: u32,
) -> Result<(), LocalFault> {
    let mut offset = 0;
    for sge in qp.receive.sges() {
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        let part = (sge.len - skip).min(len - offset);
        if part > 0 {
            let piece = Sge { addr: sge.addr + u64::from(skip), len: part, ..*sge };
            payload.copy_to(qp.receive.pd, offset, &piece)?;
        }
        offset += part;
        skip = 0;
    }
    Ok(())
}

/// The peer broke a rule of this queue pair, and knows it.
fn violated<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    access: bool,
    syndrome: u8,
) {
    let event = if access { AsyncEvent::QpAccessErr(qp.qpn) } else { AsyncEvent::QpReqErr(qp.qpn) };
    if let Some(syndrome) = Syndrome::from_byte(syndrome) {
        refuse::count(qp, dev, syndrome);
    }
    note_heard(qp, dev);
    page::show_fall(qp, QpState::Error, peers);
    qp.enter_error(dev, io.cq, Some(Cause::Event(event)));
}

/// Whether the sender of a record for `dst` still is what it was when it pushed it.
pub(super) fn still_sends(sender: Target, dst: Qpn) -> bool {
    match sender {
        Target::Qp(page) => matches!(page.state, QpState::Rts | QpState::Sqd) && page.peer == dst,
        Target::Absent | Target::Gone => false,
    }
}

/// An answer to a record.
fn answer(record: &Record, syndrome: Syndrome) -> Record {
    Record {
        kind: RecordKind::Nak { syndrome: syndrome.byte() },
        dst: record.src,
        src: record.dst,
        seq: record.seq,
        len: 0,
        imm: None,
        solicited: false,
        srqn: None,
    }
}

fn push(peers: &mut impl LocalPeer, link: LinkId, answer: &Record) -> Push {
    peers.push(link, PdId(0), answer, Source::Inline(&[]))
}
