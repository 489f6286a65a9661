//! The queue pairs of an engine by number.

use super::Qp;
use super::attr::QpInit;
use crate::engine::EngineConfig;
use crate::ids::{Instant, Qpn};
use crate::limits::{
    MAX_QPS, QPN_GENERATION_BITS, QPN_INDEX_BITS, QPN_LCORE_BITS, QPN_PROCESS_BITS,
};
use crate::slots::Slots;

/// The table. A number is made of process, lcore, generation and slot, so that it is unique on the
/// host and a reused slot is told apart.
#[derive(Debug)]
pub(crate) struct QpTable {
    /// Boxed: queue pairs are created and destroyed one by one, and the table stays small.
    qps: Slots<Box<Qp>>,
    generations: Box<[u32]>,
    /// Process and lcore, in place.
    prefix: u32,
}

impl QpTable {
    /// Room for the queue pairs that `config` allows.
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let slots = config.max_qps.min(MAX_QPS - 1);
        let process = config.process & ((1 << QPN_PROCESS_BITS) - 1);
        let lcore = config.lcore & ((1 << QPN_LCORE_BITS) - 1);
        let mut random = config.seed;
        let generations = core::iter::repeat_with(|| {
            random = random.rotate_right(QPN_GENERATION_BITS);
            #[expect(clippy::cast_possible_truncation, reason = "the low bits are meant")]
            let generation = random as u32 & ((1 << QPN_GENERATION_BITS) - 1);
            generation
        });
        Self {
            qps: Slots::new(slots),
            generations: generations.take(slots).collect(),
            prefix: (process << QPN_LCORE_BITS | lcore) << (QPN_GENERATION_BITS + QPN_INDEX_BITS),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.qps.capacity()
    }

    /// Makes a queue pair; `None` when all slots are taken.
    pub(crate) fn create(&mut self, init: QpInit, now: Instant) -> Option<Qpn> {
        let slot = self.qps.vacant()?;
        // Numbers start at 1, so that none is 0 or 1, the management queue pairs.
        let generation = self.generations[slot as usize];
        let qpn = Qpn::new(self.prefix | generation << QPN_INDEX_BITS | (slot + 1));
        self.qps.insert(Box::new(Qp::new(slot, qpn, init, now)))?;
        Some(qpn)
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Box<Qp>> {
        let slot = self.get(qpn)?.slot;
        let generation = &mut self.generations[slot as usize];
        *generation = (*generation + 1) & ((1 << QPN_GENERATION_BITS) - 1);
        self.qps.remove(slot)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Qp> {
        self.qps.get(Self::slot(qpn)).map(Box::as_ref).filter(|qp| qp.qpn == qpn)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        self.qps.get_mut(Self::slot(qpn)).map(Box::as_mut).filter(|qp| qp.qpn == qpn)
    }

    /// The queue pair in a slot, if only to be looked at.
    #[inline]
    pub(crate) fn in_slot(&self, slot: u32) -> Option<&Qp> {
        self.qps.get(slot).map(Box::as_ref)
    }

    /// The queue pair in the slot of this number, be it this one or another: without looking at it.
    #[inline]
    pub(crate) fn near(&self, qpn: Qpn) -> Option<&Qp> {
        self.in_slot(Self::slot(qpn))
    }

    /// The queue pair in a slot.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.qps.get_mut(slot).map(Box::as_mut)
    }

    /// The first queue pair from a slot on, with its slot.
    pub(crate) fn first_from(&self, slot: u32) -> Option<(u32, &Qp)> {
        self.qps.first_from(slot).map(|(slot, qp)| (slot, qp.as_ref()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.qps.iter().map(Box::as_ref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.qps.iter_mut().map(Box::as_mut)
    }

    #[inline]
    fn slot(qpn: Qpn) -> u32 {
        (qpn.value() & ((1 << QPN_INDEX_BITS) - 1)).wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CqId, PdId};
    use crate::qp::attr::QpCap;
    use crate::qp::state::Transport;

    fn init() -> QpInit {
        QpInit {
            transport: Transport::Rc,
            pd: PdId(0),
            send_cq: CqId(0),
            recv_cq: CqId(0),
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: false,
        }
    }

    #[test]
    fn a_reused_slot_has_another_number() {
        let mut table =
            QpTable::new(&EngineConfig { max_qps: 1, ..EngineConfig::new(0x7f, 5, Vec::new()) });
        let first = table.create(init(), Instant(0)).unwrap();
        assert_eq!(first.value(), 0x7f << 17 | 5 << 14 | 1);
        assert_eq!(table.create(init(), Instant(0)), None);
        assert!(table.remove(first).is_some());
        let second = table.create(init(), Instant(0)).unwrap();
        assert_eq!(second.value(), first.value() | 1 << 11);
        assert!(table.get(first).is_none(), "a stale number names nothing");
        assert!(table.get(second).is_some());
        assert!(table.get(Qpn::new(0)).is_none());
    }
}
