//! One frame out, one frame in: sealing and checking the ICRC, the payload copied once.

use crate::device::Device;
use crate::memory::MemoryFault;
use crate::sink::{Flow, Frame, IpId, TxSink};
use crate::wire::icrc::{self, IcrcHeader};
use crate::wire::icrc_prefix::IcrcPrefixes;
use crate::wire::{Bth, DropReason, Headers};

/// What became of a frame that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The wire has it, or the port has dropped it for want of a link.
    Yes,
    /// The wire has no room now.
    Full,
    /// Memory that was there when the message began refused. What left is of no use to anybody:
    /// its ICRC is wrong on purpose.
    Fault(MemoryFault),
}

/// Sends a packet of `payload_len` bytes, which `fill` writes.
pub(crate) fn send(
    tx: &mut impl TxSink,
    dev: &mut Device,
    flow: &Flow,
    headers: &Headers,
    payload_len: usize,
    mut fill: impl FnMut(&mut [u8]) -> Result<(), MemoryFault>,
) -> Sent {
    if dev.ports.some_down && dev.ports.is_down(flow.src) {
        dev.counters.port_xmit_discards += 1;
        return Sent::Yes;
    }
    let len = headers.buffer_len(payload_len) + icrc::LEN;
    let mut filled = Ok(());
    let Device { sealed, counters, .. } = dev;
    let taken = tx.send(flow, headers.bth.dest_qp, len, &mut |ip_id, out| {
        filled = fill(headers.emit(payload_len, out));
        let Flow { src, dst, src_port, .. } = *flow;
        sealed.seal(&IcrcHeader { src, dst, src_port, ip_id }, out);
        if filled.is_err() {
            out[len - 1] ^= 0xff;
        }
    });
    match (taken, filled) {
        (false, _) => Sent::Full,
        (true, Ok(())) => {
            counters.tx_packets += 1;
            counters.tx_bytes += payload_len as u64;
            Sent::Yes
        }
        (true, Err(fault)) => Sent::Fault(fault),
    }
}

/// Checks the ICRC of a frame and tells which IPv4 identification it was made with, 0 for IPv6.
/// Where the header is hidden, a sender like ours would have used the likely one; any other sender
/// is believed when exactly one identification makes its ICRC right.
pub(crate) fn check_icrc(checked: &mut IcrcPrefixes, frame: &Frame<'_>) -> Result<u16, DropReason> {
    if frame.payload.len() < Bth::LEN + icrc::LEN {
        return Err(DropReason::Truncated);
    }
    let Flow { src, dst, src_port, .. } = frame.flow;
    let is_ipv4 = dst.is_ipv4();
    let (ip_id, is_exact) = match frame.ip_id {
        _ if !is_ipv4 => (0, true),
        IpId::Exact(ip_id) => (ip_id, true),
        IpId::Likely(ip_id) => (ip_id, false),
    };
    let Some((packet, icrc)) = frame.payload.split_last_chunk() else {
        return Err(DropReason::Truncated);
    };
    let header = IcrcHeader { src, dst, src_port, ip_id };
    let difference = checked.compute(&header, packet) ^ u32::from_le_bytes(*icrc);
    match difference {
        0 => Ok(ip_id),
        _ if is_exact => Err(DropReason::Icrc),
        _ => icrc::solve_difference(difference, frame.payload.len())
            .map(|change| ip_id ^ change)
            .ok_or(DropReason::Icrc),
    }
}
