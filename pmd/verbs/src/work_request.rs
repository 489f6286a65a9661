//! Work requests whose operation fits their queue pair, checked by the compiler.
//!
//! A READ on an unreliable connection does not compile:
//! ```compile_fail
//! use pmd_verbs::{Data, RemoteAddr, Uc, WorkRequest};
//! let wr = WorkRequest::<Uc>::read(Data::Sges(&[]), RemoteAddr::default());
//! ```
//! neither does a WRITE on datagrams:
//! ```compile_fail
//! use pmd_verbs::{Data, RemoteAddr, Ud, WorkRequest};
//! let wr = WorkRequest::<Ud>::write(Data::Sges(&[]), RemoteAddr::default());
//! ```

use std::marker::PhantomData;

use pmd_roce::ids::{Qpn, Rkey, Srqn, WrId};
use pmd_roce::work::{Data, Datagram, Imm, RemoteAddr, SendFlags, SendOp, SendWr, WindowBind};

use crate::ah::Ah;
use crate::transport::{Atomic, Connected, Rdma, Reliable, Sends, Ud, XrcIni};

/// A request for the send queue of a `Qp<T>`.
#[derive(Debug)]
pub struct WorkRequest<'a, T> {
    wr: SendWr<'a>,
    service: PhantomData<T>,
}

impl<T> Clone for WorkRequest<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for WorkRequest<'_, T> {}

impl<'a, T: Sends> WorkRequest<'a, T> {
    const fn new(op: SendOp, data: Data<'a>, to: Option<Datagram>) -> Self {
        let wr = SendWr { wr_id: WrId(0), op, data, flags: SendFlags::empty(), to, srqn: None };
        Self { wr, service: PhantomData }
    }

    /// The caller's name for the request, returned in its completion.
    #[must_use]
    pub const fn id(mut self, id: u64) -> Self {
        self.wr.wr_id = WrId(id);
        self
    }

    /// Complete with a work completion even when all goes well.
    #[must_use]
    pub fn signaled(mut self) -> Self {
        self.wr.flags |= SendFlags::SIGNALED;
        self
    }

    /// Ask the receiver for a solicited event.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.wr.flags |= SendFlags::SOLICITED;
        self
    }

    /// Start only after every earlier READ and atomic has completed.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.wr.flags |= SendFlags::FENCE;
        self
    }

    #[inline]
    pub(crate) const fn as_wr(&self) -> &SendWr<'a> {
        &self.wr
    }
}

impl<'a, T: Connected + Sends> WorkRequest<'a, T> {
    /// SEND.
    pub const fn send(data: Data<'a>) -> Self {
        Self::new(SendOp::Send, data, None)
    }

    /// SEND with immediate.
    pub const fn send_imm(data: Data<'a>, imm: Imm) -> Self {
        Self::new(SendOp::SendImm(imm), data, None)
    }
}

impl<'a> WorkRequest<'a, Ud> {
    /// SEND of one datagram. A Q_Key with the top bit set stands for the queue pair's own.
    pub fn send_to(data: Data<'a>, ah: &Ah, qpn: Qpn, qkey: u32) -> Self {
        Self::new(SendOp::Send, data, Some(Datagram { ah: ah.id(), qpn, qkey }))
    }

    /// SEND of one datagram with immediate.
    pub fn send_to_imm(data: Data<'a>, ah: &Ah, qpn: Qpn, qkey: u32, imm: Imm) -> Self {
        Self::new(SendOp::SendImm(imm), data, Some(Datagram { ah: ah.id(), qpn, qkey }))
    }
}

impl<'a, T: Rdma> WorkRequest<'a, T> {
    /// RDMA WRITE.
    pub const fn write(data: Data<'a>, to: RemoteAddr) -> Self {
        Self::new(SendOp::Write(to), data, None)
    }

    /// RDMA WRITE with immediate: consumes a receive at the peer.
    pub const fn write_imm(data: Data<'a>, to: RemoteAddr, imm: Imm) -> Self {
        Self::new(SendOp::WriteImm(to, imm), data, None)
    }
}

impl<'a, T: Reliable> WorkRequest<'a, T> {
    /// RDMA READ into `data`, which must be registered memory.
    pub const fn read(data: Data<'a>, from: RemoteAddr) -> Self {
        Self::new(SendOp::Read(from), data, None)
    }

    /// SEND that invalidates the peer's key on arrival.
    pub const fn send_invalidate(data: Data<'a>, key: Rkey) -> Self {
        Self::new(SendOp::SendInvalidate(key), data, None)
    }

    /// Bind a type 2 memory window.
    pub const fn bind(window: WindowBind) -> Self {
        Self::new(SendOp::BindWindow(window), Data::Sges(&[]), None)
    }

    /// Invalidate a key of this side.
    pub const fn local_invalidate(key: Rkey) -> Self {
        Self::new(SendOp::LocalInvalidate(key), Data::Sges(&[]), None)
    }
}

impl<'a, T: Atomic> WorkRequest<'a, T> {
    /// Compare eight aligned bytes and swap them when equal; the value before arrives in `data`.
    pub const fn compare_swap(data: Data<'a>, at: RemoteAddr, compare: u64, swap: u64) -> Self {
        Self::new(SendOp::CompareSwap { at, compare, swap }, data, None)
    }

    /// Add to eight aligned bytes; the value before arrives in `data`.
    pub const fn fetch_add(data: Data<'a>, at: RemoteAddr, add: u64) -> Self {
        Self::new(SendOp::FetchAdd { at, add }, data, None)
    }
}

impl WorkRequest<'_, XrcIni> {
    /// Deliver into this shared receive queue of the peer: SENDs and WRITEs with immediate.
    #[must_use]
    pub const fn toward(mut self, srqn: Srqn) -> Self {
        self.wr.srqn = Some(srqn);
        self
    }
}
