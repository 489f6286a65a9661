//! An endpoint that keeps no books: what a ledger costs is what a [queue pair's](pmd_verbs::endpoint::QueuePairEndpoint)
//! costs beyond this one.
//!
//! It does all else in the same way and order: it checks ranges, bounds what is in flight by the depth, polls in the
//! same batches. But a request's name at the device is the caller's token, so that nothing is known of it until its
//! completion comes: whatever the device does not report is lost, and a late completion is taken for one of the
//! connection that stands.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use pmd_mem::Region;
use pmd_verbs::endpoint::{
    Caps, Endpoint, EndpointEvent, EndpointOptions, Local, LocalKey, MemoryError, Op, Outcome,
    Remote, RemoteKey, RemoteRef, Replay, Rights, Settled, StatusDetail, SubmitError, Token,
};
use pmd_verbs::roce::ids::{PathMtu, Rkey, WrId};
use pmd_verbs::roce::limits::MAX_MESSAGE;
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::work::{Completion, Imm, WcOpcode, WcStatus};
use pmd_verbs::{
    Access, Context, Cq, Data, Mr, Pd, Qp, QpOptions, Rc, RecvWr, RemoteAddr, Sge, WorkRequest,
};

use crate::side::{steps, walk};

/// Completions taken at a time are as many as a queue pair's endpoint takes; more are asked for until none is left.
const ALL: usize = usize::MAX;

#[derive(Debug)]
struct Imported {
    addr: u64,
    rkey: Rkey,
    len: u64,
}

/// The endpoint.
#[derive(Debug)]
pub(crate) struct Bookless {
    qp: Qp<Rc>,
    cq: Cq,
    pd: Pd,
    caps: Caps,
    local: Vec<Mr>,
    exported: Vec<Mr>,
    imported: Vec<Imported>,
    /// Operations, and receives, without completion.
    in_flight: [u32; 2],
}

impl Bookless {
    /// One that is not connected.
    ///
    /// # Errors
    /// What was refused.
    pub(crate) fn create(cx: &Context, options: &EndpointOptions) -> Result<Self> {
        let pd = cx.alloc_pd();
        let cq = cx.create_cq(options.depth + options.recv_depth)?;
        let caps = Caps {
            write: true,
            read: true,
            atomics: true,
            max_message: MAX_MESSAGE,
            depth: options.depth,
            recv_depth: options.recv_depth,
            inline: options.inline,
            status: StatusDetail::Exact,
        };
        let cap = QpCap {
            max_send_wr: options.depth,
            max_recv_wr: options.recv_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: options.inline,
        };
        let (send_cq, recv_cq) = (&cq, &cq);
        let create = QpOptions { send_cq, recv_cq, srq: None, xrcd: None, cap, signal_all: true };
        let qp = pd.create_qp(&create)?;
        Ok(Self {
            qp,
            cq,
            pd,
            caps,
            local: Vec::new(),
            exported: Vec::new(),
            imported: Vec::new(),
            in_flight: [0; 2],
        })
    }

    /// Connects two.
    ///
    /// # Errors
    /// What was refused.
    pub(crate) fn connect(&self, peer: &Self, options: &EndpointOptions) -> Result<()> {
        let (cx, to) = (self.pd.context(), peer.qp.number());
        let gid = peer.pd.context().device().gid();
        let steps = steps(cx.path_to(gid, to).context("no path to the peer")?, to);
        let EndpointOptions { timeout, min_rnr_timer, .. } = *options;
        let path_mtu = PathMtu::B4096;
        walk(
            &self.qp,
            &steps.map(|(attr, mask)| (QpAttr { path_mtu, timeout, min_rnr_timer, ..attr }, mask)),
        )
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

    #[inline(always)]
    fn post_send(&mut self, wr: WorkRequest<'_, Rc>, token: Token) -> Result<(), SubmitError> {
        if self.in_flight[0] == self.caps.depth {
            return Err(SubmitError::Full);
        }
        self.qp.post_send(&wr.id(token.0).signaled()).map_err(|_| SubmitError::Degraded)?;
        self.in_flight[0] += 1;
        Ok(())
    }

    fn post_recv(&mut self, into: Local, token: Token) -> Result<(), SubmitError> {
        let sge = self.sge(into)?;
        if self.in_flight[1] == self.caps.recv_depth {
            return Err(SubmitError::Full);
        }
        let wr = RecvWr { wr_id: WrId(token.0), sges: &[sge] };
        self.qp.post_recv(&wr).map_err(|_| SubmitError::Degraded)?;
        self.in_flight[1] += 1;
        Ok(())
    }
}

impl Endpoint for Bookless {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<LocalKey, MemoryError> {
        let mr = self.pd.register(region, 0, region.len(), Access::LOCAL_WRITE);
        self.local.push(mr.map_err(|e| MemoryError::Refused(e.to_string()))?);
        Ok(LocalKey(u32::try_from(self.local.len() - 1).unwrap_or(u32::MAX)))
    }

    fn export(
        &mut self,
        key: LocalKey,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteRef, MemoryError> {
        let region = self.local.get(key.0 as usize).ok_or(MemoryError::UnknownKey)?.region();
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::REMOTE_READ, rights.read);
        access.set(Access::REMOTE_WRITE, rights.write);
        let mr = self.pd.register(region, offset, len, access);
        let mr = mr.map_err(|e| MemoryError::Refused(e.to_string()))?;
        let words = [mr.addr(), u64::from(mr.rkey().0), len];
        self.exported.push(mr);
        Ok(RemoteRef(words.map(u64::to_le_bytes).concat().into()))
    }

    fn import(&mut self, bytes: &[u8]) -> Result<RemoteKey, MemoryError> {
        let reason = "it is not three words long";
        let malformed = MemoryError::Malformed { kind: "bookless", reason };
        let ([addr, rkey, len], []) = bytes.as_chunks::<8>() else { return Err(malformed) };
        let [addr, rkey, len] = [addr, rkey, len].map(|word| u64::from_le_bytes(*word));
        let rkey = Rkey(u32::try_from(rkey).map_err(|_| malformed)?);
        self.imported.push(Imported { addr, rkey, len });
        Ok(RemoteKey(u32::try_from(self.imported.len() - 1).unwrap_or(u32::MAX)))
    }

    fn submit(&mut self, op: Op<'_>, token: Token) -> Result<(), SubmitError> {
        match op {
            Op::Recv { into } => self.post_recv(into, token),
            Op::Send { from, imm } => {
                let data = [self.sge(from)?];
                self.post_send(send(Data::Sges(&data), imm), token)
            }
            Op::SendInline { bytes, imm } => {
                self.post_send(send(Data::Inline(&[bytes]), imm), token)
            }
            Op::Write { from, to, imm } => {
                let (to, data) = (self.remote(to, from.len)?, [self.sge(from)?]);
                let data = Data::Sges(&data);
                let wr = match imm {
                    None => WorkRequest::write(data, to),
                    Some(imm) => WorkRequest::write_imm(data, to, Imm(imm)),
                };
                self.post_send(wr, token)
            }
            Op::Read { into, from } => {
                let (from, data) = (self.remote(from, into.len)?, [self.sge(into)?]);
                self.post_send(WorkRequest::read(Data::Sges(&data), from), token)
            }
            Op::CompareSwap { into, at, compare, swap } => {
                let (at, data) = (self.remote(at, 8)?, [self.sge(into)?]);
                let wr = WorkRequest::compare_swap(Data::Sges(&data), at, compare, swap);
                self.post_send(wr, token)
            }
            Op::FetchAdd { into, at, add } => {
                let (at, data) = (self.remote(at, 8)?, [self.sge(into)?]);
                self.post_send(WorkRequest::fetch_add(Data::Sges(&data), at, add), token)
            }
        }
    }

    fn doorbell(&mut self) {
        // A poll for nothing makes a turn.
        self.cq.poll(0, |_| {});
    }

    fn poll(&mut self, sink: &mut dyn FnMut(Settled)) -> usize {
        let mut receives = 0;
        let count = self.cq.poll(ALL, |completion| {
            let received = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
            receives += u32::from(received);
            if completion.status != WcStatus::Success {
                return sink(failed(&completion));
            }
            let imm = if received { completion.imm().map(|imm| imm.0) } else { None };
            let (token, len) = (Token(completion.wr_id.0), completion.byte_len);
            sink(Settled { token, outcome: Outcome::Done, len, imm, replay: Replay::Never });
        });
        #[expect(clippy::cast_possible_truncation, reason = "no more than both depths")]
        let sends = count as u32 - receives;
        self.in_flight[0] -= sends;
        self.in_flight[1] -= receives;
        count
    }

    fn event(&mut self) -> Option<EndpointEvent> {
        None
    }

    fn close(&mut self) {}

    fn path(&self) -> &'static str {
        "bookless"
    }
}

#[cold]
fn failed(completion: &Completion) -> Settled {
    let outcome = match completion.status {
        WcStatus::WrFlush => Outcome::Flushed,
        status => Outcome::Failed(status),
    };
    let (token, replay) = (Token(completion.wr_id.0), Replay::Never);
    Settled { token, outcome, len: completion.byte_len, imm: None, replay }
}

#[inline(always)]
const fn send(data: Data<'_>, imm: Option<[u8; 4]>) -> WorkRequest<'_, Rc> {
    match imm {
        None => WorkRequest::send(data),
        Some(imm) => WorkRequest::send_imm(data, Imm(imm)),
    }
}
