//! Unreliable datagrams: one packet per message, any peer, no answer.

use crate::address::{self, AddressHandle};
use crate::counters::tally;
use crate::device::{Device, Io};
use crate::frame::{self, Sent};
use crate::limits::GRH_BYTES;
use crate::local::{self, DatagramRecord, LocalPeer};
use crate::memory::Memory;
use crate::qp::Qp;
use crate::qp::sq::{SendWqe, gather};
use crate::qp::state::QpState;
use crate::requester::check_elements;
use crate::sink::{CqSink, Flow, TxSink};
use crate::transition::Cause;
use crate::turn::Turn;
use crate::wire::grh::Grh;
use crate::wire::{Bth, Deth, DropReason, Headers, ImmDt, Opcode, Packet, icrc};
use crate::work::{Completion, Imm, SendFlags, SendOp, WcOpcode, WcStatus};

/// A Q_Key with this bit set stands for the queue pair's own (IBTA 1.4, 10.2.5).
const QKEY_OWN: u32 = 1 << 31;

/// Sends datagrams, at most `budget` of them.
pub(crate) fn transmit<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    tx: &mut impl TxSink,
    peers: &mut impl LocalPeer,
    budget: usize,
) -> Turn {
    let mut done = 0;
    while qp.state() == QpState::Rts {
        let Some(&wqe) = qp.sq.next() else { break };
        if done == budget {
            return Turn::more(done);
        }
        match send_one(qp, dev, io, tx, peers, &wqe) {
            Ok(Sent::Yes) => done += 1,
            Ok(Sent::Full) => return Turn::wire_full(done),
            Ok(Sent::Fault(_)) => qp.fail_send(dev, io.cq, WcStatus::LocProt),
            Err(status) => qp.fail_send(dev, io.cq, status),
        }
    }
    Turn::idle(done)
}

fn send_one<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    tx: &mut impl TxSink,
    peers: &mut impl LocalPeer,
    wqe: &SendWqe,
) -> Result<Sent, WcStatus> {
    // The handle may have been destroyed since the post.
    let to = qp.sq.next_to().ok_or(WcStatus::LocQpOp)?;
    let AddressHandle { av, src } = *dev.ahs.get(to.ah).ok_or(WcStatus::LocQpOp)?;
    check_elements(qp, io.mem, wqe)?;
    let flow = address::flow(&av, src, &dev.config, qp.flow.src_port);
    let qkey = if to.qkey & QKEY_OWN == 0 { to.qkey } else { qp.attr.qkey };
    if let Some(link) = av.link {
        return local::datagram::send(qp, dev, io, peers, link, wqe, DatagramRecord { qkey, flow });
    }
    let (opcode, immdt) = match qp.sq.next_op() {
        Some(SendOp::SendImm(imm)) => (Opcode::UD_SEND_ONLY_IMM, Some(ImmDt(imm.0))),
        _ => (Opcode::UD_SEND_ONLY, None),
    };
    let mut headers = Headers::new(Bth::new(opcode, to.qpn, qp.requester.end));
    headers.bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
    headers.deth = Some(Deth { qkey, src_qp: qp.qpn });
    headers.immdt = immdt;
    let (source, pd, mem) = (qp.sq.next_source(), qp.init.pd, &*io.mem);
    let len = wqe.len as usize;
    let sent = frame::send(tx, dev, &flow, &headers, len, |out| gather(mem, pd, source, 0, out));
    if sent == Sent::Yes {
        qp.requester.end = qp.requester.end.plus(1);
        qp.requester.una = qp.requester.end;
        qp.complete_send(dev, io.cq, WcStatus::Success);
    }
    Ok(sent)
}

/// Takes a datagram that came over `flow` with IPv4 identification `ip_id`.
///
/// # Errors
/// Why it had no effect.
pub(crate) fn handle<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
    flow: &Flow,
    ip_id: u16,
) -> Result<(), DropReason> {
    let Some(deth) = packet.headers.deth else { return Err(DropReason::WrongTransport) };
    check_qkey(qp, dev, deth.qkey)?;
    if !packet.obeys_payload_rule(dev.config.mtu) {
        return Err(DropReason::InvalidRequest);
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most one MTU")]
    let len = packet.payload.len() as u32;
    let byte_len = open_receive(qp, dev, io.cq, len)?;
    let area = grh(flow, ip_id, packet.buffer_len());
    let placed = qp.receive.scatter(io.mem, 0, &area);
    if placed.and_then(|()| qp.receive.scatter(io.mem, GRH_BYTES, packet.payload)).is_err() {
        return Err(receive_fault(qp, dev, io.cq));
    }
    dev.counters.rx_bytes += u64::from(len);
    let received = Completion::new(WcOpcode::Recv, byte_len)
        .with_grh(deth.src_qp)
        .with_imm(packet.headers.immdt.map(|immdt| Imm(immdt.0)))
        .with_solicited(packet.headers.bth.solicited);
    qp.complete_receive(dev, io.cq, received);
    Ok(())
}

/// A datagram must know the key.
pub(crate) fn check_qkey(qp: &mut Qp, dev: &mut Device, qkey: u32) -> Result<(), DropReason> {
    if qkey == qp.attr.qkey {
        return Ok(());
    }
    tally!(qp, dev, qkey_viol);
    Err(DropReason::BadQkey)
}

/// Takes the receive for a datagram of `len` bytes. Returns what the completion says, GRH included.
pub(crate) fn open_receive(
    qp: &mut Qp,
    dev: &mut Device,
    cq: &mut impl CqSink,
    len: u32,
) -> Result<u32, DropReason> {
    let taken = match qp.init.srq {
        Some(srqn) => dev.take_shared(srqn, &mut qp.receive, qp.init.recv_cq),
        None => qp.rq.take(&mut qp.receive, qp.init.pd, qp.init.recv_cq),
    };
    if !taken {
        tally!(qp, dev, out_of_buffer);
        return Err(DropReason::NoReceive);
    }
    let byte_len = GRH_BYTES + len;
    if u64::from(byte_len) > qp.receive.capacity {
        // One sender's long datagram shall not stop the others: the queue pair lives on.
        qp.fail_receive(dev, cq, WcStatus::LocLen);
        return Err(DropReason::ReceiveTooSmall);
    }
    Ok(byte_len)
}

/// The receive's memory is not what it was posted as.
pub(crate) fn receive_fault(qp: &mut Qp, dev: &mut Device, cq: &mut impl CqSink) -> DropReason {
    qp.fail_receive(dev, cq, WcStatus::LocProt);
    qp.enter_error(dev, cq, Some(Cause::Receive(WcStatus::LocProt)));
    DropReason::InvalidRequest
}

/// What a receive finds before a datagram whose packet has so many bytes, ICRC apart.
pub(crate) fn grh(flow: &Flow, ip_id: u16, packet_len: usize) -> [u8; Grh::LEN] {
    let mut area = [0; Grh::LEN];
    let Flow { src, dst, traffic_class, hop_limit, .. } = *flow;
    let udp_len = Grh::udp_len_of(packet_len + icrc::LEN);
    Grh { src, dst, traffic_class, hop_limit, ip_id, udp_len }.emit(&mut area);
    area
}
