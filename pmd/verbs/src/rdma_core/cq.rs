//! Completion queues: polled straight from the device's driver, without a call of the kernel.

use ::core::ffi::c_int;
use ::core::mem::MaybeUninit;
use std::io;
use std::rc::Rc;

use arrayvec::ArrayVec;
use pmd_roce::engine::Refusal;
use pmd_roce::ids::{CqId, Qpn, Rkey, WrId};
use pmd_roce::transition::Cause;
use pmd_roce::work::{Completion, Imm, WcOpcode, WcStatus};

use super::abi::{PollCq, ReqNotifyCq, ibv_cq, ibv_wc};
use super::core::{Core, put, told};
use super::library::Owned;
use super::nic::refusal;
use super::qp::QueuePair;
use super::srq::SharedQueue;
use crate::cq::CreateCqError;
use crate::soft::{Armed, Bell};

/// Completions taken from the driver at a time.
const BATCH: usize = 32;

/// A completion queue.
#[derive(Debug)]
pub(super) struct Queue {
    raw: Owned<ibv_cq>,
    poll_cq: PollCq,
    req_notify_cq: ReqNotifyCq,
    /// Seen when looking whether there is one.
    seen: Option<Completion>,
    /// Number and place of the queue pair of the last completion: most often of the next, too.
    last: (u32, u32),
    armed: bool,
    fired: bool,
    bell: Option<Rc<Bell>>,
    overrun: bool,
}

impl Queue {
    pub(super) const fn raw(&self) -> *mut ibv_cq {
        self.raw.get()
    }

    /// Has the channel told of the next completion.
    pub(super) fn notify(&self, solicited_only: bool) {
        // SAFETY: the queue is alive.
        let status = unsafe { (self.req_notify_cq)(self.raw.get(), solicited_only.into()) };
        debug_assert_eq!(status, 0, "a queue with a channel can be armed");
    }

    /// What the driver has, up to the room that there is.
    #[inline]
    fn poll<'a>(&mut self, room: &'a mut [MaybeUninit<ibv_wc>]) -> &'a [ibv_wc] {
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a batch")]
        let want = room.len() as c_int;
        // SAFETY: the queue is alive, and there is room for as many as are asked for.
        let got = unsafe { (self.poll_cq)(self.raw.get(), want, room.as_mut_ptr().cast()) };
        let Ok(got) = usize::try_from(got) else {
            self.overrun = true;
            return &[];
        };
        // SAFETY: the driver has written as many as it says, from the first on.
        unsafe { ::core::slice::from_raw_parts(room.as_ptr().cast(), got.min(room.len())) }
    }
}

/// Where requests are in the book that are completed.
struct Books<'a> {
    cq: CqId,
    qps: &'a mut [Option<QueuePair>],
    numbers: &'a [(u32, u32)],
    srqs: &'a mut [Option<SharedQueue>],
}

impl Books<'_> {
    /// Enters a completion, and says it in the words of this crate.
    #[inline]
    fn enter(&mut self, last: &mut (u32, u32), wc: &ibv_wc) -> Completion {
        if wc.qp_num != last.0 {
            let found = self.numbers.binary_search_by_key(&wc.qp_num, |(number, _)| *number);
            let Ok(at) = found else { return plain(wc, WcOpcode::Send) };
            *last = self.numbers[at];
        }
        let Some(Some(qp)) = self.qps.get_mut(last.1 as usize) else {
            return plain(wc, WcOpcode::Send);
        };
        if wc.status != WcStatus::Success as c_int {
            return failed(self.cq, qp, self.srqs, wc);
        }
        let opcode = opcode(wc.opcode);
        if matches!(opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm) {
            received(qp, self.srqs);
        } else {
            qp.sends.succeeded();
        }
        plain(wc, opcode)
    }
}

#[inline]
fn received(qp: &mut QueuePair, srqs: &mut [Option<SharedQueue>]) {
    let Some(srqn) = qp.init.srq else {
        qp.recv_done = qp.recv_done.wrapping_add(1);
        return;
    };
    if let Some(Some(srq)) = srqs.get_mut(srqn.0 as usize) {
        srq.taken = srq.taken.wrapping_add(1);
    }
}

/// A failed one says only which request it was and of which queue pair: what that was, the book knows.
#[cold]
fn failed(
    cq: CqId,
    qp: &mut QueuePair,
    srqs: &mut [Option<SharedQueue>],
    wc: &ibv_wc,
) -> Completion {
    let status = status(wc.status);
    let sends_here = qp.init.send_cq == cq;
    let receives_here = qp.init.recv_cq == cq;
    let sent = if sends_here { qp.sends.failed(wc.wr_id) } else { None };
    let opcode = match sent {
        Some(opcode) => opcode,
        None if receives_here => {
            received(qp, srqs);
            WcOpcode::Recv
        }
        None => WcOpcode::Send,
    };
    if status != WcStatus::WrFlush {
        let cause = if sent.is_some() { Cause::Send(status) } else { Cause::Receive(status) };
        qp.fell.get_or_insert(cause);
    }
    let named = Completion::new(opcode, 0).of(WrId(wc.wr_id), Qpn::new(wc.qp_num));
    named.with_status(status)
}

#[inline]
fn plain(wc: &ibv_wc, opcode: WcOpcode) -> Completion {
    let done = Completion::new(opcode, wc.byte_len).of(WrId(wc.wr_id), Qpn::new(wc.qp_num));
    if wc.wc_flags == 0 && wc.status == 0 { done } else { special(wc, done) }
}

#[inline(never)]
fn special(wc: &ibv_wc, mut done: Completion) -> Completion {
    if wc.wc_flags & WITH_IMM != 0 {
        done = done.with_imm(Some(Imm(wc.imm_data.to_ne_bytes())));
    } else if wc.wc_flags & WITH_INV != 0 {
        done = done.with_invalidated(Rkey(wc.imm_data));
    }
    if wc.wc_flags & GRH != 0 {
        done = done.with_grh(Qpn::new(wc.src_qp));
    }
    done.with_status(status(wc.status))
}

/// `IBV_WC_GRH`, `IBV_WC_WITH_IMM` and `IBV_WC_WITH_INV`.
const GRH: u32 = 1;
const WITH_IMM: u32 = 2;
const WITH_INV: u32 = 8;

/// `enum ibv_wc_opcode`.
#[inline]
const fn opcode(number: c_int) -> WcOpcode {
    match number {
        1 => WcOpcode::Write,
        2 => WcOpcode::Read,
        3 => WcOpcode::CompareSwap,
        4 => WcOpcode::FetchAdd,
        5 => WcOpcode::BindWindow,
        6 => WcOpcode::LocalInvalidate,
        128 => WcOpcode::Recv,
        129 => WcOpcode::RecvWriteImm,
        _ => WcOpcode::Send,
    }
}

/// `enum ibv_wc_status`; what is not known is a general error.
const fn status(number: c_int) -> WcStatus {
    match number {
        0 => WcStatus::Success,
        1 => WcStatus::LocLen,
        2 => WcStatus::LocQpOp,
        4 => WcStatus::LocProt,
        5 => WcStatus::WrFlush,
        6 => WcStatus::MwBind,
        7 => WcStatus::BadResp,
        8 => WcStatus::LocAccess,
        9 => WcStatus::RemInvReq,
        10 => WcStatus::RemAccess,
        11 => WcStatus::RemOp,
        12 => WcStatus::RetryExc,
        13 => WcStatus::RnrRetryExc,
        16 => WcStatus::RemAbort,
        19 => WcStatus::Fatal,
        _ => WcStatus::General,
    }
}

impl Core {
    pub(crate) fn create_cq(&mut self, depth: u32) -> Result<CqId, CreateCqError> {
        let refused =
            |error: &io::Error| -> CreateCqError { refusal("ibv_create_cq", error).into() };
        let context = self.open.context.get();
        let channel = self.channel.get();
        let depth =
            c_int::try_from(depth).map_err(|_| refused(&io::ErrorKind::InvalidInput.into()))?;
        let none = ::core::ptr::null_mut();
        // SAFETY: context and channel are alive, and device channel 0 is always there.
        let raw = unsafe { (self.library.ibv_create_cq)(context, depth, none, channel, 0) };
        // SAFETY: it was made just now.
        let raw = unsafe { Owned::new(raw, self.library.ibv_destroy_cq) };
        let raw = raw.map_err(|error| refused(&error))?;
        let ops = &self.open.context.fields().ops;
        let queue = Queue {
            raw,
            poll_cq: ops.poll_cq,
            req_notify_cq: ops.req_notify_cq,
            seen: None,
            last: (u32::MAX, 0),
            armed: false,
            fired: false,
            bell: None,
            overrun: false,
        };
        Ok(CqId(put(&mut self.cqs, queue)))
    }

    pub(crate) fn destroy_cq(&mut self, cq: CqId) {
        // What it told of and nobody heard keeps it from ending.
        self.hear();
        if let Some(slot) = self.cqs.get_mut(cq.0 as usize) {
            *slot = None;
        }
    }

    pub(super) fn queue(&mut self, cq: CqId) -> Option<&mut Queue> {
        self.cqs.get_mut(cq.0 as usize)?.as_mut()
    }

    /// The queue itself, for calls.
    pub(super) fn raw_cq(&self, cq: CqId) -> Option<*mut ibv_cq> {
        Some(self.cqs.get(cq.0 as usize)?.as_ref()?.raw())
    }

    /// Takes up to `room` completions, oldest first, as far as they fit.
    #[inline]
    pub(crate) fn take<const N: usize>(
        &mut self,
        cq: CqId,
        room: usize,
        into: &mut ArrayVec<Completion, N>,
    ) {
        let Self { cqs, qps, numbers, srqs, .. } = self;
        let Some(Some(queue)) = cqs.get_mut(cq.0 as usize) else { return };
        let mut books = Books { cq, qps, numbers, srqs };
        let mut left = room.min(into.remaining_capacity());
        if left > 0
            && let Some(seen) = queue.seen.take()
        {
            into.push(seen);
            left -= 1;
        }
        while left > 0 {
            let want = left.min(BATCH);
            let mut room = [const { MaybeUninit::uninit() }; BATCH];
            let got = queue.poll(&mut room[..want]);
            for wc in got {
                into.push(books.enter(&mut queue.last, wc));
            }
            left -= got.len();
            if got.len() < want {
                return;
            }
        }
    }

    /// Whether there is a completion; it is taken first.
    pub(super) fn peek(&mut self, at: usize) -> bool {
        let cq = CqId(u32::try_from(at).unwrap_or(u32::MAX));
        let mut one = ArrayVec::<Completion, 1>::new();
        self.take(cq, 1, &mut one);
        let Some(queue) = self.queue(cq) else { return false };
        queue.seen = one.pop();
        queue.seen.is_some()
    }

    pub(crate) fn arm(&mut self, cq: CqId, armed: Armed) {
        self.listening = true;
        if let Some(queue) = self.queue(cq) {
            queue.armed = armed != Armed::No;
            if queue.armed {
                queue.notify(armed == Armed::Solicited);
            }
        }
    }

    /// Hears what completion queues have told.
    pub(super) fn hear(&mut self) {
        if !self.listening {
            return;
        }
        while let Some(raw) = told(self.library, &self.channel) {
            let queue = self.cqs.iter_mut().flatten().find(|queue| queue.raw() == raw);
            let Some(queue) = queue.filter(|queue| queue.armed) else { continue };
            (queue.armed, queue.fired) = (false, true);
            if let Some(bell) = &queue.bell {
                bell.ring();
            }
        }
    }

    pub(crate) fn take_fired(&mut self, cq: CqId) -> bool {
        self.hear();
        self.queue(cq).is_some_and(|queue| ::core::mem::take(&mut queue.fired))
    }

    pub(crate) fn attach_bell(&mut self, cq: CqId, bell: &Rc<Bell>) {
        if let Some(queue) = self.queue(cq) {
            queue.bell = Some(Rc::clone(bell));
        }
    }

    pub(crate) fn overrun(&mut self, cq: CqId) {
        if let Some(queue) = self.queue(cq) {
            queue.overrun = true;
        }
    }

    pub(crate) fn is_overrun(&mut self, cq: CqId) -> bool {
        self.queue(cq).is_some_and(|queue| queue.overrun)
    }

    /// A device does not tell.
    pub(crate) const fn waiting(&self, _: CqId) -> Option<u64> {
        None
    }
}

impl From<Refusal> for CreateCqError {
    fn from(refusal: Refusal) -> Self {
        Self::Driver(refusal)
    }
}
