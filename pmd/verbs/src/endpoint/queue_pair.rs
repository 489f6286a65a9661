//! [`Endpoint`] over a connected verbs queue pair.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use pmd_ledger::{
    Account, AdmitError, Cause, Depths, EventKind, Flushes, Identity, Replay, Side, State, Status,
    Submission, Ticket,
};
use pmd_mem::Region;
use pmd_observe::journal::By;
use pmd_observe::why::{End, Request};
use pmd_roce::engine::{PostRecvError, PostSendError};
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Qpn, Rkey, WrId};
use pmd_roce::qp::attr::{QpAttr, QpCap};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::work::{
    Access, Completion, Data, Imm, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcOpcode,
    WcStatus,
};

use super::meeting::Meeting;
use super::options::EndpointOptions;
use super::{
    Caps, ConnectError, Endpoint, EndpointEvent, Local, LocalKey, MemoryError, Op, Outcome,
    Reconnect, Remote, RemoteKey, RemoteRef, Rights, Settled, StatusDetail, SubmitError, Token,
};
use crate::connect::{Hello, Speaker};
use crate::context::Context;
use crate::cq::Cq;
use crate::evidence::failed_request;
use crate::gid::{GidPair, SourceGid};
use crate::mr::Mr;
use crate::pd::Pd;
use crate::provider::{Provider, QpAt};
use crate::qp::{Qp, QpOptions};
use crate::transport::{Rc, Uc};

/// Completions taken from the queue at a time.
const BATCH: usize = 32;
/// Events that evidence names.
const EVENTS: usize = 8;
/// Bytes of a reference to exported memory: address, key, length.
const REFERENCE: usize = 20;

/// The queue pair, whichever of the services it has.
#[derive(Debug)]
pub(crate) enum Held {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
}

impl Held {
    pub(crate) fn number(&self) -> Qpn {
        match self {
            Self::Rc(qp) => qp.number(),
            Self::Uc(qp) => qp.number(),
        }
    }

    #[inline]
    fn at(&self) -> QpAt {
        match self {
            Self::Rc(qp) => qp.at(),
            Self::Uc(qp) => qp.at(),
        }
    }

    pub(crate) fn state(&self) -> QpState {
        match self {
            Self::Rc(qp) => qp.state(),
            Self::Uc(qp) => qp.state(),
        }
    }

    pub(crate) fn modify(&self, by: By, attr: &QpAttr, mask: AttrMask) -> Result<(), ConnectError> {
        let modified = match self {
            Self::Rc(qp) => qp.modify_by(by, attr, mask),
            Self::Uc(qp) => qp.modify_by(by, attr, mask),
        };
        modified.map_err(|e| ConnectError::Device(e.to_string()))
    }

    /// A queue pair whose requests all complete to one queue.
    pub(super) fn create(
        pd: &Pd,
        cq: &Cq,
        options: &EndpointOptions,
    ) -> Result<Self, ConnectError> {
        let cap = QpCap {
            max_send_wr: options.depth,
            max_recv_wr: options.recv_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: options.inline,
        };
        let create =
            QpOptions { send_cq: cq, recv_cq: cq, srq: None, xrcd: None, cap, signal_all: true };
        let created = match options.transport {
            Transport::Rc => pd.create_qp(&create).map(Self::Rc),
            Transport::Uc => pd.create_qp(&create).map(Self::Uc),
            other => {
                let text = format!("an endpoint is RC or UC, not {other}");
                return Err(ConnectError::Device(text));
            }
        };
        created.map_err(|error| ConnectError::Device(error.to_string()))
    }
}

/// What the peer exported.
#[derive(Clone, Copy, Debug)]
struct Imported {
    addr: u64,
    rkey: Rkey,
    len: u64,
}

/// One connection of a verbs device.
#[derive(Debug)]
pub struct QueuePairEndpoint {
    pub(super) cx: Context,
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(crate) qp: Held,
    pub(super) options: EndpointOptions,
    /// What this side last told the peer about itself.
    pub(super) hello: Hello,
    /// Which process the peer is, once it was met.
    pub(super) peer: Option<Speaker>,
    /// Where the peer was met last.
    pub(super) remote: Option<SourceGid>,
    caps: Caps,
    /// What is in flight: no more than the depth, whatever the queues have room for, so that the completion queue holds
    /// what can complete.
    pub(super) account: Account,
    /// What ended without a completion, until somebody polls.
    pub(super) ended: VecDeque<Settled>,
    /// Registered for local use, by [`LocalKey`].
    pub(super) local: Vec<Mr>,
    /// Registered for the peer; kept for the life of the connection.
    exported: Vec<Mr>,
    imported: Vec<Imported>,
    pub(super) failed: Option<String>,
    /// Of what failed, the first request.
    pub(super) first_failure: Option<Request>,
    /// Names of the first events, for evidence.
    events: ArrayVec<&'static str, EVENTS>,
    device_failed: bool,
    closed: bool,
    pub(super) path: &'static str,
    /// Its connection at the connection manager, which ends with it.
    pub(super) meeting: Option<Meeting>,
}

impl QueuePairEndpoint {
    pub(crate) fn create(cx: &Context, options: &EndpointOptions) -> Result<Self, ConnectError> {
        let pd = cx.alloc_pd();
        let cq_depth = options.cq_depth.unwrap_or(options.depth + options.recv_depth);
        let cq = cx.create_cq(cq_depth).map_err(|e| ConnectError::Device(e.to_string()))?;
        let qp = Held::create(&pd, &cq, options)?;
        let reliable = options.transport == Transport::Rc;
        let caps = Caps {
            write: true,
            read: reliable,
            atomics: reliable,
            max_message: cx.device().max_message(),
            depth: options.depth,
            recv_depth: options.recv_depth,
            inline: options.inline,
            status: StatusDetail::Exact,
        };
        let hello = Self::introduce(cx, options, qp.number());
        let depths = Depths { send: options.depth, recv: options.recv_depth };
        // Its completion queue is its own, so that no ticket of another account can appear in it. Retries bound how long
        // the device takes.
        let account = Account::new(0, identity(cx, &qp, &cq), depths, None);
        Ok(Self {
            cx: cx.clone(),
            pd,
            cq,
            qp,
            options: *options,
            hello,
            peer: None,
            remote: None,
            caps,
            account,
            ended: VecDeque::new(),
            local: Vec::new(),
            exported: Vec::new(),
            imported: Vec::new(),
            failed: None,
            first_failure: None,
            events: ArrayVec::new(),
            device_failed: false,
            closed: false,
            path: "none",
            meeting: None,
        })
    }

    pub(super) fn identity(&self) -> Identity {
        identity(&self.cx, &self.qp, &self.cq)
    }

    pub(crate) fn connected(&mut self, shares_memory: bool) {
        self.path = if shares_memory { "local" } else { "packet" };
    }

    /// From here on the peer can send. Whoever has receives and posted none will have it wait, or fail.
    pub(super) fn warn_without_receives(&self) {
        let posted = self.account.balance(Side::Recv).in_flight;
        if posted == 0 && self.options.recv_depth > 0 {
            tracing::warn!(
                "queue pair {} can be reached, and has no receive posted: messages wait (RNR) until there is one; post receives before connecting",
                self.qp.number()
            );
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.cx.device().now().0
    }

    /// Closes admission, and fails what is in flight: when its completions have come, or now where none can.
    pub(super) fn fail(&mut self, cause: Cause, flushes: Flushes) {
        let now = self.now();
        let ended = &mut self.ended;
        self.account.fail(now, cause, flushes, |end| ended.push_back(flushed(&end)));
    }

    fn sge(&self, local: Local) -> Result<Sge, SubmitError> {
        let mr = self.local.get(local.key.0 as usize).ok_or(SubmitError::OutOfRange)?;
        let end = local.offset.checked_add(u64::from(local.len)).ok_or(SubmitError::OutOfRange)?;
        if end > mr.len() {
            Err(SubmitError::OutOfRange)
        } else {
            Ok(mr.sge(local.offset, local.len))
        }
    }

    fn remote(&self, remote: Remote, len: u32) -> Result<RemoteAddr, SubmitError> {
        let imported = self.imported.get(remote.key.0 as usize).ok_or(SubmitError::OutOfRange)?;
        let end = remote.offset.checked_add(u64::from(len)).ok_or(SubmitError::OutOfRange)?;
        if end > imported.len {
            return Err(SubmitError::OutOfRange);
        }
        Ok(RemoteAddr { addr: imported.addr.wrapping_add(remote.offset), rkey: imported.rkey })
    }

    // In line, so that a request is put together where it is posted from.
    #[inline(always)]
    fn post_send(
        &mut self,
        op: SendOp,
        data: Data<'_>,
        token: Token,
        replay: Replay,
    ) -> Result<(), SubmitError> {
        let submission = Submission { replay, ..Submission::one(token.0) };
        let ticket = self.account.admit(Side::Send, submission).map_err(refusal)?;
        let wr = SendWr {
            wr_id: WrId(ticket.0),
            op,
            data,
            flags: SendFlags::SIGNALED,
            to: None,
            srqn: None,
        };
        let qp = self.qp.at();
        let posted = self.cx.with(|core| core.post_send(qp, &wr));
        match posted {
            Ok(()) => Ok(()),
            Err(error) => Err(self.not_sent(ticket, error)),
        }
    }

    #[cold]
    fn not_sent(&mut self, ticket: Ticket, error: PostSendError) -> SubmitError {
        self.account.withdraw(ticket);
        match error {
            PostSendError::Full => SubmitError::Full,
            PostSendError::NotReady(_)
            | PostSendError::NoSuchQp(_)
            | PostSendError::DeviceFatal => SubmitError::Degraded,
            PostSendError::InlineTooLong { max } => SubmitError::TooLong { max },
            PostSendError::TooLong { max, .. } => SubmitError::TooLong { max },
            PostSendError::Operation(what) | PostSendError::Destination(what) => {
                SubmitError::Unsupported(what)
            }
            PostSendError::Driver(refusal) => {
                tracing::warn!("{refusal}");
                SubmitError::Unsupported("the device refuses it")
            }
            PostSendError::TooManySges { .. } => SubmitError::Unsupported("more than one element"),
        }
    }

    fn post_recv(&mut self, into: Local, token: Token) -> Result<(), SubmitError> {
        let sge = self.sge(into)?;
        let submission = Submission { replay: Replay::Again, ..Submission::one(token.0) };
        let ticket = self.account.admit(Side::Recv, submission).map_err(refusal)?;
        let wr = RecvWr { wr_id: WrId(ticket.0), sges: &[sge] };
        let qp = self.qp.at();
        let posted = self.cx.with(|core| core.post_recv(qp, &wr));
        posted.map_err(|error| {
            self.account.withdraw(ticket);
            match error {
                PostRecvError::Full => SubmitError::Full,
                PostRecvError::NotReady(_)
                | PostRecvError::NoSuchQp(_)
                | PostRecvError::DeviceFatal => SubmitError::Degraded,
                _ => SubmitError::Unsupported("receives on this queue pair"),
            }
        })
    }

    /// Takes completions, and returns how many of them were somebody's: one that nothing in flight waits for is late, and
    /// changes nothing. All that is submitted is signalled, so that a completion settles its own submission alone.
    #[inline(always)]
    fn settle(&mut self, mut completions: &[Completion], sink: &mut dyn FnMut(Settled)) -> usize {
        let mut count = 0;
        while let Some(first) = completions.first() {
            let row = self.account.settle_row(completions, ticket, |completion, token| {
                let is_success = completion.status == WcStatus::Success;
                if is_success {
                    sink(done(completion, token));
                }
                is_success
            });
            count += row;
            if row == 0 {
                count += usize::from(self.settle_one(first, sink));
            }
            completions = &completions[row.max(1)..];
        }
        count
    }

    /// Takes a completion that is not the next one's, or of a queue that is not as usual.
    #[cold]
    fn settle_one(&mut self, completion: &Completion, sink: &mut dyn FnMut(Settled)) -> bool {
        if completion.status != WcStatus::Success {
            return self.settle_failed(completion, sink);
        }
        self.account.settle(ticket(completion), Status::SUCCESS, |end| {
            sink(done(completion, end.token));
        })
    }

    fn settle_failed(&mut self, completion: &Completion, sink: &mut dyn FnMut(Settled)) -> bool {
        let (ticket, status) = (ticket(completion), completion.status);
        if self.account.record(ticket).is_none() {
            return false;
        }
        let outcome = self.failure(completion, status);
        self.account.settle(ticket, Status(status as u8), |end| {
            let (token, replay) = (Token(end.token), end.replay);
            sink(Settled { token, outcome, len: completion.byte_len, imm: None, replay });
        })
    }

    /// Something failed: nothing more is taken, before anybody hears of it.
    fn failure(&mut self, completion: &Completion, status: WcStatus) -> Outcome {
        let drain = self.cx.device().switches().drain_ns;
        if self.qp.state() == QpState::Sqe {
            self.account.hold(Side::Send);
        } else {
            self.fail(Cause::Completion(Status(status as u8)), Flushes::Within(drain));
        }
        if status == WcStatus::WrFlush {
            return Outcome::Flushed;
        }
        self.failed.get_or_insert_with(|| format!("{:?} failed: {status}", completion.opcode));
        self.first_failure.get_or_insert_with(|| failed_request(completion));
        Outcome::Failed(status)
    }

    /// Reports what ended without a completion.
    #[cold]
    fn settle_rest(&mut self, sink: &mut dyn FnMut(Settled)) -> usize {
        let now = self.now();
        let ended = &mut self.ended;
        self.account.handle_timeout(now, |end| ended.push_back(flushed(&end)));
        let count = ended.len();
        ended.drain(..).for_each(sink);
        count
    }

    /// The next event that concerns this connection.
    fn next_event(&mut self) -> Option<AsyncEvent> {
        if !self.device_failed && self.cx.with(Provider::is_fatal) {
            self.device_failed = true;
            return Some(AsyncEvent::DeviceFatal);
        }
        let (qpn, cq) = (self.qp.number(), self.cq.id());
        let is_ours = |event: &AsyncEvent| match *event {
            AsyncEvent::CqErr(id) => id == cq,
            event => event.qpn() == Some(qpn),
        };
        self.cx.with(|core| core.take_event(&is_ours))
    }
}

fn identity(cx: &Context, qp: &Held, cq: &Cq) -> Identity {
    let (context, qpn, cq) = (cx.lcore(), qp.number().value(), cq.id().0);
    Identity { context, qpn, send_cq: cq, recv_cq: cq, srq: None, wq: None }
}

/// Whose completion it is.
#[inline(always)]
const fn ticket(completion: &Completion) -> Ticket {
    Ticket(completion.wr_id.0)
}

/// A submission that succeeded.
#[inline(always)]
fn done(completion: &Completion, token: u64) -> Settled {
    let received = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
    let imm = if received { completion.imm().map(|imm| imm.0) } else { None };
    let (token, len) = (Token(token), completion.byte_len);
    Settled { token, outcome: Outcome::Done, len, imm, replay: Replay::Never }
}

/// A submission that ended without a completion.
fn flushed(end: &pmd_ledger::Settled) -> Settled {
    let (token, replay) = (Token(end.token), end.replay);
    Settled { token, outcome: Outcome::Flushed, len: 0, imm: None, replay }
}

#[cold]
fn refusal(error: AdmitError) -> SubmitError {
    match error {
        AdmitError::Full | AdmitError::Size { .. } => SubmitError::Full,
        AdmitError::Degraded | AdmitError::Closed(_) | AdmitError::Stale => SubmitError::Degraded,
    }
}

/// What a fatal event means, in words.
fn words(event: AsyncEvent) -> Option<&'static str> {
    Some(match event {
        AsyncEvent::QpFatal(_) => "the queue pair failed on this side",
        AsyncEvent::QpReqErr(_) => "the peer sent a request that this queue pair does not allow",
        AsyncEvent::QpAccessErr(_) => "the peer broke the rights of this side's memory",
        AsyncEvent::CqErr(_) => "the completion queue overran",
        AsyncEvent::DeviceFatal => "the device failed",
        _ => return None,
    })
}

impl Endpoint for QueuePairEndpoint {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<LocalKey, MemoryError> {
        let index = self.local.iter().position(|mr| Arc::ptr_eq(mr.region(), region));
        let index = match index {
            Some(index) => index,
            None => {
                let mr = self.pd.register(region, 0, region.len(), Access::LOCAL_WRITE);
                self.local.push(mr.map_err(|e| MemoryError::Refused(e.to_string()))?);
                self.local.len() - 1
            }
        };
        Ok(LocalKey(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    fn export(
        &mut self,
        key: LocalKey,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteRef, MemoryError> {
        let region = self.local.get(key.0 as usize).ok_or(MemoryError::UnknownKey)?.region();
        let end = offset.saturating_add(len);
        if end > region.len() {
            return Err(MemoryError::OutOfRange { offset, end, region: region.len() });
        }
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::REMOTE_READ, rights.read);
        access.set(Access::REMOTE_WRITE, rights.write);
        access.set(Access::REMOTE_ATOMIC, rights.atomic);
        let mr = self
            .pd
            .register(region, offset, len, access)
            .map_err(|e| MemoryError::Refused(e.to_string()))?;
        let reference =
            [&mr.addr().to_be_bytes()[..], &mr.rkey().0.to_be_bytes(), &len.to_be_bytes()].concat();
        debug_assert_eq!(reference.len(), REFERENCE);
        self.exported.push(mr);
        Ok(RemoteRef(reference.into()))
    }

    fn import(&mut self, bytes: &[u8]) -> Result<RemoteKey, MemoryError> {
        let malformed = |reason| MemoryError::Malformed { kind: "verbs", reason };
        let bytes: &[u8; REFERENCE] =
            bytes.try_into().map_err(|_| malformed("it is not twenty bytes long"))?;
        let (addr, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| malformed("too short"))?;
        let (rkey, len) = rest.split_first_chunk::<4>().ok_or_else(|| malformed("too short"))?;
        let len = len.first_chunk::<8>().ok_or_else(|| malformed("too short"))?;
        self.imported.push(Imported {
            addr: u64::from_be_bytes(*addr),
            rkey: Rkey(u32::from_be_bytes(*rkey)),
            len: u64::from_be_bytes(*len),
        });
        Ok(RemoteKey(u32::try_from(self.imported.len() - 1).unwrap_or(u32::MAX)))
    }

    fn submit(&mut self, op: Op<'_>, token: Token) -> Result<(), SubmitError> {
        use Replay::{Again, Never};
        let send = |imm: Option<[u8; 4]>| imm.map_or(SendOp::Send, |imm| SendOp::SendImm(Imm(imm)));
        let (op, local, replay) = match op {
            Op::Recv { into } => return self.post_recv(into, token),
            // By themselves, so that their requests are put together of constants.
            Op::Send { from, imm: None } => {
                let data = [self.sge(from)?];
                return self.post_send(SendOp::Send, Data::Sges(&data), token, Never);
            }
            Op::Write { from, to, imm: None } => {
                let (to, data) = (self.remote(to, from.len)?, [self.sge(from)?]);
                return self.post_send(SendOp::Write(to), Data::Sges(&data), token, Again);
            }
            Op::SendInline { bytes, imm } => {
                return self.post_send(send(imm), Data::Inline(&[bytes]), token, Never);
            }
            Op::Send { from, imm } => (send(imm), from, Never),
            // It tells the peer, which must not be told twice.
            Op::Write { from, to, imm: Some(imm) } => {
                (SendOp::WriteImm(self.remote(to, from.len)?, Imm(imm)), from, Never)
            }
            Op::Read { into, from } => (SendOp::Read(self.remote(from, into.len)?), into, Again),
            Op::CompareSwap { into, at, compare, swap } => {
                let at = self.remote(at, 8)?;
                (SendOp::CompareSwap { at, compare, swap }, into, Never)
            }
            Op::FetchAdd { into, at, add } => {
                (SendOp::FetchAdd { at: self.remote(at, 8)?, add }, into, Never)
            }
        };
        self.post_send(op, Data::Sges(&[self.sge(local)?]), token, replay)
    }

    fn doorbell(&mut self) {
        // Requests start with the device's next turn; without a loop, that is now.
        self.cx.nudge();
    }

    fn poll(&mut self, sink: &mut dyn FnMut(Settled)) -> usize {
        self.cx.nudge();
        let mut count = 0;
        loop {
            // Copied out first: the sink may use other objects of this lcore.
            let mut batch = ArrayVec::<Completion, BATCH>::new();
            self.cx.with(|core| core.take(self.cq.id(), BATCH, &mut batch));
            count += self.settle(&batch, sink);
            if batch.len() < BATCH {
                break;
            }
        }
        if !matches!(self.account.state(), State::Open) || !self.ended.is_empty() {
            count += self.settle_rest(sink);
        }
        count
    }

    fn in_flight(&self) -> usize {
        usize::try_from(self.account.balance(Side::Send).in_flight).unwrap_or(usize::MAX)
    }

    fn event(&mut self) -> Option<EndpointEvent> {
        let switches = self.cx.device().switches();
        if !switches.events || self.closed {
            return None;
        }
        loop {
            let event = self.next_event()?;
            let Some(why) = words(event) else { continue };
            if !self.events.is_full() {
                self.events.push(event.name());
            }
            let Identity { context, qpn, send_cq, .. } = *self.account.identity();
            let on = if matches!(event, AsyncEvent::CqErr(_)) { send_cq } else { qpn };
            let kind = EventKind::from_number(event.number());
            let event = pmd_ledger::Event { context, kind, on };
            let now = self.now();
            let ended = &mut self.ended;
            let push = |end: pmd_ledger::Settled| ended.push_back(flushed(&end));
            if self.account.handle_event(now, &event, switches, push).is_none() {
                tracing::warn!(
                    "{kind} on queue pair {qpn:#x}: {why}; no work fails by events here"
                );
                continue;
            }
            self.failed.get_or_insert_with(|| why.into());
            return Some(EndpointEvent::Failed(why));
        }
    }

    fn close(&mut self) {
        // Events come first: nobody is told of the end of what is being taken down.
        self.closed = true;
        self.failed.get_or_insert_with(|| "closed".into());
        let drain = self.cx.device().switches().drain_ns;
        if self.qp.state() == QpState::Reset {
            // From there no completion comes, and no way leads to Error.
            self.fail(Cause::Closed, Flushes::Never);
            return;
        }
        self.fail(Cause::Closed, Flushes::Within(drain));
        if let Err(error) = self.qp.modify(By::Close, &QpAttr::new(QpState::Error), AttrMask::STATE)
        {
            // The device is gone, or refuses: nothing of it completes any more.
            tracing::debug!("closing {}: {error}", self.qp.number());
            self.fail(Cause::Closed, Flushes::Never);
        }
    }

    fn reconnect(&mut self) -> Option<&mut dyn Reconnect> {
        (!self.device_failed && !self.closed).then_some(self)
    }

    fn evidence(&self) -> End {
        let status = self.first_failure.as_ref().map(|request| request.status);
        let events = self.events.iter().map(|name| (*name).to_owned()).collect();
        End { status, events, ..self.cx.evidence(self.qp.number()) }
    }

    fn first_failure(&self) -> Option<Request> {
        self.first_failure.clone()
    }

    fn failure(&self) -> Option<String> {
        self.failed.clone()
    }

    fn path(&self) -> &'static str {
        self.path
    }

    fn gids(&self) -> Option<GidPair> {
        Some(GidPair { local: self.hello.source(), remote: self.remote? })
    }
}
