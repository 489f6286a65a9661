//! Recording what passes a wire, for Wireshark and for the next reader of a failed run.
//!
//! A [`Tap`] wraps any wire and writes both directions to a pcapng file, with the Ethernet, IP and
//! UDP headers that the frame has on the network (a socket does not show them, so they are made
//! from what is known), and the reason why a received frame was dropped as a packet comment.
//!
//! Several taps may share one [`Capture`]; each is an interface of the file. A capture that cannot
//! be written stops, traffic goes on, and [`Capture::finish`] tells.

mod capture;
mod headers;
mod pcapng;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use capture::{Capture, CaptureError, Captured};

use crate::limits::{MESSAGE_BYTES, TAP_BUFFER_BYTES, TAP_WRITE_BYTES, TAP_WRITE_NS};
use crate::wire::{Flow, IpId, JoinError, RxHandler, TxFill, Wire, WireCounters};
use headers::Headers;
use pcapng::Direction;

/// A wire whose frames are recorded.
pub struct Tap<W> {
    inner: W,
    recorder: Recorder,
    /// The address whose frames another tap of the capture has written when they left.
    own: Option<IpAddr>,
}

impl<W: Wire> Tap<W> {
    /// Records what passes `inner` as the interface `name` of `capture`. `epoch_ns` is the wall
    /// clock, in nanoseconds since 1970, at the zero of the clock that the wire's calls are given.
    pub fn new(inner: W, capture: &Arc<Capture>, name: &str, epoch_ns: u64) -> Self {
        let mut buffer = Vec::with_capacity(TAP_BUFFER_BYTES);
        let interface = capture.add_interface(name, &mut buffer);
        let recorder = Recorder {
            capture: capture.clone(),
            interface,
            epoch_ns,
            now_ns: 0,
            written_ns: 0,
            buffer,
            frames: 0,
        };
        Self { inner, recorder, own: None }
    }

    /// Leaves out what arrives from `own`, unless it is dropped: every sender at that address has a tap of the same capture,
    /// so that a frame between two of them is there once.
    #[must_use]
    pub fn beside(self, own: Option<IpAddr>) -> Self {
        Self { own, ..self }
    }

    /// The wire inside.
    pub fn inner(&self) -> &W {
        &self.inner
    }
}

const _: () = assert!(
    TAP_BUFFER_BYTES >= 2 * MESSAGE_BYTES,
    "any frame must fit an empty buffer, with its headers and its comment"
);

/// Encodes frames into a bounded buffer and moves it to the file.
struct Recorder {
    capture: Arc<Capture>,
    interface: u32,
    epoch_ns: u64,
    now_ns: u64,
    written_ns: u64,
    buffer: Vec<u8>,
    /// Frames in `buffer`.
    frames: u64,
}

impl Recorder {
    fn record(
        &mut self,
        direction: Direction,
        flow: &Flow,
        ip_id: u16,
        payload: &[u8],
        dropped: Option<&str>,
    ) {
        if self.capture.has_failed() {
            return;
        }
        let headers = Headers::new(flow, ip_id, payload);
        let packet = pcapng::Packet {
            interface: self.interface,
            time_ns: self.epoch_ns.wrapping_add(self.now_ns),
            direction,
            headers: headers.bytes(),
            payload,
            comment: dropped,
        };
        if self.buffer.len() + packet.encoded_len() > self.buffer.capacity() {
            self.write();
        }
        packet.encode(&mut self.buffer);
        self.frames += 1;
    }

    fn write(&mut self) {
        self.written_ns = self.now_ns;
        if !self.buffer.is_empty() {
            self.capture.write(&self.buffer, self.frames);
            self.buffer.clear();
            self.frames = 0;
        }
    }

    /// Writes when there is enough for it to be worth while, or when it has waited long enough.
    fn write_if_due(&mut self) {
        let waited = self.now_ns.saturating_sub(self.written_ns);
        if self.buffer.len() >= TAP_WRITE_BYTES || waited >= TAP_WRITE_NS {
            self.write();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.write();
    }
}

impl<W: Wire> Wire for Tap<W> {
    fn rx_burst(&mut self, now_ns: u64, handle: &mut RxHandler<'_>) -> usize {
        let (recorder, own) = (&mut self.recorder, self.own);
        recorder.now_ns = now_ns;
        self.inner.rx_burst(now_ns, &mut |frame| {
            let verdict = handle(frame);
            let ip_id = match frame.ip_id {
                IpId::Exact(id) => id,
                IpId::Likely(_) => verdict.ip_id,
            };
            if own != Some(frame.flow.src) || verdict.dropped.is_some() {
                recorder.record(Direction::In, &frame.flow, ip_id, frame.payload, verdict.dropped);
            }
            verdict
        })
    }

    fn send(&mut self, flow: &Flow, to: u32, len: usize, fill: &mut TxFill<'_>) -> bool {
        let recorder = &mut self.recorder;
        self.inner.send(flow, to, len, &mut |ip_id, frame| {
            fill(ip_id, frame);
            recorder.record(Direction::Out, flow, ip_id, frame, None);
        })
    }

    fn flush(&mut self, now_ns: u64) {
        self.inner.flush(now_ns);
        self.recorder.now_ns = now_ns;
        self.recorder.write_if_due();
    }

    fn pending(&self) -> usize {
        self.inner.pending()
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.inner.poll_timeout()
    }

    fn source_port(&self, wanted: u16) -> u16 {
        self.inner.source_port(wanted)
    }

    fn max_payload(&self) -> usize {
        self.inner.max_payload()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.inner.leave(group)
    }

    fn counters(&self) -> WireCounters {
        self.inner.counters()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

impl<W: fmt::Debug> fmt::Debug for Tap<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap")
            .field("inner", &self.inner)
            .field("capture", &self.recorder.capture)
            .finish_non_exhaustive()
    }
}
