//! What arrives on a link, as the engine takes it.

use pmd_record::Recorded;
use pmd_roce::ids::{Instant, LinkId, Lkey, PdId, Psn, Qpn};
use pmd_roce::local::{Arrived, LocalFault, Plain, Target};
use pmd_roce::work::Sge;
use pmd_wire::shm;

use super::cq::Cqs;
use super::memory::TableMemory;
use super::peers::{Answering, element, fault, from_wire, target};

/// What takes in what arrives on a link.
pub(super) struct Taking<'a> {
    pub(super) now: Instant,
    pub(super) link: LinkId,
    pub(super) engine: &'a mut Recorded,
    pub(super) memory: &'a mut TableMemory,
    pub(super) cqs: &'a mut Cqs,
}

impl shm::Take for Taking<'_> {
    #[inline(always)]
    fn alone(&mut self, arrivals: &mut shm::Arrivals<'_>) -> bool {
        let mut arrivals = Arrivals { links: None, link: self.link, arrivals };
        self.engine.handle_arrival(self.link, &mut arrivals, self.cqs)
    }

    #[inline(always)]
    fn run(
        &mut self,
        links: &shm::Links,
        arrivals: &mut shm::Arrivals<'_>,
        budget: usize,
    ) -> usize {
        let mut arrivals = Arrivals { links: Some(links), link: self.link, arrivals };
        self.engine.handle_arrivals(self.link, &mut arrivals, budget, self.cqs)
    }

    #[inline(never)]
    fn record(
        &mut self,
        links: &mut shm::Links,
        record: &shm::Record,
        payload: &mut shm::Payload<'_>,
    ) -> bool {
        let Self { now, link, engine, memory, cqs } = self;
        let (record, mut payload) = (from_wire(record), Bytes(payload));
        let mut links = Answering(links);
        engine.handle_record(*now, *link, &record, &mut payload, *memory, &mut links, *cqs)
    }
}

/// Messages at the front of a ring.
struct Arrivals<'a, 'b> {
    /// To look at a sender again whose bytes are borrowed.
    links: Option<&'a shm::Links>,
    link: LinkId,
    arrivals: &'a mut shm::Arrivals<'b>,
}

impl pmd_roce::local::Arrivals for Arrivals<'_, '_> {
    type Messages<'a, const BORROWED: bool>
        = Messages<'a, BORROWED>
    where
        Self: 'a;

    #[inline(always)]
    fn front(&self) -> Option<(Qpn, bool)> {
        self.arrivals.front().map(|(dst, is_borrowed)| (Qpn::new(dst), is_borrowed))
    }

    #[inline(always)]
    fn coming(&self) -> Option<Qpn> {
        self.arrivals.coming().map(Qpn::new)
    }

    #[inline(always)]
    fn fetch<T: ?Sized>(&self, soon: &T) {
        pmd_mem::prefetch(soon);
    }

    #[inline(always)]
    fn messages<const BORROWED: bool>(
        &mut self,
        dst: Qpn,
        src: Qpn,
        pd: PdId,
        lkey: Lkey,
    ) -> Option<Messages<'_, BORROWED>> {
        let Self { links, link, arrivals } = self;
        let messages = arrivals.messages(dst.value(), src.value(), pd.0, lkey.0)?;
        Some(Messages { links: *links, link: *link, src, messages })
    }

    #[inline(always)]
    fn take(&mut self, dst: Qpn, src: Qpn, pd: PdId, seq: Psn, into: &Sge) -> Option<Plain> {
        let (dst, src, seq) = (dst.value(), src.value(), seq.value());
        let shm::Plain { len, solicited } =
            self.arrivals.take(dst, src, pd.0, seq, &element(into))?;
        Some(Plain { len, solicited })
    }
}

/// Messages of one queue pair among them.
struct Messages<'a, const BORROWED: bool> {
    links: Option<&'a shm::Links>,
    link: LinkId,
    src: Qpn,
    messages: shm::Messages<'a, BORROWED>,
}

impl<const BORROWED: bool> pmd_roce::local::Messages for Messages<'_, BORROWED> {
    #[inline(always)]
    fn copy(&mut self, seq: Psn, into: &Sge) -> Option<Plain> {
        let shm::Plain { len, solicited } = self.messages.copy(seq.value(), &element(into))?;
        Some(Plain { len, solicited })
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.messages.advance();
    }

    #[inline(always)]
    fn sender(&self) -> Target {
        self.links.map_or(Target::Gone, |links| target(links, self.link, self.src))
    }
}

/// The payload of a record.
struct Bytes<'a, 'b>(&'a mut shm::Payload<'b>);

impl Arrived for Bytes<'_, '_> {
    #[inline(always)]
    fn is_borrowed(&self) -> bool {
        self.0.is_borrowed()
    }

    #[inline(always)]
    fn copy_to(&mut self, pd: PdId, offset: u32, sge: &Sge) -> Result<(), LocalFault> {
        match self.0.copy_to(pd.0, offset, &element(sge)) {
            Ok(()) => Ok(()),
            Err(found) => Err(fault(found)),
        }
    }
}
