//! Between the engine's frames and a wire's.

use pmd_roce::ids::{Gid, Qpn};
use pmd_roce::sink::{self, Frame, FrameOutcome, TxSink};
use pmd_wire::{Flow, IpId, RxFrame, RxVerdict, Wire};

/// A wire as the engine's sink.
pub(crate) struct WireSink<'a> {
    wire: Option<&'a mut dyn Wire>,
    /// Frames it took.
    pub(crate) sent: usize,
}

impl<'a> WireSink<'a> {
    pub(crate) const fn new(wire: Option<&'a mut dyn Wire>) -> Self {
        Self { wire, sent: 0 }
    }
}

impl TxSink for WireSink<'_> {
    fn send(
        &mut self,
        flow: &sink::Flow,
        to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool {
        let Some(wire) = self.wire.as_deref_mut() else { return false };
        let flow = Flow {
            src: flow.src.ip(),
            dst: flow.dst.ip(),
            src_port: flow.src_port,
            traffic_class: flow.traffic_class,
            hop_limit: flow.hop_limit,
        };
        let taken = wire.send(&flow, to.value(), len, fill);
        self.sent += usize::from(taken);
        taken
    }
}

/// A received frame as the engine takes it.
pub(crate) fn frame<'a>(rx: &RxFrame<'a>) -> Frame<'a> {
    Frame {
        flow: sink::Flow {
            src: Gid::from(rx.flow.src),
            dst: Gid::from(rx.flow.dst),
            src_port: rx.flow.src_port,
            traffic_class: rx.flow.traffic_class,
            hop_limit: rx.flow.hop_limit,
        },
        ip_id: match rx.ip_id {
            IpId::Exact(id) => sink::IpId::Exact(id),
            IpId::Likely(id) => sink::IpId::Likely(id),
        },
        payload: rx.payload,
    }
}

/// What the engine made of a frame, as wrappers of the wire record it.
pub(crate) fn verdict(outcome: FrameOutcome) -> RxVerdict {
    RxVerdict { ip_id: outcome.ip_id, dropped: outcome.dropped.map(|reason| reason.name()) }
}
