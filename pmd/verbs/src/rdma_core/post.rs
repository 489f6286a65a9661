//! Posting, straight to the device's driver: a request is put together on the stack, and its elements are lent as they are.

use ::core::ffi::c_int;

use arrayvec::ArrayVec;
use pmd_roce::engine::{PostRecvError, PostSendError, Refusal};
use pmd_roce::limits::MAX_SGE;
use pmd_roce::work::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode};

use super::abi::{
    atomic, bind_mw, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_sge, rdma, ud, wr as Operand,
};
use super::core::Core;
use crate::provider::QpAt;
use rustix::io::Errno;

// An element is passed on as it is.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>());
const _: () = assert!(::core::mem::offset_of!(Sge, addr) == ::core::mem::offset_of!(ibv_sge, addr));
const _: () =
    assert!(::core::mem::offset_of!(Sge, len) == ::core::mem::offset_of!(ibv_sge, length));
const _: () = assert!(::core::mem::offset_of!(Sge, lkey) == ::core::mem::offset_of!(ibv_sge, lkey));

/// `IBV_SEND_INLINE`; the other flags are those of [`SendFlags`].
const INLINE: u32 = 8;

/// Elements of inline bytes.
type Pieces = ArrayVec<ibv_sge, { MAX_SGE as usize }>;

impl Core {
    #[inline]
    pub(crate) fn post_send(&mut self, at: QpAt, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let Some(qp) = self.at(at) else { return Err(PostSendError::NoSuchQp(at.qpn)) };
        if !qp.stats.state.accepts_post_send() {
            return Err(PostSendError::NotReady(qp.stats.state));
        }
        if qp.sends.is_full() {
            return Err(PostSendError::Full);
        }
        let cap = qp.init.cap;
        let signaled = qp.init.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED);
        let mut pieces = Pieces::new();
        let (list, count, inline) = match wr.data {
            Data::Sges(sges) => {
                if sges.len() > cap.max_send_sge as usize {
                    return Err(PostSendError::TooManySges { max: cap.max_send_sge });
                }
                (sges.as_ptr().cast::<ibv_sge>().cast_mut(), sges.len(), 0)
            }
            Data::Inline(bytes) => {
                inline(bytes, cap.max_inline_data, cap.max_send_sge, &mut pieces)?;
                (pieces.as_mut_ptr(), pieces.len(), INLINE)
            }
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "few")]
        let mut raw = ibv_send_wr {
            wr_id: wr.wr_id.0,
            next: ::core::ptr::null_mut(),
            sg_list: list,
            num_sge: count as c_int,
            opcode: 0,
            send_flags: wr.flags.bits() | inline,
            imm_data: 0,
            wr: NOTHING,
            remote_srqn: wr.srqn.map_or(0, |srqn| srqn.0),
            bind_mw: UNBOUND,
        };
        let opcode = operation(&mut raw, &wr.op);
        if let Some(to) = wr.to {
            let ah = self.ahs.get(to.ah.0 as usize).and_then(Option::as_ref);
            let ah = ah.ok_or(PostSendError::Destination("no such address handle"))?.get();
            let (remote_qpn, remote_qkey) = (to.qpn.value(), to.qkey);
            raw.wr = Operand { ud: ud { ah, remote_qpn, remote_qkey } };
        }
        if let SendOp::BindWindow(_) = wr.op {
            self.bind(&mut raw, &wr.op)?;
        }
        let post_send = self.open.context.fields().ops.post_send;
        let Some(qp) = self.at(at) else { return Err(PostSendError::NoSuchQp(at.qpn)) };
        let mut bad = ::core::ptr::null_mut();
        // SAFETY: the queue pair is alive; the request and its elements are, until the call returns. Memory that elements name
        // is checked by the device.
        let status = unsafe { post_send(qp.raw.get(), &raw mut raw, &raw mut bad) };
        if status != 0 {
            return Err(not_sent(status));
        }
        qp.sends.push(wr.wr_id.0, opcode, signaled);
        Ok(())
    }

    #[inline]
    pub(crate) fn post_send_list<'a, 'b: 'a>(
        &mut self,
        at: QpAt,
        list: impl IntoIterator<Item = &'a SendWr<'b>>,
    ) -> Result<(), (usize, PostSendError)> {
        for (posted, wr) in list.into_iter().enumerate() {
            self.post_send(at, wr).map_err(|error| (posted, error))?;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn post_recv(&mut self, at: QpAt, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        let post_recv = self.open.context.fields().ops.post_recv;
        let Some(qp) = self.at(at) else { return Err(PostRecvError::NoSuchQp(at.qpn)) };
        if !qp.stats.state.accepts_post_recv() {
            return Err(PostRecvError::NotReady(qp.stats.state));
        }
        if qp.init.srq.is_some() {
            return Err(PostRecvError::NoQueue);
        }
        let max = qp.init.cap.max_recv_sge;
        if wr.sges.len() > max as usize {
            return Err(PostRecvError::TooManySges { max });
        }
        let mut raw = receive(wr);
        let mut bad = ::core::ptr::null_mut();
        // SAFETY: the queue pair is alive; the request and its elements are, until the call returns.
        let status = unsafe { post_recv(qp.raw.get(), &raw mut raw, &raw mut bad) };
        if status != 0 {
            return Err(not_received("ibv_post_recv", status));
        }
        qp.recv_posted = qp.recv_posted.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub(crate) fn post_recv_list<'a, 'b: 'a>(
        &mut self,
        at: QpAt,
        list: impl IntoIterator<Item = &'a RecvWr<'b>>,
    ) -> Result<(), (usize, PostRecvError)> {
        for (posted, wr) in list.into_iter().enumerate() {
            self.post_recv(at, wr).map_err(|error| (posted, error))?;
        }
        Ok(())
    }

    /// Window and region by their keys.
    #[cold]
    fn bind(&self, raw: &mut ibv_send_wr, op: &SendOp) -> Result<(), PostSendError> {
        let SendOp::BindWindow(bind) = op else { return Ok(()) };
        let window = self.windows.get(&(bind.window.0 >> 8));
        let region = self.regions.get(&bind.region.0);
        let (Some(window), Some(region)) = (window, region) else {
            return Err(PostSendError::Operation(
                "no such memory window, or region, of this lcore",
            ));
        };
        raw.bind_mw = bind_mw {
            mw: window.get(),
            rkey: bind.new_key.0,
            bind_info: ibv_mw_bind_info {
                mr: region.get(),
                addr: bind.addr,
                length: bind.len,
                mw_access_flags: bind.access.bits(),
            },
        };
        Ok(())
    }
}

/// A receive in the words of libibverbs.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "few elements")]
pub(super) const fn receive(wr: &RecvWr<'_>) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id: wr.wr_id.0,
        next: ::core::ptr::null_mut(),
        sg_list: wr.sges.as_ptr().cast::<ibv_sge>().cast_mut(),
        num_sge: wr.sges.len() as c_int,
    }
}

const NOTHING: Operand =
    Operand { atomic: atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } };
const UNBOUND: bind_mw = bind_mw {
    mw: ::core::ptr::null_mut(),
    rkey: 0,
    bind_info: ibv_mw_bind_info {
        mr: ::core::ptr::null_mut(),
        addr: 0,
        length: 0,
        mw_access_flags: 0,
    },
};

/// Fills in what is special about an operation, and says what it completes as.
#[inline]
fn operation(raw: &mut ibv_send_wr, op: &SendOp) -> WcOpcode {
    let (number, opcode) = match *op {
        SendOp::Write(at) => {
            raw.wr = Operand { rdma: rdma { remote_addr: at.addr, rkey: at.rkey.0 } };
            (0, WcOpcode::Write)
        }
        SendOp::WriteImm(at, imm) => {
            raw.wr = Operand { rdma: rdma { remote_addr: at.addr, rkey: at.rkey.0 } };
            raw.imm_data = u32::from_ne_bytes(imm.0);
            (1, WcOpcode::Write)
        }
        SendOp::Send => (2, WcOpcode::Send),
        SendOp::SendImm(imm) => {
            raw.imm_data = u32::from_ne_bytes(imm.0);
            (3, WcOpcode::Send)
        }
        SendOp::Read(at) => {
            raw.wr = Operand { rdma: rdma { remote_addr: at.addr, rkey: at.rkey.0 } };
            (4, WcOpcode::Read)
        }
        SendOp::CompareSwap { at, compare, swap } => {
            let (remote_addr, rkey) = (at.addr, at.rkey.0);
            raw.wr = Operand { atomic: atomic { remote_addr, compare_add: compare, swap, rkey } };
            (5, WcOpcode::CompareSwap)
        }
        SendOp::FetchAdd { at, add } => {
            let (remote_addr, rkey) = (at.addr, at.rkey.0);
            raw.wr = Operand { atomic: atomic { remote_addr, compare_add: add, swap: 0, rkey } };
            (6, WcOpcode::FetchAdd)
        }
        SendOp::LocalInvalidate(key) => {
            raw.imm_data = key.0;
            (7, WcOpcode::LocalInvalidate)
        }
        SendOp::BindWindow(_) => (8, WcOpcode::BindWindow),
        SendOp::SendInvalidate(key) => {
            raw.imm_data = key.0;
            (9, WcOpcode::Send)
        }
    };
    raw.opcode = number;
    opcode
}

/// The bytes of an inline request: the driver copies them.
fn inline(
    bytes: &[&[u8]],
    max: u32,
    max_sge: u32,
    pieces: &mut Pieces,
) -> Result<(), PostSendError> {
    if bytes.iter().map(|piece| piece.len()).sum::<usize>() > max as usize {
        return Err(PostSendError::InlineTooLong { max });
    }
    for piece in bytes {
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let piece = ibv_sge { addr: piece.as_ptr().expose_provenance() as u64, length, lkey: 0 };
        if pieces.len() >= max_sge as usize || pieces.try_push(piece).is_err() {
            return Err(PostSendError::TooManySges { max: max_sge });
        }
    }
    Ok(())
}

#[cold]
fn not_sent(status: c_int) -> PostSendError {
    match Errno::from_raw_os_error(status.abs()) {
        Errno::NOMEM => PostSendError::Full,
        Errno::INVAL => PostSendError::Operation(
            "the device refuses it (EINVAL): an operation, length or alignment that it does not take",
        ),
        Errno::IO | Errno::NODEV => PostSendError::DeviceFatal,
        errno => {
            PostSendError::Driver(Refusal { call: "ibv_post_send", errno: errno.raw_os_error() })
        }
    }
}

#[cold]
pub(super) fn not_received(call: &'static str, status: c_int) -> PostRecvError {
    match Errno::from_raw_os_error(status.abs()) {
        Errno::NOMEM => PostRecvError::Full,
        Errno::IO | Errno::NODEV => PostRecvError::DeviceFatal,
        errno => PostRecvError::Driver(Refusal { call, errno: errno.raw_os_error() }),
    }
}
