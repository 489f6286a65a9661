//! The engine's view of peers on the same host.

use pmd_roce::engine::Engine;
use pmd_roce::ids::{Gid, Instant, LinkId, PdId, Qpn};
use pmd_roce::local::{LocalFault, LocalPeer, PublishedQp, Push, Record, Source, Target};
use pmd_roce::memory::AtomicOp;
use pmd_roce::work::{RemoteAddr, Sge};

use super::cq::Cqs;
use super::memory::TableMemory;
use super::shm::Shm;

/// Links of one lcore; none where the device shares no memory.
#[derive(Debug)]
pub(crate) struct Peers;

impl Peers {
    pub(crate) const fn new(_port: Option<&Shm>, _lcore: u32) -> Self {
        Self
    }

    pub(crate) fn attach(&mut self, _gid: Gid, _qpn: Qpn) -> Result<LinkId, String> {
        Err("this device shares no memory".into())
    }

    pub(crate) const fn receive(
        &mut self,
        _now: Instant,
        _engine: &mut Engine,
        _memory: &mut TableMemory,
        _cqs: &mut Cqs,
    ) -> usize {
        0
    }
}

impl LocalPeer for Peers {
    fn target(&self, _: LinkId, _: Qpn) -> Target {
        Target::Gone
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

    fn publish(&mut self) {}

    fn fence(&mut self) {}
}
