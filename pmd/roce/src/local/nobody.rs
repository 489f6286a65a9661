//! No peer on this host.

use super::{LocalFault, LocalPeer, Pair, PublishedQp, Push, Record, Source, Straight, Target};
use crate::ids::{LinkId, PdId, Psn, Qpn};
use crate::memory::AtomicOp;
use crate::work::{RemoteAddr, Sge};

/// For an engine that reaches everybody by packets: nobody shares memory with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

/// No way leads to nobody.
impl Straight for Nobody {
    fn glance(&self) -> u64 {
        0
    }

    fn posted(&self) -> u32 {
        0
    }

    fn send(&mut self, _: Psn, _: bool, _: &Sge) -> Option<u64> {
        None
    }

    fn send_inline(&mut self, _: Psn, _: bool, _: &[u8]) -> Option<u64> {
        None
    }

    fn write(&mut self, _: &Sge, _: RemoteAddr) -> bool {
        false
    }

    fn write_inline(&mut self, _: &[u8], _: RemoteAddr) -> bool {
        false
    }

    fn read(&mut self, _: &Sge, _: RemoteAddr) -> bool {
        false
    }

    fn fence(&mut self) {}

    fn publish(&mut self) {}
}

impl LocalPeer for Nobody {
    type Straight<'a> = Self;

    fn straight(&mut self, _: LinkId, _: Pair) -> Option<Self> {
        None
    }

    fn target(&self, _: LinkId, _: Qpn) -> Target {
        Target::Absent
    }

    fn glance(&self, _: LinkId, _: Qpn) -> Option<u64> {
        None
    }

    fn write(
        &mut self,
        _: LinkId,
        _: PdId,
        _: Source<'_>,
        _: (PdId, Qpn),
        _: RemoteAddr,
    ) -> Result<(), LocalFault> {
        Err(LocalFault::Gone)
    }

    fn read(
        &mut self,
        _: LinkId,
        _: PdId,
        _: &[Sge],
        _: (PdId, Qpn),
        _: RemoteAddr,
    ) -> Result<(), LocalFault> {
        Err(LocalFault::Gone)
    }

    fn atomic(
        &mut self,
        _: LinkId,
        _: (PdId, Qpn),
        _: RemoteAddr,
        _: AtomicOp,
    ) -> Result<u64, LocalFault> {
        Err(LocalFault::Gone)
    }

    fn push(&mut self, _: LinkId, _: PdId, _: &Record, _: Source<'_>) -> Push {
        Push::Gone
    }

    fn consumed(&self, _: LinkId) -> u64 {
        0
    }

    fn show(&mut self, _: Qpn, _: Option<&PublishedQp>) {}

    fn show_receives(&mut self, _: Qpn, _: Psn, _: u32) {}

    fn publish(&mut self) {}

    fn fence(&mut self) {}
}
