//! An engine's surroundings with somebody who writes down what it asks of them and what they answer.

use core::cell::{Cell, RefCell};

use pmd_roce::ids::{CqId, LinkId, PdId, Psn, Qpn, Rkey};
use pmd_roce::local::{
    Arrived, LocalFault, LocalPeer, Nobody, Pair, PublishedQp, Push, Record, Source, Target,
};
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::sink::{CqSink, Flow, TxSink};
use pmd_roce::work::{Access, Completion, CqOverrun, RemoteAddr, Sge, WindowBind};

use crate::call::Call;
use crate::pack::{Pack, put_number};
use crate::vocabulary::{Finished, Origin, Sum};

/// The wire took the frame.
pub(crate) const TAKEN: u8 = 1;
/// The frame was written.
pub(crate) const FILLED: u8 = 2;

/// One input while it is written down.
#[derive(Debug, Default)]
pub(crate) struct Log {
    bytes: RefCell<Vec<u8>>,
    outputs: Cell<u64>,
    /// Anything was asked or handed over that an idle turn has not.
    news: Cell<bool>,
    /// What peers had taken, when last asked.
    consumed: RefCell<Vec<(LinkId, u64)>>,
}

impl Log {
    /// Begins an input.
    pub(crate) fn begin(&self, input: &impl Pack) {
        let mut bytes = self.bytes.borrow_mut();
        bytes.clear();
        input.put(&mut bytes);
        self.outputs.set(0);
        self.news.set(false);
    }

    /// What was written down since [`Self::begin`].
    pub(crate) fn bytes(&self) -> core::cell::Ref<'_, Vec<u8>> {
        self.bytes.borrow()
    }

    /// Things that came of it.
    pub(crate) const fn outputs(&self) -> u64 {
        self.outputs.get()
    }

    /// Whether anything happened.
    pub(crate) const fn has_news(&self) -> bool {
        self.news.get()
    }

    pub(crate) fn call(&self, call: &Call) {
        call.put(&mut self.bytes.borrow_mut());
        self.outputs.set(self.outputs.get() + u64::from(call.is_output()));
        if !matches!(call, Call::Publish | Call::Consumed { .. }) {
            self.news.set(true);
        }
    }

    pub(crate) fn answer<T: Pack>(&self, answer: &T) {
        answer.put(&mut self.bytes.borrow_mut());
    }

    /// An answer of bytes whose count the call says.
    fn answer_bytes(&self, result: Result<(), MemoryFault>, bytes: &[u8]) {
        self.answer(&result);
        if result.is_ok() {
            self.bytes.borrow_mut().extend_from_slice(bytes);
        }
    }

    fn note_consumed(&self, link: LinkId, position: u64) {
        let mut consumed = self.consumed.borrow_mut();
        match consumed.iter_mut().find(|(known, _)| *known == link) {
            Some((_, known)) if *known == position => {}
            Some((_, known)) => {
                *known = position;
                self.news.set(true);
            }
            None => {
                consumed.push((link, position));
                self.news.set(true);
            }
        }
    }
}

/// Somebody of the surroundings, and the log.
#[derive(Debug)]
pub(crate) struct Witness<'a, T> {
    inner: &'a mut T,
    log: &'a Log,
}

impl<'a, T> Witness<'a, T> {
    pub(crate) const fn of(inner: &'a mut T, log: &'a Log) -> Self {
        Self { inner, log }
    }
}

impl<M: Memory> Memory for Witness<'_, M> {
    fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), MemoryFault> {
        self.log.call(&Call::CheckLocal { pd, sge: *sge, write });
        let checked = self.inner.check_local(pd, sge, write);
        self.log.answer(&checked);
        checked
    }

    fn gather(&self, pd: PdId, sge: &Sge, offset: u32, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.log.call(&Call::Gather { pd, sge: *sge, offset, len: into.len() as u64 });
        let gathered = self.inner.gather(pd, sge, offset, into);
        self.log.answer_bytes(gathered, into);
        gathered
    }

    fn scatter(
        &mut self,
        pd: PdId,
        sge: &Sge,
        offset: u32,
        from: &[u8],
    ) -> Result<(), MemoryFault> {
        self.log.call(&Call::Scatter { pd, sge: *sge, offset, from: Sum::of(from) });
        let scattered = self.inner.scatter(pd, sge, offset, from);
        self.log.answer(&scattered);
        scattered
    }

    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(), MemoryFault> {
        self.log.call(&Call::CheckRemote { by, at, len, rights });
        let checked = self.inner.check_remote(by, at, len, rights);
        self.log.answer(&checked);
        checked
    }

    fn read_remote(&self, by: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.log.call(&Call::ReadRemote { by, at, len: into.len() as u64 });
        let read = self.inner.read_remote(by, at, into);
        self.log.answer_bytes(read, into);
        read
    }

    fn write_remote(&mut self, by: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault> {
        self.log.call(&Call::WriteRemote { by, at, from: Sum::of(from) });
        let written = self.inner.write_remote(by, at, from);
        self.log.answer(&written);
        written
    }

    fn atomic_remote(
        &mut self,
        by: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        self.log.call(&Call::AtomicRemote { by, at, op });
        let before = self.inner.atomic_remote(by, at, op);
        self.log.answer(&before);
        before
    }

    fn invalidate(&mut self, by: Asker, key: Rkey) -> Result<(), MemoryFault> {
        self.log.call(&Call::Invalidate { by, key });
        let done = self.inner.invalidate(by, key);
        self.log.answer(&done);
        done
    }

    fn bind(&mut self, by: Asker, bind: &WindowBind) -> Result<(), MemoryFault> {
        self.log.call(&Call::Bind { by, bind: *bind });
        let done = self.inner.bind(by, bind);
        self.log.answer(&done);
        done
    }
}

impl<C: CqSink> CqSink for Witness<'_, C> {
    fn push(&mut self, cq: CqId, completion: Completion) -> Result<(), CqOverrun> {
        self.log.call(&Call::Push { cq, completion: Finished::of(&completion) });
        let pushed = self.inner.push(cq, completion);
        self.log.answer(&pushed.is_ok());
        pushed
    }
}

impl<T: TxSink> TxSink for Witness<'_, T> {
    fn send(
        &mut self,
        flow: &Flow,
        to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool {
        let Self { inner, log } = self;
        log.call(&Call::Send { flow: *flow, to, len: len as u64 });
        let at = log.bytes.borrow().len();
        log.answer(&0u8);
        let taken = inner.send(flow, to, len, &mut |ip_id, frame| {
            log.bytes.borrow_mut()[at] |= FILLED;
            put_number(&mut log.bytes.borrow_mut(), ip_id.into());
            // Where memory refuses halfway, what the buffer held before leaves with the frame.
            frame.fill(0);
            fill(ip_id, frame);
            log.call(&Call::frame(frame));
        });
        if taken {
            log.bytes.borrow_mut()[at] |= TAKEN;
        }
        taken
    }
}

impl<P: LocalPeer> LocalPeer for Witness<'_, P> {
    /// What goes straight asks nothing, so that nothing could be written down.
    type Straight<'a>
        = Nobody
    where
        Self: 'a;

    fn straight(&mut self, _: LinkId, _: Pair) -> Option<Nobody> {
        None
    }

    fn target(&self, link: LinkId, qpn: Qpn) -> Target {
        self.log.call(&Call::Target { link, qpn });
        let target = self.inner.target(link, qpn);
        self.log.answer(&target);
        target
    }

    fn glance(&self, link: LinkId, qpn: Qpn) -> Option<u64> {
        self.log.call(&Call::Glance { link, qpn });
        let glance = self.inner.glance(link, qpn);
        self.log.answer(&glance);
        glance
    }

    fn write(
        &mut self,
        link: LinkId,
        pd: PdId,
        from: Source<'_>,
        target: (PdId, Qpn),
        to: RemoteAddr,
    ) -> Result<(), LocalFault> {
        self.log.call(&Call::Write { link, pd, from: Origin::of(from), target, to });
        let written = self.inner.write(link, pd, from, target, to);
        self.log.answer(&written);
        written
    }

    fn read(
        &mut self,
        link: LinkId,
        pd: PdId,
        into: &[Sge],
        target: (PdId, Qpn),
        from: RemoteAddr,
    ) -> Result<(), LocalFault> {
        self.log.call(&Call::Read { link, pd, into: into.to_vec(), target, from });
        let read = self.inner.read(link, pd, into, target, from);
        self.log.answer(&read);
        read
    }

    fn atomic(
        &mut self,
        link: LinkId,
        target: (PdId, Qpn),
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, LocalFault> {
        self.log.call(&Call::Atomic { link, target, at, op });
        let before = self.inner.atomic(link, target, at, op);
        self.log.answer(&before);
        before
    }

    fn push(&mut self, link: LinkId, pd: PdId, record: &Record, payload: Source<'_>) -> Push {
        let origin = Origin::of(payload);
        self.log.call(&Call::PushRecord { link, pd, record: *record, payload: origin });
        let pushed = self.inner.push(link, pd, record, payload);
        self.log.answer(&pushed);
        pushed
    }

    fn consumed(&self, link: LinkId) -> u64 {
        self.log.call(&Call::Consumed { link });
        let position = self.inner.consumed(link);
        self.log.answer(&position);
        self.log.note_consumed(link, position);
        position
    }

    fn show(&mut self, qpn: Qpn, qp: Option<&PublishedQp>) {
        self.log.call(&Call::Show { qpn, page: qp.copied() });
        self.inner.show(qpn, qp);
    }

    fn show_receives(&mut self, qpn: Qpn, rq_psn: Psn, posted: u32) {
        self.log.call(&Call::ShowReceives { qpn, rq_psn, posted });
        self.inner.show_receives(qpn, rq_psn, posted);
    }

    fn publish(&mut self) {
        self.log.call(&Call::Publish);
        self.inner.publish();
    }

    fn fence(&mut self) {
        self.log.call(&Call::Fence);
        self.inner.fence();
    }
}

impl<A: Arrived> Arrived for Witness<'_, A> {
    fn copy_to(&mut self, pd: PdId, offset: u32, sge: &Sge) -> Result<(), LocalFault> {
        self.log.call(&Call::CopyTo { pd, offset, sge: *sge });
        let copied = self.inner.copy_to(pd, offset, sge);
        self.log.answer(&copied);
        copied
    }

    fn is_borrowed(&self) -> bool {
        self.log.call(&Call::IsBorrowed);
        let is_borrowed = self.inner.is_borrowed();
        self.log.answer(&is_borrowed);
        is_borrowed
    }
}
