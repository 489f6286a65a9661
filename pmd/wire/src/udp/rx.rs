//! Receiving: from a batch of datagrams to single frames.

use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::cmsg;
use super::mmsg::{Datagram, Messages};
use crate::limits::{BULK_BYTES, BYTES_PER_NS, GATHER_NS};
use crate::wire::{Flow, IpId, RxFrame, RxHandler, WireCounters};

/// A socket that receives, and the address it is bound to, which its frames were sent to.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) socket: OwnedFd,
    pub(super) address: IpAddr,
    /// The kernel's running count of overflows when it was last seen.
    overflows: u32,
    /// How long the stream that a full datagram belongs to goes on, in nanoseconds.
    stream_ns: u64,
    /// Nobody looks before this time, in nanoseconds.
    look_at: u64,
}

impl Receiver {
    pub(super) fn new(socket: OwnedFd, address: IpAddr) -> Self {
        Self { socket, address, overflows: 0, stream_ns: 0, look_at: 0 }
    }

    /// Hands over the frames of one batch and returns how many there were.
    ///
    /// A receiver that has caught up with a sender in the middle of a long message lets some
    /// datagrams gather before it looks again: the kernel gives their memory back to the sender at
    /// once, and memory that this core has just read is dear to write for the other.
    pub(super) fn receive(
        &mut self,
        now_ns: u64,
        messages: &mut Messages,
        counters: &mut WireCounters,
        handle: &mut RxHandler<'_>,
    ) -> usize {
        if now_ns < self.look_at {
            return 0;
        }
        let count = match messages.receive(self.socket.as_fd()) {
            Ok(count) => count,
            Err(error) => {
                if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
                    counters.rx_errors += 1;
                }
                self.look_at = now_ns + mem::take(&mut self.stream_ns).min(GATHER_NS);
                return 0;
            }
        };
        (0..count).map(|i| self.split(&messages.datagram(i), counters, handle)).sum()
    }

    /// Cuts a buffer of merged datagrams into frames.
    fn split(
        &mut self,
        datagram: &Datagram<'_>,
        counters: &mut WireCounters,
        handle: &mut RxHandler<'_>,
    ) -> usize {
        let fields = Fields::read(datagram.control);
        if let Some(overflows) = fields.overflows {
            counters.rx_overflow += u64::from(overflows.wrapping_sub(self.overflows));
            self.overflows = overflows;
        }
        let Some((src, src_port)) = datagram.from.filter(|_| !datagram.truncated) else {
            counters.rx_truncated += 1;
            return 0;
        };
        let flow = Flow {
            src,
            dst: self.address,
            src_port,
            traffic_class: fields.traffic_class,
            hop_limit: fields.hop_limit,
        };
        counters.rx_datagrams += 1;
        counters.rx_bytes += datagram.payload.len() as u64;
        let mut rest = datagram.payload;
        let mut frames: u16 = 0;
        // An empty datagram is a frame too: whoever receives it counts it as malformed.
        loop {
            let segment = if fields.segment == 0 { rest.len() } else { fields.segment };
            let (payload, others) = rest.split_at(segment.min(rest.len()));
            let verdict = handle(RxFrame { flow, ip_id: IpId::Likely(frames), payload });
            frames += 1;
            rest = others;
            if rest.is_empty() {
                let is_full = datagram.payload.len() >= BULK_BYTES;
                self.stream_ns = if is_full { verdict.rest / BYTES_PER_NS } else { 0 };
                break;
            }
        }
        counters.rx_frames += u64::from(frames);
        usize::from(frames)
    }
}

/// Header fields that came beside a datagram.
#[derive(Debug, Default)]
struct Fields {
    /// Bytes of each merged datagram but the last; 0 when nothing was merged.
    segment: usize,
    traffic_class: u8,
    hop_limit: u8,
    overflows: Option<u32>,
}

impl Fields {
    fn read(control: &[u8]) -> Self {
        let mut fields = Self::default();
        for (level, kind, data) in cmsg::read(control) {
            let Some(value) = cmsg::int(data) else { continue };
            #[expect(clippy::cast_possible_truncation, reason = "8-bit fields of the IP header")]
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => fields.segment = value as usize,
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    fields.traffic_class = value as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    fields.hop_limit = value as u8;
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => fields.overflows = Some(value),
                _ => {}
            }
        }
        fields
    }
}
