//! Sending: frames gathered into GSO super-packets, super-packets into one system call.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use libc::c_int;

use super::mmsg::{BATCH, Messages, Name, Outgoing};
use super::socket::{HOP_LIMIT, with_port};
use super::steer::LcoreBits;
use crate::icrc;
use crate::limits::GSO_MAX_BYTES;
use crate::wire::{Flow, ROCE_PORT, WireCounters};

const NO_GSO: usize = 1;

/// What frames must share to travel in one super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    dst: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    /// The peer's lcore, which its kernel chooses once per super-packet.
    lcore: u32,
}

/// A super-packet under construction, or waiting.
#[derive(Clone, Copy, Debug)]
struct Packet {
    key: Key,
    /// Bytes of every frame but the last, which may be shorter.
    segment: usize,
    /// Bytes of all frames.
    len: usize,
    frames: usize,
    /// Takes no more: its last frame is a shorter one.
    closed: bool,
    /// Bytes that went out frame by frame, where GSO was refused.
    sent: usize,
    name: u8,
}

/// A ring of super-packets, oldest at `head`.
#[derive(Debug)]
pub(super) struct TxQueue {
    messages: Messages,
    packets: [Packet; BATCH],
    head: usize,
    used: usize,
    segments_max: usize,
    /// Largest frame that the interface takes.
    max_payload: usize,
    /// Where a peer like us has the number of its lcore.
    lcore_bits: LcoreBits,
    /// Interface index, for link-local destinations.
    scope: u32,
}

impl TxQueue {
    pub(super) fn new(
        segments_max: usize,
        max_payload: usize,
        lcore_bits: LcoreBits,
        address: IpAddr,
        scope: u32,
    ) -> Self {
        let key = Key { dst: address, traffic_class: 0, hop_limit: 0, lcore: 0 };
        let empty = Packet { key, segment: 0, len: 0, frames: 0, closed: true, sent: 0, name: 0 };
        Self {
            messages: Messages::new(),
            packets: [empty; BATCH],
            head: 0,
            used: 0,
            segments_max,
            max_payload,
            lcore_bits,
            scope,
        }
    }

    pub(super) fn segments_max(&self) -> usize {
        self.segments_max
    }

    /// Frames not yet sent.
    pub(super) fn pending(&self) -> usize {
        let ring = (0..self.used).map(|n| &self.packets[(self.head + n) % BATCH]);
        ring.map(|p| p.frames - if p.sent == 0 { 0 } else { p.sent / p.segment }).sum()
    }

    /// Whether [`TxQueue::append`] would refuse.
    pub(super) fn is_full_for(&self, flow: &Flow, to: u32, len: usize) -> bool {
        self.used == BATCH && self.open_for(&self.key(flow, to), len).is_none()
    }

    /// Makes room for one frame; returns its place and the identification it will carry.
    pub(super) fn append(&mut self, flow: &Flow, to: u32, len: usize) -> Option<(u16, &mut [u8])> {
        let key = self.key(flow, to);
        let index = match self.open_for(&key, len) {
            Some(index) => index,
            None if self.used == BATCH => return None,
            None => self.open(key, len),
        };
        let packet = &mut self.packets[index];
        let (at, frame) = (packet.len, packet.frames);
        packet.len += len;
        packet.frames += 1;
        packet.closed = len < packet.segment;
        let ip_id = if key.dst.is_ipv4() { u16::try_from(frame).ok()? } else { 0 };
        Some((ip_id, &mut self.messages.data_mut(index)[at..at + len]))
    }

    fn key(&self, flow: &Flow, to: u32) -> Key {
        // The kernel refuses a TTL of 0; as a sender's choice it can only mean the default.
        let hop_limit = if flow.hop_limit == 0 { HOP_LIMIT } else { flow.hop_limit };
        let lcore = self.lcore_bits.of(to);
        Key { dst: flow.dst, traffic_class: flow.traffic_class, hop_limit, lcore }
    }

    /// The newest packet of this flow, if it still takes a frame of `len` bytes. An older one
    /// would break the order within the flow.
    fn open_for(&self, key: &Key, len: usize) -> Option<usize> {
        let mut newest_first = (0..self.used).rev().map(|n| (self.head + n) % BATCH);
        let index = newest_first.find(|index| self.packets[*index].key == *key)?;
        let packet = &self.packets[index];
        let fits = !packet.closed
            && len <= packet.segment
            && packet.segment <= self.max_payload
            && packet.frames < self.segments_max
            && packet.len + len <= GSO_MAX_BYTES;
        fits.then_some(index)
    }

    fn open(&mut self, key: Key, len: usize) -> usize {
        let index = (self.head + self.used) % BATCH;
        self.used += 1;
        let (name, name_len) = Name::encode(with_port(key.dst, ROCE_PORT, self.scope));
        self.messages.set_name(index, name);
        self.packets[index] =
            Packet { key, segment: len, len: 0, frames: 0, closed: false, sent: 0, name: name_len };
        index
    }

    /// Sends super-packets that take no more, so that the peer works on them while the next ones are
    /// gathered, in a buffer that is still in the cache. A frame alone waits for others that one
    /// call can take along.
    pub(super) fn transmit_full(&mut self, socket: BorrowedFd<'_>, counters: &mut WireCounters) {
        if self.used > 0 && self.is_full(&self.packets[self.head]) {
            self.transmit(socket, counters, Self::is_full);
        }
    }

    /// Sends everything.
    pub(super) fn transmit_all(&mut self, socket: BorrowedFd<'_>, counters: &mut WireCounters) {
        self.transmit(socket, counters, |_, _| true);
    }

    fn is_full(&self, packet: &Packet) -> bool {
        packet.frames > 1
            && (packet.frames == self.segments_max || packet.len + packet.segment > GSO_MAX_BYTES)
    }

    /// Sends what the kernel takes of the oldest packets that are `wanted`; the rest stays. Each
    /// turn of the loop sends, drops or gives up, so it is bounded by the number of frames queued.
    fn transmit(
        &mut self,
        socket: BorrowedFd<'_>,
        counters: &mut WireCounters,
        wanted: impl Fn(&Self, &Packet) -> bool,
    ) {
        while self.used > 0 && wanted(self, &self.packets[self.head]) {
            let result = if self.must_split(self.head) {
                self.send_one_frame(socket, counters)
            } else {
                self.send_run(socket, counters, &wanted)
            };
            if let Err(error) = result
                && !self.recover(&error, counters)
            {
                break;
            }
        }
    }

    /// GSO was found not to work after this packet was gathered, or in the middle of it.
    fn must_split(&self, index: usize) -> bool {
        self.packets[index].frames > 1 && self.segments_max == NO_GSO
    }

    /// Sends whole packets, as many as lie in a row.
    fn send_run(
        &mut self,
        socket: BorrowedFd<'_>,
        counters: &mut WireCounters,
        wanted: &impl Fn(&Self, &Packet) -> bool,
    ) -> io::Result<()> {
        let mut outgoing = [Outgoing { offset: 0, len: 0, name: 0, control: 0 }; BATCH];
        let row = self.used.min(BATCH - self.head);
        let mut count = 0;
        while count < row && !self.must_split(self.head + count) {
            let index = self.head + count;
            let packet = self.packets[index];
            if !wanted(self, &packet) {
                break;
            }
            let control = self.write_control(index, packet.frames > 1);
            let Packet { len, name, .. } = packet;
            outgoing[count] = Outgoing { offset: 0, len, name, control };
            count += 1;
        }
        let sent = self.messages.send(socket, self.head, &outgoing[..count])?;
        for _ in 0..sent {
            let packet = self.pop();
            counters.tx_datagrams += 1;
            counters.tx_frames += packet.frames as u64;
            counters.tx_bytes += packet.len as u64;
        }
        Ok(())
    }

    /// Sends the next frame of the oldest packet by itself, with the ICRC for identification 0.
    fn send_one_frame(
        &mut self,
        socket: BorrowedFd<'_>,
        counters: &mut WireCounters,
    ) -> io::Result<()> {
        let Packet { sent, len, segment, name, .. } = self.packets[self.head];
        let control = self.write_control(self.head, false);
        let len = segment.min(len - sent);
        let out = Outgoing { offset: sent, len, name, control };
        self.messages.send(socket, self.head, &[out])?;
        counters.tx_datagrams += 1;
        counters.tx_frames += 1;
        counters.tx_bytes += len as u64;
        self.skip_frame();
        Ok(())
    }

    /// Acts on an error of the oldest packet; false when the kernel is to be asked again later.
    fn recover(&mut self, error: &io::Error, counters: &mut WireCounters) -> bool {
        let errno = error.raw_os_error().unwrap_or(0);
        let packet = self.packets[self.head];
        if matches!(errno, libc::EAGAIN | libc::EINTR) {
            return false;
        }
        // The path cannot do GSO (no checksum offload, IPsec, an old kernel's limit).
        if matches!(errno, libc::EIO | libc::EINVAL | libc::EOPNOTSUPP)
            && packet.frames > 1
            && self.segments_max > NO_GSO
        {
            self.segments_max = NO_GSO;
            self.restamp_all();
            return true;
        }
        let split = self.must_split(self.head);
        let lost = if split { 1 } else { packet.frames as u64 };
        *loss(counters, errno) += lost;
        if split {
            self.skip_frame();
        } else {
            self.pop();
        }
        true
    }

    /// Every queued frame will now leave alone, and so with identification 0.
    fn restamp_all(&mut self) {
        for n in 0..self.used {
            let index = (self.head + n) % BATCH;
            let Packet { key, segment, len, .. } = self.packets[index];
            if key.dst.is_ipv4() {
                let frames = self.messages.data_mut(index)[..len].chunks_mut(segment.max(1));
                for (id, frame) in (0_u16..).zip(frames) {
                    icrc::restamp(frame, id, 0);
                }
            }
            self.packets[index].closed = true;
        }
    }

    fn skip_frame(&mut self) {
        let packet = &mut self.packets[self.head];
        packet.sent = (packet.sent + packet.segment).min(packet.len);
        if packet.sent == packet.len {
            self.pop();
        }
    }

    fn pop(&mut self) -> Packet {
        let packet = self.packets[self.head];
        self.used -= 1;
        // An empty ring starts over, in the buffer that was used last.
        self.head = if self.used == 0 { 0 } else { (self.head + 1) % BATCH };
        packet
    }

    /// Writes what differs from the socket's defaults; returns the bytes used.
    fn write_control(&mut self, index: usize, gso: bool) -> u8 {
        let Packet { key, segment, .. } = self.packets[index];
        let (level, class, hops) = if key.dst.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        };
        let control = self.messages.control_mut(index);
        let mut at = 0;
        if gso {
            #[expect(clippy::cast_possible_truncation, reason = "a segment is a frame")]
            let segment = segment as u16;
            at = control.push(at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        if key.traffic_class != 0 {
            at = control.push(at, level, class, &c_int::from(key.traffic_class).to_ne_bytes());
        }
        if key.hop_limit != HOP_LIMIT {
            at = control.push(at, level, hops, &c_int::from(key.hop_limit).to_ne_bytes());
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most CONTROL_BYTES")]
        {
            at as u8
        }
    }
}

/// The counter for frames lost to `errno`.
fn loss(counters: &mut WireCounters, errno: c_int) -> &mut u64 {
    match errno {
        libc::ENOBUFS | libc::ENOMEM => &mut counters.tx_no_buffers,
        libc::EMSGSIZE => &mut counters.tx_too_big,
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN => &mut counters.tx_unreachable,
        libc::ECONNREFUSED => &mut counters.tx_refused,
        libc::EPERM | libc::EACCES => &mut counters.tx_denied,
        _ => &mut counters.tx_other,
    }
}
