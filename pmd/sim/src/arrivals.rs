//! Plain messages at the front of a ring, for an engine that takes them in a row.

use core::fmt::Write;
use std::cell::RefCell;

use pmd_roce::ids::{Instant, LinkId, Lkey, PdId, Psn, Qpn};
use pmd_roce::local::{Arrived, Plain, Record, RecordKind, Target};
use pmd_roce::work::Sge;

use crate::host::HostId;
use crate::link::{Entry, Fabric};
use crate::memory::HostMemory;
use crate::trace::Trace;

/// The front of the ring of a link.
#[derive(Debug)]
pub(crate) struct Arrivals<'a> {
    pub(crate) host: HostId,
    pub(crate) link: LinkId,
    pub(crate) now: Instant,
    pub(crate) fabric: &'a mut Fabric,
    pub(crate) memory: &'a [RefCell<HostMemory>],
    pub(crate) trace: &'a mut Trace,
}

/// Those from one queue pair to another.
#[derive(Debug)]
pub(crate) struct Messages<'a, 'b, const BORROWED: bool> {
    arrivals: &'a mut Arrivals<'b>,
    dst: Qpn,
    src: Qpn,
    pd: PdId,
    lkey: Lkey,
}

impl Arrivals<'_> {
    fn plain(&self) -> Option<&Entry> {
        let entry = self.fabric.front(self.host, self.link)?;
        let Record { kind, len, imm, srqn, .. } = entry.record;
        let is_plain = kind == RecordKind::Send && len > 0 && imm.is_none() && srqn.is_none();
        is_plain.then_some(entry)
    }
}

impl<'b> pmd_roce::local::Arrivals for Arrivals<'b> {
    type Messages<'a, const BORROWED: bool>
        = Messages<'a, 'b, BORROWED>
    where
        Self: 'a;

    fn front(&self) -> Option<(Qpn, bool)> {
        self.plain().map(|entry| (entry.record.dst, entry.is_borrowed()))
    }

    fn messages<const BORROWED: bool>(
        &mut self,
        dst: Qpn,
        src: Qpn,
        pd: PdId,
        lkey: Lkey,
    ) -> Option<Messages<'_, 'b, BORROWED>> {
        Some(Messages { arrivals: self, dst, src, pd, lkey })
    }
}

impl<const BORROWED: bool> pmd_roce::local::Messages for Messages<'_, '_, BORROWED> {
    fn copy(&mut self, seq: Psn, into: &Sge) -> Option<Plain> {
        let Arrivals { host, link, now, ref mut fabric, memory, .. } = *self.arrivals;
        if !fabric.may_take(now, host) {
            return None;
        }
        let entry = self.arrivals.plain()?.clone();
        let Record { len, solicited, .. } = entry.record;
        let is_it = (entry.record.dst, entry.record.src, entry.record.seq)
            == (self.dst, self.src, seq)
            && entry.is_borrowed() == BORROWED
            && into.lkey == self.lkey
            && into.len >= len;
        if !is_it {
            return None;
        }
        let mut payload = self.arrivals.fabric.arrived(now, host, link, &entry, memory);
        payload.copy_to(self.pd, 0, into).ok()?;
        Some(Plain { len, solicited })
    }

    fn advance(&mut self) {
        let Arrivals { host, link, now, ref mut fabric, ref mut trace, .. } = *self.arrivals;
        let taken = fabric.take(host, link).expect("a message was copied");
        write!(trace, "{:?}", taken.record).expect("a trace takes everything");
        fabric.rest(now, host);
    }

    fn sender(&self) -> Target {
        let Arrivals { host, link, ref fabric, .. } = *self.arrivals;
        fabric.target(host, link, self.src)
    }
}
