//! An engine's surroundings as they are on record: they answer what was answered then, and notice the first
//! thing that was not asked then.

use core::cell::RefCell;
use std::collections::BTreeMap;

use pmd_roce::ids::{CqId, LinkId, PdId, Psn, Qpn, Rkey};
use pmd_roce::local::{
    Arrived, LocalFault, LocalPeer, Nobody, Pair, PublishedQp, Push, Record, Source, Target,
};
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::sink::{CqSink, Flow, TxSink};
use pmd_roce::work::{Access, Completion, CqOverrun, RemoteAddr, Sge, WindowBind};

use crate::call::Call;
use crate::pack::{Cursor, Damaged, Pack};
use crate::vocabulary::{Finished, Origin, Sum};
use crate::witness::{FILLED, TAKEN};

/// What is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) recorded: String,
    pub(crate) now: String,
}

/// Why an input is not played to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    Other(Other),
    Damaged(Damaged),
}

/// What was on record behind an input, as far as it was not asked for yet.
#[derive(Debug)]
struct State<'a> {
    left: Cursor<'a>,
    broken: Option<Break>,
    scratch: Vec<u8>,
    frame: Vec<u8>,
    outputs: u64,
    frames: u64,
    /// Completions by status.
    statuses: BTreeMap<u8, u64>,
}

/// The surroundings during one input.
#[derive(Debug)]
pub(crate) struct Script<'a>(RefCell<State<'a>>);

/// What came of an input that was played.
#[derive(Debug)]
pub(crate) struct Played<'a> {
    pub(crate) left: Cursor<'a>,
    pub(crate) broken: Option<Break>,
    pub(crate) outputs: u64,
    pub(crate) frames: u64,
    pub(crate) statuses: BTreeMap<u8, u64>,
}

impl<'a> Script<'a> {
    pub(crate) const fn new(calls: Cursor<'a>) -> Self {
        Self(RefCell::new(State {
            left: calls,
            broken: None,
            scratch: Vec::new(),
            frame: Vec::new(),
            outputs: 0,
            frames: 0,
            statuses: BTreeMap::new(),
        }))
    }

    /// Somebody of the surroundings.
    pub(crate) const fn role(&self) -> Role<'_, 'a> {
        Role(self)
    }

    /// Ends the input: nothing more may be on record.
    pub(crate) fn finish(self) -> Played<'a> {
        self.ask(&Call::Done);
        let State { left, broken, outputs, frames, statuses, .. } = self.0.into_inner();
        Played { left, broken, outputs, frames, statuses }
    }

    /// Whether this is what happened next.
    fn ask(&self, call: &Call) -> bool {
        let State { left, broken, scratch, outputs, frames, statuses, .. } =
            &mut *self.0.borrow_mut();
        if broken.is_some() {
            return false;
        }
        scratch.clear();
        call.put(scratch);
        if let Some(rest) = left.0.strip_prefix(scratch.as_slice()) {
            *left = Cursor(rest);
            *outputs += u64::from(call.is_output());
            match call {
                Call::Frame { .. } => *frames += 1,
                Call::Push { completion, .. } => {
                    *statuses.entry(completion.status).or_default() += 1;
                }
                _ => {}
            }
            return true;
        }
        *broken = Some(match Call::take(left) {
            Ok(recorded) => {
                Break::Other(Other { recorded: recorded.to_string(), now: call.to_string() })
            }
            Err(damaged) => Break::Damaged(damaged),
        });
        false
    }

    fn read<T>(&self, read: impl FnOnce(&mut Cursor<'a>) -> Result<T, Damaged>) -> Option<T> {
        let State { left, broken, .. } = &mut *self.0.borrow_mut();
        match read(left) {
            Ok(value) => Some(value),
            Err(damaged) => {
                *broken = Some(Break::Damaged(damaged));
                None
            }
        }
    }

    /// What was answered, if this is what was asked.
    fn answer<T: Pack>(&self, call: &Call) -> Option<T> {
        if self.ask(call) { self.read(T::take) } else { None }
    }

    /// The same of bytes whose count the call says.
    fn answer_bytes(&self, call: &Call, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.answer::<Result<(), MemoryFault>>(call).unwrap_or(FAULT)?;
        let bytes = self.read(|left| left.slice(into.len())).ok_or(MemoryFault::UnknownKey)?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

/// What is answered to whom nothing was answered then.
const FAULT: Result<(), MemoryFault> = Err(MemoryFault::UnknownKey);

/// Memory, completion queues, the wire, peers or a record that arrived: whatever is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role<'s, 'a>(&'s Script<'a>);

impl Memory for Role<'_, '_> {
    fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), MemoryFault> {
        self.0.answer(&Call::CheckLocal { pd, sge: *sge, write }).unwrap_or(FAULT)
    }

    fn gather(&self, pd: PdId, sge: &Sge, offset: u32, into: &mut [u8]) -> Result<(), MemoryFault> {
        let call = Call::Gather { pd, sge: *sge, offset, len: into.len() as u64 };
        self.0.answer_bytes(&call, into)
    }

    fn scatter(
        &mut self,
        pd: PdId,
        sge: &Sge,
        offset: u32,
        from: &[u8],
    ) -> Result<(), MemoryFault> {
        let call = Call::Scatter { pd, sge: *sge, offset, from: Sum::of(from) };
        self.0.answer(&call).unwrap_or(FAULT)
    }

    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(), MemoryFault> {
        self.0.answer(&Call::CheckRemote { by, at, len, rights }).unwrap_or(FAULT)
    }

    fn read_remote(&self, by: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.0.answer_bytes(&Call::ReadRemote { by, at, len: into.len() as u64 }, into)
    }

    fn write_remote(&mut self, by: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault> {
        self.0.answer(&Call::WriteRemote { by, at, from: Sum::of(from) }).unwrap_or(FAULT)
    }

    fn atomic_remote(
        &mut self,
        by: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        let before = self.0.answer(&Call::AtomicRemote { by, at, op });
        before.unwrap_or(Err(MemoryFault::UnknownKey))
    }

    fn invalidate(&mut self, by: Asker, key: Rkey) -> Result<(), MemoryFault> {
        self.0.answer(&Call::Invalidate { by, key }).unwrap_or(FAULT)
    }

    fn bind(&mut self, by: Asker, bind: &WindowBind) -> Result<(), MemoryFault> {
        self.0.answer(&Call::Bind { by, bind: *bind }).unwrap_or(FAULT)
    }
}

impl CqSink for Role<'_, '_> {
    fn push(&mut self, cq: CqId, completion: Completion) -> Result<(), CqOverrun> {
        let call = Call::Push { cq, completion: Finished::of(&completion) };
        // Where nothing is known of it, it is taken: nobody shall fail by that.
        if self.0.answer(&call).unwrap_or(true) { Ok(()) } else { Err(CqOverrun) }
    }
}

impl TxSink for Role<'_, '_> {
    fn send(
        &mut self,
        flow: &Flow,
        to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool {
        let call = Call::Send { flow: *flow, to, len: len as u64 };
        let Some(answer) = self.0.answer::<u8>(&call) else { return false };
        if answer & FILLED != 0 {
            let Some(ip_id) = self.0.read(u16::take) else { return false };
            let mut frame = core::mem::take(&mut self.0.0.borrow_mut().frame);
            frame.clear();
            frame.resize(len, 0);
            fill(ip_id, &mut frame);
            self.0.ask(&Call::frame(&frame));
            self.0.0.borrow_mut().frame = frame;
        }
        answer & TAKEN != 0
    }
}

impl LocalPeer for Role<'_, '_> {
    type Straight<'a>
        = Nobody
    where
        Self: 'a;

    fn straight(&mut self, _: LinkId, _: Pair) -> Option<Nobody> {
        None
    }

    fn target(&self, link: LinkId, qpn: Qpn) -> Target {
        self.0.answer(&Call::Target { link, qpn }).unwrap_or(Target::Gone)
    }

    fn glance(&self, link: LinkId, qpn: Qpn) -> Option<u64> {
        self.0.answer(&Call::Glance { link, qpn }).flatten()
    }

    fn write(
        &mut self,
        link: LinkId,
        pd: PdId,
        from: Source<'_>,
        target: (PdId, Qpn),
        to: RemoteAddr,
    ) -> Result<(), LocalFault> {
        let call = Call::Write { link, pd, from: Origin::of(from), target, to };
        self.0.answer(&call).unwrap_or(Err(LocalFault::Gone))
    }

    fn read(
        &mut self,
        link: LinkId,
        pd: PdId,
        into: &[Sge],
        target: (PdId, Qpn),
        from: RemoteAddr,
    ) -> Result<(), LocalFault> {
        let call = Call::Read { link, pd, into: into.to_vec(), target, from };
        self.0.answer(&call).unwrap_or(Err(LocalFault::Gone))
    }

    fn atomic(
        &mut self,
        link: LinkId,
        target: (PdId, Qpn),
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, LocalFault> {
        let call = Call::Atomic { link, target, at, op };
        self.0.answer(&call).unwrap_or(Err(LocalFault::Gone))
    }

    fn push(&mut self, link: LinkId, pd: PdId, record: &Record, payload: Source<'_>) -> Push {
        let payload = Origin::of(payload);
        let call = Call::PushRecord { link, pd, record: *record, payload };
        self.0.answer(&call).unwrap_or(Push::Gone)
    }

    fn consumed(&self, link: LinkId) -> u64 {
        self.0.answer(&Call::Consumed { link }).unwrap_or(0)
    }

    fn show(&mut self, qpn: Qpn, qp: Option<&PublishedQp>) {
        self.0.ask(&Call::Show { qpn, page: qp.copied() });
    }

    fn show_receives(&mut self, qpn: Qpn, rq_psn: Psn, posted: u32) {
        self.0.ask(&Call::ShowReceives { qpn, rq_psn, posted });
    }

    fn publish(&mut self) {
        self.0.ask(&Call::Publish);
    }

    fn fence(&mut self) {
        self.0.ask(&Call::Fence);
    }
}

impl Arrived for Role<'_, '_> {
    fn copy_to(&mut self, pd: PdId, offset: u32, sge: &Sge) -> Result<(), LocalFault> {
        let call = Call::CopyTo { pd, offset, sge: *sge };
        self.0.answer(&call).unwrap_or(Err(LocalFault::Gone))
    }

    fn is_borrowed(&self) -> bool {
        self.0.answer(&Call::IsBorrowed).unwrap_or(false)
    }
}
