//! From a frame to the queue pair it is for: what every packet is checked for, in this order.

use crate::datagram;
use crate::device::{Device, Io};
use crate::frame;
use crate::gsi;
use crate::ids::Qpn;
use crate::memory::Memory;
use crate::migration;
use crate::qp::Qp;
use crate::qp::table::QpTable;
use crate::responder::{self, inbound::Fault, refuse};
use crate::sink::{CqSink, Flow, Frame, FrameOutcome};
use crate::uc;
use crate::wire::bth::BthView;
use crate::wire::{DropReason, Packet, Pkey, TransportClass, icrc};
use crate::{completer, qp::state::Transport};

/// Takes a frame.
pub(crate) fn frame<M: Memory, C: CqSink>(
    qps: &mut QpTable,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    frame: &Frame<'_>,
) -> FrameOutcome {
    dev.counters.rx_packets += 1;
    let outcome = match frame::check_icrc(&mut dev.checked, frame) {
        _ if dev.ports.some_down && dev.ports.is_down(frame.flow.dst) => {
            FrameOutcome { ip_id: 0, dropped: Some(DropReason::PortDown), rest: 0 }
        }
        Err(reason) => FrameOutcome { ip_id: 0, dropped: Some(reason), rest: 0 },
        Ok(ip_id) => match packet(qps, dev, io, frame, ip_id) {
            Ok(rest) => FrameOutcome { ip_id, dropped: None, rest },
            Err(reason) => FrameOutcome { ip_id, dropped: Some(reason), rest: 0 },
        },
    };
    if let Some(reason) = outcome.dropped {
        dev.counters.drops[reason as usize] += 1;
    }
    outcome
}

/// Takes an intact packet; returns how many bytes of its message are on their way.
fn packet<M: Memory, C: CqSink>(
    qps: &mut QpTable,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    frame: &Frame<'_>,
    ip_id: u16,
) -> Result<u64, DropReason> {
    let bytes = &frame.payload[..frame.payload.len() - icrc::LEN];
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(DropReason::UnknownOpcode) => {
            unknown_opcode(qps, dev, io, &frame.flow, BthView::new_checked(bytes)?)?;
            return Ok(0);
        }
        Err(reason) => return Err(reason),
    };
    let bth = &packet.headers.bth;
    if bth.opcode.class() == TransportClass::Cnp {
        dev.counters.rp_cnp_handled += 1;
        return Ok(0);
    }
    if bth.dest_qp == Qpn::MULTICAST {
        multicast(qps, dev, io, &packet, &frame.flow, ip_id)?;
        return Ok(0);
    }
    let Some(qp) = qps.get_mut(bth.dest_qp) else {
        gsi::handle(dev, &packet, &frame.flow)?;
        return Ok(0);
    };
    match admit(qp, dev, &frame.flow, bth.opcode.class(), bth.pkey) {
        Err(DropReason::WrongAddress) if migration::follow(qp, dev, &frame.flow, bth.mig_req) => {}
        admitted => admitted?,
    }
    if !qp.mig_req() {
        migration::note(qp, dev, &frame.flow, bth.mig_req);
    }
    let is_response = bth.opcode.operation().is_response();
    match qp.transport() {
        Transport::Ud | Transport::RawPacket => {
            datagram::handle(qp, dev, io, &packet, &frame.flow, ip_id)
        }
        Transport::Uc => uc::handle_request(qp, dev, io, &packet),
        _ if is_response => completer::handle_response(qp, dev, io, &packet),
        _ => responder::handle_request(qp, dev, io, &packet),
    }?;
    let goes_on = !bth.opcode.operation().ends_message() && !bth.ack_req;
    Ok(match (goes_on, is_response) {
        (false, _) => 0,
        (true, true) => completer::rest_of_read(qp),
        (true, false) => qp.responder.message.rest(&qp.receive),
    })
}

/// What holds for every packet, whatever it says.
fn admit(
    qp: &Qp,
    dev: &Device,
    flow: &Flow,
    class: TransportClass,
    pkey: Pkey,
) -> Result<(), DropReason> {
    if qp.class() != class {
        return Err(DropReason::WrongTransport);
    }
    if !qp.state().receives_packets() {
        return Err(DropReason::QpState);
    }
    if !Pkey::DEFAULT.matches(pkey) {
        return Err(DropReason::BadPkey);
    }
    let is_ours = match qp.transport().is_connected() {
        true => flow.src == qp.flow.dst && flow.dst == qp.flow.src,
        false => flow.dst.is_multicast() || dev.ports.find(flow.dst).is_some(),
    };
    if is_ours { Ok(()) } else { Err(DropReason::WrongAddress) }
}

/// A reliable connection refuses an opcode that it does not know, where it is in sequence; nobody
/// else has a way to say so.
fn unknown_opcode<M: Memory, C: CqSink>(
    qps: &mut QpTable,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    flow: &Flow,
    bth: BthView<'_>,
) -> Result<(), DropReason> {
    let qp = qps.get_mut(bth.dest_qp()).ok_or(DropReason::UnknownOpcode)?;
    let class = TransportClass::of(bth.opcode_byte()).ok_or(DropReason::UnknownOpcode)?;
    admit(qp, dev, flow, class, bth.pkey())?;
    let responds = matches!(qp.transport(), Transport::Rc | Transport::XrcTgt);
    let responder = &qp.responder;
    if !responds || bth.psn() != responder.expected {
        return Err(DropReason::UnknownOpcode);
    }
    let (psn, msn) = (responder.expected, responder.msn);
    refuse::refuse(qp, dev, io, Fault::Sequence, psn, msn);
    Ok(())
}

/// Gives a copy to every member of the group that may have it.
fn multicast<M: Memory, C: CqSink>(
    qps: &mut QpTable,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    packet: &Packet<'_>,
    flow: &Flow,
    ip_id: u16,
) -> Result<(), DropReason> {
    let bth = &packet.headers.bth;
    let mut outcome = Err(DropReason::UnknownQp);
    for nth in 0..dev.groups.len() {
        let Some(qpn) = dev.groups.member(nth, flow.dst) else { continue };
        let Some(qp) = qps.get_mut(qpn) else { continue };
        let taken = admit(qp, dev, flow, bth.opcode.class(), bth.pkey)
            .and_then(|()| datagram::handle(qp, dev, io, packet, flow, ip_id));
        // One member that takes it is enough for the frame to have had an effect.
        outcome = outcome.or(taken);
    }
    outcome
}
