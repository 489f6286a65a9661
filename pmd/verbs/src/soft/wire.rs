//! Between the engine's frames and a wire's.

use pmd_roce::ids::{Gid, Qpn};
use pmd_roce::sink::{self, Frame, FrameOutcome, TxSink};
use pmd_wire::{Flow, IpId, RxFrame, RxVerdict, Wire};

/// A flow as the engine has it and as a wire takes it: the next frame's is mostly the same.
pub(crate) struct LastFlow {
    of: sink::Flow,
    is: Flow,
}

impl LastFlow {
    pub(crate) fn new() -> Self {
        let nowhere = Gid::default();
        let of =
            sink::Flow { src: nowhere, dst: nowhere, src_port: 0, traffic_class: 0, hop_limit: 0 };
        Self { of, is: flow(&of) }
    }

    #[inline]
    fn translate(&mut self, of: &sink::Flow) -> &Flow {
        if self.of != *of {
            *self = Self { of: *of, is: flow(of) };
        }
        &self.is
    }
}

fn flow(of: &sink::Flow) -> Flow {
    Flow {
        src: of.src.ip(),
        dst: of.dst.ip(),
        src_port: of.src_port,
        traffic_class: of.traffic_class,
        hop_limit: of.hop_limit,
    }
}

/// A wire as the engine's sink.
pub(crate) struct WireSink<'a> {
    wire: Option<&'a mut dyn Wire>,
    last: &'a mut LastFlow,
    /// Frames it took.
    pub(crate) sent: usize,
}

impl<'a> WireSink<'a> {
    pub(crate) const fn new(wire: Option<&'a mut dyn Wire>, last: &'a mut LastFlow) -> Self {
        Self { wire, last, sent: 0 }
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
        let taken = wire.send(self.last.translate(flow), to.value(), len, fill);
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
    let FrameOutcome { ip_id, dropped, rest } = outcome;
    RxVerdict { ip_id, dropped: dropped.map(|reason| reason.name()), rest }
}
