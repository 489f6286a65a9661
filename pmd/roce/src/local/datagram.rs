//! Datagrams between processes of one host.

use super::responder::{Taken, fill};
use super::{Arrived, DatagramRecord, LocalFault, LocalPeer, Push, Record, RecordKind};
use crate::datagram::{check_qkey, grh, open_receive, receive_fault};
use crate::device::{Device, Io};
use crate::frame::Sent;
use crate::ids::{LinkId, Psn};
use crate::limits::{GRH_BYTES, LOCAL_PATIENCE};
use crate::memory::Memory;
use crate::qp::Qp;
use crate::qp::rq::scatter;
use crate::qp::sq::SendWqe;
use crate::qp::state::Transport;
use crate::sink::CqSink;
use crate::wire::{Bth, Deth, DropReason, ImmDt};
use crate::work::{Completion, SendFlags, SendOp, WcOpcode, WcStatus};

/// Sends the datagram at the head. It completes at once, whatever becomes of it.
pub(crate) fn send<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    peers: &mut impl LocalPeer,
    link: LinkId,
    wqe: &SendWqe,
    datagram: DatagramRecord,
) -> Result<Sent, WcStatus> {
    let to = qp.sq.next_to().ok_or(WcStatus::LocQpOp)?;
    let record = Record {
        kind: RecordKind::Datagram(datagram),
        dst: to.qpn,
        src: qp.qpn,
        seq: Psn::new(0),
        len: wqe.len,
        imm: match qp.sq.next_op() {
            Some(SendOp::SendImm(imm)) => Some(imm),
            _ => None,
        },
        solicited: wqe.flags.contains(SendFlags::SOLICITED),
        srqn: None,
    };
    match peers.push(link, qp.init.pd, &record, qp.sq.next_source()) {
        Push::At(_) => dev.counters.tx_bytes += u64::from(wqe.len),
        Push::LocalFault => return Err(WcStatus::LocProt),
        // Nobody is there: lost.
        Push::Gone => {}
        Push::Full if qp.local.take_lapse() => {}
        Push::Full => {
            if !dev.timers.is_set(qp.slot) {
                dev.timers.after(qp.slot, LOCAL_PATIENCE);
            }
            dev.unsettled.push(qp.slot);
            return Ok(Sent::Full);
        }
    }
    dev.timers.clear(qp.slot);
    qp.complete_send(dev, io.cq, WcStatus::Success);
    Ok(Sent::Yes)
}

/// Takes a datagram.
pub(super) fn receive<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    record: &Record,
    datagram: &DatagramRecord,
    payload: &mut impl Arrived,
) -> Taken {
    if let Err(reason) = deliver(qp, dev, io, record, datagram, payload) {
        dev.counters.drops[reason as usize] += 1;
    }
    Taken::Yes
}

fn deliver<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    record: &Record,
    datagram: &DatagramRecord,
    payload: &mut impl Arrived,
) -> Result<(), DropReason> {
    if qp.transport() != Transport::Ud {
        return Err(DropReason::WrongTransport);
    }
    if !qp.state().receives_packets() {
        return Err(DropReason::QpState);
    }
    check_qkey(qp, dev, datagram.qkey)?;
    let byte_len = open_receive(qp, dev, io.cq, record.len)?;
    let imm_len = record.imm.map_or(0, |_| ImmDt::LEN);
    let padded = record.len.next_multiple_of(4) as usize;
    let area = grh(&datagram.flow, 0, Bth::LEN + Deth::LEN + imm_len + padded);
    let placed = scatter(io.mem, qp.receive.pd, qp.receive.sges(), 0, &area);
    let placed = placed.map_err(|_| LocalFault::Local);
    if placed.and_then(|()| fill(qp, payload, GRH_BYTES, record.len)).is_err() {
        return Err(receive_fault(qp, dev, io.cq));
    }
    dev.counters.rx_bytes += u64::from(record.len);
    let received = Completion::new(WcOpcode::Recv, byte_len)
        .with_grh(record.src)
        .with_imm(record.imm)
        .with_solicited(record.solicited);
    qp.complete_receive(dev, io.cq, received);
    Ok(())
}
