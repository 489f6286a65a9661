//! The general services interface: queue pair 1, through which devices manage connections.
//!
//! It is a datagram queue pair with a key of its own and packets of one size, so that it needs neither
//! memory nor completion queues of a consumer: what arrives waits here, bounded, until it is polled.

use std::collections::VecDeque;

use crate::counters::Counters;
use crate::device::Device;
use crate::error::PostMadError;
use crate::frame::{self, Sent};
use crate::ids::{Gid, Psn, Qpn};
use crate::limits::{GSI_RECEIVES, GSI_SENDS, MAD_BYTES};
use crate::sink::{Flow, TxSink};
use crate::wire::{Bth, Deth, DropReason, Headers, Opcode, Packet, Pkey, TransportClass, udp};

/// The Q_Key of every general services interface (IBTA 1.4, 3.5.3): only the device itself may send it.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// A management datagram, and how it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagementDatagram {
    /// From `flow.src` to `flow.dst`. The UDP source port of one to send is the interface's own.
    pub flow: Flow,
    /// Its bytes.
    pub bytes: [u8; MAD_BYTES],
}

/// The interface, once it is open.
#[derive(Debug)]
pub(crate) struct Gsi {
    received: VecDeque<ManagementDatagram>,
    to_send: VecDeque<ManagementDatagram>,
    next_psn: Psn,
}

impl Gsi {
    pub(crate) fn new() -> Self {
        Self {
            received: VecDeque::with_capacity(GSI_RECEIVES),
            to_send: VecDeque::with_capacity(GSI_SENDS),
            next_psn: Psn::new(0),
        }
    }

    pub(crate) fn has_sends(&self) -> bool {
        !self.to_send.is_empty()
    }

    pub(crate) fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    pub(crate) fn poll(&mut self) -> Option<ManagementDatagram> {
        self.received.pop_front()
    }
}

/// Appends a datagram to what is to be sent.
pub(crate) fn post(dev: &mut Device, datagram: &ManagementDatagram) -> Result<(), PostMadError> {
    let Flow { src, dst, hop_limit, .. } = datagram.flow;
    if dev.fatal {
        return Err(PostMadError::DeviceFatal);
    }
    let gsi = dev.gsi.as_mut().ok_or(PostMadError::NotOpen)?;
    if src == Gid::default() || dev.ports.find(src).is_none() {
        return Err(PostMadError::Source(src));
    }
    let is_one = dst != Gid::default() && !dst.is_multicast();
    if !is_one || dst.is_ipv4() != src.is_ipv4() || hop_limit == 0 {
        return Err(PostMadError::Destination(dst));
    }
    if gsi.to_send.len() == GSI_SENDS {
        return Err(PostMadError::Full);
    }
    gsi.to_send.push_back(*datagram);
    Ok(())
}

/// Sends what waits, as far as the wire has room and the budget lasts.
pub(crate) fn transmit(dev: &mut Device, tx: &mut impl TxSink, budget: usize) -> usize {
    let mut done = 0;
    while done < budget {
        let Some(gsi) = dev.gsi.as_ref() else { break };
        let Some(ManagementDatagram { flow, bytes }) = gsi.to_send.front().copied() else { break };
        let own = udp::source_port_of_sender(Qpn::GSI);
        let flow = Flow { src_port: dev.config.source_port.unwrap_or(own), ..flow };
        let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, gsi.next_psn));
        // Without meaning on a datagram; peers expect it of this interface.
        headers.bth.ack_req = true;
        headers.deth = Some(Deth { qkey: GSI_QKEY, src_qp: Qpn::GSI });
        let sent = frame::send(tx, dev, &flow, &headers, MAD_BYTES, |out| {
            out.copy_from_slice(&bytes);
            Ok(())
        });
        if sent == Sent::Full {
            break;
        }
        if let Some(gsi) = &mut dev.gsi {
            gsi.next_psn = gsi.next_psn.plus(1);
            gsi.to_send.pop_front();
        }
        done += 1;
    }
    done
}

/// Takes a packet for a queue pair that is in no table.
///
/// # Errors
/// Why it had no effect.
pub(crate) fn handle(dev: &mut Device, packet: &Packet<'_>, flow: &Flow) -> Result<(), DropReason> {
    let bth = &packet.headers.bth;
    let Device { gsi, ports, counters, .. } = dev;
    let gsi = gsi.as_mut().filter(|_| bth.dest_qp == Qpn::GSI).ok_or(DropReason::UnknownQp)?;
    if bth.opcode.class() != TransportClass::Ud {
        return Err(DropReason::WrongTransport);
    }
    if !Pkey::DEFAULT.matches(bth.pkey) {
        return Err(DropReason::BadPkey);
    }
    if ports.find(flow.dst).is_none() {
        return Err(DropReason::WrongAddress);
    }
    if packet.headers.deth.is_none_or(|deth| deth.qkey != GSI_QKEY) {
        counters.qkey_viol += 1;
        return Err(DropReason::BadQkey);
    }
    let bytes = packet.payload.try_into().map_err(|_| DropReason::BadLength)?;
    if bth.opcode != Opcode::UD_SEND_ONLY {
        return Err(DropReason::InvalidRequest);
    }
    gsi.take(counters, ManagementDatagram { flow: *flow, bytes })
}

impl Gsi {
    fn take(
        &mut self,
        counters: &mut Counters,
        datagram: ManagementDatagram,
    ) -> Result<(), DropReason> {
        if self.received.len() == GSI_RECEIVES {
            counters.out_of_buffer += 1;
            return Err(DropReason::NoReceive);
        }
        counters.rx_bytes += MAD_BYTES as u64;
        self.received.push_back(datagram);
        Ok(())
    }
}
