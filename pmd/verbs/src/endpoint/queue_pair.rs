//! [`Endpoint`] over a connected verbs queue pair.

use std::sync::Arc;

use arrayvec::ArrayVec;
use pmd_mem::Region;
use pmd_observe::journal::By;
use pmd_roce::engine::{Outstanding, PostRecvError, PostSendError};
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Qpn, Rkey, WrId};
use pmd_roce::qp::attr::{QpAttr, QpCap};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::work::{
    Access, Completion, Data, Imm, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcOpcode,
    WcStatus,
};

use super::options::EndpointOptions;
use super::{
    Caps, ConnectError, Endpoint, EndpointEvent, Local, LocalKey, MemoryError, Op, Outcome, Remote,
    RemoteKey, RemoteRef, Rights, Settled, StatusDetail, SubmitError, Token,
};
use crate::context::Context;
use crate::cq::Cq;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::{Qp, QpOptions};
use crate::soft::Core;
use crate::transport::{Rc, Uc};

/// Completions taken from the queue at a time.
const BATCH: usize = 32;
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

    pub(crate) fn modify(&self, by: By, attr: &QpAttr, mask: AttrMask) -> Result<(), ConnectError> {
        let modified = match self {
            Self::Rc(qp) => qp.modify_by(by, attr, mask),
            Self::Uc(qp) => qp.modify_by(by, attr, mask),
        };
        modified.map_err(|e| ConnectError::Device(e.to_string()))
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
    cx: Context,
    pd: Pd,
    cq: Cq,
    pub(crate) qp: Held,
    caps: Caps,
    /// Operations that have not been reported: no more than the depth, whatever the queues have room for, so that the
    /// completion queue holds what can complete.
    sends: u32,
    /// The same of receives.
    receives: u32,
    /// Registered for local use, by [`LocalKey`].
    local: Vec<Mr>,
    /// Registered for the peer; kept for the life of the connection.
    exported: Vec<Mr>,
    imported: Vec<Imported>,
    failed: Option<String>,
    path: &'static str,
}

impl QueuePairEndpoint {
    pub(crate) fn create(cx: &Context, options: &EndpointOptions) -> Result<Self, ConnectError> {
        let device = |e: String| ConnectError::Device(e);
        let pd = cx.alloc_pd();
        let cq_depth = options.cq_depth.unwrap_or(options.depth + options.recv_depth);
        let cq = cx.create_cq(cq_depth).map_err(|e| device(e.to_string()))?;
        let cap = QpCap {
            max_send_wr: options.depth,
            max_recv_wr: options.recv_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: options.inline,
        };
        let create =
            QpOptions { send_cq: &cq, recv_cq: &cq, srq: None, xrcd: None, cap, signal_all: true };
        let qp = match options.transport {
            Transport::Rc => Held::Rc(pd.create_qp(&create).map_err(|e| device(e.to_string()))?),
            Transport::Uc => Held::Uc(pd.create_qp(&create).map_err(|e| device(e.to_string()))?),
            other => return Err(device(format!("an endpoint is RC or UC, not {other}"))),
        };
        let reliable = options.transport == Transport::Rc;
        let caps = Caps {
            write: true,
            read: reliable,
            atomics: reliable,
            max_message: pmd_roce::limits::MAX_MESSAGE,
            depth: options.depth,
            recv_depth: options.recv_depth,
            inline: options.inline,
            status: StatusDetail::Exact,
        };
        Ok(Self {
            cx: cx.clone(),
            pd,
            cq,
            qp,
            caps,
            sends: 0,
            receives: 0,
            local: Vec::new(),
            exported: Vec::new(),
            imported: Vec::new(),
            failed: None,
            path: "none",
        })
    }

    pub(crate) fn connected(&mut self, shares_memory: bool) {
        self.path = if shares_memory { "local" } else { "packet" };
    }

    pub(crate) fn fail(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
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

    fn post_send(&mut self, op: SendOp, data: Data<'_>, token: Token) -> Result<(), SubmitError> {
        if self.sends == self.caps.depth {
            return Err(SubmitError::Full);
        }
        let wr = SendWr {
            wr_id: WrId(token.0),
            op,
            data,
            flags: SendFlags::SIGNALED,
            to: None,
            srqn: None,
        };
        let qpn = self.qp.number();
        let posted = self.cx.with(|core| core.engine.post_send(qpn, &wr));
        self.sends += u32::from(posted.is_ok());
        posted.map_err(|error| match error {
            PostSendError::Full => SubmitError::Full,
            PostSendError::NotReady(_)
            | PostSendError::NoSuchQp(_)
            | PostSendError::DeviceFatal => SubmitError::Degraded,
            PostSendError::InlineTooLong { max } => SubmitError::TooLong { max },
            PostSendError::TooLong { max, .. } => SubmitError::TooLong { max },
            PostSendError::Operation(what) | PostSendError::Destination(what) => {
                SubmitError::Unsupported(what)
            }
            PostSendError::TooManySges { .. } => SubmitError::Unsupported("more than one element"),
        })
    }

    /// Ends what was in flight when the device failed: no completion will.
    fn settle_lost(&mut self, sink: &mut dyn FnMut(Settled)) -> usize {
        let qpn = self.qp.number();
        let is_own = |(lost, _): &mut (Qpn, Outstanding)| *lost == qpn;
        let lost: Vec<_> = self.cx.with(|core| match core.limbo.is_empty() {
            true => Vec::new(),
            false => core.limbo.extract_if(.., is_own).collect(),
        });
        for (_, request) in &lost {
            let (queue, WrId(token)) = match request {
                Outstanding::Send(wr_id) => (&mut self.sends, *wr_id),
                Outstanding::Receive(wr_id) => (&mut self.receives, *wr_id),
            };
            *queue = queue.saturating_sub(1);
            let (outcome, len, imm) = (Outcome::Flushed, 0, None);
            sink(Settled { token: Token(token), outcome, len, imm });
        }
        lost.len()
    }

    fn settle(&mut self, completion: &Completion) -> Settled {
        let outcome = match completion.status {
            WcStatus::Success => Outcome::Done,
            WcStatus::WrFlush => Outcome::Flushed,
            status => {
                self.fail(format!("{:?} failed: {status}", completion.opcode));
                Outcome::Failed(status)
            }
        };
        let received = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
        let queue = if received { &mut self.receives } else { &mut self.sends };
        *queue = queue.saturating_sub(1);
        Settled {
            token: Token(completion.wr_id.0),
            outcome,
            len: completion.byte_len,
            imm: completion.imm().filter(|_| received).map(|imm| imm.0),
        }
    }
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
        if self.failed.is_some() {
            return Err(SubmitError::Degraded);
        }
        let send = |imm: Option<[u8; 4]>| imm.map_or(SendOp::Send, |imm| SendOp::SendImm(Imm(imm)));
        match op {
            Op::Send { from, imm } => {
                self.post_send(send(imm), Data::Sges(&[self.sge(from)?]), token)
            }
            Op::SendInline { bytes, imm } => {
                self.post_send(send(imm), Data::Inline(&[bytes]), token)
            }
            Op::Recv { into } => {
                if self.receives == self.caps.recv_depth {
                    return Err(SubmitError::Full);
                }
                let wr = RecvWr { wr_id: WrId(token.0), sges: &[self.sge(into)?] };
                let qpn = self.qp.number();
                let posted = self.cx.with(|core| core.engine.post_recv(qpn, &wr));
                self.receives += u32::from(posted.is_ok());
                posted.map_err(|error| match error {
                    PostRecvError::Full => SubmitError::Full,
                    PostRecvError::NotReady(_)
                    | PostRecvError::NoSuchQp(_)
                    | PostRecvError::DeviceFatal => SubmitError::Degraded,
                    _ => SubmitError::Unsupported("receives on this queue pair"),
                })
            }
            Op::Write { from, to, imm } => {
                let at = self.remote(to, from.len)?;
                let op = imm.map_or(SendOp::Write(at), |imm| SendOp::WriteImm(at, Imm(imm)));
                self.post_send(op, Data::Sges(&[self.sge(from)?]), token)
            }
            Op::Read { into, from } => {
                let at = self.remote(from, into.len)?;
                self.post_send(SendOp::Read(at), Data::Sges(&[self.sge(into)?]), token)
            }
            Op::CompareSwap { into, at, compare, swap } => {
                let at = self.remote(at, 8)?;
                self.post_send(
                    SendOp::CompareSwap { at, compare, swap },
                    Data::Sges(&[self.sge(into)?]),
                    token,
                )
            }
            Op::FetchAdd { into, at, add } => {
                let at = self.remote(at, 8)?;
                self.post_send(SendOp::FetchAdd { at, add }, Data::Sges(&[self.sge(into)?]), token)
            }
        }
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
            self.cx.with(|core| core.cqs.take(self.cq.id(), BATCH, &mut batch));
            count += batch.len();
            let last = batch.len() < BATCH;
            if batch.is_empty() {
                count += self.settle_lost(sink);
            }
            for completion in &batch {
                sink(self.settle(completion));
            }
            if last {
                return count;
            }
        }
    }

    fn event(&mut self) -> Option<EndpointEvent> {
        let qpn = self.qp.number();
        if self.failed.is_none() && self.cx.with(|core| core.engine.is_fatal()) {
            let why = "the device failed";
            self.fail(why.into());
            return Some(EndpointEvent::Failed(why));
        }
        loop {
            let event = self.cx.with(|core| core.take_event(|event| Core::concerns(event, qpn)))?;
            let why = match event {
                AsyncEvent::QpFatal(_) => "the queue pair failed on this side",
                AsyncEvent::QpReqErr(_) => {
                    "the peer sent a request that this queue pair does not allow"
                }
                AsyncEvent::QpAccessErr(_) => "the peer broke the rights of this side's memory",
                _ => continue,
            };
            self.fail(why.into());
            return Some(EndpointEvent::Failed(why));
        }
    }

    fn close(&mut self) {
        self.fail("closed".into());
        // An error means that it is in Error, or back in RESET, already.
        if let Err(error) = self.qp.modify(By::Close, &QpAttr::new(QpState::Error), AttrMask::STATE)
        {
            tracing::debug!("closing {}: {error}", self.qp.number());
        }
    }

    fn failure(&self) -> Option<String> {
        self.failed.clone()
    }

    fn path(&self) -> &'static str {
        self.path
    }
}
